"""The OpenVINO driver with the real OpenVINO, on the processor."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.base import (
    CheckReport,
    DriverError,
    Event,
    Limits,
    LoadKind,
    LoadReport,
    MeasureReport,
    ModelDescription,
    Unfit,
    Unshaped,
    WorkOrder,
    WrongUnit,
)
from drivers.contract.boot import FIXED
from drivers.launch.launch import Zygote, measure
from drivers.openvino.driver import OpenVinoDriver
from drivers.openvino.runtime import TELEMETRY, runtime
from drivers.testing.conformance import Subject, check_all
from protocol.formats.reference_model import chain_of_products

CPU = "CPU (OpenVINO)"
LIMITS = Limits(load_s=120, run_s=120)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("openvino").start() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("openvino")
    made.chmod(0o755)
    return made


def readable(path: Path) -> Path:
    """Make the files readable, because a node of root runs models as nobody."""
    for each in (path, *path.rglob("*")) if path.is_dir() else (path,):
        each.chmod(0o755 if each.is_dir() else 0o644)
    return path


@pytest.fixture(scope="module")
def onnx(folder: Path) -> Path:
    path = folder / "chain"
    path.write_bytes(chain_of_products())
    return readable(path)


@pytest.fixture(scope="module")
def real(folder: Path) -> Path:
    """Magika's model, a file-type classifier with an int32 input and a dynamic batch."""
    import magika

    (found,) = Path(magika.__file__).parent.rglob("model.onnx")
    return readable(Path(shutil.copy(found, folder / "magika")))


def saved(path: Path, make: Any) -> Path:
    """Save the result of `make(opset, ov)` as OpenVINO IR in a folder."""
    ov = runtime().ov
    path.mkdir()
    ov.save_model(make(ov.opset13, ov), path / "net.xml", compress_to_fp16=False)
    return readable(path)


def convolution(ops: Any, ov: Any) -> Any:
    """A convolution of images of any size."""
    import numpy as np

    x = ops.parameter([-1, 3, -1, -1], ov.Type.f32, name="x")
    weights = ops.constant(np.linspace(-1, 1, 8 * 3 * 9, dtype=np.float32).reshape(8, 3, 3, 3))
    y = ops.relu(ops.convolution(x, weights, [1, 1], [0, 0], [0, 0], [1, 1]))
    y.output(0).set_names({"y"})
    x.output(0).set_names({"x"})
    return ov.Model([y], [x], "net")


@pytest.fixture(scope="module")
def ir(folder: Path) -> Path:
    return saved(folder / "ir", convolution)


def run(model: Path, zygote: Zygote, **changes: Any) -> list[Event]:
    order = replace(WorkOrder(str(model), CPU, runs=8, loads=2, threads=1), **changes)
    return list(measure(order, LIMITS, zygote))


def one(events: list[Event], kind: type[Any]) -> Any:
    return next(event for event in events if isinstance(event, kind))


def test_openvino_starts_no_thread_and_reports_nothing_to_its_makers() -> None:
    code = (
        "import os, sys, drivers.openvino.model, drivers.openvino.preloaded, numpy.random, onnxruntime\n"
        f"assert sys.modules[{TELEMETRY!r}] is None\n"
        "assert sys.platform != 'linux' or len(os.listdir('/proc/self/task')) == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | FIXED)
    runtime()
    assert not any("ThreadPool" in thread.name for thread in threading.enumerate())


def test_the_driver_keeps_the_contract(onnx: Path) -> None:
    assert CPU in {info.unit for info in OpenVinoDriver().units()}
    check_all(Subject("openvino", unit=CPU, model=str(onnx)))


def test_each_sample_runs(zygote: Zygote, folder: Path) -> None:
    import base64

    for sample in OpenVinoDriver().samples():
        path = folder / sample.name
        path.write_bytes(base64.b64decode(sample.content))
        assert one(run(readable(path), zygote), CheckReport).agrees is True


def test_a_real_model_agrees_with_onnxruntime_and_tells_where_it_ran(real: Path, zygote: Zygote) -> None:
    events = run(real, zygote)
    described, checked = one(events, ModelDescription), one(events, CheckReport)
    assert described.shapes == {"bytes": (1, 2048)}
    assert described.dtypes == {"bytes": "int32"}
    assert described.threads == 1
    assert described.runtime.startswith("openvino 2026")
    assert checked.agrees is True
    assert "the reference is onnxruntime" in checked.note
    took = {one.op: one for one in described.operators if one.ns}
    assert took["Convolution"].ran == took["Convolution"].nodes == 1
    assert any("OpenVINO computes in" in note for note in described.notes)
    assert any(note.startswith("kernels by time: ") for note in described.notes)
    assert sum(len(each.samples_ns) for each in events if isinstance(each, MeasureReport)) == 8
    assert LoadKind.WARM in {each.kind for each in events if isinstance(each, LoadReport)}


def test_ir_runs_with_the_sizes_of_the_order_and_no_others(ir: Path, zygote: Zygote) -> None:
    with pytest.raises(Unshaped, match=r"input x is .×3×.×.: give the sizes"):
        run(ir, zygote)
    events = run(ir, zygote, dims={"x[2]": 16, "x[3]": 24}, batch=2)
    assert one(events, ModelDescription).shapes == {"x": (2, 3, 16, 24)}
    checked = one(events, CheckReport)
    assert checked.agrees is True
    assert "OpenVINO on the CPU in float32, with no operators fused" in checked.note
    with pytest.raises(Unshaped, match="it failed with x"):
        run(ir, zygote, shapes={"x": (1, 3, 2, 2)})


@pytest.mark.parametrize("element", ["f16", "bf16", "f64", "i8", "u8", "i64", "boolean", "string"])
def test_inputs_and_outputs_of_each_type_are_made_and_compared(
    element: str, zygote: Zygote, folder: Path
) -> None:
    def echo(ops: Any, ov: Any) -> Any:
        x = ops.parameter([3, 4], getattr(ov.Type, element), name="x")
        x.output(0).set_names({"x"})
        return ov.Model([ops.concat([x, x], 0) if element != "string" else x], [x], "echo")

    events = run(saved(folder / element, echo), zygote, loads=1)
    assert one(events, ModelDescription).shapes == {"x": (3, 4)}
    assert one(events, CheckReport).agrees is True


def test_a_state_does_not_grow_from_inference_to_inference(zygote: Zygote, folder: Path) -> None:
    def counter(ops: Any, ov: Any) -> Any:
        import numpy as np

        x = ops.parameter([4], ov.Type.f32, name="x")
        x.output(0).set_names({"x"})
        held = ov.opset6.read_value(
            ops.constant(np.zeros(4, np.float32)), "held", ov.Type.f32, ov.PartialShape([4])
        )
        total = ops.add(held, x)
        return ov.Model([ops.result(total)], [ov.opset6.assign(total, "held")], [x], "counter")

    events = run(saved(folder / "counter", counter), zygote)
    assert any("keeps a state" in note for note in one(events, ModelDescription).notes)
    assert one(events, CheckReport).agrees is True


def test_units_without_a_device_are_never_replaced(onnx: Path, zygote: Zygote) -> None:
    offered = {info.unit for info in OpenVinoDriver().units()}
    for unit in ("GPU (OpenVINO)", "NPU (OpenVINO)"):
        if unit not in offered:
            with pytest.raises(WrongUnit, match="OpenVINO finds no"):
                run(onnx, zygote, unit=unit)


def xml_of(ir: Path) -> str:
    return (ir / "net.xml").read_text()


def hostile(ir: Path) -> dict[str, tuple[str, bytes]]:
    """Text and weights of corrupt or malicious IR, by name."""
    xml, weights = xml_of(ir), (ir / "net.bin").read_bytes()
    size = f'size="{len(weights)}"'
    assert size in xml
    return {
        "weights cut": (xml, weights[:100]),
        "no weights": (xml, b""),
        "text cut": (xml[: len(xml) // 2], weights),
        "huge size": (xml.replace(size, 'size="9223372036854775807"'), weights),
        "huge offset": (xml.replace('offset="0"', 'offset="18446744073709551615"'), weights),
        "offset behind": (xml.replace('offset="0"', f'offset="{len(weights)}"'), weights),
        "huge weights": (xml.replace('shape="8, 3, 3, 3"', 'shape="9999999999, 3, 3, 3"'), weights),
        "unknown operator": (xml.replace('type="Convolution"', 'type="Evil"'), weights),
        "no layers": ('<?xml version="1.0"?><net name="n" version="11"><layers/><edges/></net>', b""),
        "bombs": ('<!DOCTYPE a [<!ENTITY b "bb"><!ENTITY c "&b;&b;">]><net name="&c;" version="11"/>', b""),
        "bytes": ("\x01" * 4096, weights),
    }


@pytest.mark.parametrize(
    "what",
    [
        *(
            "weights cut",
            "no weights",
            "text cut",
            "huge size",
            "huge offset",
            "offset behind",
            "huge weights",
        ),
        *("unknown operator", "no layers", "bombs", "bytes"),
    ],
)
def test_ir_that_lies_is_contained(what: str, ir: Path, zygote: Zygote, tmp_path: Path) -> None:
    text, weights = hostile(ir)[what]
    tmp_path.chmod(0o755)
    folder = tmp_path / "ir"
    folder.mkdir()
    (folder / "net.xml").write_text(text)
    (folder / "net.bin").write_bytes(weights)
    with pytest.raises(DriverError) as refused:
        run(readable(folder), zygote, dims={"x[2]": 16, "x[3]": 24})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("cut", [9, 40, 200, 3000])
@pytest.mark.parametrize("head", [b"", b"\x1c\0\0\0TFL3"])
def test_files_that_are_cut_or_random_are_contained(
    head: bytes, cut: int, onnx: Path, zygote: Zygote, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    path = tmp_path / "model"
    path.write_bytes(head + onnx.read_bytes()[:cut])
    with pytest.raises(Unfit):
        run(readable(path), zygote)


def test_a_size_that_no_machine_has_is_contained(ir: Path, zygote: Zygote) -> None:
    with pytest.raises(DriverError):
        run(ir, zygote, shapes={"x": (1, 3, 9_000_000, 9_000_000)})
