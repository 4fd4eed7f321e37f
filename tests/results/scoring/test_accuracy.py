"""Accuracy of answers, computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from results.scoring.accuracy import Accuracy, TopFive, class_scores
from results.scoring.plugins import Answer


def answer(scores: Any, label: Any) -> Answer:
    return Answer({"y": np.array([scores], np.float32)}, label)


def test_an_answer_is_right_if_its_highest_value_is_at_the_label() -> None:
    answers = [answer([0, 1, 0], 1), answer([3, 1, 0], 0), answer([0, 1, 2], 1), answer([0, 1, 2], 0)]
    assert Accuracy().score(answers) == {"accuracy": 0.5}


def test_among_equal_values_the_lower_index_is_the_answer() -> None:
    assert Accuracy().score([answer([1, 1, 0], 0)]) == {"accuracy": 1.0}
    assert Accuracy().score([answer([1, 1, 0], 1)]) == {"accuracy": 0.0}
    assert TopFive().score([answer([1, 1, 1, 1, 1, 1], 4)]) == {"top5": 1.0}
    assert TopFive().score([answer([1, 1, 1, 1, 1, 1], 5)]) == {"top5": 0.0}


def test_five_chances() -> None:
    assert TopFive().score([answer([6, 5, 4, 3, 2, 1], 4), answer([6, 5, 4, 3, 2, 1], 5)]) == {"top5": 0.5}
    with pytest.raises(ValueError, match="top5 needs more than 5 classes, but the output has 3"):
        TopFive().score([answer([1, 2, 3], 0)])


def test_an_answer_of_nan_is_wrong_at_every_label() -> None:
    assert Accuracy().score([answer([np.nan, 1], label) for label in (0, 1)]) == {"accuracy": 0.0}
    assert TopFive().score([answer([np.nan] * 6, 0)]) == {"top5": 0.0}


def test_the_first_output_by_name_with_one_long_axis_counts() -> None:
    names, scores, box = np.zeros(1, np.int64), np.array([[[[0]], [[7]]]], np.int8), np.ones((2, 2))
    found = class_scores({"z": np.zeros((1, 3)), "label": names, "box": box, "scores": scores})
    assert found is not None
    assert found.tolist() == [0, 7]
    assert class_scores({"label": names, "box": box, "none": np.zeros((0, 4))}) is None


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([], "there are no answers"),
        ([Answer("a text", 1)], "the answer to example 1 is text"),
        ([Answer({"box": np.ones((2, 2))}, 1)], r"no output is .* \[1, classes\]: box \[2, 2\]"),
        (
            [answer([1, 2], 0), answer([1, 2], 2)],
            "label of example 2 is 2, but the output has 2 classes, 0 to 1",
        ),
        ([answer([1, 2], None)], "example 1 has no label"),
        ([answer([1, 2], -1)], "example 1 has no label"),
        ([answer([1, 2], True)], "example 1 has no label"),
    ],
)
def test_what_cannot_be_scored_is_said(answers: list[Answer], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Accuracy().score(answers)
