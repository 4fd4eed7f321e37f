"""How many streams each peer has open to us, and the refusal of more than its share."""

from __future__ import annotations

import contextlib
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from swarm.net.addresses import PeerId

MAX_INBOUND: Final = 32
"""Streams that one peer may have open to us."""
MAX_INBOUND_OF_PROTOCOL: Final = 8
"""Of those, streams of one protocol."""

APART: Final[Mapping[str, int]] = {
    "/sark/hop/1": 320,
    "/libp2p/circuit/relay/0.2.0/hop": 320,
    "/libp2p/circuit/relay/0.2.0/stop": 64,
}
"""Circuits with a peer: they live long, their gate's desk has limits of its own, and they take none of the places above.

A caller may have so many through one gate, and so many may call a node through one. What is said *in* a circuit counts for
the peer at its other end, by the id that it proved, and never for the gate.
"""

_Key = TypeVar("_Key")


class InboundLimits:
    """Counts the streams that are being served."""

    def __init__(self) -> None:
        self._all: Counter[PeerId] = Counter()
        self._of_protocol: Counter[tuple[PeerId, str]] = Counter()

    @contextlib.contextmanager
    def arriving(self, peer: PeerId) -> Iterator[bool]:
        """Hold one of the peer's places, from the first byte on; yields False when it has none left."""
        with _place(self._all, peer, MAX_INBOUND) as granted:
            yield granted

    @contextlib.contextmanager
    def speaking(self, peer: PeerId, protocol: str) -> Iterator[bool]:
        """Hold one of the peer's places for this protocol; yields False when it has none left."""
        limit = APART.get(protocol)
        with _place(self._of_protocol, (peer, protocol), limit or MAX_INBOUND_OF_PROTOCOL) as granted:
            if limit is None or not granted:
                yield granted
                return
            self._all[peer] -= 1  # gives back the place that it arrived at; `arriving` takes it off once more
            try:
                yield True
            finally:
                self._all[peer] += 1


@contextlib.contextmanager
def _place(counts: Counter[_Key], key: _Key, limit: int) -> Iterator[bool]:
    if counts[key] >= limit:
        yield False
        return
    counts[key] += 1
    try:
        yield True
    finally:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]


REMEMBERED: Final = 4_096


class RateLimit:
    """How often each may have something: `burst` times at once, then once in `every_s`. Pure: time comes in as an argument."""

    def __init__(self, burst: int, every_s: float, *, most: int = REMEMBERED) -> None:
        self._burst = burst
        self._every_s = every_s
        self._most = most
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """When each will have all of it again."""

    def wait(self, now: float, who: str) -> float:
        """Take one; gives 0, or the seconds until there is one."""
        full_at = max(self._full_at.pop(who, now), now)
        left = full_at + self._every_s - (now + self._burst * self._every_s)
        self._full_at[who] = full_at if left > 0 else full_at + self._every_s
        if len(self._full_at) > self._most:
            self._full_at.popitem(last=False)
        return max(left, 0.0)
