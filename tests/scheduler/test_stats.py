"""Statistics against independent references, and what is not said of too few samples."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.stats import FEW_RUNS, MIN_SAMPLES, Summary, Verdict, judge, summarise

SAMPLES = st.lists(st.integers(1, 10**11), min_size=1, max_size=60)


@given(SAMPLES)
def test_median_average_and_deviation_agree_with_the_standard_library(samples: list[int]) -> None:
    found = summarise(samples)
    assert found.median == pytest.approx(statistics.median(samples) / 1e6)
    assert found.average == pytest.approx(statistics.mean(samples) / 1e6)
    assert (found.low, found.high, found.first, found.n) == (
        min(samples) / 1e6,
        max(samples) / 1e6,
        samples[0] / 1e6,
        len(samples),
    )
    if len(samples) > 1:
        assert found.stddev == pytest.approx(statistics.stdev(samples) / 1e6, rel=1e-9)


@given(st.integers(10**9, 10**12), st.lists(st.integers(0, 50), min_size=2, max_size=200))
def test_a_deviation_of_nanoseconds_on_top_of_minutes_is_not_rounded_away(
    base: int, offsets: list[int]
) -> None:
    found = summarise([base + offset for offset in offsets])
    assert found.stddev == pytest.approx(statistics.stdev(offsets) / 1e6, rel=1e-9, abs=1e-15)


@given(st.integers(459, 900), st.integers(1, 10**10), st.integers(0, 2**32))
def test_percentiles_agree_with_numpy_by_nearest_rank(count: int, top: int, seed: int) -> None:
    chance = random.Random(seed)
    samples = [chance.randint(1, top) for _ in range(count)]
    found = summarise(samples)
    for percent, value in [(90, found.p90), (95, found.p95), (99, found.p99)]:
        expected = np.percentile(samples, percent, method="inverted_cdf")
        assert value == pytest.approx(float(expected) / 1e6)


@pytest.mark.parametrize(("percent", "least"), MIN_SAMPLES.items())
def test_a_percentile_is_told_from_the_count_at_which_it_can_be_bounded(percent: int, least: int) -> None:
    below, at = summarise(range(1, least)), summarise(range(1, least + 1))
    assert getattr(below, f"p{percent}") is None
    assert getattr(at, f"p{percent}") is not None
    assert (percent / 100) ** least <= 0.01 < (percent / 100) ** (least - 1)


def test_nothing_is_said_of_nothing_and_no_deviation_of_one() -> None:
    assert summarise([]) == Summary(0)
    assert summarise([5_000_000]).median == 5.0
    assert summarise([5_000_000]).stddev is None


def test_equal_samples_have_a_deviation_of_zero() -> None:
    assert summarise([7] * 9).stddev == 0.0


def test_a_steady_checked_run_is_valid() -> None:
    assert judge([1000 + n % 7 for n in range(100)], agrees=True)[0] is Verdict.VALID


def test_what_was_not_compared_is_unchecked_whatever_else_is_wrong() -> None:
    verdict, why = judge([1, 1000], agrees=None)
    assert verdict is Verdict.UNCHECKED
    assert "not compared" in why
    assert "2 timed inferences" in why


def test_outputs_that_differ_are_never_called_valid() -> None:
    verdict, why = judge([1000] * 100, agrees=False)
    assert verdict is Verdict.UNCHECKED
    assert "differ" in why


def test_few_runs_are_called_few() -> None:
    assert judge([1000] * (FEW_RUNS - 1), agrees=True)[0] is Verdict.FEW_RUNS
    assert judge([1000] * FEW_RUNS, agrees=True)[0] is Verdict.VALID
    assert 1 - 2 * 0.5**FEW_RUNS >= 0.95 > 1 - 2 * 0.5 ** (FEW_RUNS - 1)


def test_a_run_that_grows_slower_drifts() -> None:
    verdict, why = judge([1000] * 50 + [1200] * 50, agrees=True)
    assert verdict is Verdict.DRIFT
    assert "+18%" in why


def test_a_run_whose_middle_half_is_wide_is_noisy() -> None:
    verdict, why = judge([1000, 1500] * 50, agrees=True)
    assert verdict is Verdict.NOISY
    assert "40%" in why


@given(st.lists(st.integers(0, 10**9), max_size=60), st.sampled_from([None, True, False]))
def test_any_samples_have_a_verdict_with_a_reason(samples: list[int], agrees: bool | None) -> None:
    verdict, why = judge(samples, agrees=agrees)
    assert verdict in Verdict
    assert why


@given(SAMPLES)
def test_order_changes_nothing_but_the_first(samples: list[int]) -> None:
    there, back = summarise(samples), summarise(samples[::-1])
    assert (there.median, there.average, there.stddev) == (back.median, back.average, back.stddev)
    assert not math.isnan(there.average or 0)
