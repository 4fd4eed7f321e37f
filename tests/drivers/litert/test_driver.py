"""The LiteRT driver on any system: formats, shapes, refusals and the check are real; the runtime is a double of ai-edge-litert."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from drivers.contract.base import (
    CheckReport,
    Event,
    LoadReport,
    MeasureReport,
    ModelDescription,
    OutputReport,
    ProgressReport,
    Unfit,
    Unshaped,
    WorkOrder,
    WrongUnit,
)
from drivers.litert.driver import LiteRtDriver
from drivers.litert.model import explain
from drivers.litert.samples import double, perceptron
from drivers.litert.units import CPU, GPU
from protocol.formats.model_files import ModelFormat, read_format


class OpResolverType(enum.Enum):
    """Named as in ai-edge-litert."""

    AUTO = 0
    BUILTIN_REF = 2
    BUILTIN_WITHOUT_DEFAULT_DELEGATES = 3


@dataclass
class LiteRt:
    """The interpreter's module, as far as the driver uses it. Its model doubles the input and, if it keeps state, adds one for each
    earlier inference."""

    dtype: Any = np.float32
    scale: tuple[float, int] = (0.0, 0)
    signature: tuple[int, ...] = (1, 4)
    ops: tuple[str, ...] = ("MUL",)
    delegated: bool = True
    gain: Mapping[str, float] = field(default_factory=dict)
    """Kernels that multiply by another factor than 2."""
    most: int = 8
    """The largest first dimension."""
    opened: list[tuple[str, int]] = field(default_factory=list)
    resized: list[tuple[int, tuple[int, ...], bool]] = field(default_factory=list)
    OpResolverType = OpResolverType

    def Interpreter(  # noqa: N802 - its name
        self,
        model_path: str | None = None,
        model_content: bytes | None = None,
        num_threads: int = 1,
        experimental_op_resolver_type: OpResolverType = OpResolverType.AUTO,
    ) -> DoubledInterpreter:
        kernels = experimental_op_resolver_type.name
        self.opened.append((kernels, num_threads))
        return DoubledInterpreter(self, kernels)


class DoubledInterpreter:
    """Tensor 0 is the input x, tensor 1 the output y."""

    def __init__(self, of: LiteRt, kernels: str) -> None:
        self.of, self.kernels, self.runs = of, kernels, 0
        self.shape = tuple(max(1, size) for size in of.signature)
        self.x: Any = None

    def details(self, name: str, index: int) -> dict[str, Any]:
        return {
            "name": f"serving_{name}",
            "index": index,
            "shape": np.array(self.shape),
            "shape_signature": np.array(self.of.signature),
            "dtype": self.of.dtype,
            "quantization": self.of.scale,
        }

    def get_input_details(self) -> list[dict[str, Any]]:
        return [self.details("x", 0)]

    def get_output_details(self) -> list[dict[str, Any]]:
        return [self.details("y", 1)]

    def get_signature_list(self) -> dict[str, Any]:
        return {"main": {}}

    def get_signature_runner(self, key: str) -> Any:
        return SimpleNamespace(
            get_input_details=lambda: {"x": self.details("x", 0)},
            get_output_details=lambda: {"y": self.details("y", 1)},
        )

    def resize_tensor_input(self, index: int, shape: tuple[int, ...], strict: bool) -> None:
        self.of.resized.append((index, tuple(shape), strict))
        self.shape = tuple(shape)

    def allocate_tensors(self) -> None:
        if self.shape[0] > self.of.most:
            raise RuntimeError("tensor is too large\nNode number 0 (MUL) failed to prepare.\n")

    def _get_ops_details(self) -> list[dict[str, Any]]:
        nodes = [{"op_name": op, "inputs": [0], "outputs": [1]} for op in self.of.ops]
        if self.of.delegated and self.kernels == "AUTO":
            nodes.append({"op_name": "DELEGATE", "inputs": [0], "outputs": [1]})
        return nodes

    def set_tensor(self, index: int, values: Any) -> None:
        assert (values.dtype, values.shape) == (np.dtype(self.of.dtype), self.shape)
        self.x = values.copy()

    def invoke(self) -> None:
        self.runs += 1

    def get_tensor(self, index: int) -> Any:
        state = self.runs - 1 if "ASSIGN_VARIABLE" in self.of.ops else 0
        return (self.x * self.of.gain.get(self.kernels, 2) + state).astype(self.of.dtype)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.tflite"
    path.write_bytes(double())
    return path


def run(runtime: LiteRt, model: Path, **changes: Any) -> list[Event]:
    order = WorkOrder(str(model), **({"unit": CPU, "runs": 5, "warmup": 1} | changes))
    return list(LiteRtDriver(runtime).run(order))


def one(events: list[Event], kind: type[Any]) -> Any:
    return next(event for event in events if isinstance(event, kind))


def test_the_unit_is_offered_if_a_model_has_just_run_on_it() -> None:
    runtime = LiteRt(signature=(1, 1))
    assert [info.unit for info in LiteRtDriver(runtime).units()] == [CPU]
    wrong = LiteRt(signature=(1, 1), gain={"AUTO": 3})
    assert LiteRtDriver(wrong).units() == ()
    assert LiteRtDriver(LiteRt(signature=(1, 1), most=0)).units() == ()


def test_a_run_tells_its_whole_story(model: Path) -> None:
    runtime = LiteRt()
    events = run(runtime, model, threads=1)
    kinds = [type(event) for event in events if not isinstance(event, ProgressReport)]
    assert kinds == [LoadReport, OutputReport, ModelDescription, MeasureReport, CheckReport]
    described = one(events, ModelDescription)
    assert (described.unit, described.providers, described.threads) == (CPU, ("XNNPACK",), 1)
    assert (described.shapes, described.dtypes) == ({"x": (1, 4)}, {"x": "float"})
    assert [(each.op, each.provider, each.nodes) for each in described.operators] == [("MUL", "XNNPACK", 1)]
    assert "XNNPACK took 1 of 1 operators, in 1 part" in described.notes
    assert len(one(events, MeasureReport).samples_ns) == 5
    assert one(events, CheckReport).agrees is True
    assert runtime.opened == [("AUTO", 1), ("BUILTIN_WITHOUT_DEFAULT_DELEGATES", 1)]
    assert runtime.resized == []


def test_outputs_that_differ_from_those_of_other_kernels_disagree(model: Path) -> None:
    runtime = LiteRt(gain={"BUILTIN_WITHOUT_DEFAULT_DELEGATES": 2.5})
    assert one(run(runtime, model), CheckReport).agrees is False


def test_what_no_delegate_took_is_compared_with_the_reference_kernels(model: Path) -> None:
    runtime = LiteRt(delegated=False)
    events = run(runtime, model)
    assert one(events, ModelDescription).providers == ("built-in kernels",)
    assert [kernels for kernels, _ in runtime.opened] == ["AUTO", "BUILTIN_REF"]


def test_a_model_that_keeps_a_state_is_compared_by_its_first_inference(model: Path) -> None:
    events = run(LiteRt(ops=("MUL", "ASSIGN_VARIABLE")), model)
    assert one(events, CheckReport).agrees is True
    assert any("keeps a state" in note for note in one(events, ModelDescription).notes)


def test_quantised_inputs_are_made_in_their_own_type_and_outputs_compared_by_what_they_stand_for(
    model: Path,
) -> None:
    runtime = LiteRt(dtype=np.int8, scale=(0.5, -128), gain={"AUTO": 1}, signature=(1, 400))
    runtime.gain = {"AUTO": 1, "BUILTIN_WITHOUT_DEFAULT_DELEGATES": 1}
    events = run(runtime, model)
    assert one(events, ModelDescription).dtypes == {"x": "int8"}
    checked = one(events, CheckReport)
    assert (checked.agrees, checked.tolerance) == (True, 2e-2)
    assert any("int8 in steps of 0.5" in note for note in one(events, ModelDescription).notes)
    assert one(events, OutputReport).sketches[0].dtype == "float32"


def test_open_sizes_come_from_the_order_and_are_set_strictly(model: Path) -> None:
    runtime = LiteRt(signature=(-1, 4))
    events = run(runtime, model, batch=3)
    described = one(events, ModelDescription)
    assert (described.shapes, described.batch) == ({"x": (3, 4)}, 3)
    assert runtime.resized == [(0, (3, 4), True)] * 2
    assert one(run(LiteRt(signature=(-1, 4)), model), ModelDescription).shapes == {"x": (1, 4)}


def test_sizes_are_never_chosen_and_their_user_is_told_of_wrong_ones(model: Path) -> None:
    with pytest.raises(Unshaped, match=r"x is 1×\?: give the sizes"):
        run(LiteRt(signature=(1, -1)), model)
    with pytest.raises(Unshaped, match=r"its axis 1 is 4, not 5"):
        run(LiteRt(), model, shapes={"x": (1, 5)})
    with pytest.raises(Unshaped, match=r"failed with x 9×4: LiteRT: tensor is too large Node number 0"):
        run(LiteRt(signature=(-1, 4)), model, batch=9)
    with pytest.raises(Unfit, match=r"LiteRT: tensor is too large") as caught:
        run(LiteRt(most=0), model)
    assert type(caught.value) is Unfit


def test_other_units_and_formats_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(WrongUnit, match=r"no GPU delegate: ask for CPU \(LiteRT\)"):
        run(LiteRt(), model, unit=GPU)
    with pytest.raises(WrongUnit, match=r"unknown unit 'CPU \(ONNX\)'"):
        run(LiteRt(), model, unit="CPU (ONNX)")
    other = tmp_path / "m.onnx"
    other.write_bytes(b"\x08\x07" * 64)
    with pytest.raises(Unfit, match=r"runs \.tflite files; this is not one \(other file\)"):
        run(LiteRt(), other)
    with pytest.raises(Unfit, match="there is no such file"):
        run(LiteRt(), tmp_path / "missing.tflite")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "Encountered unresolved custom op: Landmarks2TransformMatrix.\nSee instructions: https://www",
            "the model has the custom operator 'Landmarks2TransformMatrix', which LiteRT lacks",
        ),
        (
            "Select TensorFlow op(s), included in the given model, is(are) not supported by this interpreter.",
            "convert it without SELECT_TF_OPS",
        ),
        ("a\n\n b\nc\nd", "LiteRT: a b c"),
    ],
)
def test_the_runtimes_errors_are_one_line_with_what_to_do(text: str, told: str) -> None:
    assert told in explain(text)
    assert "\n" not in explain(text)


def test_the_samples_are_litert_models(tmp_path: Path) -> None:
    for number, content in enumerate((double(), perceptron(192, 4))):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(content)
        assert read_format(path) is ModelFormat.TFLITE
    assert [one.name for one in LiteRtDriver(LiteRt()).samples()] == ["tiny.tflite", "chain.tflite"]
