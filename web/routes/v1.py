"""Our own endpoints, below /api/v1: what the commands do, with the same models."""

from __future__ import annotations

from fastapi import APIRouter

from web.http.context import ApiContext
from web.routes import campaigns, compare, events, models, planning, results, submitting, tasks


def router(desk: ApiContext) -> APIRouter:
    """Endpoints over `desk`."""
    v1 = APIRouter()
    for part in (campaigns, submitting, results, events, tasks, compare, models, planning):
        v1.include_router(part.router(desk))
    return v1
