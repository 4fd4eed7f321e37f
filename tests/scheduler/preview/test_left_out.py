"""A plan says which devices lack the unit that their unit is to take turns with."""

from __future__ import annotations

from scheduler.planning.tasks import cells
from scheduler.preview.left_out import left_out
from scheduler.preview.plan_table import plan_lines
from tests.scheduler.campaign.test_against_units import ONNX, OPENVINO, campaign, device
from tests.scheduler.preview.test_plan import planned

TEXT = f"campaign: t\nmodels: [a.onnx]\nunits: [{OPENVINO}]\nmeasure: {{against: {ONNX}}}\n"


def test_a_device_without_the_second_unit_and_one_of_an_older_version_are_left_out_with_the_reason() -> None:
    fleet = [
        device("both", ONNX, OPENVINO),
        device("half", OPENVINO),
        device("old", ONNX, OPENVINO, features=None),
        device("neither", "GPU (ONNX)"),
    ]
    plan = planned(fleet, text=TEXT)
    (cell,) = plan.cells
    assert (cell.against, cell.fit, cell.covered) == (ONNX, ("d-both",), True)
    lines = plan_lines(plan)
    assert f"Left out: half: units: has {OPENVINO}, needs has {ONNX}" in lines
    assert "Left out: old: features: has none, needs has units-in-turns" in lines
    assert not any("neither" in line for line in lines), "it lacks the first unit too"


def test_no_device_is_left_out_of_models_that_share_a_unit() -> None:
    plan = campaign("a.onnx, b.onnx", "a.onnx", ONNX)
    assert left_out(cells(plan), [device("x", OPENVINO), device("y", ONNX)]) == ()


def test_many_are_counted() -> None:
    plan = campaign("a.onnx", ONNX, OPENVINO)
    for number, last in (
        (9, "1 more device lacks the second unit"),
        (10, "2 more devices lack the second unit"),
    ):
        lines = left_out(cells(plan), [device(f"d{n}", OPENVINO) for n in range(number)])
        assert (len(lines), lines[-1]) == (9, last)
