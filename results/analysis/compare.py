"""Is B faster than A? A ratio with its interval, and one of four verdicts. Pure and seeded: the same samples always give the same answer.

`a` and `b` are launches of samples in nanoseconds: `[[ns, ns, …], [ns, …], …]`. `Comparison.ratio` is B's time divided by A's: below 1 B is
FASTER, above 1 it is SLOWER. Both verdicts have two conditions, so that neither chance alone nor a negligible difference leads to one: the
95 % interval of the ratio lies wholly beyond ± 1 %, and the rank test of the launches' medians has a p-value below 1 %. SAME: the interval
lies within ± 1 %. Otherwise AMBIGUOUS. The interval comes from a hierarchical bootstrap: it resamples launches, and samples within each
launch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from results.row.comparison import MARGIN, Comparison, ComparisonVerdict, ambiguous
from results.row.stats import MIN_LAUNCHES, mann_whitney, median
from swarm.base.text import count

MAX_P_VALUE: Final = 0.01
DRAWS: Final = 1000
REDRAWN: Final = 64
"""Resampled medians computed in advance for each launch; each time a launch is drawn, one of them is used."""

Launches = Sequence[Sequence[int]]


def compare_samples(a: Launches, b: Launches, *, seed: int = 0) -> Comparison:
    """Compare B's launches with A's, each measured separately. For models that took turns in one process, see `results.row.rounds`."""
    left, right = _sorted(a), _sorted(b)
    counts = (len(left), len(right))
    if not left or not right or not all(launch[-1] for launch in left):
        return ambiguous("one side has no times to compare", launches=counts)
    medians_a, medians_b = [median(launch) for launch in left], [median(launch) for launch in right]
    if not median(medians_a) or not median(medians_b):
        return ambiguous("one side took no time that could be measured", launches=counts)
    ratio = median(medians_b) / median(medians_a)
    if min(counts) < MIN_LAUNCHES:
        return _too_few(ratio, counts)
    chance = random.Random(seed)
    one, other = ([_redrawn(launch, chance) for launch in side] for side in (left, right))
    drawn = sorted(_drawn(other, chance) / _drawn(one, chance) for _ in range(DRAWS))
    return _judged(ratio, *_ends(drawn, min(counts)), mann_whitney(medians_a, medians_b), counts)


def compare_through(
    a: Launches, b: Launches, reference_a: Launches, reference_b: Launches, *, seed: int = 0
) -> Comparison:
    """Like `compare_samples`, but across two devices, with each time divided by that of a reference model on the same device: a ratio of
    ratios.
    """
    sides = [_sorted(side) for side in (a, b, reference_a, reference_b)]
    counts = (min(len(sides[0]), len(sides[2])), min(len(sides[1]), len(sides[3])))
    if min(counts) == 0 or not all(median(launch) for side in sides for launch in side):
        return ambiguous("one side has no times to compare", launches=counts)
    medians = [[median(launch) for launch in side] for side in sides]

    def ratio_of(one: float, other: float, by_one: float, by_other: float) -> float:
        return (other / by_other) / (one / by_one)

    ratio = ratio_of(*(median(side) for side in medians))
    if min(counts) < MIN_LAUNCHES:
        return _too_few(ratio, counts)
    chance = random.Random(seed)
    redrawn = [[_redrawn(launch, chance) for launch in side] for side in sides]
    drawn = sorted(ratio_of(*(_drawn(side, chance) for side in redrawn)) for _ in range(DRAWS))
    p_value = mann_whitney(
        [value / median(medians[2]) for value in medians[0]],
        [value / median(medians[3]) for value in medians[1]],
    )
    return _judged(ratio, *_ends(drawn, min(counts)), p_value, counts)


def compare_intervals(a: tuple[float, float, float], b: tuple[float, float, float]) -> Comparison:
    """For known medians and intervals only, each as (low, median, high): the ratio with the widest interval that they allow."""
    if min(*a, *b) <= 0:
        return ambiguous("one side took no time that could be measured")
    ratio, low, high = b[1] / a[1], b[0] / a[2], b[2] / a[0]
    judged = _judged(ratio, low, high, 0.0, (0, 0))
    why = f"{judged.why}; computed from the two intervals alone, raw samples would tell more"
    return replace(judged, why=why, p_value=None)


# -- the parts ---------------------------------------------------------------------------------------------------------------------


def _judged(ratio: float, low: float, high: float, p_value: float, launches: tuple[int, int]) -> Comparison:
    why = f"ratio {ratio:.3f}, 95 % interval {low:.3f} to {high:.3f}"
    verdict = ComparisonVerdict.AMBIGUOUS
    if low >= 1 - MARGIN and high <= 1 + MARGIN:
        verdict = ComparisonVerdict.SAME
    elif not (high < 1 - MARGIN or low > 1 + MARGIN):
        why += f"; the ±{MARGIN:.0%} limit lies within the interval"
    elif p_value >= MAX_P_VALUE:
        why += f"; chance alone would rank the launches like this in {p_value:.1%} of cases"
    else:
        verdict = ComparisonVerdict.FASTER if ratio < 1 else ComparisonVerdict.SLOWER
    return Comparison(verdict, why, ratio, low, high, p_value, launches)


def _too_few(ratio: float, counts: tuple[int, int]) -> Comparison:
    launches = count(min(counts), "launch", "launches")
    return ambiguous(f"one side has {launches}, but both need {MIN_LAUNCHES}", ratio, counts)


def _sorted(launches: Launches) -> list[list[int]]:
    return [sorted(samples) for samples in launches if samples]


def _ends(drawn: Sequence[float], launches: int) -> tuple[float, float]:
    """The middle 95 % of the drawn ratios, widened about their median in logarithm by sqrt(n / (n - 1)): a few launches resampled from
    themselves vary less than launches do.
    """
    wider = math.sqrt(launches / (launches - 1))
    middle = math.log(drawn[len(drawn) // 2])
    ends = (drawn[len(drawn) * 25 // 1000], drawn[-1 - len(drawn) * 25 // 1000])
    low, high = (math.exp(middle + wider * (math.log(end) - middle)) for end in ends)
    return low, high


def _redrawn(ordered: Sequence[int], chance: random.Random) -> list[int]:
    """`REDRAWN` resampled medians: their positions in the sorted samples have a beta distribution, so one draw each is enough."""
    n = len(ordered)
    half = (n + 1) / 2
    return [ordered[min(int(n * chance.betavariate(half, half)), n - 1)] or 1 for _ in range(REDRAWN)]


def _drawn(side: Sequence[Sequence[int]], chance: random.Random) -> float:
    """The median of a resample of the launches, each represented by one of its resampled medians."""
    return median([chance.choice(launch) for launch in chance.choices(side, k=len(side))])
