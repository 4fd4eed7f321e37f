"""The operators in a part that ExecuTorch's exporter made for XNNPACK. Pure.

Slots are those of its `runtime_schema.fbs`, whose union of nodes grows in later versions.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from drivers.local.flat_read import Bytes, root
from protocol.formats.model_files import FormatError

HEADER: Final = b"XH00"
"""Mark at byte 4, followed by the header's length, and the start and length of the graph."""
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
"""Names in the order of the schema's union of nodes."""


def read_nodes(content: Bytes, begin: int, size: int) -> Counter[str]:
    """How many operators of each type are in the part at this position of a file; empty: the part's format is unknown.

    The weights after the graph are not read.
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
