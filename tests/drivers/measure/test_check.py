"""When two outputs count as the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drivers.measure.check import check, compare, digest, tolerance_of, unstable

REFERENCE = np.linspace(-4, 4, 100, dtype=np.float32)


def changed(index: int, to: float) -> np.ndarray[Any, Any]:
    """The reference with one value changed."""
    other = REFERENCE.copy()
    other[index] = to
    return other


def test_the_same_values_agree_without_error() -> None:
    result = check({"y": REFERENCE}, {"y": REFERENCE.copy()})
    assert (result.agrees, result.max_error, result.tolerance, result.note) == (True, 0.0, 1e-3, "")


def test_small_differences_are_reported_and_tolerated() -> None:
    result = compare("y", REFERENCE * np.float32(1.0005), REFERENCE)
    assert result.agrees
    assert result.error == pytest.approx(5e-4, rel=0.01)


def test_small_outputs_of_a_deep_model_may_differ_by_what_rounding_leaves() -> None:
    """Values of a real text detector: outputs of at most 5.8e-5 that differ by 1.8e-7, which is 0.3 %."""
    tiny = np.linspace(0, 5.8e-5, 1000, dtype=np.float32)
    apart = tiny + np.float32(1.8e-7)
    assert compare("y", apart, tiny, depth=300).agrees
    assert not compare("y", np.zeros_like(tiny), tiny, depth=300).agrees
    assert not compare("y", tiny[::-1], tiny, depth=300).agrees


def test_a_small_value_among_large_ones_has_the_tolerance_of_all() -> None:
    values = np.array([1e-6, *[1.0] * 50], np.float32)
    assert compare("y", values + np.float32(5e-4), values).agrees
    assert tolerance_of("float32", 400).absolute == pytest.approx(2 * tolerance_of("float32", 100).absolute)


def test_what_was_compared_and_by_how_much_it_differs_is_said() -> None:
    result = check({"a": REFERENCE, "y": REFERENCE * np.float32(1.0005)}, {"a": REFERENCE, "y": REFERENCE})
    assert result.compared.startswith("y: 100 values of at most 4; the worst is 0.002 off, 0.0039 is")
    wrong = check({"a": REFERENCE, "y": REFERENCE * 2}, {"a": REFERENCE, "y": REFERENCE})
    assert wrong.compared.startswith("output 'y' differs by 1 of its range; y: 100 values")
    assert check({"y": ["a"]}, {"y": ["b"]}).compared == "output 'y' differs from the reference"


def test_half_floats_may_differ_more() -> None:
    half = REFERENCE.astype(np.float16)
    assert compare("y", half * np.float16(1.005), half).tolerance == 1e-2


def test_another_direction_does_not_agree() -> None:
    away = np.where(np.arange(100) % 2, 0.095, -0.095).astype(np.float32)
    flat = np.full(100, 1, np.float32)
    result = compare("y", flat + away, flat)
    assert not result.agrees
    assert "cosine 0.995" in result.note
    assert not compare("y", REFERENCE[::-1], REFERENCE).agrees


@pytest.mark.parametrize(
    ("got", "right"),
    [([0.9], [0.1]), ([0.9, 0.1], [0.1, 0.9]), ([0.105] * 15, [0.1] * 15), (REFERENCE * 2, REFERENCE)],
)
def test_a_direction_alone_is_no_answer(got: Any, right: Any) -> None:
    assert not compare("y", np.array(got, np.float32), np.array(right, np.float32)).agrees


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_nothing_but_values_that_are_no_numbers_fails_also_where_the_reference_has_the_same(
    broken: float,
) -> None:
    nonsense = np.full(4, broken, np.float32)
    result = check({"y": nonsense}, {"y": nonsense})
    assert result.agrees is False
    assert "contains only NaN or infinite" in result.note
    assert not unstable({"y": nonsense}, {"y": nonsense.copy()})


def test_the_same_direction_agrees_and_says_how_far_it_is_off() -> None:
    result = compare("y", changed(50, 0.4), REFERENCE)
    assert result.agrees
    assert "cosine 0.99" in result.note


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_no_number_fails_where_the_reference_has_one(broken: float) -> None:
    result = compare("y", changed(3, broken), REFERENCE)
    assert not result.agrees
    assert "1 NaN or infinite" in result.note


def test_what_is_no_number_in_both_is_said_and_not_held_against_it() -> None:
    result = compare("y", changed(3, float("nan")), changed(3, float("nan")))
    assert result.agrees
    assert "in the reference too" in result.note


def test_a_number_where_the_reference_has_none_fails() -> None:
    assert not compare("y", REFERENCE, changed(3, float("nan"))).agrees


def test_nothing_but_zeros_agrees_with_itself_only() -> None:
    zeros = np.zeros(4, np.float32)
    assert compare("y", zeros, zeros).agrees
    assert not compare("y", zeros + 1, zeros).agrees


def test_another_shape_does_not_agree() -> None:
    assert "shape" in compare("y", REFERENCE[:50], REFERENCE).note


def test_integers_may_differ_in_one_of_a_hundred_places() -> None:
    numbers = np.arange(200)
    one, three = numbers.copy(), numbers.copy()
    one[0] = 9
    three[:3] = 99
    assert compare("y", one, numbers).agrees
    assert not compare("y", three, numbers).agrees


def test_texts_and_maps_have_to_be_equal() -> None:
    assert compare("y", [{1: 0.5}], [{1: 0.5}]).agrees
    assert not compare("y", [{1: 0.5}], [{1: 0.6}]).agrees
    assert compare("y", np.array(["a"], dtype=object), np.array(["a"], dtype=object)).agrees


def test_the_digest_knows_names_types_shapes_and_values() -> None:
    values = {
        digest({"y": REFERENCE}),
        digest({"z": REFERENCE}),
        digest({"y": REFERENCE.reshape(10, 10)}),
        digest({"y": REFERENCE.astype(np.float64)}),
        digest({"y": changed(0, 0)}),
        digest({"y": [{"a": np.float32(1)}]}),
    }
    assert len(values) == 6
    assert digest({"y": REFERENCE, "z": REFERENCE}) == digest({"z": REFERENCE, "y": REFERENCE})


def test_answers_that_change_from_run_to_run_are_unstable() -> None:
    assert unstable({"y": REFERENCE}, {"y": REFERENCE[::-1]})
    assert not unstable({"y": REFERENCE}, {"y": REFERENCE})


def test_both_parts_of_complex_numbers_count() -> None:
    one, other = np.array([1 + 1j, 2], np.complex64), np.array([1 + 9j, 2], np.complex64)
    assert compare("y", one, one).agrees
    assert not compare("y", one, other).agrees


def test_an_infinity_the_other_way_is_another_answer() -> None:
    up, down = np.array([1, np.inf], np.float32), np.array([1, -np.inf], np.float32)
    assert compare("y", up, up).agrees
    assert compare("y", up, down).note == "output 'y' is infinite with the opposite sign to the reference"
