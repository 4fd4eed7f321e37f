"""Change points in histories with known changes."""

from __future__ import annotations

import math
import random

import pytest

from results.analysis.changes import changes


def history(seed: int, *stretches: tuple[int, float], noise: float = 0.02) -> list[float]:
    rng = random.Random(seed)
    return [level * math.exp(rng.gauss(0, noise)) for count, level in stretches for _ in range(count)]


def test_a_change_is_told_with_when_and_by_how_much() -> None:
    (change,) = changes(history(1, (20, 10.0), (15, 10.8)))
    assert abs(change.at - 20) <= 1
    assert change.ratio == pytest.approx(1.08, abs=0.02)
    assert change.before == pytest.approx(10.0, rel=0.02)


def test_two_changes_are_found_each_with_its_own_stretches() -> None:
    first, second = changes(history(2, (20, 10.0), (20, 12.0), (20, 9.0)))
    assert (abs(first.at - 20) <= 1, abs(second.at - 40) <= 1) == (True, True)
    assert (first.after, second.after) == pytest.approx((12, 9), rel=0.02)


def test_histories_without_a_change_seldom_have_one() -> None:
    assert sum(bool(changes(history(seed, (40, 10.0)), margin=0.0)) for seed in range(100)) <= 4


def test_a_change_below_the_margin_is_none() -> None:
    values = history(3, (30, 10.0), (30, 10.05), noise=0.0005)
    assert changes(values) == ()
    assert len(changes(values, margin=0.002)) == 1


def test_one_odd_value_and_a_short_history_are_no_change() -> None:
    odd = history(4, (15, 10.0), (1, 30.0), (15, 10.0))
    assert changes(odd) == ()
    assert changes([10.0] * 3 + [20.0] * 4) == ()
    assert changes([]) == ()
    assert changes([10.0] * 20) == ()


def test_of_a_long_history_the_latest_values_are_looked_at_and_places_are_of_all() -> None:
    (change,) = changes(history(5, (150, 10.0), (30, 11.0)))
    assert abs(change.at - 150) <= 1
