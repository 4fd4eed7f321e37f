"""The only truth about a worker's capacity. Pure: what happened goes in with the time, answers and orders come out.

    commit ─▶ Granted | Queued | Conflict | Denied          orders: Run, Offer, Warn, Kill (`take_orders`)
    start, skip, defer      what the scheduler said to an Offer          renew, expire      the lease's clock, and time limits
    timing                  a measurement begins, ends                   stop, evict        cancel and release, permission gone
    finish, acknowledge     the run is over, its result is settled       adopt              another scheduler carries on

One lease at a time holds a slot. A run whose lease was stopped keeps the *device* until its processes are dead, so a new lease may
be granted at once while its run waits for `finish`. Fences only rise. Whatever is said twice changes nothing the second time.
This page is what is said; what follows from it on the slots stands in `slots`, who may speak for a campaign in `speakers`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from node.capacity.admission import over_quota, room_for
from node.capacity.allocations import MAX_REMEMBERED, OCCUPIES, Allocation, EndedLease, Order, SlotRequest
from node.capacity.epochs import CampaignLeaders
from node.capacity.preemption import in_words
from node.capacity.queue import QueueRank
from node.capacity.slots import LONGEST_S, Slots
from node.capacity.worker_state import WorkerCondition
from protocol.messages.work import (
    Conflict,
    Denied,
    Granted,
    HeldLease,
    LeaseLost,
    Queued,
    QueuedLease,
    Quote,
    Renewed,
)
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
"""Tickets of one principal."""
MAX_REPORTING: Final = 1_000
"""Ended runs that are remembered until their results are settled; the results themselves are in the outbox."""
BUSY_RETRY_S: Final = 5.0
"""When nothing ran here yet that would tell how long a run takes."""


class Ledger:
    """Places on one device. All methods are instantaneous; times are seconds on one monotonic clock."""

    def __init__(
        self,
        incarnation: int,
        *,
        name: str = "w",
        slots: int = 1,
        max_queue: int = MAX_QUEUE,
        max_queue_each: int = MAX_QUEUE_EACH,
        owner_first: bool = False,
        condition: WorkerCondition | None = None,
    ) -> None:
        self.incarnation = incarnation
        self.condition = condition or WorkerCondition()
        self._name = name
        self._slots = Slots(slots, self.condition, owner_first=owner_first)
        self._max_queue = max_queue
        self._max_queue_each = max_queue_each
        self._number = 0
        self._keys: EndedLease[tuple[str, str], tuple[str, Fence, str]] = EndedLease(MAX_REMEMBERED)
        """(peer, key) → lease, fence, hash of the task: for requests that come twice."""
        self._speakers = CampaignLeaders(MAX_REMEMBERED)

    # -- what there is ---------------------------------------------------------------------------------------------------

    def place(self, lease: str) -> Allocation | None:
        """The place of a lease, ticket or unsettled run; None once it is closed."""
        return self._slots.places.get(lease)

    def places(self) -> tuple[Allocation, ...]:
        """All that is not closed, oldest first."""
        return tuple(self._slots.places.values())

    def take_orders(self) -> tuple[Order, ...]:
        """What is to be done now; each order comes out once."""
        return self._slots.take_orders()

    def next_deadline(self) -> float | None:
        """When `expire` has something to do next."""
        return self._slots.next_deadline()

    @property
    def version(self) -> int:
        """Moves with every change of what could be had here."""
        return self._slots.version

    @property
    def running(self) -> int:
        """Runs whose processes may be alive."""
        return self._slots.number_in(OCCUPIES)

    @property
    def queue(self) -> int:
        """Tickets waiting."""
        return self._slots.number_in({LeaseState.QUEUED})

    def epoch(self, principal: str, campaign: str) -> int:
        """The highest that was heard of a campaign; 0: none."""
        return self._speakers.epoch(principal, campaign) or 0

    def of_campaign(self, principal: str, campaign: str) -> tuple[Allocation, ...]:
        """What is held for one campaign, in the order in which it came; that order never changes."""
        return tuple(
            place
            for place in self._slots.places.values()
            if place.wanted.principal == principal and place.wanted.task.campaign == campaign
        )

    def line(self, now: float) -> list[str]:
        """The tickets' leases in the order in which they are served."""
        return self._slots.line(now)

    # -- what could be had -----------------------------------------------------------------------------------------------

    def quote(self, now: float) -> Quote:
        """What could be had now. Holds nothing."""
        free = self._slots.free if self.condition.serving else 0
        return Quote(
            incarnation=self.incarnation,
            ledger=self.version,
            state=self.condition.state,
            free=free,
            queue=self.queue,
            start_s=0.0 if free else self._slots.start_after(self.queue, now),
            run_s=None if self._slots.pace.mean_s is None else min(LONGEST_S, self._slots.pace.mean_s),
            why=self.condition.why if not self.condition.serving else "",
        )

    def outlook(
        self, principal: str, priority: int, owner: bool, now: float, *, sees_all: bool = False
    ) -> tuple[int, float | None, str]:
        """What a commit would find: tickets before it, its expected wait (None: not known), and in words the run that gives way to it.

        `sees_all`: it may know of others' tasks.
        """
        if not self.condition.serving:
            return self.queue, None, ""
        if self._slots.free > 0:
            return 0, 0.0, ""
        me = QueueRank(self._slots.owner_first and owner, priority, principal, self._number + 1)
        ahead = self._slots.turns.line([*self._slots.ranks(now), me]).index(me)
        victim = self._slots.victim(priority, owner, now)
        if victim is None:
            return ahead, self._slots.start_after(ahead, now), ""
        words = in_words(victim, name=sees_all or victim.wanted.principal == principal)
        if victim.timed:
            return ahead, self._slots.start_after(ahead, now), words
        return ahead, 0.0 if victim.state is LeaseState.GRANTED else PREEMPT_GRACE_S, words

    def expect_s(self, task: Task) -> float | None:
        """What a run of it will take here, by what it took; None: not known."""
        return self._slots.pace.expect(task)

    # -- taking work -----------------------------------------------------------------------------------------------------

    def commit(self, wanted: SlotRequest, now: float) -> Granted | Queued | Conflict | Denied:
        """Take an attempt. The same key from the same scheduler gets the same lease, whatever happened to it since."""
        self.expire(now)
        known = self._keys.get((wanted.peer, wanted.key))
        if known is not None:
            return self._again(wanted, *known, now=now)
        campaign = (wanted.principal, wanted.task.campaign)
        if stale := self._speakers.refuse(wanted.peer, *campaign, wanted.epoch):
            return stale
        if not self.condition.serving:
            return Denied(reason=Reason.NOT_SERVING, detail=self.condition.refusal)
        if over := over_quota(wanted, self._slots.places.values()):
            return Denied(reason=Reason.QUOTA, detail=over, retry_s=self._retry_s(now))
        if wanted.ledger is not None and wanted.ledger != self.version:
            return Conflict(reason=Reason.STALE_QUOTE, quote=self.quote(now))
        if (
            self._slots.free <= 0
            and (unused := self._slots.victim(wanted.own, wanted.owner, now))
            and unused.state is LeaseState.GRANTED
        ):
            self._slots.give_way(unused, wanted)
        free = self._slots.free > 0
        if not free and not wanted.queue:
            return Conflict(reason=Reason.BUSY, quote=self.quote(now))
        if not free:
            full, out = room_for(wanted, self._slots.places.values(), self._max_queue, self._max_queue_each)
            if full:
                return Denied(reason=Reason.BUSY, detail=full, retry_s=self._retry_s(now))
            if out is not None:
                self._slots.end(out, Reason.BUSY)
        self._hear(wanted.peer, *campaign, wanted.epoch, wanted.rests)
        place = self._enter(wanted, LeaseState.GRANTED if free else LeaseState.QUEUED, now)
        self._slots.settle(now)
        return self._answer(place, now)

    def start(self, lease: str, now: float) -> None:
        """The scheduler wants the place that was offered."""
        place = self._slots.places.get(lease)
        if place is not None and place.state is LeaseState.OFFERED:
            place.move(LeaseEvent.START)
            place.deadline = now + LEASE_TTL_S
            self._slots.answered(place.peer)
            self._slots.version += 1
        self._slots.settle(now)

    def skip(self, lease: str, now: float, reason: Reason = Reason.CANCELLED) -> None:
        """The scheduler does not need the place that was offered."""
        place = self._slots.places.get(lease)
        if place is not None and place.state is LeaseState.OFFERED:
            place.move(LeaseEvent.SKIP)
            self._slots.answered(place.peer)
            self._slots.close(place, reason)
        self._slots.settle(now)

    def defer(self, lease: str, now: float, *, asked: bool = False) -> None:
        """The scheduler could not be asked: the ticket keeps its turn, others come first until there is a link again.

        `asked`: it was, and did not answer. After two such in a row others come first for a while, link or no link.
        """
        place = self._slots.places.get(lease)
        if place is not None and place.state is LeaseState.OFFERED:
            place.move(LeaseEvent.DEFER)
            if asked:
                self._slots.unanswered(place.peer, now)
            self._slots.version += 1
        self._slots.settle(now)

    def link_up(self, peer: str, now: float) -> None:
        """The scheduler can be asked."""
        self._slots.linked[peer] = self._slots.linked.get(peer, 0) + 1
        self._slots.settle(now)

    def link_down(self, peer: str, now: float) -> None:
        """One of its links is gone."""
        left = self._slots.linked.pop(peer, 0) - 1
        if left > 0:
            self._slots.linked[peer] = left
        self._slots.settle(now)

    # -- who speaks ------------------------------------------------------------------------------------------------------

    @property
    def speakers(self) -> CampaignLeaders:
        """Who speaks for each campaign, and what was given for it."""
        return self._speakers

    def adopt(
        self, peer: str, principal: str, campaign: str, epoch: int, *, rests: str = ""
    ) -> Denied | None:
        """A scheduler carries on its campaign, or its principal's: from now on it alone speaks for it, and lower epochs are refused.

        `rests`: the shown permission under which it does.
        """
        if stale := self._speakers.refuse(peer, principal, campaign, epoch):
            return stale
        self._hear(peer, principal, campaign, epoch, rests)
        return None

    def refusals(
        self,
        peer: str,
        principal: str,
        held: Iterable[HeldLease],
        epochs: Mapping[str, int],
        covers: Callable[[str], bool],
    ) -> dict[str, Reason]:
        """The leases that a peer may not speak of any more, or may not at all. Those that are not known are not among them.

        Who speaks under a newer epoch than was heard is to adopt first: else who spoke before would go on beside it. One that is over is
        among them for its older epoch: that it ended says nothing to who does not carry the campaign on.
        What is held under an epoch is spoken of under that one; else under that of its link (`epochs`, by campaign). Where neither is
        known it is not refused for its epoch.
        `covers`: whether its permission is for a campaign.
        """
        refused: dict[str, Reason] = {}
        for item in held:
            place, ended = self._slots.places.get(item.lease), self._slots.ends.get(item.lease)
            if ended is not None and ended.about[0] == principal:
                newest = self.epoch(*ended.about)
                if _spoken(item, epochs.get(ended.about[1], newest)) < newest:
                    refused[item.lease] = Reason.STALE_EPOCH
            if place is None or (place.peer != peer and place.wanted.principal != principal):
                continue
            campaign = place.wanted.task.campaign
            newest = self.epoch(place.wanted.principal, campaign)
            if not covers(campaign):
                refused[item.lease] = Reason.NOT_ALLOWED
            elif place.peer != peer or _spoken(item, epochs.get(campaign, newest)) != newest:
                refused[item.lease] = Reason.STALE_EPOCH
        return refused

    # -- the lease's clock -----------------------------------------------------------------------------------------------

    def renew(self, peer: str, held: Iterable[HeldLease], now: float) -> Renewed:
        """Keep those that are still the scheduler's; say of the others why not, and of tickets where they stand."""
        self.expire(now)
        renewed: list[str] = []
        lost: list[LeaseLost] = []
        for item in held:
            place = self._slots.places.get(item.lease)
            why = self._gone(peer, item, place)
            if place is None or why is not None:
                lost.append(LeaseLost(lease=item.lease, reason=why or Reason.UNKNOWN))
                continue
            place.move(LeaseEvent.RENEW)
            if place.state is not LeaseState.REPORTING:
                place.deadline = now + LEASE_TTL_S
            renewed.append(place.lease)
        return Renewed(
            incarnation=self.incarnation,
            state=self.condition.state,
            why=self.condition.why if not self.condition.serving else "",
            waiting=self._waiting(renewed, now),
            renewed=tuple(renewed),
            lost=tuple(lost),
        )

    def expire(self, now: float) -> None:
        """What is over now: tickets and unused places close, a run that was not renewed goes on in grace and is stopped after it.

        Whoever renews: a ticket whose time in the queue is over and whatever belongs to a campaign whose time is over ends.
        """
        moved = self._slots.is_due(now)
        for place in self.places():
            limit = place.limit
            if limit is not None and limit <= now:
                self._slots.end(place, Reason.TIMED_OUT)
            elif place.deadline is None or place.deadline > now:
                continue
            elif place.state is LeaseState.LAPSED:
                self._slots.stop(place, LeaseEvent.EXPIRE, Reason.EXPIRED)
            elif place.move(LeaseEvent.EXPIRE) is LeaseState.LAPSED:
                place.deadline = now + GRACE_S
                self._slots.version += 1
            else:
                self._slots.close(place, Reason.EXPIRED)
            moved = True
        if moved:
            self._slots.settle(now)

    def timing(self, lease: str, timed: bool, now: float) -> None:
        """A measurement of this run begins, or is over. Inside it nothing makes the run give way."""
        place = self._slots.places.get(lease)
        if place is not None and place.state in OCCUPIES and place.timed is not timed:
            place.timed = timed
            self._slots.settle(now)

    # -- the end ---------------------------------------------------------------------------------------------------------

    def stop(self, peer: str, held: Iterable[HeldLease], reason: Reason, now: float) -> tuple[str, ...]:
        """End these. Gives the leases whose processes are still to die; all others are over already."""
        dying: list[str] = []
        for item in held:
            place = self._slots.places.get(item.lease)
            if place is None or place.peer != peer or place.fence != item.fence:
                continue
            self._slots.end(place, reason)
            if place.state is LeaseState.STOPPING:
                dying.append(place.lease)
        self._slots.settle(now)
        return tuple(dying)

    def evict(self, who: str, reason: Reason, now: float) -> tuple[str, ...]:
        """End all that a peer speaks for, or that is held on its behalf. Gives the leases whose processes are still to die."""
        return self.evict_those(lambda place: who in (place.peer, place.wanted.principal), reason, now)

    def evict_those(self, gone: Callable[[Allocation], bool], reason: Reason, now: float) -> tuple[str, ...]:
        """End all for which `gone` is true. Gives the leases whose processes are still to die."""
        dying: list[str] = []
        for place in self.places():
            if gone(place):
                self._slots.end(place, reason)
                if place.state is LeaseState.STOPPING:
                    dying.append(place.lease)
        self._slots.settle(now)
        return tuple(dying)

    def finish(self, lease: str, now: float) -> None:
        """The run's processes are gone. The device is free; the result is on its way."""
        place = self._slots.places.get(lease)
        if place is None or place.state not in OCCUPIES:
            return
        if place.began is not None and place.state is not LeaseState.STOPPING:
            self._slots.pace.took(place.wanted.task, now - place.began)
        place.move(LeaseEvent.FINISH)
        place.deadline = None
        place.timed = False
        self._slots.version += 1
        reporting = [p for p in self._slots.places.values() if p.state is LeaseState.REPORTING]
        for old in reporting[: max(0, len(reporting) - MAX_REPORTING)]:
            self.acknowledge(old.lease)
        self._slots.settle(now)

    def acknowledge(self, lease: str) -> None:
        """The result is settled, or given up."""
        place = self._slots.places.get(lease)
        if place is not None and place.state is LeaseState.REPORTING:
            place.move(LeaseEvent.ACKNOWLEDGE)
            self._slots.close(place, Reason.UNKNOWN)

    def close_queue(self, reason: Reason = Reason.NOT_SERVING) -> None:
        """The worker does not serve any more: no ticket and no place that is not in use is kept."""
        for place in self.places():
            if place.state in (LeaseState.QUEUED, LeaseState.OFFERED, LeaseState.GRANTED):
                self._slots.end(place, reason)

    # -- inside: what is said --------------------------------------------------------------------------------------------

    def _retry_s(self, now: float) -> float:
        return self._slots.start_after(0, now) or BUSY_RETRY_S

    def _waiting(self, leases: Collection[str], now: float) -> tuple[QueuedLease, ...]:
        asked = [lease for lease in leases if self._slots.places[lease].state is LeaseState.QUEUED]
        if not asked:
            return ()
        at = {lease: index for index, lease in enumerate(self._slots.line(now))}
        starts = self._slots.starts(len(at), now)
        return tuple(
            QueuedLease(lease=lease, position=at[lease] + 1, start_s=starts[at[lease]] if starts else None)
            for lease in asked
        )

    def _again(
        self, wanted: SlotRequest, lease: str, fence: Fence, sha256: str, *, now: float
    ) -> Granted | Queued | Denied:
        if sha256 != wanted.task_sha256:
            return Denied(reason=Reason.BAD_REQUEST, detail=f"key {wanted.key} stands for another task")
        place = self._slots.places.get(lease)
        if place is None:
            return Granted(lease=lease, fence=fence, ttl_s=LEASE_TTL_S, renew_s=RENEW_EVERY_S)
        if place.peer != wanted.peer:
            return Denied(reason=Reason.STALE_EPOCH, detail="this campaign was adopted by another scheduler")
        campaign = (wanted.principal, wanted.task.campaign)
        if self._speakers.refuse(wanted.peer, *campaign, wanted.epoch) is None:
            self._hear(
                wanted.peer, *campaign, wanted.epoch, wanted.rests
            )  # the same key in other hands, under a higher epoch
        return self._answer(place, now)

    def _answer(self, place: Allocation, now: float) -> Granted | Queued:
        if place.state not in (LeaseState.QUEUED, LeaseState.OFFERED):
            return Granted(lease=place.lease, fence=place.fence, ttl_s=LEASE_TTL_S, renew_s=RENEW_EVERY_S)
        ahead = self._slots.line(now).index(place.lease) if place.state is LeaseState.QUEUED else 0
        return Queued(
            lease=place.lease,
            fence=place.fence,
            position=ahead + 1,
            start_s=self._slots.start_after(ahead, now),
            ttl_s=LEASE_TTL_S,
            renew_s=RENEW_EVERY_S,
        )

    def _gone(self, peer: str, item: HeldLease, place: Allocation | None) -> Reason | None:
        """Why a lease cannot be renewed; None when it can."""
        if item.fence.incarnation != self.incarnation:
            return Reason.LOST
        if place is None:
            ended = self._slots.ends.get(item.lease)
            return ended.reason if ended is not None and ended.peer == peer else Reason.UNKNOWN
        if place.peer != peer:
            return Reason.UNKNOWN
        if place.fence != item.fence:
            return Reason.FENCED
        return place.why if place.state is LeaseState.STOPPING else None

    # -- inside: what changes --------------------------------------------------------------------------------------------

    def _enter(self, wanted: SlotRequest, state: LeaseState, now: float) -> Allocation:
        self._number += 1
        fence = Fence(incarnation=self.incarnation, number=self._number)
        lease = f"{self._name}-{self.incarnation}.{self._number}"
        place = Allocation(
            lease,
            fence,
            wanted,
            wanted.peer,
            state,
            since=now,
            deadline=now + LEASE_TTL_S,
            rests=wanted.rests,
        )
        self._slots.enter(place)
        self._keys.put((wanted.peer, wanted.key), (lease, fence, wanted.task_sha256), keep=self._is_held)
        return place

    def _is_held(self, known: tuple[str, Fence, str]) -> bool:
        return known[0] in self._slots.places

    def _hear(self, peer: str, principal: str, campaign: str, epoch: int, rests: str) -> None:
        if self._speakers.hear(peer, principal, campaign, epoch):
            for place in self.of_campaign(principal, campaign):
                place.peer, place.rests = peer, rests


def _spoken(item: HeldLease, epoch: int) -> int:
    """Under which epoch a lease is spoken of; `epoch`: that of its link."""
    return epoch if item.epoch is None else item.epoch
