"""Our own endpoints, below /api/v1: what the commands do, with the same models."""

from __future__ import annotations

from fastapi import APIRouter

from scheduler.api import campaigns, compare, events, models, planning, results, submitting, tasks
from scheduler.api.desk import Desk


def router(desk: Desk) -> APIRouter:
    """Endpoints over `desk`."""
    v1 = APIRouter()
    for part in (campaigns, submitting, results, events, tasks, compare, models, planning):
        v1.include_router(part.router(desk))
    return v1
