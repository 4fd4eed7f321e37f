"""What workers report: adverts, quotes, refusals, their own status and that of our queued leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocol.messages.work import Denied, QueuedLease, Quote, Renewed, Shape
from protocol.values.advert import Advert
from protocol.values.attempt import AttemptStatus, TaskState
from protocol.words import Reason, WorkerState
from scheduler.core.commands import Command, QueuePosition
from scheduler.core.entries import Attempt, TaskEntry
from scheduler.core.failures import Failures
from scheduler.core.ranking import UNAVAILABLE_STATES, WorkerView
from scheduler.core.state import State

LEAST_RETRY_S: Final = 1.0
"""Least seconds before a worker that refuses is asked again, whatever wait it names."""
REST_S: Final = 10.0
"""Seconds after which a worker that takes no work now is asked again."""


class Workers:
    """Each event returns the commands that follow from it; see `scheduler.core.scheduler`."""

    def __init__(self, state: State, failures: Failures) -> None:
        self._state = state
        self._failures = failures

    def add_adverts(self, group: str, adverts: Sequence[Advert], now: float) -> list[Command]:
        """The index answered a search for this group. The adverts are used for every group that they fit."""
        state = self._state
        searched = state.groups.get(group)
        if searched is not None:
            searched.searching = False
        for advert in adverts:
            view = state.worker(advert.peer)
            newer = view.advert is None or advert.seq >= view.advert.seq
            if not newer or advert.gone or advert == view.advert:
                continue
            state.unsettled = True
            if view.advert is not None and advert.seq > view.advert.seq and view.unreachable:
                view.retry_at = now  # it is back, or has moved
            state.set_advert(view, advert)
        return []

    def count_untrusted(self, group: str, adverts: Sequence[Advert]) -> list[Command]:
        """A search found no usable device for the group, but these adverts. Count those that would fit if they were trusted."""
        waiting = self._state.groups.get(group)
        if waiting is not None:
            untrusted = len(self._state.untrusted_in(waiting, adverts))
            self._state.unsettled = self._state.unsettled or untrusted != waiting.untrusted
            waiting.untrusted = untrusted
        return []

    def review_trust(self, now: float) -> list[Command]:
        """Trust in workers changed: a worker that a campaign no longer admits gets nothing of it; its runs are stopped and tried
        elsewhere.
        """
        state = self._state
        state.unsettled = True
        commands: list[Command] = []
        for view in state.workers.values():
            for group in state.ranked:
                if view.advert is not None and state.may_use(group, view.advert):
                    group.fits.add(view.peer)
                else:
                    group.fits.discard(view.peer)
            commands += self._failures.end_untrusted(view.peer, now)
        return commands

    def add_quote(self, peer: str, quote: Quote, now: float, shapes: Sequence[Shape] = ()) -> list[Command]:
        """A worker answered a probe about these shapes."""
        view = self._state.worker(peer)
        answers = tuple(zip(shapes, quote.shapes, strict=False))
        view.warm.difference_update(shape.model for shape, _ in answers)
        view.warm.update(shape.model for shape, answer in answers if answer.warm)
        fitting = [shape.requirement for shape, answer in answers if answer.fits]
        for shape, answer in answers:
            if shape.requirement not in fitting:
                denied = Denied(reason=Reason.DOES_NOT_FIT, detail="; ".join(answer.unmet)[:2000])
                for group in self._state.ranked:
                    if group.requirement == shape.requirement:
                        group.fits.discard(peer)
                        group.declined[peer] = denied
        view.probing, view.quoted, view.refused, view.unreachable = False, True, None, 0
        view.why = view.why_aside
        commands = self.update_incarnation(view, quote.incarnation, now)
        self.update_load(view, quote, now)
        return commands

    def update_load(self, view: WorkerView, quote: Quote, now: float) -> None:
        """Update the count of others' work: the quote's figures, less our own tasks there."""
        view.state, view.state_why, view.quoted_at, view.run_s = quote.state, quote.why, now, quote.run_s
        leases, queued_leases = self._state.leases_at(view)
        held = self._state.held_at(view.peer)
        running = sum(entry.runs(each) and each.status is not AttemptStatus.REPORTING for entry, each in held)
        view.add_slots(running + quote.free)
        taken = 1 if quote.free == 0 else 0
        view.others = max(0, taken - leases) + max(0, quote.queue - queued_leases)
        self._rest(view, now)
        self._state.refresh(view)

    @staticmethod
    def _rest(view: WorkerView, now: float) -> None:
        """Ask a worker that takes no work now again later."""
        if view.state in UNAVAILABLE_STATES or view.state_why:
            # While the worker drains, its own reason (paused, quiet hours, leaving) is enough.
            bare = view.state is WorkerState.FAULTY or (
                view.state in UNAVAILABLE_STATES and not view.state_why
            )
            words = f"it is {view.state}" if bare else ""
            view.quoted, view.retry_at = False, now + REST_S
            view.why = ": ".join(part for part in (words, view.state_why) if part)

    def refuse(self, peer: str, denied: Denied, now: float) -> list[Command]:
        """A worker does not serve this scheduler, or not now."""
        view = self._state.worker(peer)
        view.probing, view.quoted, view.unreachable = False, False, 0
        view.why = f"{denied.reason}: {denied.detail}" if denied.detail else str(denied.reason)
        view.back_off(now, 10.0 if denied.retry_s is None else max(denied.retry_s, LEAST_RETRY_S))
        if denied.retry_s is None and denied.reason is not Reason.NOT_SERVING:
            view.refused = denied.reason
        self._state.refresh(view)
        return []

    def close_link(self, peer: str) -> list[Command]:
        """The worker's link ended; tasks of ours that it holds are not lost by that."""
        view = self._state.worker(peer)
        view.quoted = view.restarted = False
        self._state.refresh(view)
        return []

    def mark_unreachable(self, peer: str, why: str, now: float) -> list[Command]:
        """A probe or commit got no answer."""
        view = self._state.worker(peer)
        view.probing = view.restarted = False
        view.mark_unreachable(now, why)
        self._state.refresh(view)
        return []

    def update_status(self, peer: str, renewed: Renewed, now: float) -> list[Command]:
        """A renewal was answered, with the status of the worker and of our queued leases. Usually nothing is new, and no decision is
        needed.
        """
        view, state, why = self._state.worker(peer), renewed.state, renewed.why
        commands = self.update_incarnation(view, renewed.incarnation, now)
        self._update_queue(view, renewed.waiting, now)
        if state is not view.state or why != view.state_why:
            view.state, view.state_why = state, why
            if view.why and not why and state not in UNAVAILABLE_STATES:
                view.retry_at = min(view.retry_at, now)  # it takes work again: ask at once
            self._rest(view, now)
            self._state.refresh(view)
        return commands

    def _update_queue(self, view: WorkerView, waiting: Sequence[QueuedLease], now: float) -> None:
        """Update the positions of our queued leases and, from the first of them, how much of others' work is ahead of ours."""
        if not waiting:
            return
        by_lease = {queued_lease.lease: queued_lease for queued_lease in waiting}
        for entry, attempt in self._state.held_at(view.peer):
            queued_lease = by_lease.get(attempt.lease or "")
            if queued_lease is not None and attempt.status is AttemptStatus.QUEUED:
                self.update_position(entry, attempt, queued_lease.position, queued_lease.start_s, now)
        leases, _ = self._state.leases_at(view)
        view.others = min(queued_lease.position for queued_lease in waiting) - 1 + (0 if leases else 1)
        self._state.refresh(view)

    def update_position(
        self, entry: TaskEntry, attempt: Attempt, position: int | None, start_s: float | None, now: float
    ) -> None:
        """Store the position of a queued lease in its worker's queue."""
        attempt.position, attempt.start_s, attempt.updated_at = position, start_s, now
        current, hedge = entry.current, entry.hedge
        assert current is not None, "a queued task has an attempt"
        if entry.state is not TaskState.QUEUED:
            return  # the hedge beside a run: the task shows that run instead
        best = hedge if hedge is not None and _sooner(hedge, current, now) else current
        self._state.positions[entry.id] = QueuePosition(entry.id, current.number, best.position, best.start_s)

    def update_incarnation(self, view: WorkerView, incarnation: int, now: float) -> list[Command]:
        """A new incarnation voids what an older one granted."""
        previous = view.incarnation
        if previous is not None and incarnation < previous:
            return []
        if previous is not None and incarnation > previous:
            if view.restarted:  # its renewals say what it has lost
                return self._failures.count_failure(
                    view, "reporting restarts again and again", now, once=True
                )
            view.restarted, view.slots = True, 1
        view.incarnation = incarnation
        commands: list[Command] = []
        for entry, attempt in self._state.held_at(view.peer):
            if attempt.status in (AttemptStatus.RESTORED, AttemptStatus.REPORTING):
                continue  # its result may exist all the same
            if attempt.fence is not None and attempt.fence.incarnation < incarnation:
                words = f"{self._state.device(view.peer)} was restarted"
                commands += self._failures.count_return(entry, attempt, now)
                commands += self._failures.lose_attempt(entry, attempt, Reason.LOST, words, now)
        return commands


def _sooner(hedge: Attempt, current: Attempt, now: float) -> bool:
    """Whether the hedge is expected to start before the current attempt."""
    hedge_s, current_s = hedge.wait_s(now), current.wait_s(now)
    return hedge_s is not None and (current_s is None or hedge_s < current_s)
