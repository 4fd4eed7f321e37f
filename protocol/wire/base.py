"""What all messages and records have in common: they are frozen, strict and bounded, and tolerate a newer peer's extra fields."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MAX_FRAME: Final = 64 * 1024
"""Most bytes of one control frame, without the length prefix. Checked before anything is buffered."""
MAX_DEPTH: Final = 8
"""Deepest nesting of arrays and maps in a frame."""
MAX_ELEMENTS: Final = 1024
"""Most array items and map entries in a frame, together."""
MAX_INLINE: Final = 40 * 1024
"""A result up to this size is sent in its frame; a larger one is pulled as a blob."""


def brief(text: str, limit: int = 200) -> str:
    """`text` as a `Line`: printable ASCII, clipped with three dots."""
    clean = "".join(char if " " <= char <= "~" else "?" for char in text)
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


class Message(BaseModel):
    """Base of all wire values. An unknown field is ignored; an unknown type or a wrong type is refused."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False, defer_build=True)
    type: ClassVar[str] = ""
    """The name of the message in a frame, given in its class declaration; empty: it is only sent inside other messages."""

    def __init_subclass__(cls, *, type: str = "", **config: Any) -> None:
        super().__init_subclass__(**config)
        cls.type = type or cls.type

    def to_wire(self) -> dict[str, Any]:
        """Plain values for msgpack; fields that are None are left out."""
        return self.model_dump(mode="python", exclude_none=True)


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")]
"""A name chosen by an owner, for a device or a label. Contains nothing that a terminal, a page, a sheet or a path could interpret."""
Line = Annotated[str, StringConstraints(pattern=r"^[ -~]{0,200}$")]
"""One line of printable ASCII, for hardware and OS names. Escaped when shown."""
Detail = Annotated[str, StringConstraints(max_length=2000)]
"""A sentence for users, with any characters. Made safe when shown."""
Brief = Line
"""A line made from other lines, clipped by `brief`."""
PeerName = Annotated[str, StringConstraints(pattern=r"^[1-9A-HJ-NP-Za-km-z]{32,64}$")]
"""A peer id in base58."""
AddressText = Annotated[str, StringConstraints(pattern=r"^/[!-~]{1,199}$")]
"""A multiaddr."""
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Key32 = Annotated[bytes, Field(min_length=32, max_length=32)]
Signature = Annotated[bytes, Field(min_length=64, max_length=64)]
Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]
"""An id of a campaign, task, lease, ticket or commit."""
Count = Annotated[int, Field(ge=0, le=2**53)]
Seconds = Annotated[float, Field(ge=0, le=31_536_000)]
"""A duration, never an instant: each side measures with its own clock."""
Priority = Annotated[int, Field(ge=0, le=100)]


MAX_TOKEN: Final = 8 * 1024


Token = Annotated[bytes, Field(min_length=1, max_length=MAX_TOKEN)]
"""A Biscuit that says what its holder may do, under the key of a pool or of an owner."""
