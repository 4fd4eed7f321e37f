"""The ends of a circuit: a stream with a gate becomes a raw connection, which is then secured as a socket is.

`StopServer` accepts the circuits that gates pass on to a node with a reservation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import trio
from libp2p.abc import IRawConnection
from libp2p.connection_types import ConnectionType
from libp2p.network.connection.exceptions import RawConnError
from libp2p.relay.circuit_v2.pb.circuit_pb2 import (
    OK,
    PERMISSION_DENIED,
    RESOURCE_LIMIT_EXCEEDED,
    Status,
    StopMessage,
)
from multiaddr import Multiaddr

from protocol.errors import RemoteProtocolError
from swarm.net.addresses import PeerId
from swarm.net.identity import peer_id_text
from swarm.net.network import Stream
from swarm.relay.wire import read_message, write_message

ASK_WITHIN_S: Final = 5.0
MAX_PENDING: Final = 16
"""Circuits being secured at a time."""
MAX_PENDING_OF_CALLER: Final = 2
"""Of one caller, as the gate names it."""
MAX_PENDING_OF_GATE: Final = 8
"""Through one gate, so that one that invents callers does not block other gates."""
READ: Final = 65_536


class CircuitConn(IRawConnection):
    """A stream with a gate as a raw connection of libp2p, on which Noise and yamux run end to end."""

    def __init__(self, stream: Stream, *, initiator: bool) -> None:
        self.is_initiator = initiator
        self.gate = stream.peer
        self._stream = stream
        self._closed = False

    async def read(self, n: int | None = None) -> bytes:
        """Up to `n` bytes; b"" at the end."""
        try:
            return await self._stream.receive_some(n if n is not None and n > 0 else READ)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise RawConnError("the circuit closed") from error

    async def write(self, data: bytes) -> None:
        """Send all bytes."""
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise RawConnError("the circuit closed") from error

    async def close(self) -> None:
        """End the circuit; the gate then ends the other side."""
        if not self._closed:
            self._closed = True
            await self._stream.aclose()

    def get_remote_address(self) -> tuple[str, int] | None:
        """None: the gate's address is not the peer's."""
        return None

    def get_transport_addresses(self) -> list[Multiaddr]:
        """The gate's circuit address, which no code uses as an address of the peer."""
        return [Multiaddr(f"/p2p/{self.gate}/p2p-circuit")]

    def get_connection_type(self) -> ConnectionType:
        """Relayed."""
        return ConnectionType.RELAYED


class StopServer:
    """Serves the stop protocol: circuits through gates where this node has a reservation."""

    def __init__(
        self, holds: Callable[[PeerId], bool], take: Callable[[CircuitConn, PeerId], Awaitable[trio.Event]]
    ) -> None:
        """`holds`: whether there is a reservation at this gate; `take`: secures the raw connection, on which the caller must prove
        the id that the gate gave, and returns the event of its end."""
        self._holds = holds
        self._take = take
        self._pending: Counter[PeerId] = Counter()
        self._through: Counter[PeerId] = Counter()

    async def serve(self, stream: Stream) -> None:
        """Serve one circuit, as long as its connection lives."""
        with trio.fail_after(ASK_WITHIN_S):
            request = await read_message(stream, StopMessage())
        if request.type != StopMessage.CONNECT:
            raise RemoteProtocolError("a gate sent another message than CONNECT")
        try:
            caller = peer_id_text(request.peer.id)
        except ValueError as error:
            raise RemoteProtocolError("a gate named a caller with a bad peer id") from error
        if not self._holds(stream.peer):
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
            await _answer(stream, OK)
            ended = await self._take(CircuitConn(stream, initiator=False), caller)
        finally:
            for counts, key in ((self._pending, caller), (self._through, stream.peer)):
                counts[key] -= 1
                if not counts[key]:
                    del counts[key]
        await ended.wait()


async def _answer(stream: Stream, status: Status.ValueType) -> None:
    with trio.fail_after(ASK_WITHIN_S):
        await write_message(stream, StopMessage(type=StopMessage.STATUS, status=status))
