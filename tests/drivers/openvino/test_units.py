"""The OpenVINO units, their devices and settings, with a double of the core that only lists what it has."""

from __future__ import annotations

import pytest

from drivers.contract.base import WrongUnit
from drivers.openvino.driver import OpenVinoDriver
from drivers.openvino.units import CPU, KINDS, device_for, precision_note, settings, verify_devices
from protocol.formats.frameworks import FORMATS_BY_FRAMEWORK
from scheduler.campaign.fields import UNITS
from tests.drivers.openvino.doubles import CoreDouble, runtime_double

GPU, NPU = "GPU (OpenVINO)", "NPU (OpenVINO)"


def test_the_units_are_ones_that_campaigns_know_and_the_formats_those_of_the_framework() -> None:
    assert set(KINDS) == {CPU, GPU, NPU}
    assert set(KINDS) <= set(UNITS)
    assert OpenVinoDriver.formats == FORMATS_BY_FRAMEWORK["OpenVINO"]


def test_a_unit_has_the_first_device_of_its_kind() -> None:
    core = CoreDouble("CPU", "GPU.0", "GPU.1", "NPU")
    assert [device_for(core, unit) for unit in (CPU, GPU, NPU)] == ["CPU", "GPU.0", "NPU"]
    assert device_for(CoreDouble("CPU", "GPU"), GPU) == "GPU"


def test_a_gpu_may_be_asked_for_by_index_or_uuid() -> None:
    core = CoreDouble("CPU", "GPU.0", "GPU.1")
    assert device_for(core, GPU, "1") == "GPU.1"
    assert device_for(core, GPU, "GPU-aa-aa1") == "GPU.1"
    for other in ("2", "GPU-bbbb"):
        with pytest.raises(WrongUnit, match="but OpenVINO finds 2 others"):
            device_for(core, GPU, other)


def test_a_unit_that_is_not_here_is_never_replaced_by_another() -> None:
    with pytest.raises(WrongUnit, match="OpenVINO finds no NPU here"):
        device_for(CoreDouble("CPU"), NPU)
    with pytest.raises(WrongUnit, match=r"unknown unit 'GPU \(ONNX\)'"):
        device_for(CoreDouble("CPU"), "GPU (ONNX)")
    verify_devices(GPU, "GPU.0", ["GPU.0"])
    verify_devices(GPU, "GPU", ["GPU.0"])
    with pytest.raises(WrongUnit, match=r"asked for GPU \(OpenVINO\), but the compiled model is on CPU"):
        verify_devices(GPU, "GPU.0", ["GPU.0", "CPU"])


def test_latency_is_asked_for_and_threads_only_of_the_processor() -> None:
    assert settings("CPU", 3) == {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": 3,
    }
    assert settings("GPU.0", 3) == {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
    assert settings("NPU", 3) == {"PERFORMANCE_HINT": "LATENCY"}


def test_fewer_digits_than_float32_are_told() -> None:
    assert "bf16 where it can on this device, whatever the model's type" in precision_note("bf16")
    assert precision_note("f32") == "OpenVINO computes in f32"
    assert precision_note("dynamic") == "OpenVINO computes in the model's own types"


def test_only_devices_that_have_just_computed_are_offered() -> None:
    core = CoreDouble("CPU", "GPU.0", "GPU.1", "NPU")
    core.gains |= {"GPU.0": 3.0, "NPU": 0.0}
    offered = OpenVinoDriver(runtime_double(core)).units()
    assert [(one.unit, one.driver, one.runtime, one.detail) for one in offered] == [
        (CPU, "openvino", "openvino 2026.4.1", "a  CPU"),
        (GPU, "openvino", "openvino 2026.4.1", "a  GPU.1"),
    ]
