"""What work for peers costs, and how much of it each peer may cause. Pure: time is an argument.

Costs are estimates, in µs of this process's processor time. Each service declares the cost of a call, which is charged to a bucket of the
peer and one of its network. `swarm.net.governor` applies these rules.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

from swarm.net.limits import decrement

T = TypeVar("T")

CALL_US: Final = 150.0
"""To read any call and send a short answer (an estimate)."""
NOTE_US: Final = 60.0
"""To read any note, or an answer that nobody waits for."""
VERIFY_US: Final = 100.0
"""To check one signature (an estimate)."""
TOKEN_US: Final = 2_000.0
"""To verify a token with the longest chain (an estimate)."""
MANIFEST_BYTE_US: Final = 0.2
"""To read one byte of a pool manifest (an estimate)."""
BYTE_US: Final = 0.02
"""To decode, hash or send one byte."""
SLICE_US: Final = 2_000.0
"""Work is cut into slices of about this length; between two slices, others have their turn."""


class PeerClass(StrEnum):
    """How well this node knows a peer."""

    STRANGER = "stranger"
    KNOWN = "known"
    """Allowed by the owner, a member of a pool, or one of this node's own gates."""
    OWN = "own"
    """The owner's keys."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a peer may cause: µs per second on average, µs at once, and its weight among peers that wait for a turn."""

    per_s: float
    burst: float
    weight: float = 1.0

    def times(self, factor: float) -> Share:
        return Share(self.per_s * factor, self.burst * factor, self.weight)


SHARES: Final[Mapping[PeerClass, Share]] = {
    PeerClass.STRANGER: Share(200_000, 500_000, 1),
    PeerClass.KNOWN: Share(600_000, 3_000_000, 4),
    PeerClass.OWN: Share(math.inf, math.inf, 16),
}
REFUSALS: Final = Share(10_000, 50_000)
"""What a peer may cause in addition, by calls answered `Busy` and answers that nobody waits for. Above this, nothing is read from it."""
STREAM_US: Final = 1_000.0
"""To take a stream and agree on its protocol, or to refuse it (an estimate)."""
STREAMS: Final = Share(100, 256)
"""In streams: a peer may open this many per second on average, and this many at once. Above this limit, its connection is not read."""
FEW_TURNS: Final = 16
"""A peer with at most this many recent turns, and at most this many turns per second on average, has its turn at once."""
SETTLES: Final = 4
"""Passes of the event loop in which a call is decoded, served and answered."""
RESTS: Final = 3.0
"""How long strangers that cause much work rest after each slice, as a multiple of the slice's duration, if there are several."""
MOST_REST_S: Final = 0.05
"""The longest rest after a slice."""


def rest_s(given_us: float, took_s: float) -> float:
    """How long strangers rest after a slice that was estimated at `given_us` and took `took_s`. Together they leave three quarters of the
    processor to others, and to work that takes no turns, such as reading from connections."""
    return min(RESTS * max(given_us * 1e-6, took_s), MOST_REST_S)


def next_slice_us(given_us: float, took_s: float) -> float:
    """What the next slice may cost, so that it takes no longer than a slice should: costs are estimates, and machines are busy."""
    return SLICE_US * min(1.0, given_us * 1e-6 / took_s) if took_s > 0 else SLICE_US


NETWORK_TIMES: Final = 4.0
"""The share of one network (/24, IPv6 /48), as a multiple of a stranger's."""


@dataclass(slots=True)
class Bucket:
    """The µs that a peer, or a network, may still cause. Negative: it owes. A cost larger than the bucket needs a full bucket."""

    spent: float = 0.0
    """µs below full."""
    at: float = -math.inf

    def left(self, now: float, share: Share) -> float:
        """What is left in the bucket at `now`."""
        if self.spent and now > self.at:
            self.spent = (
                max(0.0, self.spent - (now - self.at) * share.per_s) if share.per_s < math.inf else 0.0
            )
        self.at = max(now, self.at)
        return share.burst - self.spent

    def wait_s(self, now: float, share: Share, cost: float) -> float:
        """Seconds until `cost` may be taken."""
        missing = min(cost, share.burst) - self.left(now, share)
        return 0.0 if share.burst == math.inf or missing <= 1e-6 else missing / share.per_s

    def charge(self, now: float, share: Share, cost: float) -> None:
        """Take `cost`, even if the bucket holds less."""
        self.left(now, share)
        self.spent += cost


class FairQueue(Generic[T]):
    """Decides who is next, so that a peer's backlog delays that peer and not others (start-time fair queueing).

    Each item starts when the peer's previous item would have ended on a share of the processor that corresponds to the peer's weight.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, float, T]] = []
        self._waiting: Counter[str] = Counter()
        self._ends: dict[str, float] = {}
        """The virtual time at which each peer's last item ends."""
        self._now = 0.0
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, peer: str, weight: float, cost: float, item: T) -> None:
        """Add `item` to the queue."""
        start = max(self._now, self._ends.get(peer, 0.0))
        self._ends[peer] = start + cost / weight
        self._count += 1
        self._waiting[peer] += 1
        heapq.heappush(self._heap, (start, self._count, peer, cost, item))

    @property
    def peers(self) -> int:
        """How many peers have items in the queue."""
        return len(self._waiting)

    def pop(self) -> tuple[float, T]:
        """Remove the next item; returns its cost and the item."""
        self._now, _, peer, cost, item = heapq.heappop(self._heap)
        decrement(self._waiting, peer)
        if self._ends.get(peer, math.inf) <= self._now:
            del self._ends[peer]
        if not self._heap:
            self._ends.clear()
            self._now = 0.0
        return cost, item
