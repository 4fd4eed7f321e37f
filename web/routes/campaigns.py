"""Campaigns and their tasks: listed, looked at, cancelled, run again."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Annotated, Any, Final

import trio
from fastapi import APIRouter, Query, Response
from pydantic import ConfigDict

from protocol.errors import CampaignError
from protocol.values.attempt import TaskState
from results.row.form import JsonModel
from results.row.variant import way_of
from scheduler.experiments.clone import campaign_clone
from scheduler.models.uploads import Uploads
from scheduler.output.schemas import (
    CampaignDetail,
    CampaignInfo,
    TaskInfo,
    campaign_detail,
    campaign_info,
    task_info,
)
from scheduler.store.rows import CampaignStatus
from scheduler.store.store import Store
from scheduler.submit.cancel import ask_cancel
from scheduler.submit.daemon import is_running
from web.http.context import ApiContext
from web.http.parts import NOT_FOUND, PAGE, After, CampaignId, Limit, Number, conflict, found, problems
from web.http.problems import InvalidField


class CampaignPage(JsonModel):
    """Campaigns, the newest first."""

    count: int
    """On this page."""
    campaigns: tuple[CampaignInfo, ...]
    next: str | None
    """What to give as `after` for the page that follows; null: this is the last one."""


class TaskPage(JsonModel):
    """Tasks in the order of the campaign."""

    campaign: str
    count: int
    tasks: tuple[TaskInfo, ...]
    next: int | None


class CancelReply(JsonModel):
    """What a wish to cancel concerns. Devices confirm one by one: the events tell, and the tasks' states."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"target": "c-ab23cd45/3", "open_tasks": 1}]})

    target: str
    """A campaign's id, or a task's."""
    open_tasks: int
    """How many had not ended; 0: there was nothing left to cancel."""


_FILE: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "A campaign.yaml.", "content": {"text/yaml": {}}}
}


def router(desk: ApiContext) -> APIRouter:
    """Endpoints over `desk`."""
    v1 = APIRouter(prefix="/api/v1", tags=["campaigns"])

    @v1.get("/campaigns", operation_id="listCampaigns")
    async def campaigns(
        limit: Limit = PAGE,
        after: Annotated[
            str | None, Query(max_length=64, description="The id that the page before ended with.")
        ] = None,
        status: Annotated[CampaignStatus | None, Query(description="Only those that stand so.")] = None,
        name: Annotated[str, Query(max_length=100, description="Only those whose name holds this.")] = "",
    ) -> CampaignPage:
        """All campaigns of this home, the newest first."""
        scheduling = await trio.to_thread.run_sync(is_running, desk.home)

        def page(store: Store) -> CampaignPage:
            items = store.summaries_page(limit=limit + 1, after=after, status=status, name=name)
            if items is None:
                raise InvalidField(
                    HTTPStatus.UNPROCESSABLE_ENTITY,
                    f"after: no campaign {after!r} on this home",
                    hint="give the `next` of the page before",
                )
            told = tuple(campaign_info(item, scheduling=scheduling) for item in items[:limit])
            return CampaignPage(
                count=len(told),
                campaigns=told,
                next=told[-1].campaign_id if len(items) > limit else None,
            )

        return await desk.store(page)

    @v1.get("/campaigns/{campaign}", operation_id="getCampaign", responses=NOT_FOUND)
    async def campaign_(campaign: CampaignId) -> CampaignDetail:
        """One campaign: how it stands, its models, and the campaign as it was given."""
        scheduling = await trio.to_thread.run_sync(is_running, desk.home)
        return await desk.store(lambda store: detail_of(store, campaign, scheduling=scheduling))

    @v1.get(
        "/campaigns/{campaign}/file",
        operation_id="cloneCampaign",
        response_class=Response,
        responses=_FILE
        | problems(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    async def file(
        campaign: CampaignId,
        change: Annotated[
            list[Annotated[str, Query(max_length=2000)]] | None,
            Query(
                alias="set",
                max_length=64,
                description="Change a key on the way: KEY=VALUE, such as measure.batch=[1,8]. Repeatable.",
            ),
        ] = None,
    ) -> Response:
        """A campaign as a file, to be edited and submitted again."""

        def text(store: Store) -> str:
            found(store, campaign)
            try:
                return campaign_clone(store, campaign, change or (), Uploads(desk.home).folder)
            except CampaignError as exc:
                if change:
                    raise InvalidField(HTTPStatus.UNPROCESSABLE_ENTITY, exc.what, hint=exc.hint) from None
                raise conflict(exc) from None

        return Response(await desk.store(text), media_type="text/yaml; charset=utf-8")

    @v1.get("/campaigns/{campaign}/tasks", operation_id="listTasks", responses=NOT_FOUND)
    async def tasks(
        campaign: CampaignId,
        limit: Limit = PAGE,
        after: After = 0,
        state: Annotated[TaskState | None, Query(description="Only those in this state.")] = None,
    ) -> TaskPage:
        """Its tasks as they stand now, in the campaign's order."""

        def page(store: Store) -> TaskPage:
            found(store, campaign)
            rows = store.tasks_page(campaign, limit=limit + 1, after=after, state=state)
            rows, more = rows[:limit], len(rows) > limit
            bodies = store.bodies(campaign, rows[0].n, rows[-1].n) if rows else {}
            told = tuple(task_info(row, way_of(bodies[row.id])) for row in rows)
            return TaskPage(
                campaign=campaign,
                count=len(told),
                tasks=told,
                next=told[-1].n if more else None,
            )

        return await desk.store(page)

    @v1.post(
        "/campaigns/{campaign}/cancel",
        operation_id="cancelCampaign",
        status_code=HTTPStatus.ACCEPTED,
        responses=problems(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
    )
    async def cancel(campaign: CampaignId) -> CancelReply:
        """Cancel what of it has not ended. The answer comes at once; devices then confirm one by one."""
        return await _cancel(desk, campaign, campaign)

    @v1.post(
        "/campaigns/{campaign}/tasks/{n}/cancel",
        operation_id="cancelTask",
        status_code=HTTPStatus.ACCEPTED,
        responses=problems(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
    )
    async def cancel_task(campaign: CampaignId, n: Number) -> CancelReply:
        """Cancel one task."""
        return await _cancel(desk, campaign, f"{campaign}/{n}")

    return v1


def detail_of(store: Store, campaign: str, *, scheduling: bool) -> CampaignDetail:
    """All that is known of a campaign but its tasks. Raises `InvalidField`."""
    found(store, campaign)
    item = store.summary(campaign)
    assert item is not None, "it was found"
    return campaign_detail(
        item,
        store.models(campaign),
        _spec(item.campaign.spec),
        store.event_count(campaign)[1],
        scheduling=scheduling,
    )


def _spec(text: str) -> dict[str, Any]:
    """The campaign as stored; of a store that somebody edited, what can be read."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


async def _cancel(desk: ApiContext, campaign: str, target: str) -> CancelReply:
    def ask(store: Store) -> int:
        found(store, campaign)
        if target != campaign and store.task(target) is None:
            raise InvalidField(
                HTTPStatus.NOT_FOUND,
                f"no task {target!r}",
                hint=f"list them: /api/v1/campaigns/{campaign}/tasks",
            )
        try:
            return ask_cancel(store, target)
        except CampaignError as exc:
            raise conflict(exc) from None

    concerned = await desk.store(ask)
    if concerned:
        await desk.go_on()
    return CancelReply(target=target, open_tasks=concerned)
