"""Statistics, computed only here, from the raw nanoseconds of a record. Nothing is dropped, nothing is made up.

A measurement is several launches, each with its own samples. Samples of one launch resemble each other more than those of another, so an
interval over all samples pooled would be far too narrow; the median's interval comes from the ranks of the launches' medians.

A statistic that needs more samples than there are is None: a deviation of one, a 99th percentile of a hundred, an interval of five
launches.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from results.row.order import Number, in_order, interval_rank

MIN_SAMPLES: Final = {90: 44, 95: 90, 99: 459}
"""Samples from which the percentile has an upper bound with 99 % confidence: the smallest n with (p/100)^n <= 0.01."""
MIN_LAUNCHES: Final = 6
"""With fewer launches even the whole range is not a 95 % interval of the median: 1 - 2 × 0.5^n."""
MAX_LAUNCHES: Final = 20
"""Maximum launches for a precision: after that, the interval stays as it is."""
MILD: Final = 1.5
SEVERE: Final = 3.0
"""Tukey's fences, in widths of the middle half beyond its ends."""
FAR: Final = 5.0
"""Number of median absolute deviations, scaled to agree with a standard deviation on normal data."""
_SCALE: Final = 1.4826

AUTOCORRELATION_LIMITS: Final = (5, 14, 23, 34, 50, 73, 100, 134, 174, 224, 281, 350, 427, 519, 623)
"""For 6, 7, … 20 values: the limit that the sum of squared steps from rank to rank stays within for at most 0.5 % of all orders."""


@dataclass(frozen=True, slots=True)
class SampleSummary:
    """A summary of a list of times, in milliseconds."""

    n: int
    median: float | None = None
    average: float | None = None
    stddev: float | None = None
    """With Bessel's correction; None below two samples."""
    low: float | None = None
    high: float | None = None
    p90: float | None = None
    """Percentiles by nearest rank: the smallest sample that at least that percentage of samples do not exceed."""
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Centre:
    """Median, interval and spread of a measurement's launches, in milliseconds."""

    launches: int
    """Launches with at least one sample."""
    median: float | None = None
    """Median of the launches' medians."""
    low: float | None = None
    """Ends of an interval that holds the median with 95 % confidence; None below `MIN_LAUNCHES`."""
    high: float | None = None
    spread: float | None = None
    """From the fastest to the slowest launch, as a share of the median; None below two launches."""

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width as a share of the median. None without an interval, or if the median is 0."""
        if self.low is None or self.high is None or not self.median:
            return None
        return (self.high - self.low) / 2 / self.median


@dataclass(frozen=True, slots=True)
class Outliers:
    """Number of samples that lie far from the others of their launch. They are counted, never dropped."""

    mild: int = 0
    """Beyond 1.5 but not beyond 3 widths of the middle half."""
    severe: int = 0
    """Beyond 3 widths."""
    far: int = 0
    """More than 5 median absolute deviations from the median."""


def summarise(samples: Sequence[int]) -> SampleSummary:
    """Summarise `samples` in nanoseconds, summed exactly as integers and rounded once."""
    n = len(samples)
    if n == 0:
        return SampleSummary(0)
    ordered = in_order(samples)
    total = sum(ordered)
    stddev = None
    if n > 1:
        squares = sum(map(operator.mul, ordered, ordered))
        stddev = math.sqrt((n * squares - total * total) / (n * (n - 1))) / 1e6
    return SampleSummary(
        n=n,
        median=median_of_sorted(ordered) / 1e6,
        average=total / n / 1e6,
        stddev=stddev,
        low=ordered[0] / 1e6,
        high=ordered[-1] / 1e6,
        p90=_percentile(ordered, 90),
        p95=_percentile(ordered, 95),
        p99=_percentile(ordered, 99),
    )


def launch_medians(launches: Sequence[Sequence[int]]) -> list[float]:
    """The median of each launch, in launch order and nanoseconds; launches without samples are left out."""
    return [median(samples) for samples in launches if samples]


def centre(launches: Sequence[Sequence[int]]) -> Centre:
    """Median, interval and spread of launches' samples in nanoseconds."""
    return centre_of(launch_medians(launches))


def centre_of(medians: Sequence[float]) -> Centre:
    """Like `centre`, from the launches' medians in nanoseconds."""
    if not medians:
        return Centre(0)
    value = median(medians)
    low, high = median_interval(medians)
    return Centre(
        launches=len(medians),
        median=value / 1e6,
        low=low,
        high=high,
        spread=(max(medians) - min(medians)) / value if len(medians) > 1 and value else None,
    )


def median_interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The ends of an interval that holds the median with 95 % confidence, in milliseconds, whatever the values' distribution.

    `values`: nanoseconds, independent of each other, such as launches' medians. The ends are the k-th smallest and k-th largest, with k
    from `interval_rank`. None below six values.
    """
    n = len(values)
    if n < MIN_LAUNCHES:
        return None, None
    ordered = sorted(values)
    rank = interval_rank(n)
    return ordered[rank - 1] / 1e6, ordered[n - rank] / 1e6


def is_autocorrelated(values: Sequence[float]) -> bool:
    """Whether values in their order are closer to their neighbours than chance explains at 99.5 %: they rise, fall, or come in waves.

    Such values are not independent of each other, and an interval over them is too narrow. The test is von Neumann's on ranks (Bartels).
    """
    n = len(values)
    if n < MIN_LAUNCHES:
        return False
    ordered = sorted(values)
    ranks = [(bisect_left(ordered, value) + bisect_right(ordered, value)) / 2 for value in values]
    steps = sum((later - sooner) ** 2 for sooner, later in pairwise(ranks))
    whole = sum((rank - n / 2) ** 2 for rank in ranks)
    if not whole:
        return False
    if n - MIN_LAUNCHES < len(AUTOCORRELATION_LIMITS):
        return steps <= AUTOCORRELATION_LIMITS[n - MIN_LAUNCHES]
    deviation = math.sqrt(4 * (n - 2) * (5 * n * n - 2 * n - 9) / (5 * n * (n + 1) * (n - 1) ** 2))
    return steps / whole <= 2 - 2.576 * deviation


def outliers(launches: Sequence[Sequence[int]]) -> Outliers:
    """Count outliers in each launch by the launch's own fences, so that a slower launch is not all outliers."""
    mild = severe = far = 0
    for samples in launches:
        if len(samples) < 4:
            continue
        ordered = in_order(samples)
        low, high, half = nearest_rank(ordered, 25), nearest_rank(ordered, 75), median_of_sorted(ordered)
        width = high - low
        deviation = _SCALE * median([abs(sample - half) for sample in ordered])
        beyond = _beyond(ordered, low, high, SEVERE * width)
        severe += beyond
        mild += _beyond(ordered, low, high, MILD * width) - beyond
        far += _beyond(ordered, half, half, FAR * deviation) if deviation > 0 else 0
    return Outliers(mild, severe, far)


def _beyond(ordered: Sequence[int], low: float, high: float, distance: float) -> int:
    """How many of the sorted values are further than `distance` below `low` or above `high`: these are the first and last of the values."""
    below = bisect_left(ordered, True, key=lambda value: low - value <= distance)
    above = bisect_left(ordered, True, key=lambda value: value - high > distance)
    return below + len(ordered) - above


def median(values: Sequence[float]) -> float:
    """The median of at least one value, in any order."""
    return median_of_sorted(in_order(values))


def median_of_sorted(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return float(ordered[half]) if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def nearest_rank(ordered: Sequence[Number], percent: int) -> Number:
    """The smallest of the sorted values that at least `percent` percent of them do not exceed."""
    return ordered[max(-(-percent * len(ordered) // 100), 1) - 1]


def _percentile(ordered: Sequence[int], percent: int) -> float | None:
    if len(ordered) < MIN_SAMPLES[percent]:
        return None
    return nearest_rank(ordered, percent) / 1e6


# -- histograms --------------------------------------------------------------------------------------------------------------------------

LOG_FROM: Final = 8.0
"""If the slowest sample takes more than this many times as long as the fastest, the bars' widths grow by a factor."""
MIN_BARS: Final = 12
MAX_BARS: Final = 60


@dataclass(frozen=True, slots=True)
class HistogramBins:
    """Binned samples. Bar i reaches from edge i up to edge i + 1. `log`: edges grow by a factor, not by a step."""

    log: bool
    edges_ms: tuple[float, ...]
    counts: tuple[int, ...]


def histogram_bins(values: Sequence[int]) -> HistogramBins:
    """Bin `values` in nanoseconds. The bar width follows from the spread of the middle half (Freedman and Diaconis)."""
    if not values:
        return HistogramBins(log=False, edges_ms=(), counts=())
    ordered = in_order(values)
    low, high, n = ordered[0], ordered[-1], len(ordered)
    log = low > 0 and high > LOG_FROM * low
    first, last, quarter, three = (
        math.log(value) if log else float(value)
        for value in (low, high, nearest_rank(ordered, 25), nearest_rank(ordered, 75))
    )
    width = 2 * (three - quarter) / n ** (1 / 3)
    number = 1 if last <= first else MAX_BARS
    if last > first and width > 0:
        number = min(MAX_BARS, max(min(MIN_BARS, n), math.ceil((last - first) / width)))
    edges = [first + (last - first) * step / number for step in range(number + 1)]
    if log:
        edges = [math.exp(edge) for edge in edges]
    edges[0], edges[-1] = low, high
    below = [0, *(bisect_right(ordered, edge) for edge in edges[1:-1]), n]
    counts = [later - sooner for sooner, later in pairwise(below)]
    return HistogramBins(log=log, edges_ms=tuple(edge / 1e6 for edge in edges), counts=tuple(counts))


# -- rank tests --------------------------------------------------------------------------------------------------------------------------

EXACT_RANKS: Final = 40
"""Number of values up to which every arrangement is counted; above it, the normal approximation with its corrections is used."""


def mann_whitney(one: Sequence[float], other: Sequence[float]) -> float:
    """For two groups measured separately: the two-sided probability of ranks at least this far apart if both groups were alike, with ties
    sharing the mean of their ranks. 1.0 if either is empty.
    """
    n, m = len(one), len(other)
    if not n or not m:
        return 1.0
    ranks = _double_ranks([*one, *other])
    total, first = sum(ranks), sum(ranks[:n])
    off = abs(first * (n + m) - n * total)  # the distance from the mean, times n + m, in whole numbers
    if n + m <= EXACT_RANKS:
        sums = _subset_sums(ranks, n)
        extreme = sum(count for value, count in sums.items() if abs(value * (n + m) - n * total) >= off)
        return extreme / math.comb(n + m, n)
    mean = total / (n + m)
    variance = n * m / ((n + m) * (n + m - 1)) * sum((rank - mean) ** 2 for rank in ranks)
    return _two_sided(off / (n + m) - 1, variance)


def _double_ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each value, so that tied ranks are integers too."""
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
    """How many subsets of `size` ranks have each sum."""
    sums: list[dict[int, int]] = [{0: 1}, *({} for _ in range(size))]
    for rank in ranks:
        for chosen in range(size, 0, -1):
            into = sums[chosen]
            for value, count in sums[chosen - 1].items():
                into[value + rank] = into.get(value + rank, 0) + count
    return sums[size]


def _two_sided(distance: float, variance: float) -> float:
    """Two-sided probability of a normal distribution; `distance` already includes the continuity correction (ranks are doubled, so 1 is
    half a step).
    """
    if variance <= 0:
        return 1.0
    return math.erfc(max(distance, 0.0) / math.sqrt(2 * variance))
