"""What the history of one cell of an experiment shows: its change points, and the pooled median since the last one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from results.analysis.changes import changes
from results.analysis.regression import RegressionCell, RegressionFinding
from results.analysis.sittings import PooledMedian, SittingFigure, pool
from results.row.form import JsonModel, utc
from results.row.row import RowStatus
from results.row.stats import MIN_LAUNCHES
from results.row.verdicts import RowVerdict
from scheduler.output.schemas import Instant
from swarm.base.units import show_duration, show_ms

_UNUSABLE = (RowVerdict.SIMULATED, RowVerdict.UNREADABLE)


class HistoryShift(JsonModel):
    """A change point: the run from which the median is different."""

    campaign: str
    """The first run after the change."""
    begun: Instant
    before_ms: float
    """Median of the runs since the previous change, in milliseconds."""
    after_ms: float
    """Median of the runs up to the next change, in milliseconds."""
    ratio: float


class PooledFigure(JsonModel):
    """Median over several sittings by random effects, with its 95 % interval."""

    median_ms: float
    low_ms: float | None = None
    high_ms: float | None = None
    sittings: int
    span_s: float
    between: float | None = None
    """Share of the variance that lies between the sittings."""

    @property
    def words(self) -> str:
        """For people."""
        ends = (
            ""
            if self.low_ms is None or self.high_ms is None
            else f" [{show_ms(self.low_ms)}, {show_ms(self.high_ms)}]"
        )
        return (
            f"{show_ms(self.median_ms)}{ends} over {self.sittings} sittings in {show_duration(self.span_s)}"
        )


def pooled_figure(pooled: PooledMedian) -> PooledFigure:
    return PooledFigure(
        median_ms=pooled.median,
        low_ms=pooled.low,
        high_ms=pooled.high,
        sittings=pooled.sittings,
        span_s=pooled.span_s,
        between=pooled.between,
    )


def trend(
    runs: Sequence[tuple[str, float, RegressionCell]],
) -> tuple[tuple[HistoryShift, ...], PooledFigure | None]:
    """The changes, latest first, and the pooled figure of the runs since the last one. `runs`: campaign, beginning and cell, latest
    first.
    """
    measured = [(campaign, begun, cell) for campaign, begun, cell in reversed(runs) if _usable(cell)]
    found = changes([cell.median_ms or 0.0 for _, _, cell in measured])
    shifts = tuple(
        HistoryShift(
            campaign=measured[change.at][0],
            begun=utc(measured[change.at][1]) or "",
            before_ms=change.before,
            after_ms=change.after,
            ratio=change.ratio,
        )
        for change in reversed(found)
    )
    cells = [cell for _, _, cell in measured]
    begins = [at for at in range(1, len(cells)) if _is_another(cells[at - 1], cells[at])]
    since = measured[max([0, *(change.at for change in found), *begins]) :]
    figures = [
        SittingFigure(cell.median_ms, cell.low_ms, cell.high_ms, MIN_LAUNCHES, begun)
        for _, begun, cell in since
        if cell.median_ms and cell.low_ms and cell.high_ms
    ]
    pooled = pool(figures) if len(figures) > 1 else None
    return shifts, None if pooled is None else pooled_figure(pooled)


def _is_another(before: RegressionCell, cell: RegressionCell) -> bool:
    """Whether two consecutive runs are known to have measured different things: other bytes, or another speed."""
    other_bytes = bool(before.sha256 and cell.sha256) and before.sha256 != cell.sha256
    return other_bytes or cell.finding in (RegressionFinding.SLOWER, RegressionFinding.FASTER)


def _usable(cell: RegressionCell) -> bool:
    measured = cell.status == RowStatus.COMPLETE and not cell.simulated and cell.verdict not in _UNUSABLE
    return measured and bool(cell.median_ms) and not cell.cleared
