"""Campaigns and their tasks: submit, list, clone, cancel, retry, delete; validate, plan and explain."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request, Response

from protocol.errors import CampaignError
from protocol.formats.frameworks import taken_by
from protocol.values.attempt import TaskState
from results.row.form import JsonModel, configurations_of
from scheduler.campaign.fields import MAX_DURATION_S, UNITS
from scheduler.campaign.model import Campaign
from scheduler.campaign.text import campaign_schema
from scheduler.experiments.clone import campaign_clone
from scheduler.experiments.deletion import DeletedCampaign, delete_campaign
from scheduler.models.describe import describe_models
from scheduler.models.files import Models
from scheduler.output.schemas import (
    CampaignDetail,
    CampaignInfo,
    TaskInfo,
    campaign_detail,
    campaign_info,
    task_info,
)
from scheduler.preview.explaining import explain_campaign
from scheduler.preview.look import check_devices, plan_campaign
from scheduler.preview.plan import LivePlan
from scheduler.preview.plan_table import save_plan
from scheduler.preview.validate import ValidationReport, check
from scheduler.preview.why import WhyReport
from scheduler.store.rows import CampaignStatus, CampaignSummary
from scheduler.store.store import Store
from scheduler.submit.daemon import is_running
from scheduler.submit.submit import request_cancel, retry_campaign, store_campaign
from swarm.base.units import DurationError, parse_duration
from web.http.context import ApiContext, Context, SharedStore
from web.http.idempotency import Key
from web.http.parameters import (
    AFTER,
    PAGE,
    After,
    CampaignId,
    Limit,
    Number,
    conflict,
    no_campaign,
    page_of,
    require_campaign,
    require_task,
)
from web.http.problems import HttpProblem, errors, file_of

FILES: Final = {
    "application/json": "campaign.json",
    "text/yaml": "campaign.yaml",
    "application/yaml": "campaign.yaml",
    "application/x-yaml": "campaign.yaml",
}
"""Content types of a campaign, with the file name that errors show."""

api = APIRouter(prefix="/api/v1", tags=["campaigns"])
planning = APIRouter(prefix="/api/v1", tags=["planning"])


def campaign_body(description: str, example: dict[str, Any], **more: Any) -> dict[str, Any]:
    """`openapi_extra` of an endpoint that reads a campaign. `more`: other media types."""
    schemas = [{"$ref": f"#/components/schemas/{name}"} for name in ("Campaign", "PlainCampaign")]
    content = {"application/json": {"schema": {"anyOf": schemas}, "example": example}, **more}
    return {"requestBody": {"required": True, "description": description, "content": content}}


CAMPAIGN_BODY: Final = campaign_body(
    "A campaign in the form of campaign.yaml, or in the plain form (`model_url` with `jobs`).",
    {
        "campaign": "vision",
        "models": ["https://example.org/mobilenet.onnx"],
        "units": ["CPU (ONNX)"],
        "measure": {"runs": 100},
    },
    **{"text/yaml": {"schema": {"type": "string"}}},
)


async def _campaign_text(request: Request) -> tuple[bytes, str]:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in FILES:
        raise HttpProblem(
            415,
            "a campaign is JSON or YAML",
            hint="send the header Content-Type: application/json or text/yaml",
        )
    return await request.body(), FILES[media_type]


CampaignText = Annotated[tuple[bytes, str], Depends(_campaign_text)]
"""The body, and the file name that errors show."""


class UnitFormatsView(JsonModel):
    """A compute unit that is known here."""

    unit: str
    formats: tuple[str, ...] | None
    """Formats of the models that the unit runs. Null if it measures no file, or may run any format."""


class OfferedUnits(JsonModel):
    """All compute units that are known here."""

    units: tuple[UnitFormatsView, ...]


class CampaignPage(JsonModel):
    """Campaigns, newest first."""

    count: int
    """Number of campaigns on this page."""
    campaigns: tuple[CampaignInfo, ...]
    next: str | None
    """Pass as `after` for the next page; null on the last."""


class TaskPage(JsonModel):
    """Tasks in the order of the campaign."""

    campaign: str
    count: int
    tasks: tuple[TaskInfo, ...]
    next: int | None


class CancelReply(JsonModel):
    """A cancellation that was recorded. Devices confirm one by one: follow the events or the tasks' states."""

    target: str
    """Id of the campaign or task, such as c-ab23cd45/3."""
    open_tasks: int
    """Number of tasks that had not ended. 0 if there was nothing to cancel."""


class RetryReply(JsonModel):
    """A new campaign with the tasks of an old one that did not succeed."""

    campaign: str
    tasks: int


@api.post(
    "/campaigns",
    status_code=201,
    response_model=CampaignInfo,
    responses=errors(409, 413, 415),
    openapi_extra=CAMPAIGN_BODY,
)
async def create_campaign(
    context: Context,
    text: CampaignText,
    response: Response,
    wait: Annotated[
        str,
        Query(
            max_length=20,
            description="Maximum wait for a matching device before a task fails, such as 90s or 10m.",
        ),
    ] = "60s",
    key: Key = None,
) -> dict[str, Any]:
    """Submit a campaign. It is stored on disk before the response, and runs by itself.

    A model is an `https://` or `hf://` URL, or `sha256:…` of a model uploaded to `/api/v1/models`.
    """
    body, file = text
    try:
        wait_s = parse_duration(wait, units="ms s m h d", max_s=MAX_DURATION_S)
    except DurationError as exc:
        raise HttpProblem(422, f"wait: {exc.what}", hint=exc.hint) from None
    request = b"\0".join([b"create", file.encode(), wait.encode(), body])
    return await start_once(context, response, key, request, creation(context, body, file, wait_s))


@api.get("/campaigns")
def list_campaigns(
    context: Context,
    store: SharedStore,
    limit: Limit = PAGE,
    after: Annotated[str | None, Query(max_length=64, description=AFTER)] = None,
    status: Annotated[CampaignStatus | None, Query(description="Status of the campaigns to list.")] = None,
    name: Annotated[
        str, Query(max_length=100, description="Text that the names of the listed campaigns contain.")
    ] = "",
) -> CampaignPage:
    """List this home's campaigns, newest first."""
    summaries = store.campaigns.page(limit=limit + 1, after=after, status=status, name=name)
    if summaries is None:
        raise HttpProblem(
            422, f"after: no campaign {after!r} on this home", hint="pass the `next` of the previous page"
        )
    scheduling = is_running(context.home)
    page, more = page_of(summaries, limit, lambda item: item.campaign.id)
    infos = tuple(campaign_info(item, scheduling=scheduling) for item in page)
    return CampaignPage(count=len(infos), campaigns=infos, next=more)


@api.get("/campaigns/{campaign}", responses=errors(404))
def get_campaign(context: Context, store: SharedStore, campaign: CampaignId) -> CampaignDetail:
    """Get a campaign: its status, its models, and the campaign as submitted."""
    summary = require_summary(store, campaign)
    models, events = store.campaigns.models(campaign), store.events.count(campaign)[1]
    scheduling = is_running(context.home)
    return campaign_detail(summary, models, _read_spec(summary.campaign.spec), events, scheduling=scheduling)


@api.get(
    "/campaigns/{campaign}/file",
    response_class=Response,
    responses=file_of("text/yaml", description="A campaign.yaml.") | errors(404, 409, 422),
)
def clone_campaign(
    context: Context,
    store: SharedStore,
    campaign: CampaignId,
    change: Annotated[
        list[Annotated[str, Query(max_length=2000)]] | None,
        Query(
            alias="set",
            max_length=64,
            description="Changed key of the campaign: KEY=VALUE, such as measure.batch=[1,8]. Repeatable.",
        ),
    ] = None,
) -> Response:
    """Get a campaign as a file, to edit and submit again."""
    require_campaign(store, campaign)
    try:
        text = campaign_clone(store, campaign, change or (), context.uploads.folder)
    except CampaignError as exc:
        if change:
            raise  # the requested change is wrong, not the campaign
        raise conflict(exc) from None
    return Response(text, media_type="text/yaml; charset=utf-8")


@api.get("/campaigns/{campaign}/tasks", responses=errors(404))
def list_tasks(
    store: SharedStore,
    campaign: CampaignId,
    limit: Limit = PAGE,
    after: After = 0,
    state: Annotated[TaskState | None, Query(description="State of the tasks to list.")] = None,
) -> TaskPage:
    """List a campaign's tasks with their current state, in the campaign's order."""
    require_campaign(store, campaign)
    rows = store.tasks.page(campaign, limit=limit + 1, after=after, state=state)
    page, more = page_of(rows, limit, lambda row: row.n)
    found = configurations_of(store.tasks.bodies(campaign, page[0].n, page[-1].n) if page else {})
    infos = tuple(task_info(row, found[row.id]) for row in page)
    return TaskPage(campaign=campaign, count=len(infos), tasks=infos, next=more)


@api.post("/campaigns/{campaign}/cancel", status_code=202, responses=errors(404, 409))
async def cancel_campaign(context: Context, campaign: CampaignId) -> CancelReply:
    """Cancel the open tasks of a campaign. The response is immediate; devices confirm one by one."""
    return await _cancel(context, campaign, None)


@api.post("/campaigns/{campaign}/tasks/{n}/cancel", status_code=202, responses=errors(404, 409))
async def cancel_task(context: Context, campaign: CampaignId, n: Number) -> CancelReply:
    """Cancel one task."""
    return await _cancel(context, campaign, n)


@api.post(
    "/campaigns/{campaign}/retry", status_code=201, response_model=RetryReply, responses=errors(404, 409)
)
async def retry_campaign_(
    context: Context, campaign: CampaignId, response: Response, key: Key = None
) -> dict[str, Any]:
    """Run the failed and cancelled tasks again, as a new campaign. The old campaign does not change."""

    def retry(store: Store, new: str) -> RetryReply:
        require_campaign(store, campaign)
        stored = store.campaigns.summary(new)
        if stored is not None:
            return RetryReply(campaign=new, tasks=stored.tasks)
        folder, fetch = context.uploads.folder, context.fetch_model()
        try:
            _, tasks = retry_campaign(context.home, store, campaign, folder, campaign_id=new, fetch=fetch)
        except CampaignError as exc:
            raise conflict(exc) from None
        return RetryReply(campaign=new, tasks=tasks)

    return await start_once(context, response, key, f"retry\0{campaign}".encode(), retry)


@api.delete("/campaigns/{campaign}", responses=errors(404, 409))
async def delete_campaign_(context: Context, campaign: CampaignId) -> DeletedCampaign:
    """Delete an ended campaign with its results, signed records, events and models, here and on the devices that ran it.

    A device that is away is asked once it can be reached again. Uploaded models stay. This cannot be undone.
    """

    def delete(store: Store) -> DeletedCampaign:
        require_campaign(store, campaign)
        try:
            return delete_campaign(context.home, store, campaign)
        except CampaignError as exc:
            raise conflict(exc) from None

    deleted = await context.isolated(delete)
    if deleted.devices:
        await context.ensure_scheduler()
    return deleted


@planning.post("/validate", responses=errors(415, 422), openapi_extra=CAMPAIGN_BODY)
async def validate_campaign(
    context: Context,
    text: CampaignText,
    models: Annotated[
        bool,
        Query(
            description="Whether to also check the models, downloading those with a URL, and the named devices."
        ),
    ] = True,
) -> ValidationReport:
    """Validate a campaign's text: all errors with line and hint, or what the campaign would measure."""

    def describe(campaign: Campaign) -> Models:
        models = describe_models(campaign, context.uploads.folder, context.fetch_model())
        check_devices(context.home, campaign, context.gates)
        return models

    return await context.isolated(
        lambda store: check(*text, context.read_campaign, describe if models else None),
        limiter=context.fetching,
    )


@planning.post("/plan", responses=errors(415, 422), openapi_extra=CAMPAIGN_BODY)
async def plan_campaign_(context: Context, text: CampaignText) -> LivePlan:
    """Plan a campaign on the current devices: where, when, how long, and why not. Commits nothing."""

    def make(store: Store) -> LivePlan:
        campaign = context.read_campaign(*text)
        models = describe_models(campaign, context.uploads.folder, context.fetch_model())
        made = plan_campaign(context.home, campaign, models, context.gates())
        with contextlib.suppress(OSError):  # the plan is useful even if it cannot be stored
            save_plan(context.home, made)
        return made

    return await context.isolated(make, limiter=context.fetching)


@planning.get("/explain/{campaign}", responses=errors(404))
async def explain_campaign_(context: Context, campaign: CampaignId) -> WhyReport:
    """Explain a campaign's state: what its tasks wait for, what was tried, who refused, what would help."""
    return await context.isolated(lambda store: _explain(context, store, campaign, None))


@planning.get("/explain/{campaign}/{n}", responses=errors(404))
async def explain_task(context: Context, campaign: CampaignId, n: Number) -> WhyReport:
    """Explain a task's state."""
    return await context.isolated(lambda store: _explain(context, store, campaign, n))


@planning.get("/units")
def list_units() -> OfferedUnits:
    """List the compute units that are known here, with the model formats that each runs. Devices may have other units: see `/peers`."""
    return OfferedUnits(units=tuple(UnitFormatsView(unit=unit, formats=taken_by(unit)) for unit in UNITS))


@planning.get("/campaign-schema")
async def campaign_schema_() -> dict[str, Any]:
    """Get the JSON Schema of a campaign, for editors."""
    return campaign_schema()


def require_summary(store: Store, campaign: str) -> CampaignSummary:
    """The campaign with its counts. Raises `HttpProblem` 404."""
    summary = store.campaigns.summary(campaign)
    if summary is None:
        raise no_campaign(campaign)
    return summary


def creation(
    context: ApiContext, body: bytes, file: str, wait_s: float
) -> Callable[[Store, str], CampaignInfo]:
    """A function that stores the campaign in `body` under an id, unless it is already stored."""

    def create(store: Store, new: str) -> CampaignInfo:
        if store.campaigns.get(new) is None:
            uploads = context.uploads
            campaign = context.read_campaign(body, file)
            models = describe_models(campaign, uploads.folder, context.fetch_model())
            check_devices(context.home, campaign, context.gates)
            folder = str(uploads.folder)
            store_campaign(
                context.home, store, campaign, models, folder=folder, wait_s=wait_s, campaign_id=new
            )
        return campaign_info(require_summary(store, new), scheduling=is_running(context.home))

    return create


async def start_once(
    context: ApiContext,
    response: Response,
    key: str | None,
    request: bytes,
    make: Callable[[Store, str], JsonModel],
) -> dict[str, Any]:
    """The answer of `make(store, new campaign's id)` as JSON; for a repeated request, the stored answer. The campaign runs by itself."""

    async def answer(new: str) -> dict[str, Any]:
        made = await context.isolated(lambda store: make(store, new), limiter=context.fetching)
        return made.model_dump(mode="json")

    reply, campaign, replayed = await context.idempotency.run(key, request, answer)
    await context.ensure_scheduler()
    response.headers["Location"] = f"/api/v1/campaigns/{campaign}"
    if replayed:
        response.headers["Idempotency-Replayed"] = "true"
    return reply


async def _cancel(context: ApiContext, campaign: str, n: int | None) -> CancelReply:
    target = campaign if n is None else f"{campaign}/{n}"

    def cancel(store: Store) -> int:
        require_campaign(store, campaign)
        if n is not None:
            require_task(store, campaign, n)
        try:
            return request_cancel(store, target)
        except CampaignError as exc:
            raise conflict(exc) from None

    open_tasks = await context.store(cancel)
    if open_tasks:
        await context.ensure_scheduler()
    return CancelReply(target=target, open_tasks=open_tasks)


def _read_spec(text: str) -> dict[str, Any]:
    """The campaign as stored; {}: it was edited and is no longer a JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _explain(context: ApiContext, store: Store, campaign: str, n: int | None) -> WhyReport:
    require_campaign(store, campaign)
    if n is not None:
        require_task(store, campaign, n)
    return explain_campaign(context.home, store, campaign, "" if n is None else str(n), context.gates)
