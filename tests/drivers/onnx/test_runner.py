"""Inputs and outputs in place: for real on the CPU, and on a GPU with a double for the runtime's interface."""

from __future__ import annotations

import sys
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from drivers.contract.base import Crashed, DriverError, OutOfMemory, Unfit, WrongUnit
from drivers.contract.boot import folder
from drivers.inputs.synthetic import Input, make
from drivers.native import library
from drivers.native.ort_api import Runtime
from drivers.onnx import session as edge
from drivers.onnx.runner import NativeRunner, Runner
from drivers.onnx.units import (
    CPU,
    CUDA,
    DML,
    OPENVINO,
    QNN,
    TENSORRT,
    UNITS,
    ProviderPlacement,
    placement_for,
    precision_notes,
    visible_devices,
)
from tests.drivers import zoo
from tests.drivers.onnx_models import OnnxModels

GPU = next(one for one in UNITS if one.unit == "GPU (ONNX)")
ON_CPU = next(one for one in UNITS if one.unit == "CPU (ONNX)")
X = Input("x", "float", (1, 8))
FEEDS = {"x": np.ones((1, 8), np.float32)}


class Device:
    """A GPU behind the runtime's package, as far as the runner uses it. Records each call."""

    def __init__(self, refuses: bool = False) -> None:
        self.calls: list[Any] = []
        self.refuses = refuses
        self.OrtValue = SimpleNamespace(ortvalue_from_numpy=self.value)

    def value(self, array: Any, memory: str, index: int) -> Any:
        """A tensor on the device."""
        if self.refuses and memory != "cpu":
            raise RuntimeError("no such device\nmemory")
        self.calls.append(("value", memory, index))
        return SimpleNamespace(numpy=lambda: array, data_type=lambda: "tensor(float)")

    def get_outputs(self) -> list[Any]:
        """Outputs of the session. The binding has its own."""
        return [SimpleNamespace(name="y", type="tensor(float)")]

    def io_binding(self) -> Any:
        """The device's only binding."""
        received = self.calls

        class Binding:
            def __getattr__(self, what: str) -> Any:
                def hear(*arguments: Any) -> list[Any]:
                    received.append((what, *[one for one in arguments if isinstance(one, str | int)]))
                    return [SimpleNamespace(numpy=lambda: np.ones(1), data_type=lambda: "tensor(float)")]

                return hear

        return Binding()

    def run_with_iobinding(self, binding: Any) -> None:
        """Queue one inference."""
        self.calls.append("run")


def on_device(device: Any, place: ProviderPlacement) -> Runner:
    """A runner on the double."""
    return Runner(device, FEEDS, [X], place, device)


def test_on_a_gpu_inputs_and_outputs_lie_in_its_memory_and_each_inference_is_waited_for() -> None:
    device = Device()
    runner = on_device(device, placement_for(GPU, CUDA, ""))
    assert device.calls == [
        ("value", "cuda", 0),
        ("bind_ortvalue_input", "x"),
        ("synchronize_inputs",),
        ("bind_output", "y", "cuda", 0),
    ]
    device.calls.clear()
    runner.loop.time(array("q", bytes(16)), 0, 2, 1)
    assert device.calls == ["run", ("synchronize_outputs",)] * 2
    assert any("memory of cuda:0, each inference waited for" in note for note in runner.notes)


def test_outputs_that_keep_their_shape_are_written_where_they_lie() -> None:
    """With a second binding: the first owns the outputs, and frees them when it is cleared."""
    device = Device()
    runner = on_device(device, placement_for(GPU, CUDA, ""))
    runner.first()
    device.calls.clear()
    runner.preallocate_outputs()
    assert device.calls == [
        ("get_outputs",),
        ("bind_ortvalue_input", "x"),
        ("synchronize_inputs",),
        ("bind_ortvalue_output", "y"),
        "run",
        ("synchronize_outputs",),
    ]
    assert runner.outputs()["y"].tolist() == [1]


def test_where_device_memory_cannot_be_had_the_row_says_that_transfers_are_timed() -> None:
    device = Device(refuses=True)
    runner = on_device(device, placement_for(GPU, CUDA, ""))
    assert ("bind_output", "y", "cpu", 0) in device.calls
    assert any("no such device memory" in note and "transfers are timed" in note for note in runner.notes)


def test_a_provider_without_memory_of_its_own_says_so_too() -> None:
    runner = on_device(Device(), ProviderPlacement("OpenVINOExecutionProvider", {"device_type": "GPU"}))
    assert any("host memory" in note for note in runner.notes)


def test_the_asked_gpu_is_the_only_one_that_a_child_sees() -> None:
    assert visible_devices(CUDA, "GPU-1234") == {"CUDA_VISIBLE_DEVICES": "GPU-1234"}
    assert visible_devices(CUDA, "") == visible_devices(DML, "1") == visible_devices(CPU, "1") == {}
    assert placement_for(GPU, CUDA, "GPU-1234").index == 0
    directml = next(one for one in UNITS if one.unit == "DirectML (ONNX)")
    assert placement_for(directml, DML, "1") == ProviderPlacement(DML, {"device_id": "1"}, "dml", 1)


def test_cudas_libraries_are_loaded_for_its_providers_alone() -> None:
    loaded: list[str] = []
    for provider in (CPU, DML, CUDA, TENSORRT):
        edge.load_libraries(provider, SimpleNamespace(preload_dlls=lambda name=provider: loaded.append(name)))
        edge.load_libraries(provider, SimpleNamespace())  # builds older than 1.21
    assert loaded == [CUDA, TENSORRT]


OF_ORT = (
    "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:146 std::conditional_t<THRW, void, onnxruntime::common::Status> "
    "onnxruntime::CudaCall(ERRTYPE, const char*, const char*, SUCCTYPE, const char*, const char*, int) [with ERRTYPE = cudaError; "
    "bool THRW = true; SUCCTYPE = cudaError; std::conditional_t<THRW, void, common::Status> = void] {} ; GPU=-1 ; hostname=lab ; "
    "file=/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_execution_provider.cc ; line=355 ; expr=cudaSetDevice(info_.device_id); "
)
"""The wording of onnxruntime-gpu 1.31.1."""


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("CUDA failure 100: no CUDA-capable device is detected", Crashed),
        ("CUDA failure 2: out of memory", OutOfMemory),
        ("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED", OutOfMemory),
        ("CUDNN failure 3000: CUDNN_STATUS_NOT_SUPPORTED", Unfit),
    ],
)
def test_an_error_of_a_gpu_is_reported_by_its_cause_and_only_a_librarys_refusal_is_the_models(
    cause: str, kind: type[DriverError]
) -> None:
    error = edge.to_driver_error(RuntimeError(OF_ORT.format(cause)))
    assert type(error) is kind
    assert str(error).endswith(f": {cause}")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems look locales up elsewhere")
def test_a_locale_that_this_device_lacks_is_named_and_is_not_the_models_fault() -> None:
    normalizer = helper.make_node(
        "StringNormalizer", ["x"], ["y"], case_change_action="LOWER", locale="xx_NO.7"
    )
    strings = [helper.make_tensor_value_info(name, TensorProto.STRING, [None]) for name in "xy"]
    graph = helper.make_graph([normalizer], "g", strings[:1], strings[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=8)
    place, chosen = placement_for(ON_CPU, CPU, ""), edge.options(1, optimise=True)
    with pytest.raises(
        WrongUnit, match=r"this device lacks the locale 'xx_NO.7', which the model's StringNormalizer"
    ):
        edge.open_session(model.SerializeToString(), place, chosen)


def test_a_provider_that_fails_opens_no_session_on_the_cpu_instead() -> None:
    ort = edge.runtime()

    class Session(ort.InferenceSession):  # type: ignore[misc, name-defined]
        """As with a GPU that has gone: its provider cannot be created, the CPU's can."""

        def _create_inference_session(self, providers: Any, *rest: Any, **more: Any) -> None:
            if any(isinstance(one, tuple) for one in providers):
                raise RuntimeError(OF_ORT.format("CUDA failure 2: out of memory"))
            super()._create_inference_session(providers, *rest, **more)

    package, place = SimpleNamespace(InferenceSession=Session), placement_for(GPU, CUDA, "")
    with pytest.raises(OutOfMemory, match="CUDA failure 2"):
        edge.open_session(edge.TINY_MODEL, place, edge.options(1, optimise=True), package)


def test_where_a_provider_computes_with_fewer_digits_than_float32_the_row_says_so() -> None:
    cuda = placement_for(GPU, CUDA, "")
    (note,) = precision_notes(cuda, {CUDA: {"use_tf32": "1"}})
    assert "TF32" in note
    assert precision_notes(cuda, {CUDA: {"use_tf32": "0"}}) == precision_notes(cuda, {}) == ()
    units = {one.unit: one for one in UNITS}
    notes = {
        unit: precision_notes(placement_for(units[unit], units[unit].names[0], ""), {})
        for unit in units
        if {OPENVINO, QNN} & {*units[unit].names}
    }
    assert {unit: "float16" in " ".join(note) for unit, note in notes.items()} == {
        "OpenVINO CPU (ONNX)": False,
        "OpenVINO GPU (ONNX)": True,
        "OpenVINO NPU (ONNX)": True,
        "NPU (ONNX)": True,
    }
    assert precision_notes(ProviderPlacement(QNN), {QNN: {"enable_htp_fp16_precision": "0"}}) == ()


def test_a_provider_on_the_processor_has_the_orders_threads() -> None:
    units = {one.unit: one for one in UNITS}
    places = {unit: placement_for(units[unit], OPENVINO, "", 3) for unit in units if "OpenVINO" in unit}
    assert {unit: place.options.get("num_of_threads") for unit, place in places.items()} == {
        "OpenVINO CPU (ONNX)": "3",
        "OpenVINO GPU (ONNX)": None,
        "OpenVINO NPU (ONNX)": None,
    }
    assert "num_of_threads" not in placement_for(units["OpenVINO CPU (ONNX)"], OPENVINO, "").options


def test_one_provider_may_be_several_units() -> None:
    kinds = {one.unit: one.options.get("device_type") for one in UNITS if "OpenVINO" in one.unit}
    assert kinds == {"OpenVINO CPU (ONNX)": "CPU", "OpenVINO GPU (ONNX)": "GPU", "OpenVINO NPU (ONNX)": "NPU"}


def test_a_unit_whose_provider_is_not_installed_is_the_wrong_one() -> None:
    for one in UNITS[1:]:
        with pytest.raises(WrongUnit, match=r"this onnxruntime has only"):
            edge.placement_of(one.unit)


@pytest.mark.parametrize("name", zoo.TYPES)
def test_both_ways_of_running_give_the_same_for_each_element_type(name: str, tmp_path: Path) -> None:
    model = str(zoo.put(tmp_path, name))
    package = edge.open_session(model, ProviderPlacement(CPU), edge.options(1, optimise=True))
    inputs = edge.inputs_of(package)
    feeds = {one.name: make(one, (1, 3, 7), 0, 100) for one in inputs}
    runner = Runner(package, feeds, inputs)
    runner.first()
    runner.preallocate_outputs()
    expected = runner.outputs()
    made = library.prepare(folder())
    assert made is not None
    session = Runtime(made.library, made.loop).open(model, 1)
    assert session.plain is (name != "STRING")
    if session.plain:
        other = NativeRunner(session, feeds, inputs)
        other.first()
        other.preallocate_outputs()
        for output, values in other.outputs().items():
            assert values.dtype == expected[output].dtype
            assert np.array_equal(values, expected[output], equal_nan=values.dtype.kind == "f")


def test_samples_come_from_the_loop_of_either_way(models: OnnxModels) -> None:
    session = edge.open_session(models.nano(), ProviderPlacement(CPU), edge.options(1, optimise=True))
    runner = Runner(session, FEEDS, [X])
    runner.first()
    runner.preallocate_outputs()
    samples = array("q", bytes(80))
    runner.loop.time(samples, 0, 10, 2)
    assert min(samples) > 0
    assert runner.loop.overhead_ns() > 0
