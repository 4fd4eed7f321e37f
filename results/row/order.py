"""Intervals over few values: by ranks, which assume no distribution, and by Student's t. Pure, exact where that is cheap, without scipy.

The values are independent of each other, such as one figure per launch. `alpha`: how often an interval may miss the true value.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations_with_replacement
from statistics import NormalDist, fmean, stdev
from typing import Final, TypeVar

EXACT: Final = 200
"""Number of values up to which the ranks of the median's interval are counted exactly."""
EXACT_SIGNED: Final = 60
"""Number of values up to which the distribution of signed ranks is counted exactly."""
ALPHA: Final = 0.05
AT_ONCE: Final = 1 << 15
"""Maximum values sorted in one call: it takes a hundredth of a second, during which no other thread of the process runs."""
PARTS: Final = 256

Interval = tuple[float, float]
Number = TypeVar("Number", int, float)


def in_order(values: Sequence[Number]) -> list[Number]:
    """Like `sorted`, but sorts very many values in parts, so that other threads, such as the one that answers messages, need not wait."""
    if len(values) <= AT_ONCE:
        return sorted(values)
    bounds = sorted(values[:: len(values) // PARTS])
    parts: list[list[Number]] = [[] for _ in range(len(bounds) + 1)]
    for value in values:
        parts[bisect_right(bounds, value)].append(value)
    ordered: list[Number] = []
    for part in parts:
        part.sort()
        ordered += part
    return ordered


def interval_rank(n: int, alpha: float = ALPHA) -> int:
    """The largest k with 2 P(Binomial(n, 1/2) < k) <= `alpha`, at least 1: the ends of the median's interval are the k-th values from
    either side.
    """
    if n > EXACT:  # by the normal approximation, rounded outwards
        return max(1, math.floor((n - _normal(alpha) * math.sqrt(n)) / 2))
    below, rank = 0, 0
    while True:
        below += math.comb(n, rank)
        if 2 * below / 2**n > alpha:
            return max(1, rank)
        rank += 1


def hodges_lehmann(values: Sequence[float]) -> float:
    """The median of the means of all pairs, including each value with itself: as robust as a median, nearly as precise as a mean. Needs at
    least one value; time and memory grow with the square of their number.
    """
    means = _walsh(values)
    half = len(means) // 2
    return means[half] if len(means) % 2 else (means[half - 1] + means[half]) / 2


def signed_rank_interval(values: Sequence[float], alpha: float) -> Interval | None:
    """Ends of an interval about `hodges_lehmann` that holds the centre of any symmetric distribution: the shifts that the signed-rank test
    does not reject (Tukey). None if there are too few values for such an interval.
    """
    rank = signed_rank_order(len(values), alpha)
    if rank == 0:
        return None
    means = _walsh(values)
    return means[rank - 1], means[-rank]


@lru_cache(maxsize=64)
def signed_rank_order(n: int, alpha: float) -> int:
    """The largest k with 2 P(T < k) <= `alpha`, where T is the sum of the ranks of the positive values: the interval's ends are the k-th
    pair mean from either side. 0 if there is no such k.
    """
    if n > EXACT_SIGNED:
        middle, variance = n * (n + 1) / 4, n * (n + 1) * (2 * n + 1) / 24
        return max(0, math.floor(middle - _normal(alpha) * math.sqrt(variance)))
    ways = [1] + [0] * (n * (n + 1) // 2)
    for rank in range(1, n + 1):
        for total in range(rank * (rank + 1) // 2, rank - 1, -1):
            ways[total] += ways[total - rank]
    below, order = ways[0], 0
    while 2 * below / 2**n <= alpha:
        order += 1
        below += ways[order]
    return order


def t_interval(values: Sequence[float], alpha: float) -> Interval:
    """Ends of Student's interval about the mean of at least two values."""
    n = len(values)
    middle, half = fmean(values), t_quantile(1 - alpha / 2, n - 1) * stdev(values) / math.sqrt(n)
    return middle - half, middle + half


@lru_cache(maxsize=64)
def t_quantile(p: float, freedom: int) -> float:
    """The value that Student's t with `freedom` degrees of freedom stays below with probability `p`, 0 < p < 1; to ten digits."""
    if p < 0.5:
        return -t_quantile(1 - p, freedom)
    high = 1.0
    while t_probability(high, freedom) < p:
        high *= 2
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_probability(middle, freedom) < p else (low, middle)
    return (low + high) / 2


def t_probability(t: float, freedom: int) -> float:
    """The probability that Student's t with an integer number of degrees of freedom is below `t` (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    series = term if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom, 2):
        term *= cosine * cosine * (k - 1) / k
        series += term
    return 0.5 + ((angle + sine * series) / math.pi if odd else sine * series / 2)


def _walsh(values: Sequence[float]) -> list[float]:
    """The means of all pairs, sorted."""
    return sorted((one + other) / 2 for one, other in combinations_with_replacement(values, 2))


def _normal(alpha: float) -> float:
    return NormalDist().inv_cdf(1 - alpha / 2)
