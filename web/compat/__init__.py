"""The first system's HTTP API below /api, with its paths and shapes: clients that know only that one work as they are.

shapes, worker_shapes ── what is answered, and our words in its words; no logic of its own beyond that
workers, campaigns, results, system ── the endpoints, over the same desk as /api/v1
"""

from __future__ import annotations

from fastapi import APIRouter

from scheduler.output.watcher import FleetWatcher
from web.compat import campaigns, results, system, workers
from web.compat.snapshot import SnapshotSource
from web.http.context import ApiContext


def router(desk: ApiContext, lookout: FleetWatcher) -> APIRouter:
    """All of its endpoints, over `desk` and what `lookout` sees."""
    looking = SnapshotSource(lookout)
    first = APIRouter()
    for part in (
        campaigns.router(desk),
        results.router(desk),
        workers.router(desk, looking),
        system.router(desk, looking),
    ):
        first.include_router(part)
    return first
