"""Raw samples for a picture: thinned with their extremes kept, and counted into bars. Pure, and quick for a million of them.

What is thinned is only what is drawn: every number beside a picture is made from all samples, elsewhere.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from protocol.values.record import Record
from results.row.form import JsonModel
from results.row.record import RecordLaunch, RecordView
from results.row.stats import MILD, SEVERE, middle, nearest_rank

LOG_FROM: Final = 8.0
"""Where the slowest sample is so many times the quickest, bars of one width would put nearly all into the first: their widths grow."""
MIN_BARS: Final = 12
MAX_BARS: Final = 60


class Points(JsonModel):
    """Samples in their order, each with its place: where they were thinned, places are missing."""

    at: tuple[int, ...]
    """Places, from 0."""
    ns: tuple[int, ...]


class LaunchSamples(JsonModel):
    """What one launch timed."""

    launch: int
    """From 1."""
    began_s: float
    """From the beginning of the first launch's window."""
    per_sample: int
    """Inferences behind each sample, which is their mean."""
    count: int
    """Timed samples, before any were thinned out."""
    warmups: int
    median_ms: float | None
    low_ms: float | None
    """The lower end of the middle half."""
    high_ms: float | None
    mild_ms: tuple[float, float] | None
    """Samples beyond these ends are outliers; null: too few samples to say."""
    severe_ms: tuple[float, float] | None
    outliers: int
    timed: Points
    warmup: Points


class HistogramBins(JsonModel):
    """All timed samples, counted. Bar i reaches from edge i up to edge i + 1."""

    log: bool
    """Edges grow by a factor, not by a step."""
    edges_ms: tuple[float, ...]
    counts: tuple[int, ...]


class LoadTime(JsonModel):
    """One load of the model."""

    ms: float
    kind: str
    """cold, fresh or warm."""


class Series(JsonModel):
    """Other times by name, such as those to the first token."""

    count: int
    median_ms: float
    points: Points


class Samples(JsonModel):
    """Everything that was timed in the attempt that decided a task."""

    task: str
    count: int
    """Timed samples of all launches."""
    shown: int
    """How many of them are here."""
    bars: HistogramBins
    launches: tuple[LaunchSamples, ...]
    loads: tuple[LoadTime, ...]
    series: dict[str, Series]


def samples_of(task: str, record: Record, observed: RecordView, points: int | None = None) -> Samples:
    """Of a record and the same unpacked. `points`: about so many timed samples in all, and as many of every other sort; None: all."""
    whole = sum(len(launch.samples) for launch in observed.launches)
    warmed = sum(len(launch.warmup) for launch in observed.launches)
    launches = tuple(
        _launch(number, launch, timing.began_s, _part(points, whole), _part(points, warmed))
        for number, (launch, timing) in enumerate(
            zip(observed.launches, record.timings, strict=True), start=1
        )
    )
    return Samples(
        task=task,
        count=whole,
        shown=sum(len(launch.timed.at) for launch in launches),
        bars=histogram_bins(observed.runs),
        launches=launches,
        loads=tuple(LoadTime(ms=load.ns / 1e6, kind=load.kind) for load in record.loads),
        series={
            name: Series(
                count=len(times), median_ms=middle(sorted(times)) / 1e6, points=_points(times, points)
            )
            for name, times in observed.series.items()
            if times
        },
    )


def _part(points: int | None, whole: int) -> float | None:
    """Which share of all samples of a sort is kept; None: all."""
    return None if points is None or whole <= points else points / whole


def _launch(
    number: int, launch: RecordLaunch, began_s: float, timed: float | None, warmed: float | None
) -> LaunchSamples:
    ordered = sorted(launch.samples)
    mild = severe = None
    low = high = None
    if ordered:
        low, high = nearest_rank(ordered, 25), nearest_rank(ordered, 75)
    if len(ordered) >= 4 and low is not None and high is not None:
        mild, severe = ((low - times * (high - low), high + times * (high - low)) for times in (MILD, SEVERE))
    return LaunchSamples(
        launch=number,
        began_s=began_s,
        per_sample=launch.per_sample,
        count=len(ordered),
        warmups=len(launch.warmup),
        median_ms=middle(ordered) / 1e6 if ordered else None,
        low_ms=None if low is None else low / 1e6,
        high_ms=None if high is None else high / 1e6,
        mild_ms=_ms(mild),
        severe_ms=_ms(severe),
        outliers=0 if mild is None else sum(not mild[0] <= sample <= mild[1] for sample in ordered),
        timed=_points(launch.samples, None if timed is None else math.ceil(timed * len(ordered))),
        warmup=_points(launch.warmup, None if warmed is None else math.ceil(warmed * len(launch.warmup))),
    )


def _ms(ends: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if ends is None else (ends[0] / 1e6, ends[1] / 1e6)


def _points(values: Sequence[int], points: int | None) -> Points:
    at = thin(values, points)
    return Points(at=at, ns=tuple(values[place] for place in at))


def thin(values: Sequence[int], points: int | None) -> tuple[int, ...]:
    """The places of about `points` of `values`, in order: most of them at even distances, so that what is drawn lies as densely as what was
    timed; and of each of some stretches the least and the greatest, so that no extreme is lost.
    """
    n = len(values)
    if points is None or n <= max(points, 2):
        return tuple(range(n))
    stretches = max(1, points // 10)
    even = max(0, points - 2 * stretches)
    kept = {number * n // even for number in range(even)}
    for number in range(stretches):
        places = range(number * n // stretches, (number + 1) * n // stretches)
        kept |= {min(places, key=values.__getitem__), max(places, key=values.__getitem__)}
    return tuple(sorted(kept))


def histogram_bins(values: Sequence[int]) -> HistogramBins:
    """`values` in nanoseconds, counted. The width follows from how the middle half lies (Freedman and Diaconis)."""
    if not values:
        return HistogramBins(log=False, edges_ms=(), counts=())
    ordered = sorted(values)
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
