"""The closed list of steps: what a campaign may specify."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.formats.steps import POST, PRE, problem


@pytest.mark.parametrize(
    "step",
    [
        {
            "step": "normalise",
            "of": "x",
            "options": {"mean": [0.485, 0.456, 0.406], "std": 0.2, "scale": 0.5},
        },
        {"step": "normalise"},
        {"step": "scale", "options": {"by": 2}},
        {"step": "clip", "options": {"low": 0, "high": 1}},
        {"step": "transpose", "options": {"order": [0, 3, 1, 2]}},
        {"step": "cast", "options": {"from": "uint8"}},
    ],
)
def test_good_steps_have_no_problem(step: dict[str, Any]) -> None:
    assert problem(step, PRE) == ""


@pytest.mark.parametrize(
    "step", [{"step": "softmax"}, {"step": "argmax", "of": "y"}, {"step": "top_k", "options": {"k": 5}}]
)
def test_good_steps_after_the_run_have_no_problem(step: dict[str, Any]) -> None:
    assert problem(step, POST) == ""


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({}, "there is no step 'None' here: there are normalise, scale, clip, transpose, cast"),
        ({"step": "softmax"}, "there is no step 'softmax' here"),
        ({"step": ["scale"]}, "there is no step"),
        ({"step": "scale", "when": 1}, "a step has no 'when'"),
        ({"step": "scale", "of": 3, "options": {"by": 1}}, "'of' must be the name"),
        ({"step": "scale", "options": [1]}, "its options must be a mapping"),
        ({"step": "scale", "options": {"by": 1, "hue": 1}}, "scale has no option 'hue': it takes by, offset"),
        ({"step": "scale"}, "scale needs the option by: a number"),
        ({"step": "scale", "options": {"by": "two"}}, "by is 'two', not a number"),
        ({"step": "scale", "options": {"by": True}}, "by is 'True', not a number"),
        ({"step": "scale", "options": {"by": float("nan")}}, "by is nan; it must be between"),
        ({"step": "scale", "options": {"by": 1e300}}, "it must be between"),
        ({"step": "normalise", "options": {"std": [1, 0]}}, "std is 0; it must be between"),
        ({"step": "normalise", "options": {"mean": []}}, "a list of 0 entries"),
        ({"step": "clip", "options": {"low": 2, "high": 1}}, "low is above high"),
        ({"step": "transpose", "options": {"order": [0, 0]}}, "not a list with each axis once"),
        ({"step": "transpose", "options": {"order": "0123"}}, "not a list with each axis once"),
        ({"step": "cast", "options": {"from": "picture"}}, "not one of uint8"),
        ({"step": "cast", "options": {"from": ["uint8"]}}, "not one of uint8"),
    ],
)
def test_every_problem_is_one_line_that_says_what_is_allowed(step: dict[str, Any], message: str) -> None:
    result = problem(step, PRE)
    assert message in result
    assert "\n" not in result


def test_how_many_is_a_whole_number_above_nothing() -> None:
    assert "k is 0; it must be between 1" in problem({"step": "top_k", "options": {"k": 0}}, POST)
    assert "k is '1.5', not a whole number" in problem({"step": "top_k", "options": {"k": 1.5}}, POST)
