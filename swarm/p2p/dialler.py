"""How connections and streams come to be: libp2p's swarm and host, with every dial and every inbound stream on our paths.

libp2p's own dial waits 250 ms after it has succeeded, tries one TCP address of many and then remembers the peer as dead for
60 s; its inbound side never gives back the place of a connection that has ended, and a handler that raises ends the node.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

import structlog
import trio
from libp2p.abc import IMuxedConn, INetConn, INetStream
from libp2p.connection_types import ConnectionType
from libp2p.custom_types import TProtocol
from libp2p.exceptions import BaseLibp2pError
from libp2p.host.basic_host import BasicHost
from libp2p.host.exceptions import ConnectionFailure, StreamFailure
from libp2p.identity.identify.identify import ID as IDENTIFY
from libp2p.identity.identify_push.identify_push import ID_PUSH as IDENTIFY_PUSH
from libp2p.io.abc import ReadWriteCloser
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.exceptions import SwarmException
from libp2p.network.stream.net_stream import NetStream
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from multiaddr import Multiaddr

from protocol.errors import SarkError
from protocol.words import ProtocolId
from swarm.net.addresses import Address, Circuit, PeerId, all_addresses, parse_circuit, parse_tcp, usable
from swarm.net.limits import InboundLimits
from swarm.net.network import Stream
from swarm.p2p.connection_gater import ConnectionGater
from swarm.p2p.dial_rules import DialRules
from swarm.p2p.routing import KAD_PROTOCOL
from swarm.p2p.yamux import BoundedYamux

DIAL_WITHIN_S: Final = 10.0
"""One address, from the first packet to a secured connection."""
STAGGER_S: Final = 0.05
"""Head start of each address over the next: the first is mostly right, and handshakes cost CPU."""
HEAD_START_S: Final = 0.25
"""Of direct addresses over circuits."""
NEGOTIATE_WITHIN_S: Final = 5
MAX_RESOLVED: Final = 2
"""IP addresses of one name."""
MAX_HEARD: Final = 4096
CASUAL: Final = frozenset(
    {str(IDENTIFY), KAD_PROTOCOL, ProtocolId.INDEX, ProtocolId.REACH, ProtocolId.HEALTH}
)
"""Protocols of questions that somebody else can answer as well, or that give up by themselves."""

ORDINARY: Final = (BaseLibp2pError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)
"""How streams end when peers go away; nothing to write home about."""

OpenOn = Callable[[SwarmConn, Sequence[str]], Awaitable[Stream]]
"""A stream on this very connection, of the first of the protocols that the peer knows. Raises libp2p's errors."""

log = structlog.get_logger(__name__)


class _Dial:
    """One search for a way to a peer: the addresses that all its callers know, side by side, until one answers."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.connection: INetConn | None = None
        self.failures: list[str] = []
        self.refused = 0
        self.tried = 0
        self.other = ""
        """The peer that answered instead."""
        self.waiting = 0
        """Callers; when the last of them has lost patience it ends."""
        self._trying: dict[Address, trio.CancelScope] = {}

    def add(self, address: Address) -> trio.CancelScope | None:
        """To try this one as well; None when that is under way."""
        if address in self._trying:
            return None
        self.tried += 1
        self._trying[address] = trio.CancelScope()
        return self._trying[address]

    def succeed(self, connection: INetConn) -> None:
        self.connection = self.connection or connection
        self.end()

    def over(self, address: Address) -> None:
        """That one led nowhere, or was stopped."""
        del self._trying[address]
        if not self._trying:
            self.done.set()

    def end(self) -> None:
        """Try no more."""
        self.done.set()
        for scope in self._trying.values():
            scope.cancel()


class NobodyListens(SwarmException):
    """Every address of the peer answered, and refused the connection: its process is gone, or was never there."""


class AnotherAnswers(SwarmException):
    """At an address of the peer there is another one, `found`: the id or the address is wrong, or somebody took its place."""

    def __init__(self, told: str, found: PeerId) -> None:
        super().__init__(told)
        self.found = found


class NoAutoConnector(AutoConnector):
    """libp2p dials everybody it has heard of until it holds half of the high watermark; here the roles say whom to dial."""

    async def run_background_task(self, nursery: trio.Nursery) -> None:
        """There is none."""

    async def maybe_connect(self) -> None:
        """Nobody is dialled."""


class NodeSwarm(Swarm):
    """libp2p's swarm, whose every dial is `reach`, whoever asks: the roles, Kademlia or libp2p's own services."""

    def __init__(self, *args: Any, arrivals: ConnectionGater | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._arrivals = arrivals or ConnectionGater()
        self.rules = DialRules()
        """Which addresses are dialled at all, and how often in vain."""
        self.auto_connector = NoAutoConnector(self)
        self._dials: dict[ID, _Dial] = {}
        self._stopping = False
        self.through: Callable[[Circuit, ID], Awaitable[INetConn]] | None = None
        """How a circuit is dialled."""
        self.called_at = -math.inf
        """When somebody last connected with this node directly."""

    async def close_all(self, within_s: float) -> None:
        """Listen and dial no more, and close every connection, all at once: one by one libp2p takes 0.2 s for each.

        libp2p itself forgets to close its listeners when it is stopped by its manager.
        """
        self._stopping = True
        for dial in self._dials.values():
            dial.end()
        with trio.move_on_after(within_s):
            async with trio.open_nursery() as nursery:
                for listener in list(self.listeners.values()):
                    nursery.start_soon(listener.close)
                for connections in list(self.connections.values()):
                    for connection in list(connections):
                        nursery.start_soon(connection.close)
        self.connections.clear()

    def live(self, peer: ID) -> SwarmConn | None:
        """The connection with `peer` that new streams take: a direct one where there is any, and that which was heard last."""
        return max(self._living(peer), key=lambda conn: (not is_relayed(conn), _heard_at(conn)), default=None)

    def direct(self, peer: ID) -> SwarmConn | None:
        """The direct connection with `peer` that was heard last."""
        found = self.live(peer)
        return None if found is None or is_relayed(found) else found

    def relayed(self, peer: ID) -> tuple[SwarmConn, ...]:
        """The live connections with `peer` that go through gates."""
        return tuple(filter(is_relayed, self._living(peer)))

    def lives(self, conn: INetConn) -> bool:
        """Can new streams be had on this connection?"""
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
        """A connection with `peer`: the one there is, or the first that comes about. SwarmException says what was tried.

        Circuits among the addresses are begun a little after the direct ones, at once where there are no direct ones.
        """
        found = self.live(peer)
        if found is not None:
            return found
        dial = self._dials.get(peer)
        if dial is not None and dial.done.is_set():
            dial = None
        if dial is None and not addresses:
            raise SwarmException("no address of it is known")
        if self.background_nursery is None or self._stopping:
            raise SwarmException("this node is closing")
        if dial is None:
            dial = self._dials[peer] = _Dial()
        dial.waiting += 1
        try:
            # somebody else may be at it, with other addresses, which may be dead or lead nowhere: ours are tried beside them
            for address, delay_s in _in_turn(addresses):
                if (scope := dial.add(address)) is not None:
                    self.background_nursery.start_soon(self._attempt, dial, peer, address, delay_s, scope)
            await dial.done.wait()
        finally:
            dial.waiting -= 1
            if not dial.waiting:
                dial.end()
                if self._dials.get(peer) is dial:
                    del self._dials[peer]
        if dial.connection is None:
            told = "; ".join(dial.failures)
            if dial.other:
                raise AnotherAnswers(told, dial.other)
            raise NobodyListens(told) if dial.refused == dial.tried else SwarmException(told)
        return dial.connection

    async def _attempt(
        self, dial: _Dial, peer: ID, address: Address, delay_s: float, scope: trio.CancelScope
    ) -> None:
        """Dial one address, in the swarm's own nursery: the winner need not wait until the losers have tidied up."""
        try:
            with scope, trio.move_on_after(DIAL_WITHIN_S + delay_s):
                await trio.sleep(delay_s)
                try:
                    dial.succeed(await self._dial_one(address, peer))
                    return
                except SwarmException as error:
                    dial.failures.append(f"{address}: {_reason(error)}")
                    cause = _cause(error)
                    dial.refused += isinstance(cause, ConnectionRefusedError)
                    if isinstance(cause, PeerIDMismatchesPubkey):
                        dial.other = dial.other or _found_instead(cause)
                    return
            if not dial.done.is_set():
                dial.failures.append(f"{address}: no answer within {DIAL_WITHIN_S:g} s")
        finally:
            dial.over(address)

    async def _dial_one(self, address: Address, peer: ID) -> INetConn:
        circuit = parse_circuit(address)
        if circuit is None:
            return await self._dial_direct(address, peer)
        if self.through is None:
            raise SwarmException("this node does not go through gates")
        return await self.through(circuit, peer)

    async def _dial_direct(self, address: Address, peer: ID) -> INetConn:
        """Names are resolved here, so that the rules see where they lead."""
        last: SwarmException | None = None
        for where in await _resolved(address):
            why = self.rules.why_not(trio.current_time(), str(peer), where, as_given=address)
            if why:
                last = SwarmException(f"not dialled: {why}")
                continue
            try:
                connection = await self.dial_addr(Multiaddr(where), peer)
            except SwarmException as error:
                last = error
                continue
            self.rules.answered(trio.current_time(), str(peer), where)
            return connection
        raise last or SwarmException(f"nobody knows what address {address} is")

    async def punch(
        self, peer: ID, address: Address, source: tuple[str, int] | None, *, as_responder: bool
    ) -> None:
        """One more direct connection with `peer`, dialled from `source`, whatever connections there are. SwarmException.

        `as_responder`: the peer dials us at this very moment, so the two dials may be one connection, on which it begins.
        """
        if self._stopping:
            raise SwarmException("this node is closing")
        if not self.rules.may_punch(trio.current_time(), address):
            raise SwarmException("too many dials there were in vain lately")
        if as_responder:
            await self.dial_addr_as_responder(Multiaddr(address), peer, source)
        else:
            await self.dial_addr(Multiaddr(address), peer, source)

    async def knock(self, peer: ID, address: Address) -> None:
        """See that `peer` answers there and shows its key, by a connection that nothing else uses. SwarmException when not."""
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
        """Close a connection, beside whatever else goes on."""
        if self.background_nursery is not None:
            self.background_nursery.start_soon(conn.close)

    async def dial_peer(self, peer_id: ID) -> list[INetConn]:
        """libp2p's own callers come here."""
        known = self.peerstore.addrs(peer_id) if self.peerstore.has_peer(peer_id) else []
        return [await self.reach(peer_id, all_addresses(known))]

    async def _do_handle_inbound_connection(
        self, read_write_closer: ReadWriteCloser, maddr: Multiaddr, failure_event: Any
    ) -> None:
        """Secure one inbound connection, and hold its place until it ends (libp2p holds it until the node ends)."""
        raw = RawConnection(read_write_closer, False)
        remote = read_write_closer.get_remote_address()
        ip = remote[0] if remote else ""
        arrival = self._arrivals.arrive(ip, trio.current_time())
        try:
            if arrival is None:
                return
            muxed: IMuxedConn | None = None
            with trio.CancelScope() as proving:
                arrival.cut = proving.cancel
                muxed = await self.upgrade_inbound_raw_conn(raw, maddr)
            if muxed is None:
                return
            self.called_at = trio.current_time()
            if not self._arrivals.stays(arrival, str(muxed.peer_id), len(self.get_connections())):
                await muxed.close()
            elif isinstance(muxed, BoundedYamux):
                await muxed.event_closed.wait()
        except BaseLibp2pError as error:
            log.debug("inbound connection refused", ip=ip, why=_reason(error))
        finally:
            if arrival is not None:
                self._arrivals.leave(arrival)
            with trio.move_on_after(1.0, shield=True):
                await raw.close()


class NodeHost(BasicHost):
    """libp2p's host, opening streams on `reach`'s connections and serving inbound ones within each peer's limits."""

    def __init__(self, network: NodeSwarm, **kwargs: Any) -> None:
        super().__init__(network=network, **kwargs)
        self._swarm = network
        self._limits = InboundLimits()
        self._heard: OrderedDict[ID, str] = OrderedDict()
        # a peer is asked once who it is, and tells no news unasked
        self.multiselect.remove_handler(IDENTIFY_PUSH)

    async def connect(self, peer_info: PeerInfo) -> None:
        """libp2p's own callers come here."""
        try:
            await self._swarm.reach(peer_info.peer_id, all_addresses(peer_info.addrs))
        except SwarmException as error:
            raise ConnectionFailure(str(error)) from error

    def heard(self, peer: ID, prefix: str) -> bool:
        """Has `peer` lately opened a stream of a protocol whose name begins so?"""
        return self._heard.get(peer, "").startswith(prefix)

    async def new_stream(self, peer_id: ID, protocol_ids: Sequence[TProtocol]) -> NetStream:
        """A stream that speaks the first of `protocol_ids` the peer knows. SwarmException or StreamFailure."""
        if self._swarm.live(peer_id) is None:
            await self._swarm.dial_peer(peer_id)
        conn = self._swarm.live(peer_id)
        if conn is None:
            raise SwarmException("the connection broke at once")
        return await self.open_on(conn, protocol_ids)

    async def open_on(self, conn: SwarmConn, protocol_ids: Sequence[TProtocol]) -> NetStream:
        """The same on this very connection. A relayed one that does not answer is dropped: the next caller gets a fresh one."""
        stream: NetStream | None = None
        try:
            stream = await conn.new_stream()
            try:
                with _expecting(conn, protocol_ids):
                    spoken = await self.multiselect_client.select_one_of(
                        list(protocol_ids), MultiselectCommunicator(stream), NEGOTIATE_WITHIN_S
                    )
            except BaseException:
                with trio.move_on_after(1.0, shield=True):
                    await stream.reset()
                raise
        except BaseLibp2pError as error:
            if is_relayed(conn) and _is_silence(error):
                self._swarm.drop(conn)
            raise StreamFailure(_reason(error)) from error
        stream.set_protocol(spoken)
        _watch(stream, spoken)
        return stream

    def _note(self, peer: ID, protocol: str) -> None:
        """Remember that the peer speaks our own protocols; libp2p's, which everybody speaks, say nothing."""
        if protocol.startswith("/sark/"):
            self._heard[peer] = protocol
            self._heard.move_to_end(peer)
            if len(self._heard) > MAX_HEARD:
                self._heard.popitem(last=False)

    async def _swarm_stream_handler(self, net_stream: INetStream) -> None:
        """Negotiate and serve one inbound stream. Whatever goes wrong costs this stream and nothing else."""
        peer = str(net_stream.muxed_conn.peer_id)
        served = False
        try:
            with self._limits.arriving(peer) as arrived:
                if not arrived:
                    return
                protocol, handler = await self.multiselect.negotiate(MultiselectCommunicator(net_stream), 10)
                if protocol is None or handler is None:
                    return
                with self._limits.speaking(peer, protocol) as speaks:
                    if not speaks:
                        log.info("too many streams of one protocol", peer=peer, protocol=protocol)
                        return
                    net_stream.set_protocol(protocol)
                    _watch(net_stream, protocol)
                    self._note(net_stream.muxed_conn.peer_id, protocol)
                    await handler(net_stream)
                    served = True
        except ORDINARY as error:
            log.debug("inbound stream failed", peer=peer, why=_reason(error))
        except SarkError as error:
            log.info("inbound stream refused", peer=peer, protocol=net_stream.get_protocol(), why=error.what)
        except Exception:  # a stranger's stream must not be able to end the node through a bug of ours
            log.exception(
                "a handler failed; its stream is reset", peer=peer, protocol=net_stream.get_protocol()
            )
        finally:
            if not served:
                with trio.move_on_after(1.0, shield=True), contextlib.suppress(BaseLibp2pError, OSError):
                    await net_stream.reset()


async def _resolved(address: Address) -> tuple[Address, ...]:
    """The address itself, or those that its name stands for: the first few."""
    where = parse_tcp(address)
    if where is None or where.ip is not None:
        return (address,)
    family = {"dns4": socket.AF_INET, "dns6": socket.AF_INET6}.get(where.family, socket.AF_UNSPEC)
    try:
        entries = await trio.socket.getaddrinfo(where.host, where.port, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    found = (
        f"/{'ip4' if entry[0] == socket.AF_INET else 'ip6'}/{entry[4][0]}/tcp/{where.port}"
        for entry in entries
    )
    return usable(found)[:MAX_RESOLVED]


def _watch(stream: INetStream, protocol: str) -> None:
    """From now on it matters whether the peer is there, unless all that is said here is of no consequence to anybody waiting."""
    if protocol not in CASUAL and isinstance(stream.muxed_conn, BoundedYamux):
        stream.muxed_conn.watched = True


@contextlib.contextmanager
def _expecting(conn: SwarmConn, wanted: Sequence[str]) -> Iterator[None]:
    """A peer that may be gone is being asked whether it speaks one of these. Who says no to what matters was no more than asked."""
    muxed = conn.muxed_conn
    if not isinstance(muxed, BoundedYamux) or CASUAL.issuperset(wanted):
        yield
        return
    muxed.expected += 1
    try:
        yield
    except BaseException as error:
        if not isinstance(error, BaseLibp2pError) or _is_silence(error):
            muxed.watched = True
        raise
    finally:
        muxed.expected -= 1


def is_relayed(conn: INetConn) -> bool:
    """Does the connection go through a gate?"""
    return isinstance(conn, SwarmConn) and conn.get_connection_type() is ConnectionType.RELAYED


def _heard_at(conn: SwarmConn) -> float:
    return conn.muxed_conn.heard_at if isinstance(conn.muxed_conn, BoundedYamux) else -math.inf


def _in_turn(addresses: Sequence[Address]) -> Iterator[tuple[Address, float]]:
    """Each address with the seconds after which it is tried: the direct ones first."""
    circuits = [address for address in addresses if parse_circuit(address) is not None]
    direct = [address for address in addresses if address not in circuits]
    for place, address in enumerate(direct):
        yield address, place * STAGGER_S
    for place, address in enumerate(circuits):
        yield address, place * STAGGER_S + (HEAD_START_S if direct else 0.0)


def _is_silence(error: BaseException) -> bool:
    """Nothing came back, as opposed to a no. libp2p has one error for both."""
    return str(error).startswith("response timed out")


def _found_instead(error: PeerIDMismatchesPubkey) -> PeerId:
    """libp2p tells the id that the other's key gives in its message only."""
    return str(error).rpartition("=")[2]


def _reason(error: BaseException) -> str:
    """The innermost cause in a few words."""
    cause = _cause(error)
    if isinstance(cause, PeerIDMismatchesPubkey):
        return f"another peer answers there: {_found_instead(cause)}"
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno)
    return (str(cause) or type(cause).__name__)[:200]


def _cause(error: BaseException) -> BaseException:
    """What it began with; of several beginnings the first."""
    while True:
        if error.__cause__ is not None:
            error = error.__cause__
        elif isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        else:
            return error
