"""The sample models that a driver makes in a child for calibration, and that its units run."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path

import pytest

from drivers.contract.base import (
    Crashed,
    MeasureReport,
    SampleModel,
    UnitInfo,
    WorkOrder,
    made_samples,
    sample_model,
)
from drivers.contract.frames import HEADER_BYTES, Garbled, pack_event
from drivers.launch.events import LaunchEvents, Reply, unpack
from drivers.launch.launch import Zygote, measure
from drivers.launch.samples import contents_of, sample_models
from drivers.measure.stopping import LaunchSpec, MeasureJob
from drivers.testing.fake import FakeDriver
from drivers.torch.architectures import open_declared
from drivers.torch.driver import TorchDriver
from protocol.formats.model_files import read_format
from tests.drivers.launching import QUICK


def test_the_onnx_driver_makes_models_that_its_processor_runs(zygote: Zygote, tmp_path: Path) -> None:
    made = sample_models(zygote)
    assert list(made) == ["tiny.onnx", "chain.onnx"]
    for name, content in made.items():
        path = tmp_path / name
        path.write_bytes(content)
        order = WorkOrder(str(path), "CPU (ONNX)", runs=4, loads=1)
        (report,) = [event for event in measure(order, QUICK, zygote) if isinstance(event, MeasureReport)]
        assert len(report.samples_ns) == 4


def test_a_driver_without_samples_makes_none(stage: Zygote) -> None:
    assert made_samples(FakeDriver()) == ()
    assert sample_models(stage) == {}


def test_the_torch_driver_makes_declared_weights_of_its_own_format(tmp_path: Path) -> None:
    for made, width in zip(TorchDriver().samples(), (1, 192), strict=True):
        path = tmp_path / made.name
        path.write_bytes(b64decode(made.content))
        declared, weights = open_declared(path, read_format(path))
        assert declared.input_shape() == ("batch", width)
        assert {name: one.shape for name, one in weights.tensors.items()} == declared.weights()
        assert 0 < abs(weights.array("0.weight")).max() <= 1


def test_a_sample_where_an_event_is_due_breaks_the_contract() -> None:
    checker = LaunchEvents(LaunchSpec(MeasureJob.RUN, 1), served=False, cold=False)
    with pytest.raises(Garbled, match="sample"):
        checker.take(sample_model("m.onnx", b"x"))


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ([UnitInfo("u", "d", "r")], "it sent a UnitInfo instead of a sample"),
        ([sample_model(f"{name}.onnx", b"x") for name in "abcde"], "it sent more than 4 samples"),
        ([SampleModel("m.onnx", "?")], "sample m.onnx is not base64"),
    ],
)
def test_a_driver_that_sends_no_samples_where_they_are_due_breaks_the_contract(
    sent: list[Reply], why: str
) -> None:
    with pytest.raises(Crashed, match=f"it broke its contract: {why}"):
        contents_of(sent)


@pytest.mark.parametrize("name", ["../m", "m", "/etc/m.onnx", ".onnx", "M.onnx"])
def test_the_name_of_a_sample_is_a_plain_file_name(name: str) -> None:
    frame = pack_event(sample_model(name, b"x"))[HEADER_BYTES:]
    if name == "m":
        assert isinstance(unpack(frame), SampleModel)
        return
    with pytest.raises(Garbled, match="SampleModel: name"):
        unpack(frame)
