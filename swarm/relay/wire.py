"""Circuit relay v2 and DCUtR on the wire: libp2p's own messages and protocol names, so that other libp2p nodes can take part.

A message is a protobuf preceded by its length as a varint. After the last message, a hop or stop stream carries the circuit itself, so
nothing may be read beyond a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message
from libp2p.exceptions import BaseLibp2pError
from libp2p.io.abc import Reader
from libp2p.relay.circuit_v2.pb.circuit_pb2 import (
    CONNECTION_FAILED,
    MALFORMED_MESSAGE,
    NO_RESERVATION,
    PERMISSION_DENIED,
    RESERVATION_REFUSED,
    RESOURCE_LIMIT_EXCEEDED,
    UNEXPECTED_MESSAGE,
    Status,
)
from libp2p.utils.varint import encode_varint_prefixed, read_varint_prefixed_bytes_limited

from protocol.errors import RemoteProtocolError
from protocol.words import Reason
from swarm.net.network import Stream
from swarm.net.reservations import DeclineReason
from swarm.relay.data_connections import Binding

HOP: Final = "/libp2p/circuit/relay/0.2.0/hop"
"""To a gate: requests a reservation, or a circuit to a peer that has one."""
OWN_HOP: Final = "/sark/hop/3"
"""As `HOP`, under Sark's own name: a peer that uses it is a Sark node, whose protocols need no check. After an accepted CONNECT comes a
binding, and the caller says whether it has bound a data connection."""
STOP: Final = "/libp2p/circuit/relay/0.2.0/stop"
"""From a gate: a peer opens a circuit to this node."""
OWN_STOP: Final = "/sark/stop/2"
"""As `STOP`, under Sark's own name: a binding follows, and the answer says whether a data connection is bound."""
DCUTR: Final = "/libp2p/dcutr"
MAX_MESSAGE: Final = 4096
"""In bytes; Sark's own messages are under 1 KiB."""

STATUS: Final[Mapping[DeclineReason, Status.ValueType]] = {
    DeclineReason.DRAINING: RESERVATION_REFUSED,
    DeclineReason.NOT_ALLOWED: PERMISSION_DENIED,
    DeclineReason.RELAYED: PERMISSION_DENIED,
    DeclineReason.TOO_OFTEN: RESOURCE_LIMIT_EXCEEDED,
    DeclineReason.FULL: RESOURCE_LIMIT_EXCEEDED,
    DeclineReason.NETWORK_SHARE: RESOURCE_LIMIT_EXCEEDED,
    DeclineReason.PEER_SHARE: RESOURCE_LIMIT_EXCEEDED,
    DeclineReason.NO_RESERVATION: NO_RESERVATION,
    DeclineReason.TARGET_SILENT: CONNECTION_FAILED,
    DeclineReason.MALFORMED: MALFORMED_MESSAGE,
}
REASONS: Final[Mapping[int, tuple[Reason, str]]] = {
    RESERVATION_REFUSED: (Reason.NOT_SERVING, "it is stopping"),
    RESOURCE_LIMIT_EXCEEDED: (Reason.OVERLOADED, "its limits are reached"),
    PERMISSION_DENIED: (Reason.NOT_ALLOWED, "it does not serve this node"),
    CONNECTION_FAILED: (Reason.LOST, "the peer did not accept the circuit"),
    NO_RESERVATION: (Reason.UNKNOWN, "the peer has no reservation there"),
    MALFORMED_MESSAGE: (Reason.BAD_REQUEST, "it did not understand the message"),
    UNEXPECTED_MESSAGE: (Reason.BAD_REQUEST, "it did not expect the message"),
}
"""The meaning of a received status."""

M = TypeVar("M", bound=Message)


async def write_message(stream: Stream, message: Message) -> None:
    """Send one message."""
    await stream.send_all(encode_varint_prefixed(message.SerializeToString()))


async def write_binding(stream: Stream, binding: Binding | None) -> None:
    """Send a binding; None: the called node does not support bindings."""
    await stream.send_all(encode_varint_prefixed(b"" if binding is None else binding.to_bytes()))


async def read_message(stream: Stream, empty: M) -> M:
    """Parse the next message into `empty`. Raises RemoteProtocolError if it is too large, truncated or invalid."""
    try:
        empty.ParseFromString(await read_varint_prefixed_bytes_limited(_Reader(stream), MAX_MESSAGE))
    except (BaseLibp2pError, DecodeError) as error:
        raise RemoteProtocolError(f"an invalid message on {stream.protocol}: {error}") from error
    return empty


async def read_binding(stream: Stream) -> Binding | None:
    """Read a binding. Raises RemoteProtocolError for anything else."""
    try:
        return Binding.parse(await read_varint_prefixed_bytes_limited(_Reader(stream), MAX_MESSAGE))
    except (BaseLibp2pError, ValueError) as error:
        raise RemoteProtocolError(f"an invalid binding on {stream.protocol}: {error}") from error


class _Reader(Reader):
    """A stream in the form that libp2p's helpers read."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def read(self, n: int | None = None) -> bytes:
        assert n is not None
        return await self._stream.receive_some(n)
