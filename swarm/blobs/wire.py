"""What both ends of `/sark/blob/1` share: streams of alternating frames and raw bytes, and their time limits."""

from __future__ import annotations

from typing import Final

import trio

from protocol.errors import RemoteProtocolError
from protocol.messages.blobs import BLOB, WRITE_SIZE
from protocol.wire.base import MAX_FRAME
from protocol.wire.codec import PREFIX, Frame
from swarm.net.network import Stream

STALL_S: Final = 10.0
"""Seconds after which a peer that sends or accepts no byte is given up."""
BURST: Final = 8 * WRITE_SIZE
"""Bytes passed to the stream under one deadline: whole frames, and few timers."""


class PieceMemory:
    """Reuses the memory of stored pieces for the next ones: allocating it anew costs more than filling it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._free: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        """A buffer of `size` bytes, with any content."""
        if self._free and len(self._free[-1]) == size:
            return self._free.pop()
        return bytearray(size)

    def give(self, piece: bytearray) -> None:
        """Return a buffer that nobody needs any more."""
        if len(self._free) < self._most:
            self._free.append(piece)


class FrameReader:
    """Reads alternating frames and raw bytes from one stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def frame(self) -> Frame | None:
        """The next frame; None when the peer has finished."""
        if not await self._have(PREFIX):
            if self._buffer:
                raise RemoteProtocolError("the stream ended in the middle of a frame")
            return None
        size = int.from_bytes(self._buffer[:PREFIX], "big")
        if size > MAX_FRAME:
            raise RemoteProtocolError(f"a frame of {size} bytes is above the cap of {MAX_FRAME}")
        if not await self._have(PREFIX + size):
            raise RemoteProtocolError("the stream ended in the middle of a frame")
        body = bytes(self._buffer[PREFIX : PREFIX + size])
        del self._buffer[: PREFIX + size]
        return BLOB.decode(body)

    async def raw(self, data: bytearray) -> None:
        """Fill `data` completely. Each read may wait `STALL_S`."""
        count = len(data)
        filled = min(count, len(self._buffer))
        data[:filled] = self._buffer[:filled]
        del self._buffer[:filled]
        view = memoryview(data)
        with trio.fail_after(STALL_S) as limit:
            while filled < count:
                part = await self._stream.receive_some(count - filled)
                if not part:
                    raise trio.BrokenResourceError
                view[filled : filled + len(part)] = part
                filled += len(part)
                limit.deadline = trio.current_time() + STALL_S

    async def _have(self, count: int) -> bool:
        while len(self._buffer) < count:
            part = await self._stream.receive_some(PREFIX + MAX_FRAME)
            if not part:
                return False
            self._buffer += part
        return True
