"""When a history changed, and by how much: change points instead of thresholds. Pure.

E-divisive (Matteson and James 2014) on the logs of the values. In each stretch, it takes the split whose two sides have the largest energy
distance. The split is a change if a permutation test with its own seed finds that chance alone would rarely give such a distance; then both
sides are examined in the same way. The method assumes no distribution. A single outlier is not a change: a side has at least `SHORTEST`
values.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from results.row.comparison import MARGIN
from results.row.stats import median

SHORTEST: Final = 4
"""Minimum values on each side of a change."""
PERMUTATIONS: Final = 199
LEVEL: Final = 0.01
"""Maximum probability of finding a change in a stretch that has none."""
MOST: Final = 100
"""Maximum values examined, the latest ones: the time grows with the square of their number."""


@dataclass(frozen=True, slots=True)
class HistoryChange:
    """A change between two neighbouring values of a history."""

    at: int
    """Index of the first value after the change."""
    before: float
    """Median since the previous change, or since the start."""
    after: float
    """Median until the next change, or until the end."""

    @property
    def ratio(self) -> float:
        return self.after / self.before


def changes(values: Sequence[float], *, margin: float = MARGIN) -> tuple[HistoryChange, ...]:
    """The changes in positive `values` in time order; changes smaller than the share `margin` are left out."""
    if len(values) < 2 * SHORTEST:
        return ()
    skipped = max(0, len(values) - MOST)
    logs = [math.log(value) for value in values[skipped:]]
    ends = [0, *sorted(_splits(logs, 0, len(logs))), len(logs)]
    while (small := _smallest(logs, ends)) is not None and abs(small[0]) < math.log1p(margin):
        del ends[small[1]]
    medians = [math.exp(median(logs[low:high])) for low, high in itertools.pairwise(ends)]
    return tuple(
        HistoryChange(skipped + at, before, after)
        for at, before, after in zip(ends[1:-1], medians, medians[1:], strict=False)
    )


def _smallest(logs: Sequence[float], ends: Sequence[int]) -> tuple[float, int] | None:
    """The smallest step between two stretches, and its index in `ends`."""
    middles = [median(logs[low:high]) for low, high in itertools.pairwise(ends)]
    steps = [(middles[k] - middles[k - 1], k) for k in range(1, len(middles))]
    return min(steps, key=lambda step: abs(step[0]), default=None)


def _splits(logs: Sequence[float], low: int, high: int) -> list[int]:
    """The change points of the stretch from `low` to `high`."""
    count = high - low
    if count < 2 * SHORTEST:
        return []
    part = logs[low:high]
    distances = [[abs(one - other) for other in part] for one in part]
    sums = [sum(row) for row in distances]
    order = list(range(count))
    distance, split = _furthest(distances, sums, order)
    rng, above = random.Random(count), 0
    for _ in range(PERMUTATIONS):
        rng.shuffle(order)
        above += _furthest(distances, sums, order)[0] >= distance
        if 1 + above > LEVEL * (PERMUTATIONS + 1):
            return []
    at = low + split
    return [*_splits(logs, low, at), at, *_splits(logs, at, high)]


def _furthest(
    distances: Sequence[Sequence[float]], sums: Sequence[float], order: Sequence[int]
) -> tuple[float, int]:
    """The largest energy distance between the two sides of a split, and the position of that split. `sums`: the sum of each row of
    `distances`.
    """
    count = len(order)
    left = across = 0.0
    right = sum(sums) / 2
    best, where = -1.0, 0
    for n, item in enumerate(order[:-SHORTEST], start=1):
        row = distances[item]
        near = sum(itemgetter(*order[:n])(row)) if n > 1 else 0.0
        far = sums[item] - near
        left, right, across = left + near, right - far, across + far - near
        m = count - n
        if n < SHORTEST:
            continue
        apart = 2 * across / (n * m) - 2 * left / (n * (n - 1)) - 2 * right / (m * (m - 1))
        score = apart * n * m / count
        if score > best:
            best, where = score, n
    return best, where
