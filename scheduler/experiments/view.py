"""Experiments as they are shown, to people and to programs: the same for `--json` and for the HTTP API. Reading only."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from results.analysis.regression import CellOutcome, RegressionCell
from scheduler.campaign.fields import show_time_of_day
from scheduler.campaign.model import Schedule
from scheduler.campaign.text import campaign_text, read_spec
from scheduler.experiments.judge import read_cells, why_not_started
from scheduler.experiments.service import find, utc
from scheduler.store.rows import ExperimentRow, NewModel, VersionRow
from scheduler.store.store import Store
from swarm.base.text import safe_text


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class ExperimentView(_Shown):
    """An experiment in one line. Instants in UTC."""

    name: str
    created: str
    latest: int
    """Number of its latest version."""
    runs: int
    every_s: float | None = None
    at: str | None = None
    """Time of the day in UTC, such as 03:00."""
    alarm: float
    """Share by which a result must surely be worse before it is told as a regression."""
    webhook: bool
    """Whether a regression is told to somebody; the URL is not shown, it may hold a key."""
    due: str | None = None
    schedule: str | None = None
    """For people."""
    last_run: str | None = None
    last_campaign: str | None = None
    last_finding: str | None = None


class ModelView(_Shown):
    """A model of a version, by content."""

    name: str
    sha256: str
    size: int


class VersionView(_Shown):
    """One version of an experiment."""

    experiment: str
    version: int
    created: str
    digest: str
    models: tuple[ModelView, ...]
    campaign: str
    """The campaign file, as YAML; relative paths begin in `folder`."""
    folder: str


class RunView(_Shown):
    """One run of an experiment."""

    campaign: str
    version: int
    scheduled: bool
    begun: str
    finding: str | None = None
    """fine, regression, incomplete or not-started; null while it runs."""
    accepted: bool = False
    """Somebody took its results as the new normal."""
    webhook: str = ""
    """due, sending, sent, or why it was not taken; empty: there was nothing to tell."""
    why: str = ""


class HistoryPoint(CellOutcome):
    """What one run measured of one cell."""

    campaign: str
    version: int
    begun: str


class CellHistory(_Shown):
    """A model on a unit on a device, over time, the latest first."""

    model: str
    unit: str
    threads: int | None = None
    batch: int | None = None
    shapes: str = ""
    device: str
    device_id: str
    simulated: bool = False
    points: tuple[HistoryPoint, ...]


class History(_Shown):
    """An experiment's results over time."""

    experiment: str
    count: int
    """Runs that are told; the latest come first."""
    total: int
    runs: tuple[RunView, ...]
    cells: tuple[CellHistory, ...]


def experiments_view(store: Store) -> list[ExperimentView]:
    """All of this home, by name."""
    return [experiment_view(store, row) for row in store.experiments.all()]


def experiment_view(store: Store, row: ExperimentRow) -> ExperimentView:
    """One of them."""
    runs = store.experiments.runs(row.name)
    last = runs[0] if runs else None
    at = None if row.at_s is None else show_time_of_day(row.at_s)
    every = None if row.every_s is None else show_every(row.every_s)
    return ExperimentView(
        name=row.name,
        created=utc(row.created) or "",
        latest=len(store.experiments.versions(row.name)),
        runs=len(runs),
        every_s=row.every_s,
        at=at,
        alarm=row.alarm,
        webhook=bool(row.webhook),
        due=utc(row.due),
        schedule=every and (f"{every} at {at} UTC" if at else every),
        last_run=utc(last.begun) if last else None,
        last_campaign=last.campaign if last else None,
        last_finding=(last.finding or None) if last else None,
    )


def version_view(version: VersionRow) -> VersionView:
    """One version, with its file."""
    return VersionView(
        experiment=version.experiment,
        version=version.version,
        created=utc(version.created) or "",
        digest=version.digest,
        models=tuple(ModelView(name=m.name, sha256=m.sha256, size=m.size) for m in version.models),
        campaign=campaign_text(read_spec(version.spec, version.title)),
        folder=version.folder,
    )


def version_text(version: VersionRow, *, schedule: Schedule | None = None, title: bool = True) -> str:
    """As a campaign file, its models' hashes as comments at its end."""
    text = campaign_text(
        read_spec(version.spec, version.title),
        schedule=schedule,
        note=f"{version.title}, saved {utc(version.created)} from {safe_text(version.folder, 400)}"
        if title
        else "",
    )
    return text + model_notes(version.models)


def model_notes(models: Sequence[NewModel]) -> str:
    """The hashes of models, as comments."""
    return "".join(
        f"# model {safe_text(model.name, 200)}: {model.size} bytes, sha256 {model.sha256}\n"
        for model in models
    )


def history_view(store: Store, name: str, *, limit: int = 20, after: str | None = None) -> History:
    """The latest `limit` runs, or those before the run `after` (its campaign). Raises `CampaignError`."""
    find(store, name)
    runs = store.experiments.runs(name)
    at = next((index + 1 for index, run in enumerate(runs) if run.campaign == after), 0) if after else 0
    shown = runs[at : at + limit]
    cells: dict[tuple[str, ...], list[HistoryPoint]] = {}
    heads: dict[tuple[str, ...], RegressionCell] = {}
    for run in shown:
        for cell in read_cells(run):
            place = (cell.model, cell.unit, cell.device_id, str(cell.threads), str(cell.batch), cell.shapes)
            heads.setdefault(place, cell)
            cells.setdefault(place, []).append(
                HistoryPoint(
                    campaign=run.campaign,
                    version=run.version,
                    begun=utc(run.begun) or "",
                    **cell.model_dump(include=set(CellOutcome.model_fields)),
                )
            )
    return History(
        experiment=name,
        count=len(shown),
        total=len(runs),
        runs=tuple(
            RunView(
                campaign=run.campaign,
                version=run.version,
                scheduled=run.scheduled,
                begun=utc(run.begun) or "",
                finding=run.finding or None,
                accepted=run.accepted,
                webhook=run.hook,
                why=why_not_started(run),
            )
            for run in shown
        ),
        cells=tuple(
            CellHistory(
                model=head.model,
                unit=head.unit,
                threads=head.threads,
                batch=head.batch,
                shapes=head.shapes,
                device=head.device,
                device_id=head.device_id,
                simulated=head.simulated,
                points=tuple(cells[place]),
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
