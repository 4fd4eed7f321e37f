"""Statistics, made once and here, from the raw nanoseconds that came with a record. Nothing is dropped, nothing is made up.

What cannot be said of so few samples is None: a deviation of one, a 99th percentile of a hundred.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from protocol.record import Record, unpack_samples

MIN_SAMPLES: Final = {90: 44, 95: 90, 99: 459}
"""Samples from which the percentile has an upper bound with 99 % confidence: the least n with (p/100)^n <= 0.01."""
FEW_RUNS: Final = 6
"""Below it even the whole range of the samples is no 95 % interval of the median: 1 - 2 × 0.5^n."""
EXACT: Final = 200
"""Samples up to which the ranks of the median's interval are counted exactly."""
NOISY: Final = 0.20
"""The middle half of the samples spans more than this share of the median."""
DRIFT: Final = 0.10
"""The medians of the two halves of a run differ by more than this share of the median."""
MIN_DRIFT: Final = 20
"""Samples from which halves are compared."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Of a list of times, in milliseconds."""

    n: int
    first: float | None = None
    median: float | None = None
    average: float | None = None
    stddev: float | None = None
    """With Bessel's correction; None below two samples."""
    low: float | None = None
    high: float | None = None
    p90: float | None = None
    """Percentiles by nearest rank: the smallest sample that at least so many percent do not exceed."""
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """The raw times of a record, unpacked, in nanoseconds and in order."""

    loads: tuple[int, ...]
    warmup: tuple[int, ...]
    runs: tuple[int, ...]


class Verdict(StrEnum):
    """What the numbers of a complete row are worth, as far as one launch on one device can tell."""

    VALID = "valid"
    """Checked against the reference, steady within the launch. How launches differ has not been measured."""
    UNCHECKED = "unchecked"
    """The outputs were not compared with a reference: the time is right, what was computed may not be."""
    FEW_RUNS = "few-runs"
    DRIFT = "drift"
    NOISY = "noisy"
    UNREADABLE = "unreadable"
    """The record's samples are not what the protocol says; no number was made of them."""


def observe(record: Record) -> Observed:
    """The raw times in `record`. Raises `RemoteProtocolError` for samples that are not in the protocol's form."""
    return Observed(
        loads=tuple(load.ns for load in record.loads if load.kind != "warm"),
        warmup=tuple(sample for timing in record.timings for sample in unpack_samples(timing.warmup)),
        runs=tuple(sample for timing in record.timings for sample in unpack_samples(timing.samples)),
    )


def summarise(samples: Sequence[int]) -> Summary:
    """`samples` in nanoseconds, summed exactly as integers and rounded once."""
    n = len(samples)
    if n == 0:
        return Summary(0)
    ordered = sorted(samples)
    total = sum(ordered)
    stddev = None
    if n > 1:
        squares = sum(sample * sample for sample in ordered)
        stddev = math.sqrt((n * squares - total * total) / (n * (n - 1))) / 1e6
    return Summary(
        n=n,
        first=samples[0] / 1e6,
        median=_median(ordered) / 1e6,
        average=total / n / 1e6,
        stddev=stddev,
        low=ordered[0] / 1e6,
        high=ordered[-1] / 1e6,
        p90=_percentile(ordered, 90),
        p95=_percentile(ordered, 95),
        p99=_percentile(ordered, 99),
    )


def median_interval(samples: Sequence[int]) -> tuple[float | None, float | None]:
    """The ends of an interval that holds the median with 95 % confidence, in milliseconds, whatever the samples' distribution.

    From ranks: the k-th smallest and the k-th largest, k the largest with 2 P(Binomial(n, 1/2) < k) <= 0.05. None below six samples.
    """
    n = len(samples)
    if n < FEW_RUNS:
        return None, None
    ordered = sorted(samples)
    rank = _interval_rank(n)
    return ordered[rank - 1] / 1e6, ordered[n - rank] / 1e6


def _interval_rank(n: int) -> int:
    if n > EXACT:  # by the normal approximation, rounded to the outside
        return max(1, math.floor((n - 1.96 * math.sqrt(n)) / 2))
    below, rank, limit = 0, 0, 2**n
    while True:
        below += math.comb(n, rank)
        if 40 * below > limit:  # 2 × below / 2^n > 0.05
            return max(1, rank)
        rank += 1


def judge(runs: Sequence[int], *, agrees: bool | None) -> tuple[Verdict, str]:
    """The verdict on the timed inferences of one launch and why; all reasons are told, the gravest names it."""
    found: list[tuple[Verdict, str]] = []
    if not agrees:
        found.append(
            (
                Verdict.UNCHECKED,
                "outputs not compared with a reference"
                if agrees is None
                else "outputs differ from the reference",
            )
        )
    n = len(runs)
    if n < FEW_RUNS:
        found.append((Verdict.FEW_RUNS, f"{n} timed inferences, at least {FEW_RUNS} are needed"))
    else:
        ordered = sorted(runs)
        median = _median(ordered)
        if n >= MIN_DRIFT and median > 0:
            before, after = _median(sorted(runs[: n // 2])), _median(sorted(runs[n - n // 2 :]))
            change = (after - before) / median
            if abs(change) > DRIFT:
                found.append((Verdict.DRIFT, f"second half {change:+.0%} against the first"))
        middle = _rank(ordered, 75) - _rank(ordered, 25)
        if median > 0 and middle / median > NOISY:
            found.append((Verdict.NOISY, f"the middle half spans {middle / median:.0%} of the median"))
    if not found:
        return Verdict.VALID, "steady within its one launch"
    return found[0][0], "; ".join(why for _, why in found)


def _median(ordered: Sequence[int]) -> float:
    half = len(ordered) // 2
    return float(ordered[half]) if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _rank(ordered: Sequence[int], percent: int) -> int:
    """Nearest rank, in whole numbers."""
    return ordered[max(-(-percent * len(ordered) // 100), 1) - 1]


def _percentile(ordered: Sequence[int], percent: int) -> float | None:
    if len(ordered) < MIN_SAMPLES[percent]:
        return None
    return _rank(ordered, percent) / 1e6
