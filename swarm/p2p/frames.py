"""Frames of yamux, cut from the bytes of a connection as they come. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from libp2p.stream_muxer.yamux import yamux

_HEADER: Final = struct.Struct(yamux.YAMUX_HEADER_FORMAT)


class YamuxFrame(NamedTuple):
    """What a header says. `length`: bytes of the body of a data frame; else a grant, the number of a ping, a reason to close."""

    version: int
    kind: int
    flags: int
    stream_id: int
    length: int


class FramePart(NamedTuple):
    """A frame, or as much of a data frame as has come."""

    frame: YamuxFrame
    body: bytes
    begins: bool
    ends: bool


def header(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    """12 bytes."""
    return _HEADER.pack(0, kind, flags, stream_id, length)


class FrameParser:
    """Holds 11 bytes at most: bodies are passed on as they come, so what a header announces takes no memory."""

    def __init__(self) -> None:
        self._rest = b""
        self._frame: YamuxFrame | None = None
        """The data frame that is coming."""
        self._left = 0
        """Bytes of its body that have not come."""

    def feed(self, data: bytes) -> Iterator[FramePart]:
        """The frames, and parts of them, in `data`, which follows on what was fed before. To be used up before more is fed."""
        data, at = self._rest + data if self._rest else data, 0
        self._rest = b""
        while at < len(data):
            frame = self._frame
            begins = frame is None
            if frame is None:
                if len(data) - at < _HEADER.size:
                    self._rest = data[at:]
                    return
                frame = YamuxFrame._make(_HEADER.unpack_from(data, at))
                at += _HEADER.size
                self._left = frame.length if frame.kind == yamux.TYPE_DATA else 0
            body = data[at : at + self._left]
            at += len(body)
            self._left -= len(body)
            self._frame = frame if self._left else None
            yield FramePart(frame, body, begins, not self._left)
