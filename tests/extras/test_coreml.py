"""The CoreML driver with the real coremltools, which reads models on any system but runs them only on a Mac."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.base import CheckReport, Limits, ModelDescription, Unfit, WorkOrder, WrongUnit
from drivers.coreml.driver import CoreMLDriver, tiny
from drivers.coreml.model import private_name
from drivers.coreml.spec import inputs_of, refuse_custom
from drivers.coreml.units import UNITS, compute_unit
from drivers.launch.launch import Zygote, measure
from drivers.testing.conformance import Subject, check_all

MAC = sys.platform == "darwin"


@pytest.fixture(scope="module")
def ct() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import coremltools

    return coremltools


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, ct: Any) -> dict[str, Path]:
    """A small convolution as a neural network in a file, and as a program in a package."""
    import numpy as np
    from coremltools.converters.mil import Builder

    folder = tmp_path_factory.mktemp("coreml")

    @Builder.program(input_specs=[Builder.TensorSpec(shape=(1, 3, 16, 16))])
    def net(x: Any) -> Any:
        weight = np.linspace(-1, 1, 4 * 3 * 9, dtype=np.float32).reshape(4, 3, 3, 3)
        return Builder.relu(x=Builder.conv(x=x, weight=weight, pad_type="same"))

    made = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, kind in (("net.mlmodel", "neuralnetwork"), ("net.mlpackage", "mlprogram")):
            made[name] = folder / name
            ct.convert(net, convert_to=kind).save(str(made[name]))
    for file in folder.rglob("*.mlmodel"):
        file.chmod(0o644)  # a node of root runs models as nobody
    return made


@pytest.mark.parametrize("name", ["net.mlmodel", "net.mlpackage"])
def test_a_real_model_is_read_by_its_specification(
    models: dict[str, Path], ct: Any, name: str, tmp_path: Path
) -> None:
    path = private_name(models[name], tmp_path / "model")
    assert path.suffix == Path(name).suffix
    specification = ct.utils.load_spec(str(path))
    refuse_custom(specification)
    (x,) = inputs_of(specification)
    assert (x.name, x.dtype, x.shape) == ("x", "float", (1, 3, 16, 16))


def test_flexible_shapes_and_pictures_are_read(ct: Any) -> None:
    from coremltools.proto import FeatureTypes_pb2, Model_pb2

    model = Model_pb2.Model()
    ranged = model.description.input.add()
    ranged.name = "ids"
    ranged.type.multiArrayType.dataType = FeatureTypes_pb2.ArrayFeatureType.INT32
    for low, high in ((1, 1), (1, 512)):
        one = ranged.type.multiArrayType.shapeRange.sizeRanges.add()
        one.lowerBound, one.upperBound = low, high
    picture = model.description.input.add()
    picture.name = "image"
    picture.type.imageType.height, picture.type.imageType.width = 6, 4
    picture.type.imageType.colorSpace = FeatureTypes_pb2.ImageFeatureType.RGB
    assert [(one.name, one.dtype, one.shape) for one in inputs_of(model)] == [
        ("ids", "int32", (1, None)),
        ("image", "uint8", (6, 4, 3)),
    ]
    model.customModel.className = "Mine"
    with pytest.raises(Unfit, match="custom model"):
        refuse_custom(model)


def test_a_custom_layer_is_refused(ct: Any, models: dict[str, Path]) -> None:
    specification = ct.utils.load_spec(str(models["net.mlmodel"]))
    specification.neuralNetwork.layers.add().custom.className = "Mine"
    with pytest.raises(Unfit, match="custom layers"):
        refuse_custom(specification)


def test_the_units_are_real_ones_and_the_trial_network_is_one(ct: Any) -> None:
    assert {compute_unit(ct, one.unit) for one in UNITS} <= set(ct.ComputeUnit)
    assert [one.name for one in inputs_of(tiny(ct))] == ["x"]


@pytest.mark.parametrize("name", ["net.mlmodel", "net.mlpackage"])
def test_a_model_runs_on_a_mac_and_is_refused_with_the_reason_elsewhere(
    models: dict[str, Path], name: str
) -> None:
    if MAC:
        for info in CoreMLDriver().units():
            check_all(Subject("coreml", unit=info.unit, model=str(models[name])))
        return
    assert CoreMLDriver().units() == ()
    with Zygote("coreml") as zygote:
        for one in UNITS:
            order = WorkOrder(str(models[name]), one.unit, runs=3, loads=1)
            with pytest.raises(WrongUnit, match="only on macOS"):
                list(measure(order, Limits(load_s=60, run_s=60), zygote))


def test_an_order_for_a_mac_gets_as_far_as_coreml_itself(
    models: dict[str, Path], ct: Any, tmp_path: Path
) -> None:
    import contextlib

    driver = CoreMLDriver(ct, "darwin")
    order = WorkOrder(str(models["net.mlpackage"]), UNITS[0].unit, runs=3)
    with contextlib.chdir(tmp_path), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if MAC:
            events = list(driver.run(order))
            assert {ModelDescription, CheckReport} <= {type(event) for event in events}
        else:
            # coremltools' own refusal to run: all steps before it, including the load, have succeeded
            with pytest.raises(Exception, match="only supported on macOS"):
                list(driver.run(order))
