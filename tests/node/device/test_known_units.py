"""The probe for working units runs once, until something changes that can alter its result."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from drivers.contract.base import UnitInfo
from drivers.launch.launch import ProbedUnits
from drivers.measure.gpu import Gpu, GpuReport
from node.device.gpu_units import NO_GPUS, DeviceGpus, choose
from node.device.known_units import known_units, state_of

FOUND = ProbedUnits((UnitInfo("CPU (ONNX)", "onnx", "onnxruntime 1"),), ("driver 'torch': not here",))


def test_what_was_found_counts_for_its_state_alone(tmp_path: Path) -> None:
    file, looks = tmp_path / "units.json", [FOUND, ProbedUnits((), ()), FOUND]
    assert known_units(file, "a", lambda: looks.pop(0)) == FOUND
    assert known_units(file, "a", lambda: looks.pop(0)) == FOUND
    assert known_units(file, "b", lambda: looks.pop(0)) == ProbedUnits((), ())
    file.write_text('{"state": "b", "units": [{"unit": 1, "colour": 2}], "troubles": []}')
    assert known_units(file, "b", lambda: looks.pop(0)) == FOUND
    assert not looks


def test_what_a_killed_driver_left_open_is_asked_again(tmp_path: Path) -> None:
    file = tmp_path / "units.json"
    unsure = ProbedUnits((), ("driver 'onnx': killed",), sure=False)
    assert known_units(file, "a", lambda: unsure) == unsure
    assert known_units(file, "a", lambda: FOUND) == FOUND
    assert known_units(file / "units.json", "a", lambda: FOUND) == FOUND, "a file where a folder should be"


def test_the_state_changes_with_packages_gpus_and_the_drivers_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    seen = {state_of(NO_GPUS, {})}
    assert state_of(NO_GPUS, {}) in seen
    assert state_of(NO_GPUS, {"EDITOR": "ed"}) in seen, "no driver gets it"
    two = GpuReport((Gpu("A"), Gpu("B")))
    seen.add(state_of(DeviceGpus(two), {}))
    seen.add(state_of(DeviceGpus(two, choose("1", two, {})), {}))
    seen.add(state_of(NO_GPUS, {"CUDA_VISIBLE_DEVICES": "1"}))
    (tmp_path / "onnxruntime_gpu-1.0.dist-info").mkdir()
    seen.add(state_of(NO_GPUS, {}))
    assert len(seen) == 5
