"""Learns the nodes of a key's region by looking up points all over it, whatever the nodes packed next to the key answer.

The width of a region follows from the size of the network, which lookups of random points reveal; nobody can crowd a point that nobody can
predict. A sweep takes a hundred calls, so it is done only for keys around which nodes are denser or thinner than in the network.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from swarm.index import region
from swarm.index.client import IndexClient
from swarm.net.addresses import Contact, PeerId
from swarm.net.identity import distance

SMALL_SWARM: Final = 32
"""A swarm of up to this many nodes is small: no region in it is judged dense or thin."""
FRESH_S: Final = 300.0
"""How long readers use a set of holders before they look it up again."""
MAX_SETS: Final = 2_048
SAMPLES: Final = 5
"""The size of the network is the median estimate of this many latest lookups of random points."""
AGAIN: Final = 3
"""Further samples taken at once where nodes are suspect: the network may have grown."""
MEASURE_S: Final = (60.0, 1_800.0)
"""Maximum age of an estimate: where nodes are suspect, and elsewhere."""
OUTSIDE: Final = 6
"""First contacts from outside the region for one lookup of a sweep; no two lookups share one."""
INSIDE: Final = 4
"""First contacts from inside the region."""
WIDTH: Final = 8
"""How many of the nodes nearest to a point must answer before its lookup ends."""

Keep = Callable[[list[Contact]], list[Contact]]


class LookupResult(Protocol):
    """A lookup that has ended."""

    @property
    def candidates(self) -> Collection[PeerId]: ...

    def answered(self, count: int = ...) -> list[Contact]: ...

    def nearest(self) -> list[Contact]: ...


class Search(Protocol):
    """An iterative lookup. `starts`: first contacts; `keep`: selects the contacts to use from one answer."""

    async def __call__(
        self,
        key: bytes,
        patient: bool,
        *,
        starts: list[Contact] | None = None,
        width: int | None = None,
        keep: Keep = ...,
    ) -> LookupResult: ...


@dataclass
class Sweeps:
    """What one node knows about regions."""

    client: IndexClient
    rng: random.Random
    search: Search
    _swept: dict[bytes, tuple[list[Contact], float]] = field(default_factory=dict)
    """Key → the nodes of its region that answered, and when."""
    _sizes: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    version: int = 0
    """Counts the changes that affect where adverts are stored: estimates and sweeps."""
    _measured_at: float = -math.inf
    _busy: trio.Lock = field(default_factory=trio.Lock)
    """One sweep at a time: a liar that triggers one does not get many."""

    def __post_init__(self) -> None:
        self._salt = self.rng.randbytes(16)

    @property
    def nodes(self) -> float:
        """The estimated number of nodes: at least the number that we know."""
        return max(statistics.median(self._sizes or (1.0,)), len(self.client.network.table) + 1.0)

    @property
    def fewest(self) -> float:
        """A low estimate of the number of nodes: adversaries around a key raise the estimates of random points that fall near it."""
        low = sorted(self._sizes)[len(self._sizes) // 4] if self._sizes else 1.0
        return max(low, len(self.client.network.table) + 1.0)

    @property
    def _judges(self) -> bool:
        """Whether to judge regions dense or thin: in a small swarm everybody knows everybody."""
        return bool(self._sizes) and self.nodes > SMALL_SWARM

    @property
    def reach(self) -> int:
        """Every node nearer to a key than this distance stores its adverts. It is larger in a small swarm, where one call stores them all;
        0 while the size of the network is unknown."""
        count = region.HOLDERS if self._judges else region.EXPECTED
        return region.radius_of(self.nodes, count) if self._sizes else 0

    def thin(self, key: bytes, near: Sequence[Contact]) -> bool:
        """Whether somebody may have hidden nodes near `key`. No I/O."""
        return self._judges and region.thin([distance(c.peer, key) for c in near], self.nodes)

    def _suspect(self, key: bytes, near: Sequence[Contact]) -> bool:
        if not self._judges:
            return False
        return region.dense([distance(c.peer, key) for c in near], self.fewest) or self.thin(key, near)

    def swept(self, key: bytes) -> bool:
        """Whether the region of `key` was swept, so that further sweeps are due."""
        return key in self._swept

    def due(self, key: bytes, near: Sequence[Contact], max_age_s: float) -> bool:
        """Whether `sweep` would do something. No I/O."""
        now = trio.current_time()
        if now - self._swept.get(key, ((), -math.inf))[1] < max_age_s:
            return False
        return key in self._swept or now - self._measured_at > MEASURE_S[1] or self._suspect(key, near)

    def stores(self, key: bytes, near: Sequence[Contact]) -> list[Contact]:
        """The nodes that store the adverts of `key`, from `near` (nearest first): the nearest eight and those within reach, or nodes all
        over its region once that was swept. No I/O."""
        if key in self._swept:
            return [*near[: region.HOLDERS], *self._members(key, region.STORED, near)]
        reach = self.reach
        return [c for place, c in enumerate(near) if place < region.HOLDERS or distance(c.peer, key) < reach]

    def region(self, key: bytes) -> list[Contact]:
        """Known usable holders from all parts of the region of `key`, without ourselves. No I/O."""
        return self._members(key, region.EXPECTED, self.client.network.table.contacts())

    def _members(self, key: bytes, expected: int, known: Iterable[Contact]) -> list[Contact]:
        contacts = {contact.peer: contact for contact in self._swept.get(key, ((), 0.0))[0]}
        contacts |= {contact.peer: contact for contact in known if contact.peer != self.client.own_peer}
        near = region.members(key, region.radius_of(self.fewest, expected), contacts.values(), self._salt)
        return [contact for contact in near if self.client.usable(contact.peer)]

    async def sweep(self, key: bytes, near: Sequence[Contact], max_age_s: float = FRESH_S) -> None:
        """Look up points all over the region of `key` if the nodes `near` it are suspect, unless that was done in the last `max_age_s`."""
        async with self._busy:
            if trio.current_time() - self._swept.get(key, ((), -math.inf))[1] < max_age_s:
                return
            await self.measured()
            if self._suspect(key, near) and trio.current_time() - self._measured_at > MEASURE_S[0]:
                await self.measure(AGAIN)
            if not self._suspect(key, near):
                self.version += self._swept.pop(key, None) is not None
                return
            radius = region.radius_of(self.fewest, region.STORED)

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
            self.version += 1

    def _starts(self, key: bytes, radius: int, count: int) -> list[list[Contact]]:
        """First contacts for `count` lookups, with none shared. Most are outside the region, where an attacker gains nothing."""
        known = self.client.nearest(key, len(self.client.network.table))
        inside = [contact for contact in known if distance(contact.peer, key) < radius]
        near = region.members(key, radius, inside, self._salt)
        self.rng.shuffle(near)
        outside = known[len(inside) : len(inside) + OUTSIDE * count]
        self.rng.shuffle(outside)
        return [near[turn::count][:INSIDE] + outside[turn::count] for turn in range(count)]

    async def measured(self, least: int = 1) -> None:
        """Ensure at least `least` estimates of the size of the network, the latest of them recent enough."""
        old = trio.current_time() - self._measured_at > MEASURE_S[1]
        await self.measure(max(least - len(self._sizes), int(old)))

    async def measure(self, count: int = 1) -> None:
        """Look up `count` random points, which nobody can crowd."""
        self._measured_at = trio.current_time() if count else self._measured_at

        async def sample() -> None:
            point = self.rng.randbytes(32)
            found = await self.search(point, True)
            near = [distance(each.peer, point) for each in found.nearest()[: region.NEAR]]
            if near:
                self._sizes.append(region.nodes_by(near))
                self.version += 1

        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(sample)
