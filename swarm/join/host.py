"""The network between real processes: libp2p behind the interface of `swarm.net.network`. `open_host` starts a `HostNetwork`."""

from __future__ import annotations

import contextlib
import errno
import math
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

import structlog
import trio
from libp2p.abc import INetStream
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.exceptions import BaseLibp2pError
from libp2p.network.config import RetryConfig
from libp2p.network.exceptions import SwarmException
from libp2p.network.stream.net_stream import NetStream
from libp2p.peer.id import ID
from libp2p.transport.tcp.tcp import TCP
from multiaddr import Multiaddr

from protocol.errors import LocalProtocolError, ResourceError, Unreachable
from swarm.base.logs import strangers_known
from swarm.join.bootstrap import BootstrapKeeper, Gates
from swarm.net.addresses import (
    Address,
    PeerId,
    TcpAddress,
    check_listen,
    dialled,
    expand_wildcards,
    gate_contacts,
    parse_tcp,
    public_network,
    usable,
)
from swarm.net.cost import PeerClass
from swarm.net.governor import Governor
from swarm.net.identity import Identity, peer_id_bytes
from swarm.net.interfaces import INTERFACES, InterfaceAddress
from swarm.net.network import Handler, Path, Reservation
from swarm.net.reservations import RelayReservations
from swarm.net.routing_table import RoutingTable
from swarm.p2p import hardening
from swarm.p2p.connection_gater import ConnectionGater
from swarm.p2p.dial_rules import DialRules
from swarm.p2p.dialler import STREAM_ERRORS, AllAddressesRefused, NodeSwarm
from swarm.p2p.node_host import NodeHost
from swarm.p2p.peerstore import BoundedPeerStore
from swarm.p2p.stream import NodeStream
from swarm.p2p.yamux import BoundedYamux
from swarm.relay.service import Relays

ADDRESS_TTL_S: Final = 7200
MAX_DIALLED: Final = 8
"""How many direct addresses of one peer are tried at once."""
OWN_ADDRESSES_S: Final = 1.0
"""How long the list of this machine's own addresses is cached."""
CLOSE_WITHIN_S: Final = 0.6
ENDED_EVERY_S: Final = 10.0
"""Between two log lines about peers that took too much memory."""

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class HostNetwork:
    """A started libp2p node: a `swarm.net.network.Network`."""

    identity: Identity
    host: NodeHost
    swarm: NodeSwarm

    def __post_init__(self) -> None:
        self.table = RoutingTable(self.identity.peer_id)
        shared = hardening.muxers_of(self.swarm.upgrader)
        self.governor = Governor(self._network_of, shared.memory)
        shared.stream_turn = lambda peer: self.governor.payer(peer).stream_turn()
        self.governor.memory.end = self._end
        self._ended_at = -math.inf
        self._relays = Relays(
            self.identity.peer_id, self.host, self.swarm, self.handle, lambda: self.addresses
        )
        self._addresses: tuple[Address, ...] = ()
        self._interfaces: tuple[InterfaceAddress, ...] | None = None
        """The interfaces' addresses from which `_addresses` was made."""
        self._listed_at = -math.inf
        self.given: set[Address] = set()
        """Addresses from this node's owner."""

    @property
    def peer_id(self) -> PeerId:
        return self.identity.peer_id

    @property
    def addresses(self) -> tuple[Address, ...]:
        now = trio.current_time()
        if now - self._listed_at >= OWN_ADDRESSES_S:
            self._listed_at = now
            with contextlib.suppress(OSError):  # out of open files, for example: keep the last list
                interfaces = INTERFACES.addresses()
                if interfaces != self._interfaces:  # the listening addresses stay the same
                    self._addresses = usable(self.host.get_addrs())
                    self._interfaces = interfaces
        return self._addresses

    def sign(self, body: bytes) -> bytes:
        return self.identity.sign(body)

    def handle(self, protocol: str, handler: Handler) -> None:
        if TProtocol(protocol) in self.host.multiselect.handlers:
            raise LocalProtocolError(f"{protocol} has a handler already")

        async def serve(inner: INetStream) -> None:
            assert isinstance(inner, NetStream)
            stream = NodeStream(inner, protocol, opened_by_peer=True)
            await handler(stream)
            await stream.aclose()

        self.host.set_stream_handler(TProtocol(protocol), serve)

    # -- connections and streams ---------------------------------------------------------------------------------------

    async def connect(self, peer: PeerId, addresses: Sequence[Address], *, max_wait_s: float = 5.0) -> None:
        with _translated(peer, max_wait_s):
            await self._reach(_peer(peer), addresses)

    async def open(
        self, peer: PeerId, protocol: str, addresses: Sequence[Address] = (), *, max_wait_s: float = 5.0
    ) -> NodeStream:
        with _translated(peer, max_wait_s):
            target = _peer(peer)
            await self._reach(target, addresses)
            return NodeStream(await self.host.new_stream(target, [TProtocol(protocol)]), protocol)

    async def _reach(self, peer: ID, addresses: Sequence[Address]) -> None:
        if peer == self.host.get_id():
            raise SwarmException("that is this node itself")
        store = self.host.get_peerstore()
        given = usable(addresses)
        if given:
            store.add_addrs(peer, [Multiaddr(address) for address in given], ADDRESS_TTL_S)
        stored = usable(store.addrs(peer)) if store.has_peer(peer) else ()
        circuits = self._relays.circuits(peer, addresses)
        contact = self.table.get(str(peer))
        learned = contact.addresses if contact is not None else ()
        direct = tuple(dict.fromkeys((*given, *stored, *usable(learned))))[:MAX_DIALLED]
        await self.swarm.reach(peer, (*direct, *circuits))

    def owner_gave(self, addresses: Iterable[Address]) -> None:
        self.given.update(dialled(addresses))

    async def disconnect(self, peer: PeerId) -> None:
        await self.swarm.close_peer(_peer(peer))

    def connected(self) -> tuple[PeerId, ...]:
        return tuple(str(peer) for peer in self.swarm.connections if self.swarm.live(peer) is not None)

    def remote_address(self, peer: PeerId) -> Address | None:
        connection = self.swarm.live(_peer(peer))
        if connection is None:
            return None
        return next(iter(usable(connection.get_transport_addresses())), None)

    def _end(self, peer: PeerId, size: int) -> None:
        """Close all connections of a peer that takes too much memory; logs this at intervals."""
        now = trio.current_time()
        if now - self._ended_at >= ENDED_EVERY_S:
            self._ended_at = now
            log.warning("memory.full", peer=peer, took=size)
        for connection in self.swarm.connections.get(_peer(peer), ()):
            muxed = connection.muxed_conn
            if isinstance(muxed, BoundedYamux):
                muxed.later(muxed.cut)

    def _network_of(self, peer: PeerId) -> str:
        """The public network from which `peer` is connected; empty on loopback, on a LAN, and through a gate, which has its own limits."""
        observed = self.remote_address(peer)
        return "" if observed is None else public_network([observed])

    def stranger_from(self, peer: PeerId) -> str | None:
        """The public network of a stranger, empty if it has none; None for a peer that the role knows."""
        if peer == self.peer_id or self.governor.class_of(peer) is not PeerClass.STRANGER:
            return None
        try:
            return self._network_of(peer)
        except Unreachable:  # not a peer id
            return ""

    async def knock(self, peer: PeerId, address: Address, *, max_wait_s: float = 3.0) -> bool:
        with trio.move_on_after(max_wait_s):
            try:
                await self.swarm.knock(_peer(peer), address)
            except (*STREAM_ERRORS, OSError, Unreachable):
                return False
            return True
        return False

    @property
    def called_at(self) -> float:
        return self.swarm.called_at

    # -- gates as relays -----------------------------------------------------------------------------------------------

    def path(self, peer: PeerId) -> Path | None:
        return self._relays.path(_peer(peer))

    async def reserve(
        self, gate: PeerId, addresses: Sequence[Address] = (), *, max_wait_s: float = 5.0
    ) -> Reservation:
        with _translated(gate, max_wait_s):
            return await self._relays.reserve(gate, addresses)

    def reservations(self) -> tuple[Reservation, ...]:
        return self._relays.client.reservations()

    def serve_relay(self, reservations: RelayReservations) -> None:
        self._relays.serve(reservations, self.remote_address)


@asynccontextmanager
async def open_host(
    identity: Identity,
    *,
    listen: Sequence[Address] = (),
    announce: Sequence[Address] = (),
    bootstrap: Gates = (),
    fallback: Callable[[], Sequence[str]] | None = None,
    rng: random.Random | None = None,
    gater: ConnectionGater | None = None,
) -> AsyncIterator[HostNetwork]:
    """Start a node and yield it once it listens; leaving the context stops it (in under a second).

    `listen`: multiaddrs such as `/ip4/0.0.0.0/tcp/4001`, or none for a node that only dials; `announce`: addresses to announce instead of
    the interfaces' (a forwarded port); `bootstrap`: gates `/ip4/…/tcp/…/p2p/12D3Koo…` to stay connected to, or a function that looks them
    up; `fallback`: returns peers, in the same form, to use when no gate answers; `gater`: decides who may connect.

    Raises `ResourceError` if a port is not available or an address is invalid.
    """
    addresses = check_listen(listen)
    if not callable(bootstrap):
        gate_contacts(bootstrap)  # raises for an invalid one before anything is started
    hardening.harden()
    _probe_ports(listen)
    stop = trio.Event()

    async def run(*, task_status: trio.TaskStatus[HostNetwork]) -> None:
        """Run the node. Once started, only `stop` stops it, so that a cancelled caller leaves no socket open."""
        host, swarm = _new_host(identity, announce, gater)
        with trio.CancelScope() as scope:
            async with host.run(listen_addrs=addresses):
                try:
                    _check_listening(swarm, addresses)
                    network = HostNetwork(identity, host, swarm)
                    keeper = BootstrapKeeper(network, bootstrap, rng or random.Random(), fallback)
                    swarm.rules = DialRules(
                        listening=lambda: network.addresses,
                        given=lambda address: address in network.given or keeper.gives(address),
                    )
                    network._relays.on_disconnect = keeper.disconnected
                    await keeper.join_first()
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(keeper.run)
                        scope.shield = True
                        task_status.started(network)
                        await stop.wait()
                        nursery.cancel_scope.cancel()
                finally:
                    with trio.CancelScope(shield=True):
                        await swarm.close_all(CLOSE_WITHIN_S)

    try:
        async with trio.open_nursery() as nursery:
            network: HostNetwork = await nursery.start(run)
            try:
                with strangers_known(network.stranger_from):
                    yield network
            finally:
                stop.set()
    except BaseExceptionGroup as group:
        # the nursery wraps the exception of the caller's own block; raise it unwrapped
        raise _unwrap(group) from None


def _new_host(
    identity: Identity, announce: Sequence[Address], gater: ConnectionGater | None
) -> tuple[NodeHost, NodeSwarm]:
    keys = create_new_key_pair(identity.seed)
    upgrader = hardening.noise_and_yamux(keys)
    hardening.assert_closed(upgrader)
    me = ID(peer_id_bytes(identity.peer_id))
    store = BoundedPeerStore(me, keys)
    swarm = NodeSwarm(
        me,
        store,
        upgrader,
        transports=[TCP()],
        retry_config=RetryConfig(max_retries=0),  # a refused port is refused at once
        connection_config=hardening.connection_config(),
        gater=gater,
    )
    hardening.guard(upgrader, swarm.gater)
    store.connected = lambda peer: peer in swarm.connections
    fixed = [Multiaddr(address) for address in announce]

    def announced(listening: list[Multiaddr]) -> list[Multiaddr]:
        return fixed or [
            Multiaddr(address) for address in expand_wildcards(str(entry) for entry in listening)
        ]

    host = NodeHost(
        swarm, negotiate_timeout=10, addrs_factory=announced, disable_identify_address_discovery=True
    )
    return host, swarm


def _unwrap(error: BaseException) -> BaseException:
    """The single error in nested groups; the group itself if there are several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@contextmanager
def _translated(peer: PeerId, max_wait_s: float) -> Iterator[None]:
    """Translate libp2p's errors and timeouts into `Unreachable`, in this one place."""
    try:
        with trio.fail_after(max_wait_s):
            yield
    except trio.TooSlowError as error:
        raise Unreachable(f"{peer} did not answer within {max_wait_s:g} s") from error
    except BaseLibp2pError as error:
        refused = isinstance(error, AllAddressesRefused)
        raise Unreachable(f"cannot reach {peer}: {error}", refused=refused) from error


def _peer(peer: PeerId) -> ID:
    try:
        return ID(peer_id_bytes(peer))
    except ValueError as error:
        raise Unreachable(str(error)) from error


def _probe_ports(listen: Sequence[Address]) -> None:
    """Check that each port is free. libp2p shares ports (SO_REUSEPORT), so two nodes would silently split the connections."""
    for text in listen:
        address = parse_tcp(text)
        assert address is not None
        if address.port == 0:
            continue
        family = socket.AF_INET6 if address.family == "ip6" else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address.host, address.port))
            except OSError as error:
                # connections of a node that stopped a moment ago make this kind of bind fail, and do no harm
                if error.errno != errno.EADDRINUSE or _answers(address):
                    raise _cannot_listen(address.port, text, error) from error


def _answers(address: TcpAddress) -> bool:
    """Whether somebody accepts connections at the address."""
    host = address.host
    if address.ip is not None and address.ip.is_unspecified:
        host = "::1" if address.family == "ip6" else "127.0.0.1"
    try:
        socket.create_connection((host, address.port), timeout=0.5).close()
    except OSError:
        return False
    return True


def _cannot_listen(port: int, address: str, error: OSError) -> ResourceError:
    if error.errno == errno.EADDRINUSE:
        return ResourceError(
            f"port {port} is taken",
            hint="choose another with --listen /ip4/0.0.0.0/tcp/PORT (a gate: --port), or stop what listens there",
        )
    if error.errno == errno.EACCES:
        return ResourceError(
            f"port {port} needs more privileges", hint="choose a port above 1023 with --listen"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return ResourceError(
            f"{address} is not an address of this machine", hint=f"listen on /ip4/0.0.0.0/tcp/{port}"
        )
    return ResourceError(f"cannot listen on {address}: {error.strerror}", hint="choose another with --listen")


def _check_listening(swarm: NodeSwarm, listen: Sequence[Multiaddr]) -> None:
    missing = [str(address) for address in listen if str(address) not in swarm.listeners]
    if missing:
        raise ResourceError(f"cannot listen on {missing[0]}", hint="choose another address with --listen")
