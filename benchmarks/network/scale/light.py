"""Light nodes: a million that exist as positions in a table, each with the product's own server and store from its first call on.

Only the nodes that a light node knows are modelled instead of using the product's routing table: all nodes in its neighbourhood and, from
each bucket with more nodes than a table keeps, a sample of the table's size. It hears of a newcomer `HEARD_S` after it came, and of a death
within `noticed_s` (drawn for each pair of nodes). What a light publisher stored is a rule as well: under each attribute, its advert lies at
the holders where the product's publisher would put it. A holder gets these adverts into its store when the shard is first read there.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from benchmarks.network.scale import heap
from benchmarks.network.scale.population import Population, Shards
from benchmarks.network.scale.product import product
from benchmarks.network.scale.world import Answer, Contact, Network, World
from protocol.messages import index as index_messages
from protocol.values.advert import SignedAdvert
from protocol.values.index_keys import EVERYBODY, attributes_of, shard_key
from protocol.wire.base import Message

HEARD_S: Final = 10.0
BUCKET: Final = product.table.BUCKET_SIZE
FAR: Final = 200
"""A holder with this many nodes nearer to the key on average stores nothing for it."""
_ALL: Final = 2**64 - 1
Holds = Callable[[int, float], bool]
"""Whether the publisher stores at a holder, given the holder's rank from the key and the average number of nodes within its distance."""


@dataclass
class NodeDirectory:
    """All positions in order, and which nodes were alive when."""

    population: Population
    dead: dict[int, float]
    noticed_s: float = 0.0
    """The longest time after a death for which other nodes still name the dead node."""
    born: dict[int, float] = field(default_factory=dict)
    """Numbers of newcomers, and when they came; all other nodes were always there."""
    clients: Collection[int] = ()
    """Numbers of nodes that store nothing."""
    cut: Callable[[int, int], bool] = lambda one, other: False

    def __post_init__(self) -> None:
        positions = self.population.positions
        self.order = np.argsort(positions)
        self.sorted = positions[self.order]

    def alive(self, number: int) -> bool:
        return number not in self.dead and self.born.get(number, 0.0) <= heap.current_time()

    def known(self, one: int, other: int) -> bool:
        """Whether a node names another: the other came long enough ago, and the node has not heard of its death."""
        now = heap.current_time()
        if other in self.clients or self.born.get(other, -math.inf) + HEARD_S > now:
            return False
        died = self.dead.get(other)
        if died is None:
            return True
        drawn = int.from_bytes(hashlib.blake2b(b"%d %d" % (one, other), digest_size=4).digest(), "big")
        return now < died + self.noticed_s * drawn / 2**32

    def span(self, target: int, bits: int) -> tuple[int, int]:
        """The range of sorted positions that share the first `bits` bits with `target`."""
        if bits <= 0:
            return 0, len(self.sorted)
        low = target >> (64 - bits) << (64 - bits)
        high = low | (_ALL >> bits)
        return (
            int(np.searchsorted(self.sorted, np.uint64(low))),
            int(np.searchsorted(self.sorted, np.uint64(high), "right")),
        )

    def nearest(
        self, target: int, count: int, good: Callable[[int], bool] = lambda number: True
    ) -> list[int]:
        """The numbers nearest to a position for which `good` holds, nearest first."""
        bits, found = max(0, int(math.log2(max(len(self.sorted), 2) / count))), []
        while bits >= 0:
            low, high = self.span(target, bits)
            if high - low >= count or bits == 0:
                found = [number for number in self.order[low:high].tolist() if good(number)]
                if len(found) >= count:
                    break
            bits -= 1
        positions = self.population.positions
        return sorted(found, key=lambda number: int(positions[number]) ^ target)[:count]

    def named_by(self, one: int, target: int, count: int) -> list[int]:
        """The nodes that a light node names as nearest to a position."""
        own = int(self.population.positions[one])
        bits = 64 - (own ^ target).bit_length()
        low, high = self.span(target, min(bits + 1, 64))
        if high - low > BUCKET:
            seed = int.from_bytes(hashlib.blake2b(b"%d %d" % (one, bits), digest_size=8).digest(), "big")
            places = np.random.default_rng(seed).choice(high - low, BUCKET, replace=False) + low
            some = [number for number in self.order[places].tolist() if self.known(one, number)]
            positions = self.population.positions
            return sorted(some, key=lambda number: int(positions[number]) ^ target)[:count]
        return [n for n in self.nearest(target, count + 1, functools.partial(self.known, one)) if n != one][
            :count
        ]

    def rank(self, number: int, target: int) -> int:
        """How many nodes are nearer to a position than this one."""
        apart = int(self.population.positions[number]) ^ target
        low, high = self.span(target, 64 - apart.bit_length())
        near = self.order[low:high]
        nearer = near[(self.population.positions[near] ^ np.uint64(target)) < np.uint64(apart)]
        return sum(self.born.get(other, 0.0) <= heap.current_time() for other in nearer.tolist())


@dataclass
class _Knows:
    """Replaces `IndexClient` for the server of a light node."""

    sky: NodeDirectory
    number: int
    own_peer: str
    network: Any
    calls: int = 0

    def nearest(self, key: bytes, count: int) -> list[Any]:
        target, population = int.from_bytes(key[:8], "big"), self.sky.population
        named = self.sky.named_by(self.number, target, count)
        return [Contact(population.peer(each), (population.address(each),)) for each in named]

    def me(self) -> Any:
        return Contact(self.own_peer, (self.sky.population.address(self.number),))

    def remote_address(self, peer: str) -> str:
        return self.sky.population.address(self.sky.population.number(peer))

    def met(self, peer: str) -> bool:
        """Every node counts as met."""
        return True

    def usable(self, peer: str) -> bool:
        return True


class LightNode:
    """One light node, which answers calls."""

    def __init__(self, lights: LightNodes, number: int) -> None:
        self.lights = lights
        self.number = number
        self.store = product.store.ShardStore(split_threshold=lights.shards.split_threshold)
        peer = lights.sky.population.peer(number)
        knows = _Knows(lights.sky, number, peer, Network(lights.world, number, holder=True))
        server = product.index.IndexServer
        self.server = server(self.store, knows, None, lambda other: None, lambda other: False)
        self._read: set[bytes] = set()

    async def answer(self, caller: Any, message: Message) -> Message:
        """Answer like the product's server, with the adverts of light publishers in its store."""
        now = heap.current_time()
        if isinstance(message, index_messages.QueryShard):
            self._load(now, message.attribute, message.depth, message.prefix)
        answer: Message = await self.server.answer(caller, message)
        if isinstance(message, index_messages.StoreAdverts) and isinstance(answer, index_messages.StoreReply):
            return self._with_counts(caller.peer, message, answer)
        if isinstance(message, index_messages.MarkSplit):
            return index_messages.MarkReply(
                split=self._split(message.attribute, message.depth, message.prefix)
            )
        if isinstance(answer, index_messages.ShardPage) and self._split(
            message.attribute, message.depth, message.prefix
        ):
            count = len(self.lights.shards.of(message.attribute, message.depth, message.prefix))
            size = min(count, 2 * self.store.split_threshold)
            return answer.model_copy(update={"split": True, "count": size, "below": count})
        return answer

    def _split(self, attribute: str, depth: int, prefix: int) -> bool:
        return len(self.lights.shards.of(attribute, depth, prefix)) > self.store.split_threshold

    def _with_counts(
        self, peer: str, message: index_messages.StoreAdverts, answer: index_messages.StoreReply
    ) -> index_messages.StoreReply:
        """The verdicts of a holder that also has the light publishers' adverts."""
        population, shards = self.lights.sky.population, self.lights.shards
        position = int(population.positions[population.number(peer)])
        items = []
        for item, stored in zip(message.items, answer.items, strict=True):
            count = len(shards.of(item.attribute, item.depth, position >> (64 - item.depth)))
            changes: dict[str, Any] = {"count": max(count, stored.count)}
            if count > shards.split_threshold:
                changes |= {"verdict": index_messages.StoreVerdict.SPLIT, "below": count}
            if item.attribute == EVERYBODY:
                said = attributes_of(product.store.read_signed(message.advert))
                changes["having"] = tuple(
                    shards.count(each, item.depth, position >> (64 - item.depth)) for each in said
                )
            items.append(stored.model_copy(update=changes))
        return answer.model_copy(update={"items": tuple(items)})

    def _load(self, now: float, attribute: str, depth: int, prefix: int) -> None:
        key = shard_key("", attribute, depth, prefix)
        if key in self._read:
            return
        self._read.add(key)
        lights = self.lights
        for number in lights.stored_at(self.number, key, attribute, depth, prefix):
            item = index_messages.StoreItem(attribute=attribute, depth=depth)
            peer = lights.sky.population.peer(number)
            self.store.store(now, peer, "", lights.signed(number), (item,))


class LightNodes:
    """Creates light nodes when they are first called."""

    def __init__(self, world: World, sky: NodeDirectory, shards: Shards, holds: Holds) -> None:
        self.world = world
        self.sky = sky
        self.shards = shards
        self.holds = holds
        self.liars: Answer | None = None
        self.lying: Callable[[int], bool] = lambda number: False
        self.signed: Callable[[int], SignedAdvert] = functools.cache(sky.population.signed)
        self._nodes: dict[int, LightNode] = {}
        world.light = self.of

    def of(self, number: int) -> Answer:
        """The function that answers for a node."""
        if self.liars is not None and self.lying(number):
            return self.liars
        if number not in self._nodes:
            self._nodes[number] = LightNode(self, number)
        return self._nodes[number].answer

    def stored_at(self, holder: int, key: bytes, attribute: str, depth: int, prefix: int) -> Iterator[int]:
        """Light publishers whose advert the holder stores under that key."""
        if not self.shards.leaf(attribute, depth, prefix):
            return
        target = int.from_bytes(key[:8], "big")
        apart = int(self.sky.population.positions[holder]) ^ target
        expected = len(self.sky.sorted) * apart / 2**64
        if expected > FAR:
            return
        rank = self.sky.rank(holder, target)
        for number in self.shards.of(attribute, depth, prefix).tolist():
            if number not in self.world.full and self.sky.alive(number) and self.holds(rank, expected):
                yield number
