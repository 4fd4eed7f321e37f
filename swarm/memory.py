"""A whole network in one process, on trio's clock: latency, loss, bandwidth, partitions, silent cuts and killed nodes.

For tests and for the cluster simulator. Nodes are cheap objects without tasks of their own (only handlers run), so a
thousand of them fit in one process, and under trio's autojump clock an hour of theirs takes seconds.

    async with MemorySwarm(random.Random(1), latency_s=0.02) as swarm:
        gate = swarm.node(Identity.from_seed(1))
        node = swarm.node(Identity.from_seed(2))
        await node.connect(gate.peer_id, gate.addresses)
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Final, Self

import structlog
import trio

from protocol.errors import LocalProtocolError, SarkError, Unreachable
from swarm.identity import Identity, routing_key
from swarm.limits import InboundLimits
from swarm.memory_streams import Link, MemoryStream, stream_pair
from swarm.network import Address, Contact, Handler, PeerId

CONNECT_ROUND_TRIPS: Final = 4
"""TCP, then the names of the security and the muxer, with Noise in between: what libp2p needs before the first stream."""
OPEN_ROUND_TRIPS: Final = 2
RETRANSMIT_S: Final = 0.2
"""A lost packet comes so much later (the least retransmission time of TCP)."""
NOTICE_S: Final = 8.0
"""How long a silent link seems alive; as in the real network."""
FORGOTTEN_S: Final = 60.0
REFRESH_WIDTH: Final = 20

log = structlog.get_logger(__name__)

Latency = float | Callable[[PeerId, PeerId], float]


class MemorySwarm:
    """The network itself: who is there, who reaches whom, and how fast."""

    def __init__(
        self,
        rng: random.Random,
        *,
        latency_s: Latency = 0.0,
        loss: float = 0.0,
        bytes_per_s: float | None = None,
        notice_s: float = NOTICE_S,
    ) -> None:
        """`latency_s`: one way, for all links or as a function of (from, to). `loss`: share of chunks that come
        RETRANSMIT_S late. `bytes_per_s`: of each link and direction; None for no limit."""
        self._rng = rng
        self._latency = latency_s
        self._loss = loss
        self._bytes_per_s = bytes_per_s
        self._notice_s = notice_s
        self._nodes: dict[PeerId, MemoryNetwork] = {}
        self._links: dict[tuple[PeerId, PeerId], Link] = {}
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
                return  # the nursery wraps what the caller's own block raised; let it go on as it was
            raise

    def node(self, identity: Identity, holder: bool = True) -> MemoryNetwork:
        """A new node. One that is no `holder` has no address: it dials, and nobody dials it."""
        self._made += 1
        address = f"/ip4/10.{self._made >> 16 & 255}.{self._made >> 8 & 255}.{self._made & 255}/tcp/4001"
        node = MemoryNetwork(self, identity, (address,) if holder else ())
        self._nodes[node.peer_id] = node
        return node

    # -- what can go wrong -----------------------------------------------------------------------------------------------

    def kill(self, peer: PeerId) -> None:
        """The process is gone at once: its handlers stop, its links break, new dials are refused."""
        links = self._links_of(peer)
        node = self._nodes.pop(peer, None)
        if node is not None:
            node.stop()
        for link in links:
            link.sever()

    def cut_silently(self, a: PeerId, b: PeerId) -> None:
        """Packets between the two vanish; both notice after `notice_s`."""
        pair = _pair(a, b)
        self._cuts.add(pair)
        if pair in self._links:
            self._links[pair].cut()

    def partition(self, a: Iterable[PeerId], b: Iterable[PeerId]) -> None:
        """Packets between the two groups vanish."""
        others = tuple(b)
        for one in a:
            for other in others:
                self.cut_silently(one, other)

    def heal(self) -> None:
        """All packets pass again. Links that were given up stay broken; the others go on where they were."""
        self._cuts.clear()
        for link in self._links.values():
            if link.cut_at is not None:
                link.mend()

    # -- for the nodes -----------------------------------------------------------------------------------------------------

    def latency(self, a: PeerId, b: PeerId) -> float:
        """One-way seconds."""
        return self._latency if isinstance(self._latency, float | int) else self._latency(a, b)

    def is_cut(self, a: PeerId, b: PeerId) -> bool:
        """Do packets between the two vanish?"""
        return _pair(a, b) in self._cuts

    def alive(self, peer: PeerId) -> MemoryNetwork | None:
        return self._nodes.get(peer)

    def link(self, a: PeerId, b: PeerId) -> Link | None:
        """The live connection of the two."""
        found = self._links.get(_pair(a, b))
        if found is not None and found.dead:
            del self._links[_pair(a, b)]
            return None
        return found

    def links_of(self, peer: PeerId) -> list[Link]:
        """Its live connections."""
        return [link for link in self._links_of(peer) if not link.dead]

    async def dial(self, a: PeerId, b: PeerId) -> Link:
        """Connect; waits for ever across a cut, as packets without an answer do."""
        await self._round_trips(a, b, CONNECT_ROUND_TRIPS)
        if b not in self._nodes:
            raise Unreachable(f"no way to {b}: connection refused", refused=True)
        if a not in self._nodes:
            raise Unreachable("this node was killed")
        link = self.link(a, b)
        if link is None:
            low, high = _pair(a, b)
            link = self._links[low, high] = Link(low, high, self._delay, self._notice_s)
            self._nodes[a].met(b)
            self._nodes[b].met(a)
        return link

    async def open(self, link: Link, opener: PeerId, protocol: str) -> MemoryStream:
        """Ask the other end for a stream."""
        other = link.other(opener)
        await self._round_trips(opener, other, OPEN_ROUND_TRIPS)
        server = self._nodes.get(other)
        if server is None or link.dead:
            raise Unreachable(f"no way to {other}: the connection broke")
        assert self._nursery is not None
        ours, theirs = stream_pair(link, opener, protocol)
        server.accept(self._nursery, theirs)
        return ours

    async def _round_trips(self, a: PeerId, b: PeerId, count: int) -> None:
        late = RETRANSMIT_S if self._rng.random() < self._loss else 0.0
        await trio.sleep(2 * count * self.latency(a, b) + late)
        if _pair(a, b) in self._cuts:
            await trio.sleep_forever()

    def _delay(self, sender: PeerId, receiver: PeerId, size: int) -> tuple[float, float]:
        """Seconds that `size` bytes are under way, and seconds that they keep the line busy."""
        late = RETRANSMIT_S if self._loss and self._rng.random() < self._loss else 0.0
        on_the_line = size / self._bytes_per_s if self._bytes_per_s else 0.0
        return self.latency(sender, receiver) + late, on_the_line

    def _links_of(self, peer: PeerId) -> list[Link]:
        node = self._nodes.get(peer)
        others = (
            node.others()
            if node is not None
            else [end for pair in self._links if peer in pair for end in pair]
        )
        return [link for other in others if (link := self._links.get(_pair(peer, other))) is not None]


class MemoryNetwork:
    """One node of the simulated network, as `swarm.network.Network` describes it."""

    def __init__(self, swarm: MemorySwarm, identity: Identity, addresses: tuple[Address, ...]) -> None:
        self._swarm = swarm
        self._identity = identity
        self._addresses = addresses
        self._handlers: dict[str, Handler] = {}
        self._limits = InboundLimits()
        self._serving: set[trio.CancelScope] = set()
        self._book: dict[PeerId, set[Address]] = {}
        self._table: dict[PeerId, tuple[int, Contact]] = {}
        self._forgotten: dict[PeerId, float] = {}
        self._met: dict[PeerId, None] = {}

    @property
    def peer_id(self) -> PeerId:
        return self._identity.peer_id

    @property
    def addresses(self) -> tuple[Address, ...]:
        return self._addresses

    def sign(self, body: bytes) -> bytes:
        return self._identity.sign(body)

    def handle(self, protocol: str, handler: Handler) -> None:
        if protocol in self._handlers:
            raise LocalProtocolError(f"{protocol} has a handler already")
        self._handlers[protocol] = handler

    # -- connections and streams -------------------------------------------------------------------------------------------

    async def connect(self, peer: PeerId, addresses: Sequence[Address], *, patience_s: float = 5.0) -> None:
        try:
            with trio.fail_after(patience_s):
                await self._link(peer, addresses)
        except trio.TooSlowError as error:
            raise Unreachable(f"{peer} did not answer within {patience_s:g} s") from error

    async def open(
        self, peer: PeerId, protocol: str, addresses: Sequence[Address] = (), *, patience_s: float = 5.0
    ) -> MemoryStream:
        try:
            with trio.fail_after(patience_s):
                link = await self._link(peer, addresses)
                return await self._swarm.open(link, self.peer_id, protocol)
        except trio.TooSlowError as error:
            raise Unreachable(f"{peer} did not answer within {patience_s:g} s") from error

    async def _link(self, peer: PeerId, addresses: Sequence[Address]) -> Link:
        await trio.lowlevel.checkpoint()
        if peer == self.peer_id:
            raise Unreachable("that is this node itself")
        found = self._swarm.link(self.peer_id, peer)
        if found is not None:
            return found
        known = self._book.setdefault(peer, set())
        known.update(addresses)
        if not known:
            raise Unreachable(f"no way to {peer}: no address of it is known")
        target = self._swarm.alive(peer)
        if target is not None and not known.intersection(target.addresses):
            raise Unreachable(
                f"no way to {peer}: nobody, or somebody else, answers at {', '.join(sorted(known))}"
            )
        return await self._swarm.dial(self.peer_id, peer)

    async def disconnect(self, peer: PeerId) -> None:
        link = self._swarm.link(self.peer_id, peer)
        if link is not None:
            link.sever()
        await trio.lowlevel.checkpoint()

    def connected(self) -> tuple[PeerId, ...]:
        return tuple(link.other(self.peer_id) for link in self._swarm.links_of(self.peer_id))

    # -- for the swarm -----------------------------------------------------------------------------------------------------

    def remote_address(self, peer: PeerId) -> Address | None:
        other = self._swarm.alive(peer)
        return (
            other.addresses[0] if other is not None and other.addresses and peer in self.connected() else None
        )

    def met(self, peer: PeerId) -> None:
        """A link with `peer` has come about."""
        self._met[peer] = None

    def others(self) -> tuple[PeerId, ...]:
        """Everybody there ever was a link with."""
        return tuple(self._met)

    def accept(self, nursery: trio.Nursery, stream: MemoryStream) -> None:
        """Serve one inbound stream. Unreachable, for the opener, when it is not served at all."""
        handler = self._handlers.get(stream.protocol)
        if handler is None:
            raise Unreachable(f"no way to {self.peer_id}: it does not speak {stream.protocol}")
        place = self._limits.arriving(stream.peer)
        if not place.__enter__():
            raise Unreachable(f"no way to {self.peer_id}: it takes no more streams from this node")

        async def serve() -> None:
            scope = trio.CancelScope()
            self._serving.add(scope)
            try:
                with scope, self._limits.speaking(stream.peer, stream.protocol) as granted:
                    if granted:
                        await handler(stream)
                        await stream.aclose()
                        return
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                log.debug("inbound stream failed", peer=stream.peer, protocol=stream.protocol)
            except SarkError as error:
                log.info("inbound stream refused", peer=stream.peer, protocol=stream.protocol, why=error.what)
            except Exception:  # as in the real network: a handler's bug costs its stream, not the node
                log.exception(
                    "a handler failed; its stream is reset", peer=stream.peer, protocol=stream.protocol
                )
            finally:
                self._serving.discard(scope)
                place.__exit__(None, None, None)
            stream.drop()

        nursery.start_soon(serve)

    def stop(self) -> None:
        """Killed: every handler stops where it is."""
        for scope in tuple(self._serving):
            scope.cancel()

    # -- the routing table -------------------------------------------------------------------------------------------------

    def closest(self, key: bytes, count: int) -> tuple[Contact, ...]:
        target = int.from_bytes(key, "big")
        near = heapq.nsmallest(count, self._table.values(), key=lambda entry: entry[0] ^ target)
        return tuple(contact for _, contact in near)

    def learn(self, contact: Contact) -> None:
        if not contact.holder or contact.peer == self.peer_id or not contact.addresses:
            return
        self._forgotten.pop(contact.peer, None)
        self._book.setdefault(contact.peer, set()).update(contact.addresses)
        self._table[contact.peer] = (int.from_bytes(routing_key(contact.peer), "big"), contact)

    def forget(self, peer: PeerId) -> None:
        self._table.pop(peer, None)
        self._forgotten[peer] = trio.current_time() + FORGOTTEN_S

    async def refresh(self) -> None:
        """Ask the peers nearest to us, and so on, until nobody nearer turns up; then look for a few far ones."""
        await trio.lowlevel.checkpoint()
        me = routing_key(self.peer_id)
        for key in (
            me,
            bytes([me[0] ^ 0x80]) + me[1:],
            bytes([me[0] ^ 0x40]) + me[1:],
            bytes([me[0] ^ 0x20]) + me[1:],
        ):
            await self._look_up(key)

    async def _look_up(self, key: bytes) -> None:
        asked: set[PeerId] = set()
        while True:
            nearest = [c.peer for c in self.closest(key, REFRESH_WIDTH) if c.peer not in asked][:8]
            if not nearest:
                return
            await trio.sleep(max(2 * self._swarm.latency(self.peer_id, peer) for peer in nearest))
            for peer in nearest:
                asked.add(peer)
                server = self._swarm.alive(peer)
                if server is None or self._swarm.is_cut(self.peer_id, peer):
                    self.forget(peer)
                    continue
                server.learn(Contact(self.peer_id, self.addresses, holder=bool(self.addresses)))
                for contact in server.closest(key, REFRESH_WIDTH):
                    if self._forgotten.get(contact.peer, 0.0) <= trio.current_time():
                        self.learn(contact)


def _pair(a: PeerId, b: PeerId) -> tuple[PeerId, PeerId]:
    return (a, b) if a < b else (b, a)
