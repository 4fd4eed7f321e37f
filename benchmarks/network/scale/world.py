"""The network between the nodes: round trips, connections, deaths, cuts, and the answers to calls.

A node is full (it runs the product's `Index`) or light (`light.LightNode`): an entry in the table of positions that gets the product's
server and store on its first call. Calls are passed as values, without frames; for one in 32, the bytes are counted.
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
"""One call in this many has its bytes counted."""
Answer = Callable[["Caller", Message], Awaitable[Message]]


@dataclass(slots=True)
class Caller:
    """The end of a link that receives a call."""

    peer: str

    async def turn(self, cost_us: float) -> None:
        """Return at once: nothing else wants the processor."""


@dataclass
class Figures:
    """Counts since the last reset."""

    calls: Counter[str] = field(default_factory=Counter)
    """Calls by kind."""
    received: Counter[int] = field(default_factory=Counter)
    """Calls by the number of the node that received them."""
    failed: int = 0
    """Calls that nobody answered."""
    size: int = 0
    """Bytes of the counted calls and replies."""
    counted: int = 0

    @property
    def bytes_per_call(self) -> float:
        """Mean bytes of a call and its reply, with their frames."""
        return self.size / self.counted if self.counted else 0.0


class World:
    """All nodes and the network between them."""

    def __init__(self, population: Population, seed: int) -> None:
        self.population = population
        self.rng = random.Random(f"world {seed}")
        self.full: dict[int, Node] = {}
        self.dead: dict[int, float] = {}
        """Numbers of the killed nodes, and when they died."""
        self.cut: Callable[[int, int], bool] = lambda one, other: False
        """Whether packets between two nodes vanish."""
        self.light: Callable[[int], Answer] | None = None
        self.figures = Figures()

    def reset(self) -> None:
        self.figures = Figures()

    def node(self, number: int, knows: Sequence[int], *, holder: bool = True, **more: Any) -> Node:
        """A full node that knows the nodes in `knows`."""
        node = self.full[number] = Node(self, number, holder, more)
        for other in knows:
            peer = self.population.peer(other)
            node.network.table.learn(Contact(peer, (self.population.address(other),)))
        return node

    def kill(self, number: int) -> None:
        """Stop a node silently, as in a power cut."""
        self.dead[number] = heap.current_time()
        node = self.full.pop(number, None)
        if node is not None and node.scope is not None:
            node.scope.cancel()

    def seen_alive(self, one: int, other: int) -> bool:
        """Whether a connection between the two would still look alive to `one`."""
        return heap.current_time() < self.dead.get(other, math.inf) + NOTICE_S and not self.cut(one, other)

    async def round_trips(self, one: int, other: int, count: int) -> None:
        """Wait for the time of `count` round trips; forever if the other node does not answer."""
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
    """The network as the index of one full node sees it: the part of `swarm.net.network.Network` that the index uses."""

    def __init__(self, world: World, number: int, holder: bool) -> None:
        self.world = world
        self.number = number
        self.peer_id = world.population.peer(number)
        self.addresses = (world.population.address(number),) if holder else ()
        self.table = product.table.RoutingTable(self.peer_id)
        self.connections: dict[int, None] = {}
        self.links: OrderedDict[str, None] = OrderedDict()
        """Streams that this node opened, least recently used first."""

    def sign(self, body: bytes) -> bytes:
        return bytes(64)

    def connected(self, other: int) -> bool:
        """Whether the node believes that it is connected to the other."""
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
        """Always true: no node here announces an address that is not its own."""
        await self.world.round_trips(self.number, self.world.population.number(peer), CONNECT_ROUND_TRIPS)
        return True


class Wires:
    """Replaces `swarm.net.links.Links`, without frames and streams."""

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
    """Replaces `swarm.net.links.serve_links`."""
    network.world.full[network.number].answer = answer


class Node:
    """A full node: the product's index in a network of its own."""

    def __init__(self, world: World, number: int, holder: bool, more: dict[str, Any]) -> None:
        self.world = world
        self.number = number
        self.network = Network(world, number, holder)
        self.answer: Answer | None = None
        self.scope: heap.CancelScope | None = None
        rng = random.Random(f"node {world.population.seed} {number}")
        self.index = product.index.Index(
            self.network, rng=rng, incarnation=1, open_links=Wires, serve_links=serve, **more
        )

    async def run(self, *, task_status: Any = heap.TASK_STATUS_IGNORED) -> None:
        """Run until killed."""
        with heap.CancelScope() as self.scope:
            await self.index.run(task_status=task_status)

    async def publish(self) -> int:
        """Publish the node's advert; return the number of holders of its least held attribute."""
        advert: Advert = self.world.population.advert(self.number)
        return int(await self.index.publish(advert))

    @property
    def calls(self) -> int:
        """Calls made since the node's start."""
        return int(self.index.calls)
