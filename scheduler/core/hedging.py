"""The part of the book that keeps two tickets for a task: at a worker that is idle by now, or at two busy ones while nothing else waits.

    queued at A ──▶ asked at B too ─▶ A is up first: Start there, B's is given back (and skipped, should it come up meanwhile)
                                    └▶ B is up first, or has a place at once: B's is the current one, A's is given back

Each ticket is an attempt with its own number. Before a worker is told to start, the other ticket is over on disk: whatever crashes then,
nobody is told to start the same task twice.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from protocol.messages.work import HeldLease
from protocol.values.attempt import TaskEvent, TaskState
from protocol.words import Reason
from scheduler.core.allocator import ELSEWHERE_S, Allocator
from scheduler.core.commands import EndSecond, Order, ReleaseOn, Switch
from scheduler.core.ranking import WorkerView
from scheduler.core.state import CommitTicket, TaskEntry

SOON_S: Final = 1.0
"""A ticket that is to start within this is left where it is."""
MOST_SECONDS: Final = 16
"""Second tickets at busy workers that are asked for in one go."""
LOOKED_AT: Final = 64
"""Tickets that are looked at in one go, the newest first: they wait longest."""
LAST_SECOND: Final = 500
"""A task with so many attempts gets no second ticket any more; the rest of the numbers is for first ones."""
SOONER: Final = "another worker was sooner"


class Hedging(Allocator):
    """Part of `scheduler.book.Book`."""

    def _seconds(self, now: float, *, whole: bool) -> list[Order]:
        """Second tickets: at idle workers at any time, at busy ones from time to time and while no task is without a ticket."""
        if not self.queued:
            return []
        idle = {peer: self.views[peer] for peer in self.free if self.views[peer].serving(now)}
        tail = whole and not any(need.pending for need in self.ranked)
        orders: list[Order] = []
        if not idle and not tail:
            return orders
        tickets = [self.entries[task] for task in islice(reversed(self.queued), LOOKED_AT)]
        tickets.sort(key=lambda entry: -self.courses[entry.task.campaign].terms.priority)
        for entry in tickets if idle else ():
            if not self._may_have_second(entry) or not self._waits_behind(entry, now):
                continue
            if entry.spare is not None and entry.spare.lease is None:
                continue  # somebody is being asked already
            there = self._near(self.needs[entry.need], idle)
            fitting = [view for view in there if self._may_take(view, entry, now)]
            if not fitting:
                continue
            drawn = fitting if len(fitting) <= 2 else self.rng.sample(fitting, 2)
            model = entry.task.model
            best = min(drawn, key=lambda view: (view.start_s(model.sha256, model.size), self.rng.random()))
            orders += self._shed(entry, "an idle worker was found")
            orders.append(self._commit(entry, best, now, second=True))
            del idle[best.peer]
        if tail:
            orders += self._hedge(tickets, now)
        return orders

    def _hedge(self, tickets: list[TaskEntry], now: float) -> list[Order]:
        """A second ticket where it is expected to come up about as soon, for tasks that wait for a while yet."""
        orders: list[Order] = []
        for entry in tickets:
            if len(orders) >= MOST_SECONDS:
                break
            if entry.spare is not None or not self._may_have_second(entry):
                continue
            current = entry.ticket()
            wait = current.wait_s(now) if current is not None else None
            if now - entry.since < SOON_S or (wait is not None and wait < SOON_S):
                continue
            model = entry.task.model
            views = [self.views[peer] for peer in sorted(self.needs[entry.need].fits)]
            there = [
                (view.start_s(model.sha256, model.size), view)
                for view in views
                if view.serving(now) and view.room() > 0 and self._may_take(view, entry, now)
            ]
            soon = [(guess, view) for guess, view in there if wait is None or guess <= 2 * wait]
            if soon:
                best = min(soon, key=lambda pair: (pair[0], self.rng.random()))[1]
                orders.append(self._commit(entry, best, now, second=True))
        return orders

    @staticmethod
    def _may_have_second(entry: TaskEntry) -> bool:
        return (
            entry.doom is None and entry.lease is not None and not entry.restored and entry.last < LAST_SECOND
        )

    def _may_take(self, view: WorkerView, entry: TaskEntry, now: float) -> bool:
        """Whether it may be asked for this task's second ticket."""
        return (
            view.peer in self.needs[entry.need].fits
            and (view.peer not in entry.tried or now >= entry.not_before + ELSEWHERE_S)
            and entry.at(view.peer) is None
            and (not entry.cell or view.place() not in self._taken(entry))
        )

    def _waits_behind(self, entry: TaskEntry, now: float) -> bool:
        """Whether something is before it where it waits: another task of ours, or what takes longer than a moment."""
        current = entry.ticket()
        if current is None:
            return False
        wait = current.wait_s(now)
        if len(self.view(current.worker).held) >= 2 or self.view(current.worker).others > 0:
            return True
        return wait >= SOON_S if wait is not None else now - entry.since >= SOON_S

    # -- which of the two ---------------------------------------------------------------------------------------------------------------

    def _shed(self, entry: TaskEntry, words: str) -> list[Order]:
        """Its second ticket is not needed: over on disk, and given back. What is granted for it later is given back too."""
        spare = entry.spare
        if spare is None:
            return []
        return [*self._drop(entry, None, words), *_give_back(spare, entry)]

    def _drop(self, entry: TaskEntry, reason: Reason | None, detail: str) -> list[Order]:
        """Its second ticket is gone. The task stays where it is, and has lost no try."""
        spare = entry.spare
        if spare is None:
            return []
        entry.spare = None
        self._let_loose(spare.worker, entry.id)
        return [EndSecond(entry.id, spare.attempt, reason, detail)]

    def _switch(self, entry: TaskEntry, reason: Reason | None, detail: str) -> list[Order]:
        """The second ticket is the current one from now on; the one before is gone, or to be given back by the caller."""
        spare, before = entry.spare, entry.ticket()
        assert spare is not None, "there is a second ticket"
        assert before is not None, "beside a first one"
        entry.spare = None
        self._let_loose(before.worker, entry.id)
        if spare.lease is None:
            self._move(entry, TaskEvent.COMMIT)
        entry.take(spare)
        return [Switch(entry.id, spare.attempt, before.attempt, reason, detail)]

    def _prefer_spare(self, entry: TaskEntry) -> list[Order]:
        """It comes up first: it is the current one, and the other is given back."""
        before = entry.ticket()
        assert before is not None, "a second ticket stands beside a first one"
        return [*self._switch(entry, None, SOONER), *_give_back(before, entry)]

    def rivals(self, peer: str, lease: str) -> bool:
        """Whether another worker may have given this task a place without our knowing yet: then it is better to wait a moment."""
        for task in self.view(peer).held:
            entry = self.entries[task]
            here = entry.at(peer)
            if here is not None and here.lease == lease and entry.state is TaskState.QUEUED:
                return any(other.worker != peer and other.lease is None for other in entry.tickets())
        return False


def _give_back(ticket: CommitTicket, entry: TaskEntry) -> list[Order]:
    held: HeldLease | None = ticket.held(entry.epoch)
    return [] if held is None else [ReleaseOn(ticket.worker, (held,))]
