"""Statistics, checked against independent references, and what is left out for too few samples."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.row.stats import (
    MAX_BARS,
    MIN_LAUNCHES,
    MIN_SAMPLES,
    Centre,
    Outliers,
    SampleSummary,
    centre,
    histogram_bins,
    interval_rank,
    is_autocorrelated,
    median_interval,
    outliers,
    summarise,
)

SAMPLES = st.lists(st.integers(1, 10**11), min_size=1, max_size=60)


@given(SAMPLES)
def test_median_average_and_deviation_agree_with_the_standard_library(samples: list[int]) -> None:
    result = summarise(samples)
    assert result.median == pytest.approx(statistics.median(samples) / 1e6)
    assert result.average == pytest.approx(statistics.mean(samples) / 1e6)
    assert (result.low, result.high, result.n) == (min(samples) / 1e6, max(samples) / 1e6, len(samples))
    if len(samples) > 1:
        assert result.stddev == pytest.approx(statistics.stdev(samples) / 1e6, rel=1e-9)


@given(st.integers(10**9, 10**12), st.lists(st.integers(0, 50), min_size=2, max_size=200))
def test_a_deviation_of_nanoseconds_on_top_of_minutes_is_not_rounded_away(
    base: int, offsets: list[int]
) -> None:
    result = summarise([base + offset for offset in offsets])
    assert result.stddev == pytest.approx(statistics.stdev(offsets) / 1e6, rel=1e-9, abs=1e-15)


@given(st.integers(459, 900), st.integers(1, 10**10), st.integers(0, 2**32))
def test_percentiles_agree_with_numpy_by_nearest_rank(count: int, top: int, seed: int) -> None:
    chance = random.Random(seed)
    samples = [chance.randint(1, top) for _ in range(count)]
    result = summarise(samples)
    for percent, value in [(90, result.p90), (95, result.p95), (99, result.p99)]:
        expected = np.percentile(samples, percent, method="inverted_cdf")
        assert value == pytest.approx(float(expected) / 1e6)


@pytest.mark.parametrize(("percent", "least"), MIN_SAMPLES.items())
def test_a_percentile_is_shown_from_the_count_at_which_it_can_be_bounded(percent: int, least: int) -> None:
    below, at = summarise(range(1, least)), summarise(range(1, least + 1))
    assert getattr(below, f"p{percent}") is None
    assert getattr(at, f"p{percent}") is not None
    assert (percent / 100) ** least <= 0.01 < (percent / 100) ** (least - 1)


def test_nothing_is_said_of_nothing_and_no_deviation_of_one() -> None:
    assert summarise([]) == SampleSummary(0)
    assert summarise([5_000_000]).median == 5.0
    assert summarise([5_000_000]).stddev is None


def test_equal_samples_have_a_deviation_of_zero() -> None:
    assert summarise([7] * 9).stddev == 0.0


@given(SAMPLES)
def test_order_changes_nothing_but_the_first(samples: list[int]) -> None:
    there, back = summarise(samples), summarise(samples[::-1])
    assert (there.median, there.average, there.stddev) == (back.median, back.average, back.stddev)
    assert not math.isnan(there.average or 0)


# -- launches ---------------------------------------------------------------------------------------------------------------------

RANKS = {6: (1, 6), 8: (1, 8), 10: (2, 9), 12: (3, 10), 16: (4, 13), 20: (6, 15)}


@pytest.mark.parametrize(("count", "ends"), RANKS.items())
def test_the_interval_of_the_median_goes_from_rank_to_rank(count: int, ends: tuple[int, int]) -> None:
    low, high = median_interval([1e6 * rank for rank in range(count, 0, -1)])
    assert (low, high) == ends


@given(st.integers(MIN_LAUNCHES, 1000))
def test_the_ranks_hold_the_median_with_95_percent_and_no_narrower_ones_do(count: int) -> None:
    rank = interval_rank(count)

    def held(k: int) -> float:
        return 1 - 2 * sum(math.comb(count, below) for below in range(k)) / 2**count

    assert held(rank) >= 0.95 - 1e-12
    if count <= 200:
        assert held(rank + 1) < 0.95


def test_below_six_launches_there_is_no_interval() -> None:
    assert median_interval([1.0] * (MIN_LAUNCHES - 1)) == (None, None)
    assert 1 - 2 * 0.5**MIN_LAUNCHES >= 0.95 > 1 - 2 * 0.5 ** (MIN_LAUNCHES - 1)
    few = centre([(5_000_000,)] * 5)
    assert (few.launches, few.median, few.low, few.high, few.half_width) == (5, 5.0, None, None, None)


def test_the_centre_is_the_median_of_launches_however_many_samples_each_has() -> None:
    long = [(9_000_000,) * 1000, *[(ms * 1_000_000,) * 3 for ms in (1, 2, 3, 4, 5)]]
    result = centre(long)
    assert (result.median, result.low, result.high) == (3.5, 1.0, 9.0)
    assert result.half_width == pytest.approx(4 / 3.5)
    assert result.spread == pytest.approx(8 / 3.5)


def test_launches_without_samples_count_for_nothing() -> None:
    assert centre([(), ()]) == Centre(0)
    assert centre([(), (1_000_000,)]).launches == 1
    assert centre([(0,)] * 6).half_width is None


def _normal(chance: random.Random) -> float:
    return chance.gauss(1e6, 5e4)


def _skewed(chance: random.Random) -> float:
    return 1e6 * chance.lognormvariate(0, 0.5)


def _bimodal(chance: random.Random) -> float:
    return chance.gauss(1e6 if chance.random() < 0.55 else 1.5e6, 2e4)


MEDIANS = {_normal: 1e6, _skewed: 1e6}


@pytest.mark.parametrize("launches", [6, 8, 10, 12, 16, 20])
@pytest.mark.parametrize("draw", [_normal, _skewed, _bimodal])
def test_the_interval_of_launches_covers_the_truth_where_launches_differ(
    draw: Callable[[random.Random], float], launches: int
) -> None:
    chance = random.Random(f"{draw.__name__} {launches}")
    truth = MEDIANS.get(draw) or sorted(draw(chance) for _ in range(40_001))[20_000]
    held = 0
    for _ in range(400):
        places = [draw(chance) for _ in range(launches)]
        samples = [[int(place * chance.lognormvariate(0, 0.01)) for _ in range(9)] for place in places]
        result = centre(samples)
        assert result.low is not None
        assert result.high is not None
        held += result.low * 1e6 <= truth <= result.high * 1e6
    assert held / 400 >= 0.90


def test_an_interval_over_samples_as_one_heap_would_not_cover_it() -> None:
    chance = random.Random(1)
    held = 0
    for _ in range(200):
        heap = [
            place * chance.lognormvariate(0, 0.01)
            for place in (chance.gauss(1e6, 5e4) for _ in range(6))
            for _ in range(50)
        ]
        low, high = median_interval(heap)
        held += (low or 0) * 1e6 <= 1e6 <= (high or 0) * 1e6
    assert held / 200 < 0.6


# -- outliers ---------------------------------------------------------------------------------------------------------------------


def test_outliers_are_counted_by_fences_and_by_deviations() -> None:
    steady = [96, 97, 98, 99, 100, 100, 101, 102, 103, 104]  # the middle half is 98…102, the deviation 2
    assert outliers([steady]) == Outliers()
    assert outliers([[*steady, 112]]) == Outliers(mild=1, severe=0, far=0)
    assert outliers([[*steady, 200]]) == Outliers(mild=0, severe=1, far=1)


def test_a_slower_launch_is_not_all_outliers() -> None:
    quick, slow = [100, 101, 102, 103] * 5, [200, 201, 202, 203] * 5
    assert outliers([quick, quick, quick, slow]) == Outliers()
    assert outliers([[1, 1000]]) == Outliers()


@given(st.lists(st.lists(st.integers(0, 10**9), max_size=30), max_size=5))
def test_mild_and_severe_outliers_are_apart_and_never_the_half(launches: list[list[int]]) -> None:
    result = outliers(launches)
    assert result.mild + result.severe <= sum(map(len, launches)) / 2


@pytest.mark.parametrize("n", [6, 7, 8])
def test_of_all_orders_of_few_values_at_most_one_in_two_hundred_follow_each_other(n: int) -> None:
    orders = list(itertools.permutations(range(n)))
    assert 0.002 < sum(map(is_autocorrelated, orders)) / len(orders) <= 0.005


@pytest.mark.parametrize("n", [12, 20, 40])
def test_values_in_no_order_seldom_follow_each_other(n: int) -> None:
    source = random.Random(n)
    result = sum(is_autocorrelated([source.gauss(0, 1) for _ in range(n)]) for _ in range(5000))
    assert 0.001 < result / 5000 < 0.01


def test_values_that_rise_or_come_in_waves_follow_each_other() -> None:
    assert is_autocorrelated(range(6))
    assert is_autocorrelated([-each for each in range(30)])
    assert is_autocorrelated([math.sin(each / 5) for each in range(40)])
    assert not is_autocorrelated([3, 3, 3, 3, 3, 3, 3])
    assert not is_autocorrelated(range(5))
    assert not is_autocorrelated([1, 9, 2, 8, 3, 7, 4, 6, 5])


CHANCE = random.Random(7)
MANY = [round(CHANCE.gauss(2e6, 5e4)) for _ in range(100_000)]


@pytest.mark.parametrize(
    "values", [[5], [5] * 9, [0, 0, 10**9], [1, 2, 3], MANY, [*MANY, 2 * 10**9], [1, 2**62]]
)
def test_every_sample_is_in_one_bar(values: list[int]) -> None:
    result = histogram_bins(values)
    assert sum(result.counts) == len(values)
    assert len(result.edges_ms) == len(result.counts) + 1 <= MAX_BARS + 1
    assert list(result.edges_ms) == sorted(result.edges_ms)
    assert result.edges_ms[0] == min(values) / 1e6
    assert result.edges_ms[-1] == max(values) / 1e6


def test_bars_grow_by_a_factor_where_some_samples_lie_far_out() -> None:
    assert not histogram_bins(MANY).log
    assert histogram_bins([*MANY, 2 * 10**9]).log
    assert not histogram_bins([0, 1, 10**9]).log  # 0 has no logarithm
    assert histogram_bins([]).counts == ()
