"""libp2p's streams with trio's semantics.

Bytes sent before `aclose` reach the peer as long as the connection lives. Only an answer of the protocol above can tell whether the peer
has *used* them. Close after the answer, or accept that a lost link takes the last bytes with it.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import Final

import trio
from libp2p.exceptions import BaseLibp2pError
from libp2p.network.stream.net_stream import NetStream
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedStreamEOF

from protocol.words import ProtocolId
from swarm.net.addresses import PeerId
from swarm.p2p.connection_value import ConnectionUse
from swarm.p2p.muxed_stream import PatientStream

CLOSE_WITHIN_S: Final = 1.0


class NodeStream:
    """One ordered byte stream with a peer, as `swarm.net.network.Stream` describes it."""

    def __init__(self, inner: NetStream, protocol: str, *, opened_by_peer: bool = False) -> None:
        if not isinstance(inner.muxed_stream, PatientStream):
            raise TypeError("harden() must run before the first connection")
        self._inner = inner
        self._muxed: PatientStream = inner.muxed_stream
        self.peer: PeerId = str(inner.muxed_conn.peer_id)
        self.peer_id: ID = inner.muxed_conn.peer_id
        """The peer's id as libp2p's type."""
        self.protocol = protocol
        self.relayed = self._muxed.conn.relayed
        """Whether the connection goes through a gate."""
        self.outbound = self._muxed.conn.is_initiator
        """Whether this node dialled the connection."""
        self._use = self._muxed.conn.use if protocol != ProtocolId.HEALTH else ConnectionUse()
        self._opened_by_peer = opened_by_peer
        self._closed = False
        self._ended = False
        self._sending = False
        self._receiving = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of `data`; waits while the peer's window is full."""
        with self._one_sender(), self._translated(), memoryview(data) as whole, whole.cast("B") as view:
            if self._ended:
                raise trio.ClosedResourceError("nothing can be sent after send_eof")
            if not view:
                await trio.lowlevel.checkpoint()
            await self._muxed.write(view)
            if self._opened_by_peer:
                self._use.note(trio.current_time(), answered=False)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until a byte could be sent at once."""
        with self._one_sender():
            await trio.lowlevel.checkpoint()
            await self._muxed.writable()
            self._check_open()

    async def receive_some(self, max_bytes: int = 262_144) -> bytes:
        """At least one byte, or b"" when the peer has finished sending. A cancelled call loses no bytes."""
        if operator.index(max_bytes) < 1:
            raise ValueError("max_bytes must be at least 1")
        if self._receiving:
            raise trio.BusyResourceError("another task is receiving on this stream")
        self._check_open()
        self._receiving = True
        try:
            with self._translated():
                try:
                    data = await self._muxed.read(max_bytes)
                    if not self._opened_by_peer:
                        self._use.note(trio.current_time(), answered=True)
                    return data
                except MuxedStreamEOF:
                    self._check_open()
                    return b""
        finally:
            self._receiving = False

    @property
    def dialled(self) -> tuple[str, int] | None:
        """IP address and port of the peer, if this node dialled it directly."""
        conn = self._muxed.conn
        return conn.secured_conn.get_remote_address() if conn.is_initiator else None

    @property
    def rtt_s(self) -> float:
        """Round-trip time of the connection in seconds; 0 before the first measurement."""
        return self._muxed.conn.rtt_s or 0.0

    def at_work(self) -> None:
        """Count the connection as used, since the bytes for which this stream was opened take another path."""
        self._use.note(trio.current_time(), answered=not self._opened_by_peer)

    def carries(self) -> None:
        """Mark this stream as a circuit: only its own window limits the sender."""
        self._muxed.conn.carry(self._muxed)

    async def send_eof(self) -> None:
        """Finish sending; reading remains possible."""
        with self._one_sender(), self._translated():
            if self._ended:
                await trio.lowlevel.checkpoint()
                return
            self._ended = True
            await self._muxed.close()

    async def aclose(self) -> None:
        """Close both directions, giving sent data a chance to arrive. Never raises on a broken stream."""
        if not self._closed:
            self._closed = True
            self._muxed.stop()
            with (
                trio.move_on_after(CLOSE_WITHIN_S, shield=True),
                contextlib.suppress(BaseLibp2pError, OSError),
            ):
                await self._inner.close()
        await trio.lowlevel.checkpoint()

    async def reset(self) -> None:
        """Abandon both directions at once. Never raises."""
        self._closed = True
        self._muxed.stop()
        with trio.move_on_after(CLOSE_WITHIN_S, shield=True), contextlib.suppress(BaseLibp2pError, OSError):
            await self._inner.reset()

    @contextlib.contextmanager
    def _one_sender(self) -> Iterator[None]:
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._check_open()
        self._sending = True
        try:
            yield
        finally:
            self._sending = False

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed here")

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate libp2p's errors on a stream into trio's, in this one place."""
        try:
            yield
        except (BaseLibp2pError, OSError) as error:
            self._check_open()
            raise trio.BrokenResourceError(f"the stream with {self.peer} broke") from error
