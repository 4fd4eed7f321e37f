"""Experiments over HTTP: listed, looked at with their versions and results over time, run. They are saved and scheduled by their owner, on
this machine: a definition names files and URLs of it.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import ConfigDict

from protocol.errors import CampaignError
from results.row.form import JsonModel
from scheduler.experiments.service import begin, judge_ended
from scheduler.experiments.view import (
    ExperimentView,
    History,
    VersionView,
    experiment_view,
    history_view,
    version_view,
)
from scheduler.models.fetch import downloader
from scheduler.store.experiments import ExperimentRow, VersionRow
from scheduler.store.store import Store
from web.http.context import ApiContext
from web.http.idempotency import Key
from web.http.parts import MAX_NUMBER, NOT_FOUND, PAGE, Limit, conflict, problems
from web.http.problems import InvalidField

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
    """What to give as `after` for the page that follows; null: this is the last one."""


class ExperimentDetail(ExperimentView):
    """An experiment with all its versions, the oldest first."""

    versions: tuple[VersionView, ...]


class RunStarted(JsonModel):
    """A run that was begun."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"campaign": "c-ab23cd45", "experiment": "nightly", "version": 3}]}
    )

    campaign: str
    experiment: str
    version: int


def router(desk: ApiContext) -> APIRouter:
    """Endpoints over `desk`."""
    v1 = APIRouter(prefix="/api/v1", tags=["experiments"])

    @v1.get("/experiments", operation_id="listExperiments")
    async def experiments(
        limit: Limit = PAGE,
        after: Annotated[
            str, Query(max_length=64, description="Begin after this name: `next` of the page before.")
        ] = "",
    ) -> ExperimentPage:
        """This home's experiments, by name."""

        def page(store: Store) -> ExperimentPage:
            rows = [row for row in store.experiments() if row.name > after]
            told = tuple(experiment_view(store, row) for row in rows[:limit])
            return ExperimentPage(
                count=len(told), experiments=told, next=told[-1].name if len(rows) > limit else None
            )

        return await desk.store(page)

    @v1.get("/experiments/{experiment}", operation_id="getExperiment", responses=NOT_FOUND)
    async def experiment_(experiment: ExperimentName) -> ExperimentDetail:
        """One experiment with its schedule and versions."""

        def detail(store: Store) -> ExperimentDetail:
            row = _found(store, experiment)
            versions = tuple(version_view(version) for version in store.versions(experiment))
            return ExperimentDetail(**experiment_view(store, row).model_dump(), versions=versions)

        return await desk.store(detail)

    @v1.get("/experiments/{experiment}/versions/{version}", operation_id="getVersion", responses=NOT_FOUND)
    async def version_(experiment: ExperimentName, version: Version) -> VersionView:
        """One version, as a campaign file and the hashes of its models."""
        return await desk.store(lambda store: version_view(_version(store, experiment, version)))

    @v1.get("/experiments/{experiment}/history", operation_id="getHistory", responses=NOT_FOUND)
    async def history(
        experiment: ExperimentName,
        limit: Limit = PAGE,
        after: Annotated[
            str | None,
            Query(max_length=64, description="The campaign of the run that the page before ended with."),
        ] = None,
    ) -> History:
        """Its results over time, the latest run first: the median of every model, unit and device, beside the last good one."""

        def told(store: Store) -> History:
            _found(store, experiment)
            judge_ended(store)
            return history_view(store, experiment, limit=limit, after=after)

        return await desk.apart(told)

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
        version: Annotated[
            int | None, Query(ge=1, le=MAX_NUMBER, description="Left out: the latest.")
        ] = None,
        key: Key = None,
    ) -> dict[str, Any]:
        """Run it now, as a campaign: the latest version with its models as they are, or a version just as it was."""
        title = experiment if version is None else f"{experiment}@{version}"

        async def make(new: str) -> dict[str, Any]:
            return (
                await desk.apart(lambda store: _begin(desk, store, title, version, new), fetching=True)
            ).model_dump()

        told, again = await desk.once.do(key, f"experiment\0{title}".encode(), make)
        await desk.go_on()
        response.headers["Location"] = f"/api/v1/campaigns/{told['campaign']}"
        if again:
            response.headers["Idempotency-Replayed"] = "true"
        return told

    return v1


def _begin(desk: ApiContext, store: Store, title: str, version: int | None, new: str) -> RunStarted:
    before = store.run(new)  # stored by a server that was killed before it could answer
    if before is not None:
        return RunStarted(campaign=new, experiment=before.experiment, version=before.version)
    name = title.partition("@")[0]
    _found(store, name)
    if version is not None:
        _version(store, name, version)
    fetch = downloader(desk.home, lambda model, done, total: None)
    try:
        started = begin(desk.home, store, title, fetch=fetch, campaign_id=new)
    except CampaignError as exc:
        raise conflict(exc) from None
    assert started is not None, "only a scheduled run may have been begun by somebody else"
    return RunStarted(campaign=new, experiment=started[1].experiment, version=started[1].version)


def _found(store: Store, name: str) -> ExperimentRow:
    row = store.experiment(name)
    if row is None:
        raise InvalidField(
            HTTPStatus.NOT_FOUND,
            f"no experiment {name!r} on this home",
            hint="list them: /api/v1/experiments",
        )
    return row


def _version(store: Store, name: str, number: int) -> VersionRow:
    _found(store, name)
    for version in store.versions(name):
        if version.version == number:
            return version
    raise InvalidField(
        HTTPStatus.NOT_FOUND, f"{name} has no version {number}", hint=f"see /api/v1/experiments/{name}"
    )
