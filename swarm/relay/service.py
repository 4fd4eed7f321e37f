"""Combines the parts of relaying, for a node and for a gate: reservations, circuits, hole punching and the path to a peer."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio
from libp2p.abc import INetConn, INetwork, INotifee
from libp2p.custom_types import TProtocol
from libp2p.exceptions import BaseLibp2pError
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.peer.id import ID

from protocol.errors import LocalProtocolError, RemoteProtocolError, Unreachable
from swarm.net.addresses import Address, Circuit, PeerId, circuits, usable
from swarm.net.identity import peer_id_bytes
from swarm.net.network import Handler, Path, Reservation, Stream
from swarm.net.reservations import RelayReservations
from swarm.p2p.dialler import NodeSwarm, is_relayed
from swarm.p2p.node_host import NodeHost
from swarm.p2p.stream import NodeStream
from swarm.p2p.yamux import BoundedYamux
from swarm.relay.client import RelayClient, StopServer
from swarm.relay.data_connections import DataConnections
from swarm.relay.hole_punch import Puncher
from swarm.relay.hop import RelayHop
from swarm.relay.wire import DCUTR, HOP, OWN_HOP, OWN_STOP, STOP

OWN_PROTOCOLS: Final = "/sark/"
LOOKS: Final = 40
LOOK_EVERY_S: Final = 0.05
"""How often, and at what interval, a gate checks whether a fresh peer has said which protocols it speaks."""
MAX_REMEMBERED: Final = 4096


@dataclass(eq=False)
class Relays(INotifee):
    """The relay parts of one host."""

    me: PeerId
    host: NodeHost
    swarm: NodeSwarm
    handle: Callable[[str, Handler], None]
    listening: Callable[[], Sequence[Address]]
    """This node's own addresses."""
    wall: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.client = RelayClient(self.swarm, self._open_on, self.wall)
        self.on_disconnect: Callable[[], object] = lambda: None
        """Called when a connection has ended."""
        self._accepts_circuits = False
        self._relay: RelayReservations | None = None
        self._circuits: OrderedDict[ID, tuple[Circuit, ...]] = OrderedDict()
        store = self.host.get_peerstore()
        self._puncher = Puncher(
            self.swarm,
            self._open_on,
            observed=lambda: tuple(self.client.observed.values()),
            listening=self.listening,
            addresses=lambda peer: usable(store.addrs(peer)) if store.has_peer(peer) else (),
        )
        self.swarm.dial_circuit = self.client.call
        self.handle(DCUTR, self._puncher.serve)
        self.swarm.register_notifee(self)

    # -- as a node -----------------------------------------------------------------------------------------------------

    def circuits(self, peer: ID, addresses: Sequence[Address]) -> tuple[Address, ...]:
        """The circuits among `addresses`; if there are none, those given last."""
        given = circuits(addresses)
        if given:
            self._circuits.pop(peer, None)
            self._circuits[peer] = given
            if len(self._circuits) > MAX_REMEMBERED:
                self._circuits.popitem(last=False)
        return tuple(map(str, given or self._circuits.get(peer, ())))

    async def reserve(self, gate: PeerId, addresses: Sequence[Address]) -> Reservation:
        """Like `Network.reserve`, but raises libp2p's errors if the gate cannot be reached."""
        if not self._accepts_circuits:
            self._accepts_circuits = True
            server = StopServer(self.client.holds, self.client.take, self.client.bind)
            for protocol in (STOP, OWN_STOP):
                self.handle(protocol, server.serve)
        try:
            return await self.client.reserve(gate, addresses)
        except (RemoteProtocolError, trio.BrokenResourceError) as error:
            raise Unreachable(f"the gate {gate} closed the stream: {error}") from error

    def path(self, peer: ID) -> Path | None:
        """See `Network.path`."""
        conn = self.swarm.live(peer)
        if conn is None:
            return None
        rtt_s = conn.muxed_conn.rtt_s if isinstance(conn.muxed_conn, BoundedYamux) else None
        return Path(not is_relayed(conn), gate_of(conn), None if rtt_s is None else rtt_s * 1000)

    # -- as a gate -----------------------------------------------------------------------------------------------------

    def serve(self, relay: RelayReservations, seen_at: Callable[[PeerId], Address | None]) -> None:
        """See `Network.serve_relay`. `seen_at`: the remote address of a peer's direct connection."""
        if self._relay is not None:
            raise LocalProtocolError("this node is already a relay")
        self._relay = relay
        self.swarm.gater.reserved = lambda peer: relay.holds(peer, trio.current_time())
        halves = DataConnections()
        self.swarm.recognise = halves.recognise
        hop = RelayHop(
            self.me,
            relay,
            halves,
            seen_at=seen_at,
            call=self._call,
            belongs=self._belongs,
            addresses=self.listening,
            wall=self.wall,
        )
        self.handle(HOP, hop.serve)
        self.handle(OWN_HOP, hop.serve)

    async def _call(self, peer: PeerId, protocols: Sequence[str]) -> Stream:
        conn = self.swarm.direct(ID(peer_id_bytes(peer)))
        if conn is None:
            raise Unreachable(f"no direct connection with {peer}")
        try:
            return await self._open_on(conn, protocols)
        except BaseLibp2pError as error:
            raise Unreachable(f"{peer} accepts no circuits: {error}") from error

    async def _belongs(self, peer: PeerId) -> bool:
        """Whether a peer supports a Sark protocol: it has used one, or says so. If neither is known yet, the peer is asked."""
        target, store = ID(peer_id_bytes(peer)), self.host.get_peerstore()
        for look in range(LOOKS):
            protocols = store.get_protocols(target) if store.has_peer(target) else []
            if self.host.opened(target, OWN_PROTOCOLS) or any(p.startswith(OWN_PROTOCOLS) for p in protocols):
                return True
            if not look:
                self.host.ask_who(target)
            await trio.sleep(LOOK_EVERY_S)
        return False

    async def _open_on(self, conn: SwarmConn, protocols: Sequence[str]) -> NodeStream:
        inner = await self.host.open_on(conn, [TProtocol(protocol) for protocol in protocols])
        return NodeStream(inner, inner.get_protocol() or protocols[0])

    # -- notifications from libp2p ---------------------------------------------------------------------------------------------

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:
        """End the peer's reservation with its last direct connection."""
        peer = conn.muxed_conn.peer_id
        if self._relay is not None and self.swarm.direct(peer) is None:
            self._relay.release(str(peer))
        self.on_disconnect()

    async def connected(self, network: INetwork, conn: INetConn) -> None:
        """Try to replace a circuit with a direct connection."""
        if isinstance(conn, SwarmConn):
            self._puncher.connected(conn)

    async def _ignore(self, *args: object, **kwargs: object) -> None:
        """Ignore a notification."""

    opened_stream = closed_stream = listen = listen_close = _ignore


def gate_of(conn: SwarmConn) -> PeerId | None:
    """The gate that a connection goes through; None if it is direct."""
    if not is_relayed(conn):
        return None
    for address in map(str, conn.get_transport_addresses()):
        where, mark, _ = address.partition("/p2p-circuit")
        if mark:
            return where.rpartition("/p2p/")[2]
    return None
