"""The blob conversation, `/sark/blob/1`: pull a piece of a file named by its content.

    taker                                     holder
        │ Fetch ──────────────────────────────▶ │
        │ ◀──────────────────── Sending, Absent │
        │ ◀═══════════ length bytes, no framing │   then the next Fetch on the same stream

The taker asks for as much as it can store; the holder sends nothing unasked, so nothing piles up. The whole is verified by its hash.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.base import Count, Detail, Message, Sha256
from protocol.codec import Vocabulary
from protocol.words import Reason

MAX_PIECE: Final = 16 * 1024 * 1024
"""Bytes of one Fetch."""
WRITE_SIZE: Final = 65_507
"""Fills one Noise frame exactly; a byte more costs a second one."""


class Fetch(Message):
    """Send me up to `length` bytes of this file from `offset` on."""

    type: Literal["fetch"] = "fetch"
    sha256: Sha256
    offset: Count
    length: Annotated[int, Field(ge=1, le=MAX_PIECE)]


class Sending(Message):
    """`length` raw bytes follow; `size` is the whole file's."""

    type: Literal["sending"] = "sending"
    size: Count
    length: Annotated[int, Field(ge=0, le=MAX_PIECE)]


class Absent(Message):
    """No such file here, or not for you."""

    type: Literal["absent"] = "absent"
    reason: Annotated[Reason, Field(strict=False)]
    detail: Detail = ""


BLOB: Final = Vocabulary(Fetch, Sending, Absent)
