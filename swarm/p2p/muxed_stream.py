"""A yamux stream whose reader and writer may wait as long as their callers like, and lose nothing when cancelled."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import trio
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamError, MuxedStreamReset
from libp2p.stream_muxer.yamux import yamux

if TYPE_CHECKING:
    from swarm.p2p.yamux import BoundedYamux

MAX_WINDOW: Final = 4 * 1024 * 1024
"""Limit of one stream's receive window, in bytes: the memory for one stalled reader, 335 Mbit/s at 100 ms."""
GROW_WITHIN_S: Final = 0.5
"""A reader that uses up half of its window faster than this gets a larger one."""


class ReceiveBuffer:
    """Received bytes, kept in the parts in which they arrived; its length is the number of bytes."""

    __slots__ = ("_at", "_parts", "_size")

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._at = 0
        """Bytes already taken from the first part."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)

    def clear(self) -> None:
        """Drop everything, since nobody reads it any more."""
        self._parts.clear()
        self._at = self._size = 0

    def take(self, most: int) -> bytes:
        """Up to `most` bytes: whole parts if the first fits, else a piece of the first; b"" if there are none."""
        parts, taken = self._parts, list[bytes]()
        while parts and most:
            part, at = parts[0], self._at
            if at or len(part) > most:
                if taken:
                    break
                part = part[at : at + most]
                self._at = at + len(part)
            if self._at in (0, len(parts[0])):
                parts.popleft()
                self._at = 0
            taken.append(part)
            most -= len(part)
        data = taken[0] if len(taken) == 1 else b"".join(taken)
        self._size -= len(data)
        return data


class PatientStream(yamux.YamuxStream):
    """One stream of a `BoundedYamux`."""

    conn: BoundedYamux

    finished = False
    """The peer said that it has sent everything (as opposed to a broken link)."""
    rest: ReceiveBuffer | None = None
    """Bytes of a finished stream that had arrived when its connection closed."""
    stopped_locally = False
    """Nobody on this side reads or writes any more."""
    refused = False
    """A reset is being sent because the peer keeps sending."""
    _owed = 0

    def __init__(self, stream_id: int, conn: BoundedYamux, is_initiator: bool) -> None:
        self._changed = trio.Event()
        super().__init__(stream_id, conn, is_initiator)

    def wake(self) -> None:
        """Wake the writer: the condition it waits for may hold now."""
        self._changed.set()
        self._changed = trio.Event()

    def hear(self) -> None:
        """Wake the reader: the data it waits for may have arrived."""
        event = self.conn.stream_events.get(self.stream_id)
        if event is not None:
            event.set()

    def stop(self) -> None:
        """Stop reading and writing on this side: drop what arrived, wake all waiters, and reset a peer that keeps sending."""
        self.stopped_locally = True
        for buffer in (self.conn.stream_buffers.get(self.stream_id), self.rest):
            if buffer is not None:
                buffer.clear()
        self.wake()
        self.hear()

    async def close(self) -> None:
        """Finish sending. libp2p's `close` sends no end if it is cancelled, and treats a stream that the peer has reset as open. A peer
        that waits for window on a stream that nobody reads is reset."""
        if self.stopped_locally and self.recv_window <= 0 and not self.recv_closed:
            return await self.reset()
        said = self.send_closed or self.closed
        self.send_closed = True
        self.closed |= self.recv_closed
        self.wake()
        try:
            if not said:
                await self.conn.say_end(self.stream_id, yamux.FLAG_FIN)
        finally:
            self.conn._finalize_stream_locked(self, fully_closed=self.closed)

    async def reset(self) -> None:
        """Abandon sending and reading."""
        said = self.closed
        self.closed = self.send_closed = self.recv_closed = self.reset_received = True
        self.stop()
        try:
            if not said:
                await self.conn.say_end(self.stream_id, yamux.FLAG_RST)
        finally:
            self.conn._finalize_stream_locked(self, fully_closed=True)

    async def writable(self) -> None:
        """Wait until at least a byte can be sent, or sending has become impossible."""
        while self.send_window <= 0 and not (self.closed or self.stopped_locally):
            await self._changed.wait()

    async def write(self, data: bytes | memoryview) -> None:
        """Send all of `data` as the window allows. Nothing else runs between checking the window and taking from it."""
        view = memoryview(data)
        while view:
            await self.writable()
            if self.send_closed or self.closed or self.stopped_locally:
                raise MuxedStreamError("the stream is closed for sending")
            part = view[: min(self.send_window, self.conn.burst)]
            view = view[len(part) :]
            self.send_window -= len(part)
            await self.conn.send(self.stream_id, part)

    async def read(self, n: int | None = -1) -> bytes:
        """Between 1 and `n` bytes (-1: all available). Raises MuxedStreamEOF if the peer has finished, otherwise MuxedStreamReset."""
        await trio.lowlevel.checkpoint()  # cancelled here or while waiting, never after bytes were taken
        conn, stream_id = self.conn, self.stream_id
        while not self.stopped_locally:
            buffer = conn.stream_buffers.get(stream_id) or self.rest
            if buffer:
                data = buffer.take(len(buffer) if n is None or n < 0 else n)
                self._give_back(len(data))
                if self.closed and not buffer:
                    conn._finalize_stream_locked(self, fully_closed=True)
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
        """Grant the peer what was read, once it is half of the window, so that small messages cost one frame instead of two."""
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
