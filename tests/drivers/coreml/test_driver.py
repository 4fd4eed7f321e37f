"""The CoreML driver on any system: units, manifest, inputs and refusals are real; coremltools is a double that answers as on a Mac."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
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
    WorkOrder,
    WrongUnit,
)
from drivers.coreml.driver import CoreMLDriver
from drivers.coreml.model import plan_of
from drivers.coreml.spec import check_package, images_of, inputs_of, refuse_custom
from drivers.coreml.units import (
    CPU,
    GPU,
    NEURAL,
    UNITS,
    compute_unit,
    count_places,
    present,
    require_macos,
    verdict,
)
from protocol.formats.phase import Phase

FLOAT32, INT32 = 65568, 131104


class Either(SimpleNamespace):
    """A protobuf message with a `oneof`."""

    kind: str | None = None

    def WhichOneof(self, name: str) -> str | None:  # noqa: N802 - protobuf's name
        return self.kind


def array(*shape: int, dtype: int = FLOAT32, **flexible: Any) -> Either:
    held = Either(shape=shape, dataType=dtype, kind=next(iter(flexible), None), **flexible)
    return Either(kind="multiArrayType", multiArrayType=held, isOptional=False)


def picture(height: int, width: int, space: int) -> Either:
    held = SimpleNamespace(height=height, width=width, colorSpace=space)
    return Either(kind="imageType", imageType=held, isOptional=False)


def spec(kind: str = "mlProgram", **inputs: Either) -> Either:
    simple_namespaces = [SimpleNamespace(name=name, type=held) for name, held in inputs.items()]
    return Either(kind=kind, description=SimpleNamespace(input=simple_namespaces))


class MLCPUComputeDevice:
    """Named as in coremltools."""


class MLGPUComputeDevice:
    """Named as in coremltools."""


class MLNeuralEngineComputeDevice:
    """Named as in coremltools."""


class Mac:
    """coremltools on a Mac, as far as the driver uses it. Its model doubles the input."""

    __version__ = "9.0"

    def __init__(self, specification: Either, ran_on: tuple[type, ...] = (MLGPUComputeDevice,)) -> None:
        self.opened: list[str] = []
        self.spec = specification
        self.devices: list[Any] = [MLCPUComputeDevice(), MLGPUComputeDevice()]
        self.gain = {"CPU_ONLY": 2.0, "CPU_AND_GPU": 2.0, "CPU_AND_NE": 2.0}
        names = ("CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE", "ALL")
        self.ComputeUnit = SimpleNamespace(**{name: SimpleNamespace(name=name) for name in names})
        self.utils = SimpleNamespace(load_spec=lambda path: self.spec)
        usages = [SimpleNamespace(preferred_compute_device=kind()) for kind in ran_on]
        block = SimpleNamespace(operations=[*usages, None])
        program = SimpleNamespace(functions={"main": SimpleNamespace(block=block)})
        plan = SimpleNamespace(
            model_structure=SimpleNamespace(program=program, neuralnetwork=None),
            get_compute_device_usage_for_mlprogram_operation=lambda operation: operation,
        )
        load = SimpleNamespace(load_from_path=lambda path, compute_units: plan)
        lister = SimpleNamespace(get_all_compute_devices=lambda: self.devices)
        builder = SimpleNamespace(spec=None, add_activation=lambda **options: None)
        self.models = SimpleNamespace(
            MLModel=self._open,
            compute_plan=SimpleNamespace(MLComputePlan=load),
            compute_device=SimpleNamespace(MLComputeDevice=lister),
            datatypes=SimpleNamespace(Array=lambda size: size),
            neural_network=SimpleNamespace(NeuralNetworkBuilder=lambda inputs, outputs: builder),
        )

    def _open(self, path: object, compute_units: Any) -> Any:
        self.opened.append(compute_units.name)
        gain = self.gain[compute_units.name]

        def predict(fed: Mapping[str, Any]) -> dict[str, Any]:
            return {"y": np.asarray(fed["x"]) * np.float32(gain)}

        return SimpleNamespace(predict=predict, get_compiled_model_path=lambda: "m.mlmodelc")


def package(folder: Path, path: str = "com.apple.CoreML/model.mlmodel", **changes: Any) -> Path:
    held = folder / "net.mlpackage"
    (held / "Data/com.apple.CoreML").mkdir(parents=True)
    (held / "Data/com.apple.CoreML/model.mlmodel").write_bytes(b"\x08\x09")
    result = {"itemInfoEntries": {"a": {"path": path}}, "rootModelIdentifier": "a"} | changes
    (held / "Manifest.json").write_text(json.dumps(result))
    return held


def run(mac: Mac, model: Path, unit: str, **changes: Any) -> list[Event]:
    order = WorkOrder(str(model), unit, **({"runs": 5, "warmup": 1} | changes))
    return list(CoreMLDriver(mac, "darwin").run(order))


def one(events: list[Event], kind: type[Any]) -> Any:
    return next(event for event in events if isinstance(event, kind))


# -- units ----------------------------------------------------------------------------------------------------------------


def test_each_unit_asks_coreml_for_what_it_is_called() -> None:
    mac = Mac(spec())
    request = {one.unit: compute_unit(mac, one.unit).name for one in UNITS}
    assert request == {CPU: "CPU_ONLY", GPU: "CPU_AND_GPU", NEURAL: "CPU_AND_NE"}
    with pytest.raises(WrongUnit, match="unknown unit"):
        compute_unit(mac, "GPU (ONNX)")


def test_units_are_offered_on_a_mac_that_has_their_device_and_ran_something_on_it() -> None:
    mac = Mac(spec())
    assert [info.unit for info in CoreMLDriver(mac, "darwin").units()] == [CPU, GPU]
    mac.devices.append(MLNeuralEngineComputeDevice())
    assert [info.unit for info in CoreMLDriver(mac, "darwin").units()] == [CPU, GPU, NEURAL]
    mac.gain["CPU_AND_NE"] = 3.0
    assert [info.unit for info in CoreMLDriver(mac, "darwin").units()] == [CPU, GPU]
    assert [one.unit for one in present([])] == []


@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_elsewhere_nothing_is_offered_and_a_model_is_refused_with_the_reason(
    platform: str, tmp_path: Path
) -> None:
    driver = CoreMLDriver(Mac(spec()), platform)
    assert driver.units() == ()
    with pytest.raises(WrongUnit, match=f"only on macOS, and this is {platform}; export the model to ONNX"):
        list(driver.load_only(WorkOrder(str(package(tmp_path)), NEURAL)))
    with pytest.raises(WrongUnit, match="unknown unit"):
        require_macos(platform, "CPU (ONNX)")


def test_where_operators_ran_is_counted_by_the_plan() -> None:
    kinds = (MLGPUComputeDevice, MLGPUComputeDevice, MLCPUComputeDevice)
    mac = Mac(spec(), kinds)
    counts = plan_of(mac, mac.models.MLModel("m", compute_unit(mac, GPU)), GPU)
    assert counts == {GPU: 2, CPU: 1}
    assert verdict(GPU, counts) == "in CoreML's plan 2 of 3 operators run on GPU (CoreML)"
    with pytest.raises(WrongUnit, match=r"no operator runs there: 2 on GPU"):
        verdict(NEURAL, counts)
    assert "does not report" in verdict(NEURAL, count_places([None]))


def test_a_system_without_plans_is_distinguished_from_one_with_a_bad_plan() -> None:
    mac = Mac(spec())
    del mac.models.compute_plan
    assert plan_of(mac, mac.models.MLModel("m", compute_unit(mac, GPU)), GPU) == {}


# -- the model ------------------------------------------------------------------------------------------------------------


def test_a_package_is_taken_by_its_manifest(tmp_path: Path) -> None:
    check_package(package(tmp_path))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"path": "../../etc/passwd"}, "outside the package"),
        ({"path": "/etc/passwd"}, "outside the package"),
        ({"path": "com.apple.CoreML/other"}, "lacks"),
        ({"itemInfoEntries": {}}, "no items"),
        ({"itemInfoEntries": {"a": 1}}, "outside the package"),
        ({"rootModelIdentifier": "b"}, "names no model"),
    ],
)
def test_a_package_whose_manifest_leads_elsewhere_is_refused(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(Unfit, match=why):
        check_package(package(tmp_path, **changes))


def test_inputs_are_read_from_the_specification() -> None:
    size = SimpleNamespace
    ranges = SimpleNamespace(sizeRanges=[size(lowerBound=1, upperBound=1), size(lowerBound=1, upperBound=9)])
    listed = SimpleNamespace(shapes=[SimpleNamespace(shape=(2, 3)), SimpleNamespace(shape=(4, 3))])
    result = spec(
        x=array(1, 3, 8, 8),
        ids=array(1, 4, dtype=INT32),
        any=array(1, 5, shapeRange=ranges),
        some=array(enumeratedShapes=listed),
        image=picture(6, 4, 20),
        number=Either(kind="doubleType", isOptional=False),
        extra=Either(kind="stringType", isOptional=True),
    )
    made = {one.name: (one.dtype, one.shape) for one in inputs_of(result)}
    assert made == {
        "x": ("float", (1, 3, 8, 8)),
        "ids": ("int32", (1, 4)),
        "any": ("float", (1, None)),
        "some": ("float", (2, 3)),
        "image": ("uint8", (6, 4, 3)),
        "number": ("double", ()),
    }
    assert images_of(result) == {"image": 3}


@pytest.mark.parametrize(
    "held",
    [
        Either(kind="dictionaryType", isOptional=False),
        array(1, dtype=7),
        picture(2, 2, 40),
        picture(2, 2, 99),
    ],
)
def test_inputs_that_cannot_be_made_are_refused_by_name(held: Either) -> None:
    with pytest.raises(Unfit, match=r"input 'odd' .* cannot be generated"):
        inputs_of(spec(odd=held))


def test_code_of_other_applications_is_not_run() -> None:
    with pytest.raises(Unfit, match="custom model"):
        refuse_custom(spec("customModel"))
    network = spec("neuralNetwork")
    network.neuralNetwork = SimpleNamespace(layers=[Either(kind="convolution"), Either(kind="custom")])
    with pytest.raises(Unfit, match="custom layers"):
        refuse_custom(network)
    refuse_custom(spec())


# -- whole orders ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def at_home(tmp_path: Path) -> Iterator[Path]:
    """Work in a private directory, as a child process does."""
    (tmp_path / "home").mkdir()
    with contextlib.chdir(tmp_path / "home"):
        yield tmp_path


@pytest.mark.parametrize(("unit", "compute"), [(GPU, "CPU_AND_GPU"), (CPU, "CPU_ONLY")])
def test_a_run_tells_its_whole_story(at_home: Path, unit: str, compute: str) -> None:
    mac = Mac(spec(x=array(1, 4)), (MLGPUComputeDevice, MLCPUComputeDevice))
    events = run(mac, package(at_home), unit)
    kinds = [type(event) for event in events if not isinstance(event, ProgressReport)]
    assert kinds == [LoadReport, OutputReport, ModelDescription, MeasureReport, CheckReport]
    assert len(one(events, MeasureReport).samples_ns) == 5
    described = one(events, ModelDescription)
    assert (described.unit, described.providers, described.shapes) == (unit, (compute,), {"x": (1, 4)})
    assert any("of 2 operators run on" in note for note in described.notes)
    assert one(events, CheckReport).agrees is True
    assert mac.opened == [compute, "CPU_ONLY"]
    assert [event.phase for event in events if isinstance(event, ProgressReport)][:2] == [
        Phase.PREPARE,
        Phase.LOAD,
    ]


def test_a_unit_that_gives_another_answer_than_the_cpu_disagrees(at_home: Path) -> None:
    mac = Mac(spec(x=array(1, 4)))
    mac.gain["CPU_AND_GPU"] = 2.5
    assert one(run(mac, package(at_home), GPU), CheckReport).agrees is False


def test_a_brief_launch_loads_and_times_alone(at_home: Path) -> None:
    events = run(Mac(spec(x=array(1, 4))), package(at_home), GPU, brief=True)
    assert [type(event) for event in events if not isinstance(event, ProgressReport)] == [
        LoadReport,
        MeasureReport,
    ]


def test_a_model_that_coreml_put_elsewhere_ran_on_the_wrong_unit(at_home: Path) -> None:
    mac = Mac(spec(x=array(1, 4)), (MLCPUComputeDevice,))
    with pytest.raises(WrongUnit, match="no operator runs there"):
        run(mac, package(at_home), GPU)


def test_other_formats_are_refused(at_home: Path) -> None:
    folder = at_home / "folder"
    folder.mkdir()
    with pytest.raises(Unfit, match=r"this is neither \(folder\)"):
        run(Mac(spec()), folder, GPU)


def test_off_a_mac_there_is_nothing_to_calibrate_with() -> None:
    assert CoreMLDriver(None, "linux").samples() == ()
