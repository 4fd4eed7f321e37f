"""Examples on which a model is evaluated, and its answers: lists of named tensors or texts, as bytes that both sides check.

8 bytes length, little endian │ [[["x", "float32", [1, 4]], …], …] or [[["", "text", [27]]], …] in JSON │ bytes of all values in order
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

MIB: Final = 1024**2
MAX_EXAMPLES: Final = 10_000
MAX_EXAMPLE_BYTES: Final = 256 * MIB
"""Most bytes of all examples of one model together."""
MAX_ANSWER_BYTES: Final = 4 * MIB
"""Most bytes of all answers of one run together, since the answers are part of its record."""
MAX_HEAD: Final = 16 * MIB
MAX_VALUES: Final = 64
"""Most inputs of a model, or outputs."""
MAX_RANK: Final = 16
MAX_NAME: Final = 500
UNNAMED: Final = ""
"""The name of a text, and of a model's only input if it has no name."""
TEXT: Final = "text"
"""The type of UTF-8 text, whose only dimension is its number of bytes."""
WIDTHS: Final[Mapping[str, int]] = MappingProxyType(
    {
        **{f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)},
        **{f"float{bits}": bits // 8 for bits in (16, 32, 64)},
        "bool": 1,
        TEXT: 1,
    }
)
"""Bytes of an element, by the NumPy name of its type."""
_LENGTH: Final = 8


class Value(NamedTuple):
    """A tensor in C order, little-endian; or a text."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def text(self) -> str | None:
        """The text; None if the value is a tensor."""
        return self.data.decode() if self.dtype == TEXT else None


Values = Mapping[str, Value]
"""The values of one example, or of one answer, by name."""


def text_value(text: str) -> Value:
    data = text.encode()
    return Value(TEXT, (len(data),), data)


def pack_examples(examples: Iterable[Values]) -> bytes:
    listed = [[(name, value) for name, value in values.items()] for values in examples]
    head = json.dumps([[(name, value.dtype, value.shape) for name, value in values] for values in listed])
    parts = [value.data for values in listed for _, value in values]
    return b"".join((len(head).to_bytes(_LENGTH, "little"), head.encode(), *parts))


def unpack_examples(packed: bytes, most: int = MAX_EXAMPLE_BYTES) -> tuple[dict[str, Value], ...]:
    """The inverse of `pack_examples`. Raises `ValueError` with a sentence for anything else, and for more than `most` bytes."""
    if len(packed) > most:
        raise ValueError(f"{len(packed)} bytes, where {most} are allowed")
    length = int.from_bytes(packed[:_LENGTH], "little")
    if length > min(MAX_HEAD, len(packed)):
        raise ValueError("its head is cut off, or too long")
    try:
        listed = json.loads(packed[_LENGTH : _LENGTH + length])
    except (ValueError, RecursionError):
        raise ValueError("its head is not JSON") from None
    if not isinstance(listed, list) or len(listed) > MAX_EXAMPLES:
        raise ValueError(f"its head is not a list of at most {MAX_EXAMPLES}")
    place, examples = _LENGTH + length, []
    for entries in listed:
        values: dict[str, Value] = {}
        for name, dtype, shape in _entries(entries):
            size = math.prod(shape) * WIDTHS[dtype]
            values[name] = Value(dtype, shape, packed[place : place + size])
            place += size
        if len(values) != len(entries):
            raise ValueError("an example has a name twice")
        examples.append(values)
    if place != len(packed):
        raise ValueError("its head and its bytes do not match")
    return tuple(examples)


def _entries(entries: Any) -> list[tuple[str, str, tuple[int, ...]]]:
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_VALUES:
        raise ValueError(f"an example has 1 to {MAX_VALUES} values")
    return [_entry(entry) for entry in entries]


def _entry(entry: Any) -> tuple[str, str, tuple[int, ...]]:
    match entry:
        case [str() as name, str() as dtype, list() as shape] if (
            len(name) <= MAX_NAME
            and dtype in WIDTHS
            and len(shape) <= MAX_RANK
            and all(type(size) is int and 0 <= size <= MAX_EXAMPLE_BYTES for size in shape)
        ):
            return name, dtype, tuple(shape)
    raise ValueError("a value of an example has no name, type and shape")
