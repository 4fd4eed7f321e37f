"""Streams of the simulated network: ordered, reliable while the link lives, with a window, and without tasks of their own.

A chunk carries its time of arrival. A reader sleeps until then; a writer sleeps while the window is full.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import trio
from trio.lowlevel import ParkingLot

from swarm.net.addresses import PeerId

WINDOW: Final = 256 * 1024
CHUNK: Final = 65_507
_EOF: Final = b""


class MemoryLink:
    """The connection of two nodes. `cut_at`: since when packets vanish silently; None while they pass."""

    def __init__(
        self,
        low: PeerId,
        high: PeerId,
        delay: Callable[[PeerId, PeerId, int, PeerId | None], tuple[float, float]],
        notice_s: float,
        via: PeerId | None = None,
    ) -> None:
        self.ends = (low, high)
        self.via = via
        """The gate that the link goes through; None for a direct link."""
        self.broken = False
        self.cut_at: float | None = None
        self._delay = delay
        self._notice_s = notice_s
        self._waited_at: Counter[ParkingLot] = Counter()
        self._free_at = {low: 0.0, high: 0.0}
        """When the last byte sent by each end arrives."""

    def other(self, peer: PeerId) -> PeerId:
        return self.ends[1] if peer == self.ends[0] else self.ends[0]

    def arrival(self, sender: PeerId, size: int) -> float:
        """When `size` bytes that `sender` sends now will arrive; never before what it sent earlier."""
        under_way, on_the_line = self._delay(sender, self.other(sender), size, self.via)
        at = max(trio.current_time() + under_way, self._free_at[sender]) + on_the_line
        self._free_at[sender] = at
        return at

    @property
    def dead_at(self) -> float:
        """When the silence will be noticed; infinite while packets pass."""
        return float("inf") if self.cut_at is None else self.cut_at + self._notice_s

    @property
    def dead(self) -> bool:
        """Whether the link is broken, or has been silent for so long that both ends have noticed."""
        return self.broken or trio.current_time() >= self.dead_at

    def passes(self, at: float) -> bool:
        """Whether a chunk due at `at` has arrived."""
        return at <= trio.current_time() and (self.cut_at is None or at <= self.cut_at)

    def cut(self) -> None:
        if self.cut_at is None:
            self.cut_at = trio.current_time()
            self.wake()

    def mend(self) -> None:
        """Let packets pass again, unless the ends have given the link up."""
        if self.dead:
            self.broken = True
        self.cut_at = None
        self.wake()

    def sever(self) -> None:
        self.broken = True
        self.wake()

    def wake(self) -> None:
        """Wake everything that waits on the link, since the link itself has changed."""
        for lot in list(self._waited_at):
            lot.unpark_all()

    async def changed(self, pipe: _Pipe, until: float = math.inf, *, reading: bool = False) -> None:
        """Wait until the pipe or the link changes, or until `until`; `reading`: also until a chunk arrives."""
        lot = pipe.lot
        self._waited_at[lot] += 1
        try:
            with trio.move_on_at(until if self.cut_at is None else self.dead_at) as wait:
                pipe.reader = wait if reading and self.cut_at is None else pipe.reader
                await lot.park()
        finally:
            pipe.reader = None if reading else pipe.reader
            self._waited_at[lot] -= 1
            if not self._waited_at[lot]:
                del self._waited_at[lot]


@dataclass(slots=True)
class _Pipe:
    """One direction of a stream."""

    chunks: deque[tuple[float, bytes]] = field(default_factory=deque)
    unread: int = 0
    ended: bool = False
    """The sender has finished sending."""
    refused: bool = False
    """The reader has gone; further sending raises."""
    lot: ParkingLot = field(default_factory=ParkingLot)
    """Tasks to wake at each change."""
    reader: trio.CancelScope | None = None
    """Ends the reader's wait when the next chunk arrives."""

    def put(self, at: float, data: bytes) -> None:
        """Add a chunk that arrives at `at`."""
        self.chunks.append((at, data))
        if self.reader is not None:
            self.reader.deadline = min(self.reader.deadline, at)
        else:
            self.lot.unpark_all()


class MemoryStream:
    """One end of a simulated stream, as `swarm.net.network.Stream` describes it."""

    def __init__(self, link: MemoryLink, me: PeerId, protocol: str, sends: _Pipe, receives: _Pipe) -> None:
        self.peer = link.other(me)
        self.protocol = protocol
        self._link = link
        self._me = me
        self._sends = sends
        self._receives = receives
        self._closed = False
        self._busy: set[str] = set()

    @property
    def relayed(self) -> bool:
        return self._link.via is not None

    @contextlib.contextmanager
    def _alone(self, doing: str) -> Iterator[None]:
        if doing in self._busy:
            raise trio.BusyResourceError(f"another task is {doing} on this stream")
        self._check_open()
        self._busy.add(doing)
        try:
            yield
        finally:
            self._busy.discard(doing)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with self._alone("sending"):
            self._check_sendable()
            await trio.lowlevel.checkpoint()
            whole = bytes(data)
            for start in range(0, len(whole), CHUNK):
                part = whole[start : start + CHUNK]
                await self._room()
                self._sends.unread += len(part)
                self._sends.put(self._link.arrival(self._me, len(part)), part)
            self._check_sendable()

    async def wait_send_all_might_not_block(self) -> None:
        with self._alone("sending"):
            await trio.lowlevel.checkpoint()
            await self._room()

    async def _room(self) -> None:
        self._check_sendable()
        while self._sends.unread >= WINDOW:
            await self._link.changed(self._sends)
            self._check_sendable()

    async def receive_some(self, max_bytes: int = 262_144) -> bytes:
        if operator.index(max_bytes) < 1:
            raise ValueError("max_bytes must be at least 1")
        with self._alone("receiving"):
            waited = False
            while True:
                self._check_open()
                chunks = self._receives.chunks
                arrived = bool(chunks) and self._link.passes(chunks[0][0])
                if not (arrived or self._receives.refused or self._link.dead):
                    until = chunks[0][0] if chunks else math.inf
                    await self._link.changed(self._receives, until, reading=True)
                elif not waited:
                    await trio.lowlevel.checkpoint()
                elif arrived:
                    return self._take(max_bytes)
                else:
                    raise trio.BrokenResourceError(f"the stream with {self.peer} broke")
                waited = True

    def _take(self, max_bytes: int) -> bytes:
        at, data = self._receives.chunks[0]
        if data is _EOF:
            return _EOF
        part, rest = data[:max_bytes], data[max_bytes:]
        if rest:
            self._receives.chunks[0] = (at, rest)
        else:
            self._receives.chunks.popleft()
        self._receives.unread -= len(part)
        self._receives.lot.unpark_all()
        return part

    async def send_eof(self) -> None:
        with self._alone("sending"):
            if not self._sends.ended:
                self._check_sendable()
                self._end()
            await trio.lowlevel.checkpoint()

    def _end(self) -> None:
        self._sends.ended = True
        self._sends.put(self._link.arrival(self._me, 12), _EOF)

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            if not self._sends.ended:
                self._end()
            self._receives.refused = True
            self._receives.lot.unpark_all()
        await trio.lowlevel.checkpoint()

    async def reset(self) -> None:
        self.drop()
        await trio.lowlevel.checkpoint()

    def drop(self) -> None:
        """Abandon both directions at once."""
        self._closed = True
        for pipe in (self._sends, self._receives):
            pipe.chunks.clear()
            pipe.refused = True
            pipe.lot.unpark_all()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed here")

    def _check_sendable(self) -> None:
        self._check_open()
        if self._sends.ended:
            raise trio.ClosedResourceError("nothing can be sent after send_eof")
        if self._sends.refused or self._link.dead:
            raise trio.BrokenResourceError(f"the stream with {self.peer} broke")


def stream_pair(link: MemoryLink, opener: PeerId, protocol: str) -> tuple[MemoryStream, MemoryStream]:
    """The opener's end and the other end of a new stream."""
    out, back = _Pipe(), _Pipe()
    return (
        MemoryStream(link, opener, protocol, sends=out, receives=back),
        MemoryStream(link, link.other(opener), protocol, sends=back, receives=out),
    )
