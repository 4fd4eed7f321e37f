"""The slots of one device: who holds them, whose turn is next, who gives way. Pure; the ledger stands on it.

    free slot ─▶ Offer to the ticket whose turn it is          granted and the device free ─▶ Run
    none      ─▶ a lower run is warned, then stopped: Warn, Kill, and Offer to the ticket it gave way to

Each change is followed by `settle`, which does whatever follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container
from dataclasses import dataclass
from typing import Final

from node.capacity.allocations import (
    ENDED,
    HOLDS,
    MAX_REMEMBERED,
    OCCUPIES,
    Allocation,
    EndedLease,
    KillCommand,
    Order,
    RunCommand,
    SlotOffer,
    SlotRequest,
    WarnCommand,
)
from node.capacity.preemption import Preemption, can_give_way
from node.capacity.queue import LeaseQueue, QueueRank, expected_starts, rank_of
from node.capacity.run_time import RunTimeEstimate
from node.capacity.worker_state import WorkerCondition
from protocol.values.lease import PREEMPT_GRACE_S, LeaseEvent, LeaseState
from protocol.words import Reason

MUTE_AFTER: Final = 2
"""Offers in a row that a scheduler did not answer: then all others are asked before it, and nothing gives way to it …"""
MUTE_S: Final = 60.0
"""… for so long."""
MAX_MUTE: Final = 1_024
LONGEST_S: Final = 31_536_000.0
"""The most that a duration on the wire can say."""
TAKEN: Final = HOLDS - {LeaseState.LAPSED}
"""The slot is really taken: a lapsed run gives way to anybody."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """What is left of a lease that was closed."""

    peer: str
    """Who spoke for it last."""
    reason: Reason
    about: tuple[str, str]
    """Its principal and campaign."""


class Slots:
    """Places by lease, in the order in which they came. Times are seconds on one monotonic clock."""

    def __init__(self, count: int, condition: WorkerCondition, *, owner_first: bool) -> None:
        self.count = count
        self.owner_first = owner_first
        self.places: dict[str, Allocation] = {}
        self.version = 0
        """Moves with every change of what could be had here."""
        self.ends: EndedLease[str, EndedRun] = EndedLease(MAX_REMEMBERED)
        """By closed lease."""
        self.turns = LeaseQueue()
        self.linked: dict[str, int] = {}
        """Peer → links over which it can be asked."""
        self._mute: EndedLease[str, tuple[int, float]] = EndedLease(MAX_MUTE)
        """Peer → offers in a row that it did not answer, until when that counts."""
        self.pace = RunTimeEstimate()
        self._condition = condition
        self._preemption = Preemption(owner_first=owner_first)
        self._orders: list[Order] = []

    def take_orders(self) -> tuple[Order, ...]:
        """What is to be done now; each order comes out once."""
        orders, self._orders = tuple(self._orders), []
        return orders

    # -- what there is ---------------------------------------------------------------------------------------------------

    def number_in(self, states: Collection[LeaseState]) -> int:
        """Places in any of these states."""
        return sum(1 for place in self.places.values() if place.state in states)

    @property
    def free(self) -> int:
        """Slots that may be granted now."""
        return self.count - self.number_in(TAKEN)

    def next_deadline(self) -> float | None:
        """When a lease, a time limit or a grace is over next."""
        times = [self._preemption.next_due()]
        for place in self.places.values():
            times += (place.deadline, place.limit)
        return min((time for time in times if time is not None and time < math.inf), default=None)

    def ranks(self, now: float, peers: Container[str] | None = None) -> list[QueueRank]:
        """The tickets; `peers`: only those of these schedulers."""
        return [
            rank_of(place, now, owner_first=self.owner_first)
            for place in self.places.values()
            if place.state is LeaseState.QUEUED and (peers is None or place.peer in peers)
        ]

    def line(self, now: float) -> list[str]:
        """The tickets' leases in the order in which they are served."""
        return [rank.lease for rank in self.turns.line(self.ranks(now))]

    def starts(self, count: int, now: float) -> list[float | None]:
        """Expected seconds until the first, second … ticket gets a place; None: not known, as while a run takes longer than expected."""
        left = [self._left(place, now) for place in self.places.values() if place.state in TAKEN]
        line = self.line(now)[:count]
        takes = [self._expected(self.places[lease]) for lease in line]
        starts = expected_starts(left, self.count, [*takes, *[math.inf] * (count - len(takes))])
        return [None if start == math.inf else min(LONGEST_S, start) for start in starts]

    def _expected(self, place: Allocation) -> float:
        seconds = self.pace.expect(place.wanted.task)
        return math.inf if seconds is None else seconds

    def _left(self, place: Allocation, now: float) -> float:
        expected, spent = self._expected(place), 0.0 if place.began is None else now - place.began
        return expected - spent if spent < expected else math.inf

    def start_after(self, ahead: int, now: float) -> float | None:
        """Expected seconds until one with `ahead` tickets before it gets a place; None: not known."""
        return next(reversed(self.starts(ahead + 1, now)), None)

    def victim(self, priority: int, owner: bool, now: float) -> Allocation | None:
        """Who would give way to somebody with this priority of its own."""
        return self._preemption.victim(priority, owner, self._lower(), now)

    def is_due(self, now: float) -> bool:
        """Whether the grace of a run that gives way is over."""
        due = self._preemption.next_due()
        return due is not None and due <= now

    # -- what changes ----------------------------------------------------------------------------------------------------

    def enter(self, place: Allocation) -> None:
        """A place or a ticket, for which there is room."""
        self.places[place.lease] = place
        self.version += 1
        if place.state is LeaseState.GRANTED:
            self.turns.served(place.wanted.principal)
            self._make_room()

    def end(self, place: Allocation, reason: Reason) -> None:
        """It is over: a run is to be stopped, all else is closed. What is ending already goes on to do so."""
        if place.state in (LeaseState.RUNNING, LeaseState.LAPSED):
            self.stop(place, LeaseEvent.STOP, reason)
        elif place.state not in ENDED:
            place.move(LeaseEvent.STOP)
            self.close(place, reason)

    def stop(self, place: Allocation, event: LeaseEvent, reason: Reason) -> None:
        """The run's processes are to die."""
        place.move(event)
        place.deadline = None
        place.why = reason
        self.version += 1
        self._orders.append(KillCommand(place.lease, reason))

    def close(self, place: Allocation, reason: Reason) -> None:
        """Nothing of it is left but the reason."""
        del self.places[place.lease]
        self.ends.put(place.lease, EndedRun(place.peer, reason, place.wanted.about))
        self.version += 1

    def give_way(self, victim: Allocation, to: SlotRequest) -> None:
        """The victim's slot is free. One that did not run yet has lost nothing, and is told now."""
        if victim.state is LeaseState.GRANTED:
            self._warn(victim, 0.0, to)
        self._preemption.gave_way(victim)
        self.end(victim, Reason.PREEMPTED)

    def answered(self, peer: str) -> None:
        """It said Start or Skip."""
        self._mute.put(peer, (0, 0.0))

    def unanswered(self, peer: str, now: float) -> None:
        """It was asked, and said nothing. Who does so again and again would keep the device idle."""
        times, _ = self._mute.get(peer) or (0, 0.0)
        self._mute.put(peer, (times + 1, now + MUTE_S))

    def settle(self, now: float) -> None:
        """Offer free slots to tickets, have lower work give way to the others, and begin granted runs as far as the device is free."""
        if self._condition.gives_turns:
            while self.free > 0:
                first = self.turns.first(self.ranks(now, self._answering(now)))
                first = first or self.turns.first(self.ranks(now, self.linked))
                if first is None:
                    break
                self._offer(self.places[first.lease])
            self._preempt(now)
        else:
            self._preemption.spare()  # nobody gets a turn, so nobody gives way for one
        for place in self.places.values():
            if place.state is LeaseState.GRANTED and self.number_in(OCCUPIES) < self.count:
                place.move(LeaseEvent.RUN)
                self._orders.append(RunCommand(place.lease))

    # -- inside ----------------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """The oldest lapsed run gives way when there are more holders than slots."""
        while self.number_in(HOLDS) > self.count:
            lapsed = [p for p in self.places.values() if p.state is LeaseState.LAPSED]
            self.stop(lapsed[0], LeaseEvent.STOP, Reason.EXPIRED)

    def _offer(self, ticket: Allocation) -> None:
        ticket.move(LeaseEvent.READY)
        self.version += 1
        self.turns.served(ticket.wanted.principal)
        self._make_room()
        self._orders.append(SlotOffer(ticket.lease))

    def _preempt(self, now: float) -> None:
        """All slots are taken: each ticket that may makes one lower run give way, and gets its slot when the grace is over."""
        lower = self._lower()
        answering = self._answering(now)
        self._preemption.forget(self.places, lower, answering)
        if not lower:
            return
        higher = [
            rank_of(place, now, owner_first=self.owner_first)
            for place in self._preemption.higher(self.places.values(), lower, answering)
        ]
        line = [self.places[rank.lease] for rank in self.turns.line(higher)]
        self._preemption.pass_up(line, lower)
        for ticket in line:
            victim, at_once = self._preemption.choose(ticket, lower, now)
            if victim is not None and at_once:
                lower.remove(victim)
                self.give_way(victim, ticket.wanted)
                self._offer(ticket)
            elif victim is not None:
                self._warn(victim, PREEMPT_GRACE_S, ticket.wanted)

    def _answering(self, now: float) -> set[str]:
        """Who can be asked, without those that did not answer lately."""
        return {
            peer
            for peer in self.linked
            for times, until in (self._mute.get(peer) or (0, 0.0),)
            if times < MUTE_AFTER or until <= now
        }

    def _lower(self) -> list[Allocation]:
        """What could give way to something higher."""
        return [place for place in self.places.values() if can_give_way(place)]

    def _warn(self, victim: Allocation, grace_s: float, to: SlotRequest) -> None:
        self._orders.append(
            WarnCommand(victim.peer, victim.lease, victim.fence, grace_s, to.own, victim.wanted.about)
        )
