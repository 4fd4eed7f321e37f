"""Two tests that ask nothing of how times are distributed, exact for few values. Pure Python: no array library is needed to compare.

`mann_whitney` for two groups measured apart, `signed_rank` for pairs measured side by side. Ties share the mean of their ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

EXACT: Final = 40
"""Values, or pairs, up to which every arrangement is counted; above, the normal approximation with its corrections."""


def mann_whitney(one: Sequence[float], other: Sequence[float]) -> float:
    """Two-sided probability of ranks at least as far apart as these if both groups were alike. 1.0 if either is empty."""
    n, m = len(one), len(other)
    if not n or not m:
        return 1.0
    ranks = _double_ranks([*one, *other])
    total, seen = sum(ranks), sum(ranks[:n])
    off = abs(seen * (n + m) - n * total)  # the distance from the mean, times n + m, in whole numbers
    if n + m <= EXACT:
        ways = _subset_sums(ranks, n)
        extreme = sum(count for value, count in ways.items() if abs(value * (n + m) - n * total) >= off)
        return extreme / math.comb(n + m, n)
    mean = total / (n + m)
    variance = n * m / ((n + m) * (n + m - 1)) * sum((rank - mean) ** 2 for rank in ranks)
    return _two_sided(off / (n + m) - 1, variance)


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided probability of differences at least as one-sided as these if either sign were as likely. Zeros say nothing.

    1.0 if all are zero.
    """
    kept = [value for value in differences if value]
    if not kept:
        return 1.0
    ranks = _double_ranks([abs(value) for value in kept])
    total = sum(ranks)
    seen = sum(rank for rank, value in zip(ranks, kept, strict=True) if value > 0)
    off = abs(2 * seen - total)
    if len(kept) <= EXACT:
        ways = {0: 1}
        for rank in ranks:
            grown = dict(ways)
            for value, count in ways.items():
                grown[value + rank] = grown.get(value + rank, 0) + count
            ways = grown
        extreme = sum(count for value, count in ways.items() if abs(2 * value - total) >= off)
        return float(extreme / 2 ** len(kept))
    return _two_sided(off / 2 - 1, sum(rank * rank for rank in ranks) / 4)


def _double_ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each, so that ties share a whole number."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for place in order[at : end + 1]:
            ranks[place] = at + end + 2
        at = end + 1
    return ranks


def _subset_sums(ranks: Sequence[int], size: int) -> dict[int, int]:
    """How many subsets of so many ranks have which sum."""
    ways: list[dict[int, int]] = [{0: 1}, *({} for _ in range(size))]
    for rank in ranks:
        for chosen in range(size, 0, -1):
            into = ways[chosen]
            for value, count in ways[chosen - 1].items():
                into[value + rank] = into.get(value + rank, 0) + count
    return ways[size]


def _two_sided(distance: float, variance: float) -> float:
    """Of a normal distribution, the distance already less the correction for continuity (ranks are doubled, so 1 is half a step)."""
    if variance <= 0:
        return 1.0
    return math.erfc(max(distance, 0.0) / math.sqrt(2 * variance))
