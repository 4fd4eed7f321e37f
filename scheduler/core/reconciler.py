"""The part of the book that hears from workers what they have of ours: answers to a commit, and all of it when a link came up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from protocol.messages.work import Conflict, Denied, HeldLease, LiveLease
from protocol.values.attempt import TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.words import Reason
from scheduler.core.commands import CancelOn, KeepGrant, Order
from scheduler.core.ranking import WorkerView
from scheduler.core.state import OWED_S, CommitTicket, TaskEntry
from scheduler.core.worker_view import WorkerTracking


class Reconciler(WorkerTracking):
    """Part of `scheduler.book.Book`."""

    # -- answers to a commit ------------------------------------------------------------------------------------------------------------

    def granted(
        self,
        peer: str,
        task: str,
        attempt: int,
        lease: str,
        fence: Fence,
        now: float,
        *,
        queued: bool,
        position: int | None = None,
        start_s: float | None = None,
    ) -> list[Order]:
        """A worker gave a lease, or a ticket with its place in the queue. If the task is not wanted there any more it is stopped."""
        entry = self.entries.get(task)
        ticket = entry.at(peer) if entry is not None else None
        unwanted = HeldLease(lease=lease, fence=fence, epoch=None if entry is None else entry.epoch)
        if entry is None or ticket is None or ticket.attempt != attempt:
            return [CancelOn(peer, (unwanted,), Reason.FENCED)]
        if ticket.lease is not None:
            same = (ticket.lease, ticket.fence) == (lease, fence)
            return [] if same else [CancelOn(peer, (unwanted,), Reason.FENCED)]
        view = self.view(peer)
        if self._given_before(peer, lease, fence):  # else it could settle one task in the other's name
            no = Denied(reason=Reason.BAD_REQUEST, detail="it gave one lease to two tasks")
            orders = self._turned_down(entry, attempt, TaskEvent.REFUSE, no.reason, no.detail, now)
            return orders + self.refused(peer, no, now)
        orders = []
        spare = entry.spare if entry.is_spare(attempt) else None
        if spare is not None and queued:
            spare.lease, spare.fence, spare.restored = lease, fence, False
        else:
            orders += self._prefer_spare(entry) if spare is not None else []
            entry.lease, entry.fence, entry.restored = lease, fence, False
            self._move(entry, TaskEvent.ENQUEUE if queued else TaskEvent.GRANT)
            entry.since = now
            if not queued:
                self._placed(entry, now)
        view.turned_s = 0.0
        orders += [KeepGrant(task, attempt, lease, fence, queued, position, start_s)]
        orders += self._stop_again(entry, now)
        self._counted(entry, view, position, start_s, attempt, now, queued=queued)
        orders += self._see(view, fence.incarnation, now)
        return orders + self.decide(now)

    def _given_before(self, peer: str, lease: str, fence: Fence) -> bool:
        """Whether another task has this lease or fence there."""
        tickets = (self.entries[task].at(peer) for task in self.view(peer).held)
        return any(
            ticket is not None and (ticket.lease == lease or ticket.fence == fence) for ticket in tickets
        )

    def _counted(
        self,
        entry: TaskEntry,
        view: WorkerView,
        position: int | None,
        start_s: float | None,
        attempt: int,
        now: float,
        *,
        queued: bool,
    ) -> None:
        """What the answer to a commit says of others' work there."""
        if queued:
            self._keep_place(entry, attempt, position, start_s, now)
            places, tickets = self._ours(view)
            before = 0 if position is None else max(0, position - tickets)
            view.others = before + (0 if places else 1)
        else:
            view.others = 0
        self._changed(view)

    def _asked(self, task: str, attempt: int) -> TaskEntry | None:
        """The task, if this attempt of it waits for a worker's answer; the answer may also come when all of that is over."""
        entry = self.entries.get(task)
        if entry is None:
            return None
        if entry.is_spare(attempt):
            return entry if entry.spare is not None and entry.spare.lease is None else None
        waits = entry.attempt == attempt and entry.state is TaskState.COMMITTING
        return entry if waits else None

    def _asked_of(self, entry: TaskEntry, attempt: int) -> str:
        """Whom."""
        return (
            entry.spare.worker if entry.spare is not None and entry.is_spare(attempt) else entry.worker
        ) or ""

    def _turned_down(
        self, entry: TaskEntry, attempt: int, event: TaskEvent, reason: Reason, detail: str, now: float
    ) -> list[Order]:
        if entry.is_spare(attempt):
            return self._drop(entry, reason, detail)
        return self._let_go(entry, event, reason, detail, now)

    def conflict(self, task: str, attempt: int, conflict: Conflict, now: float) -> list[Order]:
        """Somebody was faster. The worker's new standing came with the answer: it is used at once, and the task goes elsewhere."""
        entry = self._asked(task, attempt)
        if entry is None:
            return []
        view = self.view(self._asked_of(entry, attempt))
        view.turned_away(now, 0.2 + 0.3 * self.rng.random())
        orders = self._turned_down(entry, attempt, TaskEvent.REFUSE, conflict.reason, "", now)
        self._stand(view, conflict.quote, now)
        return orders + self.decide(now)

    def denied(self, task: str, attempt: int, denied: Denied, now: float) -> list[Order]:
        """The worker does not take it."""
        entry = self._asked(task, attempt)
        if entry is None:
            return []
        peer = self._asked_of(entry, attempt)
        orders = self._turned_down(entry, attempt, TaskEvent.REFUSE, denied.reason, denied.detail, now)
        if denied.reason is Reason.STALE_EPOCH:
            return orders + self.disowned(peer, entry.task.campaign, now)
        of_this = denied.reason is Reason.NOT_ALLOWED and denied.unmet
        if of_this or denied.reason in (
            Reason.DOES_NOT_FIT,
            Reason.BAD_REQUEST,
        ):  # this task, not all of ours
            need = self.needs[entry.need]
            need.fits.discard(peer)
            need.declined[peer] = denied
            return orders + self.decide(now)
        return orders + self.refused(peer, denied, now)

    def not_committed(self, task: str, attempt: int, why: str, now: float, *, sent: bool) -> list[Order]:
        """No answer to a commit. `sent`: it may have arrived, so the attempt counts as lost; else nothing has happened."""
        entry = self._asked(task, attempt)
        if entry is None:
            return []
        view = self.view(self._asked_of(entry, attempt))
        orders = self._failed(view, "being asked and not answering", now, silent=True) if sent else []
        event = TaskEvent.LOSE if sent else TaskEvent.REFUSE
        return orders + self._turned_down(entry, attempt, event, Reason.LOST, why, now) + self.decide(now)

    # -- after a link came up -----------------------------------------------------------------------------------------------------------

    def adopted(
        self,
        peer: str,
        campaign: str,
        incarnation: int,
        leases: Sequence[LiveLease],
        now: float,
        *,
        asked: frozenset[str],
    ) -> list[Order]:
        """What a worker holds of a campaign: what is known goes on, the rest is lost or stopped.

        `asked`: the leases we had when the question was sent; what was granted since may be missing from the answer.
        """
        view = self.view(peer)
        told = {(lease.task, lease.attempt): lease for lease in leases}
        orders: list[Order] = []
        for task in tuple(view.held):
            entry = self.entries[task]
            ticket = entry.at(peer)
            if entry.task.campaign != campaign or ticket is None:
                continue
            lease = told.pop((task, ticket.attempt), None)
            if lease is not None:
                orders += self._carry_on(entry, ticket, lease, now)
            elif ticket.lease in asked:
                orders += self._gave_back(entry, peer, now)
                orders += self._lose_at(entry, peer, Reason.LOST, f"{self._named(peer)} has it no more", now)
            elif ticket.restored:  # the intent never reached it
                if entry.is_spare(ticket.attempt):
                    orders += self._drop(entry, Reason.LOST, "never asked")
                else:
                    orders += self._let_go(entry, TaskEvent.REFUSE, Reason.LOST, "never asked", now)
        course = self.courses.get(campaign)
        epoch = None if course is None else course.terms.epoch
        zombies = tuple(
            HeldLease(lease=lease.lease, fence=lease.fence, epoch=epoch)
            for lease in told.values()
            if not lease.reporting and not lease.settled
        )
        if zombies:
            orders.append(CancelOn(peer, zombies, Reason.FENCED))
        view.incarnation = max(incarnation, view.incarnation or 0)
        return orders + self.decide(now)

    def lacks(self, peer: str, leases: Iterable[LiveLease]) -> bool:
        """Whether some of these have results that another scheduler took and this one waits for: it adopted the campaign."""
        view = self.view(peer)
        live = {(t, x.attempt) for t in view.held if (x := self.entries[t].at(peer)) is not None}
        return any(lease.settled and (lease.task, lease.attempt) in live for lease in leases)

    def _carry_on(self, entry: TaskEntry, ticket: CommitTicket, lease: LiveLease, now: float) -> list[Order]:
        second = entry.is_spare(ticket.attempt)
        orders: list[Order] = []
        if ticket.lease is None:
            orders += self.granted(
                ticket.worker, entry.id, ticket.attempt, lease.lease, lease.fence, now, queued=lease.queued
            )
            entry.seen = False
            return orders
        if second and not lease.queued:  # it runs there
            orders += self._prefer_spare(entry)
        elif second and entry.spare is not None:
            entry.spare.restored = False
            return orders
        entry.restored = False
        owes = lease.settled or lease.reporting
        entry.owed_until = (entry.owed_until or now + OWED_S) if owes else None  # once for each attempt
        entry.begun = entry.begun or lease.phase is not None
        if entry.state is TaskState.QUEUED and not lease.queued:
            orders += self._shed(entry, "it runs already")
            self._move(entry, TaskEvent.GRANT)
            self._placed(entry, now, seen=False)
        entry.begun = entry.begun or not lease.queued
        return orders + self._stop_again(entry, now)
