"""Which run gives way to a higher priority, and how. Pure.

    a ticket finds all slots taken ─▶ a run is warned ─▶ after the grace it is stopped, and its slot is offered to that ticket,
                                        │                 or to one that came meanwhile and stands before it
                                        └─ the ticket went away, or got another slot: the run goes on as if nothing had been

Only across a gap of priorities as they were asked for (waiting does not count), never inside a timed measurement, never a task that gave
way twice before, and the least work lost first. How often it gave way elsewhere only its scheduler says: towards the device's owner
what counts is what was seen here. On a device whose owner said so, the owner's tickets need no gap, and the owner's runs give way to
no one else.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from node.capacity.allocations import MAX_REMEMBERED, Allocation, EndedLease, SlotRequest
from protocol.messages.work import MAX_PREEMPTIONS
from protocol.values.lease import PREEMPT_GAP, PREEMPT_GRACE_S, LeaseState
from protocol.wire.base import brief


def outranks(priority: int, owner: bool, other: SlotRequest, *, owner_first: bool) -> bool:
    """Whether `other` may be made to give way to somebody with this priority of its own."""
    if owner_first and owner != other.owner:
        return owner
    return priority - other.own >= PREEMPT_GAP


def can_give_way(place: Allocation) -> bool:
    """Whether it can be ended for another at all, perhaps not right now. A lapsed one needs no asking: it gives way to anybody."""
    return place.state in (LeaseState.GRANTED, LeaseState.RUNNING)


def in_words(place: Allocation, *, name: bool) -> str:
    """The run that would give way, for whoever asks before committing; `name` its task only to who may know of it."""
    later = ", once what is being timed is done" if place.timed else ""
    what = place.wanted.task.task if name else "a run"
    return brief(f"{what} at priority {place.wanted.own}{later}")


@dataclass(frozen=True, slots=True)
class PreemptionClaim:
    """A run gives way to a waiting ticket."""

    victim: str
    due: float | None
    """The end of the grace; None: that is over, and it ends as soon as what is being timed is done."""


class Preemption:
    """One victim for a ticket, one ticket for a victim."""

    def __init__(self, *, owner_first: bool) -> None:
        self._owner_first = owner_first
        self._gave_way: EndedLease[tuple[str, str], int] = EndedLease(MAX_REMEMBERED)
        """Principal, task → how often it gave way here."""
        self._claims: dict[str, PreemptionClaim] = {}
        """By ticket."""

    def higher(
        self, places: Iterable[Allocation], lower: Sequence[Allocation], linked: Container[str]
    ) -> Iterator[Allocation]:
        """The tickets, of those that can be asked, to which any of `lower` could be made to give way, now or later."""
        least = min(place.wanted.own for place in lower)
        for place in places:
            wanted = place.wanted
            if (
                place.state is LeaseState.QUEUED
                and (wanted.owner or wanted.priority - least >= PREEMPT_GAP)  # most are let off here
                and place.peer in linked
                and any(self._outranks(wanted.own, wanted.owner, one) for one in lower)
            ):
                yield place

    def victim(
        self, priority: int, owner: bool, lower: Iterable[Allocation], now: float
    ) -> Allocation | None:
        """Who of these gives way to somebody with this priority of its own.

        The least work lost first, then the lowest priority, then the youngest. What is being timed comes last: it
        gives way once that is done. What gives way to another ticket already is left out.
        """
        taken = {claim.victim for claim in self._claims.values()}
        fitting = [
            place for place in lower if place.lease not in taken and self._outranks(priority, owner, place)
        ]
        return min(
            fitting,
            key=lambda place: (place.timed, _lost_s(place, now), place.wanted.own, -place.fence.number),
            default=None,
        )

    def forget(
        self, places: Mapping[str, Allocation], lower: Iterable[Allocation], linked: Collection[str]
    ) -> None:
        """Spare the victims of tickets that do not wait any more, or cannot be asked, and those that are not among `lower` any more.

        What stands after it is what `choose` is asked about, so that no grace stays over.
        """
        able = {place.lease: place for place in lower}
        self._claims = {
            ticket: claim
            for ticket, claim in self._claims.items()
            if self._stands(places.get(ticket), able.get(claim.victim), linked)
        }

    def spare(self) -> None:
        """Nobody gives way."""
        self._claims.clear()

    def choose(
        self, ticket: Allocation, lower: Iterable[Allocation], now: float
    ) -> tuple[Allocation | None, bool]:
        """(who of these is to give way, whether at once or after the grace that begins now).

        None: it was warned and its grace is not over, or it is being timed.
        """
        claim = self._claims.get(ticket.lease)
        if claim is not None:
            warned = next(place for place in lower if place.lease == claim.victim)
            if claim.due is not None and now < claim.due:
                return None, False
            if not warned.timed:
                del self._claims[ticket.lease]
                return warned, True
        other = self.victim(ticket.wanted.own, ticket.wanted.owner, lower, now)
        if other is None or other.timed:
            if claim is not None:
                self._claims[ticket.lease] = PreemptionClaim(claim.victim, None)
            return None, False
        if other.state is LeaseState.GRANTED:
            self._claims.pop(ticket.lease, None)
            return other, True
        self._claims[ticket.lease] = PreemptionClaim(other.lease, now + PREEMPT_GRACE_S)
        return other, False

    def pass_up(self, line: Iterable[Allocation], lower: Iterable[Allocation]) -> None:
        """What gives way does so to the first in `line` that it may give way to: who came after the warning may stand before who caused
        it. No grace begins anew; who has no victim any more may choose another.

        To be asked after `forget`, with the tickets of `higher` in the order in which they are served.
        """
        able = {place.lease: place for place in lower}
        waiting = list(line)
        claims = sorted(
            self._claims.values(), key=lambda claim: -math.inf if claim.due is None else claim.due
        )
        self._claims = {}
        for claim in claims:
            for ticket in waiting:
                if self._outranks(ticket.wanted.own, ticket.wanted.owner, able[claim.victim]):
                    self._claims[ticket.lease] = claim
                    waiting.remove(ticket)
                    break

    def next_due(self) -> float | None:
        """When the next grace ends."""
        return min((claim.due for claim in self._claims.values() if claim.due is not None), default=None)

    def gave_way(self, victim: Allocation) -> None:
        """It was ended for another."""
        key = _key(victim)
        self._gave_way.put(key, 1 + (self._gave_way.get(key) or 0))

    def _outranks(self, priority: int, owner: bool, other: Allocation) -> bool:
        times = self._gave_way.get(_key(other)) or 0
        if not owner or other.wanted.owner:
            times = max(times, other.wanted.preempted)
        return times < MAX_PREEMPTIONS and outranks(
            priority, owner, other.wanted, owner_first=self._owner_first
        )

    def _stands(self, ticket: Allocation | None, victim: Allocation | None, linked: Collection[str]) -> bool:
        return (
            ticket is not None
            and ticket.state is LeaseState.QUEUED
            and ticket.peer in linked
            and victim is not None
            and victim.state is LeaseState.RUNNING
            and self._outranks(ticket.wanted.own, ticket.wanted.owner, victim)
        )


def _key(place: Allocation) -> tuple[str, str]:
    return place.wanted.principal, place.wanted.task.task


def _lost_s(place: Allocation, now: float) -> float:
    return 0.0 if place.began is None else now - place.began
