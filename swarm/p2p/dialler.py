"""libp2p's swarm with our own dialler and inbound limits.

libp2p's dialler waits 250 ms after a success, tries one TCP address of many and then treats the peer as dead for 60 s; its inbound
side never frees the slot of a connection that has ended.
"""

from __future__ import annotations

import itertools
import math
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
import trio
from libp2p.abc import IMuxedConn, INetConn
from libp2p.connection_types import ConnectionType
from libp2p.exceptions import BaseLibp2pError
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.trio import TrioTCPStream
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.exceptions import SwarmException
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from multiaddr import Multiaddr

from swarm.base.threads import DNS
from swarm.net.addresses import Address, Circuit, PeerId, all_addresses, parse_circuit, parse_tcp, usable
from swarm.net.network import Stream
from swarm.p2p.connection_gater import ConnectionGater, InboundConnection
from swarm.p2p.dial_rules import NOT_DIALLED, DialRules
from swarm.p2p.yamux import BoundedYamux

DIAL_WITHIN_S: Final = 10.0
"""Time limit for one address, from the first packet to a secured connection."""
STAGGER_S: Final = 0.05
"""Head start of each address over the next: the first is usually the right one, and handshakes cost CPU time."""
HEAD_START_S: Final = 0.25
"""Head start of direct addresses over circuits."""
MAX_RESOLVED: Final = 2
"""IP addresses used for one name."""
LOG_FULL_S: Final = 60.0
STREAM_ERRORS: Final = (
    BaseLibp2pError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
)
"""The errors of a stream whose peer went away."""

OpenOn = Callable[[SwarmConn, Sequence[str]], Awaitable[Stream]]
"""Opens a stream on this connection, with the first of the protocols that the peer supports. Raises libp2p's errors."""

LookUp = Callable[[str, int, int], Awaitable[Sequence[str]]]
"""The IP addresses of a host, for a port and an address family. Raises `OSError`."""

log = structlog.get_logger(__name__)


@dataclass
class _Dial:
    """One dial of a peer, shared by its callers: tries all their addresses at once, until one answers."""

    done: trio.Event = field(default_factory=trio.Event)
    connection: INetConn | None = None
    failures: list[str] = field(default_factory=list)
    tried: int = 0
    refused: int = 0
    """Addresses tried so far, and those among them where nobody listens."""
    other: PeerId = ""
    """A different peer that answered."""
    callers: int = 0
    """The dial ends when the last caller gives up."""
    under_way: dict[Address, trio.CancelScope] = field(default_factory=dict)

    def end(self) -> None:
        """Cancel the remaining attempts."""
        self.done.set()
        for scope in self.under_way.values():
            scope.cancel()


class AllAddressesRefused(SwarmException):
    """Every address of the peer refused the connection: its process is not running."""


class WrongPeerAnswered(SwarmException):
    """Another peer, `actual`, answered at one of the peer's addresses: the id or the address is wrong, or the address was taken over."""

    def __init__(self, detail: str, actual: PeerId) -> None:
        super().__init__(detail)
        self.actual = actual


class NoAutoConnector(AutoConnector):
    """Replaces libp2p's connector, which dials every known peer until half of its high watermark; here the roles decide whom to dial."""

    async def run_background_task(self, nursery: trio.Nursery) -> None:
        """Run nothing."""

    async def maybe_connect(self) -> None:
        """Dial nothing."""


class NodeSwarm(Swarm):
    """libp2p's swarm, in which every dial goes through `reach`, whether a role's or that of libp2p's services."""

    def __init__(self, *args: Any, gater: ConnectionGater | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gater = gater or ConnectionGater()
        self.rules = DialRules()
        """Which addresses may be dialled, and how often without an answer."""
        self.look_up: LookUp = look_up
        self.auto_connector = NoAutoConnector(self)
        self._dials: dict[ID, _Dial] = {}
        self._stopping = False
        self.dial_circuit: Callable[[Circuit, ID], Awaitable[INetConn]] | None = None
        """Dials a circuit."""
        self.recognise: (
            Callable[[trio.SocketStream, Callable[[], bool]], Awaitable[trio.Event | None]] | None
        ) = None
        """On a gate: returns an event for the end of the circuit if the connection is one half of a circuit, else None. Takes a function
        that says whether there is room. Raises `trio.BrokenResourceError` and libp2p's errors."""
        self.called_at = -math.inf
        """When a peer last connected to this node directly."""
        self._full_logged_at = -math.inf

    def get_connections(self, peer_id: ID | None = None) -> list[INetConn]:
        """Like libp2p's, but ten times as fast for all connections of a thousand peers: libp2p asks for them whenever one arrives."""
        if peer_id is not None:
            return super().get_connections(peer_id)
        return list(itertools.chain.from_iterable(self.connections.values()))

    def _not_arrived(self) -> int:
        """The number of connections that this node dialled or that go through gates."""
        return sum(
            not (isinstance(conn.muxed_conn, BoundedYamux) and conn.muxed_conn.arrived)
            for conn in self.get_connections()
        )

    def _log_full(self, now: float) -> None:
        """Log one line a minute, however many connections are refused."""
        if now >= self._full_logged_at + LOG_FULL_S:
            self._full_logged_at = now
            log.warning("connections.full", closed_for_others=self.gater.evicted, **self.gater.refused)

    async def close_all(self, within_s: float) -> None:
        """Stop listening and dialling, and close all connections: circuits first, since their last messages go over other connections.

        libp2p itself does not close its listeners when its manager stops it, and takes 0.2 s for each connection.
        """
        self._stopping = True
        for dial in self._dials.values():
            dial.end()
        open_ = [connection for each in self.connections.values() for connection in each]
        with trio.move_on_after(within_s):
            async with trio.open_nursery() as nursery:
                for listener in list(self.listeners.values()):
                    nursery.start_soon(listener.close)
            for part in (filter(is_relayed, open_), itertools.filterfalse(is_relayed, open_)):
                async with trio.open_nursery() as nursery:
                    for connection in part:
                        muxed = connection.muxed_conn
                        nursery.start_soon(muxed.leave if isinstance(muxed, BoundedYamux) else muxed.close)
        self.connections.clear()

    def live(self, peer: ID) -> SwarmConn | None:
        """The connection with `peer` for new streams: preferably a direct one, then the one that was active last."""
        return max(self._living(peer), key=lambda conn: (not is_relayed(conn), _heard_at(conn)), default=None)

    def direct(self, peer: ID) -> SwarmConn | None:
        """The direct connection with `peer` that was active last."""
        conn = self.live(peer)
        return None if conn is None or is_relayed(conn) else conn

    def all_direct(self, peer: ID) -> tuple[SwarmConn, ...]:
        """The live connections with `peer` that go through no gate."""
        return tuple(conn for conn in self._living(peer) if not is_relayed(conn))

    def relayed(self, peer: ID) -> tuple[SwarmConn, ...]:
        """The live connections with `peer` that go through gates."""
        return tuple(filter(is_relayed, self._living(peer)))

    def lives(self, conn: INetConn) -> bool:
        """Whether this connection can open new streams."""
        muxed = conn.muxed_conn
        return (
            isinstance(conn, SwarmConn)
            and isinstance(muxed, BoundedYamux)
            and not conn.is_closed
            and muxed.is_established
        )

    def _living(self, peer: ID) -> Iterator[SwarmConn]:
        for conn in self.connections.get(peer, ()):
            if isinstance(conn, SwarmConn) and self.lives(conn):
                yield conn

    async def reach(self, peer: ID, addresses: Sequence[Address]) -> INetConn:
        """A connection with `peer`: the live one, or the first to be established. Raises SwarmException, which lists the attempts.

        Circuits start a little after direct addresses, or at once if there are no direct ones.
        """
        live = self.live(peer)
        if live is not None:
            return live
        dial = self._dials.get(peer)
        if dial is not None and dial.done.is_set():
            dial = None
        if dial is None and not addresses:
            raise SwarmException("this node knows no address of it")
        if self.background_nursery is None or self._stopping:
            raise SwarmException("this node is closing")
        if dial is None:
            dial = self._dials[peer] = _Dial()
        dial.callers += 1
        try:
            # another caller may be dialling other addresses, which may be dead; try ours too
            for address, delay_s in _in_order(addresses):
                if address not in dial.under_way:
                    dial.tried += 1
                    dial.under_way[address] = trio.CancelScope()
                    self.background_nursery.start_soon(self._attempt, dial, peer, address, delay_s)
            await dial.done.wait()
        finally:
            dial.callers -= 1
            if not dial.callers:
                dial.end()
                if self._dials.get(peer) is dial:
                    del self._dials[peer]
        if dial.connection is None:
            detail = "; ".join(dial.failures)
            if dial.other:
                raise WrongPeerAnswered(detail, dial.other)
            raise AllAddressesRefused(detail) if dial.refused == dial.tried else SwarmException(detail)
        return dial.connection

    async def _attempt(self, dial: _Dial, peer: ID, address: Address, delay_s: float) -> None:
        """Dial one address, in the swarm's nursery, so that the winner does not wait for the losers' cleanup."""
        try:
            with dial.under_way[address], trio.move_on_after(DIAL_WITHIN_S + delay_s):
                await trio.sleep(delay_s)
                connection = await self._dial_one(address, peer)
                dial.connection = dial.connection or connection
                dial.end()
            if not dial.done.is_set():
                dial.failures.append(f"{address}: no answer within {DIAL_WITHIN_S:g} s")
        except SwarmException as error:
            dial.failures.append(f"{address}: {reason_of(error)}")
            cause = _cause(error)
            dial.refused += isinstance(cause, ConnectionRefusedError)
            if isinstance(cause, PeerIDMismatchesPubkey):
                dial.other = dial.other or _other_peer(cause)
        finally:
            del dial.under_way[address]
            if not dial.under_way:
                dial.done.set()

    async def _dial_one(self, address: Address, peer: ID) -> INetConn:
        circuit = parse_circuit(address)
        if circuit is None:
            return await self._dial_direct(address, peer)
        if self.dial_circuit is None:
            raise SwarmException("this node does not use gates")
        return await self.dial_circuit(circuit, peer)

    async def _dial_direct(self, address: Address, peer: ID) -> INetConn:
        """Resolve names, then dial, so that the rules see the IP addresses."""
        last: SwarmException | None = None
        name = parse_tcp(address)
        if name is not None and name.ip is None and not self.rules.given(address):
            raise SwarmException(f"{NOT_DIALLED}only names of this node's own gates are resolved")
        for where in await _resolved(address, self.look_up):
            why = self.rules.why_not(trio.current_time(), str(peer), where, as_given=address)
            if why:
                last = SwarmException(f"{NOT_DIALLED}{why}")
                continue
            try:
                connection = await self.dial_addr(Multiaddr(where), peer)
            except SwarmException as error:
                last = error
                continue
            self.rules.answered(trio.current_time(), str(peer), where)
            return connection
        raise last or SwarmException(f"cannot resolve {address}")

    async def punch(
        self, peer: ID, address: Address, source: tuple[str, int] | None, *, as_responder: bool
    ) -> None:
        """Open another direct connection with `peer`, from `source`. Raises SwarmException.

        `as_responder`: the peer dials us at the same moment, so both dials may become one connection, on which the peer is the initiator.
        """
        if self._stopping:
            raise SwarmException("this node is closing")
        if not self.rules.may_punch(trio.current_time(), address):
            raise SwarmException("too many recent dials there failed")
        if as_responder:
            await self.dial_addr_as_responder(Multiaddr(address), peer, source)
        else:
            await self.dial_addr(Multiaddr(address), peer, source)

    def admit(self, conn: SwarmConn) -> None:
        """Count a connection that we dialled because its peer called us as an inbound one; close it if there is no place."""
        if self.background_nursery is not None:
            self.background_nursery.start_soon(self._admitted, conn)

    async def _admitted(self, conn: SwarmConn) -> None:
        where = next(map(parse_tcp, usable(conn.get_transport_addresses())), None)
        arrival = self.gater.arrive("" if where is None else where.host, trio.current_time())
        try:
            if arrival is not None:
                await self._stays(conn.muxed_conn, arrival)
        finally:
            if arrival is not None:
                self.gater.leave(arrival)
            with trio.move_on_after(1.0, shield=True):
                await conn.close()

    async def knock(self, peer: ID, address: Address) -> None:
        """Check, on a separate connection, that `peer` answers at this address and proves its key. Raises SwarmException."""
        to = Multiaddr(address)
        transport = self.transport_manager.transport_for_dialing(to)
        if transport is None or self._stopping:
            raise SwarmException(f"{address} cannot be dialled")
        raw = await transport.dial(to)
        try:
            await self.upgrader.upgrade_security(raw, True, peer)
        finally:
            with trio.move_on_after(1.0, shield=True):
                await raw.close()

    def drop(self, conn: SwarmConn) -> None:
        """Close a connection in the background."""
        if self.background_nursery is not None:
            self.background_nursery.start_soon(conn.close)

    async def dial_peer(self, peer_id: ID) -> list[INetConn]:
        """Connect to `peer_id` at its stored addresses, for libp2p's own callers."""
        addresses = self.peerstore.addrs(peer_id) if self.peerstore.has_peer(peer_id) else []
        return [await self.reach(peer_id, all_addresses(addresses))]

    async def _do_handle_inbound_connection(
        self, read_write_closer: ReadWriteCloser, maddr: Multiaddr, failure_event: Any
    ) -> None:
        """Secure one inbound connection, and free its slot when it ends (libp2p frees it only when the node ends)."""
        raw = RawConnection(read_write_closer, False)
        remote = read_write_closer.get_remote_address()
        ip = remote[0] if remote else ""
        arrival = self.gater.arrive(ip, trio.current_time())
        muxed: IMuxedConn | None = None
        try:
            if arrival is None:
                return
            circuit_ends: trio.Event | None = None
            with trio.move_on_after(self.connection_config.inbound_upgrade_timeout) as proving:
                arrival.cut = proving.cancel
                circuit_ends = await self._recognised(read_write_closer, arrival)
                if circuit_ends is None:
                    muxed = await self.upgrade_inbound_raw_conn(raw, maddr)
            if circuit_ends is not None:
                await self._carried(circuit_ends)
            if muxed is None:
                return
            self.called_at = trio.current_time()
            await self._stays(muxed, arrival)
        except (BaseLibp2pError, trio.BrokenResourceError) as error:
            log.debug("inbound connection refused", ip=ip, why=reason_of(error))
        finally:
            if arrival is not None:
                self.gater.leave(arrival)
            with trio.move_on_after(1.0, shield=True):
                await raw.close()

    async def _stays(self, muxed: IMuxedConn, arrival: InboundConnection) -> None:
        """Wait until the connection ends or must give way."""
        if not isinstance(muxed, BoundedYamux):
            return
        now = trio.current_time()
        with trio.CancelScope() as staying:
            arrival.cut = staying.cancel
            muxed.arrived = True
            if self.gater.keep_authenticated(
                arrival, str(muxed.peer_id), self._not_arrived(), now, muxed.use
            ):
                await muxed.event_closed.wait()
                return
        self._log_full(now)

    async def _recognised(self, connection: ReadWriteCloser, arrival: InboundConnection) -> trio.Event | None:
        """The event for the end of the circuit if `connection` is one half of a circuit; None for any other connection."""
        if self.recognise is None or not isinstance(connection, TrioTCPStream):
            return None
        return await self.recognise(connection.stream, lambda: self.gater.carry(arrival))

    async def _carried(self, circuit_ends: trio.Event) -> None:
        """Wait for the end of a circuit whose half is this connection; it takes none of libp2p's places for connections with peers."""
        self._inbound_limiter.total_tokens += 1
        try:
            await circuit_ends.wait()
        finally:
            self._inbound_limiter.total_tokens -= 1


async def look_up(host: str, port: int, family: int) -> Sequence[str]:
    """The IP addresses of a name, from this system's resolver. Raises `OSError`."""
    entries = await DNS.run(
        socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, abandon_on_cancel=True
    )
    return [str(entry[4][0]) for entry in entries]


async def _resolved(address: Address, look_up: LookUp) -> tuple[Address, ...]:
    """The address itself, or the first few addresses that its name resolves to."""
    where = parse_tcp(address)
    if where is None or where.ip is not None:
        return (address,)
    family = {"dns4": socket.AF_INET, "dns6": socket.AF_INET6}.get(where.family, socket.AF_UNSPEC)
    try:
        ips = await look_up(where.host, where.port, family)
    except (OSError, UnicodeError):
        return ()
    matches = (f"/{'ip6' if ':' in ip else 'ip4'}/{ip}/tcp/{where.port}" for ip in ips)
    return usable(matches)[:MAX_RESOLVED]


def is_relayed(conn: INetConn) -> bool:
    """Whether the connection goes through a gate."""
    return isinstance(conn, SwarmConn) and conn.get_connection_type() is ConnectionType.RELAYED


def _heard_at(conn: SwarmConn) -> float:
    return conn.muxed_conn.heard_at if isinstance(conn.muxed_conn, BoundedYamux) else -math.inf


def _in_order(addresses: Sequence[Address]) -> Iterator[tuple[Address, float]]:
    """Each address with its delay in seconds, direct addresses first."""
    circuits = [address for address in addresses if parse_circuit(address) is not None]
    direct = [address for address in addresses if address not in circuits]
    for place, address in enumerate(direct):
        yield address, place * STAGGER_S
    for place, address in enumerate(circuits):
        yield address, place * STAGGER_S + (HEAD_START_S if direct else 0.0)


def _other_peer(error: PeerIDMismatchesPubkey) -> PeerId:
    """The other peer's id, which libp2p gives only in the message."""
    return str(error).rpartition("=")[2]


def reason_of(error: BaseException) -> str:
    """The root cause in a few words."""
    cause = _cause(error)
    if isinstance(cause, PeerIDMismatchesPubkey):
        return f"another peer answers there: {_other_peer(cause)}"
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno)
    return (str(cause) or type(cause).__name__)[:200]


def _cause(error: BaseException) -> BaseException:
    """The root of the chain; the first error of a group."""
    while True:
        if error.__cause__ is not None:
            error = error.__cause__
        elif isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        else:
            return error
