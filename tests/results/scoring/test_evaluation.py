"""Examples and scores from plug-ins are checked: a plug-in's mistake becomes one line that names it."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from protocol.formats.examples import MAX_EXAMPLES
from results.scoring.evaluation import read_examples, score_answers
from results.scoring.plugins import Answer, Example

X = np.zeros((1, 4), np.float32)


@dataclass
class Listed:
    """A task with given examples."""

    made: Callable[[], Iterable[Any]]
    name: str = "listed"
    metrics: tuple[str, ...] = ()

    def examples(self, data: Path | None, options: Mapping[str, Any]) -> Iterable[Example]:
        return self.made()


@dataclass
class Given:
    """A metric with given scores."""

    made: Callable[[], Any]
    name: str = "given"

    def score(self, answers: Sequence[Answer]) -> Mapping[str, float]:
        scores: Mapping[str, float] = self.made()
        return scores


def test_examples_of_every_kind_pass_as_they_are() -> None:
    examples = (Example(X, 3), Example({"a": X, "b": X > 0}, {"label": [1]}), Example("a prompt", "a text"))
    assert read_examples(Listed(lambda: examples), None, {}) == examples


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (list, "there are no examples"),
        (lambda: [X], r"example 1 is ndarray, not an Example\(inputs, reference\)"),
        (lambda: [Example(X), Example("  ")], "example 2 is an empty text"),
        (lambda: [Example({})], "example 1 has no inputs"),
        (
            lambda: [Example({"a": cast(Any, [1])})],
            "input 'a' of example 1 is list, but must be a NumPy array",
        ),
        (lambda: [Example(np.array(["a"]))], "the input of example 1 is <U1"),
        (
            lambda: [Example(X, np.int64(3))],
            r"reference of example 1 is not a JSON value, such as int\(label\)",
        ),
        (lambda: [Example(X, float("nan"))], "reference of example 1 is not a JSON value"),
        (lambda: (Example(X) for _ in range(MAX_EXAMPLES + 1)), "more than 10000 examples"),
        (
            lambda: [Example(np.broadcast_to(X, (2**25, 4))), Example(X)],
            "the inputs of 1 example exceed 256 MiB",
        ),
        (
            lambda: (Example("a", "long" * 2**20) for _ in range(17)),
            "the references of 16 examples exceed 64 MiB",
        ),
        (lambda: {}["labels"], "'listed' failed: KeyError: 'labels'"),
        (lambda: 1, "'listed' failed: TypeError"),
    ],
)
def test_what_is_no_example_costs_one_line(made: Callable[[], Any], why: str) -> None:
    with pytest.raises(ValueError, match=why) as failed:
        read_examples(Listed(made), None, {})
    assert str(failed.value).startswith("task 'listed'")
    assert "\n" not in str(failed.value)


def test_scores_of_several_metrics_are_joined() -> None:
    scores = score_answers([Given(lambda: {"a": np.float32(1)}), Given(lambda: {"b": 2})], [])
    assert scores == {"a": 1.0, "b": 2.0}
    assert all(type(score) is float for score in scores.values())


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: {"Score": 1.0}, "gives a score 'Score': names are small letters"),
        (lambda: {"a": float("nan")}, "gives nan for 'a'"),
        (lambda: {"a": "much"}, "gives 'much' for 'a', which is not a number"),
        (lambda: {"a": None}, "gives None for 'a'"),
        (lambda: 0.5, "gives float, not names with numbers"),
        (lambda: {f"a{n}": 0.0 for n in range(65)}, "gives 65 scores"),
        (lambda: 1 / 0, "failed: ZeroDivisionError"),
        (sys.exit, "failed: SystemExit"),
        (lambda: struct.unpack("f", b""), "failed: error: unpack requires"),
        (lambda: {"first": 1.0}, "gives 'first', which another metric gives too"),
    ],
)
def test_what_is_no_score_costs_one_line(made: Callable[[], Any], why: str) -> None:
    with pytest.raises(ValueError, match=why) as failed:
        score_answers([Given(lambda: {"first": 0.0}, "one"), Given(made)], [])
    assert str(failed.value).startswith("metric 'given'")
    assert "\n" not in str(failed.value)
