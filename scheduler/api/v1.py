"""Our own endpoints, below /api/v1: what the commands do, with the same models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from scheduler.api.desk import Desk
from scheduler.background import is_running
from scheduler.store import Store
from scheduler.summary import campaign_json


def router(desk: Desk) -> APIRouter:
    """Endpoints over `desk`."""
    v1 = APIRouter(prefix="/api/v1")

    @v1.get("/campaigns", tags=["campaigns"])
    async def campaigns() -> dict[str, Any]:
        """All campaigns of this home, the latest first."""

        def told(store: Store) -> dict[str, Any]:
            scheduling = is_running(desk.home)
            found = [campaign_json(item, scheduling=scheduling) for item in store.summaries()]
            return {"count": len(found), "campaigns": found}

        return await desk.store(told)

    return v1
