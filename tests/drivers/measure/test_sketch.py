"""Sketches of outputs: close where the outputs are close, far apart where they differ."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from drivers.contract.base import SketchReport
from drivers.measure.sketch import MAX_SKETCHED, make_sketch, report_outputs
from protocol.formats.chain import SUMS


def _sums(sketch: SketchReport) -> np.ndarray:
    return sketch.norm * np.array(struct.unpack(f">{SUMS}f", bytes.fromhex(sketch.sums)))


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    a, b = make_sketch(one, 7, 0), make_sketch(other, 7, 0)
    return float(np.linalg.norm(_sums(a) - _sums(b)) / max(a.norm, b.norm))


def _values(seed: int, size: int = 10_000) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


@pytest.mark.parametrize("share", [1e-5, 1e-3, 0.1])
def test_the_distance_of_two_sketches_is_about_that_of_the_outputs(share: float) -> None:
    values = _values(1)
    near = values + share * _values(2)
    assert 0.4 * share < _distance(values, near) < 2 * share


def test_other_outputs_are_far() -> None:
    assert _distance(_values(1), _values(2)) > 0.8


def test_the_same_outputs_have_the_same_report() -> None:
    outputs = {"y": _values(1), "a": np.arange(7)}
    assert report_outputs(outputs, 3) == report_outputs(dict(reversed(outputs.items())), 3)


def test_another_seed_has_other_signs() -> None:
    assert make_sketch(_values(1), 1, 0).sums != make_sketch(_values(1), 2, 0).sums


def test_what_is_no_number_is_in_the_hash_alone() -> None:
    text = {"t": np.array(["a"], object), "l": [1, 2]}
    report = report_outputs({**text, "y": _values(1)}, 3)
    assert len(report.sketches) == 1
    assert report.output_sha256 != report_outputs({**text, "y": _values(1), "l": [1, 3]}, 3).output_sha256


def test_only_the_first_outputs_have_a_sketch() -> None:
    assert len(report_outputs({f"y{at}": _values(at, 4) for at in range(9)}, 3).sketches) == MAX_SKETCHED


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((0, 3), np.float32),
        np.zeros(5, np.float32),
        np.array([np.nan, np.inf, -np.inf, 1], np.float32),
        np.full(40, 3e38, np.float32),
        np.full(40, 1e300),
        np.array([True, False]),
        np.array([1 + 2j, 3], np.complex64),
        np.arange(5, dtype=np.uint64),
        np.array(3.0, np.float16),
    ],
)
def test_a_sketch_of_odd_outputs_holds_numbers(values: np.ndarray) -> None:
    sketch = make_sketch(values, 1, 0)
    assert sketch.count == values.size
    assert 0 <= sketch.norm <= 1e18
    assert np.isfinite(_sums(sketch)).all()
