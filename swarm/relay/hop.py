"""The gate's side of relaying: accepts reservations, calls targets, and passes bytes until a limit is reached.

Caller and target encrypt end to end, so the gate sees only ciphertext. It trusts only what the channel proved about a peer: its id and
address. `swarm.net.reservations` makes all decisions. If both ends are Sark nodes, each says whether its half of a circuit is a data
connection or stays on the stream on which the circuit was requested.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final, NamedTuple

import structlog
import trio
from libp2p.relay.circuit_v2.pb.circuit_pb2 import (
    OK,
    HopMessage,
    Limit,
    Reservation,
    StopMessage,
)
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as PeerMessage
from multiaddr import Multiaddr

from protocol.errors import RemoteProtocolError, Unreachable
from swarm.net.addresses import Address, PeerId, parse_tcp
from swarm.net.identity import peer_id_bytes, peer_id_text
from swarm.net.network import Stream
from swarm.net.reservations import (
    CircuitEnd,
    DeclineReason,
    OpenCircuit,
    RelayReservations,
    ReservationDeclined,
)
from swarm.p2p.stream import NodeStream
from swarm.relay.data_connections import (
    BOUND,
    MASK_SIZE,
    STAYS,
    Binding,
    DataConnections,
    ExpectedConnection,
    Half,
    abandon,
)
from swarm.relay.passing import passage
from swarm.relay.wire import OWN_HOP, OWN_STOP, STATUS, STOP, read_message, write_binding, write_message

ASK_WITHIN_S: Final = 10.0
"""Time limit for a whole request."""
CALL_WITHIN_S: Final = 8.0
"""Time limit for the target to accept; callers wait slightly longer."""
SEND_STATUS_WITHIN_S: Final = 5.0
CHOOSE_WITHIN_S: Final = 5.0
"""Time limit for the caller to say where its half of a circuit is."""
SEND_WITHIN_S: Final = 30.0
"""A peer that reads nothing for this long loses its circuit."""
QUIET_S: Final = 90.0
"""A circuit on which nothing is sent for this long also ends; normally both ends ping each other every few seconds."""
LAST_WORDS_S: Final = 10.0
"""Time that remains after one side has finished."""

log = structlog.get_logger("sark.relay")


class _Target(NamedTuple):
    """A target's answer."""

    stream: Stream
    """The stream on which the gate called the target."""
    half: Half
    masked: bool
    """The target knows the mask."""


@dataclass(eq=False)
class RelayHop:
    """Serves the hop protocol."""

    me: PeerId
    relay: RelayReservations
    halves: DataConnections
    _: KW_ONLY
    seen_at: Callable[[PeerId], Address | None]
    """The remote address of a peer's direct connection."""
    call: Callable[[PeerId, Sequence[str]], Awaitable[Stream]]
    """Opens a stop stream on that connection, with the first of the protocols that the peer supports; raises `Unreachable`."""
    belongs: Callable[[PeerId], Awaitable[bool]]
    """Whether a peer supports our protocols."""
    addresses: Callable[[], Sequence[Address]]
    """The addresses of this gate."""
    wall: Callable[[], float]
    """Seconds since 1970."""

    async def serve(self, stream: Stream) -> None:
        """Serve one hop stream while its circuit lives."""
        try:
            with trio.fail_after(ASK_WITHIN_S):
                request = await read_message(stream, HopMessage())
        except (RemoteProtocolError, trio.TooSlowError):
            self.relay.decline(DeclineReason.MALFORMED)
            raise
        try:
            if request.type not in (HopMessage.RESERVE, HopMessage.CONNECT):
                raise self.relay.decline(DeclineReason.MALFORMED)
            if stream.protocol != OWN_HOP and not await self.belongs(stream.peer):
                raise self.relay.decline(DeclineReason.NOT_ALLOWED)
            if request.type == HopMessage.RESERVE:
                await self._reserve(stream)
            else:
                await self._connect(stream, request)
        except ReservationDeclined as declined:
            # as a number: a stranger's request type may have no name
            log.debug("relay.declined", peer=stream.peer, why=declined.reason.value, request=request.type)
            await self._send(stream, HopMessage(type=HopMessage.STATUS, status=STATUS[declined.reason]))

    async def _reserve(self, stream: Stream) -> None:
        """Reserve for the peer id that the channel proved, whatever the message says."""
        observed = self.seen_at(stream.peer)
        reservation = self.relay.reserve(stream.peer, _ip(observed), trio.current_time())
        ttl_s = reservation.until - trio.current_time()
        own = [Multiaddr(f"{address}/p2p/{self.me}").to_bytes() for address in self.addresses()]
        answer = HopMessage(
            type=HopMessage.STATUS,
            status=OK,
            peer=_peer(stream.peer, observed),
            reservation=Reservation(expire=math.ceil(self.wall() + ttl_s), addrs=own),
            limit=self._limit(),
        )
        await self._send(stream, answer)

    async def _connect(self, stream: Stream, request: HopMessage) -> None:
        try:
            target = peer_id_text(request.peer.id)
        except ValueError:
            raise self.relay.decline(DeclineReason.MALFORMED) from None
        observed = self.seen_at(stream.peer)
        if self.seen_at(target) is None:
            self.relay.release(target)  # the target's connection is gone
        circuit = self.relay.begin(stream.peer, _ip(observed), target, trio.current_time())
        try:
            with self.halves.expect() as calling, self.halves.expect() as called:
                await self._establish(stream, circuit, observed, calling, called)
        finally:
            self.relay.end(circuit, None)  # has no effect if the circuit was established

    async def _establish(
        self,
        hop: Stream,
        circuit: OpenCircuit,
        observed: Address | None,
        calling: ExpectedConnection,
        called: ExpectedConnection,
    ) -> None:
        """Make both ends accept the circuit, and carry it until it ends."""
        mask = secrets.token_bytes(MASK_SIZE) if hop.protocol == OWN_HOP else None
        target = await self._call_target(circuit, observed, called, mask)
        try:
            answer = HopMessage(
                type=HopMessage.STATUS, status=OK, peer=_peer(hop.peer, observed), limit=self._limit()
            )
            await self._send(hop, answer)
            calling_half: Half = hop
            if mask is not None:
                with trio.fail_after(CHOOSE_WITHIN_S):
                    await write_binding(hop, Binding(calling.id, mask) if target.masked else None)
                    if target.masked:
                        calling_half = await self._chosen(hop, calling)
        except BaseException:
            await abandon(target.half)
            raise
        await self._carry(calling_half, target.half, circuit, (hop, target.stream))

    async def _call_target(
        self, circuit: OpenCircuit, observed: Address | None, called: ExpectedConnection, mask: bytes | None
    ) -> _Target:
        """Make the target accept the circuit."""
        try:
            with trio.fail_after(CALL_WITHIN_S):
                stream = await self.call(circuit.target, [STOP] if mask is None else [OWN_STOP, STOP])
                call = StopMessage(
                    type=StopMessage.CONNECT, peer=_peer(circuit.source, observed), limit=self._limit()
                )
                half: Half | None = None
                try:
                    await write_message(stream, call)
                    masked = mask is not None and stream.protocol == OWN_STOP
                    if mask is not None and masked:
                        await write_binding(stream, Binding(called.id, mask))
                    answer = await read_message(stream, StopMessage())
                    if answer.type == StopMessage.STATUS and answer.status == OK:
                        half = await self._chosen(stream, called) if masked else stream
                finally:
                    if half is None:
                        await stream.reset()
                if half is not None:
                    return _Target(stream, half, masked)
        except (Unreachable, RemoteProtocolError, trio.BrokenResourceError, trio.TooSlowError) as error:
            log.debug("relay.unanswered", target=circuit.target, why=str(error))
        raise self.relay.decline(DeclineReason.TARGET_SILENT)

    async def _chosen(self, stream: Stream, expected: ExpectedConnection) -> Half:
        """The half that an end of a circuit announces: its data connection, or the stream."""
        choice = await stream.receive_some(1)
        if choice == STAYS:
            self.halves.drop(expected)
            return stream
        if choice != BOUND or expected.stream is None:
            raise RemoteProtocolError(f"{stream.peer} did not say where its half of the circuit is")
        await stream.aclose()
        return expected.stream

    async def _carry(
        self, calling: Half, called: Half, circuit: OpenCircuit, streams: Sequence[Stream]
    ) -> None:
        """Pass bytes until the circuit ends, then close both halves. `streams`: those on which the circuit was requested."""
        why = CircuitEnd.STOPPED  # unless something else ends it before this node stops
        try:
            why = await self._pass_on(calling, called, circuit, streams)
        finally:
            self.relay.end(circuit, why)
            log.info(
                "relay.ended",
                source=circuit.source,
                target=circuit.target,
                why=why.value,
                bytes=circuit.carried,
                seconds=round(trio.current_time() - circuit.began, 1),
            )
            await _end(called, why)
            await _end(calling, why)

    async def _pass_on(
        self, calling: Half, called: Half, circuit: OpenCircuit, streams: Sequence[Stream]
    ) -> CircuitEnd:
        """Pass bytes in both directions until one side ends the circuit, or a limit is reached."""
        why = CircuitEnd.CLOSED
        for stream in (calling, called):
            if isinstance(stream, NodeStream):
                stream.carries()
        with trio.CancelScope() as both, trio.move_on_at(circuit.ends_at) as lifetime:
            finished = 0

            def stop(reason: CircuitEnd) -> None:
                nonlocal why
                why = reason
                both.cancel()

            async def pump(source: Half, sink: Half) -> None:
                nonlocal finished
                at_once = self.relay.limits.bytes_per_s is None
                way = passage(source, sink, at_once=at_once)
                try:
                    while True:
                        size = await way.take(QUIET_S)
                        if not size:
                            break
                        if (limit := self.relay.carry(circuit, size)) is not None:
                            return stop(limit)
                        wait_s = self.relay.pace(size, trio.current_time())
                        if wait_s > 0:
                            await trio.sleep(wait_s)
                        await way.give(SEND_WITHIN_S)
                        for stream in streams if source is called else ():
                            if isinstance(stream, NodeStream):
                                stream.at_work()
                    await sink.send_eof()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return stop(CircuitEnd.CLOSED)
                except trio.TooSlowError:
                    return stop(CircuitEnd.CLOSED if finished else CircuitEnd.IDLE)
                finished += 1
                both.deadline = min(both.deadline, trio.current_time() + LAST_WORDS_S)
                return None

            async with trio.open_nursery() as nursery:
                nursery.start_soon(pump, calling, called)
                nursery.start_soon(pump, called, calling)
        return CircuitEnd.TIME if lifetime.cancelled_caught else why

    async def _send(self, stream: Stream, answer: HopMessage) -> None:
        with trio.fail_after(SEND_STATUS_WITHIN_S):
            await write_message(stream, answer)

    def _limit(self) -> Limit:
        limits = self.relay.limits
        return Limit(duration=math.floor(limits.circuit_s), data=limits.circuit_bytes)


async def _end(half: Half, why: CircuitEnd) -> None:
    """Close a half gracefully after a normal end, and at once otherwise."""
    if why is CircuitEnd.CLOSED:
        await half.aclose()
    else:
        await abandon(half)


def _peer(peer: PeerId, observed: Address | None) -> PeerMessage:
    """A peer and the address at which this gate sees it, for hole punching."""
    addresses = [] if observed is None else [Multiaddr(observed).to_bytes()]
    return PeerMessage(id=peer_id_bytes(peer), addrs=addresses)


def _ip(observed: Address | None) -> str | None:
    address = parse_tcp(observed) if observed is not None else None
    return None if address is None else address.host
