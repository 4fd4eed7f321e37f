"""One task: its details, charts, verification, and its signed result as a file."""

from __future__ import annotations

from http import HTTPStatus

import trio
from fastapi import APIRouter
from fastapi.responses import Response

from protocol.errors import RemoteProtocolError
from protocol.values.record import read_record
from results.analysis.verify import VerifyFindingInfo, check_results, finding_info
from results.export.raw import RawResult, json_lines
from results.report.drawing import Drawing, Theme
from results.report.task_charts import TaskChart, task_chart
from results.row.row import Row
from scheduler.output.task_detail import TaskDetail, task_detail
from scheduler.store.results import campaign_rows, raw_results
from scheduler.store.rows import ResultRow
from scheduler.store.store import Store
from web.http.context import ApiContext
from web.http.parameters import NOT_FOUND, CampaignId, Number, no_task, require_campaign
from web.http.problems import HttpProblem
from web.http.svg import SVG, svg_response
from web.routes.results import MAX_REPLICAS


def router(context: ApiContext) -> APIRouter:
    """Tasks."""
    v1 = APIRouter(prefix="/api/v1", tags=["tasks"])

    @v1.get("/campaigns/{campaign}/tasks/{n}", operation_id="getTask", responses=NOT_FOUND)
    async def task(campaign: CampaignId, n: Number) -> TaskDetail:
        """Get a task: attempts and refusals, the worker and its device, host state, the verdict with its reasons."""

        def detail(store: Store) -> TaskDetail:
            name = require_campaign(store, campaign).name
            stored = _require_task(store, campaign, n)
            attempts, events = (
                store.attempts.of_task(stored.task.id),
                store.events.of_task(campaign, stored.task.id),
            )
            return task_detail(stored, _row(store, stored), name, attempts, events)

        return await context.store(detail)

    @v1.get(
        "/campaigns/{campaign}/tasks/{n}/chart",
        operation_id="getTaskChart",
        response_class=Response,
        responses=NOT_FOUND | SVG,
    )
    async def chart(campaign: CampaignId, n: Number, kind: TaskChart, theme: Theme = "light") -> Response:
        """Get a chart of a task as SVG, drawn from its raw samples."""
        record, row = await context.store(lambda store: _record(store, campaign, n))
        return svg_response(await trio.to_thread.run_sync(_draw, kind, record, row), theme, kind)

    @v1.get(
        "/campaigns/{campaign}/tasks/{n}/raw",
        operation_id="getSignedResult",
        response_class=Response,
        responses=NOT_FOUND
        | {
            200: {"content": {"application/json": {"schema": {"type": "object"}}}, "description": "The file."}
        },
    )
    async def raw(campaign: CampaignId, n: Number) -> Response:
        """Get the signed record with its raw samples, for `sark-node verify`. The task's replicas are included."""
        stored = await context.store(lambda store: _raw(store, campaign, n))
        body = await trio.to_thread.run_sync(lambda: "".join(json_lines(campaign, stored)))
        headers = {"Content-Disposition": f'attachment; filename="{campaign}-{n}.json"'}
        return Response(body, media_type="application/json", headers=headers)

    @v1.get("/campaigns/{campaign}/tasks/{n}/verify", operation_id="verifyTask", responses=NOT_FOUND)
    async def verify(campaign: CampaignId, n: Number) -> VerifyFindingInfo:
        """Verify a result: the worker's signature, the hashes of task and model, and the row recomputed from the samples."""
        stored = await context.store(lambda store: _raw(store, campaign, n))
        findings = await trio.to_thread.run_sync(check_results, campaign, stored)
        return next(finding_info(finding) for finding in findings if finding.task == f"{campaign}/{n}")

    return v1


def _require_task(store: Store, campaign: str, n: int) -> ResultRow:
    """The task with its deciding record. Raises `HttpProblem` 404."""
    require_campaign(store, campaign)
    stored = store.results.rows(campaign, n, n)
    if not stored:
        raise no_task(campaign, n)
    return stored[0]


def _with_replicas(store: Store, stored: ResultRow) -> list[ResultRow]:
    """The task with all its replicas, which are numbered consecutively."""
    task = stored.task
    if task.replica is None:
        return [stored]
    first = task.n - task.replica
    near = store.results.rows(task.campaign, task.n - MAX_REPLICAS, task.n + MAX_REPLICAS)
    return [other for other in near if other.task.replica and other.task.n - other.task.replica == first]


def _row(store: Store, stored: ResultRow) -> Row | None:
    """The task's row of the results, or None until it has ended."""
    if stored.task.ended is None:
        return None
    rows = campaign_rows(_with_replicas(store, stored))
    return next(row for row in rows if row.job_id == stored.task.id)


def _raw(store: Store, campaign: str, n: int) -> list[RawResult]:
    stored = _require_task(store, campaign, n)
    if stored.task.ended is None:
        raise HttpProblem(
            HTTPStatus.NOT_FOUND,
            f"task {n} of {campaign} has not ended",
            hint=f"see its state: /api/v1/campaigns/{campaign}/tasks/{n}",
        )
    return raw_results(_with_replicas(store, stored))


def _record(store: Store, campaign: str, n: int) -> tuple[bytes, Row | None]:
    """The task's signed record and its row. Raises `HttpProblem` 404."""
    stored = _require_task(store, campaign, n)
    if stored.record is None:
        raise HttpProblem(
            HTTPStatus.NOT_FOUND,
            f"task {n} of {campaign} has no record: no worker signed a result",
            hint=f"see its state: /api/v1/campaigns/{campaign}/tasks/{n}",
        )
    return stored.record, _row(store, stored)


def _draw(kind: TaskChart, record: bytes, row: Row | None) -> Drawing | None:
    try:
        return task_chart(kind, read_record(record), row)
    except RemoteProtocolError as exc:
        raise HttpProblem(HTTPStatus.CONFLICT, f"the record cannot be read: {exc.what}") from None
