"""The predecessor's HTTP API below /api, with its paths and JSON shapes: clients that only know it work unchanged."""

from __future__ import annotations

from fastapi import APIRouter

from scheduler.output.fleet import FleetWatcher
from web.compat import campaigns, system, workers
from web.http.context import ApiContext


def router(context: ApiContext, watcher: FleetWatcher) -> APIRouter:
    """All endpoints of the predecessor."""
    api = APIRouter()
    snapshots = workers.SnapshotSource(watcher)
    api.include_router(campaigns.router(context))
    api.include_router(workers.router(context, snapshots))
    api.include_router(system.router(context, snapshots))
    return api
