"""Which run is preempted by a higher priority, and how. Pure.

    a queued lease finds all slots taken ─▶ a run is warned ─▶ after the grace it is stopped, and its slot is offered to that queued lease,
                                        │                 or to one that arrived meanwhile and is ahead of it in the queue
                                        ├─ the run is between two of its launches: it is stopped there, whatever is left of the grace
                                        └─ the queued lease went away, or got another slot: the run continues

Preemption needs a gap between the requested priorities (waiting does not count). A run is never preempted inside a timed measurement, nor a
task that was preempted twice before. The run that loses the least work goes first. Preemptions on other workers are known only from the
task's scheduler, so against the device's owner only those that this worker saw count. With `owner_first` the owner's queued leases need no
gap, and nobody else preempts the owner's runs.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from node.capacity.allocations import MAX_REMEMBERED, Allocation, RecentDict, SlotRequest
from protocol.values.lease import MAX_PREEMPTIONS, PREEMPT_GAP, PREEMPT_GRACE_S, LeaseState
from protocol.wire.base import brief


def preemptible(allocation: Allocation) -> bool:
    """Whether a run can be preempted at all, even if not right now. A lapsed run is not preempted: it yields to any lease."""
    return allocation.state in (LeaseState.GRANTED, LeaseState.RUNNING)


def describe(victim: Allocation, *, name: bool) -> str:
    """The run that would be preempted, in words, for a quote. `name`: name its task, for a scheduler that may know of it."""
    later = ", when its current timing ends" if victim.timed else ""
    what = victim.request.task.task if name else "a run"
    return brief(f"{what} at priority {victim.request.base_priority}{later}")


@dataclass(frozen=True, slots=True)
class PreemptionClaim:
    """A queued lease's claim to the slot of a run."""

    victim: str
    due: float | None
    """The end of the grace; None: the grace is over, and the run ends as soon as its timed measurement is done."""


@dataclass(frozen=True, slots=True)
class PreemptionChoice:
    victim: Allocation
    warn_s: float | None
    """Seconds of grace to announce to the victim's scheduler; 0: announce and end the run at once. None: it was warned, and ends now."""


class Preemption:
    """Assigns at most one victim to each queued lease, and each victim to one queued lease."""

    def __init__(self, *, owner_first: bool) -> None:
        self._owner_first = owner_first
        self._times: RecentDict[tuple[str, str], int] = RecentDict(MAX_REMEMBERED)
        """(principal, task) → how often the task was preempted on this worker."""
        self._claims: dict[str, PreemptionClaim] = {}
        """By queued lease."""

    def preemptors(
        self, allocations: Iterable[Allocation], lower: Sequence[Allocation], linked: Container[str]
    ) -> Iterator[Allocation]:
        """The queued leases whose schedulers can be asked and that could preempt any of `lower`, now or later."""
        least = min((one.request.base_priority for one in lower), default=0)
        for queued_lease in allocations:
            request = queued_lease.request
            if (
                queued_lease.state is LeaseState.QUEUED
                and (
                    request.owner or request.commit.priority - least >= PREEMPT_GAP
                )  # quickly rules most out
                and queued_lease.peer in linked
                and any(self._outranks(request, one) for one in lower)
            ):
                yield queued_lease

    def victim(
        self, priority: int, owner: bool, lower: Iterable[Allocation], now: float
    ) -> Allocation | None:
        """The run in `lower` that a request with this base priority preempts.

        The run that loses the least work comes first, then the lowest priority, then the youngest. A run that is being timed comes last: it
        ends once the measurement is done. Runs already claimed for another queued lease are left out.
        """
        claimed = {claim.victim for claim in self._claims.values()}
        return min(
            (one for one in lower if one.lease not in claimed and self._beats(priority, owner, one)),
            key=lambda one: (one.timed, _lost_s(one, now), one.request.base_priority, -one.fence.number),
            default=None,
        )

    def spare_all(self) -> None:
        self._claims.clear()

    def choose(
        self, queued_lease: Allocation, lower: Iterable[Allocation], now: float, between: str = ""
    ) -> PreemptionChoice | None:
        """Which run to preempt, at once or after a grace that begins now. None: the victim was warned and its grace is not over, or it is
        being timed.

        `between`: the lease of a run that is between two launches. It gets no grace: it loses no launch now, but a grace would end during
        its next one.
        """
        claim = self._claims.get(queued_lease.lease)
        if claim is not None:
            warned = next(one for one in lower if one.lease == claim.victim)
            over = claim.due is None or claim.due <= now
            if warned.lease == between or (over and not warned.timed):
                del self._claims[queued_lease.lease]
                return PreemptionChoice(warned, None)
            if not over:
                return self._take_between(queued_lease, lower, between)
        other = self.victim(queued_lease.request.base_priority, queued_lease.request.owner, lower, now)
        if other is None or other.timed:
            if claim is not None:
                self._claims[queued_lease.lease] = PreemptionClaim(claim.victim, None)
            return None
        if other.state is LeaseState.GRANTED or other.lease == between:
            self._claims.pop(queued_lease.lease, None)
            return PreemptionChoice(other, 0.0)
        self._claims[queued_lease.lease] = PreemptionClaim(other.lease, now + PREEMPT_GRACE_S)
        return PreemptionChoice(other, PREEMPT_GRACE_S)

    def _take_between(
        self, queued_lease: Allocation, lower: Iterable[Allocation], between: str
    ) -> PreemptionChoice | None:
        """Choose the run between two launches in place of the run that was warned, which continues."""
        claimed = {claim.victim for claim in self._claims.values()}
        run = next((one for one in lower if one.lease == between), None)
        if run is None or between in claimed or not self._outranks(queued_lease.request, run):
            return None
        del self._claims[queued_lease.lease]
        return PreemptionChoice(run, 0.0)

    def reassign(self, order: Iterable[Allocation], lower: Iterable[Allocation], between: str = "") -> None:
        """Assign each victim to the first queued lease in `order` that may preempt it. That lease may have arrived after the warning.

        No grace starts again, and a queued lease left without a victim may choose another. `between`: as in `choose`; that run ends first.
        `order`: the queued leases of `preemptors`, in the order of serving. The victims of all other queued leases are spared.
        """
        victims = {one.lease: one for one in lower if one.state is LeaseState.RUNNING}
        waiting = {queued_lease.lease: queued_lease for queued_lease in order}
        claims = [
            (claim, victims[claim.victim])
            for queued_lease, claim in self._claims.items()
            if queued_lease in waiting
            and claim.victim in victims
            and self._outranks(waiting[queued_lease].request, victims[claim.victim])
        ]
        claims.sort(
            key=lambda item: (item[0].victim != between, -math.inf if item[0].due is None else item[0].due)
        )
        self._claims = {}
        for claim, victim in claims:
            queued_lease = next(
                (each for each in waiting.values() if self._outranks(each.request, victim)), None
            )
            if queued_lease is not None:
                self._claims[queued_lease.lease] = claim
                del waiting[queued_lease.lease]

    def next_due(self) -> float | None:
        return min((claim.due for claim in self._claims.values() if claim.due is not None), default=None)

    def count(self, victim: Allocation) -> None:
        key = _key(victim)
        self._times.put(key, 1 + (self._times.get(key) or 0))

    def _outranks(self, request: SlotRequest, victim: Allocation) -> bool:
        return self._beats(request.base_priority, request.owner, victim)

    def _beats(self, priority: int, owner: bool, victim: Allocation) -> bool:
        request, times = victim.request, self._times.get(_key(victim)) or 0
        if not owner or request.owner:
            times = max(times, request.commit.preempted)
        if times >= MAX_PREEMPTIONS:
            return False
        if self._owner_first and owner != request.owner:
            return owner
        return priority - request.base_priority >= PREEMPT_GAP


def _key(allocation: Allocation) -> tuple[str, str]:
    return allocation.request.principal, allocation.request.task.task


def _lost_s(allocation: Allocation, now: float) -> float:
    return 0.0 if allocation.began_at is None else now - allocation.began_at
