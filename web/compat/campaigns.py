"""The predecessor's endpoints for campaigns, jobs and result files."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.responses import StreamingResponse

from results.export.raw import csv_lines
from results.row.form import utc
from scheduler.models.uploads import Uploads
from scheduler.store.rows import CampaignRow
from scheduler.store.store import Store
from web.compat.models import (
    CAMPAIGN,
    CompatCampaign,
    CompatCampaigns,
    CompatCreated,
    CompatFile,
    CompatFiles,
    CompatJobDetail,
    campaign_of,
    compat_campaign,
    compat_job,
    compat_result,
    file_name,
    job_row,
    task_of,
)
from web.http.context import ApiContext
from web.http.idempotency import Key
from web.http.parameters import NOT_FOUND, PAGE, CampaignId, Limit, require_campaign
from web.http.problems import HttpProblem
from web.routes.campaigns import create_campaign, require_summary
from web.routes.results import iterate_results, result_rows, stream_lines

WAIT_S: Final = 60.0
"""The default of /api/v1."""
CSV: Final = "text/csv; charset=utf-8; header=present"
MB: Final = 1024**2
SAMPLE: Final = 20
"""Rows from which the size of a file is estimated."""

JobId = Annotated[
    str, Path(max_length=100, description="A job's id.", examples=["c-ab23cd45-job-0"], pattern=r"^[!-~]+$")
]
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "description": "A campaign as JSON. The content type is ignored, because `curl -d` sends another one.",
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        {"$ref": "#/components/schemas/PlainCampaign"},
                        {"$ref": "#/components/schemas/Campaign"},
                    ]
                },
                "example": {
                    "model_url": "https://example.org/mobilenet.onnx",
                    "jobs": [{"compute_unit": "CPU (ONNX)", "num_inference_runs": 10}],
                },
            }
        },
    }
}
_CSV: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The CSV.", "content": {"text/csv": {"schema": {"type": "string"}}}}
}


def router(context: ApiContext) -> APIRouter:
    """Campaigns, jobs and result files."""
    api = APIRouter(prefix="/api", tags=["compat"])
    uploads = Uploads(context.home)
    sizes: dict[str, float] = {}  # by file: an ended campaign never changes

    @api.post(
        "/campaigns", operation_id="compatCreateCampaign", status_code=HTTPStatus.CREATED, openapi_extra=_BODY
    )
    async def create(request: Request, response: Response, key: Key = None) -> CompatCreated:
        """Submit a campaign with `model_url` and `jobs`. It is stored on disk before the response, and runs by itself."""
        body = await request.body()
        created, _ = await context.idempotency.run(
            key,
            b"compat\0" + body,
            lambda new: create_campaign(
                context, uploads, body, "campaign.json", wait_s=WAIT_S, campaign_id=new
            ),
        )
        await context.ensure_scheduler()
        campaign = str(created["campaign_id"])
        response.headers["Location"] = f"/api/campaigns/{campaign}"
        return await context.store(lambda store: _created(store, campaign))

    @api.get("/campaigns", operation_id="compatListCampaigns")
    async def campaigns() -> CompatCampaigns:
        """List all campaigns with their jobs counted, newest first."""
        summaries = await context.store(lambda store: store.campaigns.summaries())
        return CompatCampaigns(count=len(summaries), campaigns=tuple(map(compat_campaign, summaries)))

    @api.get("/campaigns/{campaign}", operation_id="compatGetCampaign", responses=NOT_FOUND)
    async def campaign_(campaign: CampaignId) -> CompatCampaign:
        """Get a campaign's status with its jobs counted."""
        return compat_campaign(await context.store(lambda store: require_summary(store, campaign)))

    @api.get("/jobs/{job}", operation_id="compatGetJob", responses=NOT_FOUND)
    async def job_(job: JobId) -> CompatJobDetail:
        """Get a job's status, and its row of the results when it has ended."""
        return await context.store(lambda store: _job(store, job))

    @api.get(
        "/campaigns/{campaign}/results",
        operation_id="compatGetResults",
        response_class=StreamingResponse,
        responses=_CSV | NOT_FOUND,
    )
    async def results(campaign: CampaignId) -> StreamingResponse:
        """Download the results as CSV: a row for each job that has ended so far."""
        await context.store(lambda store: require_campaign(store, campaign))
        return _csv(context, campaign, f"{campaign}_results.csv")

    @api.get("/results/files", operation_id="compatListFiles")
    async def files(
        limit: Limit = PAGE,
        after: Annotated[str, Query(max_length=100, description="`next` of the previous page.")] = "",
    ) -> CompatFiles:
        """List a CSV for each ended campaign, newest first."""
        return await context.isolated(lambda store: _files(store, sizes, limit, after))

    @api.get(
        "/results/download/{filename}",
        operation_id="compatDownloadFile",
        response_class=StreamingResponse,
        responses=_CSV | NOT_FOUND,
    )
    async def download(
        filename: Annotated[str, Path(max_length=200, description="A name from the list of files.")],
    ) -> StreamingResponse:
        """Download a CSV from the list of files."""
        campaign = await context.store(lambda store: _campaign_of_file(store, filename))
        return _csv(context, campaign.id, file_name(campaign))

    return api


def _created(store: Store, campaign: str) -> CompatCreated:
    jobs = tuple(map(compat_job, store.tasks.all(campaign)))
    status = CAMPAIGN[require_campaign(store, campaign).status]
    return CompatCreated(campaign_id=campaign, total_jobs=len(jobs), status=status, jobs=jobs)


def _job(store: Store, job: str) -> CompatJobDetail:
    address = task_of(job)
    task = None if address is None else store.tasks.get(f"{address[0]}/{address[1]}")
    if address is None or task is None:
        raise HttpProblem(
            HTTPStatus.NOT_FOUND,
            f"no job {job!r} on this home",
            hint="job ids are CAMPAIGN-job-0, CAMPAIGN-job-1, …; list campaigns: /api/campaigns",
        )
    if task.ended is None:
        return CompatJobDetail(job=compat_job(task), result=None)
    (row,) = result_rows(store, address[0], address[1], address[1])
    return CompatJobDetail(job=compat_job(task), result=compat_result(row))


def _csv(context: ApiContext, campaign: str, name: str) -> StreamingResponse:
    def lines(store: Store) -> Iterator[str]:
        return iter(csv_lines(map(job_row, iterate_results(store, campaign, result_rows))))

    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(stream_lines(context, lines), media_type=CSV, headers=headers)


def _campaign_of_file(store: Store, filename: str) -> CampaignRow:
    campaign = store.campaigns.get(campaign_of(filename) or "")
    if campaign is None or campaign.ended is None or file_name(campaign) != filename:
        raise HttpProblem(
            HTTPStatus.NOT_FOUND, f"no result file {filename!r}", hint="list result files: /api/results/files"
        )
    return campaign


def _files(store: Store, sizes: dict[str, float], limit: int, after: str) -> CompatFiles:
    ended = {
        file_name(item.campaign): item
        for item in store.campaigns.summaries()
        if item.campaign.ended is not None
    }
    names = list(ended)
    if after and after not in ended:
        raise HttpProblem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"after: no result file {after!r}",
            hint="pass the `next` of the previous page",
        )
    begin = names.index(after) + 1 if after else 0
    page = names[begin : begin + limit]
    for name in page:
        if name not in sizes:
            sizes[name] = _size_mb(store, ended[name].campaign.id, ended[name].tasks)
    files = tuple(
        CompatFile(
            filename=name,
            size_mb=sizes[name],
            modified=utc(ended[name].campaign.ended) or "",
            campaign_id=ended[name].campaign.id,
        )
        for name in page
    )
    more = begin + len(page) < len(names)
    return CompatFiles(count=len(files), files=files, next=page[-1] if page and more else None)


def _size_mb(store: Store, campaign: str, tasks: int) -> float:
    head, *lines = csv_lines(map(job_row, result_rows(store, campaign, 1, SAMPLE)))
    each = sum(len(line.encode()) for line in lines) / len(lines) if lines else 0.0
    return round((len(head) + each * tasks) / MB, 4)
