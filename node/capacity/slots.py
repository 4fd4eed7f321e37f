"""The slots of one device: who holds them, which queued lease is next, which run is preempted. Pure; the ledger builds on it.

    free slot ─▶ OfferCommand to the next queued lease      granted and the device free ─▶ RunCommand
    none      ─▶ a lower run is warned, then stopped: WarnCommand, KillCommand, and OfferCommand to the queued lease that preempted it;
                 a run between two launches is stopped at once, as it is warned

After each change, `settle` carries out the consequences.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container
from dataclasses import dataclass
from typing import Final

from node.capacity.allocations import (
    DEVICE_OCCUPYING_STATES,
    ENDED,
    MAX_REMEMBERED,
    SLOT_HOLDING_STATES,
    Allocation,
    CampaignKey,
    KillCommand,
    LedgerCommand,
    OfferCommand,
    RecentDict,
    RunCommand,
    SlotRequest,
    WarnCommand,
)
from node.capacity.preemption import Preemption, preemptible
from node.capacity.queue import LeaseQueue, QueueRank, RunTimeEstimate, expected_starts, rank_of
from node.capacity.worker_state import WorkerCondition
from protocol.messages.work import Preempt
from protocol.values.lease import LeaseEvent, LeaseState
from protocol.words import Reason

MUTE_AFTER: Final = 2
"""After this many unanswered offers in a row, all other schedulers come first, and nothing is preempted for the silent one …"""
MUTE_S: Final = 60.0
"""… for this many seconds."""
MAX_MUTE: Final = 1_024
MAX_WAIT_S: Final = 31_536_000.0
"""The longest duration that the wire format allows."""
SLOT_TAKEN_STATES: Final = SLOT_HOLDING_STATES - {LeaseState.LAPSED}
"""States in which a slot is really taken. A lapsed run yields to any other lease."""


@dataclass(frozen=True, slots=True)
class EndedLease:
    """What the worker remembers of a closed lease."""

    peer: str
    """The peer that last spoke for the lease."""
    reason: Reason
    campaign_key: CampaignKey


class Slots:
    """Allocations by lease, in order of arrival. Times are seconds on one monotonic clock."""

    def __init__(self, count: int, condition: WorkerCondition, *, owner_first: bool) -> None:
        self.count = count
        self.owner_first = owner_first
        self.allocations: dict[str, Allocation] = {}
        self.version = 0
        """Rises with every change that affects what a scheduler could get."""
        self.ended: RecentDict[str, EndedLease] = RecentDict(MAX_REMEMBERED)
        self.queue = LeaseQueue()
        self.linked: dict[str, int] = {}
        """Peer → number of links over which it can be asked."""
        self._mute: RecentDict[str, tuple[int, float]] = RecentDict(MAX_MUTE)
        """Peer → (unanswered offers in a row, when they stop counting)."""
        self.run_times = RunTimeEstimate()
        self._condition = condition
        self._preemption = Preemption(owner_first=owner_first)
        self._commands: list[LedgerCommand] = []

    def take_commands(self) -> tuple[LedgerCommand, ...]:
        """The commands to carry out now; each command is returned once."""
        commands, self._commands = tuple(self._commands), []
        return commands

    def number_in(self, states: Collection[LeaseState]) -> int:
        return sum(1 for one in self.allocations.values() if one.state in states)

    @property
    def free(self) -> int:
        """Slots that may be granted now."""
        return self.count - self.number_in(SLOT_TAKEN_STATES)

    def next_deadline(self) -> float | None:
        """When the next lease, time limit or grace ends."""
        times = [self._preemption.next_due()]
        for one in self.allocations.values():
            times += (one.deadline, one.ends_at)
        return min((time for time in times if time is not None and time < math.inf), default=None)

    def ranks(self, now: float, peers: Container[str] | None = None) -> list[QueueRank]:
        """The queued leases; `peers`: only those of these schedulers."""
        return [
            rank_of(one, now, owner_first=self.owner_first)
            for one in self.allocations.values()
            if one.state is LeaseState.QUEUED and (peers is None or one.peer in peers)
        ]

    def queue_order(self, now: float) -> list[str]:
        return [rank.lease for rank in self.queue.order(self.ranks(now))]

    def expected_starts(self, count: int, now: float) -> list[float | None]:
        """Expected seconds until the first, second … queued lease gets a slot; None: unknown, for example because a run takes longer than
        expected.
        """
        left = [self._left_s(one, now) for one in self.allocations.values() if one.state in SLOT_TAKEN_STATES]
        durations = [self._expected_s(self.allocations[lease]) for lease in self.queue_order(now)[:count]]
        starts = expected_starts(left, self.count, [*durations, *[math.inf] * (count - len(durations))])
        return [None if start == math.inf else min(MAX_WAIT_S, start) for start in starts]

    def expected_start(self, ahead: int, now: float) -> float | None:
        """Expected seconds until a queued lease with `ahead` others before it gets a slot; None: unknown."""
        return self.expected_starts(ahead + 1, now)[-1]

    def _expected_s(self, allocation: Allocation) -> float:
        seconds = self.run_times.expect(allocation.request.task)
        return math.inf if seconds is None else seconds

    def _left_s(self, allocation: Allocation, now: float) -> float:
        spent = 0.0 if allocation.began_at is None else now - allocation.began_at
        expected = self._expected_s(allocation)
        return expected - spent if spent < expected else math.inf

    def victim(self, priority: int, owner: bool, now: float) -> Allocation | None:
        return self._preemption.victim(priority, owner, self._preemptible(), now)

    def grace_over(self, now: float) -> bool:
        due = self._preemption.next_due()
        return due is not None and due <= now

    def enter(self, allocation: Allocation) -> None:
        """Add an allocation that has a slot or is queued. There must be space for it."""
        self.allocations[allocation.lease] = allocation
        self.version += 1
        if allocation.state is LeaseState.GRANTED:
            self.queue.served(allocation.request.principal)
            self._stop_lapsed()

    def end(self, allocation: Allocation, reason: Reason) -> None:
        """Stop a run; close a lease in any other state. A lease that is already ending continues to end."""
        if allocation.state in (LeaseState.RUNNING, LeaseState.LAPSED):
            self.stop(allocation, LeaseEvent.STOP, reason)
        elif allocation.state not in ENDED:
            allocation.move(LeaseEvent.STOP)
            self.close(allocation, reason)

    def stop(self, allocation: Allocation, event: LeaseEvent, reason: Reason) -> None:
        allocation.move(event)
        allocation.deadline = None
        allocation.stop_reason = reason
        self.version += 1
        self._commands.append(KillCommand(allocation.lease, reason))

    def close(self, allocation: Allocation, reason: Reason) -> None:
        """Remove the allocation. Only its peer, campaign and reason are remembered."""
        del self.allocations[allocation.lease]
        self.ended.put(allocation.lease, EndedLease(allocation.peer, reason, allocation.request.campaign_key))
        self.version += 1

    def preempt(self, victim: Allocation, request: SlotRequest) -> None:
        """Free the slot of a victim at once, without a grace."""
        self._warn(victim, 0.0, request)
        self._stop_preempted(victim)

    def _stop_preempted(self, victim: Allocation) -> None:
        self._preemption.count(victim)
        self.end(victim, Reason.PREEMPTED)

    def offer_answered(self, peer: str) -> None:
        self._mute.put(peer, (0, 0.0))

    def offer_unanswered(self, peer: str, now: float) -> None:
        """Count an offer that the scheduler left unanswered. A scheduler that never answers would keep the device idle."""
        times, _ = self._mute.get(peer) or (0, 0.0)
        self._mute.put(peer, (times + 1, now + MUTE_S))

    def settle(self, now: float, between: str = "") -> None:
        """Offer free slots to queued leases, preempt lower runs for the rest, and begin granted runs as far as the device is free.

        `between`: the lease of a run that is between two launches.
        """
        if self._condition.serves_queue:
            while self.free > 0:
                order = self.queue.order(self.ranks(now, self._answering(now)))
                order = order or self.queue.order(self.ranks(now, self.linked))
                if not order:
                    break
                self._offer(self.allocations[order[0].lease])
            self._preempt(now, between)
        else:
            self._preemption.spare_all()
        for one in self.allocations.values():
            if one.state is LeaseState.GRANTED and self.number_in(DEVICE_OCCUPYING_STATES) < self.count:
                one.move(LeaseEvent.RUN)
                self._commands.append(RunCommand(one.lease))

    def _stop_lapsed(self) -> None:
        """Stop the oldest lapsed runs while more leases hold slots than there are slots."""
        while self.number_in(SLOT_HOLDING_STATES) > self.count:
            lapsed = next(one for one in self.allocations.values() if one.state is LeaseState.LAPSED)
            self.stop(lapsed, LeaseEvent.STOP, Reason.EXPIRED)

    def _offer(self, queued_lease: Allocation) -> None:
        queued_lease.move(LeaseEvent.READY)
        self.version += 1
        self.queue.served(queued_lease.request.principal)
        self._stop_lapsed()
        self._commands.append(OfferCommand(queued_lease.lease))

    def _preempt(self, now: float, between: str) -> None:
        """All slots are taken: let each queued lease that may preempt claim one lower run, whose slot it gets after the grace."""
        lower = self._preemptible()
        answering = self._answering(now)
        ranks = [
            rank_of(one, now, owner_first=self.owner_first)
            for one in self._preemption.preemptors(self.allocations.values(), lower, answering)
        ]
        queued_leases = [self.allocations[rank.lease] for rank in self.queue.order(ranks)]
        self._preemption.reassign(queued_leases, lower, between)
        for queued_lease in queued_leases:
            choice = self._preemption.choose(queued_lease, lower, now, between)
            if choice is None:
                continue
            if choice.warn_s is not None:
                self._warn(choice.victim, choice.warn_s, queued_lease.request)
            if not choice.warn_s:
                lower.remove(choice.victim)
                self._stop_preempted(choice.victim)
                self._offer(queued_lease)

    def _answering(self, now: float) -> set[str]:
        """The linked schedulers, except those that recently left offers unanswered."""
        return {
            peer
            for peer in self.linked
            for times, until in (self._mute.get(peer) or (0, 0.0),)
            if times < MUTE_AFTER or until <= now
        }

    def _preemptible(self) -> list[Allocation]:
        return [one for one in self.allocations.values() if preemptible(one)]

    def _warn(self, victim: Allocation, grace_s: float, request: SlotRequest) -> None:
        priority = request.base_priority
        note = Preempt(lease=victim.lease, fence=victim.fence, grace_s=grace_s, priority=priority)
        self._commands.append(WarnCommand(victim.peer, victim.request.campaign_key, note))
