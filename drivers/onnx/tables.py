"""Which tables a model's inputs index, read from its file without any package: made ids then lie within them.

Only the plainest way is followed: an input, perhaps cast or reshaped, that a Gather looks up in stored weights. A model that does it
in another way, or a file that is not as expected, tells nothing, and ids are made small.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MAX_NODES: Final = 20_000
"""A graph of more is not looked through: each launch does it."""
SAME: Final = frozenset({"Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Transpose"})
"""Operators that let ids be what they are."""

GRAPH, NODES, WEIGHTS = 7, 1, 5
NODE_INPUTS, NODE_OUTPUTS, NODE_OPERATOR, NODE_ATTRIBUTES = 1, 2, 4, 5
WEIGHT_SIZES, WEIGHT_NAME = 1, 8
ATTRIBUTE_NAME, ATTRIBUTE_WHOLE = 1, 3

Field = tuple[int, int | memoryview]


class _Odd(ValueError):
    """Not what a model looks like."""


@dataclass(slots=True)
class _Graph:
    """The names that matter."""

    sources: dict[str, str]
    """Which input a value is."""
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Of stored weights."""
    rows: dict[str, int] = field(default_factory=dict)
    """What was found: the shortest table of each input."""


def tables(model: Path, inputs: tuple[str, ...]) -> Mapping[str, int]:
    """Rows of the table that each of `inputs` indexes, for those where it can be seen."""
    try:
        with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            whole = memoryview(mapped)
            try:
                return _in_graph(whole, inputs)
            finally:
                whole.release()
    except (OSError, ValueError, BufferError):
        return {}


def _in_graph(whole: memoryview, inputs: tuple[str, ...]) -> Mapping[str, int]:
    graph = _Graph({name: name for name in inputs})
    nodes: list[tuple[str, list[str], list[str], int]] = []
    for number, held in _fields(whole):
        if number != GRAPH or isinstance(held, int):
            continue
        with held:
            for inner, part in _fields(held):
                if isinstance(part, int):
                    continue
                with part:
                    if inner == WEIGHTS:
                        name, sizes = _weight(part)
                        graph.sizes[name] = sizes
                    elif inner == NODES:
                        nodes.append(_node(part))
                        if len(nodes) > MAX_NODES:
                            return {}
    for operator, taken, given, axis in nodes:
        _follow(graph, operator, taken, given, axis)
    return graph.rows


def _follow(graph: _Graph, operator: str, taken: list[str], given: list[str], axis: int) -> None:
    if operator in SAME and taken and given and taken[0] in graph.sources:
        graph.sources[given[0]] = graph.sources[taken[0]]
    if operator != "Gather" or len(taken) != 2 or taken[1] not in graph.sources:
        return
    sizes = graph.sizes.get(taken[0], ())
    if -len(sizes) <= axis < len(sizes) and sizes[axis] > 0:
        of = graph.sources[taken[1]]
        graph.rows[of] = min(sizes[axis], graph.rows.get(of, sizes[axis]))


def _weight(part: memoryview) -> tuple[str, tuple[int, ...]]:
    name, sizes = "", list[int]()
    for number, held in _fields(part):
        if number == WEIGHT_SIZES:
            sizes += [held] if isinstance(held, int) else _packed(held)
        elif number == WEIGHT_NAME and not isinstance(held, int):
            name = str(held, "utf-8", "replace")
    return name, tuple(sizes)


def _node(part: memoryview) -> tuple[str, list[str], list[str], int]:
    operator, taken, given, axis = "", list[str](), list[str](), 0
    for number, held in _fields(part):
        if isinstance(held, int):
            continue
        if number == NODE_INPUTS:
            taken.append(str(held, "utf-8", "replace"))
        elif number == NODE_OUTPUTS:
            given.append(str(held, "utf-8", "replace"))
        elif number == NODE_OPERATOR:
            operator = str(held, "utf-8", "replace")
        elif number == NODE_ATTRIBUTES:
            told = dict(_fields(held))
            name, value = told.get(ATTRIBUTE_NAME), told.get(ATTRIBUTE_WHOLE)
            if isinstance(name, memoryview) and bytes(name) == b"axis" and isinstance(value, int):
                axis = value - (1 << 64) if value >> 63 else value
    return operator, taken, given, axis


def _fields(part: memoryview) -> Iterator[Field]:
    """Number and content of each field: a whole number, or the bytes of a text, a list or a message."""
    at = 0
    while at < len(part):
        tag, at = _whole(part, at)
        kind = tag & 7
        if kind == 0:
            value, at = _whole(part, at)
            yield tag >> 3, value
        elif kind == 2:
            length, at = _whole(part, at)
            if at + length > len(part):
                raise _Odd
            yield tag >> 3, part[at : at + length]
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise _Odd


def _whole(part: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(part) or shift > 63:
            raise _Odd
        byte = part[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def _packed(held: memoryview) -> list[int]:
    found, at = list[int](), 0
    while at < len(held):
        value, at = _whole(held, at)
        found.append(value)
    return found
