"""The first system's answers, made of ours: its words for how things stand, its names of jobs and files, its JSON. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from pydantic import ConfigDict

from protocol.values.attempt import TaskState
from results.row.form import JsonModel, utc
from results.row.row import Row
from scheduler.output.schemas import status_of
from scheduler.store.rows import CampaignRow, CampaignStatus, CampaignSummary, TaskRow


class JobStatus(StrEnum):
    """How a job stands."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CampaignWord(StrEnum):
    """How a campaign stands. completed: every job is over, and one at least has a result; `job_breakdown` tells of the others."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ADOPTED = "adopted"
    """Another machine carries it on."""


JOB: Final[Mapping[TaskState, JobStatus]] = {
    TaskState.PENDING: JobStatus.PENDING,
    TaskState.COMMITTING: JobStatus.PENDING,
    TaskState.QUEUED: JobStatus.PENDING,
    TaskState.LEASED: JobStatus.RUNNING,
    TaskState.RUNNING: JobStatus.RUNNING,
    TaskState.SUCCEEDED: JobStatus.COMPLETE,
    TaskState.FAILED: JobStatus.FAILED,
    TaskState.CANCELLED: JobStatus.CANCELLED,
}
CAMPAIGN: Final[Mapping[CampaignStatus, CampaignWord]] = {
    CampaignStatus.RUNNING: CampaignWord.RUNNING,
    CampaignStatus.CANCELLING: CampaignWord.RUNNING,  # until its devices have confirmed
    CampaignStatus.SUCCEEDED: CampaignWord.COMPLETED,
    CampaignStatus.FAILED: CampaignWord.FAILED,
    CampaignStatus.CANCELLED: CampaignWord.CANCELLED,
    CampaignStatus.ADOPTED: CampaignWord.ADOPTED,
}


# -- jobs and campaigns --------------------------------------------------------------------------------------------------------


class FirstJob(JsonModel):
    """A job: a task of ours."""

    job_id: str
    """`{campaign_id}-job-{n}`, from 0."""
    campaign_id: str
    compute_unit: str
    status: JobStatus
    worker_id: str | None
    """Who has it, or had it last."""
    device_name: str
    error: str | None
    """Why it failed, in a sentence."""


class FirstResult(JsonModel):
    """A job's row of the CSV, by column. `status` is there a second time, in the first system's spelling."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": True})

    status: str


class FirstJobDetail(JsonModel):
    """A job with its result; null: it is not over."""

    job: FirstJob
    result: FirstResult | None


class FirstCampaign(JsonModel):
    """A campaign in the first system's words."""

    campaign_id: str
    model_url: str
    status: CampaignWord
    total_jobs: int
    completed_jobs: int
    """Those with a result."""
    job_breakdown: dict[JobStatus, int]
    created_at: str | None
    completed_at: str | None


class FirstCreated(JsonModel):
    """A campaign that is on disk and goes on by itself."""

    campaign_id: str
    total_jobs: int
    status: CampaignWord
    jobs: tuple[FirstJob, ...]


class FirstCampaigns(JsonModel):
    """All campaigns, the newest first."""

    count: int
    campaigns: tuple[FirstCampaign, ...]


def job_id_of(task: str) -> str:
    """`c-ab23cd45/1` is job `c-ab23cd45-job-0`."""
    campaign, _, number = task.rpartition("/")
    return f"{campaign}-job-{int(number) - 1}"


def task_of(job: str) -> tuple[str, int] | None:
    """The campaign and the number of the task that is job `job`; None: no job is called so."""
    campaign, mark, number = job.rpartition("-job-")
    if not mark or not campaign or not re.fullmatch(r"0|[1-9][0-9]{0,9}", number):
        return None
    return campaign, int(number) + 1


def first_job(task: TaskRow) -> FirstJob:
    """A task as a job."""
    return FirstJob(
        job_id=job_id_of(task.id),
        campaign_id=task.campaign,
        compute_unit=task.unit,
        status=JOB[task.state],
        worker_id=task.worker,
        device_name=task.device,
        error=(task.detail or task.reason or None) if task.state is TaskState.FAILED else None,
    )


def first_campaign(item: CampaignSummary) -> FirstCampaign:
    """A campaign with its counts."""
    counts = dict.fromkeys(JobStatus, 0)
    for state, number in item.counts.items():
        counts[JOB[state]] += number
    return FirstCampaign(
        campaign_id=item.campaign.id,
        model_url=model_url(item.campaign),
        status=campaign_word(status_of(item.campaign), counts[JobStatus.COMPLETE]),
        total_jobs=item.tasks,
        completed_jobs=counts[JobStatus.COMPLETE],
        job_breakdown=counts,
        created_at=utc(item.campaign.created),
        completed_at=utc(item.campaign.ended),
    )


def campaign_word(status: CampaignStatus, complete: int) -> CampaignWord:
    """`complete`: jobs with a result. Who waits for the one end that the first system's README names must not wait for ever because one
    job of many failed."""
    return CampaignWord.COMPLETED if status is CampaignStatus.FAILED and complete else CAMPAIGN[status]


def model_url(campaign: CampaignRow) -> str:
    """Where its first model came from, as it was given; empty in a store that somebody edited."""
    try:
        model = json.loads(campaign.spec)["models"][0]
        return str(model.get("url") or model.get("path") or "")
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""


def job_row(row: Row) -> Row:
    """A row of the CSV whose `JobId` is what `/api/jobs` calls the job."""
    return row.model_copy(update={"job_id": job_id_of(row.job_id)})


def first_result(row: Row) -> FirstResult:
    """A row as a job's result."""
    return FirstResult.model_validate({**job_row(row).model_dump(mode="json"), "status": str(row.status)})


# -- files -----------------------------------------------------------------------------------------------------------------------


class FirstFile(JsonModel):
    """A CSV. It is made when it is downloaded; nothing of this name lies on a disk."""

    filename: str
    size_mb: float
    """About: reckoned from the first rows. Of 1,048,576 bytes."""
    modified: str
    """When its campaign ended."""
    campaign_id: str


class FirstFiles(JsonModel):
    """One for each campaign that has ended, the newest first."""

    count: int
    files: tuple[FirstFile, ...]
    next: str | None
    """What to give as `after` for those that follow; null: these are the last."""


_FILE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})_([0-9]{8}_[0-9]{6})_results\.csv")


def file_name(campaign: CampaignRow) -> str:
    """`{campaign_id}_{when it ended}_results.csv`."""
    stamp = datetime.fromtimestamp(campaign.ended or campaign.created, UTC)
    return f"{campaign.id}_{stamp:%Y%m%d_%H%M%S}_results.csv"


def campaign_of(filename: str) -> str | None:
    """Whose file that is, if it is called as one; whether it is there is another question."""
    found = _FILE.fullmatch(filename)
    return None if found is None else found[1]
