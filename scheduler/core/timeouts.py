"""The part of the book that watches the clock: limits of campaigns, runs and stops, waits that are too long, workers that come back."""

from __future__ import annotations

from typing import Final

from protocol.values.attempt import TaskEvent, TaskState
from protocol.words import Reason
from scheduler.core.commands import Explain, Order, TellUser
from scheduler.core.failures import Failures
from scheduler.core.state import HAS_PLACE, STOP_AGAIN_S, STOP_S, PendingOutcome, RequirementGroup, TaskEntry

BEGIN_S: Final = 120.0
"""A worker that granted a place, and of whose run nothing is heard for so long, is taken for one that does not begin."""
NOT_SENT: Final = "saying that it has results and not sending them"


class Timeouts(Failures):
    """Part of `scheduler.book.Book`."""

    def nothing_fits(self, need: str, reason: Reason, text: str, now: float) -> list[Order]:
        """The answer to `Explain`. If a worker turned up meanwhile the tasks go on."""
        asked = self.needs.get(need)
        if asked is None:
            return []
        asked.explaining = False
        self.stirred[asked.id] = None
        if any(self.view(peer).hopeful() for peer in asked.fits):
            return self.decide(now)
        return self._doom(
            tuple(asked.pending), PendingOutcome(TaskEvent.FAIL, reason, text), now
        ) + self.decide(now)

    def tick(self, now: float) -> list[Order]:
        """Time passed: limits, waits and retries. To be called a few times each second."""
        orders: list[Order] = []
        for course in self.courses.values():
            ends_at = course.terms.ends_at
            if ends_at is not None and now >= ends_at and not course.timed_out and not course.done:
                course.timed_out = True
                doom = PendingOutcome(TaskEvent.FAIL, Reason.TIMED_OUT, "the campaign's time limit passed")
                orders += self._doom(tuple(course.tasks), doom, now)
        for need in self.ranked:
            orders += self._waited(need, now)
        for view in tuple(self.views.values()):
            for task in tuple(view.held):
                if self.entries[task].worker == view.peer:
                    orders += self._late(self.entries[task], now)
            if view.back(now):
                self._changed(view)
                uses = {need.campaign for need in self.ranked if view.peer in need.fits}
                using = tuple(c for c in self.courses if c in uses and not self.courses[c].done)
                orders.append(TellUser(using, "worker.back", {"peer": view.peer, "device": view.device}))
        return orders + self.decide(now, whole=True)

    def _late(self, entry: TaskEntry, now: float) -> list[Order]:
        """A run far beyond its limits, one that never began, or a stop that its worker does not confirm."""
        if entry.owed_until is not None and not entry.stopping:
            if now < entry.owed_until and now - entry.since <= entry.patience_s():
                return []
            words = f"{self._named(entry.worker or '')} ran it, but did not send its result"
            blame = self._failed(self.view(entry.worker or ""), NOT_SENT, now, silent=True)
            return blame + self._lose(entry, Reason.LOST, words, now)
        if not entry.stopping:
            if entry.state not in HAS_PLACE:
                return []
            silent = entry.state is TaskState.LEASED and not entry.begun and now - entry.since > BEGIN_S
            if not silent and now - entry.since <= entry.patience_s():
                return []
            entry.overtime = True
            orders = self._stop_again(entry, now)
            if silent and entry.worker is not None:
                orders += self._failed(
                    self.view(entry.worker), "taking a task that it never began", now, silent=True
                )
            return orders
        if entry.stop_at is None:
            return []
        if now - entry.stop_at >= STOP_S:
            words = f"{self._named(entry.worker or '')} did not say within {STOP_S:g} s that it was stopped"
            return self._stop_ended(entry, words, now)
        return self._stop_again(entry, now) if now - entry.stop_told_at >= STOP_AGAIN_S else []

    def _waited(self, need: RequirementGroup, now: float) -> list[Order]:
        if not need.pending and not need.queued:
            need.hope_at = need.moved_at = now
            return []
        if not need.pending or any(self.view(peer).hopeful() for peer in need.fits):
            need.hope_at = now
        if need.placed:
            need.moved_at = need.hope_at = now
        waits = self.courses[need.campaign].terms.wait_s
        asked = need.asked_at is not None and not need.asking
        if asked and not need.explaining and now - need.hope_at >= waits:
            need.explaining = True
            return [Explain(need.id, need.requirement)]
        first = next(iter(need.pending or need.queued))
        limit = self.entries[first].task.timeouts.queue_s
        if now - need.moved_at > limit:
            words = f"no device came free within {limit:g} s"
            waiting = (*need.pending, *need.queued)
            return self._doom(waiting, PendingOutcome(TaskEvent.FAIL, Reason.TIMED_OUT, words), now)
        return []
