"""The driver that drivers/README.md tells authors to copy sends events in the order that the page requires."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from drivers.contract.base import (
    CheckReport,
    Driver,
    LoadReport,
    MeasureReport,
    ModelDescription,
    ProgressReport,
    Unfit,
    WorkOrder,
    WrongUnit,
)
from drivers.testing.conformance import Subject, check_all

FILE = Path(__file__).parents[3] / "examples" / "driver" / "mine.py"


def example() -> Driver:
    spec = importlib.util.spec_from_file_location("mine", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    driver: Driver = module.MineDriver()
    return driver


def test_the_example_is_a_driver_that_tells_its_whole_story(tmp_path: Path) -> None:
    driver, model = example(), tmp_path / "small.mine"
    model.write_bytes(b"mine")
    (unit,) = driver.units()
    assert (unit.unit, unit.driver) == ("CPU (Mine)", driver.name)
    lines = list(driver.run(WorkOrder(str(model), unit.unit, runs=5, warmup=2)))
    facts = [type(event) for event in lines if not isinstance(event, ProgressReport)]
    assert facts == [LoadReport, ModelDescription, MeasureReport, CheckReport]
    (measured,) = (event for event in lines if isinstance(event, MeasureReport))
    assert len(measured.samples_ns) == 5


def test_the_example_refuses_what_it_cannot_run(tmp_path: Path) -> None:
    driver, model = example(), tmp_path / "other.bin"
    model.write_bytes(b"no model")
    for path, unit, why in (
        (model, "CPU (Mine)", Unfit),
        (tmp_path / "none", "CPU (Mine)", Unfit),
        (model, "GPU", WrongUnit),
    ):
        with pytest.raises(why):
            list(driver.load_only(WorkOrder(str(path), unit)))


def test_a_driver_that_is_not_installed_is_reported_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"no driver 'nobodys' is installed.*sark\.drivers"):
        check_all(Subject("nobodys", "CPU (Nobody)", str(tmp_path)))
