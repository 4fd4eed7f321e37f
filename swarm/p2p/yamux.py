"""Yamux as libp2p speaks it, with limits enforced: windows, buffers, pings, cancellation.

libp2p 0.8.1 only logs a peer that overruns its window and keeps the bytes. It never checks whether a silent peer is alive, resets a stream
whose reader pauses for 5 s, and leaves half a frame on the wire when a writer is cancelled. It ignores the end of a stream that comes with
an acknowledgement, and reads and writes each frame separately. This class and `PatientStream` replace libp2p's own; the frames on the wire
are the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import structlog
import trio
from libp2p.connection_types import ConnectionType
from libp2p.io.exceptions import IOException
from libp2p.network.connection.exceptions import RawConnError
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.stream_muxer.yamux import yamux

from swarm.net.memory import MemoryAccount
from swarm.p2p.connection_value import ConnectionUse
from swarm.p2p.due_checks import DueChecks
from swarm.p2p.frames import FrameParser, YamuxFrame, header
from swarm.p2p.muxed_stream import MAX_WINDOW, PatientStream, ReceiveBuffer
from swarm.p2p.session import FRAME_HEADER, MAX_PLAINTEXT, BatchSession

MAX_FRAME: Final = MAX_PLAINTEXT - FRAME_HEADER
"""Payload that fills exactly one Noise message behind the 12-byte frame header; the fastest size measured."""
MAX_BURST: Final = 4
"""Frames of one stream that are written at once if the peer takes them as fast as they come."""
QUICK_S: Final = 0.02
"""After a slower write than this, a stream writes a single frame next time, so that other streams have their turn in between."""
MAX_BUFFERED: Final = 8 * 1024 * 1024
"""Most bytes that one connection may hold for local readers that have not read them yet."""
MAX_STREAMS: Final = 512
"""Most streams on one connection, ours and the peer's."""
PING_EVERY_S: Final = 4.0
PONG_WITHIN_S: Final = 4.0
"""A link on which nothing is heard for `PING_EVERY_S` + `PONG_WITHIN_S`, despite a ping, is dead."""
CASUAL_PING_EVERY_S: Final = 30.0
CASUAL_PONG_WITHIN_S: Final = 12.0
"""The limits while nobody waits for anything. With 60 nodes all connected to one another on a busy machine and pinged every 4 s, many
answered too late, and the resulting disconnects caused more work (docs/decisions/2026-11-21-casual-connections.md)."""
BUSY_S: Final = 1.0
"""A check that runs this many seconds late shows a lack of processor time here, not a dead peer, so the peer is pinged again."""
WRITE_WITHIN_S: Final = 5.0
"""Seconds to write one frame. A frame must be finished once begun, and a socket that takes no bytes for this long is dead."""
RELAYED_WRITE_WITHIN_S: Final = 20.0
"""On a circuit, which waits for the connection that carries it, the gate, and a link beyond the gate."""

SWEEP_S: Final = 30.0
"""Between two checks for ended streams with bytes that nobody read."""

_LINK_ERRORS: Final = (RawConnError, IOException, OSError, trio.BrokenResourceError, trio.ClosedResourceError)


log = structlog.get_logger("sark.links")


class Overrun(Exception):
    """The peer sent more than it was granted, or something that is not yamux; the connection is closed."""


class BoundedYamux(yamux.Yamux):
    """A connection that closes itself if its peer overruns its window or falls silent."""

    secured_conn: BatchSession

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stream_buffers: dict[int, ReceiveBuffer] = {}  # type: ignore[assignment]  # libp2p looks at their lengths only
        self._parser = FrameParser()
        self.memory = MemoryAccount()
        """Shared by a node's connections. Circuits are limited by their number instead."""
        self.looks = DueChecks()
        """Shared by a node's connections."""
        self._swept_at = 0.0
        self.stream_turn: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        """Waits until a stream that the peer opened may be taken."""
        self._opened = 0
        """Streams that the peer opened since the last check."""
        self.owner = str(self.peer_id)
        self.heard_at = 0.0
        """When the peer was last heard, on trio's clock."""
        self.watched = False
        """Whether somebody waits for data on this connection, and must learn soon if none will come."""
        self.use = ConnectionUse()
        """How the streams of this connection are used, which decides what the connection is worth to us."""
        self.arrived = False
        """Whether the peer dialled us directly."""
        self.expected = 0
        """How many callers wait to learn whether the peer speaks a protocol."""
        self._said_at = 0.0
        """When data was first sent to the peer since it was last heard."""
        self.relayed = self.secured_conn.get_connection_type() is ConnectionType.RELAYED
        self._write_within_s = RELAYED_WRITE_WITHIN_S if self.relayed else WRITE_WITHIN_S
        self._burst = 1
        self.carriers: set[int] = set()
        """Streams that carry circuits: only their own windows limit their buffered bytes."""

    # -- incoming frames -------------------------------------------------------------------------------------------------

    async def handle_incoming(self) -> None:
        """Read until the connection ends or the peer breaks the rules; then close it and tell every stream."""
        try:
            while not self.event_shutting_down.is_set():
                while self._opened:  # read no more from a peer that opens many streams
                    self._opened -= 1
                    await self.stream_turn()
                message = await self.secured_conn.read()
                self.heard_at = trio.current_time()
                for frame, body, begins, ends in self._parser.feed(message):
                    if begins:
                        await self._begin(frame)
                    if body:
                        self._deliver(frame.stream_id, body)
                    if ends:
                        self._end(frame)
        except Overrun as error:
            log.info("link.broken", peer=self.owner, why=str(error))
        except _LINK_ERRORS:
            pass  # the connection ended
        await self._cleanup_on_error()

    async def _begin(self, frame: YamuxFrame) -> None:
        """Process a frame's header, before any body."""
        _, kind, flags, stream_id, length = frame
        if frame.version or kind > yamux.TYPE_GO_AWAY:
            raise Overrun(f"a frame of version {frame.version} and type {kind}")
        if kind == yamux.TYPE_GO_AWAY:
            self.event_shutting_down.set()
        elif kind == yamux.TYPE_PING:
            if flags & yamux.FLAG_SYN:
                await self._write_frame(header(kind, yamux.FLAG_ACK, 0, length))
            elif flags & yamux.FLAG_ACK:
                took = trio.current_time() - self._ping_sent_time
                self._rtt = (self._rtt + took) / 2 if self._rtt else took
                self._ping_event.set()
        else:
            if kind == yamux.TYPE_DATA and length > MAX_WINDOW:
                raise Overrun(f"a frame of {length} bytes is larger than any window")
            if flags & yamux.FLAG_SYN:
                await self._accept(stream_id)
            stream = self.streams.get(stream_id)
            if stream is None:
                return
            if kind == yamux.TYPE_WINDOW_UPDATE:
                stream.send_window += length
                _patient(stream).wake()
            elif length > stream.recv_window and not _patient(stream).stopped_locally:
                raise Overrun(f"stream {stream_id}: {length} bytes into a window of {stream.recv_window}")

    async def _accept(self, stream_id: int) -> None:
        """Accept a stream that the peer opens."""
        if stream_id in self.streams or stream_id % 2 == self.next_stream_id % 2:
            raise Overrun(f"stream {stream_id} is not the peer's to open")
        if len(self.streams) >= MAX_STREAMS:
            raise Overrun(f"more than {MAX_STREAMS} streams")
        self._opened += 1
        stream = PatientStream(stream_id, self, False)
        self._add(stream)
        await self._write_frame(header(yamux.TYPE_WINDOW_UPDATE, yamux.FLAG_ACK, stream_id, 0))
        await self.new_stream_send_channel.send(stream)

    def _add(self, stream: PatientStream) -> None:
        self.streams[stream.stream_id] = stream
        self.stream_buffers[stream.stream_id] = ReceiveBuffer()
        self.stream_events[stream.stream_id] = trio.Event()

    def _deliver(self, stream_id: int, body: bytes) -> None:
        """Deliver bytes to a stream, which may be gone by now. Raises `Overrun` if there is no room."""
        stream = self.streams.get(stream_id)
        if stream is None or stream.closed:
            return
        stream, size = _patient(stream), len(body)
        if stream.stopped_locally:
            # only once: a peer that keeps sending and reads nothing would make replies pile up here
            if not stream.refused:
                stream.refused = True
                self.later(stream.reset)
            return
        if stream_id not in self.carriers:
            waiting = size + self.waiting()
            if waiting > MAX_BUFFERED:
                raise Overrun(f"more than {MAX_BUFFERED} bytes wait on one connection")
            if not self.memory.buffer(self, waiting):
                raise Overrun("no memory is left, and this peer takes most of it")
        self.stream_buffers[stream_id].append(body)
        stream.recv_window -= size
        stream.hear()

    def _end(self, frame: YamuxFrame) -> None:
        """Process the end or reset of a stream, after the last byte of a frame."""
        stream = self.streams.get(frame.stream_id)
        if stream is None or not frame.flags & (yamux.FLAG_FIN | yamux.FLAG_RST):
            return
        stream = _patient(stream)
        if frame.flags & yamux.FLAG_RST:
            stream.closed = stream.reset_received = True
        elif not stream.recv_closed:
            stream.recv_closed = stream.finished = True
            stream.closed = stream.send_closed
        stream.hear()
        if stream.closed:
            stream.wake()
            self._finalize_stream_locked(stream, fully_closed=True)

    def waiting(self) -> int:
        """Bytes waiting for readers."""
        if self.event_closed.is_set():
            return 0
        return sum(len(buffer) for place, buffer in self.stream_buffers.items() if place not in self.carriers)

    def carry(self, stream: PatientStream) -> None:
        """Mark a stream as one that carries a circuit."""
        self.carriers = {place for place in self.carriers if place in self.streams} | {stream.stream_id}

    @property
    def rtt_s(self) -> float | None:
        """Smoothed round-trip time in seconds; None before the first measurement."""
        return self._rtt or None

    def spare(self) -> int:
        """By how many bytes the windows of streams may still grow."""
        granted = sum(stream.target_recv_window for stream in self.streams.values())
        return max(0, MAX_BUFFERED - granted)

    def later(self, action: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Run `action` in its own task, so that the caller need not wait and cannot cancel it."""
        if self._nursery is not None and not self.event_shutting_down.is_set():
            with contextlib.suppress(RuntimeError):  # the nursery is closed: the connection is ending
                self._nursery.start_soon(self._ignoring_a_lost_link, action, *arguments)

    async def _ignoring_a_lost_link(self, action: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        with contextlib.suppress(*_LINK_ERRORS):
            await action(*arguments)

    async def _cleanup_on_error(self) -> None:
        """Close everything; data that had arrived on finished streams stays readable."""
        self.memory.buffer(self, 0)
        streams = [_patient(stream) for stream in self.streams.values()]
        for stream in streams:
            if stream.finished:
                stream.rest = self.stream_buffers.get(stream.stream_id)
        await super()._cleanup_on_error()
        for stream in streams:
            stream.wake()

    async def close(self, error_code: int = yamux.GO_AWAY_NORMAL) -> None:
        """Close the connection as libp2p does, and wake the writers so that they notice."""
        streams = [_patient(stream) for stream in self.streams.values()]
        try:
            await super().close(error_code)
        finally:
            for stream in streams:
                stream.wake()

    # -- liveness ----------------------------------------------------------------------------------------------------------

    @property
    def has_waiters(self) -> bool:
        """Whether somebody waits on this connection now."""
        return self.watched or self.expected > 0

    async def _measure_rtt_loop(self) -> None:
        """Ping at once to measure the round trip, tolerating a slow first answer. From then on, the node's `DueChecks` look at it."""
        self.heard_at = trio.current_time()
        with contextlib.suppress(*_LINK_ERRORS):
            await self._ask(first=True)

    async def _stale_stream_sweeper(self) -> None:
        """Do nothing: `look` sweeps, since a task for each idle connection takes memory."""

    def look(self) -> float | None:
        """Ping the peer if that is due (returns None), or return when to look again."""
        now = trio.current_time()
        if self.streams and now >= self._swept_at + SWEEP_S:
            self._swept_at = now
            self.later(self._sweep)
        pause = self._quiet_for()
        if pause > 0:
            return now + min(pause, PING_EVERY_S)  # a connection that is quiet now may be watched soon
        self.later(self._ask)
        return None

    async def _sweep(self) -> None:
        async with self.streams_lock:
            self._sweep_stale_streams()

    async def _ask(self, first: bool = False) -> None:
        """Ping the peer, and cut the connection if nothing comes back (libp2p pings too, but ignores missing answers)."""
        self._ping_id += 1
        request = trio.current_time()
        self._ping_sent_time = request
        self._ping_event = trio.Event()
        within = PONG_WITHIN_S if self.has_waiters or first else CASUAL_PONG_WITHIN_S
        with trio.move_on_after(within):
            await self._write_frame(header(yamux.TYPE_PING, yamux.FLAG_SYN, 0, self._ping_id))
            await self._ping_event.wait()
        late = trio.current_time() - request - within
        if self.heard_at < request and not first and late < BUSY_S:
            await self.cut()
        else:
            self.looks.add(self, trio.current_time())

    def _quiet_for(self) -> float:
        """Seconds until a ping is due unless the peer is heard first: few if somebody waits or the peer owes an answer."""
        owes = self._said_at > self.heard_at
        if self.has_waiters or not owes:
            return (
                self.heard_at
                + (PING_EVERY_S if self.has_waiters else CASUAL_PING_EVERY_S)
                - trio.current_time()
            )
        return self._said_at + PING_EVERY_S - trio.current_time()

    # -- outgoing frames ---------------------------------------------------------------------------------------------------

    @property
    def burst(self) -> int:
        """Bytes of one stream that are written at once."""
        return self._burst * MAX_FRAME

    async def send(self, stream_id: int, data: memoryview) -> None:
        """Write a stream's data, at most a `burst`, in frames that each fill one Noise message."""
        pieces: list[bytes | memoryview] = []
        for start in range(0, len(data), MAX_FRAME):
            part = data[start : start + MAX_FRAME]
            pieces += (header(yamux.TYPE_DATA, 0, stream_id, len(part)), part)
        await self._write(pieces)
        if self._said_at <= self.heard_at:
            self._said_at = trio.current_time()

    async def say_end(self, stream_id: int, flag: int) -> None:
        """Tell the peer that a stream, or one direction of it, ends, even if the caller is cancelled while others write."""
        frame, said = header(yamux.TYPE_WINDOW_UPDATE, flag, stream_id, 0), False
        try:
            with contextlib.suppress(*_LINK_ERRORS):
                await self._put((frame,))
            said = True
        finally:
            if not said:
                self.later(self._write_frame, frame)

    async def _write_frame(self, data: bytes) -> None:
        """Write one frame that carries no data."""
        await self._write((data,))

    async def _write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Like `_put`, but raises in a caller that was cancelled meanwhile."""
        await self._put(pieces)
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _put(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write whole frames: `pieces` alternate between headers and bodies, or are one frame. Waiting for the lock can be cancelled, since
        nothing was written then; half a frame would garble every stream.
        """
        try:
            self._write_lock.acquire_nowait()
        except trio.WouldBlock:
            await self._write_lock.acquire()
        try:
            if self.event_closed.is_set():
                raise RawConnError("the connection is closed")
            began, written = trio.current_time(), False
            within_s = self._write_within_s * max(1, len(pieces) // 2)
            with trio.move_on_after(within_s, shield=True):
                await self.secured_conn.write(b"".join(pieces))
                written = True
            quick = trio.current_time() - began < QUICK_S
            self._burst = min(2 * self._burst, MAX_BURST) if quick else 1
            if not written:
                await self.cut()
                raise RawConnError(f"the peer took no bytes for {within_s:g} s")
        finally:
            self._write_lock.release()

    async def cut(self) -> None:
        """Close the socket; the reading loop then sees the end and tells every stream."""
        with trio.move_on_after(1.0, shield=True):
            await self.secured_conn.close()

    async def leave(self) -> None:
        """Tell the peer that this node is leaving, and close the socket. For a node that stops: `close` waits 0.1 s, and its caller in
        libp2p another 0.1 s, for the streams' users."""
        try:
            with contextlib.suppress(*_LINK_ERRORS):
                await self._write_frame(header(yamux.TYPE_GO_AWAY, 0, 0, yamux.GO_AWAY_NORMAL))
        finally:
            await self.cut()

    async def open_stream(self) -> PatientStream:
        """Open a stream as libp2p does, but leave nothing behind if the call is cancelled."""
        await self.stream_backlog_semaphore.acquire()
        if self.event_shutting_down.is_set() or len(self.streams) >= MAX_STREAMS:
            self.stream_backlog_semaphore.release()
            raise MuxedStreamError("the connection takes no more streams")
        stream_id = self.next_stream_id
        self.next_stream_id += 2
        stream = PatientStream(stream_id, self, True)
        stream._owns_backlog_slot = True
        self._add(stream)
        opened = False
        try:
            await self._write_frame(header(yamux.TYPE_WINDOW_UPDATE, yamux.FLAG_SYN, stream_id, 0))
            opened = True
        except _LINK_ERRORS as error:
            raise MuxedStreamError("the connection broke") from error
        finally:
            if not opened:
                self.later(stream.reset)
        return stream


def _patient(stream: yamux.YamuxStream) -> PatientStream:
    """The stream as a `PatientStream`, which all streams of these connections are."""
    assert isinstance(stream, PatientStream)
    return stream
