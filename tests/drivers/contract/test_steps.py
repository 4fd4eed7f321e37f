"""Pre-run and post-run steps: what they compute, what they refuse, and that only their own time includes them."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from drivers.contract import steps
from drivers.contract.base import Limits, MeasureReport, RunFindings, Unfit, WorkOrder
from drivers.launch.launch import Zygote, measure
from protocol.formats.steps import POST, PRE
from tests.drivers.onnx_models import FLOAT, OnnxModels, node, value


def done(values: Any, step: str, **options: Any) -> Any:
    """Apply one step."""
    return steps.apply(np.asarray(values), [{"step": step, "options": options}])


def test_every_step_of_the_list_has_a_function_that_takes_its_options() -> None:
    for table in (PRE, POST):
        for name, options in table.items():
            takes = set(inspect.signature(steps.FUNCTIONS[name]).parameters) - {"values", "options"}
            assert takes == set(options) - {"from"}


def test_normalise_takes_a_list_for_the_places_of_an_axis() -> None:
    image = np.full((1, 2, 2, 2), 255, np.uint8)
    result = done(image, "normalise", mean=[0.5, 0.25], std=[0.5, 0.25], scale=1 / 255)
    assert result.dtype == np.float32
    assert np.allclose(result[0, 0], 1)
    assert np.allclose(result[0, 1], 3)


def test_scale_and_clip() -> None:
    assert done([1.0, 2.0], "scale", by=2, offset=1).tolist() == [3, 5]
    assert done([-1.0, 0.5, 9.0], "clip", low=0, high=1).tolist() == [0, 0.5, 1]


def test_a_layout_is_made_from_the_other_one() -> None:
    todo = [{"step": "transpose", "options": {"order": [0, 3, 1, 2]}}]
    assert steps.raw_shape((1, 3, 4, 5), todo) == (1, 4, 5, 3)
    assert steps.apply(np.zeros((1, 4, 5, 3)), todo).shape == (1, 3, 4, 5)


def test_softmax_and_sigmoid_survive_large_numbers() -> None:
    result = done([[1000.0, 1000.0], [-1000.0, 1000.0]], "softmax")
    assert result.tolist() == [[0.5, 0.5], [0.0, 1.0]]
    assert done([-1000.0, 0.0, 1000.0], "sigmoid").tolist() == [0, 0.5, 1]


def test_argmax_and_top_k_name_places() -> None:
    assert done([[1.0, 9.0, 3.0]], "argmax").tolist() == [1]
    assert done([[1.0, 9.0, 3.0]], "top_k", k=2).tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ({"step": "blur"}, "there is no step 'blur' here: there are normalise, scale"),
        ({"step": "scale", "options": {"by": 1, "hue": 2}}, "scale has no option 'hue': it takes by, offset"),
        ({"step": "clip", "options": {"low": 0}}, "clip needs the option high"),
        ({"step": "cast", "options": {"from": "picture"}}, "cast: from is 'picture', not one of uint8"),
        ({"step": "scale", "of": "z", "options": {"by": 1}}, "scale: there is no 'z'; the model has x, y"),
        ({"step": "scale", "options": {"by": 1}}, "scale: of is missing; the model has x, y"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_can(step: dict[str, Any], why: str) -> None:
    with pytest.raises(Unfit, match=why):
        steps.check([step], PRE, ["x", "y"])


@pytest.mark.parametrize(
    ("values", "step", "options"),
    [
        (np.zeros((2, 3)), "transpose", {"order": [0, 1, 2]}),
        (np.zeros((2, 3)), "normalise", {"mean": [1, 2]}),
        (np.zeros((2, 3)), "normalise", {"mean": [1, 2], "axis": 5}),
        (np.array(["a"], object), "scale", {"by": 2}),
    ],
)
def test_values_that_a_step_does_not_fit_are_refused(values: Any, step: str, options: dict[str, Any]) -> None:
    with pytest.raises(Unfit):
        steps.apply(values, [{"step": step, "options": options}])


def test_steps_run_with_a_model_and_have_figures_of_their_own(zygote: Zygote, models: OnnxModels) -> None:
    model = models.put(
        "pixels",
        [node("Relu", ["x"], ["y"])],
        [value("x", FLOAT, [1, 3, 4, 4])],
        [value("y", FLOAT, [1, 3, 4, 4])],
    )
    order = WorkOrder(
        model,
        "CPU (ONNX)",
        runs=2,
        loads=1,
        warmup=1,
        threads=1,
        pre=(
            {"step": "cast", "of": "x", "options": {"from": "uint8"}},
            {"step": "transpose", "of": "x", "options": {"order": [0, 3, 1, 2]}},
            {"step": "normalise", "of": "x", "options": {"mean": [0.5, 0.5, 0.5], "scale": 1 / 255}},
        ),
        post=({"step": "softmax", "options": {"axis": 1}}, {"step": "top_k", "options": {"k": 3}}),
    )
    events = list(measure(order, Limits(), zygote))
    (result,) = [event for event in events if isinstance(event, RunFindings)]
    assert set(result.figures) == {"pre_ms", "post_ms"}
    assert all(figure > 0 for figure in result.figures.values())
    assert any(isinstance(event, MeasureReport) for event in events)


def test_without_steps_there_are_no_figures_of_them(zygote: Zygote, models: OnnxModels) -> None:
    order = WorkOrder(models.nano(), "CPU (ONNX)", runs=1, loads=1, warmup=1, threads=1)
    assert not [event for event in measure(order, Limits(), zygote) if isinstance(event, RunFindings)]


def test_an_unknown_step_ends_the_run_with_the_list(zygote: Zygote, models: OnnxModels) -> None:
    order = WorkOrder(models.nano(), "CPU (ONNX)", runs=1, loads=1, post=({"step": "resize"},))
    with pytest.raises(Unfit, match="there are softmax, sigmoid, argmax, top_k"):
        list(measure(order, Limits(), zygote))
