"""A whole network in one process, on trio's clock: latency, loss, bandwidth, partitions, silent cuts and killed nodes.

For tests and the cluster simulator. Nodes are cheap objects without tasks of their own (only handlers run), so a process can hold a
thousand of them, and under trio's autojump clock an hour of their time takes seconds.

    async with MemorySwarm(random.Random(1), latency_s=0.02) as swarm:
        gate = swarm.node(Identity.from_seed(1))
        node = swarm.node(Identity.from_seed(2))
        await node.connect(gate.peer_id, gate.addresses)

A node behind a NAT (`node(identity, behind="home")`) can dial everybody, but only its neighbours can dial it. Others reach it through a
gate where it has a reservation, as in the real network, but without limits on the bytes and lifetime of a circuit.
"""

from __future__ import annotations

import ipaddress
import math
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from types import TracebackType
from typing import Final, Self

import trio

from protocol.errors import LocalProtocolError, SarkError, Unreachable
from swarm.memory.parts import InboundStreams, MemoryGate
from swarm.memory.streams import MemoryLink, MemoryStream, stream_pair
from swarm.net.addresses import Address, Circuit, PeerId, circuits, dialled, parse_circuit, parse_tcp
from swarm.net.governor import Governor
from swarm.net.identity import Identity
from swarm.net.network import Handler, Path, Reservation
from swarm.net.reservations import RelayReservations
from swarm.net.routing_table import RoutingTable
from swarm.p2p.dial_rules import DialRules

HEAD_START_S: Final = 0.25
"""Head start of direct addresses over circuits."""
CONNECT_ROUND_TRIPS: Final = 4
"""TCP, then negotiating security and muxer, with Noise in between: what libp2p needs before the first stream."""
OPEN_ROUND_TRIPS: Final = 2
RETRANSMIT_S: Final = 0.2
"""How much later a lost packet arrives (TCP's shortest retransmission time)."""
NOTICE_S: Final = 8.0
"""How long a silent link seems alive, as in the real network."""
_EVERYWHERE: Final = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
Latency = float | Callable[[PeerId, PeerId], float]


@dataclass(eq=False)
class MemorySwarm:
    """The network itself: which nodes exist, which of them reach each other, and how fast."""

    rng: random.Random
    _: KW_ONLY
    latency_s: Latency = 0.0
    """One-way latency, for all links or as a function of (from, to)."""
    loss: float = 0.0
    """Share of chunks that arrive `RETRANSMIT_S` late."""
    bytes_per_s: float | None = None
    """Bandwidth of each link and direction; None: no limit."""
    notice_s: float = NOTICE_S

    def __post_init__(self) -> None:
        self.strays: Counter[Address] = Counter()
        """Dials to addresses where the wanted peer is not: what a victim would receive whose address a liar announces."""
        self._nodes: dict[PeerId, MemoryNetwork] = {}
        self._links: dict[tuple[PeerId, PeerId], MemoryLink] = {}
        """Direct links."""
        self._relayed: dict[tuple[PeerId, PeerId], MemoryLink] = {}
        self._cuts: set[tuple[PeerId, PeerId]] = set()
        self._made = 0
        self._manager = trio.open_nursery()
        self._nursery: trio.Nursery | None = None

    async def __aenter__(self) -> Self:
        self._nursery = await self._manager.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()
        try:
            await self._manager.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            if error is not None and list(group.exceptions) == [error]:
                return  # the nursery wraps the exception of the caller's block; let it propagate unwrapped
            raise

    def node(self, identity: Identity, holder: bool = True, behind: str | None = None) -> MemoryNetwork:
        """Add a node. A node that is no `holder` has no address: it dials, and nobody dials it.

        `behind`: the NAT it is behind. Only nodes behind the same NAT can dial it; packets of others vanish.
        """
        self._made += 1
        address = f"/ip4/10.{self._made >> 16 & 255}.{self._made >> 8 & 255}.{self._made & 255}/tcp/4001"
        node = MemoryNetwork(self, identity, (address,) if holder else (), behind)
        self._nodes[node.peer_id] = node
        return node

    # -- failures --------------------------------------------------------------------------------------------------------

    def kill(self, peer: PeerId) -> None:
        """End the node's process at once: its handlers stop, its links break, new dials are refused."""
        links = self.links_of(peer) + [link for link in self._relayed.values() if link.via == peer]
        node = self._nodes.pop(peer, None)
        if node is not None:
            node.inbound.stop()
        for link in links:
            link.sever()

    def cut_silently(self, a: PeerId, b: PeerId) -> None:
        """Make packets between the two vanish; both notice after `notice_s`. Circuits that lead through one of them vanish too."""
        pair = _pair(a, b)
        self._cuts.add(pair)
        if pair in self._links:
            self._links[pair].cut()
        for link in self._relayed.values():
            if (link.via == a and b in link.ends) or (link.via == b and a in link.ends):
                link.cut()

    def translate(self, peer: PeerId, behind: str | None) -> None:
        """Put a node behind a NAT, or in the open (None). Live links continue."""
        self._nodes[peer].behind = behind

    def punch(self, a: PeerId, b: PeerId) -> None:
        """Give the two nodes a direct link in addition to their circuit, as hole punching does. New streams use it."""
        low, high = _pair(a, b)
        if self._live(self._links, low, high) is None:
            self._links[low, high] = self._new_link(low, high)

    def partition(self, a: Iterable[PeerId], b: Iterable[PeerId]) -> None:
        """Make packets between the two groups vanish."""
        others = tuple(b)
        for one in a:
            for other in others:
                self.cut_silently(one, other)

    def heal(self) -> None:
        """Let all packets pass again. Links that were given up stay broken; the others continue where they stopped."""
        self._cuts.clear()
        for link in (*self._links.values(), *self._relayed.values()):
            if link.cut_at is not None:
                link.mend()

    # -- used by the nodes -------------------------------------------------------------------------------------------------

    def latency(self, a: PeerId, b: PeerId) -> float:
        """One-way latency in seconds."""
        return self.latency_s if isinstance(self.latency_s, float | int) else self.latency_s(a, b)

    def alive(self, peer: PeerId) -> MemoryNetwork | None:
        return self._nodes.get(peer)

    def link(self, a: PeerId, b: PeerId) -> MemoryLink | None:
        """The live connection of the two nodes; the direct one if there are both kinds."""
        low, high = _pair(a, b)
        return self._live(self._links, low, high) or self._live(self._relayed, low, high)

    def direct(self, a: PeerId, b: PeerId) -> MemoryLink | None:
        """The live direct connection of the two nodes."""
        return self._live(self._links, *_pair(a, b))

    def dialable(self, a: PeerId, b: PeerId) -> bool:
        """Whether `b` would answer if `a` dialled its address now."""
        node, other = self._nodes.get(a), self._nodes.get(b)
        return (
            node is not None
            and other is not None
            and bool(other.addresses)
            and other.behind in {None, node.behind}
            and _pair(a, b) not in self._cuts
        )

    @staticmethod
    def _live(links: dict[tuple[PeerId, PeerId], MemoryLink], low: PeerId, high: PeerId) -> MemoryLink | None:
        link = links.get((low, high))
        if link is not None and link.dead:
            del links[low, high]
            return None
        return link

    def _new_link(self, low: PeerId, high: PeerId, via: PeerId | None = None) -> MemoryLink:
        self._nodes[low].met[high] = self._nodes[high].met[low] = None
        return MemoryLink(low, high, self._delay, self.notice_s, via)

    async def dial(self, a: PeerId, b: PeerId) -> MemoryLink:
        """Connect; across a cut this never returns, like packets that get no answer."""
        await self.round_trips(a, b, CONNECT_ROUND_TRIPS)
        if b not in self._nodes:
            raise Unreachable(f"cannot reach {b}: connection refused", refused=True)
        if a not in self._nodes:
            raise Unreachable("this node was killed")
        if self._nodes[b].behind not in {None, self._nodes[a].behind}:
            await trio.sleep_forever()  # its NAT drops unsolicited packets
        link = self.direct(a, b)
        if link is None:
            low, high = _pair(a, b)
            link = self._links[low, high] = self._new_link(low, high)
            self._nodes[b].called_at = trio.current_time()
        return link

    async def knock(self, a: PeerId, b: PeerId, address: Address) -> bool:
        """Whether `b` answers `a` at exactly this address."""
        await self.round_trips(a, b, OPEN_ROUND_TRIPS)
        other = self._nodes.get(b)
        if other is None or address not in other.addresses:
            return False
        if not self.dialable(a, b):
            await trio.sleep_forever()
        other.called_at = trio.current_time()
        return True

    async def call(self, a: PeerId, b: PeerId, gate: PeerId) -> MemoryLink:
        """Connect through a gate to which `a` has a link, and at which `b` has a reservation."""
        await self.round_trips(a, gate, OPEN_ROUND_TRIPS)
        caller, server = self._nodes.get(a), self._nodes.get(gate)
        if caller is None or server is None or server.gate is None or self.direct(a, gate) is None:
            raise Unreachable(f"cannot reach {b}: the connection with the gate broke, or it is not a relay")
        circuit = server.gate.begin(a, caller.seen_ip, b, self.direct(gate, b) is not None)
        try:
            await self.round_trips(b, gate, OPEN_ROUND_TRIPS)
            await self.round_trips(a, gate, CONNECT_ROUND_TRIPS)
            if a not in self._nodes or b not in self._nodes or gate not in self._nodes:
                raise Unreachable(f"cannot reach {b}: the connection with the gate broke")
            low, high = _pair(a, b)
            live = self._live(self._relayed, low, high)
            if live is not None:
                return live
            link = self._relayed[low, high] = self._new_link(low, high, gate)
            server.gate.circuits[link] = circuit
            return link
        finally:
            server.gate.abandon(circuit)

    async def open(self, link: MemoryLink, opener: PeerId, protocol: str) -> MemoryStream:
        """Open a stream with the other end."""
        other = link.other(opener)
        await self.round_trips(opener, other, OPEN_ROUND_TRIPS, link.via)
        server = self._nodes.get(other)
        if server is None or link.dead:
            raise Unreachable(f"cannot reach {other}: the connection broke")
        assert self._nursery is not None
        near_end, theirs = stream_pair(link, opener, protocol)
        server.inbound.accept(self._nursery, theirs)
        return near_end

    async def round_trips(self, a: PeerId, b: PeerId, count: int, via: PeerId | None = None) -> None:
        """Wait for `count` round trips between `a` and `b`; across a cut this never returns."""
        late = RETRANSMIT_S if self.rng.random() < self.loss else 0.0
        await trio.sleep(2 * count * self.one_way(a, b, via) + late)
        legs = (_pair(a, b),) if via is None else (_pair(a, via), _pair(via, b))
        if not self._cuts.isdisjoint(legs):
            await trio.sleep_forever()

    def one_way(self, a: PeerId, b: PeerId, via: PeerId | None) -> float:
        """Seconds from `a` to `b`, directly or through a gate."""
        return self.latency(a, b) if via is None else self.latency(a, via) + self.latency(via, b)

    def _delay(
        self, sender: PeerId, receiver: PeerId, size: int, via: PeerId | None = None
    ) -> tuple[float, float]:
        """Seconds that `size` bytes are under way, and seconds for which they occupy the line."""
        late = RETRANSMIT_S if self.loss and self.rng.random() < self.loss else 0.0
        on_the_line = size / self.bytes_per_s if self.bytes_per_s else 0.0
        return self.one_way(sender, receiver, via) + late, on_the_line

    def links_of(self, peer: PeerId) -> list[MemoryLink]:
        """A node's connections, including dead ones that nobody has noticed."""
        node = self._nodes.get(peer)
        pairs = [_pair(peer, other) for other in node.met] if node is not None else []
        return [links[pair] for links in (self._links, self._relayed) for pair in pairs if pair in links]


class MemoryNetwork:
    """One node of the simulated network: a `swarm.net.network.Network`, made by `MemorySwarm.node`."""

    def __init__(
        self, swarm: MemorySwarm, identity: Identity, addresses: tuple[Address, ...], behind: str | None
    ) -> None:
        self.peer_id: Final = identity.peer_id
        self.behind = behind
        """The NAT that this node is behind."""
        self.gate: MemoryGate | None = None
        """Makes this node a relay; None: it is not one."""
        self.inbound = InboundStreams(identity.peer_id)
        self.met: dict[PeerId, None] = {}
        """Every peer with which this node ever had a link."""
        self.called_at = -math.inf
        self._reservations: dict[PeerId, tuple[MemoryLink, float, Reservation]] = {}
        self._swarm = swarm
        self._identity = identity
        self._addresses = addresses
        self._reported: dict[PeerId, set[Address]] = {}
        """The direct addresses reported so far for each peer."""
        self.table = RoutingTable(identity.peer_id)
        self._given: set[Address] = set()
        self._rules = DialRules(networks=lambda: _EVERYWHERE, given=self._given.__contains__)
        self.governor = Governor()
        self.governor.memory.end = lambda peer, size: self._end(peer)

    @property
    def addresses(self) -> tuple[Address, ...]:
        return self._addresses

    @property
    def seen_ip(self) -> str:
        """The IP from which its packets seem to come: the same for all nodes behind one NAT."""
        address = parse_tcp(self._addresses[0]) if self._addresses and self.behind is None else None
        if address is not None:
            return address.host
        return f"192.0.2.{zlib.crc32((self.behind or self.peer_id).encode()) % 256}"

    def sign(self, body: bytes) -> bytes:
        return self._identity.sign(body)

    def handle(self, protocol: str, handler: Handler) -> None:
        self.inbound.handle(protocol, handler)

    # -- connections and streams -------------------------------------------------------------------------------------------

    async def connect(self, peer: PeerId, addresses: Sequence[Address], *, max_wait_s: float = 5.0) -> None:
        with _answer_within(max_wait_s, peer):
            await self._link(peer, addresses)

    async def open(
        self, peer: PeerId, protocol: str, addresses: Sequence[Address] = (), *, max_wait_s: float = 5.0
    ) -> MemoryStream:
        with _answer_within(max_wait_s, peer):
            link = await self._link(peer, addresses)
            return await self._swarm.open(link, self.peer_id, protocol)

    async def _link(self, peer: PeerId, addresses: Sequence[Address]) -> MemoryLink:
        await trio.lowlevel.checkpoint()
        if peer == self.peer_id:
            raise Unreachable("that is this node itself")
        link = self._swarm.link(self.peer_id, peer)
        if link is not None:
            return link
        direct = self._direct_addresses(peer, addresses)
        relayed = circuits(addresses)
        if not direct and not relayed:
            raise Unreachable(f"cannot reach {peer}: this node knows no address of it")
        if not relayed:
            return await self._dial(peer, direct)
        return await self._race(peer, direct, relayed)

    def _direct_addresses(self, peer: PeerId, addresses: Sequence[Address]) -> set[Address]:
        """These direct addresses, and all that were given or learned before."""
        contact, direct = self.table.get(peer), self._reported.setdefault(peer, set())
        direct.update(contact.addresses if contact is not None else ())
        direct.update(address for address in addresses if parse_circuit(address) is None)
        return direct

    async def _dial(self, peer: PeerId, addresses: set[Address]) -> MemoryLink:
        target = self._swarm.alive(peer)
        own = target.addresses if target is not None else ()
        for address in sorted(addresses.difference(own)):
            if not self._rules.why_not(trio.current_time(), peer, address):
                self._swarm.strays[address] += 1
        if target is not None and not addresses.intersection(own):
            raise Unreachable(
                f"cannot reach {peer}: nobody, or somebody else, answers at {', '.join(sorted(addresses))}"
            )
        return await self._swarm.dial(self.peer_id, peer)

    async def _race(self, peer: PeerId, direct: set[Address], relayed: tuple[Circuit, ...]) -> MemoryLink:
        """The first link to be established: direct, or through a gate after the head start."""
        links: list[MemoryLink] = []
        failures: list[str] = []

        async def attempt(scope: trio.CancelScope, circuit: Circuit | None, delay_s: float) -> None:
            await trio.sleep(delay_s)
            try:
                if circuit is None:
                    links.append(await self._dial(peer, direct))
                else:
                    await self._direct_link(circuit.gate, [circuit.address])
                    links.append(await self._swarm.call(self.peer_id, peer, circuit.gate))
            except SarkError as error:
                failures.append(error.what)
            else:
                scope.cancel()

        async with trio.open_nursery() as nursery:
            if direct:
                nursery.start_soon(attempt, nursery.cancel_scope, None, 0.0)
            for circuit in relayed:
                nursery.start_soon(attempt, nursery.cancel_scope, circuit, HEAD_START_S if direct else 0.0)
        if not links:
            raise Unreachable(f"cannot reach {peer}: {'; '.join(failures)}")
        return links[0]

    async def _direct_link(self, gate: PeerId, addresses: Sequence[Address]) -> MemoryLink:
        link = self._swarm.direct(self.peer_id, gate)
        if link is not None:
            return link
        direct = self._direct_addresses(gate, addresses)
        if not direct:
            raise Unreachable(f"cannot reach {gate}: this node knows no address of it")
        return await self._dial(gate, direct)

    def owner_gave(self, addresses: Iterable[Address]) -> None:
        self._given.update(dialled(addresses))

    def _end(self, peer: PeerId) -> None:
        while (link := self._swarm.link(self.peer_id, peer)) is not None:
            link.sever()

    async def disconnect(self, peer: PeerId) -> None:
        while (link := self._swarm.link(self.peer_id, peer)) is not None:
            link.sever()
        await trio.lowlevel.checkpoint()

    def connected(self) -> tuple[PeerId, ...]:
        links = self._swarm.links_of(self.peer_id)
        return tuple(dict.fromkeys(link.other(self.peer_id) for link in links if not link.dead))

    def remote_address(self, peer: PeerId) -> Address | None:
        other = self._swarm.alive(peer)
        if other is None or self._swarm.direct(self.peer_id, peer) is None:
            return None
        return next(iter(other.addresses), None)

    def path(self, peer: PeerId) -> Path | None:
        link = self._swarm.link(self.peer_id, peer)
        if link is None:
            return None
        return Path(link.via is None, link.via, 2000 * self._swarm.one_way(self.peer_id, peer, link.via))

    async def knock(self, peer: PeerId, address: Address, *, max_wait_s: float = 3.0) -> bool:
        with trio.move_on_after(max_wait_s):
            return await self._swarm.knock(self.peer_id, peer, address)
        return False

    # -- gates as relays ---------------------------------------------------------------------------------------------------

    async def reserve(
        self, gate: PeerId, addresses: Sequence[Address] = (), *, max_wait_s: float = 5.0
    ) -> Reservation:
        with _answer_within(max_wait_s, gate):
            link = await self._direct_link(gate, addresses)
            await self._swarm.round_trips(self.peer_id, gate, OPEN_ROUND_TRIPS + 1)
        server = self._swarm.alive(gate)
        if server is None or link.dead:
            raise Unreachable(f"cannot reach {gate}: the connection broke")
        if server.gate is None:
            raise Unreachable(f"cannot reach {gate}: it is not a relay")
        reservation = server.gate.reserve(self.peer_id, self.seen_ip)
        self._reservations[gate] = (link, trio.current_time() + reservation.ttl_s, reservation)
        return reservation

    def reservations(self) -> tuple[Reservation, ...]:
        now = trio.current_time()
        return tuple(r for link, until, r in self._reservations.values() if until > now and not link.dead)

    def serve_relay(self, reservations: RelayReservations) -> None:
        if self.gate is not None or not self._addresses:
            raise LocalProtocolError("this node is a relay already, or has no address")
        self.gate = MemoryGate(self.peer_id, self._addresses[0], reservations)


@contextmanager
def _answer_within(seconds: float, peer: PeerId) -> Iterator[None]:
    try:
        with trio.fail_after(seconds):
            yield
    except trio.TooSlowError as error:
        raise Unreachable(f"{peer} did not answer within {seconds:g} s") from error


def _pair(a: PeerId, b: PeerId) -> tuple[PeerId, PeerId]:
    return (a, b) if a < b else (b, a)
