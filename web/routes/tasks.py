"""One task: its details, charts and verification, and its signed result as a file."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import Response

from protocol.errors import RemoteProtocolError
from protocol.values.record import read_record
from results.analysis.verify import VerifyFinding, check_results
from results.export.raw import RawResult, json_lines
from results.report.drawing import Drawing, Theme, svg
from results.report.task_charts import TaskChart, task_chart
from results.row.row import Row
from scheduler.output.task_detail import TaskDetail, task_detail
from scheduler.store.readers import RowReader, raw_results, siblings
from scheduler.store.rows import ResultRow
from scheduler.store.store import Store
from swarm.base.threads import COMPUTING
from web.http.context import Context, Coverage, SharedStore
from web.http.parameters import CampaignId, Number, require_campaign, require_task
from web.http.problems import HttpProblem, errors, file_of

SVG_TYPE: Final = "image/svg+xml"
SVG: Final[dict[int | str, dict[str, Any]]] = {
    **file_of(SVG_TYPE, description="The chart."),
    204: {"description": "There is nothing to draw."},
}
"""`responses` of an endpoint that returns a chart."""

api = APIRouter(prefix="/api/v1/campaigns/{campaign}/tasks/{n}", tags=["tasks"])


@api.get("", responses=errors(404))
def get_task(store: SharedStore, held: Coverage, campaign: CampaignId, n: Number) -> TaskDetail:
    """Get a task: attempts and refusals, the worker and its device, host state, the verdict with its reasons."""
    name, stored = require_campaign(store, campaign).name, _stored(store, campaign, n)
    task = stored.task.id
    attempts, events = store.attempts.of_task(task), store.events.of_task(campaign, task)
    return task_detail(stored, _row(store, stored), name, attempts, events, held)


@api.get("/chart", response_class=Response, responses=errors(404) | SVG)
async def get_task_chart(
    context: Context, campaign: CampaignId, n: Number, kind: TaskChart, theme: Theme = "light"
) -> Response:
    """Get a chart of a task as SVG, drawn from its raw samples."""
    record, row = await context.store(lambda store: _record(store, campaign, n))

    def draw() -> Drawing | None:
        try:
            return task_chart(kind, read_record(record), row)
        except RemoteProtocolError as exc:
            raise HttpProblem(409, f"the record cannot be read: {exc.what}") from None

    return svg_response(await COMPUTING.run(draw), theme, kind)


@api.get("/raw", response_class=Response, responses=errors(404) | file_of("application/json"))
async def get_signed_result(context: Context, campaign: CampaignId, n: Number) -> Response:
    """Get the signed record with its raw samples, for `sark-node verify`. Its replicas and its other sittings are included."""
    stored = await context.store(lambda store: _raw(store, campaign, n))
    body = await COMPUTING.run(lambda: "".join(json_lines(campaign, stored)))
    headers = {"Content-Disposition": f'attachment; filename="{campaign}-{n}.json"'}
    return Response(body, media_type="application/json", headers=headers)


@api.get("/verify", responses=errors(404))
async def verify_task(context: Context, campaign: CampaignId, n: Number) -> VerifyFinding:
    """Verify a result: the worker's signature, the hashes of task and model, and the row recomputed from the samples."""
    stored = await context.store(lambda store: _raw(store, campaign, n))
    findings = await COMPUTING.run(check_results, campaign, stored)
    return next(finding for finding in findings if finding.task == f"{campaign}/{n}")


def svg_response(drawing: Drawing | None, theme: Theme, name: str) -> Response:
    """The chart; status 204: there is none. The theme `page` is for embedding, with classes instead of colours. `name` prefixes its ids."""
    if drawing is None:
        return Response(status_code=204)
    return Response(svg(drawing, theme, name=name), media_type=SVG_TYPE)


def _stored(store: Store, campaign: str, n: int) -> ResultRow:
    """The task with its deciding record. Raises `HttpProblem` 404."""
    require_campaign(store, campaign)
    require_task(store, campaign, n)
    return store.results.rows(campaign, n, n)[0]


def _row(store: Store, stored: ResultRow) -> Row | None:
    """The task's row of the results; None: the task has not ended."""
    task = stored.task
    return next(iter(RowReader(store, task.campaign).rows(task.n, task.n)), None)


def _raw(store: Store, campaign: str, n: int) -> list[RawResult]:
    stored = _stored(store, campaign, n)
    if stored.task.ended is None:
        raise _absent(campaign, n, "has not ended")
    return raw_results(siblings(store, stored), store.campaigns.evaluations(campaign))


def _record(store: Store, campaign: str, n: int) -> tuple[bytes, Row | None]:
    """The task's signed record and its row. Raises `HttpProblem` 404."""
    stored = _stored(store, campaign, n)
    if stored.record is None:
        raise _absent(campaign, n, "has no record: no worker signed a result")
    return stored.record, _row(store, stored)


def _absent(campaign: str, n: int, why: str) -> HttpProblem:
    hint = f"see its state: /api/v1/campaigns/{campaign}/tasks/{n}"
    return HttpProblem(404, f"task {n} of {campaign} {why}", hint=hint)
