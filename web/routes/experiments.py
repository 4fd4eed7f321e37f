"""Experiments: list, inspect, run. Only their owner saves and schedules them, on this machine: a definition names files and URLs of it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import ConfigDict

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
from scheduler.models.fetch import downloader
from scheduler.store.rows import ExperimentRow, VersionRow
from scheduler.store.store import Store
from web.http.context import ApiContext
from web.http.idempotency import Key
from web.http.parameters import MAX_NUMBER, NOT_FOUND, PAGE, Limit, conflict, problems
from web.http.problems import HttpProblem

ExperimentName = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$",
        description="An experiment's name.",
        examples=["nightly"],
    ),
]
Version = Annotated[int, Path(ge=1, le=MAX_NUMBER, description="A version's number.", examples=[1])]


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

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"campaign": "c-ab23cd45", "experiment": "nightly", "version": 3}]}
    )

    campaign: str
    experiment: str
    version: int


def router(context: ApiContext) -> APIRouter:
    """Experiments."""
    v1 = APIRouter(prefix="/api/v1", tags=["experiments"])

    @v1.get("/experiments", operation_id="listExperiments")
    async def experiments(
        limit: Limit = PAGE,
        after: Annotated[str, Query(max_length=64, description="`next` of the previous page.")] = "",
    ) -> ExperimentPage:
        """List this home's experiments by name."""

        def page(store: Store) -> ExperimentPage:
            rows = [row for row in store.experiments.all() if row.name > after]
            views = tuple(experiment_view(store, row) for row in rows[:limit])
            more = len(rows) > limit
            return ExperimentPage(count=len(views), experiments=views, next=views[-1].name if more else None)

        return await context.store(page)

    @v1.get("/experiments/{experiment}", operation_id="getExperiment", responses=NOT_FOUND)
    async def experiment_(experiment: ExperimentName) -> ExperimentDetail:
        """Get an experiment with its schedule and versions."""

        def detail(store: Store) -> ExperimentDetail:
            row = _require(store, experiment)
            versions = tuple(map(version_view, store.experiments.versions(experiment)))
            return ExperimentDetail(**experiment_view(store, row).model_dump(), versions=versions)

        return await context.store(detail)

    @v1.get("/experiments/{experiment}/versions/{version}", operation_id="getVersion", responses=NOT_FOUND)
    async def version_(experiment: ExperimentName, version: Version) -> VersionView:
        """Get a version as a campaign file, with the hashes of its models."""
        return await context.store(lambda store: version_view(_require_version(store, experiment, version)))

    @v1.get("/experiments/{experiment}/history", operation_id="getHistory", responses=NOT_FOUND)
    async def history(
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

    @v1.post(
        "/experiments/{experiment}/run",
        operation_id="runExperiment",
        status_code=HTTPStatus.CREATED,
        response_model=RunStarted,
        responses=problems(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
    )
    async def run(
        experiment: ExperimentName,
        response: Response,
        version: Annotated[int | None, Query(ge=1, le=MAX_NUMBER, description="Default: the latest.")] = None,
        key: Key = None,
    ) -> dict[str, Any]:
        """Run the latest version now with its models as they are, or a given version exactly as it was."""
        title = experiment if version is None else f"{experiment}@{version}"

        async def make(campaign_id: str) -> dict[str, Any]:
            started = await context.isolated(
                lambda store: _begin(context, store, title, version, campaign_id), fetching=True
            )
            return started.model_dump()

        reply, replayed = await context.idempotency.run(key, f"experiment\0{title}".encode(), make)
        await context.ensure_scheduler()
        response.headers["Location"] = f"/api/v1/campaigns/{reply['campaign']}"
        if replayed:
            response.headers["Idempotency-Replayed"] = "true"
        return reply

    return v1


def _begin(
    context: ApiContext, store: Store, title: str, version: int | None, campaign_id: str
) -> RunStarted:
    stored = store.experiments.run(campaign_id)  # by a server that was killed before its response
    if stored is not None:
        return RunStarted(campaign=campaign_id, experiment=stored.experiment, version=stored.version)
    name = title.partition("@")[0]
    _require(store, name)
    if version is not None:
        _require_version(store, name, version)
    fetch = downloader(context.home, lambda model, done, total: None)
    try:
        started = begin(context.home, store, title, fetch=fetch, campaign_id=campaign_id)
    except CampaignError as exc:
        raise conflict(exc) from None
    assert started is not None, "only scheduled runs can be started by somebody else"
    return RunStarted(campaign=campaign_id, experiment=started[1].experiment, version=started[1].version)


def _require(store: Store, name: str) -> ExperimentRow:
    row = store.experiments.get(name)
    if row is None:
        raise HttpProblem(
            HTTPStatus.NOT_FOUND,
            f"no experiment {name!r} on this home",
            hint="list experiments: /api/v1/experiments",
        )
    return row


def _require_version(store: Store, name: str, number: int) -> VersionRow:
    _require(store, name)
    for version in store.experiments.versions(name):
        if version.version == number:
            return version
    raise HttpProblem(
        HTTPStatus.NOT_FOUND,
        f"{name} has no version {number}",
        hint=f"list its versions: /api/v1/experiments/{name}",
    )
