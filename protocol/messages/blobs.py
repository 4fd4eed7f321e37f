"""The blob protocol, `/sark/blob/1`: pull a piece of a file named by its content.

    downloader                                      holder
        │ AskHolders ──────────────────────────────▶ │   who else has this file? asked of the task's scheduler
        │ ◀──────────────────── Holders, BlobAbsent │
        │ AskPieceHashes ──────────────────────────▶ │   the sha256 of each piece, accepted from that scheduler alone
        │ ◀─────────────── PieceFollows, BlobAbsent │
        │ ◀══════════════ length bytes, no framing │
        │ AskPieces ───────────────────────────────▶ │   which pieces of it do you have?
        │ ◀───────────────── HavePieces, BlobAbsent │
        │ FetchPiece ──────────────────────────────▶ │
        │ ◀─── PieceFollows, HavePieces, BlobAbsent │
        │ ◀══════════════ length bytes, no framing │   then the next FetchPiece on the same stream

The downloader requests only as much as it can store, and the holder sends nothing unrequested, so nothing piles up. The whole file is
verified by its hash.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.wire.base import AddressText, Count, Detail, Message, PeerName, Sha256, Signature
from protocol.wire.codec import Vocabulary, pack
from protocol.words import Reason

MAX_PIECE: Final = 16 * 1024 * 1024
"""Most bytes of one `FetchPiece`."""
PIECE_SIZE: Final = 4 * 1024 * 1024
"""Bytes of a piece, the unit that has a hash and a bit in `HavePieces`; the last piece may be shorter."""
MAX_PIECES: Final = 2**18
"""Most pieces of one file: 1 TiB."""
HASH_SIZE: Final = 32
WRITE_SIZE: Final = 65_507
"""Fills one Noise frame exactly; one more byte would need a second frame."""
MAX_OTHERS: Final = 16

_CONTEXT: Final = b"sark grant 1\n"

Bits = Annotated[bytes, Field(max_length=MAX_PIECES // 8)]
"""One bit for each piece, least significant bit first."""


class TransferGrant(Message):
    """`giver`, a scheduler, lets `taker` have the model `sha256`. Shown to workers that hold it.

    Bound to the taker, whose id the channel proves, so nobody else can use it. A holder honours it only where it would give the model to
    the scheduler itself.
    """

    v: Literal[1] = 1
    giver: PeerName
    taker: PeerName
    sha256: Sha256
    until: Count
    """In wall seconds; holders allow for differing clocks."""
    signature: Signature

    @property
    def message(self) -> bytes:
        return grant_message(self.giver, self.taker, self.sha256, self.until)


def grant_message(giver: str, taker: str, sha256: str, until: int) -> bytes:
    """The bytes that `giver` signs."""
    return _CONTEXT + pack([giver, taker, sha256, until])


class FetchPiece(Message, type="fetch-piece"):
    """Ask for up to `length` bytes of this file from `offset` on."""

    sha256: Sha256
    offset: Count
    length: Annotated[int, Field(ge=1, le=MAX_PIECE)]
    grant: TransferGrant | None = None
    """The right to the file, for a holder that does not know the downloader."""
    missing: Bits | None = None
    """The holder may send any of these pieces that it has sent to nobody yet; the reply is `HavePieces` if there is none."""


class PieceFollows(Message, type="piece-follows"):
    """`length` raw bytes follow; `size` is the whole file's."""

    size: Count
    length: Annotated[int, Field(ge=0, le=MAX_PIECE)]
    offset: Count | None = None
    """Offset of the piece, if it is not the requested one."""


class BlobAbsent(Message, type="blob-absent"):
    """The holder does not have the file, or may not give it to this peer."""

    reason: Annotated[Reason, Field(strict=False)]
    detail: Detail = ""


class AskPieces(Message, type="ask-pieces"):
    """Ask which pieces of this file the holder has."""

    sha256: Sha256
    grant: TransferGrant | None = None


class HavePieces(Message, type="have-pieces"):
    """The pieces the holder has."""

    size: Count
    """Bytes of the whole file."""
    pieces: Bits | None = None
    """None: all of them."""
    fresh: Bits | None = None
    """Pieces that the holder has sent to nobody yet. Fetching these first spreads the file fastest. None: unknown."""


class AskPieceHashes(Message, type="ask-piece-hashes"):
    """Ask for the sha256 of each piece of this file: 32 bytes each, in order."""

    sha256: Sha256


class AskHolders(Message, type="ask-holders"):
    """Ask who else has this file or some of its pieces."""

    sha256: Sha256


class HolderInfo(Message):
    """A worker that has the file or is downloading it."""

    peer: PeerName
    addresses: Annotated[tuple[AddressText, ...], Field(max_length=8)] = ()


class Holders(Message, type="holders"):
    """Other holders, and the transfer grant to show them."""

    grant: TransferGrant | None = None
    others: Annotated[tuple[HolderInfo, ...], Field(max_length=MAX_OTHERS)] = ()


BLOB: Final = Vocabulary(
    FetchPiece,
    PieceFollows,
    BlobAbsent,
    AskPieces,
    HavePieces,
    AskPieceHashes,
    AskHolders,
    Holders,
    calls=(FetchPiece, AskPieces, AskPieceHashes, AskHolders),
)
