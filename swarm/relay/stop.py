"""A circuit's two ends: a stream with a gate becomes a raw connection, as a socket is one, and is then secured as one.

`CircuitConn` is that raw connection; `StopServer` takes the calls that gates pass on to a node which holds places with them.
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
MAX_RINGING: Final = 16
"""Calls being secured at a time."""
MAX_RINGING_OF_CALLER: Final = 2
"""Of these, calls of one peer, by the name that the gate gives."""
MAX_RINGING_OF_GATE: Final = 8
"""And calls through one gate: one that makes up callers does not keep those of other gates out."""
READ: Final = 65_536


class CircuitConn(IRawConnection):
    """A stream with a gate as libp2p's raw connection, on which Noise and yamux are then spoken end to end."""

    def __init__(self, stream: Stream, *, initiator: bool) -> None:
        self.is_initiator = initiator
        self.gate = stream.peer
        self._stream = stream
        self._closed = False

    async def read(self, n: int | None = None) -> bytes:
        """Up to `n` bytes; b"" when the other end has finished."""
        try:
            return await self._stream.receive_some(n if n is not None and n > 0 else READ)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise RawConnError("the circuit broke") from error

    async def write(self, data: bytes) -> None:
        """Send all of it."""
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise RawConnError("the circuit broke") from error

    async def close(self) -> None:
        """End the circuit; the gate then tells the other end."""
        if not self._closed:
            self._closed = True
            await self._stream.aclose()

    def get_remote_address(self) -> tuple[str, int] | None:
        """None: the gate's address says nothing of the peer."""
        return None

    def get_transport_addresses(self) -> list[Multiaddr]:
        """The gate and the mark of a circuit, which no code takes for an address of the peer."""
        return [Multiaddr(f"/p2p/{self.gate}/p2p-circuit")]

    def get_connection_type(self) -> ConnectionType:
        """Relayed."""
        return ConnectionType.RELAYED


class StopServer:
    """Serves the stop protocol: calls through gates where this node holds a place."""

    def __init__(
        self, holds: Callable[[PeerId], bool], take: Callable[[CircuitConn, PeerId], Awaitable[trio.Event]]
    ) -> None:
        """`holds`: is there a place at this gate; `take`: secure the raw connection, on which the caller has to prove
        that it is who the gate says, and give what is set when it has ended."""
        self._holds = holds
        self._take = take
        self._ringing: Counter[PeerId] = Counter()
        self._through: Counter[PeerId] = Counter()

    async def serve(self, stream: Stream) -> None:
        """One call, for as long as its connection lives."""
        with trio.fail_after(ASK_WITHIN_S):
            asked = await read_message(stream, StopMessage())
        if asked.type != StopMessage.CONNECT:
            raise RemoteProtocolError("a gate said something else than that somebody calls")
        try:
            caller = peer_id_text(asked.peer.id)
        except ValueError as error:
            raise RemoteProtocolError("a gate named a caller that is no peer") from error
        if not self._holds(stream.peer):
            await _answer(stream, PERMISSION_DENIED)
            return
        if (
            self._ringing.total() >= MAX_RINGING
            or self._ringing[caller] >= MAX_RINGING_OF_CALLER
            or self._through[stream.peer] >= MAX_RINGING_OF_GATE
        ):
            await _answer(stream, RESOURCE_LIMIT_EXCEEDED)
            return
        self._ringing[caller] += 1
        self._through[stream.peer] += 1
        try:
            await _answer(stream, OK)
            ended = await self._take(CircuitConn(stream, initiator=False), caller)
        finally:
            for counts, key in ((self._ringing, caller), (self._through, stream.peer)):
                counts[key] -= 1
                if not counts[key]:
                    del counts[key]
        await ended.wait()


async def _answer(stream: Stream, status: Status.ValueType) -> None:
    with trio.fail_after(ASK_WITHIN_S):
        await write_message(stream, StopMessage(type=StopMessage.STATUS, status=status))
