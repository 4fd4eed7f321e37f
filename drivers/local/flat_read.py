"""Reads FlatBuffers without a schema compiler; every access stays within the file. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap
from typing import Final

from protocol.formats.model_files import FormatError

MAX_ENTRIES: Final = 1 << 22
"""Most entries in one vector of tables or numbers."""
Bytes = bytes | mmap


@dataclass(frozen=True, slots=True)
class FlatTable:
    """A table at a position in a buffer. `slot`: the field's number in its schema. An offset that leads out of the buffer raises
    `FormatError`."""

    buffer: Bytes
    at: int

    def number(self, slot: int, kind: str, default: int = 0) -> int:
        """A number. `kind`: format character of `struct`."""
        where = self._field(slot)
        return default if where is None else int(self._read(kind, where))

    def real(self, slot: int) -> float:
        """A double."""
        where = self._field(slot)
        return 0.0 if where is None else float(self._read("d", where))

    def table(self, slot: int) -> FlatTable | None:
        where = self._field(slot)
        return None if where is None else FlatTable(self.buffer, self._follow(where))

    def union(self, slot: int) -> tuple[int, FlatTable | None]:
        """The type, 0 for none, and the table of a union. The table is in the next slot."""
        return self.number(slot, "B"), self.table(slot + 1)

    def tables(self, slot: int) -> Iterator[FlatTable]:
        first, count = self._vector(slot, 4)
        for at in range(first, first + 4 * count, 4):
            yield FlatTable(self.buffer, self._follow(at))

    def entry(self, slot: int, index: int) -> FlatTable:
        """One entry of a vector of tables."""
        first, count = self._vector(slot, 4)
        if not 0 <= index < count:
            raise broken()
        return FlatTable(self.buffer, self._follow(first + 4 * index))

    def numbers(self, slot: int, kind: str) -> tuple[int, ...]:
        size = struct.calcsize(f"<{kind}")
        first, count = self._vector(slot, size)
        return struct.unpack(f"<{count}{kind}", self.buffer[first : first + size * count])

    def span(self, slot: int) -> tuple[int, int]:
        """Start and length of a vector of bytes."""
        return self._vector(slot, 1, len(self.buffer))

    def text(self, slot: int) -> str:
        first, count = self.span(slot)
        return self.buffer[first : first + count].decode("utf-8", "replace")

    def _field(self, slot: int) -> int | None:
        """Position of a field; None: it has its default."""
        vtable = self.at - self._read("i", self.at)
        if 4 + 2 * slot + 2 > self._read("H", vtable):
            return None
        offset = self._read("H", vtable + 4 + 2 * slot)
        return self.at + offset if offset else None

    def _vector(self, slot: int, size: int, most: int = MAX_ENTRIES) -> tuple[int, int]:
        """Position of the first entry, and the number of entries."""
        where = self._field(slot)
        if where is None:
            return 0, 0
        where = self._follow(where)
        count = self._read("I", where)
        if count > most or where + 4 + count * size > len(self.buffer):
            raise broken()
        return where + 4, count

    def _follow(self, where: int) -> int:
        return where + self._read("I", where)

    def _read(self, kind: str, where: int) -> int:
        form = f"<{kind}"
        if not 0 <= where <= len(self.buffer) - struct.calcsize(form):
            raise broken()
        found: int = struct.unpack_from(form, self.buffer, where)[0]
        return found


def root(buffer: Bytes) -> FlatTable:
    """The outermost table."""
    start = FlatTable(buffer, 0)
    return FlatTable(buffer, start._follow(0))


def broken() -> FormatError:
    return FormatError("the file is broken: it refers to bytes beyond its end")
