"""Outputs to compare with: from onnxruntime for an ONNX model, otherwise from OpenVINO's plain kernels, one operator after the other."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from drivers.contract.base import MIB, DriverError, Unfit
from drivers.inputs.synthetic import Input
from drivers.openvino.graph import to_array, to_tensor
from drivers.openvino.operators import DATA
from drivers.openvino.runtime import OpenVinoRuntime, translated
from drivers.openvino.units import BARE, PLAIN, settings

MAX_KEPT: Final = 256 * MIB
"""Most bytes of all operators' outputs together, up to which each is kept."""
BY_ONNXRUNTIME: Final = "the reference is onnxruntime {} on the CPU without graph optimisation"
APART: Final = "the reference is OpenVINO on the CPU in float32, with no operators fused"
FUSED: Final = "the reference is OpenVINO on the CPU in float32, with operators fused: their separate outputs would not fit"


def by_onnxruntime(
    file: Path, inputs: Sequence[Input], feeds: Mapping[str, Any], names: Sequence[str], threads: int
) -> tuple[dict[str, Any], str]:
    """Outputs by `names`, in the model's order, and a description of what computed them. Raises `Unfit`."""
    try:
        ort = importlib.import_module("onnxruntime")
        state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    except ImportError as why:
        raise Unfit(f"onnxruntime cannot be imported: {why}") from why
    raised = [getattr(state, name) for name in ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf")]
    raised += [getattr(state, name) for name in ("NotImplemented", "RuntimeException")]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    carried = {one.name for one in inputs if one.dtype == "bfloat16"}
    try:
        session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        wanted = [one.name for one in session.get_inputs()]
        if not set(wanted) <= set(feeds) - carried or len(session.get_outputs()) != len(names):
            raise Unfit("onnxruntime sees other inputs or outputs")
        made = session.run(None, {name: feeds[name] for name in wanted})
    except (*raised, RuntimeError, ValueError) as why:
        raise Unfit(f"onnxruntime: {str(why)[:300]}") from why
    return dict(zip(names, made, strict=True)), BY_ONNXRUNTIME.format(ort.__version__)


def by_plain_openvino(
    runtime: OpenVinoRuntime,
    model: Any,
    inputs: Sequence[Input],
    feeds: Mapping[str, Any],
    names: Sequence[str],
    threads: int,
) -> tuple[dict[str, Any], str]:
    """Like `by_onnxruntime`, but with OpenVINO. `model`: with its shapes set; it is changed. An operator whose output is requested is not
    fused."""
    inner = inner_outputs(model)
    apart = inner is not None
    if inner:
        translated(lambda: model.add_outputs(inner))
    plain = {**settings("CPU", threads), **PLAIN}
    try:
        compiled = translated(lambda: runtime.core.compile_model(model, "CPU", {**plain, **BARE}))
    except DriverError:
        compiled = translated(lambda: runtime.core.compile_model(model, "CPU", plain))
    request = compiled.create_infer_request()
    for index, one in enumerate(inputs):
        request.set_input_tensor(index, to_tensor(runtime.ov, feeds[one.name], one.dtype))
    translated(request.infer)
    outputs = {name: to_array(request.get_output_tensor(index)) for index, name in enumerate(names)}
    return outputs, APART if apart else FUSED


def inner_outputs(model: Any) -> list[Any] | None:
    """All outputs of operators; None: they would take more than `MAX_KEPT`."""
    found = [
        output
        for operator in model.get_ordered_ops()
        if operator.get_type_name() not in DATA | {"Assign"}
        for output in operator.outputs()
    ]
    total = 0
    for output in found:
        shape = output.get_partial_shape()
        if not shape.is_dynamic:
            total += math.prod(shape.to_shape()) * output.get_element_type().size
    return found if total <= MAX_KEPT else None
