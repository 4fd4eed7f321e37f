"""How things move in the book: a task from state to state, a worker in what is known of it. Everything that is counted is counted here."""

from __future__ import annotations

import random

from protocol.values.attempt import TASK, TaskEvent, TaskState
from protocol.wire.table import step
from protocol.words import Reason
from scheduler.core.commands import CampaignDone, Order
from scheduler.core.ranking import WorkerView
from scheduler.core.state import HAS_PLACE, CampaignRun, RequirementGroup, TaskEntry

LIMITS = (Reason.TIMED_OUT, Reason.OUT_OF_MEMORY)


class Transitions:
    """Part of `scheduler.book.Book`. Sets are kept as dictionaries where their order must be the same in every run."""

    rng: random.Random
    entries: dict[str, TaskEntry]
    needs: dict[str, RequirementGroup]
    ranked: list[RequirementGroup]
    """All needs, those of the highest priority first, then the oldest."""
    courses: dict[str, CampaignRun]
    views: dict[str, WorkerView]
    cells: dict[str, list[str]]
    """Tasks that are replicas of each other."""
    queued: dict[str, None]
    """Tasks that wait at a worker, the newest last."""
    strangers: dict[str, None]
    """Workers that have not said yet, over the present link, how they stand."""
    free: dict[str, None]
    """Workers that have, and where nobody's work is as far as we know."""
    touched: dict[str, None]
    """Workers that are known otherwise than when it was last decided who gets what."""
    stirred: dict[str, None]
    """Needs with a task that came back since then."""
    warming: dict[str, None]
    """Needs with a task that waits for the answer of a device that has its model."""

    # -- workers ------------------------------------------------------------------------------------------------------------------------

    def view(self, peer: str) -> WorkerView:
        """What is known of a worker; made on first sight."""
        known = self.views.get(peer)
        if known is None:
            known = self.views[peer] = WorkerView(peer)
            self.strangers[peer] = None
        return known

    def _named(self, peer: str) -> str:
        return self.view(peer).device or peer

    def _changed(self, view: WorkerView) -> None:
        """To be called after whatever makes a worker more or less free."""
        peer = view.peer
        self.touched[peer] = None
        if view.quoted:
            self.strangers.pop(peer, None)
        else:
            self.strangers[peer] = None
        if view.quoted and view.idle():
            self.free[peer] = None
        else:
            self.free.pop(peer, None)

    def _hold(self, peer: str, task: str) -> None:
        view = self.view(peer)
        view.held[task] = None
        self._changed(view)

    def _let_loose(self, peer: str, task: str) -> None:
        view = self.view(peer)
        view.held.pop(task, None)
        self._changed(view)

    # -- tasks --------------------------------------------------------------------------------------------------------------------------

    def _move(self, entry: TaskEntry, event: TaskEvent) -> None:
        before = entry.state
        entry.state = step(TASK, before, event, story=f"{entry.id} attempt {entry.attempt}")
        if before is entry.state:
            return
        self._count(entry, before, -1)
        self._count(entry, entry.state, +1)

    def _count(self, entry: TaskEntry, state: TaskState, by: int) -> None:
        need = self.needs[entry.need]
        if state in HAS_PLACE:
            need.placed += by
        elif state is TaskState.QUEUED:
            kept: tuple[dict[str, None], ...] = (need.queued, self.queued)
            for tasks in kept:
                if by > 0:
                    tasks[entry.id] = None
                else:
                    tasks.pop(entry.id, None)
        elif state is TaskState.PENDING and entry.lacks_model and by > 0:
            need.lacking[entry.id] = None
        elif state is TaskState.PENDING:
            need.lacking.pop(entry.id, None)
            if by > 0:
                need.pending[entry.id] = None
                if entry.last:  # it has waited longer than those that nobody was asked to take
                    need.pending.move_to_end(entry.id, last=False)
                self.stirred[need.id] = None
            else:
                need.pending.pop(entry.id, None)

    def _placed(self, entry: TaskEntry, now: float, *, seen: bool = True) -> None:
        """It has a place. `seen`: since now, and not for who knows how long."""
        entry.since, entry.seen, entry.begun = now, seen, False
        entry.waits_there = entry.at_work = False
        self.needs[entry.need].moved_at = now

    def _apply(self, entry: TaskEntry, event: TaskEvent, reason: Reason | None, now: float) -> None:
        """Move a task out of its attempt, or end a pending one. It has no second ticket any more."""
        before, peer = entry.state, entry.worker
        self._move(entry, event)
        if before is not TaskState.PENDING and peer is not None:
            self._let_loose(peer, entry.id)
            if event in (TaskEvent.RETRY, TaskEvent.LOSE):
                entry.tries += 1
                entry.tried.add(peer)
                if reason in LIMITS:
                    entry.limits.add(peer)
                backoff = self.courses[entry.task.campaign].terms.backoff_s
                entry.not_before = now + backoff * 2.0 ** (entry.tries - 1)
            elif event is TaskEvent.PREEMPT:
                entry.preempted += 1
            if before in HAS_PLACE:
                need = self.needs[entry.need]
                need.moved_at = max(need.moved_at, now)
        entry.overtime = entry.restored = entry.claimed = entry.seen = entry.begun = False
        entry.owed_until, entry.warned = None, 0
        entry.stop_at = entry.yields_to = entry.position = entry.start_s = None
        if entry.over:
            self.courses[entry.task.campaign].open -= 1
            if event is TaskEvent.SUCCEED and peer is not None and not entry.ran_on:
                entry.ran_on = self.view(peer).place()
        else:
            entry.worker = entry.lease = entry.fence = None

    @staticmethod
    def _end_if_done(course: CampaignRun) -> list[Order]:
        if course.open or course.done:
            return []
        course.done = True
        return [CampaignDone(course.terms.campaign)]
