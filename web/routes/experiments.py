"""Experiments: list, inspect, run. Only their owner saves and schedules them, on this machine: a definition names files and URLs of it."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from protocol.errors import CampaignError
from results.row.form import JsonModel
from scheduler.experiments.judge import judge_ended
from scheduler.experiments.service import begin
from scheduler.experiments.view import (
    ExperimentView,
    History,
    VersionView,
    experiment_view,
    history_view,
    version_view,
)
from scheduler.preview.look import check_devices
from scheduler.store.rows import ExperimentRow, VersionRow
from scheduler.store.store import Store
from swarm.download.urls import FOR_OWNER
from web.http.context import Context, SharedStore
from web.http.idempotency import Key
from web.http.parameters import MAX_NUMBER, PAGE, AfterName, Limit, conflict, page_of
from web.http.problems import HttpProblem, errors
from web.routes.campaigns import start_once

ExperimentName = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$",
        description="An experiment's name.",
        examples=["nightly"],
    ),
]
Version = Annotated[int, Path(ge=1, le=MAX_NUMBER, description="A version's number.", examples=[1])]

api = APIRouter(prefix="/api/v1", tags=["experiments"])


class ExperimentPage(JsonModel):
    """Experiments by name."""

    count: int
    """On this page."""
    experiments: tuple[ExperimentView, ...]
    next: str | None
    """Pass as `after` for the next page; null on the last."""


class ExperimentDetail(ExperimentView):
    """An experiment with all its versions, oldest first."""

    versions: tuple[VersionView, ...]


class RunStarted(JsonModel):
    """A new run of an experiment."""

    campaign: str
    experiment: str
    version: int


@api.get("/experiments")
def list_experiments(store: SharedStore, limit: Limit = PAGE, after: AfterName = "") -> ExperimentPage:
    """List this home's experiments by name."""
    rows = [row for row in store.experiments.all() if row.name > after]
    page, more = page_of(rows, limit, lambda row: row.name)
    views = tuple(experiment_view(store, row) for row in page)
    return ExperimentPage(count=len(views), experiments=views, next=more)


@api.get("/experiments/{experiment}", responses=errors(404))
def get_experiment(store: SharedStore, experiment: ExperimentName) -> ExperimentDetail:
    """Get an experiment with its schedule and versions."""
    row = _require(store, experiment)
    versions = tuple(map(version_view, store.experiments.versions(experiment)))
    return ExperimentDetail(**experiment_view(store, row).model_dump(), versions=versions)


@api.get("/experiments/{experiment}/versions/{version}", responses=errors(404))
def get_version(store: SharedStore, experiment: ExperimentName, version: Version) -> VersionView:
    """Get a version as a campaign file, with the hashes of its models."""
    return version_view(_require_version(store, experiment, version))


@api.get("/experiments/{experiment}/history", responses=errors(404))
async def get_history(
    context: Context,
    experiment: ExperimentName,
    limit: Limit = PAGE,
    after: Annotated[
        str | None, Query(max_length=64, description="Campaign of the last run on the previous page.")
    ] = None,
) -> History:
    """Get the results over time, latest run first: medians by model, unit and device, compared with the last good run."""

    def read(store: Store) -> History:
        _require(store, experiment)
        judge_ended(store)
        return history_view(store, experiment, limit=limit, after=after)

    return await context.isolated(read)


@api.post(
    "/experiments/{experiment}/run", status_code=201, response_model=RunStarted, responses=errors(404, 409)
)
async def run_experiment(
    context: Context,
    experiment: ExperimentName,
    response: Response,
    version: Annotated[int | None, Query(ge=1, le=MAX_NUMBER, description="Default: the latest.")] = None,
    key: Key = None,
) -> dict[str, Any]:
    """Run the latest version now with its models as they are, or a given version exactly as it was."""
    title = experiment if version is None else f"{experiment}@{version}"

    def start(store: Store, new: str) -> RunStarted:
        stored = store.experiments.run(new)  # by a server that was killed before its response
        if stored is not None:
            return RunStarted(campaign=new, experiment=stored.experiment, version=stored.version)
        _require(store, experiment)
        if version is not None:
            _require_version(store, experiment, version)
        try:
            check, fetch = (
                partial(check_devices, context.home, gates=context.gates),
                context.fetch_model(FOR_OWNER),
            )
            begun = begin(context.home, store, title, check=check, fetch=fetch, campaign_id=new)
        except CampaignError as exc:
            raise conflict(exc) from None
        assert begun is not None, "only scheduled runs can be started by somebody else"
        return RunStarted(campaign=new, experiment=begun[1].experiment, version=begun[1].version)

    return await start_once(context, response, key, f"experiment\0{title}".encode(), start)


def _require(store: Store, name: str) -> ExperimentRow:
    row = store.experiments.get(name)
    if row is None:
        raise HttpProblem(
            404, f"no experiment {name!r} on this home", hint="list experiments: /api/v1/experiments"
        )
    return row


def _require_version(store: Store, name: str, number: int) -> VersionRow:
    _require(store, name)
    for version in store.experiments.versions(name):
        if version.version == number:
            return version
    raise HttpProblem(
        404, f"{name} has no version {number}", hint=f"list its versions: /api/v1/experiments/{name}"
    )
