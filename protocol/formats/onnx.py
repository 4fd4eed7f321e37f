"""Reads what is needed of an ONNX file without any package: its inputs, and the tables that they index.

A file that is not as expected yields nothing: it is the driver that refuses a model.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

MAX_INPUTS: Final = 1000
MAX_NODES: Final = 20_000
"""Larger graphs are not searched: each launch would do it."""
PASS_THROUGH: Final = frozenset(
    {"Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Transpose"}
)
"""Operators that leave ids unchanged."""

# field numbers in onnx.proto
MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT = 1, 5, 11
NODE_INPUT, NODE_OUTPUT, NODE_OP_TYPE, NODE_ATTRIBUTE = 1, 2, 4, 5
ATTRIBUTE_NAME, ATTRIBUTE_INT = 1, 3
INITIALIZER_DIMS, INITIALIZER_NAME = 1, 8
INPUT_NAME, INPUT_TYPE = 1, 2
TYPE_TENSOR, TENSOR_SHAPE, SHAPE_DIM = 1, 2, 1
DIM_VALUE, DIM_PARAM = 1, 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OnnxInput:
    """One input. `shape` entries: a size, a symbol, or None for a nameless dynamic dimension."""

    name: str
    shape: tuple[int | str | None, ...]

    def keys(self) -> tuple[str, ...]:
        """Names by which a campaign may call its dynamic dimensions."""
        dynamic = [(axis, size) for axis, size in enumerate(self.shape) if not isinstance(size, int)]
        symbols = [size for _, size in dynamic if isinstance(size, str)]
        return (*symbols, *(f"{self.name}[{axis}]" for axis, _ in dynamic))


def read_inputs(path: Path) -> tuple[OnnxInput, ...]:
    """The inputs of the model in this file; empty if it is not a readable model."""
    return _read(path, _inputs_in, ())


def read_table_rows(path: Path, inputs: Sequence[str]) -> Mapping[str, int]:
    """For each of `inputs` that is an index into a stored table: the rows of its shortest table.

    Follows only the plain case: an input, perhaps cast or reshaped, that a Gather looks up in stored weights.
    """
    return _read(path, lambda graph: _table_rows_in(graph, inputs), {})


def _read(path: Path, read: Callable[[Iterator[tuple[int, memoryview]]], T], otherwise: T) -> T:
    """What `read` makes of the fields of the graph: number and bytes of each."""
    try:
        with path.open("rb") as file:
            model = memoryview(
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            )  # unmapped with its last view
        return read(field for graph in _parts(model, MODEL_GRAPH) for field in _byte_fields(graph))
    except (OSError, ValueError):
        return otherwise


def _inputs_in(graph: Iterator[tuple[int, memoryview]]) -> tuple[OnnxInput, ...]:
    inputs: list[OnnxInput] = []
    weights: set[str] = set()
    for number, part in graph:
        if number == GRAPH_INPUT:
            inputs.append(_input(part))
        elif number == GRAPH_INITIALIZER:
            weights.add(_text(part, INITIALIZER_NAME))
        if len(inputs) > MAX_INPUTS:
            return ()
    return tuple(one for one in inputs if one.name not in weights)  # old files list their weights as inputs


def _input(part: memoryview) -> OnnxInput:
    shape: list[int | str | None] = []
    for type_ in _parts(part, INPUT_TYPE):
        for tensor in _parts(type_, TYPE_TENSOR):
            for dims in _parts(tensor, TENSOR_SHAPE):
                shape = [_dimension(dim) for dim in _parts(dims, SHAPE_DIM)]
    return OnnxInput(_text(part, INPUT_NAME), tuple(shape))


def _dimension(part: memoryview) -> int | str | None:
    for number, value in _fields(part):
        if number == DIM_VALUE and isinstance(value, int) and 0 <= value < 1 << 63:
            return value
        if number == DIM_PARAM and not isinstance(value, int):
            return str(value, "utf-8", "replace") or None
    return None


def _table_rows_in(graph: Iterator[tuple[int, memoryview]], inputs: Sequence[str]) -> Mapping[str, int]:
    sizes: dict[str, list[int]] = {}  # of the stored weights
    nodes: list[memoryview] = []
    for number, part in graph:
        if number == GRAPH_INITIALIZER:
            sizes[_text(part, INITIALIZER_NAME)] = _dims(part)
        elif number == GRAPH_NODE:
            nodes.append(part)
            if len(nodes) > MAX_NODES:
                return {}
    sources = {name: name for name in inputs}  # the input that a value is
    rows: dict[str, int] = {}
    for node in nodes:
        operator = _text(node, NODE_OP_TYPE)
        taken = [str(name, "utf-8", "replace") for name in _parts(node, NODE_INPUT)]
        if operator in PASS_THROUGH and taken and taken[0] in sources:
            sources[_text(node, NODE_OUTPUT)] = sources[taken[0]]
        elif operator == "Gather" and len(taken) == 2 and taken[1] in sources:
            shape, axis = sizes.get(taken[0], []), _axis(node)
            if -len(shape) <= axis < len(shape) and shape[axis] > 0:
                name = sources[taken[1]]
                rows[name] = min(shape[axis], rows.get(name, shape[axis]))
    return rows


def _dims(tensor: memoryview) -> list[int]:
    dims: list[int] = []
    for number, value in _fields(tensor):
        if number == INITIALIZER_DIMS:
            dims += [value] if isinstance(value, int) else _packed(value)
    return dims


def _axis(node: memoryview) -> int:
    axis = 0
    for attribute in _parts(node, NODE_ATTRIBUTE):
        fields = dict(_fields(attribute))
        value = fields.get(ATTRIBUTE_INT)
        if _text(attribute, ATTRIBUTE_NAME) == "axis" and isinstance(value, int):
            axis = value - (1 << 64) if value >> 63 else value
    return axis


def _parts(message: memoryview, wanted: int) -> Iterator[memoryview]:
    return (part for number, part in _byte_fields(message) if number == wanted)


def _text(message: memoryview, wanted: int) -> str:
    return next((str(part, "utf-8", "replace") for part in _parts(message, wanted)), "")


def _byte_fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    return ((number, value) for number, value in _fields(message) if not isinstance(value, int))


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and content of each protobuf field: a whole number, or the bytes of a text, a list or a message. Raises `ValueError`."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        wire_type = tag & 7
        if wire_type == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
        elif wire_type == 2:
            length, at = _varint(message, at)
            if at + length > len(message):
                raise ValueError("a field ends after its message")
            yield tag >> 3, message[at : at + length]
            at += length
        elif wire_type in (1, 5):
            at += 8 if wire_type == 1 else 4
        else:
            raise ValueError(f"wire type {wire_type}")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("not a varint")
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def _packed(message: memoryview) -> list[int]:
    values, at = list[int](), 0
    while at < len(message):
        value, at = _varint(message, at)
        values.append(value)
    return values
