"""The server itself: health, version and metrics for Prometheus."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Final

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from results.row.form import JsonModel
from scheduler.submit.daemon import is_running
from web.http.context import Context, SharedStore
from web.http.problems import file_of

API: Final = "v1"
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
NO_ROUTE: Final = "(none)"
"""Label of requests without a route. Their paths would be labels that clients choose."""
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

api = APIRouter(prefix="/api/v1", tags=["server"])


class Health(JsonModel):
    """The server answers, and the store can be read."""

    status: str = "ok"
    scheduling: bool
    """Whether a scheduler process of this home is running. One is started when there is work."""
    unfinished: int
    """Number of campaigns that have not ended."""


class Version(JsonModel):
    """The version of the server."""

    name: str = "sark-node"
    version: str
    api: str = API
    python: str
    system: str


class Metrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "sark_api_requests", "Requests answered.", ("method", "route", "status"), registry=self._registry
        )
        self._latency = Histogram(
            "sark_api_request_seconds",
            "Seconds until the response started.",
            ("method", "route"),
            buckets=BUCKETS,
            registry=self._registry,
        )
        self.open = Gauge("sark_api_requests_open", "Requests in progress.", registry=self._registry)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        method = method if method in METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._latency.labels(method, route).observe(seconds)

    def text(self, counts: Mapping[str, Mapping[str, int]], *, followers: int, scheduling: bool) -> bytes:
        """All metrics in Prometheus' text format. `counts`: campaigns, tasks and attempts by state."""
        registry = CollectorRegistry()
        for name, states in counts.items():
            help = f"In the store, by state: {name}."
            gauge = Gauge(f"sark_{name}", help, ("state",), registry=registry)
            for state, number in sorted(states.items()):
                gauge.labels(state).set(number)
        Gauge("sark_api_streams", "Open event streams.", registry=registry).set(followers)
        help = "1 while a scheduler process of this home runs."
        Gauge("sark_scheduling", help, registry=registry).set(scheduling)
        return generate_latest(registry) + generate_latest(self._registry)


class MetricsMiddleware:
    """ASGI middleware that counts responses."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._app, self._metrics, self._clock = app, metrics, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = self._clock()

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", NO_ROUTE)
                self._metrics.count(scope["method"], route, message["status"], self._clock() - started)
            await send(message)

        with self._metrics.open.track_inprogress():
            await self._app(scope, receive, send_counted)


@api.get("/health")
def get_health(context: Context, store: SharedStore) -> Health:
    """Whether the server answers and its store can be read."""
    return Health(scheduling=is_running(context.home), unfinished=len(store.campaigns.unfinished()))


@api.get("/version")
async def get_server_version() -> Version:
    """Get the server's version."""
    return Version(version=version("sark-node"), python=platform.python_version(), system=platform.system())


@api.get("/metrics", response_class=Response, responses=file_of("text/plain", description="The metrics."))
def get_metrics(request: Request, context: Context, store: SharedStore) -> Response:
    """Get metrics for Prometheus: campaigns, tasks and attempts by state, requests by route and status, latencies."""
    metrics: Metrics = request.app.state.metrics
    followers, scheduling = context.feeds.followers, is_running(context.home)
    text = metrics.text(store.campaigns.state_counts(), followers=followers, scheduling=scheduling)
    return Response(text, media_type=METRICS_TYPE)
