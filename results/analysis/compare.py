"""Is B faster than A? A ratio with its interval, and one of four words. Pure and seeded: the same samples give the same answer anywhere.

    compare_samples(a, b, paired=False, seed=0) -> Comparison

`a` and `b` are launches of samples in nanoseconds: `[[ns, ns, …], [ns, …], …]`. `paired=True`: `a[i]` and `b[i]` were taken side by side
(interleaved in one round), so that what the host did to one it did to the other, and their ratio is taken round by round.

`Comparison.ratio` is B's time by A's: below 1 B is FASTER, above 1 it is SLOWER. Both words need two things, so that neither luck alone nor
a difference too small to matter makes them: the 95 % interval of the ratio lies wholly beyond ± 1 %, and the ranks of the launches'
medians are that far apart by chance in less than 1 % of cases. SAME: the interval lies within ± 1 %. Else AMBIGUOUS, with what is lacking.
The interval is a hierarchical bootstrap: launches are drawn anew, and in each its samples.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from results.row.ranks import mann_whitney, signed_rank
from results.row.stats import median
from swarm.base.text import count

MARGIN: Final = 0.01
"""Times that are closer than this share are the same to whoever reads them."""
LUCK: Final = 0.01
"""A difference that chance alone makes more often is not told as one."""
DRAWS: Final = 1000
REDRAWN: Final = 64
"""Medians of samples drawn anew that each launch is given beforehand; the launches' draws then take one of them."""
MIN_LAUNCHES: Final = 6
"""Of either side, below which nothing is said of two groups: with five each the ranks can never say it surely enough."""
MIN_PAIRS: Final = 8
"""The least pairs of which all on one side are surely enough no chance: 2 × 0.5^8."""

Launches = Sequence[Sequence[int]]


class ComparisonVerdict(StrEnum):
    """What B is, beside A."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    AMBIGUOUS = "AMBIGUOUS"


@dataclass(frozen=True, slots=True)
class Comparison:
    """B beside A."""

    word: ComparisonVerdict
    why: str
    ratio: float | None = None
    """B's time by A's; None where one of them has no samples or takes no time."""
    low: float | None = None
    """Ends of its 95 % interval; None where too few launches are there."""
    high: float | None = None
    luck: float | None = None
    """How often chance alone puts the ranks this far apart."""
    launches: tuple[int, int] = (0, 0)
    """That each side has."""
    medians_ms: tuple[float, float] | None = None
    """Of either side's launches, in ms, where no rows tell them."""


def compare_samples(a: Launches, b: Launches, *, paired: bool = False, seed: int = 0) -> Comparison:
    """B's launches beside A's. Raises ValueError where `paired` sides have not as many launches."""
    if paired and len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} launches are no pairs")
    left, right = _sorted(a), _sorted(b)
    counts = (len(left), len(right))
    ratios = _ratios(left, right) if paired else []
    if not left or not right or not all(launch[-1] for launch in left) or (paired and not ratios):
        return Comparison(ComparisonVerdict.AMBIGUOUS, "one side has no times to compare", launches=counts)
    ones, others = [median(launch) for launch in left], [median(launch) for launch in right]
    if not median(ones) or not median(others):
        return Comparison(
            ComparisonVerdict.AMBIGUOUS, "one side took no time that could be measured", launches=counts
        )
    ratio = median(ratios) if paired else median(others) / median(ones)
    needed, what = (MIN_PAIRS, "pairs of launches") if paired else (MIN_LAUNCHES, "launches of either")
    if min(counts) < needed:
        why = f"{min(counts)} {what}, {needed} are needed"
        return Comparison(ComparisonVerdict.AMBIGUOUS, why, ratio, launches=counts)
    chance = random.Random(seed)
    one, other = ([_redrawn(launch, chance) for launch in side] for side in (left, right))
    drawn = sorted(
        _drawn_pairs(one, other, chance) if paired else _drawn(other, chance) / _drawn(one, chance)
        for _ in range(DRAWS)
    )
    luck = signed_rank([math.log(value) for value in ratios]) if paired else mann_whitney(ones, others)
    return _said(ratio, *_ends(drawn, min(counts)), luck, counts)


def compare_through(
    a: Launches, b: Launches, reference_a: Launches, reference_b: Launches, *, seed: int = 0
) -> Comparison:
    """The same across two devices, each time divided by that of a reference model on the same device: a ratio of ratios."""
    sides = [_sorted(side) for side in (a, b, reference_a, reference_b)]
    counts = (min(len(sides[0]), len(sides[2])), min(len(sides[1]), len(sides[3])))
    if min(counts) == 0 or not all(median(launch) for side in sides for launch in side):
        return Comparison(ComparisonVerdict.AMBIGUOUS, "one side has no times to compare", launches=counts)
    middles = [[median(launch) for launch in side] for side in sides]
    one, other, by_one, by_other = (median(side) for side in middles)
    ratio = (other / by_other) / (one / by_one)
    if min(counts) < MIN_LAUNCHES:
        why = f"{count(min(counts), 'launch', 'launches')} of either, {MIN_LAUNCHES} are needed"
        return Comparison(ComparisonVerdict.AMBIGUOUS, why, ratio, launches=counts)
    chance = random.Random(seed)
    drawn = []
    redrawn = [[_redrawn(launch, chance) for launch in side] for side in sides]
    for _ in range(DRAWS):
        one, other, by_one, by_other = (_drawn(side, chance) for side in redrawn)
        drawn.append((other / by_other) / (one / by_one))
    drawn.sort()
    luck = mann_whitney(
        [value / median(middles[2]) for value in middles[0]],
        [value / median(middles[3]) for value in middles[1]],
    )
    return _said(ratio, *_ends(drawn, min(counts)), luck, counts)


def compare_intervals(a: tuple[float, float, float], b: tuple[float, float, float]) -> Comparison:
    """Where only medians and their intervals are there, each as (low, median, high): the widest ratio that they leave room for."""
    if min(*a, *b) <= 0:
        return Comparison(ComparisonVerdict.AMBIGUOUS, "one side took no time that could be measured")
    ratio, low, high = b[1] / a[1], b[0] / a[2], b[2] / a[0]
    word, why = _word(ratio, low, high, 0.0)
    return Comparison(word, f"{why}; from the two intervals alone, raw samples tell more", ratio, low, high)


# -- the parts ---------------------------------------------------------------------------------------------------------------------


def _said(ratio: float, low: float, high: float, luck: float, counts: tuple[int, int]) -> Comparison:
    word, why = _word(ratio, low, high, luck)
    return Comparison(word, why, ratio, low, high, luck, counts)


def _word(ratio: float, low: float, high: float, luck: float) -> tuple[ComparisonVerdict, str]:
    told = f"ratio {ratio:.3f}, 95 % interval {low:.3f} to {high:.3f}"
    if low >= 1 - MARGIN and high <= 1 + MARGIN:
        return ComparisonVerdict.SAME, told
    if high < 1 - MARGIN or low > 1 + MARGIN:
        if luck >= LUCK:
            return (
                ComparisonVerdict.AMBIGUOUS,
                f"{told}; the launches' ranks would be so by chance in {luck:.1%} of cases",
            )
        return (ComparisonVerdict.FASTER if ratio < 1 else ComparisonVerdict.SLOWER), told
    return ComparisonVerdict.AMBIGUOUS, f"{told}, which reaches across ±{MARGIN:.0%}"


def _sorted(launches: Launches) -> list[list[int]]:
    return [sorted(samples) for samples in launches if samples]


def _ratios(left: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> list[float]:
    """Round by round; none if a round has no samples on one side, or took no time."""
    if len(left) != len(right):
        return []
    pairs = [(median(one), median(other)) for one, other in zip(left, right, strict=True)]
    return [other / one for one, other in pairs] if all(one and other for one, other in pairs) else []


def _ends(drawn: Sequence[float], launches: int) -> tuple[float, float]:
    """The middle 95 % of what was drawn, widened about its median in logarithm by sqrt(n / (n - 1)): few launches drawn from
    themselves vary less than launches do.
    """
    wider = math.sqrt(launches / (launches - 1))
    middle = math.log(drawn[len(drawn) // 2])
    ends = (drawn[len(drawn) * 25 // 1000], drawn[-1 - len(drawn) * 25 // 1000])
    low, high = (math.exp(middle + wider * (math.log(end) - middle)) for end in ends)
    return low, high


def _redrawn(ordered: Sequence[int], chance: random.Random) -> list[int]:
    """Medians of as many samples drawn anew: their places among the sorted ones have a beta distribution, so one draw each is enough."""
    n = len(ordered)
    half = (n + 1) / 2
    return [ordered[min(int(n * chance.betavariate(half, half)), n - 1)] or 1 for _ in range(REDRAWN)]


def _drawn(side: Sequence[Sequence[int]], chance: random.Random) -> float:
    """The median of as many launches drawn anew, each by one of its redrawn medians."""
    return median([chance.choice(launch) for launch in chance.choices(side, k=len(side))])


def _drawn_pairs(
    left: Sequence[Sequence[int]], right: Sequence[Sequence[int]], chance: random.Random
) -> float:
    rounds = chance.choices(range(len(left)), k=len(left))
    return median([chance.choice(right[at]) / chance.choice(left[at]) for at in rounds])
