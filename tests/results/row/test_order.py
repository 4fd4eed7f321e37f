"""Rank intervals over few values, checked against tables, by counting, and against each other."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.row.order import (
    AT_ONCE,
    EXACT_SIGNED,
    hodges_lehmann,
    in_order,
    interval_rank,
    signed_rank_interval,
    signed_rank_order,
    t_interval,
    t_probability,
    t_quantile,
)

VALUES = st.lists(st.integers(-1000, 1000), min_size=1, max_size=9)


@pytest.mark.parametrize(
    ("p", "freedom", "expected"),
    [
        (0.975, 1, 12.7062047364),
        (0.975, 2, 4.3026527297),
        (0.975, 5, 2.5705818356),
        (0.995, 5, 4.0321429836),
        (0.9985, 9, 4.0243),
        (0.975, 19, 2.0930240544),
        (0.995, 39, 2.7079131835),
        (0.9, 30, 1.3104150254),
    ],
)
def test_quantiles_of_student_s_t_are_those_of_the_tables(p: float, freedom: int, expected: float) -> None:
    digits = 1e-4 if expected == round(expected, 4) else 1e-9
    assert t_quantile(p, freedom) == pytest.approx(expected, rel=digits)
    assert t_quantile(1 - p, freedom) == -t_quantile(p, freedom)


@given(st.floats(0.001, 0.999), st.integers(1, 80))
def test_a_quantile_has_its_probability(p: float, freedom: int) -> None:
    assert t_probability(t_quantile(p, freedom), freedom) == pytest.approx(p, abs=1e-9)


def test_many_degrees_of_freedom_are_a_normal_distribution() -> None:
    assert t_quantile(0.99, 5000) == pytest.approx(statistics.NormalDist().inv_cdf(0.99), rel=1e-3)


def test_an_interval_of_student_s_is_the_one_of_the_textbook() -> None:
    low, high = t_interval([1.0, 2.0, 3.0, 4.0, 5.0], 0.05)
    assert (low, high) == (pytest.approx(1.036757), pytest.approx(4.963243))


@given(VALUES)
def test_hodges_and_lehmann_take_the_median_of_all_pairs(values: list[int]) -> None:
    pairs = [(values[i] + values[j]) / 2 for i in range(len(values)) for j in range(i, len(values))]
    assert hodges_lehmann(values) == statistics.median(pairs)


@pytest.mark.parametrize("n", range(1, 13))
@pytest.mark.parametrize("alpha", [0.2, 0.05, 0.01, 0.001])
def test_the_order_of_signed_ranks_agrees_with_counting_all_signs(n: int, alpha: float) -> None:
    sums = sorted(sum(signs) for signs in itertools.product(*((0, rank) for rank in range(1, n + 1))))
    order = signed_rank_order(n, alpha)

    def misses(k: int) -> float:
        return 2 * sum(value < k for value in sums) / len(sums)

    assert misses(order) <= alpha < misses(order + 1)


def test_many_signed_ranks_are_nearly_those_that_are_counted() -> None:
    exact, nearly = signed_rank_order(EXACT_SIGNED, 0.01), signed_rank_order(EXACT_SIGNED + 1, 0.01)
    assert 0 < nearly - exact < EXACT_SIGNED


def test_few_values_have_no_interval_of_signed_ranks() -> None:
    assert signed_rank_interval([1.0] * 5, 0.05) is None
    assert signed_rank_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.05) == (1.0, 6.0)


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_an_interval_of_signed_ranks_holds_the_centre_whatever_the_distribution(alpha: float) -> None:
    chance = random.Random(1)
    held = 0
    for _ in range(400):
        values = [chance.gauss(0, 1) * (20 if chance.random() < 0.2 else 1) for _ in range(12)]
        low, high = signed_rank_interval(values, alpha) or (0.0, 0.0)
        held += low <= 0 <= high
    assert held / 400 >= 1 - alpha - 0.02


def test_a_smaller_error_is_a_wider_interval() -> None:
    assert [interval_rank(20, alpha) for alpha in (0.05, 0.02, 0.005, 1e-9)] == [6, 5, 4, 1]


@pytest.mark.parametrize(
    "draw",
    [
        lambda chance, n: chance.randrange(10**9),
        lambda chance, n: chance.randrange(3),
        lambda chance, n: 7,
        lambda chance, n: n,
        lambda chance, n: -n,
        lambda chance, n: 10**6 if n % 2 == 0 else n,
    ],
)
@pytest.mark.parametrize("count", [0, 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE])
def test_very_many_values_are_sorted_too(draw: Callable[[random.Random, int], int], count: int) -> None:
    chance = random.Random(1)
    values = [draw(chance, n) for n in range(count)]
    assert in_order(values) == sorted(values)
