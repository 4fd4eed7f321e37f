"""Reads the necessary parts of an ONNX file without any package: whether it is complete, its inputs, and the tables that they index."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from protocol.formats.model_files import FormatError
from protocol.formats.shapes import InputPort

MAX_INPUTS: Final = 1000
MAX_NODES: Final = 20_000
"""Larger graphs are not searched, since each launch would do it."""
PASS_THROUGH: Final = frozenset(
    {"Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Transpose"}
)
"""Operators that pass ids on unchanged."""

# field numbers in onnx.proto
MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT = 1, 5, 11, 12
NODE_INPUT, NODE_OUTPUT, NODE_OP_TYPE, NODE_ATTRIBUTE = 1, 2, 4, 5
ATTRIBUTE_NAME, ATTRIBUTE_INT = 1, 3
INITIALIZER_DIMS, INITIALIZER_NAME, INITIALIZER_EXTERNAL = 1, 8, 13
ENTRY_KEY, ENTRY_VALUE = 1, 2
INPUT_NAME, INPUT_TYPE = 1, 2
TYPE_TENSOR, TENSOR_ELEMENT, TENSOR_SHAPE, SHAPE_DIM = 1, 1, 2, 1
DIM_VALUE, DIM_PARAM = 1, 2
_NAMES: Final = "float32 uint8 int8 uint16 int16 int32 int64 string bool float16 float64 uint32 uint64"
ELEMENTS: Final[Mapping[int, str]] = MappingProxyType(dict(enumerate(_NAMES.split(), 1)) | {16: "bfloat16"})
"""Element types by number, with NumPy's names where it has them."""


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """What a model file says about itself."""

    inputs: tuple[InputPort, ...]
    operators: int
    external: tuple[str, ...] = ()
    """Files with weights, by the names in the model."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Element types by the name of an input or output; without missing and rare types."""
    outputs: tuple[InputPort, ...] | None = None
    """None: at least one output has no shape in the file."""


def read_graph(path: Path) -> OnnxGraph:
    """The graph of the model in this file. Raises `FormatError` if it is not a complete ONNX model; its weights are not checked."""
    try:
        with path.open("rb") as file:
            model = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        graphs = list(_parts(model, MODEL_GRAPH))
        found = _graph(graphs[-1]) if graphs else None
    except OSError as why:
        raise FormatError(f"cannot be read: {why.strerror or why}") from why
    except ValueError as why:
        raise FormatError("is corrupt or cut short: it is not a complete ONNX model") from why
    if found is None or not (found.operators or found.inputs):
        raise FormatError("is not an ONNX model: it has no graph")
    if found.operators == 0:
        raise FormatError("is an ONNX model without operators: there is nothing to run")
    return found


def read_depth(path: Path) -> int | None:
    """Number of operators on the longest path through the model in this file; None: it cannot be read, or has too many operators."""
    try:
        with path.open("rb") as file:
            model = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        depths: dict[bytes, int] = {}
        nodes = (node for graph in _parts(model, MODEL_GRAPH) for node in _parts(graph, GRAPH_NODE))
        for number, node in enumerate(nodes):
            if number >= MAX_NODES:
                return None
            before = (depths.get(bytes(name), 0) for name in _parts(node, NODE_INPUT))
            depth = 1 + max(before, default=0)
            depths.update((bytes(name), depth) for name in _parts(node, NODE_OUTPUT))
        return max(depths.values(), default=None)
    except (OSError, ValueError):
        return None


def _graph(graph: memoryview) -> OnnxGraph:
    inputs, weights, external, operators = list[InputPort](), set[str](), dict[str, None](), 0
    outputs, types, shaped = list[InputPort](), dict[str, str](), True
    for number, part in _byte_fields(graph):
        if number in (GRAPH_INPUT, GRAPH_OUTPUT):
            port, element, has_shape = _port(part)
            if element is not None:
                types[port.name] = element
            if number == GRAPH_INPUT:
                inputs.append(port)
            else:
                outputs.append(port)
                shaped = shaped and has_shape
        elif number == GRAPH_INITIALIZER:
            weights.add(_text(part, INITIALIZER_NAME))
            for entry in _parts(part, INITIALIZER_EXTERNAL):
                if _text(entry, ENTRY_KEY) == "location":
                    external[_text(entry, ENTRY_VALUE)] = None
        elif number == GRAPH_NODE:
            operators += 1
            _text(part, NODE_OP_TYPE)
        if len(inputs) > MAX_INPUTS and len(inputs) > MAX_INPUTS + len(weights):
            raise ValueError("too many inputs")
    own = tuple(one for one in inputs if one.name not in weights)  # old files list their weights as inputs
    types = {port.name: types[port.name] for port in (*own, *outputs) if port.name in types}
    return OnnxGraph(own, operators, tuple(external), types, tuple(outputs) if shaped else None)


def read_table_rows(path: Path, inputs: Sequence[str]) -> Mapping[str, int]:
    """For each of `inputs` that is an index into a stored table: the number of rows of its shortest table.

    Follows only the simple case: an input, possibly cast or reshaped, that a Gather uses to index stored weights.
    """
    try:
        with path.open("rb") as file:
            model = memoryview(
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            )  # unmapped with its last view
        fields = (field for graph in _parts(model, MODEL_GRAPH) for field in _byte_fields(graph))
        return _table_rows_in(fields, inputs)
    except (OSError, ValueError):
        return {}


def _port(part: memoryview) -> tuple[InputPort, str | None, bool]:
    """An input or output, its element type, and whether the file gives its shape."""
    shape: list[int | str | None] = []
    element, has_shape = None, False
    for type_ in _parts(part, INPUT_TYPE):
        for tensor in _parts(type_, TYPE_TENSOR):
            for number, value in _fields(tensor):
                if number == TENSOR_ELEMENT and isinstance(value, int):
                    element = ELEMENTS.get(value)
                elif number == TENSOR_SHAPE and not isinstance(value, int):
                    has_shape = True
                    shape = [_dimension(dim) for dim in _parts(value, SHAPE_DIM)]
    return InputPort(_text(part, INPUT_NAME), tuple(shape)), element, has_shape


def _dimension(part: memoryview) -> int | str | None:
    for number, value in _fields(part):
        if number == DIM_VALUE and isinstance(value, int) and 0 <= value < 1 << 63:
            return value
        if number == DIM_PARAM and not isinstance(value, int):
            return str(value, "utf-8", "replace") or None
    return None


def _table_rows_in(graph: Iterator[tuple[int, memoryview]], inputs: Sequence[str]) -> Mapping[str, int]:
    sizes: dict[str, list[int]] = {}  # shapes of the stored weights
    nodes: list[memoryview] = []
    for number, part in graph:
        if number == GRAPH_INITIALIZER:
            sizes[_text(part, INITIALIZER_NAME)] = _dims(part)
        elif number == GRAPH_NODE:
            nodes.append(part)
            if len(nodes) > MAX_NODES:
                return {}
    sources = {name: name for name in inputs}  # value → the input that it equals
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
    """Number and content of each protobuf field: an integer, or the bytes of a text, a list or a message. Raises `ValueError`."""
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
