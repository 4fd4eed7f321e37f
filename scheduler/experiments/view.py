"""Experiments as shown to people and to programs: the same for `--json` and for the HTTP API. Read only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from results.analysis.changes import MOST
from results.analysis.regression import CellOutcome, RegressionCell
from results.row.form import JsonModel, utc
from scheduler.campaign.fields import show_time_of_day
from scheduler.campaign.model import Schedule
from scheduler.campaign.text import campaign_text, read_spec
from scheduler.experiments.judge import read_cells, why_not_started
from scheduler.experiments.service import find
from scheduler.experiments.trends import HistoryShift, PooledFigure, trend
from scheduler.models.uploads import as_sent
from scheduler.output.schemas import CampaignModel, Instant, shown_as, shown_models
from scheduler.store.rows import ExperimentRow, NewModel, VersionModel, VersionRow
from scheduler.store.store import Store
from swarm.base.text import safe_text


class ExperimentView(JsonModel):
    """An experiment in one line. Times are in UTC."""

    name: str
    created: Instant
    latest: int
    """Number of its latest version."""
    runs: int
    every_s: float | None = None
    at: str | None = None
    """Time of day in UTC, such as 03:00."""
    alarm: float
    """Smallest certain deterioration that counts as a regression, as a share."""
    webhook: bool
    """Whether regressions are sent to a webhook. The URL is not shown, because it may contain a key."""
    due: Instant | None = None
    schedule: str | None = None
    """The schedule in words."""
    last_run: Instant | None = None
    last_campaign: str | None = None
    last_finding: str | None = None


class VersionView(JsonModel):
    """One version of an experiment."""

    experiment: str
    version: int
    created: Instant
    digest: str
    models: tuple[CampaignModel, ...]
    campaign: str
    """The campaign file, as YAML. Relative paths start in `folder`."""
    folder: str


class RunView(JsonModel):
    """One run of an experiment."""

    campaign: str
    version: int
    scheduled: bool
    begun: Instant
    finding: str | None = None
    """Outcome of the run: fine, regression, incomplete or not-started; confirming while apparent slowdowns are measured again. Null while
    the run continues."""
    accepted: bool = False
    """Whether a person accepted its results as the new normal."""
    webhook: str = ""
    """State of the webhook: due, sending, sent, or why it was not accepted. Empty if there was nothing to report."""
    why: str = ""


class HistoryPoint(CellOutcome):
    """The result of one run for one cell."""

    campaign: str
    version: int
    begun: Instant


class CellHistory(JsonModel):
    """The results of a model on a unit of a device over time, the latest first."""

    model: str
    unit: str
    threads: int | None = None
    batch: int | None = None
    shapes: str = ""
    device: str
    device_id: str
    simulated: bool = False
    points: tuple[HistoryPoint, ...]
    changes: tuple[HistoryShift, ...] = ()
    """Points at which the median changed during the latest 100 runs, the latest first."""
    pooled: PooledFigure | None = None
    """Pooled figure of the runs since the latest change, each of which counts as a sitting. Null if there are fewer than two."""


class History(JsonModel):
    """An experiment's results over time."""

    experiment: str
    count: int
    """Number of runs on this page."""
    total: int
    runs: tuple[RunView, ...]
    """The runs of this page, the latest first."""
    cells: tuple[CellHistory, ...]


def experiment_view(store: Store, row: ExperimentRow) -> ExperimentView:
    """One experiment."""
    runs = store.experiments.runs(row.name)
    last = runs[0] if runs else None
    at = None if row.at_s is None else show_time_of_day(row.at_s)
    every = None if row.every_s is None else show_every(row.every_s)
    return shown_as(
        ExperimentView,
        row,
        latest=len(store.experiments.versions(row.name)),
        runs=len(runs),
        at=at,
        webhook=bool(row.webhook),
        schedule=every and (f"{every}{_starting(at, row.every_s or 0.0)}" if at else every),
        last_run=last and last.begun,
        last_campaign=last and last.campaign,
        last_finding=(last.finding or None) if last else None,
    )


def _starting(at: str, every_s: float) -> str:
    """When in the day the runs begin, or the reference for shorter intervals."""
    return f" at {at} UTC" if every_s % 86_400 == 0 else f", counted from {at} UTC"


def version_view(version: VersionRow, uploads: Path | None = None) -> VersionView:
    """One version, with its file. `uploads`: the folder of uploaded models, which the file names by hash."""
    models = shown_models(version.models)
    campaign = campaign_text(as_sent(read_spec(version.spec, version.title), version.folder, uploads))
    return shown_as(VersionView, version, models=models, campaign=campaign)


def version_text(version: VersionRow, *, schedule: Schedule | None = None, title: bool = True) -> str:
    """The version as a campaign file, with its models' hashes as comments at the end."""
    spec, note = read_spec(version.spec, version.title), version_note(version) if title else ""
    return campaign_text(spec, schedule=schedule, note=note) + model_notes(version.models)


def version_note(version: VersionRow) -> str:
    """The comment at the beginning of a version's file."""
    return f"{version.title}, saved {utc(version.created)} from {safe_text(version.folder, 400)}"


def model_notes(models: Sequence[NewModel | VersionModel]) -> str:
    """The hashes of models, and of the references of their examples, as comments."""
    return "".join(
        f"# model {safe_text(model.name, 200)}: {model.size} bytes, sha256 {model.sha256}{_references(model)}\n"
        for model in models
    )


def _references(model: NewModel | VersionModel) -> str:
    if isinstance(model, NewModel) or not model.references_sha256:
        return ""
    return f", references {model.references_sha256}"


def history_view(store: Store, name: str, *, limit: int = 20, after: str | None = None) -> History:
    """The latest `limit` runs, or those before the run `after` (its campaign). Raises `CampaignError`."""
    find(store, name)
    runs = store.experiments.runs(name)
    at = next((index + 1 for index, run in enumerate(runs) if run.campaign == after), 0) if after else 0
    shown = runs[at : at + limit]
    points: dict[tuple[str, ...], list[HistoryPoint]] = {}
    heads: dict[tuple[str, ...], RegressionCell] = {}
    series: dict[tuple[str, ...], list[tuple[str, float, RegressionCell]]] = {}
    for index, run in enumerate(runs[: max(at + limit, MOST)]):
        for cell in read_cells(run):
            place = (cell.model, cell.unit, cell.device_id, str(cell.threads), str(cell.batch), cell.shapes)
            if index < MOST:
                series.setdefault(place, []).append((run.campaign, run.begun, cell))
            if not at <= index < at + limit:
                continue
            heads.setdefault(place, cell)
            point = shown_as(HistoryPoint, cell, campaign=run.campaign, version=run.version, begun=run.begun)
            points.setdefault(place, []).append(point)
    trends = {place: trend(series.get(place, ())) for place in heads}
    return History(
        experiment=name,
        count=len(shown),
        total=len(runs),
        runs=tuple(
            shown_as(RunView, run, finding=run.finding or None, webhook=run.hook, why=why_not_started(run))
            for run in shown
        ),
        cells=tuple(
            shown_as(
                CellHistory,
                head,
                points=points[place],
                changes=trends[place][0],
                pooled=trends[place][1],
            )
            for place, head in heads.items()
        ),
    )


def show_every(seconds: float) -> str:
    """`every day`, `every 6 h`, `every 90 s`."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds % size == 0:
            number = int(seconds // size)
            return "every day" if (unit, number) == ("d", 1) else f"every {number} {unit}"
    return f"every {seconds:g} s"
