"""The network between the nodes: round trips, connections, deaths, cuts, and who answers a call.

A node is full (the product's `Index` runs in it) or light (`light.Light`): it exists as an entry in the table of positions, and gets the
product's server and store when it is first called. Calls are handed over as values, without frames; the bytes of one in 32 are counted.
"""

from __future__ import annotations

import math
import random
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.network.scale import heap
from benchmarks.network.scale.population import Population
from benchmarks.network.scale.product import product
from protocol.errors import Unreachable
from protocol.messages import index as index_messages
from protocol.values.advert import Advert
from protocol.wire.base import Message
from protocol.wire.codec import Frame, FrameKind
from swarm.memory.network import CONNECT_ROUND_TRIPS, NOTICE_S, OPEN_ROUND_TRIPS
from swarm.net.network import Path

Contact: Final = product.addresses.Contact
COUNTED: Final = 32
"""One call in so many has its bytes counted."""
Answer = Callable[["Caller", Message], Awaitable[Message]]


@dataclass(slots=True)
class Caller:
    """The end of a link at which a call is answered."""

    peer: str

    async def turn(self, cost_us: float) -> None:
        """Nobody else wants the processor."""


@dataclass
class Figures:
    """What was counted since the last reset."""

    calls: Counter[str] = field(default_factory=Counter)
    """Calls by kind."""
    received: Counter[int] = field(default_factory=Counter)
    """Calls by the number of the node that got them."""
    failed: int = 0
    """Calls that nobody answered."""
    size: int = 0
    """Bytes of the counted calls and replies."""
    counted: int = 0

    @property
    def bytes_per_call(self) -> float:
        """Of a call and its reply, with their frames."""
        return self.size / self.counted if self.counted else 0.0


class World:
    """All of it."""

    def __init__(self, population: Population, seed: int) -> None:
        self.population = population
        self.rng = random.Random(f"world {seed}")
        self.full: dict[int, Node] = {}
        self.dead: dict[int, float] = {}
        """Numbers of those that were killed, and when."""
        self.cut: Callable[[int, int], bool] = lambda one, other: False
        """Whether packets between two nodes vanish."""
        self.light: Callable[[int], Answer] | None = None
        self.figures = Figures()

    def reset(self) -> None:
        self.figures = Figures()

    def node(self, number: int, knows: Sequence[int], *, holder: bool = True, **more: Any) -> Node:
        """A full node that knows some others."""
        node = self.full[number] = Node(self, number, holder, more)
        for other in knows:
            peer = self.population.peer(other)
            node.network.table.learn(Contact(peer, (self.population.address(other),)))
        return node

    def kill(self, number: int) -> None:
        """Silently, as by a power cut."""
        self.dead[number] = heap.current_time()
        node = self.full.pop(number, None)
        if node is not None and node.scope is not None:
            node.scope.cancel()

    def seen_alive(self, one: int, other: int) -> bool:
        """Whether a connection between the two would still look alive to `one`."""
        return heap.current_time() < self.dead.get(other, math.inf) + NOTICE_S and not self.cut(one, other)

    async def round_trips(self, one: int, other: int, count: int) -> None:
        """The time of so many; for ever where nobody answers."""
        jitter = self.rng.lognormvariate(0.0, 0.15)
        await heap.sleep(count * jitter * self.population.rtt(one, other))
        if other in self.dead or self.cut(one, other):
            await heap.sleep_forever()

    async def call(self, one: int, peer: str, message: Message) -> Message:
        """One call on an open link."""
        population, figures = self.population, self.figures
        other = population.number(peer)
        figures.calls[type(message).__name__] += 1
        figures.received[other] += 1
        await self.round_trips(one, other, 1)
        node = self.full.get(other)
        answer = node.answer if node is not None else self.light(other) if self.light is not None else None
        if answer is None:
            raise Unreachable(f"{peer} does not serve")
        reply = await answer(Caller(population.peer(one)), message)
        if self.rng.randrange(COUNTED) == 0:
            figures.counted += 1
            frames = (Frame(FrameKind.CALL, 1, message), Frame(FrameKind.ANSWER, 1, reply))
            figures.size += sum(len(index_messages.INDEX.encode(frame)) for frame in frames)
        return reply


class Network:
    """What the index of one full node sees of the network: a `swarm.net.network.Network` as far as the index uses it."""

    def __init__(self, world: World, number: int, holder: bool) -> None:
        self.world = world
        self.number = number
        self.peer_id = world.population.peer(number)
        self.addresses = (world.population.address(number),) if holder else ()
        self.table = product.table.RoutingTable(self.peer_id)
        self.connections: dict[int, None] = {}
        self.links: OrderedDict[str, None] = OrderedDict()
        """Streams that this node opened, least lately used first."""

    def sign(self, body: bytes) -> bytes:
        return bytes(64)

    def connected(self, other: int) -> bool:
        """Whether a connection seems to be there."""
        if other not in self.connections:
            return False
        if not self.world.seen_alive(self.number, other):
            del self.connections[other]
            return False
        return True

    def path(self, peer: str) -> Path | None:
        other = self.world.population.number(peer)
        return Path(True, None, None) if self.connected(other) else None

    def remote_address(self, peer: str) -> str | None:
        other = self.world.population.number(peer)
        return self.world.population.address(other) if self.connected(other) else None

    async def knock(self, peer: str, address: str) -> bool:
        """Nobody here announces an address that is not its own."""
        await self.world.round_trips(self.number, self.world.population.number(peer), CONNECT_ROUND_TRIPS)
        return True


class Wires:
    """As `swarm.net.links.Links`, without frames and streams."""

    def __init__(
        self, network: Network, family: str, vocabulary: object, nursery: object, keep: float
    ) -> None:
        self.network = network
        self.keep = keep

    def peek(self, peer: str) -> str | None:
        network = self.network
        if peer not in network.links:
            return None
        if network.connected(network.world.population.number(peer)):
            return peer
        del network.links[peer]
        return None

    async def drop(self, peer: str) -> None:
        self.network.links.pop(peer, None)

    async def call(
        self, peer: str, addresses: Sequence[str], message: Message, *, max_wait_s: float = 5.0
    ) -> Message:
        network, world = self.network, self.network.world
        other = world.population.number(peer)
        if self.peek(peer) is None:
            if not network.connected(other):
                await world.round_trips(network.number, other, CONNECT_ROUND_TRIPS)
                network.connections[other] = None
                if other in world.full:
                    world.full[other].network.connections[network.number] = None
            await world.round_trips(network.number, other, OPEN_ROUND_TRIPS)
            if len(network.links) >= self.keep:
                network.links.popitem(last=False)
        network.links[peer] = None
        network.links.move_to_end(peer)
        try:
            return await world.call(network.number, peer, message)
        except Unreachable:
            world.figures.failed += 1
            raise


def serve(network: Network, family: str, vocabulary: object, answer: Any, **more: object) -> None:
    """As `swarm.net.links.serve_links`."""
    network.world.full[network.number].answer = answer


product.index.Links = Wires
product.index.serve_links = serve


class Node:
    """A full node: the product's index in a network of its own."""

    def __init__(self, world: World, number: int, holder: bool, more: dict[str, Any]) -> None:
        self.world = world
        self.number = number
        self.network = Network(world, number, holder)
        self.answer: Answer | None = None
        self.scope: heap.CancelScope | None = None
        rng = random.Random(f"node {world.population.seed} {number}")
        self.index = product.index.Index(self.network, rng=rng, incarnation=1, **more)

    async def run(self, *, task_status: Any = heap.TASK_STATUS_IGNORED) -> None:
        """Until it is killed."""
        with heap.CancelScope() as self.scope:
            await self.index.run(task_status=task_status)

    async def publish(self) -> int:
        """Its advert; returns the holders of its least held attribute."""
        advert: Advert = self.world.population.advert(self.number)
        return int(await self.index.publish(advert))

    @property
    def calls(self) -> int:
        """Made since its start."""
        return int(self.index.calls)
