"""One task: everything that is known of it, its raw samples, and its signed result as a file."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Final

import trio
from fastapi import APIRouter, Query
from fastapi.responses import Response

from protocol.errors import RemoteProtocolError
from protocol.values.record import read_record
from results.analysis.verify import VerifyFindingInfo, check_results, finding_info
from results.export.raw import RawResult, json_lines
from results.row.record import observe
from results.row.row import Row
from results.row.samples import Samples, samples_of
from scheduler.output.task_detail import TaskDetail, task_detail
from scheduler.store.results import campaign_rows, raw_results
from scheduler.store.rows import ResultRow
from scheduler.store.store import Store
from web.http.context import ApiContext
from web.http.parts import NOT_FOUND, CampaignId, Number, found
from web.http.problems import InvalidField

REPLICAS: Final = 16
"""The most there are of one task: they stand side by side, and what a row says of their agreement comes from all of them."""
MAX_POINTS: Final = 100_000

Points = Annotated[
    int | None,
    Query(
        ge=10,
        le=MAX_POINTS,
        description="About so many samples in all, thinned so that every extreme stays. Left out: every one.",
    ),
]


def router(desk: ApiContext) -> APIRouter:
    """Endpoints over `desk`."""
    v1 = APIRouter(prefix="/api/v1", tags=["tasks"])

    @v1.get("/campaigns/{campaign}/tasks/{n}", operation_id="getTask", responses=NOT_FOUND)
    async def task(campaign: CampaignId, n: Number) -> TaskDetail:
        """Everything of one task: attempts and refusals, the worker and its device, the host meanwhile, the verdict with its reasons."""

        def told(store: Store) -> TaskDetail:
            name = found(store, campaign).name
            item = _item(store, campaign, n)
            return task_detail(
                item,
                _row(store, item),
                name,
                store.attempts_of(item.task.id),
                store.events_of(campaign, item.task.id),
            )

        return await desk.store(told)

    @v1.get("/campaigns/{campaign}/tasks/{n}/samples", operation_id="getSamples", responses=NOT_FOUND)
    async def samples(campaign: CampaignId, n: Number, points: Points = None) -> Samples:
        """The raw times, launch by launch, with their warm-up, as the worker signed them; and all of them counted into bars."""

        def item(store: Store) -> ResultRow:
            found(store, campaign)
            return _item(store, campaign, n)

        return await trio.to_thread.run_sync(_samples, await desk.store(item), points)

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
        """The signed record with its raw samples, as a file for `sark-node verify`. Replicas of the task are in it too."""
        results = await desk.store(lambda store: _raw(store, campaign, n))
        body = await trio.to_thread.run_sync(lambda: "".join(json_lines(campaign, results)))
        name = f"{campaign}-{n}.json"
        return Response(
            body,
            media_type="application/json",
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )

    @v1.get("/campaigns/{campaign}/tasks/{n}/verify", operation_id="verifyTask", responses=NOT_FOUND)
    async def verify(campaign: CampaignId, n: Number) -> VerifyFindingInfo:
        """Whether its result holds: the worker's signature, task and model by their hashes, and the row made again from the samples."""
        results = await desk.store(lambda store: _raw(store, campaign, n))
        findings = await trio.to_thread.run_sync(lambda: check_results(campaign, results))
        return next(finding_info(finding) for finding in findings if finding.task == f"{campaign}/{n}")

    return v1


def _item(store: Store, campaign: str, n: int) -> ResultRow:
    """The task with the record that decided it, or `InvalidField`."""
    items = store.rows(campaign, n, n)
    if not items:
        raise InvalidField(
            HTTPStatus.NOT_FOUND,
            f"{campaign} has no task {n}",
            hint=f"list them: /api/v1/campaigns/{campaign}/tasks",
        )
    return items[0]


def _row(store: Store, item: ResultRow) -> Row | None:
    """As the campaign's results have it."""
    if item.task.ended is None:
        return None
    stored = [item]
    if item.task.replica is not None:
        stored = list(store.rows(item.task.campaign, item.task.n - REPLICAS, item.task.n + REPLICAS))
    return next(row for row in campaign_rows(stored) if row.job_id == item.task.id)


def _raw(store: Store, campaign: str, n: int) -> list[RawResult]:
    found(store, campaign)
    item = _item(store, campaign, n)
    if item.task.ended is None:
        raise InvalidField(
            HTTPStatus.NOT_FOUND,
            f"task {n} of {campaign} has not ended",
            hint=f"see how it stands: /api/v1/campaigns/{campaign}/tasks/{n}",
        )
    task = item.task
    if task.replica is None:
        return raw_results([item])
    first = task.n - task.replica  # replicas of one task are numbered on end
    near = store.rows(campaign, task.n - REPLICAS, task.n + REPLICAS)
    return raw_results(
        [other for other in near if other.task.replica and other.task.n - other.task.replica == first]
    )


def _samples(item: ResultRow, points: int | None) -> Samples:
    """Raises `InvalidField` where there is nothing that can be read."""
    task = item.task
    if item.record is None:
        raise InvalidField(
            HTTPStatus.NOT_FOUND,
            f"task {task.n} of {task.campaign} has no record: no worker signed anything of it",
            hint=f"see how it stands: /api/v1/campaigns/{task.campaign}/tasks/{task.n}",
        )
    try:
        record = read_record(item.record)
        return samples_of(task.id, record, observe(record), points)
    except RemoteProtocolError as exc:
        raise InvalidField(
            HTTPStatus.CONFLICT, f"the record of {task.id} cannot be read: {exc.what}"
        ) from None
