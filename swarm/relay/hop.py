"""The gate's side of circuits: lends places, calls those who hold them, and passes bytes on until a limit is reached.

What a caller and a called node send each other is secured between the two; the gate sees sealed bytes. It believes of a peer only
what its channel has proved: whose id it is and where it comes from. All decisions are the desk's (`relay_desk`).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog
import trio
from libp2p.relay.circuit_v2.pb.circuit_pb2 import OK, HopMessage, Limit, Reservation, StopMessage
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
from swarm.relay.wire import OWN_HOP, STATUS, read_message, write_message

ASK_WITHIN_S: Final = 10.0
"""A question must be whole by then."""
CALL_WITHIN_S: Final = 8.0
"""So long a called node has to take the call; callers wait a little longer."""
TELL_WITHIN_S: Final = 5.0
SEND_WITHIN_S: Final = 30.0
"""A peer that takes nothing for so long has lost its circuit."""
QUIET_S: Final = 90.0
"""So has one where nothing is said for so long; the two ends ask each other every few seconds whether they are there."""
LAST_WORDS_S: Final = 10.0
"""After one of the two has finished."""
CHUNK: Final = 65_507
"""One frame in, one frame out; and where the gate's bytes a second are limited, nobody waits long for another's turn."""

log = structlog.get_logger("sark.relay")


class RelayHop:
    """Serves the hop protocol for one desk."""

    def __init__(
        self,
        me: PeerId,
        desk: RelayReservations,
        *,
        seen_at: Callable[[PeerId], Address | None],
        call: Callable[[PeerId], Awaitable[Stream]],
        belongs: Callable[[PeerId], Awaitable[bool]],
        told: Callable[[], Sequence[Address]],
        carries: Callable[[Stream], None] = lambda stream: None,
        wall: Callable[[], float],
    ) -> None:
        """`seen_at`: where a peer's direct connection comes from; `call`: a stop stream on a peer's direct connection, or
        Unreachable; `belongs`: does the peer speak our protocols; `told`: where this gate is dialled; `carries`: told of each stream that
        carries a circuit from now on; `wall`: seconds since 1970."""
        self._me = me
        self._desk = desk
        self._seen_at = seen_at
        self._call = call
        self._belongs = belongs
        self._told = told
        self._carries = carries
        self._wall = wall

    async def serve(self, stream: Stream) -> None:
        """One hop stream, for as long as its circuit lives."""
        try:
            with trio.fail_after(ASK_WITHIN_S):
                asked = await read_message(stream, HopMessage())
        except (RemoteProtocolError, trio.TooSlowError):
            self._desk.decline(DeclineReason.MALFORMED)
            raise
        try:
            if asked.type == HopMessage.RESERVE:
                await self._lend(stream)
            elif asked.type == HopMessage.CONNECT:
                await self._connect(stream, asked)
            else:
                raise self._desk.decline(DeclineReason.MALFORMED)
        except ReservationDeclined as declined:
            log.debug("relay.declined", peer=stream.peer, why=declined.reason.value, asked=_name(asked))
            await self._tell(stream, HopMessage(type=HopMessage.STATUS, status=STATUS[declined.reason]))

    async def _lend(self, stream: Stream) -> None:
        """A place for who asks: whatever id stands in the message, it is the channel's that counts."""
        if stream.protocol != OWN_HOP and not await self._belongs(stream.peer):
            raise self._desk.decline(DeclineReason.NOT_ALLOWED)
        seen = self._seen_at(stream.peer)
        slot = self._desk.reserve(stream.peer, _ip(seen), trio.current_time())
        ttl_s = slot.until - trio.current_time()
        answer = HopMessage(
            type=HopMessage.STATUS,
            status=OK,
            peer=_peer(stream.peer, seen),
            reservation=Reservation(expire=math.ceil(self._wall() + ttl_s), addrs=self._own_addresses()),
            limit=self._limit(),
        )
        await self._tell(stream, answer)

    async def _connect(self, stream: Stream, asked: HopMessage) -> None:
        try:
            target = peer_id_text(asked.peer.id)
        except ValueError:
            raise self._desk.decline(DeclineReason.MALFORMED) from None
        if stream.protocol != OWN_HOP and not await self._belongs(stream.peer):
            raise self._desk.decline(DeclineReason.NOT_ALLOWED)
        seen = self._seen_at(stream.peer)
        if self._seen_at(target) is None:
            self._desk.release(target)  # its connection is gone
        circuit = self._desk.begin(stream.peer, _ip(seen), target, trio.current_time())
        why: CircuitEnd | None = None
        try:
            other = await self._ring(circuit, seen)
            why = CircuitEnd.STOPPED  # unless something else ends it before this node stops
            try:
                answer = HopMessage(
                    type=HopMessage.STATUS, status=OK, peer=_peer(stream.peer, seen), limit=self._limit()
                )
                await self._tell(stream, answer)
                why = await self._splice(stream, other, circuit)
            finally:
                await _end(other, why)
                await _end(stream, why)
        finally:
            self._desk.end(circuit, why)
            if why is not None:
                log.info(
                    "relay.ended",
                    source=circuit.source,
                    target=circuit.target,
                    why=why.value,
                    bytes=circuit.carried,
                    seconds=round(trio.current_time() - circuit.began, 1),
                )

    async def _ring(self, circuit: OpenCircuit, seen: Address | None) -> Stream:
        """Have the called node take the call."""
        try:
            with trio.fail_after(CALL_WITHIN_S):
                other = await self._call(circuit.target)
                call = StopMessage(
                    type=StopMessage.CONNECT, peer=_peer(circuit.source, seen), limit=self._limit()
                )
                if await _is_taken(other, call):
                    return other
        except (Unreachable, RemoteProtocolError, trio.BrokenResourceError, trio.TooSlowError) as error:
            log.debug("relay.unanswered", target=circuit.target, why=str(error))
        raise self._desk.decline(DeclineReason.TARGET_SILENT)

    async def _splice(self, a: Stream, b: Stream, circuit: OpenCircuit) -> CircuitEnd:
        """Pass bytes both ways until one end, or a limit, has had enough."""
        why = CircuitEnd.CLOSED
        self._carries(a)
        self._carries(b)
        with trio.CancelScope() as all_of_it, trio.move_on_at(circuit.ends_at) as lifetime:
            finished = 0

            def over(reason: CircuitEnd) -> None:
                nonlocal why
                why = reason
                all_of_it.cancel()

            async def pump(source: Stream, sink: Stream) -> None:
                nonlocal finished
                try:
                    while True:
                        with trio.fail_after(QUIET_S):
                            data = await source.receive_some(CHUNK)
                        if not data:
                            break
                        if (enough := self._desk.carry(circuit, len(data))) is not None:
                            return over(enough)
                        wait_s = self._desk.pace(len(data), trio.current_time())
                        if wait_s > 0:
                            await trio.sleep(wait_s)
                        with trio.fail_after(SEND_WITHIN_S):
                            await sink.send_all(data)
                    await sink.send_eof()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return over(CircuitEnd.CLOSED)
                except trio.TooSlowError:
                    return over(CircuitEnd.CLOSED if finished else CircuitEnd.IDLE)
                finished += 1
                all_of_it.deadline = min(all_of_it.deadline, trio.current_time() + LAST_WORDS_S)
                return None

            async with trio.open_nursery() as nursery:
                nursery.start_soon(pump, a, b)
                nursery.start_soon(pump, b, a)
        return CircuitEnd.TIME if lifetime.cancelled_caught else why

    async def _tell(self, stream: Stream, answer: HopMessage) -> None:
        with trio.fail_after(TELL_WITHIN_S):
            await write_message(stream, answer)

    def _limit(self) -> Limit:
        limits = self._desk.limits
        return Limit(duration=math.floor(limits.circuit_s), data=limits.circuit_bytes)

    def _own_addresses(self) -> list[bytes]:
        return [Multiaddr(f"{address}/p2p/{self._me}").to_bytes() for address in self._told()]


async def _is_taken(stream: Stream, call: StopMessage) -> bool:
    """Ask the called node; the stream is reset unless it says yes."""
    taken = False
    try:
        await write_message(stream, call)
        answer = await read_message(stream, StopMessage())
        taken = answer.type == StopMessage.STATUS and answer.status == OK
    finally:
        if not taken:
            await stream.reset()
    return taken


async def _end(stream: Stream, why: CircuitEnd | None) -> None:
    """Close gently where the two were done, and at once where a limit was reached."""
    if why is CircuitEnd.CLOSED:
        await stream.aclose()
    else:
        await stream.reset()


def _peer(peer: PeerId, seen: Address | None) -> PeerMessage:
    """A peer with the address at which this gate sees it: what hole punching begins with."""
    addresses = [] if seen is None else [Multiaddr(seen).to_bytes()]
    return PeerMessage(id=peer_id_bytes(peer), addrs=addresses)


def _ip(seen: Address | None) -> str | None:
    address = parse_tcp(seen) if seen is not None else None
    return None if address is None else address.host


def _name(asked: HopMessage) -> str:
    return {HopMessage.RESERVE: "reserve", HopMessage.CONNECT: "connect"}.get(asked.type, "other")
