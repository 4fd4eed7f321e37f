"""Whose turn it is among the tickets, and when it may come. Pure.

The higher priority goes first, a little helped by waiting. Among equals the principal that was served least recently goes first, so that
a campaign of hundreds of tickets does not keep one of three waiting; and of one principal's tickets the one that came first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from node.capacity.allocations import Allocation, EndedLease
from protocol.values.lease import AGEING_S, MAX_AGEING

MAX_PRINCIPALS: Final = 1_024
"""That are remembered as served; one that is forgotten counts as never served."""


@dataclass(frozen=True, slots=True)
class QueueRank:
    """What a ticket stands in line with."""

    owner: bool
    """It goes before all others'."""
    priority: int
    """Ageing included."""
    principal: str
    number: int
    """Of its fence: first come."""
    lease: str = ""


def aged(own: int, cap: int, waited_s: float) -> int:
    """A priority after waiting: one more each minute, nine at most, never above what the permission lets count."""
    return max(own, min(cap, own + min(MAX_AGEING, int(waited_s // AGEING_S))))


def rank_of(place: Allocation, now: float, *, owner_first: bool) -> QueueRank:
    """Where a ticket stands in line."""
    wanted = place.wanted
    return QueueRank(
        owner=owner_first and wanted.owner,
        priority=aged(wanted.own, wanted.cap, now - place.since),
        principal=wanted.principal,
        number=place.fence.number,
        lease=place.lease,
    )


class LeaseQueue:
    """Who was served when."""

    def __init__(self) -> None:
        self._served: EndedLease[str, int] = EndedLease(MAX_PRINCIPALS)
        self._count = 0

    def served(self, principal: str) -> None:
        """It got a place."""
        self._count += 1
        self._served.put(principal, self._count)

    def first(self, ranks: Iterable[QueueRank]) -> QueueRank | None:
        """Whose turn it is now."""
        return min(
            ranks,
            key=lambda one: (not one.owner, -one.priority, self._last(one.principal), one.number),
            default=None,
        )

    def line(self, ranks: Iterable[QueueRank]) -> list[QueueRank]:
        """All of them in the order in which they would be served from now on."""
        groups: dict[tuple[bool, int], dict[str, list[QueueRank]]] = {}
        for rank in ranks:
            group = groups.setdefault((rank.owner, rank.priority), {})
            group.setdefault(rank.principal, []).append(rank)
        served: dict[str, int] = {}
        count = self._count
        order: list[QueueRank] = []
        for level in sorted(groups, reverse=True):
            lines = groups[level]
            heads: list[tuple[int, int, str]] = []
            for principal, waiting in lines.items():
                waiting.sort(key=lambda one: -one.number)
                last = served.get(principal, self._last(principal))
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

    def _last(self, principal: str) -> int:
        return self._served.get(principal) or 0


def expected_starts(left: Sequence[float], slots: int, takes: Sequence[float]) -> list[float]:
    """Seconds until each in line gets a place, when their runs take `takes` and those that are on will take `left` more."""
    free = [0.0] * max(0, slots - len(left)) + sorted(left)[:slots]
    heapq.heapify(free)
    starts: list[float] = []
    for seconds in takes:
        starts.append(free[0])
        heapq.heapreplace(free, free[0] + seconds)
    return starts
