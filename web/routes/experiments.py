"""Experiments: save, schedule, list, inspect, run, delete.

An experiment sent over HTTP names uploads and public URLs, as a campaign does, but no webhook. A webhook is a URL that this machine would
call, so it is set on the machine itself.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from protocol.errors import CampaignError
from results.row.form import JsonModel
from scheduler.experiments.judge import judge_ended
from scheduler.experiments.service import begin, read_schedule, remove, save_campaign, set_schedule
from scheduler.experiments.view import (
    ExperimentView,
    History,
    VersionView,
    experiment_view,
    history_view,
    version_view,
)
from scheduler.models.describe import describe_models
from scheduler.preview.look import check_devices
from scheduler.store.rows import ExperimentRow, VersionRow
from scheduler.store.store import Store
from swarm.download.urls import OTHERS_URL_REACH, OWNER_URL_REACH
from web.http.context import ApiContext, Context, SharedStore
from web.http.idempotency import Key
from web.http.parameters import MAX_NUMBER, PAGE, AfterName, Limit, conflict, page_of
from web.http.problems import HttpProblem, errors
from web.routes.campaigns import CAMPAIGN_BODY, CampaignText, start_once

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
    """Number of experiments on this page."""
    experiments: tuple[ExperimentView, ...]
    next: str | None
    """Pass as `after` for the next page; null on the last."""


class ExperimentDetail(ExperimentView):
    """An experiment with all its versions, oldest first."""

    versions: tuple[VersionView, ...]


class SavedVersion(VersionView):
    """A version that was saved."""

    new: bool
    """Whether the version differs from the previous one."""


class NewSchedule(BaseModel):
    """When an experiment runs automatically."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    every: Annotated[str, Field(max_length=40, examples=["1d"])]
    """Time from one run to the next, such as 6h or 1d."""
    at: Annotated[str, Field(max_length=40, examples=["03:00"])] | None = None
    """Time of day, in UTC."""
    alarm: Annotated[str, Field(max_length=40, examples=["5%"])] | None = None
    """Smallest certain slowdown that counts as a regression. Default: 1 %."""
    webhook: Annotated[str, Field(max_length=2000)] | None = None
    """URL to which regressions are sent. Accepted only if the server was started with --allow-paths; else set the webhook on the machine
    itself."""


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
def get_experiment(context: Context, store: SharedStore, experiment: ExperimentName) -> ExperimentDetail:
    """Get an experiment with its schedule and versions."""
    row = _require(store, experiment)
    uploads = context.uploads.folder
    versions = tuple(version_view(one, uploads) for one in store.experiments.versions(experiment))
    return ExperimentDetail(**experiment_view(store, row).model_dump(), versions=versions)


@api.get("/experiments/{experiment}/versions/{version}", responses=errors(404))
def get_version(
    context: Context, store: SharedStore, experiment: ExperimentName, version: Version
) -> VersionView:
    """Get a version as a campaign file, with the hashes of its models."""
    return version_view(_require_version(store, experiment, version), context.uploads.folder)


@api.put(
    "/experiments/{experiment}",
    responses={**errors(413, 415, 422), 201: {"model": SavedVersion, "description": "A new experiment."}},
    openapi_extra=CAMPAIGN_BODY,
)
async def save_experiment(
    context: Context, experiment: ExperimentName, text: CampaignText, response: Response
) -> SavedVersion:
    """Save a campaign as an experiment, or as its next version if the campaign or a model has changed. Saving it unchanged does nothing.

    A `schedule` in the campaign replaces that of the experiment; its webhook stays as it is.
    """

    def save(store: Store) -> tuple[SavedVersion, bool]:
        uploads = context.uploads
        campaign = context.read_campaign(*text)
        if campaign.schedule is not None:
            _refuse_webhook(context, campaign.schedule.webhook)
        models = describe_models(campaign, uploads.folder, context.fetch_model(OTHERS_URL_REACH))
        created = store.experiments.get(experiment) is None
        version, new = save_campaign(
            store, campaign, models, str(uploads.folder), name=experiment, keep_webhook=True
        )
        view = version_view(version, uploads.folder)
        return SavedVersion(**view.model_dump(), new=new), created

    saved, created = await context.isolated(save, limiter=context.fetching)
    response.status_code = 201 if created else 200
    return saved


@api.delete("/experiments/{experiment}", status_code=204, responses=errors(404))
def delete_experiment(store: SharedStore, experiment: ExperimentName) -> None:
    """Delete an experiment with its versions, schedule and history. Its campaigns and their results stay."""
    _require(store, experiment)
    remove(store, experiment)


@api.put("/experiments/{experiment}/schedule", responses=errors(404, 422))
def schedule_experiment(
    context: Context, store: SharedStore, experiment: ExperimentName, schedule: Annotated[NewSchedule, Body()]
) -> ExperimentView:
    """Replace an experiment's schedule. Its webhook stays as it is."""
    _require(store, experiment)
    _refuse_webhook(context, schedule.webhook)
    read = read_schedule(schedule.model_dump())
    set_schedule(store, experiment, read, now=time.time(), keep_webhook=True)
    return experiment_view(store, _require(store, experiment))


@api.delete("/experiments/{experiment}/schedule", responses=errors(404))
def unschedule_experiment(store: SharedStore, experiment: ExperimentName) -> ExperimentView:
    """Remove an experiment's schedule: it runs on request only."""
    _require(store, experiment)
    set_schedule(store, experiment, None, now=time.time())
    return experiment_view(store, _require(store, experiment))


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
    version: Annotated[
        int | None,
        Query(ge=1, le=MAX_NUMBER, description="Number of the version to run. Default: the latest."),
    ] = None,
    key: Key = None,
) -> dict[str, Any]:
    """Run the latest version now with its models' current content, or a given version exactly as it was."""
    title = experiment if version is None else f"{experiment}@{version}"

    def start(store: Store, new: str) -> RunStarted:
        stored = store.experiments.run(new)  # stored by a server that was killed before its response
        if stored is not None:
            return RunStarted(campaign=new, experiment=stored.experiment, version=stored.version)
        _require(store, experiment)
        if version is not None:
            _require_version(store, experiment, version)
        try:
            check, fetch = (
                partial(check_devices, context.home, gates=context.gates),
                context.fetch_model(OWNER_URL_REACH),
            )
            begun = begin(context.home, store, title, check=check, fetch=fetch, campaign_id=new)
        except CampaignError as exc:
            raise conflict(exc) from None
        assert begun is not None, "only scheduled runs can be started by somebody else"
        return RunStarted(campaign=new, experiment=begun[1].experiment, version=begun[1].version)

    return await start_once(context, response, key, f"experiment\0{title}".encode(), start)


def _refuse_webhook(context: ApiContext, webhook: str | None) -> None:
    if webhook is not None and not context.allow_paths:
        raise HttpProblem(
            422,
            "webhook: it is not set over HTTP, since this machine would send to it",
            hint="on the machine itself: sark-node experiment schedule NAME --every 1d --webhook URL; "
            "or start the server with --allow-paths",
        )


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
