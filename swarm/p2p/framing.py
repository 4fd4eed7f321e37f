"""Messages behind their length, read with a cap and without a limit of pieces."""

from __future__ import annotations

from typing import Protocol

from libp2p.exceptions import ParseError
from libp2p.io.exceptions import IncompleteReadError
from libp2p.network.stream.exceptions import StreamEOF


class _Readable(Protocol):
    async def read(self, n: int | None = None, /) -> bytes: ...


async def read_prefixed(reader: _Readable, most: int) -> bytes | None:
    """A message behind its length as a varint; None where the stream ended before. ParseError for one of no byte, or above `most`."""
    size = shift = 0
    while True:
        byte = await _read(reader, 1)
        if not byte and not shift:
            return None
        if not byte:
            raise ParseError("the stream ended within a length")
        size |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            break
        if shift > 21:
            raise ParseError("a length that has no end")
    if not 0 < size <= most:
        raise ParseError(f"a message of {size} bytes; at most {most} are read")
    return await read_exactly(reader, size)


async def read_exactly(reader: _Readable, n: int, retry_count: int = 0) -> bytes:
    """`n` bytes in as many pieces as they come. IncompleteReadError when the stream ends before."""
    data = bytearray()
    while len(data) < n:
        part = await _read(reader, n - len(data))
        if not part:
            raise IncompleteReadError(
                f"the stream ended after {len(data)} of {n} bytes", expected_bytes=n, received_bytes=len(data)
            )
        data += part
    return bytes(data)


async def _read(reader: _Readable, n: int) -> bytes:
    try:
        return await reader.read(n)
    except StreamEOF:
        return b""
