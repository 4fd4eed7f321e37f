"""The predecessor's JSON shapes, and our values in them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from pydantic import ConfigDict

from protocol.values.attempt import TaskState
from protocol.words import WorkerState
from results.row.form import JsonModel, utc
from results.row.row import Row
from scheduler.output.fleet import DeviceInfo
from scheduler.store.rows import CampaignRow, CampaignStatus, CampaignSummary, TaskRow

# -- jobs and campaigns --------------------------------------------------------------------------------------------------------


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
    CampaignStatus.CANCELLING: CompatCampaignStatus.RUNNING,  # until its devices have confirmed
    CampaignStatus.SUCCEEDED: CompatCampaignStatus.COMPLETED,
    CampaignStatus.FAILED: CompatCampaignStatus.FAILED,
    CampaignStatus.CANCELLED: CompatCampaignStatus.CANCELLED,
    CampaignStatus.ADOPTED: CompatCampaignStatus.ADOPTED,
}


class CompatJob(JsonModel):
    """A job: one of our tasks."""

    job_id: str
    """`{campaign_id}-job-{n}`, from 0."""
    campaign_id: str
    compute_unit: str
    status: CompatJobStatus
    worker_id: str | None
    """The worker of the current or last attempt."""
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
    """Jobs with a result."""
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
    """Estimated from the first rows, in units of 1,048,576 bytes."""
    modified: str
    """When its campaign ended."""
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
    """Campaign and task number of a job id, or None if it is malformed."""
    campaign, separator, number = job.rpartition("-job-")
    if not separator or not campaign or not re.fullmatch(r"0|[1-9][0-9]{0,9}", number):
        return None
    return campaign, int(number) + 1


def compat_job(task: TaskRow) -> CompatJob:
    """A task as a job."""
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
    """A campaign with its jobs counted. Clients wait for `completed`: one failed job of many must not keep it from them."""
    counts = dict.fromkeys(CompatJobStatus, 0)
    for state, number in summary.counts.items():
        counts[JOB[state]] += number
    campaign, complete = summary.campaign, counts[CompatJobStatus.COMPLETE]
    status = CAMPAIGN[campaign.status]
    return CompatCampaign(
        campaign_id=campaign.id,
        model_url=model_url(campaign),
        status=CompatCampaignStatus.COMPLETED
        if status is CompatCampaignStatus.FAILED and complete
        else status,
        total_jobs=summary.tasks,
        completed_jobs=complete,
        job_breakdown=counts,
        created_at=utc(campaign.created),
        completed_at=utc(campaign.ended),
    )


def model_url(campaign: CampaignRow) -> str:
    """URL or path of the campaign's first model; '' if the stored campaign is malformed."""
    try:
        model = json.loads(campaign.spec)["models"][0]
        return str(model.get("url") or model.get("path") or "")
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""


def job_row(row: Row) -> Row:
    """A row of the CSV with the job's id as `JobId`."""
    return row.model_copy(update={"job_id": job_id_of(row.job_id)})


def compat_result(row: Row) -> CompatResult:
    """A row as a job's result."""
    return CompatResult.model_validate({**job_row(row).model_dump(mode="json"), "status": str(row.status)})


def file_name(campaign: CampaignRow) -> str:
    """`{campaign_id}_{end time}_results.csv`."""
    stamp = datetime.fromtimestamp(campaign.ended or campaign.created, UTC)
    return f"{campaign.id}_{stamp:%Y%m%d_%H%M%S}_results.csv"


def campaign_of(filename: str) -> str | None:
    """The campaign id in a file name, or None if it is malformed."""
    match = _FILE.fullmatch(filename)
    return None if match is None else match[1]


# -- workers ---------------------------------------------------------------------------------------------------------------------

GB: Final = 1024**3


class CompatWorkerStatus(StrEnum):
    """A worker's state."""

    ACTIVE = "active"
    BUSY = "busy"
    CLEANUP = "cleanup"
    FAULTY = "faulty"


WORKER: Final[Mapping[WorkerState, CompatWorkerStatus]] = {
    WorkerState.ACTIVE: CompatWorkerStatus.ACTIVE,
    WorkerState.BUSY: CompatWorkerStatus.BUSY,
    WorkerState.CLEANUP: CompatWorkerStatus.CLEANUP,
    WorkerState.DRAINING: CompatWorkerStatus.CLEANUP,  # takes no new work
    WorkerState.FAULTY: CompatWorkerStatus.FAULTY,
}


class CompatDeviceInfo(JsonModel):
    """A device, by the predecessor's field names."""

    Soc: str
    Ram: str
    """In GB of 1,073,741,824 bytes; empty if unknown."""
    DeviceOs: str
    UDID: str
    """Hardware id, the `device_udid` of a job."""


class CompatWorker(JsonModel):
    """A device of the swarm."""

    worker_id: str
    """Peer id, the `worker_id` of a job."""
    device_name: str
    ip_address: str
    """Empty if it is only reachable through a gate or by name."""
    capabilities: tuple[str, ...]
    """Compute units."""
    device_info: CompatDeviceInfo
    status: CompatWorkerStatus
    detail: str
    """Why it takes no work, or does not answer."""
    queue_size: int | None
    """Tickets of all schedulers that wait there; null if unknown."""
    last_heartbeat: str | None
    """Time of its last answer."""


class CompatWorkers(JsonModel):
    """All devices that can be found."""

    count: int
    workers: tuple[CompatWorker, ...]
    note: str = ""
    """Why the list is empty, if the swarm cannot be reached."""


class CompatWorkerHealth(JsonModel):
    """Whether a worker answers and is well."""

    worker_id: str
    is_healthy: bool
    last_heartbeat: str | None
    seconds_since_heartbeat: float | None
    status: CompatWorkerStatus


class CompatWorkersHealth(JsonModel):
    """Health of all workers."""

    total: int
    healthy: int
    unhealthy: int
    workers: tuple[CompatWorkerHealth, ...]
    note: str = ""


def compat_worker(device: DeviceInfo, at: float) -> CompatWorker:
    """A device as a worker. `at`: wall time of the snapshot."""
    answers = device.unreachable is None
    state = device.state or WorkerState.ACTIVE
    return CompatWorker(
        worker_id=device.peer,
        device_name=device.name,
        ip_address=ip_address(device.addresses),
        capabilities=tuple(unit.unit for unit in device.units),
        device_info=CompatDeviceInfo(
            Soc=device.soc,
            Ram="" if device.ram is None else f"{round(device.ram / GB, 1):g}",
            DeviceOs=device.os,
            UDID=device.device,
        ),
        status=WORKER[state] if answers else CompatWorkerStatus.FAULTY,  # as after a missed heartbeat
        detail=device.why or device.unreachable or "",
        queue_size=device.queue,
        last_heartbeat=utc(at) if answers else None,
    )


def worker_health(worker: CompatWorker, at: float, now: float) -> CompatWorkerHealth:
    """`at`: wall time of the snapshot."""
    answers = worker.last_heartbeat is not None
    return CompatWorkerHealth(
        worker_id=worker.worker_id,
        is_healthy=answers and worker.status is not CompatWorkerStatus.FAULTY,
        last_heartbeat=worker.last_heartbeat,
        seconds_since_heartbeat=round(max(0.0, now - at), 1) if answers else None,
        status=worker.status,
    )


def workers_health(workers: Sequence[CompatWorker], at: float, now: float, note: str) -> CompatWorkersHealth:
    """Health of all `workers`."""
    health = tuple(worker_health(worker, at, now) for worker in workers)
    healthy = sum(worker.is_healthy for worker in health)
    return CompatWorkersHealth(
        total=len(health), healthy=healthy, unhealthy=len(health) - healthy, workers=health, note=note
    )


def ip_address(addresses: Sequence[str]) -> str:
    """The first IP address that others may dial, loopback last; '' if there is none but through a gate."""
    direct = [
        parts[2]
        for parts in (address.split("/") for address in addresses)
        if len(parts) > 2 and parts[1] in ("ip4", "ip6") and "p2p-circuit" not in parts
    ]
    return min(direct, key=lambda ip: ip.startswith("127.") or ip == "::1", default="")
