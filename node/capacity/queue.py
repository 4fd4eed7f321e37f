"""The queue of leases: which goes first, how long each waits, and whether there is room for one more. Pure.

The highest priority goes first; waiting raises a priority a little. Among equal priorities the principal served least recently goes first,
so that a campaign with hundreds of queued leases does not hold up a campaign with three. One principal's leases go in order of arrival.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from node.capacity.allocations import QUOTA_STATES, Allocation, RecentDict, SlotRequest
from protocol.formats.spread import with_gaps
from protocol.formats.sustain import with_sustained
from protocol.values.lease import AGEING_S, MAX_AGEING, LeaseState
from protocol.values.task import Task

MAX_PRINCIPALS: Final = 1_024
"""Principals remembered as served. A forgotten principal counts as never served."""


@dataclass(frozen=True, slots=True)
class QueueRank:
    """What decides a queued lease's position in the queue."""

    owner: bool
    """It is the owner's, and goes before all other leases."""
    priority: int
    """Ageing included."""
    principal: str
    number: int
    """The number of the lease's fence, which gives the order of arrival."""
    lease: str = ""


def aged(priority: int, max_priority: int, waited_s: float) -> int:
    """A priority after waiting: it rises by one a minute, by nine at most, and never above the permission's limit."""
    return max(priority, min(max_priority, priority + min(MAX_AGEING, int(waited_s // AGEING_S))))


def rank_of(queued_lease: Allocation, now: float, *, owner_first: bool) -> QueueRank:
    request = queued_lease.request
    return QueueRank(
        owner=owner_first and request.owner,
        priority=aged(request.base_priority, request.permission.priority, now - queued_lease.committed_at),
        principal=request.principal,
        number=queued_lease.fence.number,
        lease=queued_lease.lease,
    )


class LeaseQueue:
    """Orders queued leases by rank, and by when their principals were served last."""

    def __init__(self) -> None:
        self._served: RecentDict[str, int] = RecentDict(MAX_PRINCIPALS)
        self._count = 0

    def served(self, principal: str) -> None:
        self._count += 1
        self._served.put(principal, self._count)

    def order(self, ranks: Iterable[QueueRank]) -> list[QueueRank]:
        """All ranks in the order in which they would be served from now on."""
        levels: dict[tuple[bool, int], dict[str, list[QueueRank]]] = {}
        for rank in ranks:
            level = levels.setdefault((rank.owner, rank.priority), {})
            level.setdefault(rank.principal, []).append(rank)
        served: dict[str, int] = {}
        count = self._count
        order: list[QueueRank] = []
        for key in sorted(levels, reverse=True):
            lines = levels[key]
            heads: list[tuple[int, int, str]] = []
            for principal, waiting in lines.items():
                waiting.sort(key=lambda one: -one.number)
                last = served.get(principal, self._last_served(principal))
                heads.append((last, waiting[-1].number, principal))
            heapq.heapify(heads)
            while heads:
                _, _, principal = heapq.heappop(heads)
                order.append(lines[principal].pop())
                count += 1
                served[principal] = count
                if lines[principal]:
                    heapq.heappush(heads, (count, lines[principal][-1].number, principal))
        return order

    def _last_served(self, principal: str) -> int:
        return self._served.get(principal) or 0


def expected_starts(left: Sequence[float], slots: int, durations: Sequence[float]) -> list[float]:
    """Seconds until each queued lease gets a slot, if queued runs take `durations` seconds and current runs take `left` more seconds."""
    free = [0.0] * max(0, slots - len(left)) + sorted(left)[:slots]
    heapq.heapify(free)
    starts: list[float] = []
    for seconds in durations:
        starts.append(free[0])
        heapq.heapreplace(free, free[0] + seconds)
    return starts


def over_quota(request: SlotRequest, allocations: Iterable[Allocation]) -> str:
    """Why the permission does not allow one more lease, in words; empty: it does."""
    if request.permission.slots is None:
        return ""
    own = sum(
        1 for one in allocations if one.state in QUOTA_STATES and one.request.principal == request.principal
    )
    if own < request.permission.slots:
        return ""
    return f"you have {own} slots and queued leases here; your permission allows {request.permission.slots}"


def admit_to_queue(
    request: SlotRequest, allocations: Iterable[Allocation], limit: int, each: int
) -> tuple[str, Allocation | None]:
    """(why the queue has no space for the lease, empty: it has space; the queued lease that must leave to make space).

    If all `limit` places are taken and the new lease is higher than the lowest, the youngest of the lowest leaves. The owner's leases are
    higher than all others. One principal has at most `each` places. A lease that was offered a slot counts: it may return to the queue.
    """
    queued_leases = [one for one in allocations if one.state in (LeaseState.QUEUED, LeaseState.OFFERED)]
    own = sum(1 for queued_lease in queued_leases if queued_lease.request.principal == request.principal)
    if own >= each:
        return f"you have {own} queued leases, the most that one scheduler may have", None
    if len(queued_leases) < limit:
        return "", None
    queued = (queued_lease for queued_lease in queued_leases if queued_lease.state is LeaseState.QUEUED)
    lowest = min(queued, key=lambda one: (_height(one.request), -one.fence.number), default=None)
    if lowest is not None and _height(request) > _height(lowest.request):
        return "", lowest
    return f"the queue is full: {len(queued_leases)} queued leases", None


def _height(request: SlotRequest) -> tuple[bool, int]:
    return request.owner, request.base_priority


MAX_SHAPES: Final = 1_024
WEIGHT: Final = 0.3
"""Weight of the latest run against all earlier runs."""


class RunTimeEstimate:
    """Durations of runs in seconds, by model, unit and way of measuring."""

    def __init__(self) -> None:
        self.mean_s: float | None = None
        """Moving average over runs of one model with a fixed number of inferences, as most runs are; None: no such run has ended yet."""
        self._by_shape: RecentDict[tuple[object, ...], float] = RecentDict(MAX_SHAPES)
        self._per_inference: RecentDict[tuple[str, str], float] = RecentDict(MAX_SHAPES)
        """By model and unit."""

    def add(self, task: Task, seconds: float) -> None:
        kind, shape = _keys(task)
        self._by_shape.put(shape, _mixed(self._by_shape.get(shape), seconds))
        if task.measure.sustain_s is None and task.measure.over_s is None and task.beside is None:
            self.mean_s = _mixed(self.mean_s, seconds)
            each = _mixed(self._per_inference.get(kind), seconds / task.measure.runs)
            self._per_inference.put(kind, each)

    def expect(self, task: Task) -> float | None:
        """Expected seconds of a run of `task`; None: unknown."""
        kind, shape = _keys(task)
        seconds, each = self._by_shape.get(shape), self._per_inference.get(kind)
        if seconds is not None:
            return seconds
        if task.measure.sustain_s is not None:
            return with_sustained(0.0, task.measure.sustain_s)
        known = self.mean_s if each is None or task.beside is not None else each * task.measure.runs
        if known is None and task.measure.over_s is None:
            return None
        return with_gaps(known or 0.0, task.measure.over_s, precise=False)


def _keys(task: Task) -> tuple[tuple[str, str], tuple[object, ...]]:
    kind, measure = (task.model.sha256, task.unit), task.measure
    beside = tuple(model.sha256 for model in task.beside or ())
    return kind, (
        *kind,
        measure.runs,
        measure.loads,
        measure.threads,
        measure.sustain_s,
        measure.over_s,
        *beside,
        task.beside_units,
    )


def _mixed(before: float | None, seconds: float) -> float:
    return seconds if before is None else (1 - WEIGHT) * before + WEIGHT * seconds
