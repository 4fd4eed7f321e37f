"""The predecessor's endpoints for the server itself: health, queues, monitoring and reset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import trio
from fastapi import APIRouter

from results.row.form import JsonModel, utc
from scheduler.output.fleet import INTERVAL_S
from scheduler.store.archive import write_copy
from scheduler.store.rows import WaitingTasks
from scheduler.store.store import Store
from scheduler.submit.daemon import is_running
from swarm.base.home import Home
from web.compat.models import workers_health
from web.compat.workers import SnapshotSource
from web.http.context import ApiContext
from web.http.parameters import problems
from web.http.problems import HttpProblem


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
    """A scheduler process of this home is running. One is started when there is work."""
    unfinished: int
    """Campaigns that have not ended."""


class CompatReset(JsonModel):
    """What was cleared. Keys, settings, uploaded models, experiments and written files remain."""

    status: str = "reset"
    message: str
    workers_cleared: bool
    """Remembered addresses of workers; workers in the swarm are found again."""
    campaigns_cleared: int
    jobs_cleared: int
    results_cleared: int
    backup: str | None
    """The store before the reset, for `sark-node db restore FILE --replace`; null if it was empty."""


class CompatWorkerQueue(JsonModel):
    """Jobs of this home in a worker's queue."""

    device_name: str
    queue_size: int


class CompatQueues(JsonModel):
    """Waiting jobs of this home."""

    worker_queues: dict[str, CompatWorkerQueue]
    """By worker id."""
    capability_queues: dict[str, int]
    """Jobs without a worker, by compute unit."""
    results_queue_size: int = 0
    """Always 0: a result is on disk before its worker is acknowledged."""


class CompatMonitor(JsonModel):
    """Health of the workers."""

    check_interval_s: float
    """Seconds between checks, while somebody watches."""
    total_workers: int
    healthy_workers: int
    unhealthy_workers: int
    note: str


class CompatTimeouts(JsonModel):
    """Attempts whose worker did not answer or exceeded a time limit; such jobs are retried elsewhere."""

    lost_attempts: int
    failed_attempts: int
    running_attempts: int


class CompatMonitoring(JsonModel):
    """Monitoring statistics."""

    timestamp: str
    health_monitor: CompatMonitor
    timeout_handler: CompatTimeouts
    campaigns: dict[str, int]
    """By status of /api/v1."""
    tasks: dict[str, int]


def router(context: ApiContext, snapshots: SnapshotSource) -> APIRouter:
    """Health, queues, monitoring and reset."""
    api = APIRouter(prefix="/api", tags=["compat"])

    def now() -> str:
        return utc(snapshots.wall()) or ""

    @api.get("/health", operation_id="compatHealth")
    async def health() -> CompatHealth:
        """Whether the server answers and its store can be read."""
        unfinished = await context.store(lambda store: len(store.campaigns.unfinished()))
        scheduling = await trio.to_thread.run_sync(is_running, context.home)
        return CompatHealth(timestamp=now(), scheduling=scheduling, unfinished=unfinished)

    @api.post("/reset", operation_id="compatReset", responses=problems(HTTPStatus.CONFLICT))
    async def reset() -> CompatReset:
        """Delete campaigns, jobs, results and remembered workers of this home, after a backup. Refused while a campaign runs. Keys,
        settings, uploaded models, experiments and written files remain."""
        return await context.isolated(lambda store: _reset(store, context.home, snapshots.wall()))

    @api.get("/queue/status", operation_id="compatQueues")
    async def queues() -> CompatQueues:
        """Count this home's waiting jobs, by worker and by compute unit."""
        return _queues(await context.store(lambda store: store.tasks.waiting()))

    @api.get("/monitoring/stats", operation_id="compatMonitoring")
    async def monitoring() -> CompatMonitoring:
        """Get the workers' health and the number of lost attempts."""
        counts = await context.store(lambda store: store.campaigns.state_counts())
        snapshot = await snapshots.take()
        workers = workers_health(snapshot.workers, snapshot.at, snapshots.wall(), snapshot.note)
        attempts = counts["attempts"]
        return CompatMonitoring(
            timestamp=now(),
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

    return api


def _queues(waiting: Sequence[WaitingTasks]) -> CompatQueues:
    sizes: Counter[str] = Counter()
    names: dict[str, str] = {}
    units: Counter[str] = Counter()
    for group in waiting:
        if group.worker is None:
            units[group.unit] += group.tasks
        else:
            sizes[group.worker] += group.tasks
            names[group.worker] = group.device
    queues = {
        worker: CompatWorkerQueue(device_name=names[worker], queue_size=size)
        for worker, size in sizes.items()
    }
    return CompatQueues(worker_queues=queues, capability_queues=dict(units))


def _reset(store: Store, home: Home, wall: float) -> CompatReset:
    unfinished = store.campaigns.unfinished()
    if unfinished:
        raise HttpProblem(
            HTTPStatus.CONFLICT,
            f"{len(unfinished)} of this home's campaigns have not ended, such as {unfinished[0].id}",
            hint=f"wait for them, or cancel each: POST /api/v1/campaigns/{unfinished[0].id}/cancel",
        )
    summaries = store.campaigns.summaries()
    rows: dict[str, Any] = store.describe()["rows"]
    backup = None
    if summaries:
        stamp = datetime.fromtimestamp(wall, UTC)
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
