"""Drift of outputs, computed by hand, and the task that brings inputs for it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from results.scoring.drift import Drift, drift_between
from results.scoring.evaluation import read_examples, score_answers
from results.scoring.plugins import Answer, find_metric, find_task
from results.scoring.tensors import tensors_from_json, tensors_to_json


def out(*values: float, name: str = "y", dtype: str = "float32") -> dict[str, Any]:
    return {name: np.array([values], dtype)}


def far(one: dict[str, Any], other: dict[str, Any]) -> float:
    return drift_between([one], [other])["drift"]


def test_the_distance_is_a_share_of_the_references_length() -> None:
    assert far(out(3, 4), out(3, 4)) == 0.0
    assert far(out(3, 5), out(3, 4)) == pytest.approx(1 / 5)
    assert far(out(0, 0), out(3, 4)) == pytest.approx(1.0)
    assert far(out(-3, -4), out(3, 4)) == pytest.approx(2.0)
    assert far(out(3, 4), out(3, 5)) == pytest.approx(1 / math.sqrt(34))
    assert far(out(0, 0), out(0, 0)) == 0.0
    assert far(out(1, 1), out(0, 0)) == 1.0
    assert far(out(1e308, 0, dtype="float64"), out(1e308, 1e308, dtype="float64")) == pytest.approx(0.5**0.5)
    assert far(out(3, 4, dtype="float16"), out(3, 4)) == 0.0


def test_median_and_largest_over_all_examples() -> None:
    reference = [out(3, 4)] * 4
    outputs = [out(3, 4), out(3, 5), out(3, 6), out(3, 9)]
    assert drift_between(outputs, reference) == pytest.approx({"drift": 0.3, "drift_max": 1.0})


def test_of_several_outputs_the_farthest_counts_and_others_are_no_matter() -> None:
    one = {**out(3, 4), **out(0, 0, name="z"), **out(9, 9, name="more")}
    assert far(one, {**out(3, 5), **out(1, 0, name="z")}) == 1.0


def test_a_single_output_may_have_another_name_and_axes_of_one() -> None:
    assert far({"Identity": np.array([[[[3]], [[4]]]], np.float32)}, out(3, 4, name="logits")) == 0.0


def test_whole_numbers_differ_or_do_not() -> None:
    assert far(out(1, 2, 3, 4, dtype="int64"), out(1, 2, 3, 900, dtype="int32")) == 0.25
    assert far(out(1, 0, dtype="bool"), out(1, 1, dtype="bool")) == 0.5


def test_nan_and_infinity_at_the_same_places_are_no_drift() -> None:
    assert far(out(math.nan, math.inf, 4), out(math.nan, math.inf, 4)) == 0.0
    for one, other in (((math.nan, 4), (3, 4)), ((3, 4), (3, math.inf)), ((math.inf, 4), (-math.inf, 4))):
        with pytest.raises(
            ValueError,
            match="example 1: output 'y' and the reference have NaN or infinity at different places, 1 of 2",
        ):
            far(out(*one), out(*other))


def test_what_cannot_be_compared_is_said() -> None:
    with pytest.raises(ValueError, match=r"example 1: output 'y' is \[1, 2\], the reference \[1, 3\]"):
        far(out(1, 2), out(1, 2, 3))
    with pytest.raises(ValueError, match="example 1: there is no output 'z'; the outputs are a, y"):
        far({**out(1), **out(1, name="a")}, {**out(1), **out(1, name="z")})
    with pytest.raises(ValueError, match="1 answers, but 2 references"):
        drift_between([out(1)], [out(1)] * 2)
    with pytest.raises(ValueError, match="drift needs tensors"):
        drift_between(["a"], ["b"])


def test_tensors_are_the_same_after_json() -> None:
    tensors = {
        "f": np.array([[1.5, np.nan]], ">f4"),
        "i": np.array(-7),
        "b": np.array([True]),
        "none": np.zeros((0, 2)),
    }
    read = tensors_from_json(tensors_to_json(tensors))
    for name, tensor in tensors.items():
        assert np.array_equal(read[name], tensor, equal_nan=name == "f")
        assert (read[name].shape, read[name].dtype.name) == (tensor.shape, tensor.dtype.name)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"y": 3},
        {"y": {"dtype": "float32", "shape": [10**12], "base64": "AAAA"}},
        {"y": {"dtype": "float32", "shape": [-1], "base64": ""}},
        {"y": {"dtype": "O", "shape": [1], "base64": "AAAAAAAAAAA="}},
        {"y": {"dtype": "(((", "shape": [0], "base64": ""}},
        {"y": {"dtype": "float32", "shape": [0], "base64": "é"}},
        {"y": {"dtype": "float32", "shape": [1], "base64": "AA AAAA=="}},
    ],
)
def test_what_are_no_tensors_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"not (an )?outputs?: "):
        tensors_from_json(value)


def test_inputs_with_expected_outputs(tmp_path: Path) -> None:
    x, y = np.eye(3, dtype=np.float32), np.array([[3, 4], [6, 8], [0, 5]], np.float32)
    arrays: dict[str, Any] = {"x": x, "expected:y": y}
    np.savez(tmp_path / "d.npz", **arrays)
    examples = read_examples(find_task("outputs"), tmp_path / "d.npz", {})
    assert np.array_equal(np.concatenate([np.asarray(example.inputs) for example in examples]), x)
    answers = [
        Answer({"out": y[at : at + 1] * 1.5}, example.reference) for at, example in enumerate(examples)
    ]
    assert score_answers([find_metric("drift")], answers) == pytest.approx({"drift": 0.5, "drift_max": 0.5})


def test_without_expected_outputs_there_is_no_score_yet(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.eye(3), mask=np.eye(3) > 0)
    examples = read_examples(find_task("outputs"), tmp_path / "d.npz", {})
    assert [example.reference for example in examples] == [None] * 3
    assert Drift().score([Answer(out(1), None)]) == {}
    with pytest.raises(ValueError, match="1 example of 2 have no reference"):
        Drift().score([Answer(out(1), None), Answer(out(1), tensors_to_json(out(1)))])
    with pytest.raises(ValueError, match="there are no answers"):
        Drift().score([])


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"x": np.eye(3), "expected:y": np.eye(2)}, "array 'expected:y' of d.npz has 2 samples for 3 inputs"),
        ({"x": np.eye(3), "expected:y": np.array(1.0)}, "array 'expected:y' of d.npz has 0 samples"),
        ({"x": np.eye(3), "expected:": np.eye(3)}, "array 'expected:' of d.npz"),
        ({"expected:y": np.eye(3)}, "d.npz has no array for the model's input"),
    ],
)
def test_data_that_does_not_fit(tmp_path: Path, arrays: dict[str, Any], why: str) -> None:
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(ValueError, match=why):
        read_examples(find_task("outputs"), tmp_path / "d.npz", {})
