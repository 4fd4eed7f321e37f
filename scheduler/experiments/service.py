"""What is done with experiments: saved, begun, judged when they have ended, and told. On a store and the disk, no network.

file ──save──▶ version ──begin──▶ campaign ──judge_ended──▶ finding ──▶ webhook (scheduler.schedules)
"""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from protocol.errors import CampaignError, RemoteProtocolError, SarkError
from protocol.values.record import read_record
from results.analysis.compare import MARGIN
from results.analysis.regression import (
    WORSE,
    CellMeasurement,
    KnownGood,
    RegressionCell,
    RegressionFinding,
    judge,
    key_of,
)
from results.export.raw import RawResult
from results.row.row import Row, RowStatus
from scheduler.campaign.dump import read_spec
from scheduler.campaign.load import load_campaign
from scheduler.campaign.model import Campaign, Schedule
from scheduler.experiments.model import digest_of, first_due, following, is_due, read_title, strayed
from scheduler.models.describe import Fetch, Models, describe_models, no_fetch
from scheduler.store.experiments import ExperimentRow, RunClaim, RunRow, StoredModel, VersionRow
from scheduler.store.results import raw_results
from scheduler.store.rows import CampaignOutcome, CampaignRow
from scheduler.store.store import Store
from scheduler.submit.submit import new_campaign_id, store_campaign
from swarm.base.home import Home
from swarm.base.text import safe_text

WAIT_S: Final = 60.0
"""How long a run looks for devices that fit, unless it is told otherwise."""
LOOK_BACK: Final = 200
"""Runs among which the last good result of a cell is looked for."""


def save(
    store: Store, file: Path, *, name: str | None = None, fetch: Fetch = no_fetch, now: float | None = None
) -> tuple[VersionRow, bool]:
    """The campaign in `file` as a version of an experiment, and whether it is a new one. Its models are looked at. A schedule in the file
    becomes the experiment's; a file without one leaves it as it is. Raises `CampaignError`. Blocking.
    """
    campaign = load_campaign(file)
    title = name or campaign.campaign
    if read_title(title)[1] is not None:
        raise CampaignError(f"{safe_text(title, 80)} names a version", hint="leave out the @ and the number")
    folder = file.absolute().parent
    models = describe_models(campaign, folder, fetch)
    version, new = _keep(store, title, campaign, models, str(folder))
    if campaign.schedule is not None:
        set_schedule(store, title, campaign.schedule, now=time.time() if now is None else now)
    return version, new


def _keep(
    store: Store, name: str, campaign: Campaign, models: Models, folder: str
) -> tuple[VersionRow, bool]:
    kept = [StoredModel(label, model.sha256, model.size) for label, (_, model) in models.items()]
    spec = campaign.spec()
    return store.experiments.save_version(
        name, digest=digest_of(spec, kept), spec=spec, models=kept, folder=folder, alarm=MARGIN
    )


def set_schedule(
    store: Store, name: str, schedule: Schedule | None, *, now: float, secret_file: str | None = None
) -> None:
    """From now on it runs by itself so; None: not any more. What is the same as before keeps the instant that is due."""
    before = find(store, name)
    secret = before.secret_file if secret_file is None else secret_file
    if schedule is None:
        store.experiments.set_schedule(
            name,
            every_s=None,
            at_s=None,
            alarm=before.alarm,
            webhook=before.webhook,
            secret_file=secret,
            due=None,
        )
        return
    same = (before.every_s, before.at_s) == (schedule.every, schedule.at) and before.due is not None
    store.experiments.set_schedule(
        name,
        every_s=schedule.every,
        at_s=schedule.at,
        alarm=MARGIN if schedule.alarm is None else schedule.alarm,
        webhook=schedule.webhook or "",
        secret_file=secret,
        due=before.due if same else first_due(schedule.every, schedule.at, now),
    )


def schedule_of(row: ExperimentRow) -> Schedule | None:
    """As it would stand in a file; None: it has none."""
    if row.every_s is None:
        return None
    return Schedule.model_construct(
        every=row.every_s,
        at=row.at_s,
        alarm=None if row.alarm == MARGIN else row.alarm,
        webhook=row.webhook or None,
    )


def find(store: Store, name: str) -> ExperimentRow:
    """The experiment of that name. Raises `CampaignError`."""
    found = store.experiments.get(name)
    if found is None:
        raise CampaignError(
            f"no experiment {safe_text(name, 80)!r} on this home",
            hint="list them: sark-node experiment list; make one: sark-node experiment save FILE",
        )
    return found


def find_version(store: Store, title: str) -> VersionRow:
    """The version that `nightly@3` names, or the latest of `nightly`. Raises `CampaignError`."""
    name, number = read_title(title)
    find(store, name)
    versions = store.experiments.versions(name)
    for version in versions:
        if version.version == (number or versions[-1].version):
            return version
    raise CampaignError(
        f"{name} has no version {number}", hint=f"it has {versions[0].version} to {versions[-1].version}"
    )


# -- beginning ------------------------------------------------------------------------------------------------------------------------


def begin(
    home: Home,
    store: Store,
    title: str,
    *,
    fetch: Fetch = no_fetch,
    wait_s: float = WAIT_S,
    due: tuple[float, float] | None = None,
    campaign_id: str | None = None,
) -> tuple[str, VersionRow] | None:
    """A campaign that runs `title`, and the version that it is. Its models are looked at anew: of the latest version another file is a new
    version, of one that is named it is refused. `due`: the instant a scheduled run was due at, and the one after it.

    None: another process has started this scheduled run. Raises `CampaignError`, `ResourceError`. Blocking.
    """
    version = find_version(store, title)
    campaign = read_spec(version.spec, version.title)
    models = describe_models(campaign, Path(version.folder), fetch)
    then = {model.name: model.sha256 for model in version.models}
    other = [name for name, (_, model) in models.items() if model.sha256 != then.get(name)]
    if other and read_title(title)[1] is not None:
        raise CampaignError(
            f"{version.title}: model {safe_text(other[0], 60)!r} is another file than it was",
            hint=f"put the file with sha256 {then.get(other[0], '')[:12]}… back, or run the latest: {version.experiment}",
        )
    if other:
        version, _ = _keep(store, version.experiment, campaign, models, version.folder)
    claim = RunClaim(version.experiment, version.version, *(due or (None, None)))
    started = store_campaign(
        home,
        store,
        campaign,
        models,
        folder=version.folder,
        wait_s=wait_s,
        campaign_id=campaign_id,
        claim=claim,
    )
    return None if started is None else (started, version)


def begin_due(home: Home, store: Store, *, now: float, fetch: Fetch = no_fetch) -> list[str]:
    """Start every run that is due, once, and only if the one before it has ended; gives their campaigns. Blocking."""
    begun = []
    for row in store.experiments.all():
        if row.every_s is None or row.due is None:
            continue
        if strayed(row, now):
            store.experiments.move_due(row.name, row.due, first_due(row.every_s, row.at_s, now))
        elif is_due(row, now):
            then = following(row.due, row.every_s, now)
            if store.experiments.is_running(row.name):
                store.experiments.move_due(row.name, row.due, then)
                continue
            try:
                started = begin(home, store, row.name, fetch=fetch, due=(row.due, then))
            except SarkError as exc:
                if store.experiments.move_due(row.name, row.due, then):
                    latest = store.experiments.versions(row.name)[-1].version
                    store.experiments.add_failed_run(
                        new_campaign_id(),
                        row.name,
                        latest,
                        why=exc.what,
                        finding=str(RegressionFinding.NOT_STARTED),
                    )
                continue
            if started is not None:
                begun.append(started[0])
    return begun


# -- judging --------------------------------------------------------------------------------------------------------------------------


def judge_ended(store: Store) -> list[RunRow]:
    """Say of every run that has ended what it is beside those before; gives those that nobody else has said it of. Blocking."""
    told = []
    for run in store.experiments.unjudged():
        campaign = store.campaigns.get(run.campaign)
        experiment = store.experiments.get(run.experiment)
        if campaign is None or experiment is None:
            continue
        finding, cells = found_of(store, run, campaign, alarm=experiment.alarm)
        kept = [cell.model_dump(mode="json") for cell in cells]
        if store.experiments.set_finding(
            run.campaign, str(finding), kept, notify=finding is RegressionFinding.REGRESSION
        ):
            judged = store.experiments.run(run.campaign)
            told += [judged] if judged is not None else []
    return told


def found_of(
    store: Store, run: RunRow, campaign: CampaignRow, *, alarm: float
) -> tuple[RegressionFinding, tuple[RegressionCell, ...]]:
    """What this run is beside the good results of the runs that began before it."""
    earlier = [
        (other, [cell for cell in read_cells(other) if cell.good or (other.accepted and _measured(cell))])
        for other in store.experiments.runs(run.experiment)
        if other.judged is not None and other.begun < run.begun
    ][:LOOK_BACK]
    opened: dict[str, dict[str, CellMeasurement]] = {}

    def measured_in(other: str) -> dict[str, CellMeasurement]:
        if other not in opened:
            opened[other] = {
                item.row.job_id: item for item in map(_measured_of, raw_results(store.results.rows(other)))
            }
        return opened[other]

    def last_good(row: Row, key: str) -> KnownGood | None:
        complete = row.status is RowStatus.COMPLETE
        for other, cells in earlier:
            for cell in cells:
                alike = (cell.model, cell.unit, cell.batch, cell.device_id) == (
                    row.file_name,
                    row.compute_units,
                    row.batch,
                    row.device_id,
                )
                if cell.key == key or (not complete and alike and row.device_id):
                    return KnownGood(other.campaign, _again(cell, row, measured_in(other.campaign)))
        return None

    results = [_measured_of(item) for item in raw_results(store.results.rows(run.campaign))]
    finding, cells = judge(results, last_good, alarm=alarm)
    if finding is RegressionFinding.FINE and campaign.outcome is not CampaignOutcome.SUCCEEDED:
        finding = RegressionFinding.INCOMPLETE
    return finding, cells


def _measured(cell: RegressionCell) -> bool:
    return cell.status == RowStatus.COMPLETE and cell.median_ms is not None and not cell.simulated


def _again(cell: RegressionCell, row: Row, there: dict[str, CellMeasurement]) -> CellMeasurement:
    """The measurement behind a kept cell; where its campaign was removed meanwhile, what the cell says."""
    for found in there.values():
        if key_of(found.row) == cell.key and found.row.status is RowStatus.COMPLETE:
            return found
    return CellMeasurement(
        row.model_copy(
            update={
                "status": RowStatus.COMPLETE,
                "inference_ms_median": cell.median_ms,
                "inference_ms_median_low": cell.low_ms,
                "inference_ms_median_high": cell.high_ms,
                "verdict": cell.verdict,
                "shapes": cell.shapes,
                "others_percent": None,
                "stall_percent": None,
                "throttles": None,
                "gpu_throttled": "",
            }
        )
    )


def _measured_of(result: RawResult) -> CellMeasurement:
    return CellMeasurement(result.row, result.launches, peaks_of(result))


def peaks_of(result: RawResult) -> tuple[int, ...]:
    """The highest resident bytes of each launch above what its process held before; empty where they were not all measured."""
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
    """The cells that were kept with a run."""
    return [RegressionCell.model_validate(cell) for cell in run.cells if "key" in cell]


# -- telling --------------------------------------------------------------------------------------------------------------------------


def alarm_lines(run: RunRow) -> list[str]:
    """What got worse, a line each, for people."""
    return [
        f"{safe_text(cell.model, 60)}{_batch(cell)} × {safe_text(cell.unit, 60)} on {safe_text(cell.device, 60) or 'no device'}: "
        f"{cell.finding}, {safe_text(cell.why, 300)} (last good: {cell.against})"
        for cell in read_cells(run)
        if cell.finding in WORSE
    ]


def _batch(cell: RegressionCell) -> str:
    return "" if cell.batch is None else f", batch {cell.batch}"


def why_unstarted(run: RunRow) -> str:
    """Why a run that was due could not begin; empty: it did."""
    return (
        str(run.cells[0].get("why", "")) if run.finding == RegressionFinding.NOT_STARTED and run.cells else ""
    )


def hook_body(run: RunRow, store: Store) -> bytes:
    """What a webhook is sent."""
    worse = [cell.model_dump(mode="json") for cell in read_cells(run) if cell.finding in WORSE]
    campaign = store.campaigns.get(run.campaign)
    told: dict[str, Any] = {
        "event": "experiment." + run.finding,
        "experiment": run.experiment,
        "version": run.version,
        "campaign": run.campaign,
        "finding": run.finding,
        "begun": utc(run.begun),
        "ended": utc(campaign.ended if campaign else None),
        "worse": worse,
        "detail": why_unstarted(run),
    }
    return json.dumps(told, ensure_ascii=False).encode()


def utc(instant: float | None) -> str | None:
    """For programs."""
    return None if instant is None else datetime.fromtimestamp(instant, UTC).isoformat(timespec="seconds")
