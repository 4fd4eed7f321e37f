"""Where operators ran, according to the runtime's own profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drivers.inputs.synthetic import Input
from drivers.local.model import ExecutionPlace
from drivers.onnx import session as edge
from drivers.onnx.operators import SessionFacts, read_profile
from drivers.onnx.profile import profile, unit_that_ran
from drivers.onnx.runner import Runner
from drivers.onnx.units import CPU, ProviderPlacement
from tests.drivers.onnx_models import OnnxModels

GPU_UNIT, CUDA = "GPU (ONNX)", "CUDAExecutionProvider"


def ran(name: str, provider: str, operator: str = "Conv") -> dict[str, Any]:
    """One line of a profile."""
    values = {"op_name": operator, "provider": provider, "node_index": "0"}
    return {"cat": "Node", "name": f"{name}_kernel_time", "dur": 5, "ph": "X", "args": values}


def test_operators_are_counted_by_provider_once_each_and_copies_are_not() -> None:
    profile = [
        {"cat": "Session", "name": "model_loading", "args": {}},
        ran("a", CUDA),
        ran("a", CUDA),
        ran("b", CUDA),
        ran("c", CPU),
        ran("d", CUDA, "MemcpyToHost"),
        {"cat": "Node", "name": "a_fence_before", "args": {"op_name": "Conv"}},
    ]
    assert SessionFacts(read_profile(json.dumps(profile))).nodes == {CUDA: 2, CPU: 1}


@pytest.mark.parametrize("text", ["", "{}", "[1, null]", '[{"cat": "Node", "args": 3}]', "[" * 100_000, "[{"])
def test_a_profile_that_says_nothing_says_nothing(text: str) -> None:
    assert read_profile(text) == ()


def test_a_unit_on_which_no_operator_ran_is_not_the_one_that_ran() -> None:
    assert unit_that_ran(GPU_UNIT, CUDA, (CUDA, CPU), {CPU: 3}) == ExecutionPlace("CPU (ONNX)", (CPU,))
    copies_alone = read_profile(json.dumps([ran("a", CUDA, "MemcpyFromHost"), ran("b", CPU)]))
    assert unit_that_ran(GPU_UNIT, CUDA, (CUDA, CPU), SessionFacts(copies_alone).nodes).unit == "CPU (ONNX)"


def test_operators_that_ran_elsewhere_are_reported() -> None:
    result = unit_that_ran(GPU_UNIT, CUDA, (CUDA, CPU), {CPU: 30, CUDA: 10})
    assert result == ExecutionPlace(
        GPU_UNIT, (CUDA, CPU), ("30 of 40 operators ran on CPUExecutionProvider",)
    )
    assert unit_that_ran(GPU_UNIT, CUDA, (CUDA, CPU), {CUDA: 10}) == ExecutionPlace(GPU_UNIT, (CUDA,))


def test_without_a_profile_the_row_says_that_it_does_not_know() -> None:
    result = unit_that_ran(GPU_UNIT, CUDA, (CUDA, CPU), {})
    assert (result.unit, result.providers) == (GPU_UNIT, (CUDA, CPU))
    assert "does not report" in result.notes[0]


def test_a_real_profile_is_understood_and_not_left_behind(models: OnnxModels, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(Path(models.nano()).read_bytes())
    feeds = {"x": np.zeros((1, 8), np.float32)}

    def infer(options: Any) -> Any:
        session = edge.open_session(str(model), ProviderPlacement(CPU), options)
        Runner(session, feeds, (Input("x", "float", (1, 8)),)).first()
        return session

    facts = profile(infer, edge.options(1, optimise=True), with_log=True)
    assert facts.nodes == {CPU: 1}
    assert [(node.op, node.provider) for node in facts.assigned] == [("MatMul", CPU)]
    assert "Session" in facts.log
    assert list(tmp_path.iterdir()) == [model]
