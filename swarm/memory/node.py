"""One node of the simulated network: what `memory.MemorySwarm.node` gives."""

from __future__ import annotations

import ipaddress
import math
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import structlog
import trio

from protocol.errors import LocalProtocolError, SarkError, Unreachable
from swarm.memory.gate import MemoryGate
from swarm.memory.streams import MemoryLink, MemoryStream
from swarm.memory.table import MemoryTable
from swarm.net.addresses import Address, Circuit, Contact, PeerId, circuits, parse_circuit, parse_tcp
from swarm.net.identity import Identity, routing_key
from swarm.net.limits import InboundLimits
from swarm.net.network import Handler, Path, Reservation
from swarm.net.reservations import RelayReservations
from swarm.p2p.dial_rules import DialRules

if TYPE_CHECKING:
    from swarm.memory.network import MemorySwarm

HEAD_START_S: Final = 0.25
"""Of direct addresses over circuits."""
REFRESH_WIDTH: Final = 20
_EVERYWHERE: Final = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))

log = structlog.get_logger(__name__)


class MemoryNetwork:
    """One node of the simulated network, as `swarm.network.Network` describes it."""

    def __init__(
        self, swarm: MemorySwarm, identity: Identity, addresses: tuple[Address, ...], behind: str | None
    ) -> None:
        self.behind = behind
        """The NAT it sits behind."""
        self.gate: MemoryGate | None = None
        """What makes it a relay."""
        self._places: dict[PeerId, tuple[MemoryLink, float, Reservation]] = {}
        self._swarm = swarm
        self._identity = identity
        self._addresses = addresses
        self._handlers: dict[str, Handler] = {}
        self._limits = InboundLimits()
        self._serving: set[trio.CancelScope] = set()
        self._table = MemoryTable(identity.peer_id)
        self._met: dict[PeerId, None] = {}
        self._called_at = -math.inf
        self._rules = DialRules(networks=lambda: _EVERYWHERE)
        self.routes = True

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

    async def connect(self, peer: PeerId, addresses: Sequence[Address], *, max_wait_s: float = 5.0) -> None:
        try:
            with trio.fail_after(max_wait_s):
                await self._link(peer, addresses)
        except trio.TooSlowError as error:
            raise Unreachable(f"{peer} did not answer within {max_wait_s:g} s") from error

    async def open(
        self, peer: PeerId, protocol: str, addresses: Sequence[Address] = (), *, max_wait_s: float = 5.0
    ) -> MemoryStream:
        try:
            with trio.fail_after(max_wait_s):
                link = await self._link(peer, addresses)
                return await self._swarm.open(link, self.peer_id, protocol)
        except trio.TooSlowError as error:
            raise Unreachable(f"{peer} did not answer within {max_wait_s:g} s") from error

    async def _link(self, peer: PeerId, addresses: Sequence[Address]) -> MemoryLink:
        await trio.lowlevel.checkpoint()
        if peer == self.peer_id:
            raise Unreachable("that is this node itself")
        found = self._swarm.link(self.peer_id, peer)
        if found is not None:
            return found
        known = self._table.book(peer)
        known.update(address for address in addresses if parse_circuit(address) is None)
        through = circuits(addresses)
        if not known and not through:
            raise Unreachable(f"no way to {peer}: no address of it is known")
        if not through:
            return await self._dial(peer, known)
        return await self._first(peer, known, through)

    async def _dial(self, peer: PeerId, known: set[Address]) -> MemoryLink:
        target = self._swarm.alive(peer)
        own = target.addresses if target is not None else ()
        for address in sorted(known.difference(own)):
            if not self._rules.why_not(trio.current_time(), peer, address):
                self._swarm.strays[address] += 1
        if target is not None and not known.intersection(own):
            raise Unreachable(
                f"no way to {peer}: nobody, or somebody else, answers at {', '.join(sorted(known))}"
            )
        return await self._swarm.dial(self.peer_id, peer)

    async def _first(self, peer: PeerId, known: set[Address], through: tuple[Circuit, ...]) -> MemoryLink:
        """The first link that comes about: direct, or after its head start through a gate."""
        found: list[MemoryLink] = []
        failed: list[str] = []

        async def attempt(scope: trio.CancelScope, circuit: Circuit | None, delay_s: float) -> None:
            await trio.sleep(delay_s)
            try:
                if circuit is None:
                    found.append(await self._dial(peer, known))
                else:
                    await self._near(circuit.gate, [circuit.address])
                    found.append(await self._swarm.call(self.peer_id, peer, circuit.gate))
            except SarkError as error:
                failed.append(error.what)
            else:
                scope.cancel()

        async with trio.open_nursery() as nursery:
            if known:
                nursery.start_soon(attempt, nursery.cancel_scope, None, 0.0)
            for circuit in through:
                nursery.start_soon(attempt, nursery.cancel_scope, circuit, HEAD_START_S if known else 0.0)
        if not found:
            raise Unreachable(f"no way to {peer}: {'; '.join(failed)}")
        return found[0]

    async def _near(self, gate: PeerId, addresses: Sequence[Address]) -> MemoryLink:
        """A direct link with a gate."""
        found = self._swarm.direct(self.peer_id, gate)
        if found is not None:
            return found
        known = self._table.book(gate)
        known.update(addresses)
        if not known:
            raise Unreachable(f"no way to {gate}: no address of it is known")
        return await self._dial(gate, known)

    async def disconnect(self, peer: PeerId) -> None:
        while (link := self._swarm.link(self.peer_id, peer)) is not None:
            link.sever()
        await trio.lowlevel.checkpoint()

    def connected(self) -> tuple[PeerId, ...]:
        found = (link.other(self.peer_id) for link in self._swarm.links_of(self.peer_id))
        return tuple(dict.fromkeys(found))

    def remote_address(self, peer: PeerId) -> Address | None:
        other = self._swarm.alive(peer)
        return (
            other.addresses[0]
            if other is not None and other.addresses and self._swarm.direct(self.peer_id, peer) is not None
            else None
        )

    def path(self, peer: PeerId) -> Path | None:
        link = self._swarm.link(self.peer_id, peer)
        if link is None:
            return None
        return Path(link.via is None, link.via, 2000 * self._swarm.one_way(self.peer_id, peer, link.via))

    async def knock(self, peer: PeerId, address: Address, *, max_wait_s: float = 3.0) -> bool:
        with trio.move_on_after(max_wait_s):
            return await self._swarm.knock(self.peer_id, peer, address)
        return False

    @property
    def called_at(self) -> float:
        return self._called_at

    def called(self) -> None:
        """Somebody has dialled it."""
        self._called_at = trio.current_time()

    # -- gates as relays -----------------------------------------------------------------------------------------------------

    async def reserve(
        self, gate: PeerId, addresses: Sequence[Address] = (), *, max_wait_s: float = 5.0
    ) -> Reservation:
        try:
            with trio.fail_after(max_wait_s):
                link = await self._near(gate, addresses)
                await self._swarm.ask(self.peer_id, gate)
        except trio.TooSlowError as error:
            raise Unreachable(f"{gate} did not answer within {max_wait_s:g} s") from error
        server = self._swarm.alive(gate)
        if server is None or link.dead:
            raise Unreachable(f"no way to {gate}: the connection broke")
        if server.gate is None:
            raise Unreachable(f"no way to {gate}: it lends no places")
        reservation = server.gate.lend(self.peer_id, self.seen_ip)
        self._places[gate] = (link, trio.current_time() + reservation.ttl_s, reservation)
        return reservation

    def reservations(self) -> tuple[Reservation, ...]:
        now = trio.current_time()
        return tuple(r for link, until, r in self._places.values() if until > now and not link.dead)

    def serve_relay(self, desk: RelayReservations) -> None:
        if self.gate is not None or not self._addresses:
            raise LocalProtocolError("this node is a relay already, or has no address")
        self.gate = MemoryGate(self.peer_id, self._addresses[0], desk)

    # -- for the swarm -----------------------------------------------------------------------------------------------------

    @property
    def seen_ip(self) -> str:
        """Where its packets are seen to come from: all of a NAT from one address."""
        address = parse_tcp(self._addresses[0]) if self._addresses and self.behind is None else None
        if address is not None:
            return address.host
        return f"192.0.2.{zlib.crc32((self.behind or self.peer_id).encode()) % 256}"

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

    def route(self, serve: bool) -> None:
        self.routes = serve

    # -- the routing table -------------------------------------------------------------------------------------------------

    def closest(self, key: bytes, count: int) -> tuple[Contact, ...]:
        return self._table.closest(key, count)

    def learn(self, contact: Contact) -> None:
        self._table.learn(contact)

    def forget(self, peer: PeerId) -> None:
        self._table.forget(peer)

    async def refresh(self) -> None:
        """Ask the peers nearest to us, and so on, until nobody nearer turns up; then look for a few far ones."""
        await trio.lowlevel.checkpoint()
        me = routing_key(self.peer_id)
        for flip in (0, 0x80, 0x40, 0x20):
            await self._look_up(bytes([me[0] ^ flip]) + me[1:])

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
                if server is None or not server.routes or not self._swarm.dialable(self.peer_id, peer):
                    self.forget(peer)
                    continue
                if self.behind is None and self.routes:
                    server.learn(Contact(self.peer_id, self.addresses, holder=bool(self.addresses)))
                for contact in server.closest(key, REFRESH_WIDTH):
                    self._table.hear_of(contact)
