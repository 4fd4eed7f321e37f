"""Campaigns and their tasks: submit, list, clone, cancel, retry."""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any, Final

import trio
from fastapi import APIRouter, Query, Request, Response
from pydantic import ConfigDict

from protocol.errors import CampaignError
from protocol.values.attempt import TaskState
from results.row.form import JsonModel
from results.row.row import configuration_of
from scheduler.campaign.fields import MAX_DURATION_S
from scheduler.campaign.load import parse_campaign
from scheduler.experiments.clone import campaign_clone
from scheduler.models.describe import describe_models
from scheduler.models.fetch import downloader
from scheduler.models.uploads import Uploads, placed
from scheduler.output.schemas import (
    CampaignDetail,
    CampaignInfo,
    TaskInfo,
    campaign_detail,
    campaign_info,
    task_info,
)
from scheduler.store.rows import CampaignStatus, CampaignSummary
from scheduler.store.store import Store
from scheduler.submit.cancel import request_cancel
from scheduler.submit.daemon import is_running
from scheduler.submit.submit import retry_campaign, store_campaign
from swarm.base.units import DurationError, parse_duration
from web.http.context import ApiContext
from web.http.idempotency import Key
from web.http.parameters import (
    NOT_FOUND,
    PAGE,
    After,
    CampaignId,
    Limit,
    Number,
    conflict,
    no_task,
    problems,
    require_campaign,
)
from web.http.problems import HttpProblem

FILES: Final = {
    "application/json": "campaign.json",
    "text/yaml": "campaign.yaml",
    "application/yaml": "campaign.yaml",
    "application/x-yaml": "campaign.yaml",
}
"""Content types of a campaign, with the file name that errors show."""
CAMPAIGN_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "description": "A campaign in the form of campaign.yaml, or in the plain form (`model_url` with `jobs`).",
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        {"$ref": "#/components/schemas/Campaign"},
                        {"$ref": "#/components/schemas/PlainCampaign"},
                    ]
                },
                "example": {
                    "campaign": "vision",
                    "models": ["https://example.org/mobilenet.onnx"],
                    "units": ["CPU (ONNX)"],
                    "measure": {"runs": 100},
                },
            },
            "text/yaml": {"schema": {"type": "string"}},
        },
    }
}
_CLONED: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "A campaign.yaml.", "content": {"text/yaml": {}}}
}


class CampaignPage(JsonModel):
    """Campaigns, newest first."""

    count: int
    """On this page."""
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

    model_config = ConfigDict(json_schema_extra={"examples": [{"target": "c-ab23cd45/3", "open_tasks": 1}]})

    target: str
    """A campaign's id or a task's."""
    open_tasks: int
    """Tasks that had not ended; 0 if there was nothing to cancel."""


class RetryReply(JsonModel):
    """A new campaign with the tasks of an old one that did not succeed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"campaign": "c-ab23cd45", "tasks": 2}]})

    campaign: str
    tasks: int


def router(context: ApiContext) -> APIRouter:
    """Campaigns."""
    v1 = APIRouter(prefix="/api/v1", tags=["campaigns"])
    uploads = Uploads(context.home)

    @v1.post(
        "/campaigns",
        operation_id="createCampaign",
        status_code=HTTPStatus.CREATED,
        response_model=CampaignInfo,
        responses=problems(
            HTTPStatus.CONFLICT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        ),
        openapi_extra=CAMPAIGN_BODY,
    )
    async def create(
        request: Request,
        response: Response,
        wait: Annotated[
            str,
            Query(
                max_length=20,
                description="How long to wait for a matching device before a task fails, such as 90s or 10m.",
            ),
        ] = "60s",
        key: Key = None,
    ) -> dict[str, Any]:
        """Submit a campaign. It is stored on disk before the response, and runs by itself.

        A model is an `https://` or `hf://` URL, or `sha256:…` of a model uploaded to `/api/v1/models`.
        """
        wait_s = _seconds(wait)
        file = file_name_for(request.headers.get("content-type", ""))
        body = await request.body()
        reply, replayed = await context.idempotency.run(
            key,
            b"\0".join([b"create", file.encode(), wait.encode(), body]),
            lambda new: create_campaign(context, uploads, body, file, wait_s=wait_s, campaign_id=new),
        )
        return await _answer_created(context, response, reply, reply["campaign_id"], replayed=replayed)

    @v1.get("/campaigns", operation_id="listCampaigns")
    async def campaigns(
        limit: Limit = PAGE,
        after: Annotated[str | None, Query(max_length=64, description="`next` of the previous page.")] = None,
        status: Annotated[
            CampaignStatus | None, Query(description="Only campaigns with this status.")
        ] = None,
        name: Annotated[str, Query(max_length=100, description="Only names that contain this.")] = "",
    ) -> CampaignPage:
        """List this home's campaigns, newest first."""
        scheduling = await trio.to_thread.run_sync(is_running, context.home)

        def page(store: Store) -> CampaignPage:
            summaries = store.campaigns.page(limit=limit + 1, after=after, status=status, name=name)
            if summaries is None:
                raise HttpProblem(
                    HTTPStatus.UNPROCESSABLE_ENTITY,
                    f"after: no campaign {after!r} on this home",
                    hint="pass the `next` of the previous page",
                )
            infos = tuple(campaign_info(item, scheduling=scheduling) for item in summaries[:limit])
            more = len(summaries) > limit
            return CampaignPage(
                count=len(infos), campaigns=infos, next=infos[-1].campaign_id if more else None
            )

        return await context.store(page)

    @v1.get("/campaigns/{campaign}", operation_id="getCampaign", responses=NOT_FOUND)
    async def campaign_(campaign: CampaignId) -> CampaignDetail:
        """Get a campaign: its status, its models, and the campaign as submitted."""
        scheduling = await trio.to_thread.run_sync(is_running, context.home)

        def detail(store: Store) -> CampaignDetail:
            summary = require_summary(store, campaign)
            models, events = store.campaigns.models(campaign), store.events.count(campaign)[1]
            return campaign_detail(
                summary, models, _read_spec(summary.campaign.spec), events, scheduling=scheduling
            )

        return await context.store(detail)

    @v1.get(
        "/campaigns/{campaign}/file",
        operation_id="cloneCampaign",
        response_class=Response,
        responses=_CLONED
        | problems(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    async def file(
        campaign: CampaignId,
        change: Annotated[
            list[Annotated[str, Query(max_length=2000)]] | None,
            Query(
                alias="set",
                max_length=64,
                description="Change a key: KEY=VALUE, such as measure.batch=[1,8]. Repeatable.",
            ),
        ] = None,
    ) -> Response:
        """Get a campaign as a file, to edit and submit again."""

        def text(store: Store) -> str:
            require_campaign(store, campaign)
            try:
                return campaign_clone(store, campaign, change or (), uploads.folder)
            except CampaignError as exc:
                if change:
                    raise HttpProblem(HTTPStatus.UNPROCESSABLE_ENTITY, exc.what, hint=exc.hint) from None
                raise conflict(exc) from None

        return Response(await context.store(text), media_type="text/yaml; charset=utf-8")

    @v1.get("/campaigns/{campaign}/tasks", operation_id="listTasks", responses=NOT_FOUND)
    async def tasks(
        campaign: CampaignId,
        limit: Limit = PAGE,
        after: After = 0,
        state: Annotated[TaskState | None, Query(description="Only tasks in this state.")] = None,
    ) -> TaskPage:
        """List a campaign's tasks with their current state, in the campaign's order."""

        def page(store: Store) -> TaskPage:
            require_campaign(store, campaign)
            rows = store.tasks.page(campaign, limit=limit + 1, after=after, state=state)
            rows, more = rows[:limit], len(rows) > limit
            bodies = store.tasks.bodies(campaign, rows[0].n, rows[-1].n) if rows else {}
            infos = tuple(task_info(row, configuration_of(bodies[row.id])) for row in rows)
            return TaskPage(
                campaign=campaign, count=len(infos), tasks=infos, next=infos[-1].n if more else None
            )

        return await context.store(page)

    @v1.post(
        "/campaigns/{campaign}/cancel",
        operation_id="cancelCampaign",
        status_code=HTTPStatus.ACCEPTED,
        responses=problems(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
    )
    async def cancel(campaign: CampaignId) -> CancelReply:
        """Cancel the open tasks of a campaign. The response is immediate; devices confirm one by one."""
        return await _cancel(context, campaign, None)

    @v1.post(
        "/campaigns/{campaign}/tasks/{n}/cancel",
        operation_id="cancelTask",
        status_code=HTTPStatus.ACCEPTED,
        responses=problems(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
    )
    async def cancel_task(campaign: CampaignId, n: Number) -> CancelReply:
        """Cancel one task."""
        return await _cancel(context, campaign, n)

    @v1.post(
        "/campaigns/{campaign}/retry",
        operation_id="retryCampaign",
        status_code=HTTPStatus.CREATED,
        response_model=RetryReply,
        responses=problems(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
    )
    async def retry(campaign: CampaignId, response: Response, key: Key = None) -> dict[str, Any]:
        """Run the failed and cancelled tasks again, as a new campaign. The old campaign does not change."""
        reply, replayed = await context.idempotency.run(
            key, f"retry\0{campaign}".encode(), lambda new: _retry(context, uploads, campaign, new)
        )
        return await _answer_created(context, response, reply, reply["campaign"], replayed=replayed)

    return v1


def require_summary(store: Store, campaign: str) -> CampaignSummary:
    """The campaign with its counts. Raises `HttpProblem` 404."""
    require_campaign(store, campaign)
    summary = store.campaigns.summary(campaign)
    assert summary is not None
    return summary


def file_name_for(content_type: str) -> str:
    """The file name that errors show for a campaign of this content type. Raises `HttpProblem`."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type not in FILES:
        raise HttpProblem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "a campaign is JSON or YAML",
            hint="send the header Content-Type: application/json or text/yaml",
        )
    return FILES[media_type]


def fetcher(context: ApiContext) -> Callable[..., Any]:
    """Downloads models by URL for a campaign that came over HTTP, without a progress display."""
    return downloader(context.home, lambda name, done, total: None, reach=context.reach)


async def create_campaign(
    context: ApiContext, uploads: Uploads, body: bytes, file: str, *, wait_s: float, campaign_id: str
) -> dict[str, Any]:
    """Store the campaign unless it is stored; gives its `CampaignInfo` as JSON."""

    def create(store: Store) -> CampaignInfo:
        if store.campaigns.get(campaign_id) is None:
            campaign = placed(parse_campaign(body, file), uploads, allow_paths=context.allow_paths)
            models = describe_models(campaign, uploads.folder, fetcher(context))
            folder = str(uploads.folder)
            store_campaign(
                context.home, store, campaign, models, folder=folder, wait_s=wait_s, campaign_id=campaign_id
            )
        return campaign_info(require_summary(store, campaign_id), scheduling=is_running(context.home))

    return (await context.isolated(create, fetching=True)).model_dump(mode="json")


async def _retry(context: ApiContext, uploads: Uploads, campaign: str, campaign_id: str) -> dict[str, Any]:
    def retry(store: Store) -> RetryReply:
        require_campaign(store, campaign)
        stored = store.campaigns.summary(campaign_id)
        if stored is not None:
            return RetryReply(campaign=campaign_id, tasks=stored.tasks)
        try:
            _, tasks = retry_campaign(
                context.home, store, campaign, uploads.folder, campaign_id=campaign_id, fetch=fetcher(context)
            )
        except CampaignError as exc:
            raise conflict(exc) from None
        return RetryReply(campaign=campaign_id, tasks=tasks)

    return (await context.isolated(retry, fetching=True)).model_dump(mode="json")


async def _answer_created(
    context: ApiContext, response: Response, reply: dict[str, Any], campaign: str, *, replayed: bool
) -> dict[str, Any]:
    await context.ensure_scheduler()
    response.headers["Location"] = f"/api/v1/campaigns/{campaign}"
    if replayed:
        response.headers["Idempotency-Replayed"] = "true"
    return reply


async def _cancel(context: ApiContext, campaign: str, n: int | None) -> CancelReply:
    target = campaign if n is None else f"{campaign}/{n}"

    def cancel(store: Store) -> int:
        require_campaign(store, campaign)
        if n is not None and store.tasks.get(target) is None:
            raise no_task(campaign, n)
        try:
            return request_cancel(store, target)
        except CampaignError as exc:
            raise conflict(exc) from None

    open_tasks = await context.store(cancel)
    if open_tasks:
        await context.ensure_scheduler()
    return CancelReply(target=target, open_tasks=open_tasks)


def _seconds(wait: str) -> float:
    try:
        return parse_duration(wait, units="ms s m h d", max_s=MAX_DURATION_S)
    except DurationError as exc:
        raise HttpProblem(HTTPStatus.UNPROCESSABLE_ENTITY, f"wait: {exc.what}", hint=exc.hint) from None


def _read_spec(text: str) -> dict[str, Any]:
    """The campaign as stored, or {} if it was edited into something else."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
