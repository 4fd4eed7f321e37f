"""A file in pieces of 4 MiB: their positions, their hashes, and sets of them as bits. Pure, except `hashes_of`, which reads."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection
from pathlib import Path
from typing import Final

from protocol.messages.blobs import MAX_PIECES, PIECE_SIZE

Hashes = tuple[bytes, ...]
"""The sha256 of each piece, in order."""
_READ: Final = 1024 * 1024


def count_of(size: int) -> int:
    """The number of pieces of a file of `size` bytes; an empty file has none."""
    return -(-size // PIECE_SIZE)


def span(index: int, size: int) -> tuple[int, int]:
    """Offset and length of a piece."""
    offset = index * PIECE_SIZE
    return offset, max(0, min(PIECE_SIZE, size - offset))


def covered(offset: int, length: int) -> range:
    """The pieces that contain these bytes."""
    return range(offset // PIECE_SIZE, -(-(offset + length) // PIECE_SIZE))


def to_bits(pieces: Collection[int], count: int) -> bytes:
    """A set of pieces as bits; the file has `count` pieces."""
    bits = bytearray(-(-count // 8))
    for index in pieces:
        bits[index // 8] |= 1 << index % 8
    return bytes(bits)


def from_bits(bits: bytes, count: int) -> set[int]:
    """The set of pieces in `bits`; bits beyond `count`, and missing ones, count as unset."""
    return {
        at * 8 + bit
        for at, byte in enumerate(bits[: -(-count // 8)])
        if byte
        for bit in range(8)
        if byte >> bit & 1 and at * 8 + bit < count
    }


def hashes_of(content: Path | bytes) -> Hashes:
    """Read all of `content` and hash each piece. Blocking; raises `OSError`."""
    matches: list[bytes] = []
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
        while True:
            digest, left = hashlib.sha256(), PIECE_SIZE
            while left and (data := file.read(min(left, _READ))):
                digest.update(data)
                left -= len(data)
            if left == PIECE_SIZE:
                return tuple(matches)
            matches.append(digest.digest())


def divides(size: int) -> bool:
    """Whether a file of `size` bytes is fetched piece by piece from several sources: for a single piece, that is not worth the requests."""
    return PIECE_SIZE < size <= MAX_PIECES * PIECE_SIZE
