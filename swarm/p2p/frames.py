"""Splits the bytes of a connection into yamux frames as they arrive. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from libp2p.stream_muxer.yamux import yamux

_HEADER: Final = struct.Struct(yamux.YAMUX_HEADER_FORMAT)


class YamuxFrame(NamedTuple):
    """A frame's header. `length`: bytes of a data frame's body; otherwise a window grant, a ping's number or a reason to close."""

    version: int
    kind: int
    flags: int
    stream_id: int
    length: int


class FramePart(NamedTuple):
    """A frame, or the part of a data frame that has arrived."""

    frame: YamuxFrame
    body: bytes
    begins: bool
    ends: bool


def header(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    """The 12 bytes of a header."""
    return _HEADER.pack(0, kind, flags, stream_id, length)


class FrameParser:
    """Holds at most 11 bytes: it passes bodies on as they arrive, so an announced length takes no memory."""

    def __init__(self) -> None:
        self._rest = b""
        self._frame: YamuxFrame | None = None
        """The data frame that is arriving."""
        self._left = 0
        """Bytes of its body that are still missing."""

    def feed(self, data: bytes) -> Iterator[FramePart]:
        """The frames, and parts of frames, in `data`, which continues the bytes fed before. Exhaust the iterator before feeding more."""
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
