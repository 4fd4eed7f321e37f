"""One model for each element type that onnxruntime accepts, generated on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from onnx import TensorProto, helper

TYPES: Final = {
    **dict.fromkeys(("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "BOOL", "STRING"), 17),
    **dict.fromkeys(("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"), 17),
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"), 21),
    **dict.fromkeys(("INT4", "UINT4"), 21),
    **dict.fromkeys(("INT2", "UINT2"), 25),
}
"""By ONNX's name: the first opset that has a Cast for the type."""
SHAPE: Final = ["batch", 3, 7]
"""An odd number of elements, so that sub-byte types do not fill their last byte."""


def put(folder: Path, name: str) -> Path:
    """A model that takes one input `x` of the type, and returns it as floats and, where the runtime can copy the type, unchanged."""
    kind, opset = getattr(TensorProto, name), TYPES[name]
    value = helper.make_tensor_value_info
    wide = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Relu", ["wide"], ["y"]),
    ]
    copy = [helper.make_node("Identity", ["x"], ["same"])]
    y, same = [value("y", TensorProto.FLOAT, None)], [value("same", kind, None)]
    if name == "STRING":
        nodes, outputs = copy, same
    elif name.endswith(("INT4", "INT2")):
        nodes, outputs = wide, y
    else:
        nodes, outputs = wide + copy, y + same
    graph = helper.make_graph(nodes, "graph", [value("x", kind, SHAPE)], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = {17: 9, 21: 10}.get(opset, 13)
    path = folder / f"{name.lower()}.onnx"
    path.write_bytes(model.SerializeToString())
    return path
