"""Which drivers are found, and what a broken driver costs."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from drivers.contract import registry
from drivers.contract.base import Unfit


def point(value: str) -> EntryPoint:
    """The entry point of a package's driver."""
    return EntryPoint("theirs", value, registry.GROUP)


def test_ours_come_through_the_same_door_as_anybodys() -> None:
    assert {"onnx", "fake", "torch", "coreml"} <= {one.name for one in registry.installed()}
    assert registry.load("onnx").name == "onnx"


def test_a_driver_that_invents_figures_is_hidden_unless_asked_for() -> None:
    assert "fake" not in registry.names()
    assert "fake" in registry.names(simulate=True)
    with pytest.raises(Unfit, match="invents its figures"):
        registry.load("fake")
    assert registry.load("fake", simulate=True).name == "fake"


def test_an_unknown_driver_is_answered_with_those_that_are_here() -> None:
    with pytest.raises(Unfit, match=r"no driver 'torhc' is installed \(there are: .*onnx"):
        registry.load("torhc")


@pytest.mark.parametrize(
    "value",
    [
        "no_such_module_at_all:Driver",
        "drivers.onnx.driver:Missing",
        "drivers.onnx.driver:FOLDER",
        "drivers.contract.base:WorkOrder",
    ],
    ids=["no module", "no class", "not callable", "needs arguments"],
)
def test_a_broken_driver_costs_one_line(value: str) -> None:
    with pytest.raises(Unfit, match=r"driver 'theirs' .* does not load") as failed:
        registry.make(point(value))
    assert "\n" not in str(failed.value)


def test_something_else_behind_the_entry_point_is_not_taken_for_a_driver() -> None:
    with pytest.raises(Unfit, match="is not a driver"):
        registry.make(point("builtins:dict"))
