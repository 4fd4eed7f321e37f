"""The only truth about a worker's capacity. Pure: what happened goes in with the time, answers and orders come out.

    commit ─▶ Granted | Queued | Conflict | Denied          orders: Run, Offer, Kill (`take_orders`)
    start, skip, defer      what the scheduler said to an Offer          renew, expire      the lease's clock
    finish, acknowledge     the run is over, its result is settled       stop               cancel and release

One lease at a time holds a slot. A run whose lease was stopped keeps the *device* until its processes are dead, so a new lease may
be granted at once while its run waits for `finish`. Fences only rise. Whatever is said twice changes nothing the second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from node.condition import Condition
from node.places import ENDED, HOLDS, OCCUPIES, Kill, Offer, Order, Place, Remembered, Run, Wanted
from protocol.lease import GRACE_S, LEASE_TTL_S, RENEW_EVERY_S, Fence, LeaseEvent, LeaseState
from protocol.messages import Conflict, Denied, Granted, Held, LiveLease, Lost, Queued, Quote, Renewed
from protocol.words import Reason

MAX_QUEUE: Final = 200
MAX_QUEUE_EACH: Final = 128
"""Tickets of one scheduler."""
MAX_REPORTING: Final = 1_000
"""Ended runs that are remembered until their results are settled; the results themselves are in the outbox."""
MAX_REMEMBERED: Final = 4_096
BUSY_RETRY_S: Final = 5.0


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
        condition: Condition | None = None,
    ) -> None:
        self.incarnation = incarnation
        self.condition = condition or Condition()
        self.version = 0
        """Moves with every change of what could be had here."""
        self._name = name
        self._slots = slots
        self._max_queue = max_queue
        self._max_queue_each = max_queue_each
        self._places: dict[str, Place] = {}
        self._number = 0
        self._keys: Remembered[tuple[str, str], tuple[str, Fence, str]] = Remembered(MAX_REMEMBERED)
        """(peer, key) → lease, fence, hash of the task: for requests that come twice."""
        self._ends: Remembered[str, tuple[str, Reason]] = Remembered(MAX_REMEMBERED)
        """Closed lease → scheduler, reason."""
        self._epochs: Remembered[tuple[str, str], int] = Remembered(MAX_REMEMBERED)
        self._linked: dict[str, int] = {}
        self._orders: list[Order] = []
        self._mean_s: float | None = None

    # -- what there is ---------------------------------------------------------------------------------------------------

    def place(self, lease: str) -> Place | None:
        """The place of a lease, ticket or unsettled run; None once it is closed."""
        return self._places.get(lease)

    def places(self) -> tuple[Place, ...]:
        """All that is not closed, oldest first."""
        return tuple(self._places.values())

    def take_orders(self) -> tuple[Order, ...]:
        """What is to be done now; each order comes out once."""
        orders, self._orders = tuple(self._orders), []
        return orders

    def next_deadline(self) -> float | None:
        """When `expire` has something to do next."""
        return min((p.deadline for p in self._places.values() if p.deadline is not None), default=None)

    @property
    def running(self) -> int:
        """Runs whose processes may be alive."""
        return self._count(OCCUPIES)

    @property
    def queue(self) -> int:
        """Tickets waiting."""
        return self._count({LeaseState.QUEUED})

    def quote(self) -> Quote:
        """What could be had now. Holds nothing."""
        free = max(0, self._slots - self._count(HOLDS - {LeaseState.LAPSED})) if self.condition.serving else 0
        return Quote(
            incarnation=self.incarnation,
            ledger=self.version,
            state=self.condition.state,
            free=free,
            queue=self.queue,
            start_s=0.0 if free else self._wait(self.queue),
        )

    def live(self, peer: str, campaign: str) -> tuple[LiveLease, ...]:
        """What is held for one campaign of one scheduler."""
        return tuple(
            LiveLease(
                task=p.wanted.task.task,
                attempt=p.wanted.attempt,
                lease=p.lease,
                fence=p.fence,
                queued=p.state in (LeaseState.QUEUED, LeaseState.OFFERED),
                reporting=p.state in (LeaseState.REPORTING, LeaseState.STOPPING),
            )
            for p in self._places.values()
            if p.wanted.peer == peer and p.wanted.task.campaign == campaign
        )

    # -- taking work -----------------------------------------------------------------------------------------------------

    def commit(self, wanted: Wanted, now: float) -> Granted | Queued | Conflict | Denied:
        """Take an attempt. The same key from the same scheduler gets the same lease, whatever happened to it since."""
        self.expire(now)
        known = self._keys.get((wanted.peer, wanted.key))
        if known is not None:
            return self._again(wanted, *known)
        campaign = (wanted.peer, wanted.task.campaign)
        newest = self._epochs.get(campaign)
        if newest is not None and wanted.epoch < newest:
            return _stale_epoch(newest)
        if not self.condition.serving:
            why = f": {self.condition.why}" if self.condition.why else ""
            return Denied(reason=Reason.NOT_SERVING, detail=f"this worker is {self.condition.state}{why}")
        if wanted.ledger is not None and wanted.ledger != self.version:
            return Conflict(reason=Reason.STALE_QUOTE, quote=self.quote())
        free = self._slots - self._count(HOLDS - {LeaseState.LAPSED})
        if free <= 0 and not wanted.queue:
            return Conflict(reason=Reason.BUSY, quote=self.quote())
        if free <= 0 and (full := self._full(wanted.peer)):
            return Denied(reason=Reason.BUSY, detail=full, retry_s=self._wait(0) or BUSY_RETRY_S)
        self._epochs.put(campaign, max(wanted.epoch, newest or 0))
        place = self._enter(wanted, LeaseState.GRANTED if free > 0 else LeaseState.QUEUED, now)
        if free > 0:
            self._make_room()
        self._settle()
        return self._answer(place)

    def adopt(self, peer: str, campaign: str, epoch: int) -> tuple[LiveLease, ...] | Denied:
        """A scheduler carries on its campaign; from now on lower epochs are refused. Gives what is held for it."""
        newest = self._epochs.get((peer, campaign))
        if newest is not None and epoch < newest:
            return _stale_epoch(newest)
        self._epochs.put((peer, campaign), epoch)
        return self.live(peer, campaign)

    def stale(self, peer: str, held: Iterable[Held], epochs: Mapping[str, int]) -> Denied | None:
        """A refusal where one of these belongs to a campaign that was adopted since under a higher epoch than the link spoke under.

        `epochs`: campaign → what the link spoke under. A link that did not speak of a campaign yet is not refused for it.
        """
        for item in held:
            place = self._places.get(item.lease)
            if place is None or place.wanted.peer != peer:
                continue
            campaign = place.wanted.task.campaign
            newest = self._epochs.get((peer, campaign))
            if newest is not None and epochs.get(campaign, newest) < newest:
                return _stale_epoch(newest)
        return None

    def start(self, lease: str, now: float) -> None:
        """The scheduler wants the place that was offered."""
        place = self._places.get(lease)
        if place is not None and place.state is LeaseState.OFFERED:
            place.move(LeaseEvent.START)
            place.deadline = now + LEASE_TTL_S
            self.version += 1
        self._settle()

    def skip(self, lease: str, reason: Reason = Reason.CANCELLED) -> None:
        """The scheduler does not need the place that was offered."""
        place = self._places.get(lease)
        if place is not None and place.state is LeaseState.OFFERED:
            place.move(LeaseEvent.SKIP)
            self._close(place, reason)
        self._settle()

    def defer(self, lease: str) -> None:
        """The scheduler could not be asked: the ticket keeps its turn, others come first until there is a link again."""
        place = self._places.get(lease)
        if place is not None and place.state is LeaseState.OFFERED:
            place.move(LeaseEvent.DEFER)
            self.version += 1
        self._settle()

    def link_up(self, peer: str) -> None:
        """The scheduler can be asked."""
        self._linked[peer] = self._linked.get(peer, 0) + 1
        self._settle()

    def link_down(self, peer: str) -> None:
        """One of its links is gone."""
        left = self._linked.pop(peer, 0) - 1
        if left > 0:
            self._linked[peer] = left

    # -- the lease's clock -----------------------------------------------------------------------------------------------

    def renew(self, peer: str, held: Iterable[Held], now: float) -> Renewed:
        """Keep those that are still the scheduler's; say of the others why not."""
        self.expire(now)
        renewed: list[str] = []
        lost: list[Lost] = []
        for item in held:
            place = self._places.get(item.lease)
            why = self._gone(peer, item, place)
            if place is None or why is not None:
                lost.append(Lost(lease=item.lease, reason=why or Reason.UNKNOWN))
                continue
            place.move(LeaseEvent.RENEW)
            if place.state is not LeaseState.REPORTING:
                place.deadline = now + LEASE_TTL_S
            renewed.append(place.lease)
        return Renewed(
            incarnation=self.incarnation,
            state=self.condition.state,
            renewed=tuple(renewed),
            lost=tuple(lost),
        )

    def expire(self, now: float) -> None:
        """Whatever was not renewed in time: tickets and unused places close, a run goes on in grace, then is stopped."""
        for place in self.places():
            if place.deadline is None or place.deadline > now:
                continue
            if place.state is LeaseState.LAPSED:
                self._stop(place, LeaseEvent.EXPIRE, Reason.EXPIRED)
                continue
            if place.move(LeaseEvent.EXPIRE) is LeaseState.LAPSED:
                place.deadline += GRACE_S
                self.version += 1
            else:
                self._close(place, Reason.EXPIRED)
        self._settle()

    # -- the end ---------------------------------------------------------------------------------------------------------

    def stop(self, peer: str, held: Iterable[Held], reason: Reason) -> tuple[str, ...]:
        """End these. Gives the leases whose processes are still to die; all others are over already."""
        dying: list[str] = []
        for item in held:
            place = self._places.get(item.lease)
            if place is None or place.wanted.peer != peer or place.fence != item.fence:
                continue
            if place.state in (LeaseState.RUNNING, LeaseState.LAPSED):
                self._stop(place, LeaseEvent.STOP, reason)
            elif place.state not in ENDED:
                place.move(LeaseEvent.STOP)
                self._close(place, reason)
            if place.state is LeaseState.STOPPING:
                dying.append(place.lease)
        self._settle()
        return tuple(dying)

    def finish(self, lease: str, now: float) -> None:
        """The run's processes are gone. The device is free; the result is on its way."""
        place = self._places.get(lease)
        if place is None or place.state not in OCCUPIES:
            return
        if place.began is not None and place.state is not LeaseState.STOPPING:
            took = now - place.began
            self._mean_s = took if self._mean_s is None else 0.7 * self._mean_s + 0.3 * took
        place.move(LeaseEvent.FINISH)
        place.deadline = None
        self.version += 1
        reporting = [p for p in self._places.values() if p.state is LeaseState.REPORTING]
        for old in reporting[: max(0, len(reporting) - MAX_REPORTING)]:
            self.acknowledge(old.lease)
        self._settle()

    def acknowledge(self, lease: str) -> None:
        """The result is settled, or given up."""
        place = self._places.get(lease)
        if place is not None and place.state is LeaseState.REPORTING:
            place.move(LeaseEvent.ACKNOWLEDGE)
            self._close(place, Reason.UNKNOWN)

    def close_queue(self, reason: Reason = Reason.NOT_SERVING) -> None:
        """The worker does not serve any more: no ticket and no place that is not in use is kept."""
        for place in self.places():
            if place.state in (LeaseState.QUEUED, LeaseState.OFFERED, LeaseState.GRANTED):
                place.move(LeaseEvent.STOP)
                self._close(place, reason)

    # -- inside ----------------------------------------------------------------------------------------------------------

    def _count(self, states: Iterable[LeaseState]) -> int:
        wanted = frozenset(states)
        return sum(1 for place in self._places.values() if place.state in wanted)

    def _wait(self, ahead: int) -> float | None:
        """Expected seconds until a place is free with `ahead` tickets before; None while nothing ran yet."""
        if self._mean_s is None:
            return None
        return self._mean_s * (ahead + 1) / self._slots

    def _full(self, peer: str) -> str:
        tickets = [p for p in self._places.values() if p.state is LeaseState.QUEUED]
        if len(tickets) >= self._max_queue:
            return f"{len(tickets)} tickets wait here, which is all there is room for"
        own = sum(1 for p in tickets if p.wanted.peer == peer)
        if own >= self._max_queue_each:
            return f"{own} tickets of yours wait here, which is all one scheduler may have"
        return ""

    def _enter(self, wanted: Wanted, state: LeaseState, now: float) -> Place:
        self._number += 1
        fence = Fence(incarnation=self.incarnation, number=self._number)
        lease = f"{self._name}-{self.incarnation}.{self._number}"
        place = Place(lease, fence, wanted, state, since=now, deadline=now + LEASE_TTL_S)
        self._places[lease] = place
        self._keys.put((wanted.peer, wanted.key), (lease, fence, wanted.task_sha256), keep=self._is_held)
        self.version += 1
        return place

    def _is_held(self, known: tuple[str, Fence, str]) -> bool:
        return known[0] in self._places

    def _again(self, wanted: Wanted, lease: str, fence: Fence, sha256: str) -> Granted | Queued | Denied:
        if sha256 != wanted.task_sha256:
            return Denied(reason=Reason.BAD_REQUEST, detail=f"key {wanted.key} stands for another task")
        place = self._places.get(lease)
        if place is None:
            return Granted(lease=lease, fence=fence, ttl_s=LEASE_TTL_S, renew_s=RENEW_EVERY_S)
        return self._answer(place)

    def _answer(self, place: Place) -> Granted | Queued:
        if place.state not in (LeaseState.QUEUED, LeaseState.OFFERED):
            return Granted(lease=place.lease, fence=place.fence, ttl_s=LEASE_TTL_S, renew_s=RENEW_EVERY_S)
        ahead = sum(1 for p in self._tickets() if p.order < place.order)
        return Queued(
            lease=place.lease,
            fence=place.fence,
            position=ahead + 1,
            start_s=self._wait(ahead),
            ttl_s=LEASE_TTL_S,
            renew_s=RENEW_EVERY_S,
        )

    def _tickets(self) -> Iterator[Place]:
        return (p for p in self._places.values() if p.state is LeaseState.QUEUED)

    def _gone(self, peer: str, item: Held, place: Place | None) -> Reason | None:
        """Why a lease cannot be renewed; None when it can."""
        if item.fence.incarnation != self.incarnation:
            return Reason.LOST
        if place is None:
            ended = self._ends.get(item.lease)
            return ended[1] if ended is not None and ended[0] == peer else Reason.UNKNOWN
        if place.wanted.peer != peer:
            return Reason.UNKNOWN
        if place.fence != item.fence:
            return Reason.FENCED
        return place.why if place.state is LeaseState.STOPPING else None

    def _stop(self, place: Place, event: LeaseEvent, reason: Reason) -> None:
        place.move(event)
        place.deadline = None
        place.why = reason
        self.version += 1
        self._orders.append(Kill(place.lease, reason))

    def _close(self, place: Place, reason: Reason) -> None:
        del self._places[place.lease]
        self._ends.put(place.lease, (place.wanted.peer, reason))
        self.version += 1

    def _make_room(self) -> None:
        """The oldest lapsed run gives way when there are more holders than slots."""
        while self._count(HOLDS) > self._slots:
            lapsed = [p for p in self._places.values() if p.state is LeaseState.LAPSED]
            self._stop(lapsed[0], LeaseEvent.STOP, Reason.EXPIRED)

    def _settle(self) -> None:
        """Offer free slots to tickets, and begin granted runs as far as the device is free."""
        while self.condition.serving:
            if self._count(HOLDS - {LeaseState.LAPSED}) >= self._slots:
                break
            asked = [p for p in self._tickets() if p.wanted.peer in self._linked]
            if not asked:
                break
            first = min(asked, key=lambda p: p.order)
            first.move(LeaseEvent.READY)
            self.version += 1
            self._make_room()
            self._orders.append(Offer(first.lease))
        for place in self._places.values():
            if place.state is LeaseState.GRANTED and self._count(OCCUPIES) < self._slots:
                place.move(LeaseEvent.RUN)
                self._orders.append(Run(place.lease))


def _stale_epoch(newest: int) -> Denied:
    return Denied(reason=Reason.STALE_EPOCH, detail=f"this campaign was adopted under epoch {newest}")
