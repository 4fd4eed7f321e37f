"""A whole order with doubles of TensorRT and CUDA. The reference is the real onnxruntime."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.base import (
    CheckReport,
    DriverError,
    Event,
    LoadReport,
    MeasureReport,
    ModelDescription,
    OutOfMemory,
    Unfit,
    Unshaped,
    WorkOrder,
    WrongUnit,
)
from drivers.native.library import TINY_MODEL
from drivers.tensorrt.driver import TensorRtDriver
from drivers.tensorrt.runtime import GPU
from tests.drivers.onnx_models import FLOAT, OnnxModels, node, value
from tests.drivers.tensorrt.doubles import CudaDouble, DataType, TensorRtDouble, double


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


def run(
    trt: TensorRtDouble, model: str, cuda: CudaDouble | None = None, unit: str = GPU, **changes: Any
) -> list[Event]:
    order = replace(WorkOrder(model, unit, runs=5, warmup=2, threads=1), **changes)
    return list(TensorRtDriver(double(trt, cuda)).run(order))


def one(events: list[Event], kind: type[Any]) -> Any:
    return next(event for event in events if isinstance(event, kind))


def test_an_order_is_built_timed_on_the_gpu_and_compared_with_the_processor(onnx: str) -> None:
    trt, cuda = TensorRtDouble(), CudaDouble()
    events = run(trt, onnx, cuda)
    described = one(events, ModelDescription)
    assert described.providers == ("TensorRT: NVIDIA Double",)
    assert [(line.op, line.provider, line.ran) for line in described.operators] == [
        ("kgen", "TensorRT", 2),
        ("gemm", "TensorRT", 1),
    ]
    assert any("the load includes the build" in note for note in described.notes)
    assert one(events, LoadReport).load_ns > 0
    assert len(one(events, MeasureReport).samples_ns) == 5
    checked = one(events, CheckReport)
    assert checked.agrees is True
    assert "onnxruntime" in checked.note
    assert cuda.synchronised >= 5 + 2 + 1, "an inference ends when the GPU has finished"


def test_outputs_that_differ_from_the_processors_are_marked(onnx: str) -> None:
    assert one(run(TensorRtDouble(gain=2.1), onnx), CheckReport).agrees is False


def test_the_engine_is_built_for_the_orders_sizes(models: OnnxModels) -> None:
    model = models.put(
        "double",
        [node("Add", ["x", "x"], ["y"])],
        [value("x", FLOAT, ["batch", 3])],
        [value("y", FLOAT, None)],
    )
    trt = TensorRtDouble(shape=(-1, 3))
    described = one(run(trt, model, batch=4), ModelDescription)
    assert described.shapes == {"x": (4, 3)}
    assert described.batch == 4
    assert trt.profile == {"x": ((4, 3),) * 3}
    with pytest.raises(Unshaped, match="no dynamic dimension 'width'"):
        run(trt, model, dims={"width": 4}, own_dims=("width",))


@pytest.mark.parametrize(
    ("trt", "cuda", "kind", "why"),
    [
        (TensorRtDouble(refuses="No importer registered for op: Thing"), None, Unfit, "op: Thing"),
        (TensorRtDouble(builds=False), None, Unfit, "for this GPU: .shapeContext. x has no valid size$"),
        (None, CudaDouble(("cudaMalloc", 2)), OutOfMemory, "out of memory: cudaMalloc"),
        (None, CudaDouble(("cudaStreamCreate", 100)), WrongUnit, "CUDA error 100"),
    ],
)
def test_what_tensorrt_or_the_gpu_refuses_is_told_in_a_sentence(
    onnx: str, trt: TensorRtDouble | None, cuda: CudaDouble | None, kind: type[DriverError], why: str
) -> None:
    with pytest.raises(kind, match=why):
        run(trt or TensorRtDouble(), onnx, cuda)


def test_inputs_and_outputs_that_cannot_be_made_are_refused(onnx: str) -> None:
    trt = TensorRtDouble()
    trt.dtype = DataType.BF16
    with pytest.raises(Unfit, match="input 'x' is BF16"):
        run(trt, onnx)
    trt = TensorRtDouble()
    trt.output_shape = (-1,)
    with pytest.raises(Unfit, match="a shape that depends on values"):
        run(trt, onnx)
    trt = TensorRtDouble()
    trt.runs = False
    with pytest.raises(Unfit, match="the inference failed"):
        run(trt, onnx)


def test_what_is_no_onnx_model_and_an_unknown_unit_are_refused(tmp_path: Path, onnx: str) -> None:
    other = tmp_path / "net.tflite"
    other.write_bytes(b"\x1c\0\0\0TFL3" + bytes(64))
    with pytest.raises(Unfit, match=r"TensorRT runs \.onnx models"):
        run(TensorRtDouble(), str(other))
    with pytest.raises(WrongUnit, match=r"this driver has GPU \(TensorRT\)"):
        run(TensorRtDouble(), onnx, unit="CPU (TensorRT)")


def test_the_unit_is_offered_if_it_has_just_run_something() -> None:
    (unit,) = TensorRtDriver(double()).units()
    assert (unit.unit, unit.driver, unit.runtime, unit.detail) == (
        GPU,
        "tensorrt",
        "TensorRT 0.1",
        "NVIDIA Double",
    )
    assert TensorRtDriver(double(TensorRtDouble(gain=2.1))).units() == ()
    assert TensorRtDriver(double(TensorRtDouble(builds=False))).units() == ()
    assert TensorRtDriver(double(cuda=CudaDouble(("cudaGetDeviceProperties", 100)))).units() == ()
    assert TensorRtDriver().units() == ()  # TensorRT is not installed here
