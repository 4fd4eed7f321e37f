"""A node's thread pools: one kind of blocking work never waits for another kind.

trio's default pool serves everything, so 40 slow DNS answers in it would block the disk. Here every use names its kind:

    data = await DISK.run(path.read_bytes)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import trio

T = TypeVar("T")


@dataclass(frozen=True)
class ThreadPool:
    """One kind of blocking work. `threads`: most at a time in one node; further work waits."""

    name: str
    threads: int

    def limiter(self) -> trio.CapacityLimiter:
        """The limiter of the current trio run."""
        limiters = _limiters.get(None)
        if limiters is None:
            limiters = {}
            _limiters.set(limiters)
        return limiters.setdefault(self.name, trio.CapacityLimiter(self.threads))

    async def run(self, work: Callable[..., T], *args: object, abandon_on_cancel: bool = False) -> T:
        """Like `trio.to_thread.run_sync`. An abandoned thread counts until its work ends."""
        return await trio.to_thread.run_sync(
            work, *args, limiter=self.limiter(), abandon_on_cancel=abandon_on_cancel
        )


_limiters: Final[trio.lowlevel.RunVar[dict[str, trio.CapacityLimiter] | None]] = trio.lowlevel.RunVar(
    "thread pools"
)

DISK: Final = ThreadPool("disk", 32)
"""This node's own files: outbox, store, cache."""
SERVING: Final = ThreadPool("serving", 8)
"""Files read for other peers, each of which has few streams."""
HASHING: Final = ThreadPool("hashing", 2)
"""Hashing whole files, packing and unpacking bundles."""
COMPUTING: Final = ThreadPool("computing", 4)
"""Work that takes processor time: reading and checking records, pages and charts."""
DNS: Final = ThreadPool("dns", 8)
"""DNS names from the user's own configuration and from model URLs: a name server may take half a minute for each."""
LAN: Final = ThreadPool("lan", 16)
"""mDNS and the router."""
WAITING: Final = ThreadPool("waiting", 64)
"""Threads that wait for a process: runs, launches, probes, standard input."""
CANARIES: Final = ThreadPool("canaries", 1)
"""Inferences that check strangers' outputs."""
SCORING: Final = ThreadPool("scoring", 1)
"""Scoring the answers of evaluated models: a metric may take a minute."""
