"""Accounts for the memory that peers use in this process: buffered bytes, calls being answered, unsent answers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from swarm.net.addresses import PeerId

CALL_BYTES: Final = 10_000
"""A call being answered: its task and its message, without the message's payload (an estimate)."""
DECODED_TIMES: Final = 8
"""A decoded message takes up to this many times its bytes (an estimate)."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """In bytes. Above `most`, the connections of the largest user are closed. Above `most_of_peer` in calls and answers, a peer is not
    read."""

    most: int = 64 * 1024 * 1024
    most_of_peer: int = 4 * 1024 * 1024


class Buffers(Protocol):
    """The bytes of one connection, or of one link, that have arrived but were not processed."""

    @property
    def owner(self) -> PeerId: ...

    def waiting(self) -> int:
        """How many bytes there are now."""
        ...


class MemoryAccount:
    """The memory that each peer uses on one node."""

    def __init__(self, limits: MemoryLimits | None = None) -> None:
        self.limits = limits or MemoryLimits()
        self.end: Callable[[PeerId, int], object] = lambda peer, size: None
        """Closes all connections of a peer that used this many bytes. Must not wait."""
        self.total = 0
        """Bytes in use. Buffers count as of the last look at each, so this is an upper bound."""
        self._buffers: dict[Buffers, int] = {}
        self._work: Counter[PeerId] = Counter()
        """Calls being answered, and unsent answers."""
        self._ending: set[PeerId] = set()
        """Peers whose connections are closing. Their work no longer counts, until all of it has ended."""

    def of(self, peer: PeerId) -> int:
        """The bytes that a peer uses."""
        return self._work[peer] + sum(size for each, size in self._buffers.items() if each.owner == peer)

    def buffer(self, holder: Buffers, size: int) -> bool:
        """Record that `holder` is about to hold `size` bytes. False: there is no room, and its peer's connections are being closed."""
        self._set(holder, size)
        if self.total <= self.limits.most:
            return True
        for other in list(self._buffers):
            if other is not holder:
                self._set(other, other.waiting())
        return holder.owner not in self._make_room()

    def hold(self, peer: PeerId, size: int) -> None:
        """Account `size` bytes to the peer until `release`."""
        self._work[peer] += size
        if peer in self._ending:
            return
        self.total += size
        if self.total > self.limits.most:
            for other in list(self._buffers):
                self._set(other, other.waiting())
            self._make_room()

    def release(self, peer: PeerId, size: int) -> None:
        """Release bytes accounted with `hold`."""
        self._work[peer] -= size
        if peer not in self._ending:
            self.total -= size
        if not self._work[peer]:
            del self._work[peer]
            self._ending.discard(peer)

    def full(self, peer: PeerId) -> bool:
        """Whether to read no more from a peer until some of its work has ended."""
        return self._work.get(peer, 0) >= self.limits.most_of_peer

    def _set(self, holder: Buffers, size: int) -> None:
        self.total += size - self._buffers.pop(holder, 0)
        if size:
            self._buffers[holder] = size

    def _make_room(self) -> set[PeerId]:
        """Close the connections of the peers that use most until there is room; returns these peers."""
        ended: set[PeerId] = set()
        taken = Counter({peer: size for peer, size in self._work.items() if peer not in self._ending})
        for holder, size in self._buffers.items():
            taken[holder.owner] += size
        for peer, size in taken.most_common():
            if self.total <= self.limits.most:
                break
            for holder in [each for each in self._buffers if each.owner == peer]:
                self._set(holder, 0)
            if self._work.get(peer) and peer not in self._ending:
                self.total -= self._work[peer]
                self._ending.add(peer)
            ended.add(peer)
            self.end(peer, size)
        return ended
