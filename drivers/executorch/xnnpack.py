"""The operators in what ExecuTorch's exporter made for XNNPACK. Pure.

Slots are those of its `runtime_schema.fbs`, whose union of nodes later versions make longer.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from drivers.local.flat_read import Bytes, root
from protocol.formats.model_files import FormatError

HEADER: Final = b"XH00"
"""At byte 4; then its own length, and where the graph begins and how long it is."""
HEADER_SIZE: Final = 30
_NAMES: Final = (
    *("Add", "FullyConnected", "Softmax", "Sigmoid", "StaticTranspose", "Clamp"),
    *("Conv2d", "Div", "StaticResizeBilinear2D", "StaticConstantPad", "AvgPooling2d", "Minimum"),
    *("DepthwiseConv2d", "MaxPooling2d", "Multiply", "Subtract", "Floor", "Convert"),
    *("GlobalAvgPooling2d", "StaticReshape", "ArgMaxPooling2d", "SquareRoot", "Ceiling", "Hardswish"),
    *("LeakyReLU", "Maximum", "Negate", "Square", "ELU", "Abs"),
    *("PReLU", "Concatenate2", "Concatenate3", "Concatenate4", "StaticSlice", "ScaledDotProductAttention"),
    *("BatchMatrixMultiply", "Concatenate5", "ConvTranspose2d", "ReciprocalSquareRoot", "Log", "Gelu"),
    *("Tanh", "Exp", "Sin", "Copy", "Cos"),
)
"""In the order of its union of nodes."""


def read_nodes(content: Bytes, begin: int, size: int) -> Counter[str]:
    """How many operators of each type, of a part that lies there in a file; empty: it is in a form that is not known here.

    The weights behind the graph are left alone.
    """
    header = content[begin : begin + HEADER_SIZE]
    at, length = 0, size
    if header[4:8] == HEADER:
        at, length = (int.from_bytes(header[field : field + 4], "little") for field in (10, 14))
    graph = content[begin + at : begin + at + min(length, size)]
    if graph[4:6] != b"XN":
        return Counter()
    try:
        kinds = [node.number(0, "B") for node in root(graph).tables(1)]
    except FormatError:
        return Counter()
    return Counter(_NAMES[kind - 1] if 0 < kind <= len(_NAMES) else f"operator {kind}" for kind in kinds)
