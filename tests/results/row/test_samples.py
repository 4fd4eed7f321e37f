"""Raw samples for a picture: thinned, and counted into bars."""

from __future__ import annotations

import random

import pytest

from results.row.samples import MAX_BARS, histogram_bins, thin

CHANCE = random.Random(7)
MANY = [round(CHANCE.gauss(2e6, 5e4)) for _ in range(100_000)]


@pytest.mark.parametrize("points", [2, 10, 999, 4000])
def test_thinned_samples_keep_the_extremes_of_each_stretch_and_their_places(points: int) -> None:
    samples = [*MANY]
    samples[77_777], samples[3] = 10**9, 1
    places = thin(samples, points)
    assert len(places) <= points
    assert list(places) == sorted(set(places))
    kept = [samples[place] for place in places]
    assert (min(kept), max(kept)) == (1, 10**9)


def test_what_is_kept_lies_as_densely_as_what_was_timed() -> None:
    kept = sorted(MANY[place] for place in thin(MANY, 4000))
    whole = sorted(MANY)
    for share in (0.25, 0.5, 0.75):
        assert kept[int(share * len(kept))] == pytest.approx(whole[int(share * len(whole))], rel=0.01)


@pytest.mark.parametrize("values", [[], [5], [5, 5, 5], [3, 1, 2]])
def test_few_samples_are_all_kept(values: list[int]) -> None:
    assert thin(values, 10) == tuple(range(len(values)))
    assert thin(values, None) == tuple(range(len(values)))


@pytest.mark.parametrize(
    "values", [[5], [5] * 9, [0, 0, 10**9], [1, 2, 3], MANY, [*MANY, 2 * 10**9], [1, 2**62]]
)
def test_every_sample_is_in_one_bar(values: list[int]) -> None:
    told = histogram_bins(values)
    assert sum(told.counts) == len(values)
    assert len(told.edges_ms) == len(told.counts) + 1 <= MAX_BARS + 1
    assert list(told.edges_ms) == sorted(told.edges_ms)
    assert told.edges_ms[0] == min(values) / 1e6
    assert told.edges_ms[-1] == max(values) / 1e6


def test_bars_grow_by_a_factor_where_some_samples_lie_far_out() -> None:
    assert not histogram_bins(MANY).log
    assert histogram_bins([*MANY, 2 * 10**9]).log
    assert not histogram_bins([0, 1, 10**9]).log  # no logarithm of 0
    assert histogram_bins([]).counts == ()
