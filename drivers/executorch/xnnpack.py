"""The operators in what ExecuTorch's exporter made for XNNPACK. Pure.

Slots are those of its `runtime_schema.fbs`, whose union of nodes later versions make longer.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from drivers.local.flat_read import root
from protocol.formats.model_files import FormatError

HEADER: Final = b"XH00"
"""At byte 4; then its own length, and where the graph begins and how long it is."""
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


def read_nodes(blob: bytes) -> Counter[str]:
    """How many operators of each type; empty: the part is in a form that is not known here."""
    begin, size = 0, len(blob)
    if blob[4:8] == HEADER:
        begin, size = (int.from_bytes(blob[at : at + 4], "little") for at in (10, 14))
    graph = blob[begin : begin + size]
    if graph[4:6] != b"XN":
        return Counter()
    try:
        kinds = [node.number(0, "B") for node in root(graph).tables(1)]
    except FormatError:
        return Counter()
    return Counter(_NAMES[kind - 1] if 0 < kind <= len(_NAMES) else f"operator {kind}" for kind in kinds)
