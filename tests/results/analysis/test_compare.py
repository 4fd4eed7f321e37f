"""FASTER, SLOWER, SAME, AMBIGUOUS: said only when true, and found when there."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.analysis.compare import (
    MIN_LAUNCHES,
    compare_intervals,
    compare_samples,
    compare_through,
)
from results.row.comparison import Comparison, ComparisonVerdict
from results.row.stats import mann_whitney

TRIALS = 40


def launches(
    chance: random.Random, count: int, place: float, *, between: float = 0.01, within: float = 0.01
) -> list[list[int]]:
    """Launches of 15 samples. `between` and `within`: relative spread between launches, and within one."""
    return [
        [int(here * chance.lognormvariate(0, within)) for _ in range(15)]
        for here in (place * chance.lognormvariate(0, between) for _ in range(count))
    ]


def words(step: float) -> Counter[ComparisonVerdict]:
    counter: Counter[ComparisonVerdict] = Counter()
    for trial in range(TRIALS):
        chance = random.Random(f"{step} False {trial}")
        a, b = launches(chance, 10, 1e6), launches(chance, 10, 1e6 * step)
        counter[compare_samples(a, b, seed=trial).verdict] += 1
    return counter


@pytest.mark.slow
def test_a_model_beside_itself_never_differs() -> None:
    result = words(1.0)
    assert result[ComparisonVerdict.FASTER] + result[ComparisonVerdict.SLOWER] <= TRIALS / 100


def test_a_slowdown_by_a_twentieth_is_found() -> None:
    result = words(1.05)
    assert result[ComparisonVerdict.SLOWER] >= 0.9 * TRIALS
    assert result[ComparisonVerdict.FASTER] == 0


def test_what_hardly_varies_is_the_same() -> None:
    chance = random.Random(4)
    a, b = (launches(chance, 8, 1e6, between=0.001, within=0.002) for _ in range(2))
    result = compare_samples(a, b)
    assert result.verdict is ComparisonVerdict.SAME
    assert result.ratio == pytest.approx(1, abs=0.01)


def test_a_half_is_faster_and_says_by_how_much() -> None:
    chance = random.Random(5)
    result = compare_samples(launches(chance, 6, 2e6), launches(chance, 6, 1e6))
    assert result.verdict is ComparisonVerdict.FASTER
    assert result.launches == (6, 6)
    assert result.low is not None
    assert result.high is not None
    assert result.low < 0.5 * 1.02
    assert result.high > 0.5 * 0.98
    assert result.p_value == pytest.approx(2 / math.comb(12, 6))


def test_the_interval_of_the_ratio_covers_the_truth() -> None:
    held = 0
    for trial in range(TRIALS):
        chance = random.Random(f"cover {trial}")
        a, b = launches(chance, 6, 1e6, between=0.03), launches(chance, 6, 1.2e6, between=0.03)
        result = compare_samples(a, b, seed=trial)
        held += (result.low or 0) <= 1.2 <= (result.high or 0)
    assert held >= 0.9 * TRIALS


def test_the_same_seed_gives_the_same_answer() -> None:
    chance = random.Random(6)
    a, b = launches(chance, 6, 1e6), launches(chance, 6, 1.02e6)
    assert compare_samples(a, b, seed=1) == compare_samples(a, b, seed=1)
    assert compare_samples(a, b, seed=1) != compare_samples(a, b, seed=2)


def test_too_few_launches_are_ambiguous_and_the_needed_number_is_shown() -> None:
    few = [[10**6] * 5] * (MIN_LAUNCHES - 1)
    result = compare_samples(few, [[2 * 10**6] * 5] * (MIN_LAUNCHES - 1))
    assert (result.verdict, result.ratio, result.low) == (ComparisonVerdict.AMBIGUOUS, 2.0, None)
    assert f"both need {MIN_LAUNCHES}" in result.why
    enough = [[10**6] * 5] * MIN_LAUNCHES
    assert compare_samples(enough, [[2 * 10**6] * 5] * MIN_LAUNCHES).verdict is ComparisonVerdict.SLOWER


@pytest.mark.parametrize(
    ("a", "b"),
    [([], []), ([[1]], []), ([[0] * 3] * 9, [[1] * 3] * 9), ([[1] * 3] * 9, [[0] * 3] * 9), ([[]], [[]])],
)
def test_nothing_is_said_of_nothing(a: list[list[int]], b: list[list[int]]) -> None:
    assert compare_samples(a, b).verdict is ComparisonVerdict.AMBIGUOUS
    assert compare_through(a, b, a, b).verdict is ComparisonVerdict.AMBIGUOUS


def test_through_a_reference_the_speed_of_the_devices_goes_out() -> None:
    chance = random.Random(7)
    slow, quick = 3e6, 1e6
    a, reference_a = launches(chance, 10, slow), launches(chance, 10, slow / 2)
    b, reference_b = launches(chance, 10, 1.2 * quick), launches(chance, 10, quick / 2)
    result = compare_through(a, b, reference_a, reference_b)
    assert result.verdict is ComparisonVerdict.SLOWER
    assert result.ratio == pytest.approx(1.2, rel=0.03)
    assert compare_samples(a, b).verdict is ComparisonVerdict.FASTER


def test_medians_with_intervals_alone_are_compared_with_care() -> None:
    assert compare_intervals((0.99, 1.0, 1.01), (1.99, 2.0, 2.01)).verdict is ComparisonVerdict.SLOWER
    result = compare_intervals((0.9, 1.0, 1.1), (1.0, 1.1, 1.2))
    assert result.verdict is ComparisonVerdict.AMBIGUOUS
    assert (result.low, result.high) == (pytest.approx(1 / 1.1), pytest.approx(1.2 / 0.9))
    assert compare_intervals((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)).ratio is None


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 10**9), max_size=5), max_size=9))
def test_any_samples_have_an_answer(side: list[list[int]]) -> None:
    result = compare_samples(side, side[:4])
    assert isinstance(result, Comparison)
    assert result.why


# -- ranks ------------------------------------------------------------------------------------------------------------------------

FEW = st.lists(st.integers(0, 6), min_size=1, max_size=4)


@given(FEW, FEW)
def test_the_ranks_of_two_groups_agree_with_counting_all_arrangements(
    one: list[int], other: list[int]
) -> None:
    everything = [*one, *other]

    def ranked(value: int) -> float:
        return sum(item < value for item in everything) + (sum(item == value for item in everything) + 1) / 2

    ranks = [ranked(value) for value in everything]
    mean = len(one) * (len(everything) + 1) / 2
    observed = abs(sum(ranks[: len(one)]) - mean)
    ways = [abs(sum(chosen) - mean) for chosen in itertools.combinations(ranks, len(one))]
    expected = sum(way >= observed - 1e-9 for way in ways) / len(ways)
    assert mann_whitney(one, other) == pytest.approx(expected)


def test_ranks_known_from_tables() -> None:
    assert mann_whitney([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(2 / 252)
    assert mann_whitney([], [1]) == mann_whitney([1, 1], [1, 1]) == 1.0


def test_many_values_agree_with_few_ones_way_of_counting() -> None:
    chance = random.Random(8)
    one, other = ([chance.gauss(place, 1) for _ in range(21)] for place in (0, 0.6))
    nearly = mann_whitney(one, other)
    exact = mann_whitney(one[:20], other[:20])
    assert 0 < nearly < 1
    assert 0 < exact < 1
