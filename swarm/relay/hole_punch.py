"""From a circuit to a direct connection: both nodes dial each other at the same moment, so that each one's packets open its NAT.

The two agree on the moment through the circuit (libp2p's DCUtR). The node that the circuit was dialled to begins:

    called                                     dialler
       │ CONNECT(where I may be) ────────────────▶ │
       │ ◀──────────────── CONNECT(where I may be) │     there and back takes T
       │ SYNC ───────────────────────────────────▶ │     it dials at once
       │ …T/2 later it dials                       │

Both dial from the port they listen on, to which NATs that keep ports give the same number outside. The two dials may merge into
one connection that nobody accepted; so the circuit's dialler begins Noise on it, and the called node answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

import structlog
import trio
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from libp2p.transport.exceptions import SecurityUpgradeFailure
from multiaddr import Multiaddr

from protocol.errors import RemoteProtocolError
from swarm.net.addresses import Address, from_wire, parse_tcp, usable
from swarm.net.network import Stream
from swarm.p2p.dialler import STREAM_ERRORS, NodeSwarm, OpenOn, is_relayed
from swarm.p2p.stream import NodeStream
from swarm.relay.wire import DCUTR, read_message, write_message

TRIES: Final = 3
PAUSE_S: Final = 600.0
"""After so many tries in vain the peer is left alone for so long."""
PLAIN_WITHIN_S: Final = 3.0
"""For dialling its known addresses: it may just be far away."""
ANSWER_WITHIN_S: Final = 10.0
ROUND_S: Final = 4.0
"""Of dialling, in one try."""
AGAIN_S: Final = 0.2
"""A dial that is refused at once, because the other's packets had not opened its NAT yet, is made again after this."""
BETWEEN_S: Final = 1.0
IDLE_LOOK_S: Final = 15.0
"""How often it is looked whether a circuit that is not needed any more is still used."""
MAX_CANDIDATES: Final = 6
MAX_TARGETS: Final = 4
"""Addresses dialled because a peer names them."""
MAX_TRIED: Final = 2 * TRIES
"""Tries with one peer, until PAUSE_S is over."""
MAX_AT_ONCE: Final = 8
"""Peers with which it is tried at a time, and as many tries that are answered: keys cost nothing, and each may have us dial four
addresses again and again."""
MAX_REMEMBERED: Final = 4096

log = structlog.get_logger("sark.path")


def candidates(observed: Sequence[Address], listening: Sequence[Address]) -> tuple[Address, ...]:
    """Where this node may be: at the addresses that gates see, with the ports it listens on; and where it listens."""
    ports = {tcp.family: tcp.port for tcp in map(parse_tcp, reversed(listening)) if tcp is not None}
    outside = [
        f"/{tcp.family}/{tcp.host}/tcp/{ports[tcp.family]}"
        for tcp in map(parse_tcp, reversed(observed))
        if tcp is not None and tcp.family in ports
    ]
    return tuple(dict.fromkeys((*outside, *listening)))[:MAX_CANDIDATES]


def targets(named: Sequence[Address], observed: Sequence[Address]) -> tuple[Address, ...]:
    """The addresses to dial of those that a peer names as its own.

    A peer must not have us dial hosts of our own network: private addresses count only for one that comes from where
    we come from, and where no gate sees us at a public address. `observed`: where gates see this node.
    """
    own_ips = {tcp.ip for tcp in map(parse_tcp, observed) if tcp is not None and tcp.ip is not None}
    theirs = [(address, tcp.ip) for address in usable(named) if (tcp := parse_tcp(address)) and tcp.ip]
    near = not any(ip.is_global for ip in own_ips) or any(ip in own_ips for _, ip in theirs)
    loopback = any(ip.is_loopback for ip in own_ips)
    remaining = [
        address
        for address, ip in theirs
        if not ip.is_multicast and (ip.is_global or (near and (loopback or not ip.is_loopback)))
    ]
    return tuple(remaining[:MAX_TARGETS])


@dataclass(eq=False)
class Puncher:
    """Replaces circuits by direct connections, as far as the NATs let it."""

    swarm: NodeSwarm
    open_on: OpenOn
    _: KW_ONLY
    observed: Callable[[], Sequence[Address]]
    """Where gates see this node."""
    listening: Callable[[], Sequence[Address]]
    """Its own addresses."""
    addresses: Callable[[ID], Sequence[Address]]
    """Direct addresses of a peer."""

    def __post_init__(self) -> None:
        self._busy: set[ID] = set()
        self._direct: dict[ID, trio.Event] = {}
        self._tried: Counter[ID] = Counter()
        self._count_from = 0.0
        self._answering = 0
        self._beginning = trio.Semaphore(MAX_AT_ONCE)

    # -- the called node's side ----------------------------------------------------------------------------------------

    def connected(self, conn: SwarmConn) -> None:
        """A connection has come about: a direct one is what was tried for, a relayed one is to be replaced."""
        peer = conn.muxed_conn.peer_id
        if not is_relayed(conn):
            if peer in self._direct:
                self._direct[peer].set()
        elif not conn.muxed_conn.is_initiator and self.swarm.background_nursery is not None:
            self.swarm.background_nursery.start_soon(self._upgrade, peer)

    async def _upgrade(self, peer: ID) -> None:
        """As long as there is a circuit that the peer dialled: try for a direct connection, and close the circuit once nobody uses it."""
        if peer in self._busy:
            return
        self._busy.add(peer)
        try:
            while (conn := self._dialled_by(peer)) is not None:
                if self.swarm.direct(peer) is None:
                    async with self._beginning:
                        reached = await self._try_all(peer, conn)
                    if not reached:
                        await trio.sleep(PAUSE_S)
                    continue
                await trio.sleep(IDLE_LOOK_S)
                if not conn.get_streams() and self.swarm.direct(peer) is not None:
                    await conn.close()
        finally:
            self._busy.discard(peer)

    def _dialled_by(self, peer: ID) -> SwarmConn | None:
        return next((conn for conn in self.swarm.relayed(peer) if not conn.muxed_conn.is_initiator), None)

    async def _try_all(self, peer: ID, conn: SwarmConn) -> bool:
        began = trio.current_time()
        reached = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._plainly, peer)
            tries = 0
            while tries < TRIES and self.swarm.lives(conn) and not reached and self._may_try(peer):
                if tries:
                    await trio.sleep(BETWEEN_S)
                tries += 1
                try:
                    reached = await self._try(peer, conn)
                except (*STREAM_ERRORS, RemoteProtocolError) as error:
                    log.debug("path.try", peer=str(peer), why=str(error))
                reached = reached or self.swarm.direct(peer) is not None
            nursery.cancel_scope.cancel()
        if reached:
            took_s = round(trio.current_time() - began, 2)
            log.info("path.direct", peer=str(peer), tries=tries, took_s=took_s)
        elif self.swarm.lives(conn):
            log.info("path.stays_relayed", peer=str(peer), tries=tries, again_in_s=PAUSE_S)
        return reached

    async def _plainly(self, peer: ID) -> None:
        """Dial its known addresses, as anybody would: it may just be far away, or only its circuit was announced."""
        with trio.move_on_after(PLAIN_WITHIN_S):
            async with trio.open_nursery() as nursery:
                for address in self._worth_dialling(self.addresses(peer)):
                    nursery.start_soon(self._dial_once, peer, address, None, False)

    async def _try(self, peer: ID, conn: SwarmConn) -> bool:
        stream = await self.open_on(conn, [DCUTR])
        try:
            with trio.fail_after(ANSWER_WITHIN_S):
                asked_at = trio.current_time()
                await write_message(stream, self._own())
                theirs = await _expect(stream, HolePunch.CONNECT)
                half = (trio.current_time() - asked_at) / 2
                await write_message(stream, HolePunch(type=HolePunch.SYNC))
                await trio.sleep(half)
            addresses = self._worth_dialling(from_wire(theirs.ObsAddrs))
            return bool(addresses) and await self._within(ROUND_S, peer, addresses, as_responder=True)
        finally:
            await stream.aclose()

    # -- the dialler's side --------------------------------------------------------------------------------------------

    async def serve(self, stream: Stream) -> None:
        """One try of another."""
        assert isinstance(stream, NodeStream)
        peer = stream.peer_id
        if not stream.relayed or self._answering >= MAX_AT_ONCE or not self._may_try(peer):
            raise RemoteProtocolError("hole punching is for circuits, and not all the time")
        self._answering += 1
        try:
            with trio.fail_after(ANSWER_WITHIN_S):
                theirs = await _expect(stream, HolePunch.CONNECT)
                await write_message(stream, self._own())
                await _expect(stream, HolePunch.SYNC)
            if await self._within(ROUND_S, peer, self._worth_dialling(from_wire(theirs.ObsAddrs))):
                log.info("path.direct", peer=str(peer))
        finally:
            self._answering -= 1

    # -- both ----------------------------------------------------------------------------------------------------------

    def _may_try(self, peer: ID) -> bool:
        """Count one more try with `peer`."""
        now = trio.current_time()
        if now - self._count_from > PAUSE_S or len(self._tried) > MAX_REMEMBERED:
            self._tried.clear()
            self._count_from = now
        self._tried[peer] += 1
        return self._tried[peer] <= MAX_TRIED

    def _own(self) -> HolePunch:
        where = candidates(self.observed(), self.listening())
        return HolePunch(
            type=HolePunch.CONNECT, ObsAddrs=[Multiaddr(address).to_bytes() for address in where]
        )

    def _worth_dialling(self, named: Sequence[Address]) -> tuple[Address, ...]:
        """Of the addresses that a peer names."""
        own = self.listening()
        return tuple(address for address in targets(named, self.observed()) if address not in own)

    async def _within(
        self, seconds: float, peer: ID, addresses: Sequence[Address], *, as_responder: bool = False
    ) -> bool:
        """Dial all of them, again and again, until there is a direct connection, made by us or by the peer."""
        came = self._direct.setdefault(peer, trio.Event())
        try:
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as nursery:
                    for address in addresses[:MAX_TARGETS]:
                        nursery.start_soon(self._dial, peer, address, as_responder)
                    if self.swarm.direct(peer) is None:
                        await came.wait()
                    nursery.cancel_scope.cancel()
        finally:
            if self._direct.get(peer) is came:
                del self._direct[peer]
        return self.swarm.direct(peer) is not None

    async def _dial(self, peer: ID, address: Address, as_responder: bool) -> None:
        worth_it = True
        while worth_it:
            worth_it = await self._dial_once(peer, address, self._source(address), as_responder)
            await trio.sleep(AGAIN_S)

    async def _dial_once(
        self, peer: ID, address: Address, source: tuple[str, int] | None, as_responder: bool
    ) -> bool:
        """Dial once; returns whether to dial again. Not where somebody else accepts the connection: that host has nothing to do with us,
        and would be dialled again and again because the peer named it."""
        try:
            await self.swarm.punch(peer, address, source, as_responder=as_responder)
        except STREAM_ERRORS as error:
            log.debug("path.dial", peer=str(peer), address=address, why=str(error))
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, SecurityUpgradeFailure):
                cause = cause.__cause__
            return cause is None
        return True

    def _source(self, address: Address) -> tuple[str, int] | None:
        """The port we listen on, of the address's family; None when there is none."""
        to = parse_tcp(address)
        for own in map(parse_tcp, self.listening()):
            if own is not None and to is not None and own.family == to.family:
                return ("0.0.0.0" if own.family == "ip4" else "::", own.port)  # noqa: S104 - the source of a dial, no listener
        return None


async def _expect(stream: Stream, kind: HolePunch.Type.ValueType) -> HolePunch:
    message = await read_message(stream, HolePunch())
    if message.type != kind:
        raise RemoteProtocolError("a message of hole punching out of turn")
    return message
