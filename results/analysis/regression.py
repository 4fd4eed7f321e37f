"""Has a result got worse? Compares each cell of a run with the last good result of that cell, by the statistics of `compare`. Pure.

    cell     model, unit, threads, batch, shapes and device: the subject of a history
    good     complete, with the verdict valid, and itself no regression (or accepted as the new normal)

For times, only SLOWER raises the alarm, with its whole interval beyond the threshold and a valid verdict; noise gives AMBIGUOUS. For
memory, the alarm needs median peaks that are higher by 5 % and by 4 MB, and launches' ranks that chance would put that far apart in less
than 1 % of cases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict

from protocol.words import Reason
from results.analysis.compare import MAX_P_VALUE
from results.analysis.pairs import pair_up
from results.export.raw import ResultEntry
from results.row.comparison import MARGIN, ComparisonVerdict
from results.row.identity import device_identity
from results.row.row import Row, RowStatus
from results.row.stats import MIN_LAUNCHES, mann_whitney, median
from results.row.verdicts import RowVerdict

MEMORY: Final = 0.05
MEMORY_BYTES: Final = 4 * 1024**2
BY_MODEL: Final = frozenset(
    str(reason)
    for reason in (
        Reason.BROKEN_MODEL,
        Reason.WRONG_UNIT,
        Reason.CRASHED,
        Reason.OUT_OF_MEMORY,
        Reason.TIMED_OUT,
        Reason.CHECK_FAILED,
        Reason.NO_SHAPE,
    )
)
"""Failure reasons that are the model's fault, not the swarm's."""


class RegressionFinding(StrEnum):
    """The outcome of comparing a cell with the last good one, or a whole run with earlier runs."""

    FIRST = "first"
    """There is no earlier good result."""
    SAME = "same"
    FASTER = "faster"
    UNSURE = "unsure"
    """The samples are not conclusive."""
    DOUBTFUL = "doubtful"
    """Measured, but its verdict is not valid: neither an alarm nor a basis for comparison."""
    SIMULATED = "simulated"
    """A simulation: nothing was measured, so it is neither an alarm nor a basis for comparison."""
    SLOWER = "slower"
    MEMORY = "more-memory"
    FAILED = "failed"
    """The model failed, and its result was good before."""
    ABSENT = "absent"
    """Not complete, through no fault of the model."""

    FINE = "fine"
    """For a run: no cell got worse."""
    REGRESSION = "regression"
    """For a run: a cell got worse."""
    CONFIRMING = "confirming"
    """For a run: a cell seems slower, or the host left it doubtful, and it is measured again before anything is reported."""
    INCOMPLETE = "incomplete"
    """For a run: no cell got worse, but not all were measured."""
    NOT_STARTED = "not-started"
    """For a run that was due: it could not start."""


HOST: Final = frozenset(
    {
        RowVerdict.THROTTLED,
        RowVerdict.BUSY_HOST,
        RowVerdict.DRIFT,
        RowVerdict.BIMODAL,
        RowVerdict.NOISY,
    }
)
"""Verdicts that may differ at another hour: a result that one of them makes doubtful is measured again."""
_UNMEASURED: Final = frozenset({RegressionFinding.ABSENT, RegressionFinding.SIMULATED})
WORSE_FINDINGS: Final = frozenset(
    {RegressionFinding.SLOWER, RegressionFinding.MEMORY, RegressionFinding.FAILED}
)


@dataclass(frozen=True, slots=True)
class KnownGood:
    """The last good result of a cell, and its campaign."""

    campaign: str
    measured: ResultEntry


class CellOutcome(BaseModel):
    """One run's result for one cell, compared with the last good one; times in ms, memory in MB of 1,048,576 bytes."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    status: str
    verdict: str = ""
    median_ms: float | None = None
    low_ms: float | None = None
    """Lower end of the median's 95 % interval."""
    high_ms: float | None = None
    """Upper end of the median's 95 % interval."""
    memory_mb: float | None = None
    finding: RegressionFinding
    against: str | None = None
    """Campaign of the good result that it was compared with."""
    ratio: float | None = None
    """Time of this result divided by the good result's time."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    memory_ratio: float | None = None
    why: str = ""


class RegressionCell(CellOutcome):
    """One cell of one run. Kept with the run, so that a history outlives campaigns."""

    key: str
    """Key of the cell: equal for equal model, unit, threads, batch, shapes and device."""
    model: str
    unit: str
    device: str
    device_id: str = ""
    """Identity of the device (`results.row.identity`)."""
    threads: int | None = None
    batch: int | None = None
    shapes: str = ""
    simulated: bool = False
    job: str = ""
    """Task that measured the cell."""
    sha256: str = ""
    """Hash of the model's bytes."""
    against_sha256: str = ""
    """Hash of the model of the good result that this cell was compared with; empty: unknown."""
    cleared: bool = False
    """Whether the cell seemed slower, but was not when measured again: its own time reflects the host."""

    @property
    def good(self) -> bool:
        """Whether later results may be compared with it."""
        valid = self.verdict == RowVerdict.VALID and self.finding not in WORSE_FINDINGS
        return self._measured and valid and not self.cleared

    @property
    def acceptable(self) -> bool:
        """Whether later results may be compared with it once its run is accepted; not if `cleared` without an alarm."""
        return (
            self._measured
            and self.median_ms is not None
            and (not self.cleared or self.finding in WORSE_FINDINGS)
        )

    @property
    def unsettled(self) -> bool:
        """Whether it must be measured again beside the good result: it seems slower, or the host left it doubtful."""
        doubtful = self.finding is RegressionFinding.DOUBTFUL and bool(self.against_sha256)
        return self.finding is RegressionFinding.SLOWER or (doubtful and self.verdict in HOST)

    @property
    def _measured(self) -> bool:
        return self.status == RowStatus.COMPLETE and not self.simulated


def key_of(row: Row) -> str:
    """The key of the row's cell."""
    lines = (
        row.file_name,
        row.compute_units,
        row.threads,
        row.shapes,
        row.dtypes,
        device_identity(row),
        row.soc,
        row.cores,
        row.arch,
        None if row.ram is None else round(4 * row.ram),
        row.accelerator,
        row.simulated,
        *(() if row.batch is None else (row.batch,)),  # older histories have no batch
    )
    return hashlib.sha256("\n".join(map(str, lines)).encode()).hexdigest()[:24]


def judge(
    results: Sequence[ResultEntry],
    last_good: Callable[[Row, str], KnownGood | None],
    *,
    alarm: float = MARGIN,
) -> tuple[RegressionFinding, tuple[RegressionCell, ...]]:
    """Compare a run with earlier ones. `last_good`: looks up a good result by row and key; for a failed row, by model, unit, batch and
    device. `alarm`: the share by which the whole interval must lie beyond the last good time.
    """
    cells = tuple(_cell(outcome, last_good, alarm) for outcome in results)
    return finding_of(cells), cells


def finding_of(cells: Sequence[RegressionCell]) -> RegressionFinding:
    """The finding for a run with these cells."""
    if any(cell.finding in WORSE_FINDINGS for cell in cells):
        return RegressionFinding.REGRESSION
    if not cells or any(cell.finding in _UNMEASURED for cell in cells):
        return RegressionFinding.INCOMPLETE
    return RegressionFinding.FINE


def confirming(cells: Sequence[RegressionCell]) -> bool:
    """Whether a run with these cells waits until some are measured again. A merely doubtful cell does not delay a certain alarm."""
    if any(cell.finding is RegressionFinding.SLOWER for cell in cells):
        return True
    return any(cell.unsettled for cell in cells) and not any(cell.finding in WORSE_FINDINGS for cell in cells)


def _cell(
    entry: ResultEntry, last_good: Callable[[Row, str], KnownGood | None], alarm: float
) -> RegressionCell:
    row, key = entry.row, key_of(entry.row)
    good = None if row.simulated else last_good(row, key)
    finding, why, more = RegressionFinding.FIRST, "", dict[str, object]()
    if row.simulated:
        finding, why = RegressionFinding.SIMULATED, row.verdict_reason or row.detail
    elif row.status is not RowStatus.COMPLETE:
        why = f"{row.reason}: {row.detail}" if row.reason else row.detail
        finding = RegressionFinding.ABSENT
        if good is not None and row.status is RowStatus.FAILED and row.reason in BY_MODEL:
            finding, more = RegressionFinding.FAILED, {"against": good.campaign}
    elif good is not None and row.verdict == RowVerdict.MISMATCH:
        finding, why, more = RegressionFinding.FAILED, row.verdict_reason, {"against": good.campaign}
    elif good is not None:
        finding, why, more = compared(good, entry, alarm)
    elif row.verdict != RowVerdict.VALID:
        finding, why = RegressionFinding.DOUBTFUL, row.verdict_reason
    return RegressionCell(
        key=key,
        model=row.file_name,
        unit=row.compute_units,
        device=row.device_name,
        device_id=device_identity(row),
        threads=row.threads,
        batch=row.batch,
        shapes=row.shapes,
        status=str(row.status),
        verdict=row.verdict,
        median_ms=row.inference_ms_median,
        low_ms=row.inference_ms_median_low,
        high_ms=row.inference_ms_median_high,
        memory_mb=row.peak_inference_ram_usage,
        simulated=bool(row.simulated),
        job=row.job_id,
        sha256=row.model_sha256,
        finding=finding,
        why=why,
    ).model_copy(update=more)


def confirmed(
    cell: RegressionCell,
    again: ResultEntry | None,
    good: KnownGood | None,
    alarm: float,
    peaks: Sequence[int] = (),
) -> RegressionCell:
    """An unsettled cell, decided by a second measurement. `again`: measured in turns with the last good model, or, if the model is
    unchanged, measured alone once more and compared with `good`. None: it could not be measured. The finding stands in that case, and also
    if the model is not to blame but the runtime or system changed. `peaks`: of the launches of the cell itself, because memory does not
    depend on the host's state.
    """
    if again is None or again.row.status is not RowStatus.COMPLETE:
        row = None if again is None else again.row
        why = "" if row is None else f": {row.detail or row.reason or row.status}"
        return cell.model_copy(update={"why": f"{cell.why}; it could not be measured again{why}"})
    row = again.row
    if cell.sha256 != cell.against_sha256:
        finding = in_turns(row, alarm)
        why = f"in turns with the last good model: {row.compare_reason}"
        ratios: dict[str, object] = {
            "ratio": row.ratio,
            "ratio_low": row.ratio_low,
            "ratio_high": row.ratio_high,
        }
        changed = "" if good is None or finding in WORSE_FINDINGS else _changed(good.measured.row, row)
        if changed:
            why = f"{cell.why}; in turns with the last good model: {finding}, but {changed}"
            return cell.model_copy(update={"why": why})
    elif good is None:
        return cell.model_copy(update={"why": f"{cell.why}; the last good result is no longer stored here"})
    else:
        finding, words, ratios = compared(good, again, alarm)
        why = f"measured once more: {words}"
    cleared = cell.finding is RegressionFinding.SLOWER and finding is not RegressionFinding.SLOWER
    memory = "" if good is None or finding in WORSE_FINDINGS else more_memory(good.measured.peaks, peaks)
    if memory:
        finding, why, ratios = (
            RegressionFinding.MEMORY,
            f"{memory}; {why}",
            ratios | {"memory_ratio": cell.memory_ratio},
        )
    return cell.model_copy(update={**ratios, "finding": finding, "why": why, "cleared": cleared})


def _changed(good: Row, now: Row) -> str:
    """What else may explain the slowdown although the models in turns are alike: a changed runtime or system."""
    facts = {"runtime": (good.runtime, now.runtime), "system": (good.device_os, now.device_os)}
    return " and ".join(
        f"the {name} changed from {one} to {other}"
        for name, (one, other) in facts.items()
        if one and other and one != other
    )


def in_turns(row: Row, alarm: float) -> RegressionFinding:
    """The finding for a row against the model that took turns with it: SLOWER needs one of the two ratios wholly beyond the alarm."""
    verdict = ComparisonVerdict(row.compare_verdict or ComparisonVerdict.AMBIGUOUS)
    if (
        verdict is ComparisonVerdict.SLOWER
        and max(row.ratio_low or 0.0, row.cpu_ratio_low or 0.0) <= 1 + alarm
    ):
        return RegressionFinding.UNSURE
    if verdict is ComparisonVerdict.AMBIGUOUS:
        return RegressionFinding.UNSURE
    return RegressionFinding(verdict.lower())


def compared(
    good: KnownGood, entry: ResultEntry, alarm: float
) -> tuple[RegressionFinding, str, dict[str, object]]:
    """How a complete entry compares with the last good one, why, and the ratios."""
    (pair,) = pair_up([good.measured], [entry])
    result, why, row = pair.comparison, pair.comparison.why, entry.row
    memory = more_memory(good.measured.peaks, entry.peaks)
    slower = result.verdict is ComparisonVerdict.SLOWER and result.low is not None and result.low > 1 + alarm
    if row.verdict != RowVerdict.VALID:
        doubt = row.verdict_reason or row.verdict
        finding, why = RegressionFinding.DOUBTFUL, f"{why}; {doubt}" if slower else doubt
    elif slower:
        finding = RegressionFinding.SLOWER
    elif memory:
        finding, why = RegressionFinding.MEMORY, memory
    elif result.verdict is ComparisonVerdict.SLOWER:
        finding, why = RegressionFinding.UNSURE, f"{why}; the alarm threshold is {alarm:.1%}"
    elif result.verdict is ComparisonVerdict.AMBIGUOUS:
        finding = RegressionFinding.UNSURE
    else:
        finding = RegressionFinding(result.verdict.lower())
    ratios: dict[str, object] = {
        "against": good.campaign,
        "against_sha256": good.measured.row.model_sha256,
        "ratio": result.ratio,
        "ratio_low": result.low,
        "ratio_high": result.high,
        "memory_ratio": memory_ratio(good.measured.peaks, entry.peaks),
    }
    return finding, why, ratios


def memory_ratio(good: Sequence[int], peaks: Sequence[int]) -> float | None:
    """The ratio of the launches' median peaks; None if either side has none."""
    return median(peaks) / median(good) if good and peaks and median(good) else None


def more_memory(good: Sequence[int], peaks: Sequence[int]) -> str:
    """Why memory certainly increased; empty if it did not."""
    ratio = memory_ratio(good, peaks)
    if ratio is None or min(len(good), len(peaks)) < MIN_LAUNCHES:
        return ""
    more = median(peaks) - median(good)
    if ratio <= 1 + MEMORY or more <= MEMORY_BYTES or mann_whitney(good, peaks) >= MAX_P_VALUE:
        return ""
    return f"peak memory rose by {more / 1024**2:.1f} MB, to {ratio:.2f} times as much"
