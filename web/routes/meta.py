"""This server itself: is it well, which version is it, what has it counted."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Final

import trio
from fastapi import APIRouter, Response

from results.row.form import JsonModel
from scheduler.store.store import Store
from scheduler.submit.daemon import is_running
from web.http.context import ApiContext
from web.routes.metrics import MEDIA_TYPE, Metrics

API: Final = "v1"


class Health(JsonModel):
    """The server answers, and the store can be read."""

    status: str = "ok"
    scheduling: bool
    """A scheduler process of this home runs: one is started when there is something to do."""
    unfinished: int
    """Campaigns that have not ended."""


class Version(JsonModel):
    """What answers here."""

    name: str = "sark-node"
    version: str
    api: str = API
    python: str
    system: str


def router(desk: ApiContext, metrics: Metrics) -> APIRouter:
    """Endpoints over `desk`."""
    v1 = APIRouter(prefix="/api/v1", tags=["server"])

    @v1.get("/health", operation_id="getHealth")
    async def health() -> Health:
        """Whether the server answers and its store can be read."""
        unfinished = await desk.store(lambda store: len(store.unfinished_campaigns()))
        return Health(scheduling=await trio.to_thread.run_sync(is_running, desk.home), unfinished=unfinished)

    @v1.get("/version", operation_id="getServerVersion")
    async def version_() -> Version:
        """Which version answers."""
        return Version(
            version=version("sark-node"), python=platform.python_version(), system=platform.system()
        )

    @v1.get(
        "/metrics",
        operation_id="getMetrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def numbers() -> Response:
        """For Prometheus: campaigns, tasks and attempts by state, requests by route and status, how long answers took to begin."""
        counted = await desk.store(Store.counted)
        text = metrics.text(
            counted,
            followers=desk.feeds.followers,
            scheduling=await trio.to_thread.run_sync(is_running, desk.home),
        )
        return Response(text, media_type=MEDIA_TYPE)

    return v1
