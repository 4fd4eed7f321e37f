"""Limits for each peer (its open inbound streams, its calls over time), pauses after failures, and the limits of inbound connections."""

from __future__ import annotations

import contextlib
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from swarm.net.addresses import PeerId

MAX_INBOUND: Final = 32
"""Inbound streams that one peer may have open."""
MAX_INBOUND_OF_PROTOCOL: Final = 8
"""Inbound streams of one protocol that one peer may have open."""

SEPARATE_LIMITS: Final[Mapping[str, int]] = {
    "/sark/hop/3": 320,
    "/libp2p/circuit/relay/0.2.0/hop": 320,
    "/libp2p/circuit/relay/0.2.0/stop": 64,
    "/sark/stop/2": 64,
}
"""Circuits have limits of their own, since they live long and their gate limits them too. They do not count against the limits above.

These are the circuits that one peer may have through one gate. Streams *in* a circuit count for the peer at its other end, by the id that
peer proved, never for the gate.
"""

MOST_PEERS: Final = 1_024
"""Inbound connections with peers that libp2p accepts."""

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of inbound connections. A network is an IPv4 /24 or an IPv6 /48."""

    pending: int = 512
    """Unauthenticated inbound connections."""
    pending_per_ip: int = 128
    per_network: int = 512
    """Inbound connections of one network."""
    burst: int = 256
    """New connections of one network in a burst; `per_s` more each second."""
    per_s: float = 20.0
    strangers: int = 960
    """Number of connections above which a stranger leaves for each newcomer; libp2p accepts at most `MOST_PEERS`."""
    data_connections: int = 2_048
    """Data connections of circuits; one network may have `per_network` of them."""
    all: int = 4_096
    """Inbound connections altogether; the limit of open files may lower it."""

    @property
    def most_data_connections(self) -> int:
        """Data connections allowed, which leave room for peers: room for `MOST_PEERS`, or three quarters of `all` if that is less."""
        return min(self.data_connections, self.all - min(MOST_PEERS, 3 * self.all // 4))


class InboundLimits:
    """Counts the streams being served."""

    def __init__(self) -> None:
        self._all: Counter[PeerId] = Counter()
        self._of_protocol: Counter[tuple[PeerId, str]] = Counter()

    @contextlib.contextmanager
    def arriving(self, peer: PeerId) -> Iterator[bool]:
        """Count a stream of this peer, starting at its first byte; yields False above the limit."""
        with _counted(self._all, peer, MAX_INBOUND) as granted:
            yield granted

    @contextlib.contextmanager
    def speaking(self, peer: PeerId, protocol: str) -> Iterator[bool]:
        """Count a stream of this protocol as well; yields False above the limit."""
        limit = SEPARATE_LIMITS.get(protocol)
        with _counted(self._of_protocol, (peer, protocol), limit or MAX_INBOUND_OF_PROTOCOL) as granted:
            if limit is None or not granted:
                yield granted
                return
            self._all[peer] -= 1  # `arriving` counted it, and will uncount it
            try:
                yield True
            finally:
                self._all[peer] += 1


@contextlib.contextmanager
def _counted(counts: Counter[_Key], key: _Key, limit: int) -> Iterator[bool]:
    if counts[key] >= limit:
        yield False
        return
    counts[key] += 1
    try:
        yield True
    finally:
        decrement(counts, key)


def decrement(counts: Counter[_Key], key: _Key) -> None:
    """Subtract one from a count; forget the count at zero."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


class Pauses:
    """How long to pause after a failure: `first_s`, doubled for each further failure, at most `longest_s`. Pure: time is an argument."""

    def __init__(self, first_s: float, longest_s: float, *, most: int) -> None:
        """`most`: keys remembered; the one whose last failure is oldest is forgotten first."""
        self._first_s, self._longest_s, self._most = first_s, longest_s, most
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Key → number of failures, and the end of the pause."""

    def failed(self, key: str, now: float) -> None:
        """Start a pause, longer each time."""
        times = self._failed.pop(key, (0, now))[0]
        pause_s = min(self._first_s * 2 ** min(times, 16), self._longest_s)
        self._failed[key] = (times + 1, now + pause_s)
        if len(self._failed) > self._most:
            self._failed.popitem(last=False)

    def worked(self, key: str) -> None:
        """Earlier failures of `key` no longer count."""
        self._failed.pop(key, None)

    def pauses(self, key: str, now: float) -> bool:
        """Whether to leave `key` alone now."""
        return now < self._failed.get(key, (0, now))[1]


class RateLimit:
    """A token bucket for each key: `burst` calls at once, then one every `every_s` seconds. Pure: time is an argument."""

    def __init__(self, burst: float, every_s: float, *, most: int = 4_096) -> None:
        """`most`: keys remembered; the least recently used one is forgotten first."""
        self._burst_s = burst * every_s
        self._every_s = every_s
        self._most = most
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """When each bucket will be full again."""

    def give_back(self, key: str) -> None:
        """Give back the token of the key's last call."""
        if key in self._full_at:
            self._full_at[key] -= self._every_s

    def wait(self, now: float, key: str) -> float:
        """Take one token; returns 0, or the seconds until one is available."""
        full_at = max(self._full_at.pop(key, now), now)
        wait = full_at + self._every_s - now - self._burst_s
        granted = wait < 1e-9  # tolerance for sums of floats
        self._full_at[key] = full_at + self._every_s if granted else full_at
        if len(self._full_at) > self._most:
            self._full_at.popitem(last=False)
        return 0.0 if granted else wait
