"""Writes FlatBuffers without a schema compiler: the modules that make small models as bytes use it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import flatbuffers

ALIGNMENT: Final = 16
"""Alignment of weights, in bytes."""


class FlatWriter:
    """Tables and vectors; each method returns the position of what it wrote."""

    def __init__(self) -> None:
        self.builder: Any = flatbuffers.Builder(1024)
        self._put: dict[str, Callable[..., None]] = {
            "o": self.builder.PrependUOffsetTRelativeSlot,
            "b": self.builder.PrependInt8Slot,
            "i": self.builder.PrependInt32Slot,
            "I": self.builder.PrependUint32Slot,
            "Q": self.builder.PrependUint64Slot,
        }

    def table(self, *fields: tuple[int, str, int]) -> int:
        """A table. Fields are a slot, a type, and a value; fields with value 0 are left out, as defaults are."""
        self.builder.StartObject(max((slot for slot, _, _ in fields), default=0) + 1)
        for slot, kind, value in fields:
            self._put[kind](slot, value, 0)
        return int(self.builder.EndObject())

    def text(self, value: str) -> int:
        return int(self.builder.CreateString(value))

    def offsets(self, where: Sequence[int]) -> int:
        """A vector of tables."""
        self.builder.StartVector(4, len(where), 4)
        for one in reversed(where):
            self.builder.PrependUOffsetTRelative(one)
        return int(self.builder.EndVector())

    def numbers(self, kind: str, values: Sequence[float]) -> int:
        """A vector. `kind`: format character of `struct`."""
        size = struct.calcsize(f"<{kind}")
        return self._bytes(struct.pack(f"<{len(values)}{kind}", *values), size, size)

    def buffer(self, content: bytes) -> int:
        """A table with only bytes, in its first slot."""
        return self.table((0, "o", self._bytes(content, 1, ALIGNMENT))) if content else self.table()

    def finish(self, root: int, identifier: bytes) -> bytes:
        self.builder.Finish(root, identifier)
        return bytes(self.builder.Output())

    def _bytes(self, content: bytes, size: int, alignment: int) -> int:
        builder = self.builder
        builder.StartVector(size, len(content) // size, alignment)
        builder.head -= len(content)
        builder.Bytes[builder.Head() : builder.Head() + len(content)] = content
        return int(builder.EndVector())


def small_weights(count: int, width: int) -> bytes:
    """`count` float32 values that differ. Products `width` wide with them have results of about the same size."""
    values = [((at * 37) % 101 - 50) / (50 * width**0.5) for at in range(count)]
    return struct.pack(f"<{count}f", *values)
