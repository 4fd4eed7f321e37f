"""The predecessor's endpoints for campaigns, jobs and result files, with its JSON shapes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final

from fastapi import APIRouter, Path, Request, Response
from pydantic import ConfigDict
from starlette.responses import StreamingResponse

from protocol.values.attempt import TaskState
from results.export.csv import csv_lines
from results.row.form import JsonModel, utc
from results.row.row import Row
from scheduler.store.readers import RowReader
from scheduler.store.rows import CampaignRow, CampaignStatus, CampaignSummary, TaskRow
from scheduler.store.store import Store
from web.http.context import ApiContext, Context, SharedStore
from web.http.idempotency import Key
from web.http.parameters import PAGE, AfterName, CampaignId, Limit, page_of, require_campaign
from web.http.problems import HttpProblem, errors, file_of
from web.routes.campaigns import campaign_body, creation, require_summary, start_once
from web.routes.results import stream_lines

WAIT_S: Final = 60.0
"""The default of /api/v1."""
CSV: Final = "text/csv; charset=utf-8; header=present"
MB: Final = 1024**2
SAMPLE: Final = 20
"""Number of rows from which the size of a file is estimated."""

JobId = Annotated[
    str, Path(max_length=100, description="A job's id.", examples=["c-ab23cd45-job-0"], pattern=r"^[!-~]+$")
]
_BODY: Final = campaign_body(
    "A campaign as JSON. The content type is ignored, because `curl -d` sends another one.",
    {
        "model_url": "https://example.org/mobilenet.onnx",
        "jobs": [{"compute_unit": "CPU (ONNX)", "num_inference_runs": 10}],
    },
)
_CSV: Final = file_of("text/csv", description="The CSV.")

api = APIRouter(prefix="/api", tags=["compat"])


# -- shapes --------------------------------------------------------------------------------------------------------------------


class CompatJobStatus(StrEnum):
    """A job's state."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CompatCampaignStatus(StrEnum):
    """A campaign's state. completed: every job has ended and at least one has a result."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ADOPTED = "adopted"
    """Another machine carries it on."""


JOB: Final[Mapping[TaskState, CompatJobStatus]] = {
    TaskState.PENDING: CompatJobStatus.PENDING,
    TaskState.COMMITTING: CompatJobStatus.PENDING,
    TaskState.QUEUED: CompatJobStatus.PENDING,
    TaskState.LEASED: CompatJobStatus.RUNNING,
    TaskState.RUNNING: CompatJobStatus.RUNNING,
    TaskState.SUCCEEDED: CompatJobStatus.COMPLETE,
    TaskState.FAILED: CompatJobStatus.FAILED,
    TaskState.CANCELLED: CompatJobStatus.CANCELLED,
}
CAMPAIGN: Final[Mapping[CampaignStatus, CompatCampaignStatus]] = {
    CampaignStatus.RUNNING: CompatCampaignStatus.RUNNING,
    CampaignStatus.CANCELLING: CompatCampaignStatus.RUNNING,  # until the devices have confirmed
    CampaignStatus.SUCCEEDED: CompatCampaignStatus.COMPLETED,
    CampaignStatus.FAILED: CompatCampaignStatus.FAILED,
    CampaignStatus.CANCELLED: CompatCampaignStatus.CANCELLED,
    CampaignStatus.ADOPTED: CompatCampaignStatus.ADOPTED,
}


class CompatJob(JsonModel):
    """A job: one of our tasks."""

    job_id: str
    """Id of the job: `{campaign_id}-job-{n}`, from 0."""
    campaign_id: str
    compute_unit: str
    status: CompatJobStatus
    worker_id: str | None
    """Worker of the current or last attempt."""
    device_name: str
    error: str | None


class CompatResult(JsonModel):
    """A job's row of the CSV, by column. `status` repeats it in the predecessor's spelling."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": True})

    status: str


class CompatJobDetail(JsonModel):
    """A job with its result, null until it has ended."""

    job: CompatJob
    result: CompatResult | None


class CompatCampaign(JsonModel):
    """A campaign with its jobs counted."""

    campaign_id: str
    model_url: str
    status: CompatCampaignStatus
    total_jobs: int
    completed_jobs: int
    """Number of jobs with a result."""
    job_breakdown: dict[CompatJobStatus, int]
    created_at: str | None
    completed_at: str | None


class CompatCreated(JsonModel):
    """A new campaign, stored and running."""

    campaign_id: str
    total_jobs: int
    status: CompatCampaignStatus
    jobs: tuple[CompatJob, ...]


class CompatCampaigns(JsonModel):
    """All campaigns, newest first."""

    count: int
    campaigns: tuple[CompatCampaign, ...]


class CompatFile(JsonModel):
    """A CSV file, generated on download."""

    filename: str
    size_mb: float
    """Size in units of 1,048,576 bytes, estimated from the first rows."""
    modified: str
    """Time at which the campaign ended."""
    campaign_id: str


class CompatFiles(JsonModel):
    """One file for each ended campaign, newest first."""

    count: int
    files: tuple[CompatFile, ...]
    next: str | None
    """Pass as `after` for the next page; null on the last."""


_FILE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})_([0-9]{8}_[0-9]{6})_results\.csv")


def job_id_of(task: str) -> str:
    """`c-ab23cd45/1` is job `c-ab23cd45-job-0`."""
    campaign, _, number = task.rpartition("/")
    return f"{campaign}-job-{int(number) - 1}"


def task_of(job: str) -> tuple[str, int] | None:
    """Campaign and task number of a job id; None: the id is malformed."""
    campaign, separator, number = job.rpartition("-job-")
    if not separator or not campaign or not re.fullmatch(r"0|[1-9][0-9]{0,9}", number):
        return None
    return campaign, int(number) + 1


def compat_job(task: TaskRow) -> CompatJob:
    return CompatJob(
        job_id=job_id_of(task.id),
        campaign_id=task.campaign,
        compute_unit=task.unit,
        status=JOB[task.state],
        worker_id=task.worker,
        device_name=task.device,
        error=(task.detail or task.reason or None) if task.state is TaskState.FAILED else None,
    )


def compat_campaign(summary: CampaignSummary) -> CompatCampaign:
    """A campaign with its jobs counted. Clients wait for `completed`, so a single failed job must not turn it into `failed`."""
    counts = dict.fromkeys(CompatJobStatus, 0)
    for state, number in summary.counts.items():
        counts[JOB[state]] += number
    campaign, complete = summary.campaign, counts[CompatJobStatus.COMPLETE]
    status = CAMPAIGN[campaign.status]
    if status is CompatCampaignStatus.FAILED and complete:
        status = CompatCampaignStatus.COMPLETED
    return CompatCampaign(
        campaign_id=campaign.id,
        model_url=model_url(campaign),
        status=status,
        total_jobs=summary.tasks,
        completed_jobs=complete,
        job_breakdown=counts,
        created_at=utc(campaign.created),
        completed_at=utc(campaign.ended),
    )


def model_url(campaign: CampaignRow) -> str:
    """URL or path of the campaign's first model; '': the stored campaign is malformed."""
    try:
        model = json.loads(campaign.spec)["models"][0]
        return str(model.get("url") or model.get("path") or "")
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""


def file_name(campaign: CampaignRow) -> str:
    """`{campaign_id}_{end time}_results.csv`."""
    stamp = datetime.fromtimestamp(campaign.ended or campaign.created, UTC)
    return f"{campaign.id}_{stamp:%Y%m%d_%H%M%S}_results.csv"


# -- endpoints -----------------------------------------------------------------------------------------------------------------


@api.post("/campaigns", status_code=201, openapi_extra=_BODY)
async def create_campaign(
    context: Context, request: Request, response: Response, key: Key = None
) -> CompatCreated:
    """Submit a campaign with `model_url` and `jobs`. It is stored on disk before the response, and runs by itself."""
    body = await request.body()
    make = creation(context, body, "campaign.json", WAIT_S)
    created = await start_once(context, response, key, b"compat\0" + body, make)
    campaign = str(created["campaign_id"])
    response.headers["Location"] = f"/api/campaigns/{campaign}"
    return await context.store(lambda store: _created(store, campaign))


@api.get("/campaigns")
def list_campaigns(store: SharedStore) -> CompatCampaigns:
    """List all campaigns with their jobs counted, newest first."""
    summaries = store.campaigns.summaries()
    return CompatCampaigns(count=len(summaries), campaigns=tuple(map(compat_campaign, summaries)))


@api.get("/campaigns/{campaign}", responses=errors(404))
def get_campaign(store: SharedStore, campaign: CampaignId) -> CompatCampaign:
    """Get a campaign's status with its jobs counted."""
    return compat_campaign(require_summary(store, campaign))


@api.get("/jobs/{job}", responses=errors(404))
def get_job(store: SharedStore, job: JobId) -> CompatJobDetail:
    """Get a job's status, and its row of the results when it has ended."""
    address = task_of(job)
    task = None if address is None else store.tasks.get(f"{address[0]}/{address[1]}")
    if address is None or task is None:
        raise HttpProblem(
            404,
            f"no job {job!r} on this home",
            hint="job ids are CAMPAIGN-job-0, CAMPAIGN-job-1, …; list campaigns: /api/campaigns",
        )
    if task.ended is None:
        return CompatJobDetail(job=compat_job(task), result=None)
    (row,) = RowReader(store, address[0]).rows(address[1], address[1])
    cells = {**_job_row(row).model_dump(mode="json"), "status": str(row.status)}
    return CompatJobDetail(job=compat_job(task), result=CompatResult.model_validate(cells))


@api.get("/campaigns/{campaign}/results", response_class=StreamingResponse, responses=_CSV | errors(404))
async def get_results(context: Context, campaign: CampaignId) -> StreamingResponse:
    """Download the results as CSV: a row for each job that has ended so far."""
    await context.store(lambda store: require_campaign(store, campaign))
    return _csv(context, campaign, f"{campaign}_results.csv")


@api.get("/results/files")
async def list_files(context: Context, limit: Limit = PAGE, after: AfterName = "") -> CompatFiles:
    """List a CSV for each ended campaign, newest first."""

    def files(store: Store) -> CompatFiles:
        ended = [item for item in store.campaigns.summaries() if item.campaign.ended is not None]
        names = [file_name(item.campaign) for item in ended]
        if after and after not in names:
            raise HttpProblem(
                422, f"after: no result file {after!r}", hint="pass the `next` of the previous page"
            )
        begin = names.index(after) + 1 if after else 0
        page, more = page_of(ended[begin:], limit, lambda item: file_name(item.campaign))
        files = tuple(_file(store, item, context.file_sizes) for item in page)
        return CompatFiles(count=len(files), files=files, next=more)

    return await context.isolated(files)


@api.get("/results/download/{filename}", response_class=StreamingResponse, responses=_CSV | errors(404))
async def download_file(
    context: Context,
    filename: Annotated[str, Path(max_length=200, description="A name from the list of files.")],
) -> StreamingResponse:
    """Download a CSV from the list of files."""

    def find(store: Store) -> CampaignRow:
        match = _FILE.fullmatch(filename)
        campaign = store.campaigns.get(match[1]) if match else None
        if campaign is None or campaign.ended is None or file_name(campaign) != filename:
            raise HttpProblem(
                404, f"no result file {filename!r}", hint="list result files: /api/results/files"
            )
        return campaign

    campaign = await context.store(find)
    return _csv(context, campaign.id, filename)


def _created(store: Store, campaign: str) -> CompatCreated:
    jobs = tuple(map(compat_job, store.tasks.all(campaign)))
    status = CAMPAIGN[require_campaign(store, campaign).status]
    return CompatCreated(campaign_id=campaign, total_jobs=len(jobs), status=status, jobs=jobs)


def _csv(context: ApiContext, campaign: str, name: str) -> StreamingResponse:
    def lines(store: Store) -> Iterator[str]:
        return iter(csv_lines(map(_job_row, RowReader(store, campaign).each_row())))

    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(stream_lines(context, lines), media_type=CSV, headers=headers)


def _job_row(row: Row) -> Row:
    """A row of the CSV with the job's id as `JobId`."""
    return row.model_copy(update={"job_id": job_id_of(row.job_id)})


def _file(store: Store, item: CampaignSummary, sizes: dict[str, float]) -> CompatFile:
    campaign = item.campaign
    if campaign.id not in sizes:
        head, *lines = csv_lines(map(_job_row, RowReader(store, campaign.id).rows(1, SAMPLE)))
        each = sum(len(line.encode()) for line in lines) / len(lines) if lines else 0.0
        sizes[campaign.id] = round((len(head) + each * item.tasks) / MB, 4)
    return CompatFile(
        filename=file_name(campaign),
        size_mb=sizes[campaign.id],
        modified=utc(campaign.ended) or "",
        campaign_id=campaign.id,
    )
