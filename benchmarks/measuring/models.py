"""Models for the benchmarks: made here, or from installed packages, so that nothing is downloaded."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def chain(path: Path, width: int, batch: int, depth: int) -> Path:
    """`depth` equal dense layers, one after the other."""
    source = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array((source.standard_normal((width, width)) / width).astype(np.float32), f"w{n}")
        for n in range(depth)
    ]
    nodes = [helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"x{n + 1}"]) for n in range(depth)]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, width]) for name in ("x0", f"x{depth}")
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    path.write_bytes(model.SerializeToString())
    return path


def installed(package: str, path: str) -> Path:
    """A file inside an installed package."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return (Path(spec.submodule_search_locations[0]) / path).resolve()


def magika() -> Path:
    """A real model of a few milliseconds: it recognises file types by their bytes."""
    return installed("magika", "models/standard_v3_3/model.onnx")
