"""A node's side of relaying: its reservations at gates, and both ends of circuits.

`HostNetwork.reserve` and every dial of a circuit end up here. The code that makes a reservation renews it. A node's half of a circuit is a
data connection with a gate or, where that is impossible, the stream on which the circuit was requested. Either becomes a raw connection,
which is then secured like a socket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

import structlog
import trio
from libp2p.abc import INetConn
from libp2p.connection_types import ConnectionType
from libp2p.exceptions import BaseLibp2pError
from libp2p.network.connection.exceptions import RawConnError
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.rcmgr import Direction
from libp2p.relay.circuit_v2.pb.circuit_pb2 import (
    OK,
    PERMISSION_DENIED,
    RESOURCE_LIMIT_EXCEEDED,
    HopMessage,
    Status,
    StopMessage,
)
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as PeerMessage
from multiaddr import Multiaddr

from protocol.errors import Refused, RemoteProtocolError
from protocol.words import Reason
from swarm.net.addresses import Address, Circuit, PeerId, from_wire, is_private, usable, without_names
from swarm.net.identity import peer_id_bytes, peer_id_text
from swarm.net.limits import Pauses
from swarm.net.network import Reservation, Stream
from swarm.p2p.dialler import NodeSwarm, OpenOn
from swarm.p2p.session import CarriedConnection
from swarm.p2p.stream import NodeStream
from swarm.p2p.yamux import BoundedYamux
from swarm.relay.data_connections import BOUND, STAYS, Binding, Half, Mask, abandon, bind
from swarm.relay.wire import HOP, OWN_HOP, OWN_STOP, REASONS, read_binding, read_message, write_message

ANSWER_WITHIN_S: Final = 10.0
"""Long enough for the gate to call the target first, which takes up to 8 s."""
LEAST_TTL_S: Final = 60.0
MOST_TTL_S: Final = 86_400.0
"""Limits of a reservation's lifetime: the gate sends a time of day, and clocks differ."""
ASK_WITHIN_S: Final = 5.0
MAX_PENDING: Final = 16
"""Circuits from gates being secured at once."""
MAX_PENDING_OF_CALLER: Final = 2
"""Circuits being secured at once from one caller, as named by the gate."""
MAX_PENDING_OF_GATE: Final = 8
"""Circuits being secured at once through one gate, so that a gate that invents callers does not block others."""
MAX_ASKED: Final = 8
"""Circuit requests sent to one gate at once: a gate resets streams that a peer opens faster than the gate reads them."""
READ: Final = 65_536
BIND_S: Final = 1.5
"""Seconds for a data connection, from the first packet, which may be lost once, until the gate has it; or this many round trips:"""
BIND_TRIPS: Final = 4
MOST_BIND_S: Final = 3.0
CANCELLED_S: Final = 0.5
"""A data connection that took longer than this when its caller gave up counts as failed."""
UNBOUND_S: Final = (15.0, 600.0)
"""How long circuits through a gate stay on their streams after a data connection failed: the first time, and at most."""
MAX_OTHERS: Final = 2
MAX_OBSERVED: Final = 8

log = structlog.get_logger("sark.relay")


@dataclass(frozen=True, slots=True)
class _Held:
    reservation: Reservation
    connection: SwarmConn
    until: float


@dataclass(eq=False)
class RelayClient:
    """This node's reservations, and its circuits through gates."""

    swarm: NodeSwarm
    open_on: OpenOn
    wall: Callable[[], float]

    def __post_init__(self) -> None:
        self._held: dict[PeerId, _Held] = {}
        self.observed: dict[PeerId, Address] = {}
        """The address at which each recent gate sees this node."""
        self._unbound = Pauses(*UNBOUND_S, most=MAX_OBSERVED)
        """Gates with which no data connection could be made."""
        self._asking: WeakKeyDictionary[SwarmConn, trio.Semaphore] = WeakKeyDictionary()

    # -- reservations --------------------------------------------------------------------------------------------------------

    async def reserve(self, gate: PeerId, addresses: Sequence[Address]) -> Reservation:
        """Make or renew a reservation at `gate`. Raises Refused, and libp2p's errors if the gate cannot be reached."""
        connection = await self._near(gate, addresses)
        stream = await self.open_on(connection, [OWN_HOP, HOP])
        try:
            answer = await self._request(stream, HopMessage(type=HopMessage.RESERVE), gate)
        finally:
            await stream.aclose()
        ttl_s = min(max(answer.reservation.expire - self.wall(), LEAST_TTL_S), MOST_TTL_S)
        dialled = (
            usable(connection.get_transport_addresses()) if connection.direction is Direction.OUTBOUND else ()
        )
        announced = sorted(from_wire(answer.reservation.addrs), key=is_private)
        ways = tuple(
            dict.fromkeys((*dialled, *announced, *without_names(usable(addresses))))
        )  # the best first
        if not ways:
            raise SwarmException("the gate does not send an address of its own")
        first, *others = (str(Circuit(gate, way)) for way in ways)
        reservation = Reservation(gate=gate, address=first, ttl_s=ttl_s, others=tuple(others[:MAX_OTHERS]))
        self._held[gate] = _Held(reservation, connection, trio.current_time() + ttl_s)
        return reservation

    def reservations(self) -> tuple[Reservation, ...]:
        """The reservations that have not ended."""
        now = trio.current_time()
        self._held = {
            gate: held
            for gate, held in self._held.items()
            if held.until > now and self.swarm.lives(held.connection)
        }
        return tuple(held.reservation for held in self._held.values())

    def holds(self, gate: PeerId) -> bool:
        """Whether there is a reservation at `gate`."""
        return any(reservation.gate == gate for reservation in self.reservations())

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def call(self, circuit: Circuit, peer: ID) -> INetConn:
        """A connection with `peer` through a gate, secured end to end. Raises SwarmException."""
        try:
            connection = await self._near(circuit.gate, [circuit.address])
            raw = await self._circuit(connection, peer)
            try:
                await raw.announce()
                return await self.swarm.upgrade_outbound_raw_conn(raw, peer)
            except BaseException:
                await raw.abandon()
                raise
        except SwarmException:
            raise
        except Refused as refused:
            raise SwarmException(refused.what) from refused
        except (BaseLibp2pError, RemoteProtocolError, trio.BrokenResourceError, trio.TooSlowError) as error:
            raise SwarmException(f"the gate …{circuit.gate[-8:]}: {error}") from error

    async def _circuit(self, connection: SwarmConn, peer: ID) -> CircuitConn:
        """This node's half of a new circuit to `peer`, with nothing sent on it yet. Raises what a stream with a gate may raise."""
        async with self._asking.setdefault(connection, trio.Semaphore(MAX_ASKED)):
            stream = await self.open_on(connection, [OWN_HOP, HOP])
        try:
            request = HopMessage(type=HopMessage.CONNECT, peer=PeerMessage(id=peer.to_bytes()))
            await self._request(stream, request, stream.peer)
            binding = None
            if stream.protocol == OWN_HOP:
                with trio.fail_after(ASK_WITHIN_S):
                    binding = await read_binding(stream)
            bound = None if binding is None else await self.bind(stream, binding)
            return CircuitConn(stream, binding, bound, initiator=True)
        except BaseException:
            await stream.reset()
            raise

    async def bind(self, stream: Stream, binding: Binding) -> trio.SocketStream | None:
        """A data connection with the gate at the other end of `stream`; None if none can be made. Failures are remembered for a while."""
        where = stream.dialled if isinstance(stream, NodeStream) else None
        began = trio.current_time()
        if where is None or self._unbound.pauses(stream.peer, began):
            return None
        assert isinstance(stream, NodeStream)
        half: trio.SocketStream | None = None
        bound = refused = False
        try:
            with trio.fail_after(min(max(BIND_S, BIND_TRIPS * stream.rtt_s), MOST_BIND_S)):
                half = await trio.open_tcp_stream(*where)
                await bind(half, binding)
                bound = True
        except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
            refused = True
            log.debug("relay.unbound", gate=stream.peer, why=str(error))
        finally:
            now = trio.current_time()
            if bound:
                self._unbound.worked(stream.peer)
            elif refused or now > began + max(CANCELLED_S, 2 * stream.rtt_s):
                self._unbound.failed(stream.peer, now)
            if half is not None and not bound:
                await trio.aclose_forcefully(half)
        return half if bound else None

    async def take(self, raw: CircuitConn, caller: PeerId) -> trio.Event:
        """Secure a circuit that a gate passed on; returns the event set at its end."""
        muxed = await self.swarm.upgrade_inbound_raw_conn(raw, raw.get_transport_addresses()[0])
        if not isinstance(muxed, BoundedYamux) or str(muxed.peer_id) != caller:
            await muxed.close()
            raise RemoteProtocolError(f"the gate said that {caller} calls, but it was {muxed.peer_id}")
        return muxed.event_closed

    # -- requests to the gate -----------------------------------------------------------------------------------------

    async def _near(self, gate: PeerId, addresses: Sequence[Address]) -> SwarmConn:
        """A direct connection with a gate."""
        target = ID(peer_id_bytes(gate))
        if target == self.swarm.get_peer_id():
            raise SwarmException("this node is that gate")
        if self.swarm.direct(target) is None:
            await self.swarm.reach(target, usable(addresses))
        conn = self.swarm.direct(target)
        if conn is None:
            raise SwarmException(f"the gate …{gate[-8:]} cannot be reached directly")
        return conn

    async def _request(self, stream: Stream, request: HopMessage, gate: PeerId) -> HopMessage:
        with trio.fail_after(ANSWER_WITHIN_S):
            await write_message(stream, request)
            answer = await read_message(stream, HopMessage())
        if answer.type != HopMessage.STATUS:
            raise RemoteProtocolError(f"the gate {gate} sent another message than a status")
        if answer.status != OK:
            reason, words = REASONS.get(answer.status, (Reason.NOT_SERVING, f"status {answer.status}"))
            raise Refused(f"the gate …{gate[-8:]} refuses: {words}", reason=reason)
        observed = from_wire(answer.peer.addrs)
        if observed:
            self.observed.pop(gate, None)
            self.observed[gate] = observed[0]
            if len(self.observed) > MAX_OBSERVED:
                del self.observed[next(iter(self.observed))]
        return answer


# -- circuits ----------------------------------------------------------------------------------------------------------------


class CircuitConn(CarriedConnection):
    """A data connection or a stream with a gate, as a libp2p raw connection on which Noise and yamux run end to end."""

    def __init__(
        self,
        stream: Stream,
        binding: Binding | None = None,
        bound: trio.abc.HalfCloseableStream | None = None,
        *,
        initiator: bool,
    ) -> None:
        """`stream`: where the circuit was requested; `binding`: what the gate sent for it; `bound`: the data connection, if any."""
        self.is_initiator = initiator
        self.gate = stream.peer
        self._stream, self._binding, self._bound = stream, binding, bound
        self._half: Half = stream if bound is None else bound
        self._mask = None if binding is None else Mask(binding.mask, initiator=initiator)
        self._closed = False

    async def announce(self) -> None:
        """Tell the gate where this half of the circuit is, if it sent a binding. Must be called first."""
        if self._binding is not None:
            with trio.fail_after(ASK_WITHIN_S):
                await self._stream.send_all(STAYS if self._bound is None else BOUND)
            if self._bound is not None:
                await self._stream.aclose()

    async def read(self, n: int | None = None) -> bytes:
        """Up to `n` bytes; b"" at the end."""
        try:
            data = bytes(await self._half.receive_some(n if n is not None and n > 0 else READ))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise RawConnError("the circuit closed") from error
        return data if self._mask is None else self._mask.receive(data)

    async def write(self, data: bytes) -> None:
        """Send all bytes."""
        try:
            await self._half.send_all(data if self._mask is None else self._mask.send(data))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise RawConnError("the circuit closed") from error

    def secured(self) -> None:
        """Stop masking: what Noise encrypts after its handshake needs no mask."""
        self._mask = None

    async def close(self) -> None:
        """End the circuit; the gate then ends the other side."""
        if not self._closed:
            self._closed = True
            await self._half.aclose()

    async def abandon(self) -> None:
        """End the circuit at once."""
        self._closed = True
        await abandon(self._half)
        await self._stream.reset()

    def get_remote_address(self) -> tuple[str, int] | None:
        """None, since the gate's address is not the peer's."""
        return None

    def get_transport_addresses(self) -> list[Multiaddr]:
        """The gate's circuit address, which no code uses as an address of the peer."""
        return [Multiaddr(f"/p2p/{self.gate}/p2p-circuit")]

    def get_connection_type(self) -> ConnectionType:
        """Always relayed."""
        return ConnectionType.RELAYED


@dataclass(eq=False)
class StopServer:
    """Serves the stop protocol: circuits through gates where this node has a reservation."""

    holds: Callable[[PeerId], bool]
    """Whether this node has a reservation at this gate."""
    take: Callable[[CircuitConn, PeerId], Awaitable[trio.Event]]
    """Secures the raw connection, on which the caller must prove the id that the gate named; returns the event set at its end."""
    bind: Callable[[Stream, Binding], Awaitable[trio.abc.HalfCloseableStream | None]]
    """Opens a data connection with the gate of a stream, if one can be made."""

    def __post_init__(self) -> None:
        self._pending: Counter[PeerId] = Counter()
        self._through: Counter[PeerId] = Counter()

    async def serve(self, stream: Stream) -> None:
        """Serve one circuit while its connection lives."""
        with trio.fail_after(ASK_WITHIN_S):
            request = await read_message(stream, StopMessage())
            binding = await read_binding(stream) if stream.protocol == OWN_STOP else None
        if request.type != StopMessage.CONNECT:
            raise RemoteProtocolError("a gate sent another message than CONNECT")
        try:
            caller = peer_id_text(request.peer.id)
        except ValueError as error:
            raise RemoteProtocolError("a gate named a caller with a bad peer id") from error
        if not self.holds(stream.peer):
            await _answer(stream, PERMISSION_DENIED)
            return
        if (
            self._pending.total() >= MAX_PENDING
            or self._pending[caller] >= MAX_PENDING_OF_CALLER
            or self._through[stream.peer] >= MAX_PENDING_OF_GATE
        ):
            await _answer(stream, RESOURCE_LIMIT_EXCEEDED)
            return
        self._pending[caller] += 1
        self._through[stream.peer] += 1
        try:
            ended = await self._begin(stream, binding, caller)
        finally:
            for counts, key in ((self._pending, caller), (self._through, stream.peer)):
                counts[key] -= 1
                if not counts[key]:
                    del counts[key]
        await ended.wait()

    async def _begin(self, stream: Stream, binding: Binding | None, caller: PeerId) -> trio.Event:
        """Accept the circuit and secure it; returns the event set at its end."""
        bound = None if binding is None else await self.bind(stream, binding)
        raw = CircuitConn(stream, binding, bound, initiator=False)
        try:
            await _answer(stream, OK)
            await raw.announce()
            return await self.take(raw, caller)
        except BaseException:
            await raw.abandon()
            raise


async def _answer(stream: Stream, status: Status.ValueType) -> None:
    with trio.fail_after(ASK_WITHIN_S):
        await write_message(stream, StopMessage(type=StopMessage.STATUS, status=status))
