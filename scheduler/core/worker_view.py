"""The part of the book that knows the workers: where they are, how they stand by their own account."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocol.messages.work import Denied, QueuedLease, Quote, Shape
from protocol.values.advert import Advert
from protocol.values.attempt import TaskState
from protocol.words import Reason, WorkerState
from scheduler.core.allocator import SEEK_S
from scheduler.core.commands import Order, WorkerPlace
from scheduler.core.ranking import RESTING, WorkerView
from scheduler.core.state import HAS_PLACE, CommitTicket, TaskEntry
from scheduler.core.timeouts import Timeouts

LEAST_RETRY_S: Final = 1.0
"""A worker that says no is not asked sooner again, whatever it says; each time in a row the wait doubles."""
REST_S: Final = 10.0
"""One that takes no work now is asked again after so long."""


class WorkerTracking(Timeouts):
    """Part of `scheduler.book.Book`."""

    places: dict[str, WorkerPlace]
    """Where tickets stand in their queues, as far as it was told since somebody took it from here."""

    # -- finding ------------------------------------------------------------------------------------------------------------------------

    def found(self, need: str, adverts: Sequence[Advert], now: float) -> list[Order]:
        """The index answered; adverts serve every need they fit."""
        asked = self.needs.get(need)
        if asked is not None:
            asked.asking = False
        for advert in adverts:
            view = self.view(advert.peer)
            newer = view.advert is None or advert.seq >= view.advert.seq
            if not newer or advert.gone or advert == view.advert:
                continue
            if view.advert is not None and advert.seq > view.advert.seq and view.trouble:
                view.retry_at = now  # it is back, or elsewhere
            view.advert, view.addresses, view.device = advert, advert.addresses, advert.name
            view.warm.update(advert.models)
            for each in self.ranked:
                if advert.peer not in each.declined and each.met_by(advert):
                    each.fits.add(advert.peer)
                else:
                    each.fits.discard(advert.peer)
        return self.decide(now, whole=True)

    def broken(self, peer: str, now: float) -> list[Order]:
        """Its link ended. What it holds of ours is not lost by that."""
        view = self.view(peer)
        view.quoted = view.rose = False
        self._changed(view)
        return self.decide(now)

    def missing(self, peer: str, now: float) -> list[Order]:
        """A worker with tasks of ours cannot be reached where it was: the index may know where it is now."""
        held = self.view(peer).held
        needs = dict.fromkeys(self.entries[task].need for task in held)
        return [order for need in needs for order in self.seek(self.needs[need], now, SEEK_S)]

    def unreachable(self, peer: str, why: str, now: float) -> list[Order]:
        """A probe or commit got no answer."""
        view = self.view(peer)
        view.probing = view.rose = False
        view.unreachable(now, why)
        self._changed(view)
        return self.decide(now)

    # -- how it stands ------------------------------------------------------------------------------------------------------------------

    def quoted(self, peer: str, quote: Quote, now: float, asked: Sequence[Shape] = ()) -> list[Order]:
        """A worker told how it stands, and for each shape it was asked about whether it fits and the model is there."""
        view = self.view(peer)
        told = tuple(zip(asked, quote.shapes, strict=False))
        view.warm.difference_update(shape.model for shape, _ in told)
        view.warm.update(shape.model for shape, answer in told if answer.warm)
        fitting = [shape.requirement for shape, answer in told if answer.fits]
        for shape, answer in told:
            if shape.requirement not in fitting:
                denied = Denied(reason=Reason.DOES_NOT_FIT, detail="; ".join(answer.unmet)[:2000])
                for need in self.ranked:
                    if need.requirement == shape.requirement:
                        need.fits.discard(peer)
                        need.declined[peer] = denied
        view.probing, view.quoted, view.refused, view.trouble = False, True, None, 0
        view.why = view.why_aside
        orders = self._see(view, quote.incarnation, now)
        self._stand(view, quote, now)
        return orders + self.decide(now)

    def _stand(self, view: WorkerView, quote: Quote, now: float) -> None:
        """Count whose work is there: what it says, less what we have there ourselves."""
        view.state, view.says, view.quoted_at, view.run_s = quote.state, quote.why, now, quote.run_s
        places, tickets = self._ours(view)
        taken = 1 if quote.free == 0 else 0
        view.others = max(0, taken - places) + max(0, quote.queue - tickets)
        self._rest(view, now)
        self._changed(view)

    def _ours(self, view: WorkerView) -> tuple[int, int]:
        """How many places and how many tickets we have there."""
        entries = [self.entries[task] for task in view.held]
        placed = sum(1 for entry in entries if entry.state in HAS_PLACE)
        waiting = (entry.at(view.peer) for entry in entries if entry.state is TaskState.QUEUED)
        return placed, sum(1 for ticket in waiting if ticket is not None and ticket.lease is not None)

    @staticmethod
    def _rest(view: WorkerView, now: float) -> None:
        """One that takes no work now is asked again later."""
        if view.state in RESTING or view.says:
            # while it drains its reason says it all: paused, quiet hours, leaving
            bare = view.state is WorkerState.FAULTY or (view.state in RESTING and not view.says)
            words = f"it is {view.state}" if bare else ""
            view.quoted, view.retry_at = False, now + REST_S
            view.why = ": ".join(part for part in (words, view.says) if part)

    def refused(self, peer: str, denied: Denied, now: float) -> list[Order]:
        """A worker does not serve us, or not now."""
        view = self.view(peer)
        view.probing, view.quoted, view.trouble = False, False, 0
        view.why = f"{denied.reason}: {denied.detail}" if denied.detail else str(denied.reason)
        view.turned_away(now, 10.0 if denied.retry_s is None else max(denied.retry_s, LEAST_RETRY_S))
        if denied.retry_s is None and denied.reason is not Reason.NOT_SERVING:
            view.refused = denied.reason
        self._changed(view)
        return self.decide(now)

    def seen(
        self,
        peer: str,
        incarnation: int,
        state: WorkerState,
        now: float,
        *,
        why: str = "",
        waiting: Sequence[QueuedLease] = (),
    ) -> list[Order]:
        """A renewal was answered: how the worker stands, and how our tickets do there."""
        view = self.view(peer)
        orders = self._see(view, incarnation, now)
        self._told(view, waiting, now)
        if state is view.state and why == view.says and not orders:
            return []  # with a thousand workers most of what is heard says nothing new
        if state is not view.state or why != view.says:
            view.state, view.says = state, why
            if view.why and not why and state not in RESTING:
                view.retry_at = min(view.retry_at, now)  # it takes work again: ask at once
            self._rest(view, now)
            self._changed(view)
        return orders + self.decide(now)

    def _told(self, view: WorkerView, waiting: Sequence[QueuedLease], now: float) -> None:
        """Our tickets' places in its queue, and by the first of them how much of others' work is before ours."""
        stand = {told.lease: told for told in waiting}
        for task in view.held if stand else ():
            entry = self.entries[task]
            ticket = entry.at(view.peer)
            told = stand.get(ticket.lease or "") if ticket is not None else None
            if ticket is not None and told is not None and entry.state is TaskState.QUEUED:
                self._keep_place(entry, ticket.attempt, told.position, told.start_s, now)
        if stand:
            placed, _ = self._ours(view)
            before = min(told.position for told in waiting) - 1
            view.others = before + (0 if placed else 1)
            self._changed(view)

    def _keep_place(
        self, entry: TaskEntry, attempt: int, position: int | None, start_s: float | None, now: float
    ) -> None:
        spare = entry.spare
        kept: TaskEntry | CommitTicket = spare if spare is not None and spare.attempt == attempt else entry
        kept.position, kept.start_s, kept.told_at = position, start_s, now
        best = spare if spare is not None and _sooner(spare, entry, now) else entry
        self.places[entry.id] = WorkerPlace(entry.id, entry.attempt, best.position, best.start_s)

    def _see(self, view: WorkerView, incarnation: int, now: float) -> list[Order]:
        """A new incarnation voids what an older one gave."""
        known = view.incarnation
        if known is not None and incarnation < known:
            return []
        if known is not None and incarnation > known:
            if view.rose:  # what it has no more is told by its renewals
                return self._failed(view, "saying again and again that it was restarted", now, once=True)
            view.rose = True
        view.incarnation = incarnation
        orders: list[Order] = []
        for task in tuple(view.held):
            entry = self.entries[task]
            ticket = entry.at(view.peer)
            if entry.restored or entry.owed_until is not None:  # its result may be there all the same
                continue
            if ticket is not None and ticket.fence is not None and ticket.fence.incarnation < incarnation:
                words = f"{self._named(view.peer)} was restarted"
                orders += self._gave_back(entry, view.peer, now)
                orders += self._lose_at(entry, view.peer, Reason.LOST, words, now)
        return orders


def _sooner(spare: CommitTicket, entry: TaskEntry, now: float) -> bool:
    """Whether the second ticket is expected to come up before the current one."""
    current = entry.ticket()
    there, here = spare.wait_s(now), current.wait_s(now) if current is not None else None
    return there is not None and (here is None or there < here)
