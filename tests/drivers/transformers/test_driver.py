"""The driver without its runtime installed, and the torch units that it shares. With real runtimes: `tests/extras`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from drivers.contract.base import UnitInfo, WrongUnit
from drivers.local.model import ExecutionPlace
from drivers.torch.placement import unit_that_ran
from drivers.torch.units import device_for, working_units
from drivers.transformers import driver
from drivers.transformers.driver import TransformersDriver
from drivers.transformers.units import CPU, GPU, UNITS
from protocol.formats.frameworks import FORMATS_BY_FRAMEWORK, framework_of


def torch(answer: float = 42.0) -> Any:
    class Doubled(SimpleNamespace):
        def __mul__(self, factor: int) -> Any:
            return SimpleNamespace(item=lambda: answer)

    return SimpleNamespace(
        __version__="2",
        full=lambda shape, value, device: Doubled(),
        cuda=SimpleNamespace(is_available=lambda: False),
        backends=SimpleNamespace(),
    )


def test_without_its_runtimes_the_driver_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "find_spec", lambda name: None if name == "transformers" else object())
    assert TransformersDriver().units() == ()


def test_only_units_that_just_computed_are_offered() -> None:
    assert list(working_units(torch(), UNITS, "transformers", "5")) == [
        UnitInfo(CPU, "transformers", "5", "cpu")
    ]
    assert list(working_units(torch(41.0), UNITS, "transformers", "5")) == []


def test_its_units_are_devices_of_torch_and_no_other_drivers_are() -> None:
    assert device_for(torch(), CPU, units=UNITS) == "cpu"
    with pytest.raises(WrongUnit, match=r"asked for GPU \(Transformers\), but this torch"):
        device_for(torch(), GPU, units=UNITS)
    with pytest.raises(WrongUnit, match=r"this driver has CPU \(Transformers\), GPU \(Transformers\)"):
        device_for(torch(), "CPU (Torch)", units=UNITS)
    assert unit_that_ran(GPU, "cuda:0", "cuda: card", {"cpu": 3}) == ExecutionPlace(CPU, ("cpu",))


def test_its_formats_are_those_that_its_units_run() -> None:
    assert (
        TransformersDriver.formats
        == FORMATS_BY_FRAMEWORK[framework_of(CPU)]
        == FORMATS_BY_FRAMEWORK[framework_of(GPU)]
    )
