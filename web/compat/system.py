"""The server itself for the first system's clients: health, queues, monitoring, and clearing what it keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import trio
from fastapi import APIRouter

from results.row.form import JsonModel, utc
from scheduler.output.watcher import EVERY_S
from scheduler.store.archive import write_backup
from scheduler.store.rows import WaitingTasks
from scheduler.store.store import Store
from scheduler.submit.daemon import is_running
from swarm.base.home import Home
from web.compat.snapshot import SnapshotSource
from web.compat.worker_models import workers_health
from web.http.context import ApiContext
from web.http.parts import problems
from web.http.problems import InvalidField


class FirstRedis(JsonModel):
    """The first system kept its state in Redis. Here is none; the key stays for clients that read it."""

    used: bool = False
    connected: bool = False
    status: str = "not used"
    note: str = "there is no Redis: campaigns and results are in this home's own store"


class FirstHealth(JsonModel):
    """The server answers, and its store can be read."""

    status: str = "healthy"
    timestamp: str
    redis: FirstRedis = FirstRedis()
    scheduling: bool
    """A scheduler process of this home runs: one is started when there is something to do."""
    unfinished: int
    """Campaigns that have not ended."""


class FirstReset(JsonModel):
    """What was cleared. Keys, settings, models that were sent here, experiments and files written before stay."""

    status: str = "reset"
    message: str
    workers_cleared: bool
    """Where workers were last reached; those that are in the swarm are found again."""
    campaigns_cleared: int
    jobs_cleared: int
    results_cleared: int
    backup: str | None
    """The store as it was before, for `sark-node db restore FILE --replace`; null: nothing was in it."""


class FirstWorkerQueue(JsonModel):
    """Jobs of this home that have a place in a worker's queue."""

    device_name: str
    queue_size: int


class FirstQueues(JsonModel):
    """Jobs of this home that wait."""

    worker_queues: dict[str, FirstWorkerQueue]
    """By worker id."""
    capability_queues: dict[str, int]
    """By compute unit: jobs that no worker has a place for yet."""
    results_queue_size: int = 0
    """Always 0: a result is on disk before its worker is told that it was taken."""


class FirstMonitor(JsonModel):
    """How the workers are."""

    check_interval_s: float
    """Seconds from one look to the next, while somebody looks."""
    total_workers: int
    healthy_workers: int
    unhealthy_workers: int
    note: str


class FirstTimeouts(JsonModel):
    """What became of attempts whose worker did not answer or took too long; such a job is tried elsewhere."""

    lost_attempts: int
    failed_attempts: int
    running_attempts: int


class FirstMonitoring(JsonModel):
    """Numbers for watching."""

    timestamp: str
    health_monitor: FirstMonitor
    timeout_handler: FirstTimeouts
    campaigns: dict[str, int]
    """By state, in the words of /api/v1."""
    tasks: dict[str, int]


def router(desk: ApiContext, looking: SnapshotSource) -> APIRouter:
    """Endpoints over `desk` and what it sees of the swarm."""
    first = APIRouter(prefix="/api", tags=["first"])

    def now() -> str:
        return utc(looking.wall()) or ""

    @first.get("/health", operation_id="firstHealth")
    async def health() -> FirstHealth:
        """Whether the server answers and its store can be read."""
        unfinished = await desk.store(lambda store: len(store.unfinished_campaigns()))
        return FirstHealth(
            timestamp=now(),
            scheduling=await trio.to_thread.run_sync(is_running, desk.home),
            unfinished=unfinished,
        )

    @first.post("/reset", operation_id="firstReset", responses=problems(HTTPStatus.CONFLICT))
    async def reset() -> FirstReset:
        """Clear campaigns, jobs, results and remembered workers of this home. Refused while a campaign runs. The store is copied before;
        keys, settings, models that were sent, experiments and written files stay."""
        return await desk.apart(lambda store: _reset(store, desk.home, looking.wall()))

    @first.get("/queue/status", operation_id="firstQueues")
    async def queues() -> FirstQueues:
        """This home's jobs that wait: at workers, and for one."""
        return _queues(await desk.store(Store.waiting))

    @first.get("/monitoring/stats", operation_id="firstMonitoring")
    async def monitoring() -> FirstMonitoring:
        """How the workers are, and what was lost."""
        counted = await desk.store(Store.counted)
        seen = await looking.look()
        found = workers_health(seen.workers, seen.at, looking.wall(), seen.note)
        attempts = counted["attempts"]
        return FirstMonitoring(
            timestamp=now(),
            health_monitor=FirstMonitor(
                check_interval_s=EVERY_S,
                total_workers=found.total,
                healthy_workers=found.healthy,
                unhealthy_workers=found.unhealthy,
                note=found.note,
            ),
            timeout_handler=FirstTimeouts(
                lost_attempts=attempts.get("lost", 0),
                failed_attempts=attempts.get("failed", 0),
                running_attempts=attempts.get("granted", 0),
            ),
            campaigns=counted["campaigns"],
            tasks=counted["tasks"],
        )

    return first


def _queues(waiting: Sequence[WaitingTasks]) -> FirstQueues:
    at: dict[str, FirstWorkerQueue] = {}
    units: Counter[str] = Counter()
    for one in waiting:
        if one.worker is None:
            units[one.unit] += one.tasks
        else:
            before = at[one.worker].queue_size if one.worker in at else 0
            at[one.worker] = FirstWorkerQueue(device_name=one.device, queue_size=before + one.tasks)
    return FirstQueues(worker_queues=at, capability_queues=dict(units))


def _reset(store: Store, home: Home, wall: float) -> FirstReset:
    running = store.unfinished_campaigns()
    if running:
        raise InvalidField(
            HTTPStatus.CONFLICT,
            f"{len(running)} of this home's campaigns have not ended, such as {running[0].id}",
            hint=f"wait for them, or cancel each: POST /api/v1/campaigns/{running[0].id}/cancel",
        )
    there = store.summaries()
    counted: dict[str, Any] = store.about()["rows"]
    backup = None
    if there:
        stamp = datetime.fromtimestamp(wall, UTC)
        backup = home.folder("scheduler") / f"before-reset-{stamp:%Y%m%dT%H%M%S}-{stamp.microsecond:06}"
        write_backup(backup, store)
    gone = sum(store.forget_campaign(item.campaign.id) for item in there)
    workers = store.forget_workers()
    return FirstReset(
        message=f"{gone} campaigns with their results were cleared"
        + (f"; as it was before: sark-node db restore {backup} --replace" if backup else ""),
        workers_cleared=workers,
        campaigns_cleared=gone,
        jobs_cleared=int(counted["tasks"]),
        results_cleared=int(counted["results"]),
        backup=None if backup is None else str(backup),
    )
