"""A whole order with OpenVINO's double. The reference for ONNX models is the real onnxruntime."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drivers.contract.base import (
    CheckReport,
    Event,
    LoadReport,
    MeasureReport,
    ModelDescription,
    OperatorReport,
    Unfit,
    Unshaped,
    WorkOrder,
    WrongUnit,
)
from drivers.native.library import TINY_MODEL
from drivers.openvino import graph
from drivers.openvino.driver import OpenVinoDriver
from drivers.openvino.reference import MAX_KEPT, inner_outputs
from tests.drivers.openvino.doubles import CoreDouble, ModelDouble, PortDouble, ShapeDouble, runtime_double

CPU, GPU = "CPU (OpenVINO)", "GPU (OpenVINO)"


@pytest.fixture(autouse=True)
def private(tmp_path: Path) -> Iterator[None]:
    folder = tmp_path / "private"
    folder.mkdir()
    with contextlib.chdir(folder):
        yield


@pytest.fixture
def onnx(tmp_path: Path) -> str:
    """A model that doubles one float."""
    path = tmp_path / "model"
    path.write_bytes(TINY_MODEL)
    return str(path)


@pytest.fixture
def ir(tmp_path: Path) -> str:
    (tmp_path / "ir").mkdir()
    for name in ("net.xml", "net.bin"):
        (tmp_path / "ir" / name).write_bytes(b"<net>")
    return str(tmp_path / "ir")


def run(core: CoreDouble, model: str, unit: str = CPU, **changes: Any) -> list[Event]:
    order = replace(WorkOrder(model, unit, runs=5, warmup=2, threads=1), **changes)
    return list(OpenVinoDriver(runtime_double(core)).run(order))


def one(events: list[Event], kind: type[Any]) -> Any:
    (found,) = (event for event in events if isinstance(event, kind))
    return found


def test_a_model_is_measured_described_and_compared_with_onnxruntime(onnx: str) -> None:
    core = CoreDouble()
    events = run(core, onnx)
    assert len(one(events, MeasureReport).samples_ns) == 5
    assert one(events, LoadReport).load_ns > 0
    described, checked = one(events, ModelDescription), one(events, CheckReport)
    assert (described.unit, described.driver, described.runtime) == (CPU, "openvino", "openvino 2026.4.1")
    assert described.providers == ("CPU: a CPU",)
    assert (described.shapes, described.dtypes) == ({"x": (1,)}, {"x": "float"})
    assert described.operators[0] == OperatorReport("Multiply", "CPU: a CPU", nodes=1, ran=1, ns=30_000)
    notes = "; ".join(described.notes)
    for said in ("format: ONNX", "OpenVINO computes in f32", "hint LATENCY, one stream, nothing cached"):
        assert said in notes
    assert "kernels by time: 100% f32" in notes
    assert checked.agrees is True
    assert checked.tolerance == 1e-3
    assert "the reference is onnxruntime" in checked.note
    assert core.asked[0] == {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": 1}
    assert [asked.get("PERF_COUNT", False) for asked in core.asked] == [False, True]


def test_wrong_outputs_are_seen_by_onnxruntime(onnx: str) -> None:
    core = CoreDouble()
    core.gains["CPU"] = 2.5
    checked = one(run(core, onnx), CheckReport)
    assert checked.agrees is False
    assert "float32" not in checked.note


def test_the_reference_of_other_formats_has_every_operator_apart_and_all_digits(ir: str) -> None:
    core = CoreDouble(precision="bf16")
    checked = one(run(core, ir), CheckReport)
    assert (checked.agrees, checked.tolerance) == (True, 2e-2)
    assert checked.note.endswith("the reference is OpenVINO on the CPU in float32, with no operators fused")
    assert len(core.model.outputs) == 3
    assert (
        core.asked[-1].items()
        >= {
            "INFERENCE_PRECISION_HINT": "f32",
            "EXECUTION_MODE_HINT": "ACCURACY",
            "SNIPPETS_MODE": "DISABLE",
        }.items()
    )


def test_where_few_digits_are_the_reason_the_row_says_so_and_only_there(onnx: str) -> None:
    core = CoreDouble(precision="bf16")
    core.gains["CPU"], core.wide = 3.0, 2.0
    checked = one(run(core, onnx), CheckReport)
    assert checked.agrees is False
    assert checked.note.startswith("it agrees in float32: bf16, which OpenVINO chose, is too imprecise")
    core.wide = 3.0
    assert one(run(core, onnx), CheckReport).note.startswith("it differs in float32 too")


def test_the_type_in_which_it_computes_is_told_and_float32_can_be_asked_for(onnx: str) -> None:
    core = CoreDouble(precision="bf16")
    assert one(run(core, onnx), ModelDescription).compute_type == "bf16"
    assert "INFERENCE_PRECISION_HINT" not in core.asked[0]
    core.asked.clear()
    events = run(core, onnx, compute_type="f32")
    assert one(events, ModelDescription).compute_type == "f32"
    assert one(events, CheckReport).tolerance != 2e-2
    assert core.asked[0]["INFERENCE_PRECISION_HINT"] == "f32"
    core.obeys = False
    with pytest.raises(Unfit, match="compute_type f32: CPU still computes in bf16"):
        run(core, onnx, compute_type="f32")


def test_threads_are_those_that_openvino_uses(onnx: str) -> None:
    described = one(run(CoreDouble(threads=7), onnx), ModelDescription)
    assert described.threads == 7
    assert "threads: 1 requested; OpenVINO uses 7" in described.notes


def test_a_gpu_runs_what_it_is_given_and_a_model_elsewhere_is_no_result(onnx: str) -> None:
    core = CoreDouble("CPU", "GPU.0", precision="f16")
    events = run(core, onnx, GPU)
    assert one(events, ModelDescription).providers == ("GPU.0: a GPU.0",)
    assert one(events, CheckReport).tolerance == 2e-2
    core.runs_on = ["CPU"]
    with pytest.raises(WrongUnit, match="but the compiled model is on CPU"):
        run(core, onnx, GPU)


def test_dynamic_sizes_come_from_the_order_before_the_model_is_compiled(ir: str) -> None:
    core = CoreDouble()
    core.model = ModelDouble([PortDouble({"x"}, [3, None])], largest=64)
    with pytest.raises(Unshaped, match=r"input x is 3×.: give the size"):
        run(core, ir)
    assert core.asked == []
    core.model = ModelDouble([PortDouble({"x"}, [3, None])], largest=64)
    assert one(run(core, ir, dims={"x[1]": 8}), ModelDescription).shapes == {"x": (3, 8)}
    core.model = ModelDouble([PortDouble({"x"}, [3, None])], largest=64)
    with pytest.raises(Unshaped, match=r"it failed with x .*65.*the sizes do not fit"):
        run(core, ir, dims={"x[1]": 65})


def test_an_input_without_a_number_of_dimensions_needs_its_whole_shape(ir: str) -> None:
    core = CoreDouble()
    core.model = ModelDouble([PortDouble({"x"}, None)])
    with pytest.raises(Unfit, match=r"--shape 'x=1,3,224,224'"):
        run(core, ir)
    assert one(run(core, ir, shapes={"x": (2, 2)}), ModelDescription).shapes == {"x": (2, 2)}


def test_symbols_of_an_onnx_file_keep_their_names() -> None:
    from protocol.formats.shapes import InputPort

    model = ModelDouble([PortDouble({"other", "x"}, [None, None, 4])])
    (x,) = graph.inputs_of(model, [InputPort("x", ("N", None, 4))], {"x": 30})
    assert (x.name, x.shape, x.rows) == ("x", ("N", None, 4), 30)


def test_types_that_cannot_be_made_are_refused_by_name() -> None:
    with pytest.raises(Unfit, match="input 'x' is of type u4, which cannot be generated"):
        graph.inputs_of(ModelDouble([PortDouble({"x"}, [1], "u4")]))


def test_a_state_begins_anew_with_each_inference(ir: str) -> None:
    core = CoreDouble()
    core.model = ModelDouble([PortDouble({"x"}, [1])], states=1)
    notes = one(run(core, ir), ModelDescription).notes
    assert "the model keeps a state, which is reset before each inference" in notes
    assert core.resets >= 5 + 2


def test_what_openvino_cannot_read_is_unfit_in_one_line(ir: str) -> None:
    core = CoreDouble()
    core.model = RuntimeError("Exception from a.cpp:1:\nno element found")  # type: ignore[assignment]
    with pytest.raises(Unfit, match=r"^OpenVINO: no element found$"):
        run(core, ir)


def test_outputs_that_would_not_fit_are_not_kept_for_the_reference() -> None:
    model = ModelDouble([PortDouble({"x"}, [1])])
    assert len(inner_outputs(model) or ()) == 2
    huge = PortDouble({"p"}, [1])
    huge.shape = ShapeDouble([MAX_KEPT])
    model.operators[1].outputs = lambda: [huge]  # type: ignore[method-assign]
    assert inner_outputs(model) is None


def test_bfloat16_outputs_are_compared_as_what_they_mean() -> None:
    class Half:
        data = np.array([0x3FC0, 0xC000], np.uint16).view(np.float16)

        def get_element_type(self) -> Any:
            return PortDouble(set(), [2], "bf16").element

    assert graph.to_array(Half()).tolist() == [1.5, -2.0]


def test_the_depth_is_that_of_the_longest_way() -> None:
    assert graph.depth_of(ModelDouble([])) == 2
