"""Yamux as libp2p speaks it, with its limits kept: windows, buffers, pings, cancellation.

libp2p 0.8.1 logs a peer that overruns its window and keeps the bytes, never asks whether a silent peer is alive, resets a
stream after its reader pauses for 5 s, and leaves half a frame on the wire when a writer is cancelled. These two classes are
given to libp2p in place of its own; the frames on the wire are the same.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
from libp2p.connection_types import ConnectionType
from libp2p.io.exceptions import IOException
from libp2p.network.connection.exceptions import RawConnError
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamError, MuxedStreamReset
from libp2p.stream_muxer.yamux import yamux

from swarm.net.memory import MemoryAccount
from swarm.p2p.connection_value import ConnectionUse
from swarm.p2p.looks import Looks

MAX_FRAME: Final = 65_507
"""Payload that fills exactly one Noise message behind the 12-byte frame header; the fastest size (measured)."""
MAX_WINDOW: Final = 4 * 1024 * 1024
"""How far one stream's receive window may grow, in bytes: memory for one stalled reader, 335 Mbit/s at 100 ms."""
MAX_BUFFERED: Final = 8 * 1024 * 1024
"""Bytes one connection may hold for readers of ours that have not come yet."""
MAX_STREAMS: Final = 512
"""Streams one connection may hold, ours and the peer's."""
PING_EVERY_S: Final = 4.0
PONG_WITHIN_S: Final = 4.0
"""A link with nothing to hear for PING_EVERY_S + PONG_WITHIN_S, although it was asked, is dead."""
CASUAL_PING_EVERY_S: Final = 30.0
CASUAL_PONG_WITHIN_S: Final = 12.0
"""The same where nobody waits for anything. Each of 60 nodes has a connection with each other: asked every 4 s on a busy machine, many
answered too late, and connections that ended for it made more work (docs/decisions/2026-11-21-casual-connections.md)."""
LATE_S: Final = 1.0
"""Who looks so much later than meant had no processor to look with: it says nothing of the peer, which is asked again."""
WRITE_WITHIN_S: Final = 5.0
"""A frame once begun must be finished; a socket that takes no bytes for so long is dead."""
RELAYED_FRAME: Final = MAX_FRAME - 30
"""On a circuit: with the header of its own yamux and Noise's length and seal it still fits one frame of the stream that carries it."""
RELAYED_WRITE_WITHIN_S: Final = 20.0
"""On a circuit: it waits for the stream that carries it, and that for a gate and for a link beyond it."""

SWEEP_S: Final = 30.0
"""Between two looks for streams that ended with bytes that nobody read."""
GROW_WITHIN_S: Final = 0.5
"""A reader that uses up half its window faster than this gets a larger one."""

_LINK_ERRORS: Final = (RawConnError, IOException, OSError, trio.BrokenResourceError, trio.ClosedResourceError)


def _header(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    return struct.pack(yamux.YAMUX_HEADER_FORMAT, 0, kind, flags, stream_id, length)


class Overrun(trio.TooSlowError):
    """The peer sent more than it was granted. libp2p closes the connection on this class of error, and on no other."""


class LinkLost(trio.TooSlowError):
    """The connection ended within a frame. Of the class that makes libp2p close the connection at once."""


class _Buffer(bytearray):
    """Bytes received for one stream; counts against the stream's window and the connection's cap."""

    def __init__(self, conn: BoundedYamux, stream_id: int) -> None:
        super().__init__()
        self._conn = conn
        self._stream_id = stream_id

    def extend(self, data: Any) -> None:
        if self._conn.admit(self._stream_id, len(data)):
            super().extend(data)


class _Buffers(dict[int, bytearray]):
    """The connection's buffers by stream; every new one is a counting one, and there are not too many."""

    def __init__(self, conn: BoundedYamux) -> None:
        super().__init__()
        self._conn = conn

    def __setitem__(self, stream_id: int, buffer: bytearray) -> None:
        if len(self) >= MAX_STREAMS:
            raise Overrun(f"more than {MAX_STREAMS} streams")
        self._conn.opening(stream_id)
        super().__setitem__(stream_id, _Buffer(self._conn, stream_id))


class PatientStream(yamux.YamuxStream):
    """Reader and writer wait as long as their callers like, and lose nothing when they are cancelled."""

    conn: BoundedYamux

    finished = False
    """The peer said that it has sent everything (as opposed to: the link broke)."""
    rest = b""
    """What had arrived of a finished stream when its connection closed."""
    deaf = False
    """Nobody here reads or writes any more."""
    refused = False
    """The peer is being reset for it."""
    _owed = 0

    def __init__(self, stream_id: int, conn: BoundedYamux, is_initiator: bool) -> None:
        self._changed = trio.Event()
        super().__init__(stream_id, conn, is_initiator)

    def __setattr__(self, name: str, value: Any) -> None:
        """As usual; but what libp2p sets wakes whoever waits for it."""
        # libp2p sets this for a FIN, a reset and a lost connection alike; only the first means that all has arrived
        if name == "recv_closed" and value and not (self.recv_closed or self.closed):
            self.finished = not self.conn.event_shutting_down.is_set()
        grown = name == "send_window" and value > getattr(self, name, 0)
        super().__setattr__(name, value)
        if grown or name == "closed":
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def stop(self) -> None:
        """Nobody here will read or write any more: whoever still waits is woken, and a peer that sends on is reset."""
        self.deaf = True
        self._wake()
        event = self.conn.stream_events.get(self.stream_id)
        if event is not None:
            event.set()

    async def writable(self) -> None:
        """Wait until at least a byte can be sent, or nothing ever can."""
        while self.send_window <= 0 and not (self.closed or self.deaf):
            await self._changed.wait()

    async def write(self, data: bytes | memoryview) -> None:
        """Send all of `data` as the window allows. Between looking at the window and taking from it nobody else runs."""
        view = memoryview(data)
        while view:
            await self.writable()
            if self.send_closed or self.closed or self.deaf:
                raise MuxedStreamError("the stream is closed for sending")
            part = view[: min(self.send_window, self.conn.max_frame)]
            view = view[len(part) :]
            self.send_window -= len(part)
            header = _header(yamux.TYPE_DATA, 0, self.stream_id, len(part))
            await self.conn._write_frame(b"".join((header, part)))

    async def read(self, n: int | None = -1) -> bytes:
        """Between 1 and `n` bytes (all there are for -1). MuxedStreamEOF when the peer has finished, else MuxedStreamReset."""
        await trio.lowlevel.checkpoint()  # cancelled here or while waiting, never after bytes were taken
        conn, stream_id = self.conn, self.stream_id
        while not self.deaf:
            buffer = conn.stream_buffers.get(stream_id)
            if buffer:
                data = bytes(buffer) if n is None or n < 0 else bytes(buffer[:n])
                del buffer[: len(data)]
                self._give_back(len(data))
                if self.closed and not buffer:
                    conn._finalize_stream_locked(self, fully_closed=True)
                return data
            if self.rest:
                size = len(self.rest) if n is None or n < 0 else n
                data, self.rest = self.rest[:size], self.rest[size:]
                return data
            if self.finished:
                raise MuxedStreamEOF("the peer has finished")
            event = conn.stream_events.get(stream_id)
            if self.reset_received or self.closed or event is None:
                raise MuxedStreamReset("the stream was reset, or its connection is gone")
            await event.wait()
            if conn.stream_events.get(stream_id) is event:
                conn.stream_events[stream_id] = trio.Event()
        raise MuxedStreamReset("the stream was closed here")

    def _give_back(self, size: int) -> None:
        """Grant the peer what was read, once it is half the window: small messages then cost one frame and not two."""
        self._owed += size
        if self._owed * 2 < self.target_recv_window or self.closed or self.recv_closed:
            return
        grown = min(self.target_recv_window, MAX_WINDOW - self.target_recv_window, self.conn.spare())
        if trio.current_time() - self.epoch_start > GROW_WITHIN_S:
            grown = 0
        self.target_recv_window += grown
        self.epoch_start = trio.current_time()
        grant, self._owed = self._owed + grown, 0
        self.recv_window += grant
        self.conn.later(self.send_window_update, grant)


class BoundedYamux(yamux.Yamux):
    """A connection that closes itself on a peer that overruns its grants, and on one that has fallen silent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stream_buffers = _Buffers(self)
        self.memory = MemoryAccount()
        """Shared by the connections of a node. Circuits are bounded by their number."""
        self.looks = Looks()
        """The same."""
        self._swept_at = 0.0
        self.stream_turn: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        """Waits until a stream that the peer opened is to be taken."""
        self._opened = 0
        """Streams of the peer's since the last look."""
        self.owner = str(self.peer_id)
        self.heard_at = 0.0
        """When the peer was last heard, on trio's clock."""
        self.watched = False
        """Whether somebody waits for what comes by this connection, and has to know soon that nothing will."""
        self.use = ConnectionUse()
        """Of its streams: what the connection is worth to us."""
        self.arrived = False
        """Whether the peer dialled us, directly."""
        self.expected = 0
        """How many wait to learn whether the peer speaks a protocol."""
        self._said_at = 0.0
        """When the peer was first sent something since it was last heard."""
        self.relayed = self.secured_conn.get_connection_type() is ConnectionType.RELAYED
        self.max_frame = RELAYED_FRAME if self.relayed else MAX_FRAME
        self._write_within_s = RELAYED_WRITE_WITHIN_S if self.relayed else WRITE_WITHIN_S
        self.carriers: set[int] = set()
        """Streams that carry circuits: what waits on them is bounded by their own windows."""
        self._secured_read = self.secured_conn.read
        self.secured_conn.read = self._read_and_note  # type: ignore[method-assign]

    def opening(self, stream_id: int) -> None:
        """A stream begins. No more is read of a peer that opens many."""
        self._opened += stream_id % 2 != self.next_stream_id % 2

    def admit(self, stream_id: int, size: int) -> bool:
        """Buffer `size` more bytes for the stream? Raises `Overrun` when the peer was not granted them."""
        stream = self.streams[stream_id]
        if isinstance(stream, PatientStream) and stream.deaf:
            # once: who sends on and reads nothing would have us pile up replies
            if not stream.refused:
                stream.refused = True
                self.later(stream.reset)
            return False
        if size > stream.recv_window:
            raise Overrun(f"stream {stream_id}: {size} bytes into a window of {stream.recv_window}")
        if stream_id not in self.carriers:
            waiting = size + self.waiting()
            if waiting > MAX_BUFFERED:
                raise Overrun(f"more than {MAX_BUFFERED} bytes wait on one connection")
            if not self.memory.buffer(self, waiting):
                raise Overrun("no memory is left, and this peer takes most of it")
        return True

    def waiting(self) -> int:
        """Bytes for readers that have not come yet."""
        if self.event_closed.is_set():
            return 0
        return sum(len(buffer) for place, buffer in self.stream_buffers.items() if place not in self.carriers)

    def carry(self, stream: PatientStream) -> None:
        """The stream is to carry a circuit."""
        self.carriers = {place for place in self.carriers if place in self.streams} | {stream.stream_id}

    @property
    def rtt_s(self) -> float | None:
        """Seconds there and back, smoothed; None before the first measurement."""
        return self._rtt or None

    def spare(self) -> int:
        """By how much one stream's window may still grow, in bytes."""
        granted = sum(stream.target_recv_window for stream in self.streams.values())
        return max(0, MAX_BUFFERED - granted)

    def later(self, action: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Run `action` in a task of its own, so that who asked for it need not wait and cannot cancel it."""
        if self._nursery is not None and not self.event_shutting_down.is_set():
            self._nursery.start_soon(self._ignoring_a_lost_link, action, *arguments)

    async def _ignoring_a_lost_link(self, action: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        with contextlib.suppress(*_LINK_ERRORS):
            await action(*arguments)

    async def _read_and_note(self, n: int | None = None) -> bytes:
        while self._opened:
            self._opened -= 1
            await self.stream_turn()
        data = await self._secured_read(n)
        self.heard_at = trio.current_time()
        return data

    async def _read_data_body(self, length: int) -> bytes:
        if length > MAX_WINDOW:
            raise Overrun(f"a frame of {length} bytes is larger than any window")
        try:
            return bytes(await super()._read_data_body(length))
        except _LINK_ERRORS as error:
            raise LinkLost("the connection ended within a frame") from error

    async def _cleanup_on_error(self) -> None:
        """Close everything; what had arrived of finished streams stays readable."""
        self.memory.buffer(self, 0)
        for stream_id, stream in self.streams.items():
            if isinstance(stream, PatientStream) and stream.finished:
                stream.rest = bytes(self.stream_buffers.get(stream_id, b""))
        await super()._cleanup_on_error()

    @property
    def matters(self) -> bool:
        """Whether somebody waits here now."""
        return self.watched or self.expected > 0

    async def _measure_rtt_loop(self) -> None:
        """Ask at once, to know how far the peer is; it is waited for if it is slow to begin. From then on the node's `Looks` look."""
        self.heard_at = trio.current_time()
        with contextlib.suppress(*_LINK_ERRORS):
            await self._ask(first=True)

    async def _stale_stream_sweeper(self) -> None:
        """`look` sweeps: a task for each idle connection takes memory."""

    def look(self) -> float | None:
        """Whether the peer is there has to be asked now (None: it is being asked), or is looked at again at the time returned."""
        now = trio.current_time()
        if self.streams and now >= self._swept_at + SWEEP_S:
            self._swept_at = now
            self.later(self._sweep)
        pause = self._quiet_for()
        if pause > 0:
            return now + min(pause, PING_EVERY_S)  # what is quiet now may be watched soon
        self.later(self._ask)
        return None

    async def _sweep(self) -> None:
        async with self.streams_lock:
            self._sweep_stale_streams()

    async def _ask(self, first: bool = False) -> None:
        """Cut a peer that says nothing (libp2p asks too, and ignores that nothing comes back)."""
        self._ping_id += 1
        request = trio.current_time()
        self._ping_sent_time = request
        self._ping_event = trio.Event()
        within = PONG_WITHIN_S if self.matters or first else CASUAL_PONG_WITHIN_S
        with trio.move_on_after(within):
            await self._write_frame(_header(yamux.TYPE_PING, yamux.FLAG_SYN, 0, self._ping_id))
            await self._ping_event.wait()
        late = trio.current_time() - request - within
        if self.heard_at < request and not first and late < LATE_S:
            await self.cut()
        else:
            self.looks.add(self, trio.current_time())

    def _quiet_for(self) -> float:
        """Seconds until the peer is asked, unless it is heard before: soon where somebody waits, or where it owes an answer."""
        owes = self._said_at > self.heard_at
        if self.matters or not owes:
            return (
                self.heard_at + (PING_EVERY_S if self.matters else CASUAL_PING_EVERY_S) - trio.current_time()
            )
        return self._said_at + PING_EVERY_S - trio.current_time()

    async def _write_frame(self, data: bytes) -> None:
        """Write one frame whole. Waiting for the turn can be cancelled; half a frame would garble every stream."""
        async with self._write_lock:
            if self.event_closed.is_set():
                raise RawConnError("the connection is closed")
            written = False
            with trio.move_on_after(self._write_within_s, shield=True):
                await self.secured_conn.write(data)
                written = True
            if data[1] == yamux.TYPE_DATA and self._said_at <= self.heard_at:
                self._said_at = trio.current_time()
            if not written:
                await self.cut()
                raise RawConnError(f"the peer took no bytes for {self._write_within_s:g} s")
        await trio.lowlevel.checkpoint_if_cancelled()

    async def cut(self) -> None:
        """Close the socket; the reading loop then finds the end and tells every stream."""
        with trio.move_on_after(1.0, shield=True):
            await self.secured_conn.close()

    async def open_stream(self) -> PatientStream:
        """As libp2p's, and a cancelled call leaves nothing behind."""
        await self.stream_backlog_semaphore.acquire()
        if self.event_shutting_down.is_set() or len(self.streams) >= MAX_STREAMS:
            self.stream_backlog_semaphore.release()
            raise MuxedStreamError("the connection takes no more streams")
        stream_id = self.next_stream_id
        self.next_stream_id += 2
        stream = PatientStream(stream_id, self, True)
        stream._owns_backlog_slot = True
        self.streams[stream_id] = stream
        self.stream_buffers[stream_id] = bytearray()
        self.stream_events[stream_id] = trio.Event()
        opened = False
        try:
            await self._write_frame(_header(yamux.TYPE_WINDOW_UPDATE, yamux.FLAG_SYN, stream_id, 0))
            opened = True
        except _LINK_ERRORS as error:
            raise MuxedStreamError("the connection broke") from error
        finally:
            if not opened:
                self.later(stream.reset)
        return stream
