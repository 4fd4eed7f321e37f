"""Learns the nodes of a key's region by lookups of points all over it, whatever those packed next to the key answer.

How wide a region is follows from the size of the network, which lookups of random points show: nobody can crowd what nobody foresees.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from swarm.index import region
from swarm.index.client import IndexClient
from swarm.net.addresses import Contact, PeerId
from swarm.net.identity import distance, routing_key

SMALL_SWARM: Final = 32
"""Up to so many candidates, the swarm is small: the nearest eight suffice."""
FRESH_S: Final = 300.0
"""How long readers use a set of holders before they look it up again."""
MAX_SETS: Final = 2_048
SAMPLES: Final = 5
"""Random points by which the size of the network is estimated; the median counts."""
MEASURE_S: Final = 1_800.0
"""Between two estimates."""
NEAREST: Final = 16
"""First contacts for such a point."""
OUTSIDE: Final = 6
"""First contacts of one lookup of a sweep from outside the region; none is of two lookups."""
INSIDE: Final = 4
"""And from the region."""
WIDTH: Final = 8
"""How many of the nearest to a point answer before its lookup ends."""

Keep = Callable[[list[Contact]], list[Contact]]


class Found(Protocol):
    """A lookup that has ended."""

    @property
    def candidates(self) -> Collection[PeerId]: ...

    def answered(self, count: int = ...) -> list[Contact]: ...


class Search(Protocol):
    """An iterative lookup; `starts`: first contacts; `keep`: what is used of one answer."""

    async def __call__(
        self,
        key: bytes,
        patient: bool,
        *,
        starts: list[Contact] | None = None,
        width: int | None = None,
        keep: Keep = ...,
    ) -> Found: ...


@dataclass
class Sweeps:
    """What one node knows of regions."""

    client: IndexClient
    rng: random.Random
    search: Search
    _swept: dict[bytes, tuple[list[Contact], float]] = field(default_factory=dict)
    """Key → the nodes of its region that answered, and when."""
    _sizes: list[float] = field(default_factory=list)
    _measured_at: float = -math.inf
    _busy: trio.Lock = field(default_factory=trio.Lock)
    """One sweep at a time: a liar that makes one necessary does not get many."""

    def __post_init__(self) -> None:
        self._salt = self.rng.randbytes(16)

    @property
    def nodes(self) -> float:
        """About how many nodes there are."""
        return statistics.median(self._sizes) if self._sizes else len(self.client.network.table) + 1.0

    def region(self, key: bytes, *, store: bool = False) -> list[Contact]:
        """Known usable holders from all parts of the region of `key`, ourselves left out; more of them to `store` once they are learned.
        No I/O."""
        contacts = {contact.peer: contact for contact in self._swept.get(key, ((), 0.0))[0]}
        contacts |= {contact.peer: contact for contact in self.client.network.table.contacts()}
        radius = region.radius_of(
            self.nodes, region.STORED if store and key in self._swept else region.EXPECTED
        )
        near = region.members(key, radius, contacts.values(), self._salt)
        return [contact for contact in near if self.client.usable(contact.peer)]

    async def sweep(self, key: bytes, max_age_s: float = FRESH_S) -> None:
        """Look up points all over the region of `key`, unless that was done in the last `max_age_s`. Not in a small swarm."""
        async with self._busy:
            if trio.current_time() - self._swept.get(key, ((), -math.inf))[1] < max_age_s:
                return
            await self._measure()
            if not self._sizes:
                return
            radius = region.radius_of(self.nodes, region.STORED)

            def keep(named: list[Contact]) -> list[Contact]:
                inner = [contact for contact in named if distance(contact.peer, key) < radius]
                fair = region.members(key, radius, inner, self._salt)
                return [contact for contact in named if contact in fair or contact not in inner]

            found: dict[PeerId, Contact] = {}

            async def learn(point: bytes, starts: list[Contact]) -> None:
                result = await self.search(point, True, starts=starts, width=WIDTH, keep=keep)
                found.update((each.peer, each) for each in result.answered(len(result.candidates)))

            points = region.points(key, radius, self.rng)
            async with trio.open_nursery() as nursery:
                for point, starts in zip(points, self._starts(key, radius, len(points)), strict=True):
                    nursery.start_soon(learn, point, starts)
            found.pop(self.client.own_peer, None)
            inside = [contact for contact in found.values() if distance(contact.peer, key) < radius]
            if len(self._swept) >= MAX_SETS:
                del self._swept[next(iter(self._swept))]
            self._swept[key] = inside, trio.current_time()

    def _starts(self, key: bytes, radius: int, count: int) -> list[list[Contact]]:
        """First contacts for `count` lookups: none is of two, and most are outside the region, where nobody gains by being."""
        known = self.client.nearest(key, len(self.client.network.table))
        inside = [contact for contact in known if distance(contact.peer, key) < radius]
        near = region.members(key, radius, inside, self._salt)
        self.rng.shuffle(near)
        outside = known[len(inside) : len(inside) + OUTSIDE * count]
        self.rng.shuffle(outside)
        return [near[turn::count][:INSIDE] + outside[turn::count] for turn in range(count)]

    def note(self, own: Found) -> None:
        """A lookup of our own key: a small swarm needs no other to know that it is one."""
        if self._small(own, routing_key(self.client.own_peer)):
            self._sizes, self._measured_at = [], trio.current_time()

    def _small(self, found: Found, key: bytes) -> bool:
        return len(self.client.network.table) <= SMALL_SWARM and _size(found, key) <= 1.5 * SMALL_SWARM

    async def _measure(self) -> None:
        grown = not self._sizes and len(self.client.network.table) > SMALL_SWARM
        if trio.current_time() - self._measured_at < MEASURE_S and not grown:
            return
        sizes: list[float] = []

        async def sample() -> bool:
            point = self.rng.randbytes(32)
            starts = self.client.nearest(point, NEAREST)
            result = await self.search(point, True, starts=starts, width=WIDTH)
            sizes.append(_size(result, point))
            return self._small(result, point)

        if await sample():
            sizes.clear()
        else:
            async with trio.open_nursery() as nursery:
                for _ in range(SAMPLES - 1):
                    nursery.start_soon(sample)
        self._sizes, self._measured_at = sizes, trio.current_time()


def _size(found: Found, point: bytes) -> float:
    """The size of the network by a lookup of a random point."""
    near = [apart for each in found.answered() if (apart := distance(each.peer, point))]
    return region.nodes_by(near) if near else 1.0
