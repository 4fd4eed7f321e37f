"""The half of the book that ends things: verdicts on records, lost leases, cancels, limits, giving up, and the invariants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from protocol.attempt import TASK, TaskEvent, TaskState
from protocol.errors import LocalProtocolError
from protocol.messages import Held
from protocol.record import Record
from protocol.table import step
from protocol.words import Outcome, Reason
from scheduler.assign import Assigning
from scheduler.entries import HAS_PLACE, STOP_AGAIN_S, STOP_S, Course, Doom, Entry, Need
from scheduler.orders import CampaignDone, CancelOn, EndAttempt, EndPending, Explain, Order, SetAside
from scheduler.rank import QUICK_S, WorkerView

MAX_ATTEMPTS: Final = 990
"""Attempts are numbered up to 1,000 on the wire; refusals count in the number, not in the tries."""
_WAITS: Final = (TaskState.PENDING, TaskState.QUEUED)
_LIMITS: Final = (Reason.TIMED_OUT, Reason.OUT_OF_MEMORY)
_BLAMELESS: Final = (*_LIMITS, Reason.CANCELLED, Reason.PREEMPTED)


class Ending(Assigning):
    """Part of `scheduler.book.Book`."""

    # -- results ------------------------------------------------------------------------------------------------------------------------

    def judge(self, record: Record) -> tuple[TaskEvent, Reason | None, str]:
        """What a verified record would do to its task. Changes nothing; `settled` does, once it is on disk."""
        entry = self.entries[record.task]
        reason = record.reason or Reason.CRASHED
        if record.outcome is Outcome.COMPLETE:
            return TaskEvent.SUCCEED, None, ""
        if record.outcome is Outcome.CANCELLED:
            if entry.doom is not None:
                return entry.doom.event, entry.doom.reason, entry.doom.detail
            reason = Reason.TIMED_OUT if entry.overtime else record.reason or Reason.LOST
        elif record.permanent:
            return TaskEvent.FAIL, reason, record.detail
        elif entry.doom is not None:
            return entry.doom.event, entry.doom.reason, entry.doom.detail
        return self._after_failure(entry, record.worker, reason, record.detail)

    def _after_failure(
        self, entry: Entry, peer: str, reason: Reason, detail: str
    ) -> tuple[TaskEvent, Reason, str]:
        tries = entry.tries + 1
        terms = self.courses[entry.task.campaign].terms
        fits = self.needs[entry.need].fits
        others = {p for p in fits if p != peer and self.view(p).hopeful()}
        if reason in _LIMITS and (len(entry.limits | {peer}) >= 2 or not others):
            return TaskEvent.FAIL, reason, detail
        if tries >= terms.attempts or entry.attempt >= MAX_ATTEMPTS:
            return TaskEvent.FAIL, reason, detail if tries < 2 else f"attempt {tries} of {tries}: {detail}"
        return TaskEvent.RETRY, reason, detail

    def settled(
        self, task: str, event: TaskEvent, reason: Reason | None, now: float, *, permanent: bool = False
    ) -> list[Order]:
        """The result is on disk: move the task by the event that was judged. `permanent`: the model's fault, not the worker's."""
        entry = self.entries[task]
        orders: list[Order] = []
        if entry.worker is not None:
            view = self.view(entry.worker)
            if event is TaskEvent.SUCCEED:
                view.took(now - entry.since)
                view.succeeded()
                view.warm.add(entry.task.model.sha256)
            elif event in (TaskEvent.RETRY, TaskEvent.FAIL) and not permanent and entry.doom is None:
                orders += self._blame(view, entry, reason, now)
        self._apply(entry, event, reason, now)
        return orders + self._end_if_done(self.courses[entry.task.campaign]) + self.decide(now)

    @staticmethod
    def _blame(view: WorkerView, entry: Entry, reason: Reason | None, now: float) -> list[Order]:
        if reason in _BLAMELESS or now - entry.since > QUICK_S:
            return []
        seconds = view.failed_quickly(now)
        if seconds is None:
            return []
        view.why = f"set aside for {seconds:g} s after quick failures, the last one {reason}"
        return [SetAside(view.peer, view.device, seconds, view.why)]

    # -- losing and stopping ------------------------------------------------------------------------------------------------------------

    def lost(
        self, peer: str, leases: Iterable[str], reason: Reason, now: float, detail: str = ""
    ) -> list[Order]:
        """These leases or tickets are gone without a result."""
        gone = set(leases)
        orders: list[Order] = []
        for task in tuple(self.view(peer).held):
            entry = self.entries[task]
            if entry.lease in gone:
                orders += self._lose(entry, reason, detail or f"{self._named(peer)}: {reason}", now)
        return orders + self.decide(now)

    def all_lost(self, peer: str, reason: Reason, detail: str, now: float) -> list[Order]:
        """The worker has not been heard of for a lease's time: whatever it has of ours is lost."""
        orders: list[Order] = []
        for task in tuple(self.view(peer).held):
            entry = self.entries[task]
            if entry.lease is not None or entry.restored:  # a commit on its way has its own patience
                orders += self._lose(entry, reason, detail, now)
        return orders + self.decide(now)

    def _lose(self, entry: Entry, reason: Reason, detail: str, now: float) -> list[Order]:
        blame: list[Order] = []
        if reason is Reason.BAD_REQUEST and entry.worker is not None:  # what it sent was no result
            blame = self._blame(self.view(entry.worker), entry, reason, now)
        nothing_ran = entry.state is TaskState.QUEUED
        event = TaskEvent.REFUSE if nothing_ran else TaskEvent.LOSE
        return blame + self._let_go(entry, event, reason, detail, now)

    def cancel(self, tasks: Iterable[str], now: float) -> list[Order]:
        """Somebody wants these cancelled."""
        return self._doom(tasks, Doom(TaskEvent.CANCEL, Reason.CANCELLED), now) + self.decide(now)

    def _doom(self, tasks: Iterable[str], doom: Doom, now: float) -> list[Order]:
        pending: list[str] = []
        stops: dict[str, list[Held]] = {}
        courses: dict[str, Course] = {}
        for task in tasks:
            entry = self.entries.get(task)
            if entry is None or entry.over or entry.doom is not None:
                continue
            if entry.state is TaskState.PENDING:
                pending.append(task)
                self._apply(entry, doom.event, doom.reason, now)
                courses[entry.task.campaign] = self.courses[entry.task.campaign]
                continue
            entry.doom = doom
            held = entry.held()
            if held is not None and entry.worker is not None:
                entry.stop_at = entry.told_at = now
                stops.setdefault(entry.worker, []).append(held)
        orders: list[Order] = []
        if pending:
            orders.append(EndPending(tuple(pending), doom.event, doom.reason, doom.detail))
        orders += [CancelOn(peer, tuple(held), doom.reason) for peer, held in stops.items()]
        for course in courses.values():
            orders += self._end_if_done(course)
        return orders

    def stopped(self, peer: str, leases: Iterable[str], now: float) -> list[Order]:
        """The worker confirms that nothing runs under these any more."""
        gone = set(leases)
        orders: list[Order] = []
        for task in tuple(self.view(peer).held):
            entry = self.entries[task]
            if entry.lease not in gone:
                continue
            if entry.releasing and entry.state is TaskState.QUEUED:
                orders += self._let_go(entry, TaskEvent.REFUSE, Reason.BUSY, "given to an idle device", now)
            else:
                orders += self._stop_ended(entry, "stopped", now)
        return orders + self.decide(now)

    def _stop_ended(self, entry: Entry, detail: str, now: float) -> list[Order]:
        """What was to be stopped runs no more, or is waited for no more."""
        if not entry.overtime or entry.doom is not None or entry.worker is None:
            return self._lose(entry, Reason.LOST, detail, now)
        words = "it ran far beyond its limits and was stopped"
        event, reason, detail = self._after_failure(entry, entry.worker, Reason.TIMED_OUT, words)
        order = EndAttempt(entry.id, entry.attempt, event, reason, detail)
        self._apply(entry, event, reason, now)
        return [order, *self._end_if_done(self.courses[entry.task.campaign])]

    def _stop_again(self, entry: Entry, now: float) -> list[Order]:
        """Tell its worker to stop what is not wanted any more: as soon as its lease is known, and again whenever a link comes up."""
        held = entry.held()
        if not entry.stopping or entry.worker is None or held is None:
            return []
        entry.stop_at, entry.told_at = now if entry.stop_at is None else entry.stop_at, now
        return [CancelOn(entry.worker, (held,), entry.doom.reason if entry.doom else Reason.TIMED_OUT)]

    def _let_go(self, entry: Entry, event: TaskEvent, reason: Reason, detail: str, now: float) -> list[Order]:
        """An attempt ended without a record: refused, given back or lost. What is doomed ends; what used all its tries fails."""
        if entry.doom is not None:
            event, reason, detail = entry.doom.event, entry.doom.reason, entry.doom.detail
        elif event is TaskEvent.LOSE and entry.worker is not None:
            verdict, reason, detail = self._after_failure(entry, entry.worker, reason, detail)
            event = TaskEvent.FAIL if verdict is TaskEvent.FAIL else event
        elif entry.attempt >= MAX_ATTEMPTS:
            event, reason, detail = TaskEvent.FAIL, Reason.GAVE_UP, f"refused too often, last: {detail}"
        order = EndAttempt(entry.id, entry.attempt, event, reason, detail)
        self._apply(entry, event, reason, now)
        return [order, *self._end_if_done(self.courses[entry.task.campaign])]

    # -- giving up ----------------------------------------------------------------------------------------------------------------------

    def nothing_fits(self, need: str, reason: Reason, text: str, now: float) -> list[Order]:
        """The answer to `Explain`. If a worker turned up meanwhile the tasks go on."""
        asked = self.needs.get(need)
        if asked is None:
            return []
        asked.explaining = False
        if any(self.view(peer).hopeful() for peer in asked.fits):
            return self.decide(now)
        return self._doom(tuple(asked.pending), Doom(TaskEvent.FAIL, reason, text), now) + self.decide(now)

    def tick(self, now: float) -> list[Order]:
        """Time passed: limits, waits and retries. To be called a few times each second."""
        orders: list[Order] = []
        for course in self.courses.values():
            ends_at = course.terms.ends_at
            if ends_at is not None and now >= ends_at and not course.timed_out and not course.done:
                course.timed_out = True
                doom = Doom(TaskEvent.FAIL, Reason.TIMED_OUT, "the campaign's time limit passed")
                orders += self._doom(tuple(course.tasks), doom, now)
        for need in tuple(self.needs.values()):
            orders += self._waited(need, now)
        for view in self.views.values():
            for task in tuple(view.held):
                orders += self._late(self.entries[task], now)
        return orders + self.decide(now)

    def _late(self, entry: Entry, now: float) -> list[Order]:
        """A run far beyond its limits, or a stop that its worker does not confirm."""
        if not entry.stopping:
            if entry.state not in HAS_PLACE or now - entry.since <= entry.patience_s():
                return []
            entry.overtime = True
            return self._stop_again(entry, now)
        if entry.stop_at is None:
            return []
        if now - entry.stop_at >= STOP_S:
            words = f"{self._named(entry.worker or '')} did not say within {STOP_S:g} s that it was stopped"
            return self._stop_ended(entry, words, now)
        return self._stop_again(entry, now) if now - entry.told_at >= STOP_AGAIN_S else []

    def _waited(self, need: Need, now: float) -> list[Order]:
        need.tasks = [task for task in need.tasks if not self.entries[task].over]
        waiting = [task for task in need.tasks if self.entries[task].state in _WAITS]
        if not waiting:
            need.hope_at = need.moved_at = now
            return []
        if not need.pending or any(self.view(peer).hopeful() for peer in need.fits):
            need.hope_at = now
        running = any(self.entries[task].state in HAS_PLACE for task in need.tasks)
        if running:
            need.moved_at = need.hope_at = now
        waits = self.courses[need.campaign].terms.wait_s
        asked = need.asked_at is not None and not need.asking
        if asked and not need.explaining and now - need.hope_at >= waits:
            need.explaining = True
            return [Explain(need.id, need.requirement)]
        first = self.entries[waiting[0]]
        if now - need.moved_at > first.task.timeouts.queue_s:
            words = f"no device came free within {first.task.timeouts.queue_s:g} s"
            return self._doom(waiting, Doom(TaskEvent.FAIL, Reason.TIMED_OUT, words), now)
        return []

    # -- moving -------------------------------------------------------------------------------------------------------------------------

    def view(self, peer: str) -> WorkerView:
        """What is known of a worker; made on first sight."""
        known = self.views.get(peer)
        if known is None:
            known = self.views[peer] = WorkerView(peer)
        return known

    def _named(self, peer: str) -> str:
        return self.view(peer).device or peer

    @staticmethod
    def _move(entry: Entry, event: TaskEvent) -> None:
        entry.state = step(TASK, entry.state, event, story=f"{entry.id} attempt {entry.attempt}")

    def _apply(self, entry: Entry, event: TaskEvent, reason: Reason | None, now: float) -> None:
        """Move a task out of its attempt, or end a pending one."""
        before, peer = entry.state, entry.worker
        need = self.needs[entry.need]
        self._move(entry, event)
        if before is TaskState.PENDING:
            need.pending.pop(entry.id, None)
        elif peer is not None:
            self.view(peer).held.pop(entry.id, None)
            if event in (TaskEvent.RETRY, TaskEvent.LOSE):
                entry.tries += 1
                entry.tried.add(peer)
                if reason in _LIMITS:
                    entry.limits.add(peer)
                backoff = self.courses[entry.task.campaign].terms.backoff_s
                entry.not_before = now + backoff * 2.0 ** (entry.tries - 1)
            if before in HAS_PLACE:
                need.moved_at = max(need.moved_at, now)
        entry.releasing = entry.overtime = entry.restored = False
        entry.stop_at = None
        if entry.over:
            self.courses[entry.task.campaign].open -= 1
        else:
            need.pending[entry.id] = None
            entry.worker = entry.lease = entry.fence = None

    @staticmethod
    def _end_if_done(course: Course) -> list[Order]:
        if course.open or course.done:
            return []
        course.done = True
        return [CampaignDone(course.terms.campaign)]

    def check(self) -> None:
        """The invariants. Raises `LocalProtocolError` with the first one that does not hold."""
        for view in self.views.values():
            for task in view.held:
                if self.entries[task].worker != view.peer or not self.entries[task].live:
                    raise LocalProtocolError(f"{view.peer} is said to hold {task}, which is elsewhere")
        for entry in self.entries.values():
            need = self.needs[entry.need]
            holders = [view.peer for view in self.views.values() if entry.id in view.held]
            if len(holders) != int(entry.live):
                raise LocalProtocolError(f"{entry.id} is {entry.state} and held by {holders}")
            if (entry.id in need.pending) != (entry.state is TaskState.PENDING):
                raise LocalProtocolError(f"{entry.id} is {entry.state} and misplaced among the pending")
            if (entry.fence is None) != (entry.lease is None):
                raise LocalProtocolError(f"{entry.id} has half a lease")
            if entry.tries > self.courses[entry.task.campaign].terms.attempts:
                raise LocalProtocolError(f"{entry.id} was tried {entry.tries} times")
        for course in self.courses.values():
            open_ = sum(1 for task in course.tasks if not self.entries[task].over)
            if open_ != course.open or (course.done and open_):
                raise LocalProtocolError(f"{course.terms.campaign} counts {course.open} open of {open_}")
