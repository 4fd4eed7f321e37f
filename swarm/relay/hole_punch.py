"""From a circuit to a direct connection: both nodes dial each other at the same moment, so that the packets of each open its NAT.

The two agree on the moment through the circuit (libp2p's DCUtR). The node that was called through the circuit begins:

    called                                     dialler
       │ CONNECT(where I may be) ────────────────▶ │
       │ ◀──────────────── CONNECT(where I may be) │     there and back takes T
       │ SYNC ───────────────────────────────────▶ │     it dials at once
       │ …T/2 later it dials                       │

Both dial from the port on which they listen; a NAT that preserves ports uses the same number outside. The two dials may merge into one
connection that nobody accepted. The circuit's dialler then begins Noise on it, and the called node answers.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
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
from swarm.p2p.yamux import BoundedYamux
from swarm.relay.wire import DCUTR, read_message, write_message

TRIES: Final = 3
PAUSE_S: Final = 600.0
"""How long a peer is left alone after `TRIES` failed tries, and how long tries count against `MAX_TRIED`."""
PLAIN_WITHIN_S: Final = 3.0
"""Time limit for dialling a peer's known addresses, since the peer may just be far away."""
ANSWER_WITHIN_S: Final = 10.0
ROUND_S: Final = 4.0
"""How long one try dials."""
AGAIN_S: Final = 0.2
"""Pause before repeating a dial that was refused at once because the peer's packets had not opened its NAT yet."""
BETWEEN_S: Final = 1.0
IDLE_LOOK_S: Final = 15.0
"""How often a node checks whether a circuit that is no longer needed is still in use."""
MAX_CANDIDATES: Final = 6
MAX_TARGETS: Final = 4
"""Most addresses dialled because a peer names them."""
MAX_TRIED: Final = 2 * TRIES
"""Most tries with one peer within `PAUSE_S`."""
MAX_AT_ONCE: Final = 8
"""How many peers that called us are dialled at once: keys cost nothing, and each can make us dial four addresses repeatedly."""
MAX_REMEMBERED: Final = 4096

log = structlog.get_logger("sark.path")


def candidates(observed: Sequence[Address], listening: Sequence[Address]) -> tuple[Address, ...]:
    """The addresses this node may have: those that gates see, with the ports it listens on; and those where it listens."""
    ports = {tcp.family: tcp.port for tcp in map(parse_tcp, reversed(listening)) if tcp is not None}
    outside = [
        f"/{tcp.family}/{tcp.host}/tcp/{ports[tcp.family]}"
        for tcp in map(parse_tcp, reversed(observed))
        if tcp is not None and tcp.family in ports
    ]
    return tuple(dict.fromkeys((*outside, *listening)))[:MAX_CANDIDATES]


def targets(named: Sequence[Address], observed: Sequence[Address], *, chosen: bool) -> tuple[Address, ...]:
    """Of the addresses that a peer names as its own, those to dial.

    A peer must not be able to make us dial hosts on our own network. Private addresses count only if no gate sees us at a public address,
    or if a peer that we called shares our public address. A caller's claim to share it does not count, since anybody can make it.
    `observed`: where gates see this node; `chosen`: we called the peer.
    """
    own_ips = {tcp.ip for tcp in map(parse_tcp, observed) if tcp is not None and tcp.ip is not None}
    theirs = [(address, tcp.ip) for address in usable(named) if (tcp := parse_tcp(address)) and tcp.ip]
    near = not any(ip.is_global for ip in own_ips) or (chosen and any(ip in own_ips for _, ip in theirs))
    loopback = any(ip.is_loopback for ip in own_ips)
    remaining = [
        address
        for address, ip in theirs
        if not ip.is_multicast and (ip.is_global or (near and (loopback or not ip.is_loopback)))
    ]
    return tuple(remaining[:MAX_TARGETS])


@dataclass(eq=False)
class Puncher:
    """Replaces circuits with direct connections, where the NATs allow it."""

    swarm: NodeSwarm
    open_on: OpenOn
    _: KW_ONLY
    observed: Callable[[], Sequence[Address]]
    """The addresses where gates see this node."""
    listening: Callable[[], Sequence[Address]]
    """This node's own addresses."""
    addresses: Callable[[ID], Sequence[Address]]
    """Direct addresses of a peer."""

    def __post_init__(self) -> None:
        self._in_progress: set[ID] = set()
        self._waiting: defaultdict[ID, set[trio.Event]] = defaultdict(set)
        """Events set when a direct connection with the peer has been made."""
        self._tries_by_peer: Counter[ID] = Counter()
        self._count_from = 0.0
        self._punching_slots = trio.Semaphore(MAX_AT_ONCE)

    def connected(self, conn: SwarmConn) -> None:
        """Handle a new connection: a direct one ends the tries for it, a relayed one is to be replaced."""
        if not is_relayed(conn):
            for connected in self._waiting.get(conn.muxed_conn.peer_id, ()):
                connected.set()
        elif self.swarm.background_nursery is not None:
            self.swarm.background_nursery.start_soon(self._replace, conn)

    async def _replace(self, circuit: SwarmConn) -> None:
        """While the circuit lives, try for a direct connection, and close the circuit once there is one and nobody uses the circuit."""
        muxed, again_at = circuit.muxed_conn, -math.inf
        if not isinstance(muxed, BoundedYamux):
            return
        peer = muxed.peer_id
        while self.swarm.lives(circuit):
            if (
                self.swarm.direct(peer) is None
                and peer not in self._in_progress
                and trio.current_time() >= again_at
            ):
                tried = await self._try_direct(peer, circuit, dialled=muxed.is_initiator)
                again_at = trio.current_time() + (
                    PAUSE_S if tried and self.swarm.direct(peer) is None else 0.0
                )
            with trio.move_on_after(IDLE_LOOK_S):
                await muxed.event_closed.wait()
            if self.swarm.direct(peer) is not None and not circuit.get_streams():
                await circuit.close()

    async def _try_direct(self, peer: ID, circuit: SwarmConn, *, dialled: bool) -> bool:
        """Try for a direct connection; return whether there was anything to try. `dialled`: we dialled the circuit, so the peer begins to
        punch.
        """
        self._in_progress.add(peer)
        try:
            if dialled:
                return await self._dial_known_addresses(peer)
            await self._punch(peer, circuit)
        except Exception:  # a bug must not let a stranger's circuit end the node
            log.exception("a try for a direct connection failed", peer=str(peer))
        finally:
            self._in_progress.discard(peer)
        return True

    # -- the called node's side ----------------------------------------------------------------------------------------

    async def _punch(self, peer: ID, circuit: SwarmConn) -> None:
        began, tries, answers = trio.current_time(), 0, True
        while (
            tries < TRIES
            and answers
            and self.swarm.lives(circuit)
            and self.swarm.direct(peer) is None
            and self._take_try(peer)
        ):
            if tries:
                await trio.sleep(BETWEEN_S)
            tries += 1
            try:
                await self._punch_once(peer, circuit)
            except (*STREAM_ERRORS, RemoteProtocolError) as error:
                answers = not isinstance(error, trio.TooSlowError)
                log.debug("path.try", peer=str(peer), why=str(error))
        if self.swarm.direct(peer) is not None:
            took_s = round(trio.current_time() - began, 2)
            log.info("path.direct", peer=str(peer), tries=tries, took_s=took_s)
        elif tries and self.swarm.lives(circuit):
            log.info("path.stays_relayed", peer=str(peer), tries=tries, again_in_s=PAUSE_S)

    async def _punch_once(self, peer: ID, circuit: SwarmConn) -> None:
        with trio.fail_after(ANSWER_WITHIN_S):
            stream = await self.open_on(circuit, [DCUTR])
        try:
            with trio.fail_after(ANSWER_WITHIN_S):
                asked_at = trio.current_time()
                await write_message(stream, self._connect_message())
                theirs = await _receive(stream, HolePunch.CONNECT)
                half_round_trip_s = (trio.current_time() - asked_at) / 2
            addresses = self._worth_dialling(from_wire(theirs.ObsAddrs), chosen=False)
            async with self._punching_slots:  # not earlier, so that a peer that does not answer blocks nobody
                with trio.fail_after(ANSWER_WITHIN_S):
                    await write_message(stream, HolePunch(type=HolePunch.SYNC))
                    await trio.sleep(half_round_trip_s)
                before = self.swarm.all_direct(peer)
                punching = [partial(self._dial, peer, address, as_responder=True) for address in addresses]
                plain = [partial(self._dial_once, peer, address) for address in addresses]
                await self._dial_within(ROUND_S, peer, [*punching, *plain])
                for conn in self.swarm.all_direct(peer):
                    if conn not in before and not _has_place(conn):
                        self.swarm.admit(conn)
        finally:
            await stream.aclose()

    # -- the dialler's side --------------------------------------------------------------------------------------------

    async def _dial_known_addresses(self, peer: ID) -> bool:
        """Dial the peer's known addresses, as anybody would: the peer may just be far away, or may have announced only its circuit."""
        if not self.addresses(peer):
            await trio.sleep(BETWEEN_S)  # by then the peer may have said where it listens
        addresses = self._worth_dialling(self.addresses(peer), chosen=True)
        await self._dial_within(
            PLAIN_WITHIN_S, peer, [partial(self._dial_once, peer, each) for each in addresses]
        )
        return bool(addresses)

    async def serve(self, stream: Stream) -> None:
        """Serve one try by a node that we called."""
        assert isinstance(stream, NodeStream)
        peer = stream.peer_id
        if not (stream.relayed and stream.outbound and self._take_try(peer)):
            raise RemoteProtocolError(
                "hole punching is only for circuits that we dialled, and only now and then"
            )
        with trio.fail_after(ANSWER_WITHIN_S):
            theirs = await _receive(stream, HolePunch.CONNECT)
            await write_message(stream, self._connect_message())
            await _receive(stream, HolePunch.SYNC)
        addresses = self._worth_dialling(from_wire(theirs.ObsAddrs), chosen=True)
        dials = [partial(self._dial, peer, address, as_responder=False) for address in addresses]
        if self.swarm.direct(peer) is None and await self._dial_within(ROUND_S, peer, dials):
            log.info("path.direct", peer=str(peer))

    # -- both sides ----------------------------------------------------------------------------------------------------

    def _take_try(self, peer: ID) -> bool:
        """Whether one more try with `peer` is allowed; counts it."""
        now = trio.current_time()
        if now - self._count_from > PAUSE_S or len(self._tries_by_peer) > MAX_REMEMBERED:
            self._tries_by_peer.clear()
            self._count_from = now
        self._tries_by_peer[peer] += 1
        return self._tries_by_peer[peer] <= MAX_TRIED

    def _connect_message(self) -> HolePunch:
        where = candidates(self.observed(), self.listening())
        return HolePunch(
            type=HolePunch.CONNECT, ObsAddrs=[Multiaddr(address).to_bytes() for address in where]
        )

    def _worth_dialling(self, named: Sequence[Address], *, chosen: bool) -> tuple[Address, ...]:
        """Of the addresses that a peer names, those to dial."""
        own = self.listening()
        return tuple(
            address for address in targets(named, self.observed(), chosen=chosen) if address not in own
        )

    async def _dial_within(
        self, seconds: float, peer: ID, dials: Sequence[Callable[[], Awaitable[object]]]
    ) -> bool:
        """Dial until there is a direct connection, made by us or by the peer; return whether there is one."""
        connected = trio.Event()
        self._waiting[peer].add(connected)
        try:
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as nursery:
                    if dials and self.swarm.direct(peer) is None:
                        for dial in dials:
                            nursery.start_soon(dial)
                        await connected.wait()
                    nursery.cancel_scope.cancel()
        finally:
            self._waiting[peer].discard(connected)
            if not self._waiting[peer]:
                del self._waiting[peer]
        return self.swarm.direct(peer) is not None

    async def _dial(self, peer: ID, address: Address, *, as_responder: bool) -> None:
        """Dial repeatedly from the port we listen on. `as_responder`: we were called, so the peer begins Noise if the dials merge. If
        nothing blocks our dial, it reaches the peer's listener, which also waits for Noise to begin; so a called node also dials plainly.
        """
        worth_it = True
        while worth_it:
            worth_it = await self._dial_once(peer, address, self._source(address), as_responder=as_responder)
            await trio.sleep(AGAIN_S)

    async def _dial_once(
        self, peer: ID, address: Address, source: tuple[str, int] | None = None, *, as_responder: bool = False
    ) -> bool:
        """Dial once; return whether to dial again. Not if somebody else accepts the connection: that host is not involved, and would be
        dialled repeatedly because the peer named it."""
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
        """The port we listen on for the address's family; None if there is none."""
        to = parse_tcp(address)
        for own in map(parse_tcp, self.listening()):
            if own is not None and to is not None and own.family == to.family:
                return ("0.0.0.0" if own.family == "ip4" else "::", own.port)  # noqa: S104 - the source of a dial, no listener
        return None


def _has_place(conn: SwarmConn) -> bool:
    """Whether `conn` arrived at our listener, and therefore has a place."""
    return isinstance(conn.muxed_conn, BoundedYamux) and conn.muxed_conn.arrived


async def _receive(stream: Stream, kind: HolePunch.Type.ValueType) -> HolePunch:
    message = await read_message(stream, HolePunch())
    if message.type != kind:
        raise RemoteProtocolError("a message of hole punching out of turn")
    return message
