"""Judges runs of experiments when they have ended: compares each result with the last good one before it."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.values.record import read_record
from results.analysis.regression import (
    WORSE_FINDINGS,
    KnownGood,
    RegressionCell,
    RegressionFinding,
    confirming,
    judge,
    key_of,
)
from results.export.raw import RawResult, ResultEntry
from results.row.identity import device_identity
from results.row.row import Row, RowStatus
from scheduler.store.readers import raw_results
from scheduler.store.rows import CampaignRow, CampaignStatus, RunRow
from scheduler.store.store import Store
from swarm.base.text import safe_text

LOOK_BACK: Final = 200
"""Number of runs among which the last good result of a cell is searched."""


def judge_ended(store: Store) -> list[RunRow]:
    """Judge and store every ended run without a finding; returns those that no other process judged first. Blocking."""
    judged = []
    for run in store.experiments.unjudged():
        campaign = store.campaigns.get(run.campaign)
        experiment = store.experiments.get(run.experiment)
        if campaign is None or experiment is None:
            continue
        finding, cells = judge_run(store, run, campaign, alarm=experiment.alarm)
        values = [cell.model_dump(mode="json") for cell in cells]
        if confirming(cells):
            finding = RegressionFinding.CONFIRMING
        notify = finding is RegressionFinding.REGRESSION
        if store.experiments.set_finding(run.campaign, str(finding), values, notify=notify):
            judged.append(store.experiments.run(run.campaign))
    return [run for run in judged if run is not None]


def judge_run(
    store: Store, run: RunRow, campaign: CampaignRow, *, alarm: float
) -> tuple[RegressionFinding, tuple[RegressionCell, ...]]:
    """Compare a run with the good results of the runs that began before it."""
    earlier = [
        (other, good_cells(other))
        for other in store.experiments.runs(run.experiment)
        if other.judged is not None and other.begun < run.begun
    ][:LOOK_BACK]

    measurements = cache(partial(entries_of, store))

    def last_good(row: Row, key: str) -> KnownGood | None:
        complete = row.status is RowStatus.COMPLETE
        subject = (row.file_name, row.compute_units, row.batch, device_identity(row))
        for other, cells in earlier:
            for cell in cells:
                same = (cell.model, cell.unit, cell.batch, cell.device_id) == subject
                if cell.key == key or (not complete and same and row.device_id):
                    return KnownGood(other.campaign, stored(cell, row, measurements(other.campaign)))
        return None

    finding, cells = judge(measurements(run.campaign), last_good, alarm=alarm)
    if finding is RegressionFinding.FINE and campaign.outcome is not CampaignStatus.SUCCEEDED:
        finding = RegressionFinding.INCOMPLETE
    return finding, cells


def good_cells(run: RunRow) -> list[RegressionCell]:
    """The cells with which later results may be compared."""
    return [cell for cell in read_cells(run) if cell.good or (run.accepted and cell.acceptable)]


def entries_of(store: Store, campaign: str) -> list[ResultEntry]:
    """All measurements of a campaign of the store."""
    results = raw_results(store.results.rows(campaign))
    return [ResultEntry(item.row, item.launches, _peaks(item)) for item in results]


def stored(cell: RegressionCell, row: Row, measurements: Sequence[ResultEntry]) -> ResultEntry:
    """The measurement behind a cell; only its figures if its campaign was deleted."""
    for measurement in measurements:
        if key_of(measurement.row) == cell.key and measurement.row.status is RowStatus.COMPLETE:
            return measurement
    return ResultEntry(
        row.model_copy(
            update={
                "status": RowStatus.COMPLETE,
                "inference_ms_median": cell.median_ms,
                "inference_ms_median_low": cell.low_ms,
                "inference_ms_median_high": cell.high_ms,
                "verdict": cell.verdict,
                "shapes": cell.shapes,
                "model_sha256": cell.sha256,
                "others_percent": None,
                "stall_percent": None,
                "throttles": None,
                "gpu_throttled": "",
            }
        )
    )


def _peaks(result: RawResult) -> tuple[int, ...]:
    """The peak resident bytes of each launch above its baseline; empty unless all launches measured it."""
    if not result.record:
        return ()
    try:
        record = read_record(base64.b64decode(result.record))
    except (RemoteProtocolError, ValueError):
        return ()
    peaks = [
        max(timing.peak - timing.baseline, 0)
        for timing in record.timings
        if timing.peak is not None and timing.baseline is not None
    ]
    return tuple(peaks) if len(peaks) == len(record.timings) else ()


def read_cells(run: RunRow) -> list[RegressionCell]:
    """The cells stored with a run."""
    return [RegressionCell.model_validate(cell) for cell in run.cells if "key" in cell]


def finding_words(run: RunRow) -> str:
    """`fine (1 doubtful, 3 fine)`: the finding of a run, and the number of cells with each finding."""
    counts = Counter(str(cell.finding) for cell in read_cells(run))
    return f"{run.finding} ({', '.join(f'{number} {finding}' for finding, number in sorted(counts.items()))})"


def alarm_lines(run: RunRow) -> list[str]:
    """A line for each regression, for people."""
    return [
        f"{safe_text(cell.model, 60)}{'' if cell.batch is None else f', batch {cell.batch}'} × {safe_text(cell.unit, 60)} on"
        f" {safe_text(cell.device, 60) or 'no device'}: {cell.finding}, {safe_text(cell.why, 300)} (last good: {cell.against})"
        for cell in read_cells(run)
        if cell.finding in WORSE_FINDINGS
    ]


def why_not_started(run: RunRow) -> str:
    """Why a scheduled run could not start; empty when it did."""
    not_started = run.finding == RegressionFinding.NOT_STARTED and run.cells
    return str(run.cells[0].get("why", "")) if not_started else ""
