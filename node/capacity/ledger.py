"""The only truth about a worker's capacity. Pure: events go in with the time, answers and commands come out.

    commit ─▶ Granted | Queued | Conflict | Denied          commands: Run, Offer, Warn, Kill (`take_commands`)
    start, skip, defer      the scheduler's answer to an Offer           renew, expire      the lease's clock, and time limits
    timing                  a measurement begins, ends                   stop, evict        cancel and release, permission gone
    finish, acknowledge     the run is over, its result is settled       adopt              another scheduler carries on

One lease at a time holds a slot. A run whose lease was stopped keeps the *device* until its processes are dead: a new lease may be
granted at once, but its run waits for `finish`. Fences only rise. Every request may be repeated: the repetition changes nothing.
This module decides the answers. `slots` handles the consequences for the slots, and `epochs` knows who leads a campaign.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from node.capacity.allocations import (
    DEVICE_OCCUPYING_STATES,
    MAX_REMEMBERED,
    Allocation,
    LedgerCommand,
    RecentDict,
    SlotRequest,
)
from node.capacity.epochs import CampaignLeaders
from node.capacity.preemption import describe
from node.capacity.queue import QueueRank, admit_to_queue, over_quota
from node.capacity.slots import MAX_WAIT_S, Slots
from node.capacity.worker_state import WorkerCondition
from protocol.messages import work
from protocol.values.lease import (
    GRACE_S,
    LEASE_TTL_S,
    PREEMPT_GRACE_S,
    RENEW_EVERY_S,
    Fence,
    LeaseEvent,
    LeaseState,
)
from protocol.values.task import Task
from protocol.words import Reason

MAX_QUEUE: Final = 200
MAX_QUEUE_EACH: Final = 128
"""Most queued leases of one principal."""
MAX_REPORTING: Final = 1_000
"""Ended runs remembered until their results are settled. The results themselves are in the outbox."""
BUSY_RETRY_S: Final = 5.0
"""Used while no run here has shown how long a run takes."""


class Ledger:
    """Allocations on one device. All methods are instantaneous; times are seconds on one monotonic clock."""

    def __init__(
        self,
        incarnation: int,
        *,
        name: str = "w",
        slots: int = 1,
        max_queue: int = MAX_QUEUE,
        max_queue_each: int = MAX_QUEUE_EACH,
        owner_first: bool = False,
    ) -> None:
        self.incarnation = incarnation
        self.condition = WorkerCondition()
        self.leaders = CampaignLeaders(MAX_REMEMBERED)
        self._name = name
        self._slots = Slots(slots, self.condition, owner_first=owner_first)
        self._max_queue = max_queue
        self._max_queue_each = max_queue_each
        self._number = 0
        self._keys: RecentDict[tuple[str, str], tuple[str, Fence, str]] = RecentDict(MAX_REMEMBERED)
        """(peer, key) → lease, fence, hash of the task, for repeated requests."""

    # -- reading ---------------------------------------------------------------------------------------------------------

    def allocation(self, lease: str) -> Allocation | None:
        """The allocation of a granted or queued lease, or of an unsettled run; None once it is closed."""
        return self._slots.allocations.get(lease)

    def allocations(self) -> tuple[Allocation, ...]:
        return tuple(self._slots.allocations.values())

    def of_campaign(self, principal: str, campaign: str) -> tuple[Allocation, ...]:
        """All allocations of one campaign, oldest first."""
        return tuple(one for one in self.allocations() if one.request.campaign_key == (principal, campaign))

    def take_commands(self) -> tuple[LedgerCommand, ...]:
        return self._slots.take_commands()

    def next_deadline(self) -> float | None:
        return self._slots.next_deadline()

    @property
    def version(self) -> int:
        return self._slots.version

    @property
    def running(self) -> int:
        """Runs whose processes may be alive."""
        return self._slots.number_in(DEVICE_OCCUPYING_STATES)

    @property
    def queue(self) -> int:
        return self._slots.number_in({LeaseState.QUEUED})

    def queue_order(self, now: float) -> list[str]:
        return self._slots.queue_order(now)

    def epoch(self, principal: str, campaign: str) -> int:
        return self.leaders.epoch(principal, campaign) or 0

    # -- quotes ----------------------------------------------------------------------------------------------------------

    def quote(self, now: float) -> work.Quote:
        """What a scheduler could get now. Reserves nothing."""
        slots, serving = self._slots, self.condition.serving
        free = slots.free if serving else 0
        mean_s = slots.run_times.mean_s
        return work.Quote(
            incarnation=self.incarnation,
            ledger=self.version,
            state=self.condition.state,
            free=free,
            queue=self.queue,
            start_s=0.0 if free else slots.expected_start(self.queue, now),
            run_s=None if mean_s is None else min(MAX_WAIT_S, mean_s),
            why=self.condition.why if not serving else "",
        )

    def estimate_wait(
        self, principal: str, priority: int, owner: bool, now: float, *, sees_all: bool = False
    ) -> tuple[int, float | None, str]:
        """What a commit would meet: queued leases ahead of it, seconds of expected wait (None: unknown), and the run to preempt, in words.

        `sees_all`: the caller may know of other principals' tasks.
        """
        slots = self._slots
        if not self.condition.serving:
            return self.queue, None, ""
        if slots.free > 0:
            return 0, 0.0, ""
        rank = QueueRank(slots.owner_first and owner, priority, principal, self._number + 1)
        ahead = slots.queue.order([*slots.ranks(now), rank]).index(rank)
        victim = slots.victim(priority, owner, now)
        if victim is None:
            return ahead, slots.expected_start(ahead, now), ""
        words = describe(victim, name=sees_all or victim.request.principal == principal)
        if victim.timed:
            return ahead, slots.expected_start(ahead, now), words
        return ahead, 0.0 if victim.state is LeaseState.GRANTED else PREEMPT_GRACE_S, words

    def expect_s(self, task: Task) -> float | None:
        """Expected seconds of a run of `task` here; None: unknown."""
        return self._slots.run_times.expect(task)

    # -- taking work -----------------------------------------------------------------------------------------------------

    def commit(
        self, request: SlotRequest, now: float
    ) -> work.Granted | work.Queued | work.Conflict | work.Denied:
        """Accept an attempt. The same key from the same scheduler gets the same lease, whatever has happened to that lease since."""
        self.expire(now)
        slots = self._slots
        earlier = self._keys.get((request.peer, request.commit.key))
        if earlier is not None:
            return self._repeat(request, *earlier, now=now)
        if stale := self.leaders.refuse(request.peer, *request.campaign_key, request.commit.epoch):
            return stale
        if not self.condition.serving:
            return work.Denied(reason=Reason.NOT_SERVING, detail=self.condition.refusal)
        if excess := over_quota(request, slots.allocations.values()):
            return work.Denied(reason=Reason.QUOTA, detail=excess, retry_s=self._retry_s(now))
        if request.commit.ledger is not None and request.commit.ledger != self.version:
            return work.Conflict(reason=Reason.STALE_QUOTE, quote=self.quote(now))
        if slots.free <= 0:
            victim = slots.victim(request.base_priority, request.owner, now)
            if victim is not None and victim.state is LeaseState.GRANTED:
                slots.preempt(victim, request)
        free = slots.free > 0
        if not free and not request.commit.queue:
            return work.Conflict(reason=Reason.BUSY, quote=self.quote(now))
        if not free:
            full, lowest = admit_to_queue(
                request, slots.allocations.values(), self._max_queue, self._max_queue_each
            )
            if full:
                return work.Denied(reason=Reason.BUSY, detail=full, retry_s=self._retry_s(now))
            if lowest is not None:
                slots.end(lowest, Reason.BUSY)
        self._set_leader(
            request.peer, *request.campaign_key, request.commit.epoch, request.permission.backing_token
        )
        allocation = self._enter(request, LeaseState.GRANTED if free else LeaseState.QUEUED, now)
        slots.settle(now)
        return self._reply(allocation, now)

    def start(self, lease: str, now: float) -> None:
        """The scheduler accepts the offered slot."""
        queued_lease = self._offered(lease)
        if queued_lease is not None:
            queued_lease.move(LeaseEvent.START)
            queued_lease.deadline = now + LEASE_TTL_S
            self._slots.offer_answered(queued_lease.peer)
            self._slots.version += 1
        self._slots.settle(now)

    def skip(self, lease: str, now: float) -> None:
        """The scheduler declines the offered slot."""
        queued_lease = self._offered(lease)
        if queued_lease is not None:
            queued_lease.move(LeaseEvent.SKIP)
            self._slots.offer_answered(queued_lease.peer)
            self._slots.close(queued_lease, Reason.CANCELLED)
        self._slots.settle(now)

    def defer(self, lease: str, now: float, *, unanswered: bool = False) -> None:
        """The scheduler could not be asked: the lease keeps its position, but other leases come first until there is a link again.

        `unanswered`: the scheduler was asked and did not answer. After two such offers in a row, other schedulers' leases come first for a
        while, even with a link.
        """
        queued_lease = self._offered(lease)
        if queued_lease is not None:
            queued_lease.move(LeaseEvent.DEFER)
            if unanswered:
                self._slots.offer_unanswered(queued_lease.peer, now)
            self._slots.version += 1
        self._slots.settle(now)

    def link_up(self, peer: str, now: float) -> None:
        """The scheduler can be asked."""
        self._slots.linked[peer] = self._slots.linked.get(peer, 0) + 1
        self._slots.settle(now)

    def link_down(self, peer: str, now: float) -> None:
        """One of the scheduler's links is gone."""
        left = self._slots.linked.pop(peer, 0) - 1
        if left > 0:
            self._slots.linked[peer] = left
        self._slots.settle(now)

    # -- who leads -------------------------------------------------------------------------------------------------------

    def adopt(
        self, peer: str, principal: str, campaign: str, epoch: int, now: float, *, backing_token: str = ""
    ) -> work.Denied | None:
        """A scheduler carries on its own or its principal's campaign: it alone speaks for the campaign now, and lower epochs are refused.
        The campaign's queued leases may have waited for a scheduler that is gone.

        `backing_token`: the token behind the scheduler's permission.
        """
        if stale := self.leaders.refuse(peer, principal, campaign, epoch):
            return stale
        self._set_leader(peer, principal, campaign, epoch, backing_token)
        self._slots.settle(now)
        return None

    def refusals(
        self,
        peer: str,
        principal: str,
        held: Iterable[work.HeldLease],
        epochs: Mapping[str, int],
        covers: Callable[[str], bool],
        *,
        to_end: bool = False,
    ) -> dict[str, Reason]:
        """The leases that a peer may not, or may no longer, speak for. Unknown leases are not among them.

        A peer with an epoch newer than the known one must adopt the campaign first, or two leaders would act at once. With `to_end` it need
        not, because it only ends its own leases, as a scheduler does that was restored from a backup and has nothing left to adopt. For an
        ended lease, too, an older epoch is refused: only the scheduler that carries the campaign on may learn how the lease ended.
        The epoch of a lease is the one that `held` names, else that of its link (`epochs`, by campaign). If neither is known, the epoch is
        not checked.
        `covers`: whether the peer's permission is for a campaign.
        """
        refused: dict[str, Reason] = {}
        for item in held:
            allocation, ended = self.allocation(item.lease), self._slots.ended.get(item.lease)
            if ended is not None and ended.campaign_key[0] == principal:
                newest = self.epoch(*ended.campaign_key)
                if _epoch_of(item, epochs.get(ended.campaign_key[1], newest)) < newest:
                    refused[item.lease] = Reason.STALE_EPOCH
            if allocation is None or (allocation.peer != peer and allocation.request.principal != principal):
                continue
            campaign = allocation.request.task.campaign
            newest = self.epoch(*allocation.request.campaign_key)
            epoch = _epoch_of(item, epochs.get(campaign, newest))
            if not covers(campaign):
                refused[item.lease] = Reason.NOT_ALLOWED
            elif allocation.peer != peer or epoch < newest or (epoch > newest and not to_end):
                refused[item.lease] = Reason.STALE_EPOCH
        return refused

    # -- the lease's clock -----------------------------------------------------------------------------------------------

    def renew(self, peer: str, held: Iterable[work.HeldLease], now: float) -> work.Renewed:
        """Renew the leases that `peer` still has. Returns also the reason for each lost lease and the position of each queued lease."""
        self.expire(now)
        renewed: list[str] = []
        lost: list[work.LeaseLost] = []
        for item in held:
            allocation = self.allocation(item.lease)
            why = self._lost_reason(peer, item, allocation)
            if allocation is None or why is not None:
                lost.append(work.LeaseLost(lease=item.lease, reason=why or Reason.UNKNOWN))
                continue
            allocation.move(LeaseEvent.RENEW)
            if allocation.state is not LeaseState.REPORTING:
                allocation.deadline = now + LEASE_TTL_S
            renewed.append(item.lease)
        return work.Renewed(
            incarnation=self.incarnation,
            state=self.condition.state,
            why=self.condition.why if not self.condition.serving else "",
            waiting=self._positions(renewed, now),
            renewed=tuple(renewed),
            lost=tuple(lost),
        )

    def expire(self, now: float) -> None:
        """End the leases that are over at `now`. Queued leases and unused slots close; a run that was not renewed is stopped after a grace.

        Renewal does not save a queued lease whose time in the queue is over, nor any lease of a campaign whose time is over.
        """
        changed = self._slots.grace_over(now)
        for one in self.allocations():
            ends_at = one.ends_at
            if ends_at is not None and ends_at <= now:
                self._slots.end(one, Reason.TIMED_OUT)
            elif one.deadline is None or one.deadline > now:
                continue
            elif one.state is LeaseState.LAPSED:
                self._slots.stop(one, LeaseEvent.EXPIRE, Reason.EXPIRED)
            elif one.move(LeaseEvent.EXPIRE) is LeaseState.LAPSED:
                one.deadline = now + GRACE_S
                self._slots.version += 1
            else:
                self._slots.close(one, Reason.EXPIRED)
            changed = True
        if changed:
            self._slots.settle(now)

    def timing(self, lease: str, timed: bool, now: float) -> None:
        """A measurement of this run begins or ends. The run is not preempted during a measurement."""
        allocation = self.allocation(lease)
        if (
            allocation is not None
            and allocation.state in DEVICE_OCCUPYING_STATES
            and allocation.timed is not timed
        ):
            allocation.timed = timed
            self._slots.settle(now)

    def between_launches(self, lease: str, now: float) -> None:
        """A launch of this run is over, and the next has not begun. A run that is preempted is stopped now, without grace."""
        allocation = self.allocation(lease)
        if allocation is not None and allocation.state in DEVICE_OCCUPYING_STATES:
            allocation.timed = False
            self._slots.settle(now, between=lease)

    # -- the end ---------------------------------------------------------------------------------------------------------

    def stop(self, peer: str, held: Iterable[work.HeldLease], reason: Reason, now: float) -> tuple[str, ...]:
        """End the leases in `held`. Returns those whose processes must still end; the rest are already over."""
        fences = {item.lease: item.fence for item in held}
        return self.evict_those(
            lambda one: one.peer == peer and one.fence == fences.get(one.lease), reason, now
        )

    def evict(self, who: str, reason: Reason, now: float) -> tuple[str, ...]:
        """End all leases that `who` speaks for or that are held on its behalf. Returns those whose processes must still end."""
        return self.evict_those(lambda one: who in (one.peer, one.request.principal), reason, now)

    def evict_those(self, ends: Callable[[Allocation], bool], reason: Reason, now: float) -> tuple[str, ...]:
        """End all leases for which `ends` is true. Returns the leases whose processes must still end."""
        dying: list[str] = []
        for one in self.allocations():
            if ends(one):
                self._slots.end(one, reason)
                if one.state is LeaseState.STOPPING:
                    dying.append(one.lease)
        self._slots.settle(now)
        return tuple(dying)

    def finish(self, lease: str, now: float) -> None:
        """The run's processes are gone: the device is free, and the result is on its way."""
        run = self.allocation(lease)
        if run is None or run.state not in DEVICE_OCCUPYING_STATES:
            return
        if run.began_at is not None and run.state is not LeaseState.STOPPING:
            self._slots.run_times.add(run.request.task, now - run.began_at)
        run.move(LeaseEvent.FINISH)
        run.deadline = None
        run.timed = False
        self._slots.version += 1
        reporting = [one for one in self.allocations() if one.state is LeaseState.REPORTING]
        for old in reporting[: max(0, len(reporting) - MAX_REPORTING)]:
            self.acknowledge(old.lease)
        self._slots.settle(now)

    def acknowledge(self, lease: str) -> None:
        """The result is settled or given up."""
        run = self.allocation(lease)
        if run is not None and run.state is LeaseState.REPORTING:
            run.move(LeaseEvent.ACKNOWLEDGE)
            self._slots.close(run, Reason.UNKNOWN)

    def close_queue(self) -> None:
        """The worker no longer serves: close queued leases and slots that are not in use."""
        for one in self.allocations():
            if one.state in (LeaseState.QUEUED, LeaseState.OFFERED, LeaseState.GRANTED):
                self._slots.end(one, Reason.NOT_SERVING)

    # -- inside: replies -------------------------------------------------------------------------------------------------

    def _retry_s(self, now: float) -> float:
        return self._slots.expected_start(0, now) or BUSY_RETRY_S

    def _positions(self, leases: Collection[str], now: float) -> tuple[work.QueuedLease, ...]:
        queued_leases = [
            lease for lease in leases if self._slots.allocations[lease].state is LeaseState.QUEUED
        ]
        if not queued_leases:
            return ()
        index = {lease: index for index, lease in enumerate(self.queue_order(now))}
        starts = self._slots.expected_starts(len(index), now)
        return tuple(
            work.QueuedLease(lease=lease, position=index[lease] + 1, start_s=starts[index[lease]])
            for lease in queued_leases
        )

    def _repeat(
        self, request: SlotRequest, lease: str, fence: Fence, sha256: str, *, now: float
    ) -> work.Granted | work.Queued | work.Denied:
        if sha256 != request.task_sha256:
            return work.Denied(
                reason=Reason.BAD_REQUEST, detail=f"key {request.commit.key} already belongs to another task"
            )
        allocation = self.allocation(lease)
        if allocation is None:
            return work.Granted(lease=lease, fence=fence, ttl_s=LEASE_TTL_S, renew_s=RENEW_EVERY_S)
        if allocation.peer != request.peer:
            return work.Denied(
                reason=Reason.STALE_EPOCH, detail="this campaign was adopted by another scheduler"
            )
        if self.leaders.refuse(request.peer, *request.campaign_key, request.commit.epoch) is None:
            # another machine with the same key, under a higher epoch
            self._set_leader(
                request.peer, *request.campaign_key, request.commit.epoch, request.permission.backing_token
            )
        return self._reply(allocation, now)

    def _reply(self, allocation: Allocation, now: float) -> work.Granted | work.Queued:
        lease, fence = allocation.lease, allocation.fence
        if allocation.state not in (LeaseState.QUEUED, LeaseState.OFFERED):
            return work.Granted(lease=lease, fence=fence, ttl_s=LEASE_TTL_S, renew_s=RENEW_EVERY_S)
        ahead = self.queue_order(now).index(lease) if allocation.state is LeaseState.QUEUED else 0
        return work.Queued(
            lease=lease,
            fence=fence,
            position=ahead + 1,
            start_s=self._slots.expected_start(ahead, now),
            ttl_s=LEASE_TTL_S,
            renew_s=RENEW_EVERY_S,
        )

    def _lost_reason(self, peer: str, item: work.HeldLease, allocation: Allocation | None) -> Reason | None:
        """Why a lease cannot be renewed; None: it can."""
        if item.fence.incarnation != self.incarnation:
            return Reason.LOST
        if allocation is None:
            ended = self._slots.ended.get(item.lease)
            return ended.reason if ended is not None and ended.peer == peer else Reason.UNKNOWN
        if allocation.peer != peer:
            return Reason.UNKNOWN
        if allocation.fence != item.fence:
            return Reason.FENCED
        return allocation.stop_reason if allocation.state is LeaseState.STOPPING else None

    # -- inside: changes -------------------------------------------------------------------------------------------------

    def _offered(self, lease: str) -> Allocation | None:
        queued_lease = self.allocation(lease)
        return queued_lease if queued_lease is not None and queued_lease.state is LeaseState.OFFERED else None

    def _enter(self, request: SlotRequest, state: LeaseState, now: float) -> Allocation:
        self._number += 1
        fence = Fence(incarnation=self.incarnation, number=self._number)
        lease = f"{self._name}-{self.incarnation}.{self._number}"
        allocation = Allocation(
            lease,
            fence,
            request,
            request.peer,
            state,
            now,
            now + LEASE_TTL_S,
            backing_token=request.permission.backing_token,
        )
        self._slots.enter(allocation)
        self._keys.put(
            (request.peer, request.commit.key),
            (lease, fence, request.task_sha256),
            keep=lambda known: known[0] in self._slots.allocations,
        )
        return allocation

    def _set_leader(self, peer: str, principal: str, campaign: str, epoch: int, backing_token: str) -> None:
        if self.leaders.set_leader(peer, principal, campaign, epoch):
            for one in self.of_campaign(principal, campaign):
                one.peer, one.backing_token = peer, backing_token


def _epoch_of(item: work.HeldLease, link_epoch: int) -> int:
    return link_epoch if item.epoch is None else item.epoch
