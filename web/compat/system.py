"""The predecessor's endpoints for the server itself: health, queues, monitoring and reset."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter

from results.row.form import JsonModel
from scheduler.output.fleet import INTERVAL_S
from scheduler.store.archive import write_copy
from scheduler.store.store import Store
from scheduler.submit.daemon import is_running
from swarm.base.home import Home
from web.compat.workers import workers_health
from web.http.context import Context, SharedStore
from web.http.problems import HttpProblem, errors
from web.routes.fleet import Watcher

api = APIRouter(prefix="/api", tags=["compat"])


class CompatRedis(JsonModel):
    """The predecessor's state was in Redis. There is none; the key remains for clients that read it."""

    used: bool = False
    connected: bool = False
    status: str = "not used"
    note: str = "there is no Redis: campaigns and results are in this home's own store"


class CompatHealth(JsonModel):
    """The server answers, and its store can be read."""

    status: str = "healthy"
    timestamp: str
    redis: CompatRedis = CompatRedis()
    scheduling: bool
    """Whether a scheduler process of this home is running. One is started when there is work."""
    unfinished: int
    """Number of campaigns that have not ended."""


class CompatReset(JsonModel):
    """What was cleared. Keys, settings, uploaded models, experiments and written files remain."""

    status: str = "reset"
    message: str
    workers_cleared: bool
    """Whether remembered addresses of workers were cleared. Workers in the swarm are found again."""
    campaigns_cleared: int
    jobs_cleared: int
    results_cleared: int
    backup: str | None
    """Copy of the store before the reset, for `sark-node db restore FILE --replace`. Null if the store was empty."""


class CompatWorkerQueue(JsonModel):
    """Jobs of this home in a worker's queue."""

    device_name: str
    queue_size: int


class CompatQueues(JsonModel):
    """Waiting jobs of this home."""

    worker_queues: dict[str, CompatWorkerQueue]
    """Jobs in the workers' queues, by worker id."""
    capability_queues: dict[str, int]
    """Jobs without a worker, by compute unit."""
    results_queue_size: int = 0
    """Always 0, because a result is on disk before its worker is acknowledged."""


class CompatMonitor(JsonModel):
    """Health of the workers."""

    check_interval_s: float
    """Seconds between checks while a client watches."""
    total_workers: int
    healthy_workers: int
    unhealthy_workers: int
    note: str


class CompatTimeouts(JsonModel):
    """Attempts that ended without an answer or at a time limit; such jobs are retried elsewhere."""

    lost_attempts: int
    failed_attempts: int
    running_attempts: int


class CompatMonitoring(JsonModel):
    """Monitoring statistics."""

    timestamp: str
    health_monitor: CompatMonitor
    timeout_handler: CompatTimeouts
    campaigns: dict[str, int]
    """Number of campaigns in each status of /api/v1."""
    tasks: dict[str, int]


@api.get("/health")
def health(context: Context, store: SharedStore) -> CompatHealth:
    """Whether the server answers and its store can be read."""
    unfinished = len(store.campaigns.unfinished())
    return CompatHealth(timestamp=_now(), scheduling=is_running(context.home), unfinished=unfinished)


@api.post("/reset", responses=errors(409))
async def reset(context: Context) -> CompatReset:
    """Delete campaigns, jobs, results and remembered workers of this home, after a backup. Refused while a campaign runs. Keys,
    settings, uploaded models, experiments and written files remain."""
    return await context.isolated(lambda store: _reset(store, context.home))


@api.get("/queue/status")
def queues(store: SharedStore) -> CompatQueues:
    """Count this home's waiting jobs, by worker and by compute unit."""
    workers: dict[str, CompatWorkerQueue] = {}
    units: Counter[str] = Counter()
    for group in store.tasks.waiting():
        if group.worker is None:
            units[group.unit] += group.tasks
        else:
            size = workers[group.worker].queue_size if group.worker in workers else 0
            queue = CompatWorkerQueue(device_name=group.device, queue_size=size + group.tasks)
            workers[group.worker] = queue
    return CompatQueues(worker_queues=workers, capability_queues=dict(units))


@api.get("/monitoring/stats")
async def monitoring(context: Context, watcher: Watcher) -> CompatMonitoring:
    """Get the workers' health and the number of lost attempts."""
    counts = await context.store(lambda store: store.campaigns.state_counts())
    workers = await workers_health(watcher)
    attempts = counts["attempts"]
    return CompatMonitoring(
        timestamp=_now(),
        health_monitor=CompatMonitor(
            check_interval_s=INTERVAL_S,
            total_workers=workers.total,
            healthy_workers=workers.healthy,
            unhealthy_workers=workers.unhealthy,
            note=workers.note,
        ),
        timeout_handler=CompatTimeouts(
            lost_attempts=attempts.get("lost", 0),
            failed_attempts=attempts.get("failed", 0),
            running_attempts=attempts.get("granted", 0),
        ),
        campaigns=counts["campaigns"],
        tasks=counts["tasks"],
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _reset(store: Store, home: Home) -> CompatReset:
    unfinished = store.campaigns.unfinished()
    if unfinished:
        raise HttpProblem(
            409,
            f"{len(unfinished)} of this home's campaigns have not ended, such as {unfinished[0].id}",
            hint=f"wait for them, or cancel each: POST /api/v1/campaigns/{unfinished[0].id}/cancel",
        )
    summaries = store.campaigns.summaries()
    rows: dict[str, Any] = store.describe()["rows"]
    backup = None
    if summaries:
        stamp = datetime.now(UTC)
        backup = home.folder("scheduler") / f"before-reset-{stamp:%Y%m%dT%H%M%S}-{stamp.microsecond:06}"
        write_copy(backup, store)
    cleared = sum(store.campaigns.delete(item.campaign.id) for item in summaries)
    return CompatReset(
        message=f"{cleared} campaigns with their results were deleted"
        + (f"; restore them: sark-node db restore {backup} --replace" if backup else ""),
        workers_cleared=store.workers.clear(),
        campaigns_cleared=cleared,
        jobs_cleared=int(rows["tasks"]),
        results_cleared=int(rows["results"]),
        backup=None if backup is None else str(backup),
    )
