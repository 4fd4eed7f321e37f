"""What several sittings say about one device together: the same measurement repeated at other times. Pure.

Launches of one sitting share its conditions: the clock frequency, the neighbours, the memory layout. So their interval holds only for that
stretch of time. Over several sittings, the log of each median is a draw around the device's own value, with random effects:
`results.analysis.random_effects` gives the variance between sittings and the interval.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from results.analysis.random_effects import log_variance, random_effects
from results.analysis.turns import pooled_turns
from results.row.form import instant
from results.row.make import compared_columns
from results.row.row import Row, RowStatus
from results.row.stats import MIN_LAUNCHES
from results.row.verdicts import VERDICTS_BY_SEVERITY, RowVerdict

MIN_COUNTED: Final = 5
"""Number of sittings from which a device's coverage is reported."""
MAX_COUNTED: Final = 50
"""Maximum sittings of one measurement that are examined, the latest ones: a device changes, and the time grows with the square of their
number."""
MIN_APART_S: Final = 600.0
"""Results of one device that end closer together belong to one sitting, and the latest of them counts."""


@dataclass(frozen=True, slots=True, order=True)
class SittingFigure:
    """The median of one sitting, in ms."""

    median: float
    low: float
    """Ends of its 95 % interval."""
    high: float
    launches: int
    at: float
    """When the sitting ended, in wall-clock seconds."""

    @property
    def log(self) -> float:
        return math.log(self.median)

    @property
    def variance(self) -> float:
        """The variance of its log, derived from its interval."""
        return log_variance(self.low, self.high, self.launches)


@dataclass(frozen=True, slots=True)
class PooledMedian:
    """The median of a device over its sittings, in ms."""

    median: float
    low: float | None
    """Ends of the 95 % interval of the long-run median; None for one sitting."""
    high: float | None
    sittings: int
    span_s: float
    """From the end of the first sitting to the end of the last."""
    between: float | None
    """Share of the medians' variance that lies between sittings, not within them (I²); None for one sitting."""


@dataclass(frozen=True, slots=True)
class IntervalCoverage:
    """How many sittings' intervals hold the pooled median of the other sittings of the same measurement."""

    held: int = 0
    sittings: int = 0
    missed_by: tuple[float, ...] = ()
    """For each interval that misses that median: the log of the factor by which its nearer end falls short."""

    @property
    def share(self) -> float | None:
        """The share of intervals that hold; None below `MIN_COUNTED`."""
        return self.held / self.sittings if self.sittings >= MIN_COUNTED else None

    @property
    def margin(self) -> float | None:
        """The log of the factor by which both ends must move out so that the interval of one more sitting holds with 95 %.

        It is the value at rank ⌈0.95 (n+1)⌉ of what each of the n sittings needed, as in split conformal prediction, so it assumes no
        distribution. None for fewer than 19 sittings, which are too few.
        """
        rank = -(-95 * (self.sittings + 1) // 100)
        if rank > self.sittings:
            return None
        return sorted(self.missed_by)[rank - self.held - 1] if rank > self.held else 0.0

    def __add__(self, other: IntervalCoverage) -> IntervalCoverage:
        return IntervalCoverage(
            self.held + other.held, self.sittings + other.sittings, self.missed_by + other.missed_by
        )


def figure_of(row: Row, at: float) -> SittingFigure | None:
    """The figure of one row; None if it has no interval, or was not really measured."""
    median, low, high = row.inference_ms_median, row.inference_ms_median_low, row.inference_ms_median_high
    if row.status is not RowStatus.COMPLETE or row.simulated or row.verdict == RowVerdict.UNREADABLE:
        return None
    if not median or not low or not high:
        return None
    return SittingFigure(median, low, high, row.launches or MIN_LAUNCHES, at)


def pool(figures: Sequence[SittingFigure]) -> PooledMedian | None:
    """The pooled median of sittings with one fingerprint; None if there are none."""
    if not figures:
        return None
    figures = sorted(figures)  # sums of floats depend on the order
    times = [figure.at for figure in figures]
    span_s, count = max(times) - min(times), len(figures)
    if count == 1:
        return PooledMedian(figures[0].median, None, None, 1, span_s, None)
    found = random_effects([figure.log for figure in figures], [figure.variance for figure in figures])
    middle, low, high = (math.exp(found.centre + sign * found.half) for sign in (0, -1, 1))
    return PooledMedian(middle, low, high, count, span_s, found.between)


class SittingPool:
    """The known figures of sittings; a row counts once, however often it is added."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, str], dict[str, SittingFigure]] = defaultdict(dict)

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            figure = _figure_of_sitting(row)
            if figure is not None:
                self._cells[row.first_sitting, row.fingerprint][row.job_id] = figure

    def pooled(self, rows: Iterable[Row]) -> list[Row]:
        """`rows` with the pooled figures of their sittings; rows without sittings stay unchanged."""
        return [row.model_copy(update=self._columns(row)) for row in rows]

    def _columns(self, row: Row) -> dict[str, object]:
        figures = self._cells.get((row.first_sitting, row.fingerprint), {})
        pooled = pool(tuple(figures.values())) if row.job_id in figures and len(figures) > 1 else None
        return {} if pooled is None else _columns(pooled)


def pool_sittings(rows: Sequence[Row]) -> list[Row]:
    """`rows` of campaigns with the pooled figures of their sittings; rows without sittings stay unchanged."""
    sittings = SittingPool()
    sittings.add(rows)
    return sittings.pooled(rows)


def _figure_of_sitting(row: Row) -> SittingFigure | None:
    return figure_of(row, instant(row.ended_at)) if row.first_sitting and row.ended_at else None


def _columns(pooled: PooledMedian) -> dict[str, object]:
    return {
        "sittings": pooled.sittings,
        "sittings_span_s": pooled.span_s,
        "pooled_ms_median": pooled.median,
        "pooled_ms_median_low": pooled.low,
        "pooled_ms_median_high": pooled.high,
        "between_sittings_percent": None if pooled.between is None else 100 * pooled.between,
    }


def sittings_of(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """The pooled rows, grouped by the measurement that they repeat."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.sittings and row.sitting:
            found[row.first_sitting, row.fingerprint].append(row)
    return found


def pooled_row(row: Row, sittings: Sequence[Row]) -> Row:
    """One row for all `sittings` of `row`: the pooled median and ratio in place of its own, their gravest verdict, and everything else from
    `row`. It is not a sitting itself.
    """
    before, median = row.inference_ms_median, row.pooled_ms_median
    if before is None or median is None:
        return row
    low, high = row.pooled_ms_median_low, row.pooled_ms_median_high
    half = None if low is None or high is None else 50 * (high - low) / median
    per_s = None if row.throughput_per_s is None else row.throughput_per_s * before / median
    update: dict[str, object] = {
        "sitting": None,
        "inference_ms_median": median,
        "inference_ms_median_low": low,
        "inference_ms_median_high": high,
        "half_width_percent": half,
        "horizon_s": row.sittings_span_s,
        "throughput_per_s": per_s,
    }
    if (turned := pooled_turns(sittings)) is not None:
        cpu = dict.fromkeys(("cpu_ratio", "cpu_ratio_low", "cpu_ratio_high"))
        update |= cpu | compared_columns(turned.comparison) | {"launches": turned.comparison.launches[0]}
    doubts = [
        each
        for each in sittings
        if each.verdict in VERDICTS_BY_SEVERITY and each.verdict != RowVerdict.SIMULATED
    ]
    if doubts:
        worst = min(doubts, key=lambda each: VERDICTS_BY_SEVERITY.index(RowVerdict(each.verdict)))
        why = f"sitting {worst.sitting}: {worst.verdict_reason}"
        update |= {"verdict": worst.verdict, "verdict_reason": why}
    return row.model_copy(update=update)


def pooled_rows(rows: Sequence[Row]) -> list[Row]:
    """For comparisons of devices and models: one row replaces the pooled sittings, together with any failed sittings of the same task.
    Complete rows measured differently (another fingerprint, such as a newer runtime) stay.
    """
    cells = sittings_of(rows)
    together = {first for first, _ in cells}
    seen = set[tuple[str, str]]()
    chosen: list[Row] = []
    for row in rows:
        cell = (row.first_sitting, row.fingerprint)
        if row.first_sitting not in together:
            chosen.append(row)
        elif cell in cells and cell not in seen:
            seen.add(cell)
            chosen.append(pooled_row(row, cells[cell]))
        elif cell not in cells and row.status is RowStatus.COMPLETE:
            chosen.append(row)
    return chosen


def coverage(figures: Sequence[SittingFigure]) -> IntervalCoverage:
    """Coverage of the latest sittings with one fingerprint that are far enough apart."""
    return held_intervals(_apart(figures)[-MAX_COUNTED:])


def held_intervals(sittings: Sequence[SittingFigure]) -> IntervalCoverage:
    """Compare each interval with the pooled median of the others. That median has an error itself, so the interval is widened by it: if
    sittings are what they claim, 95 % of intervals hold it, for three sittings as for fifty. Empty for fewer than three.
    """
    if len(sittings) < 3:
        return IntervalCoverage()
    missed_by, wider = list[float](), math.sqrt(len(sittings) / (len(sittings) - 1))
    for index, figure in enumerate(sittings):
        others = pool([*sittings[:index], *sittings[index + 1 :]])
        assert others is not None
        above, below = (wider * math.log(end / figure.median) for end in (figure.high, figure.low))
        off = math.log(others.median / figure.median)
        if not below <= off <= above:
            missed_by.append(max(off - above, below - off))
    return IntervalCoverage(len(sittings) - len(missed_by), len(sittings), tuple(missed_by))


def coverage_of_devices(measured: Iterable[tuple[str, str, SittingFigure]]) -> dict[str, IntervalCoverage]:
    """Coverage of each device over everything it measured more than once. `measured`: device, fingerprint and figure of each row."""
    cells: dict[tuple[str, str], list[SittingFigure]] = defaultdict(list)
    for device, fingerprint, figure in measured:
        cells[device, fingerprint].append(figure)
    held: dict[str, IntervalCoverage] = {}
    for (device, _), figures in cells.items():
        held[device] = held.get(device, IntervalCoverage()) + coverage(figures)
    return {device: each for device, each in held.items() if each.sittings}


def _apart(figures: Iterable[SittingFigure]) -> list[SittingFigure]:
    """In time order; of sittings that end closer together than `MIN_APART_S`, the latest."""
    chosen: list[SittingFigure] = []
    for figure in sorted(figures, key=lambda each: each.at):
        if chosen and figure.at - chosen[-1].at < MIN_APART_S:
            chosen.pop()
        chosen.append(figure)
    return chosen
