"""The blob conversation, `/sark/blob/1`: pull a piece of a file named by its content.

    taker                                     holder
        │ Where ──────────────────────────────▶ │   who else has it? asked of the scheduler that speaks for the task
        │ ◀──────────────────── Others, Absent │
        │ Pieces ─────────────────────────────▶ │   the sha256 of each piece, believed of that scheduler alone
        │ ◀──────────────────── Sending, Absent │
        │ ◀═══════════ length bytes, no framing │
        │ Which ──────────────────────────────▶ │   what of it have you?
        │ ◀─────────────────────── Have, Absent │
        │ Fetch ──────────────────────────────▶ │
        │ ◀────────────── Sending, Have, Absent │
        │ ◀═══════════ length bytes, no framing │   then the next Fetch on the same stream

The taker asks for as much as it can store; the holder sends nothing unasked, so nothing piles up. The whole is verified by its hash.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.signed.transfer_grant import TransferGrant
from protocol.wire.base import AddressText, Count, Detail, Message, PeerName, Sha256
from protocol.wire.codec import Vocabulary
from protocol.words import Reason

MAX_PIECE: Final = 16 * 1024 * 1024
"""Bytes of one Fetch."""
PIECE_SIZE: Final = 4 * 1024 * 1024
"""Bytes of a piece that has a hash of its own and is counted in `HavePieces`; the last one may be shorter."""
MAX_PIECES: Final = 2**18
"""Of one file: those of a TiB."""
HASH_SIZE: Final = 32
WRITE_SIZE: Final = 65_507
"""Fills one Noise frame exactly; a byte more costs a second one."""
MAX_OTHERS: Final = 16

Bits = Annotated[bytes, Field(max_length=MAX_PIECES // 8)]
"""One bit for each piece of `PIECE_SIZE`, the lowest bit of the first byte for the first piece."""


class FetchPiece(Message):
    """Send me up to `length` bytes of this file from `offset` on."""

    type: Literal["fetch-piece"] = "fetch-piece"
    sha256: Sha256
    offset: Count
    length: Annotated[int, Field(ge=1, le=MAX_PIECE)]
    grant: TransferGrant | None = None
    """Why I may have it, where you do not know me."""
    lacking: Bits | None = None
    """Or one of these pieces that you have sent nobody yet: the answer says where it lies, or is `HavePieces` where there is none."""


class PieceFollows(Message):
    """`length` raw bytes follow; `size` is the whole file's."""

    type: Literal["piece-follows"] = "piece-follows"
    size: Count
    length: Annotated[int, Field(ge=0, le=MAX_PIECE)]
    offset: Count | None = None
    """Of another piece than the one that was named, where several would do."""


class BlobAbsent(Message):
    """No such file here, or not for you."""

    type: Literal["blob-absent"] = "blob-absent"
    reason: Annotated[Reason, Field(strict=False)]
    detail: Detail = ""


class AskPieces(Message):
    """Which pieces of this file have you?"""

    type: Literal["ask-pieces"] = "ask-pieces"
    sha256: Sha256
    grant: TransferGrant | None = None


class HavePieces(Message):
    """These."""

    type: Literal["have-pieces"] = "have-pieces"
    size: Count
    """Of the whole file."""
    pieces: Bits | None = None
    """The pieces that are here; None: all of them."""
    fresh: Bits | None = None
    """Those of them that nobody has been sent yet: to ask for them first brings the whole to everybody soonest. None: not known."""


class AskPieceHashes(Message):
    """Send me the sha256 of each piece of this file, one after the other, 32 bytes each."""

    type: Literal["ask-piece-hashes"] = "ask-piece-hashes"
    sha256: Sha256


class AskHolders(Message):
    """Who else has this file, or some of it?"""

    type: Literal["ask-holders"] = "ask-holders"
    sha256: Sha256


class HolderInfo(Message):
    """A worker that has it, or is being given it."""

    peer: PeerName
    addresses: Annotated[tuple[AddressText, ...], Field(max_length=8)] = ()


class Holders(Message):
    """These; and the transfer grant to show them."""

    type: Literal["holders"] = "holders"
    grant: TransferGrant | None = None
    others: Annotated[tuple[HolderInfo, ...], Field(max_length=MAX_OTHERS)] = ()


BLOB: Final = Vocabulary(
    FetchPiece, PieceFollows, BlobAbsent, AskPieces, HavePieces, AskPieceHashes, AskHolders, Holders
)
