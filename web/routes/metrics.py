"""What this server counts about itself, and how the store stands, in the text form that Prometheus reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ELSEWHERE: Final = "(none)"
"""The route of what no endpoint answered: the path itself would be a label of the client's making."""
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Metrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "sark_api_requests",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._latency = Histogram(
            "sark_api_request_seconds",
            "Seconds until an answer began.",
            ("method", "route"),
            buckets=BUCKETS,
            registry=self._registry,
        )
        self.open = Gauge("sark_api_requests_open", "Requests under way.", registry=self._registry)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """One answer has begun."""
        method = method if method in METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._latency.labels(method, route).observe(seconds)

    def text(self, counted: Mapping[str, Mapping[str, int]], *, followers: int, scheduling: bool) -> bytes:
        """All of it. `counted`: campaigns, tasks and attempts by state."""
        registry = CollectorRegistry()
        registry.register(_Standing(counted, followers=followers, scheduling=scheduling))
        return generate_latest(registry) + generate_latest(self._registry)


class _Standing(Collector):
    """How the store stands at this moment."""

    def __init__(self, counted: Mapping[str, Mapping[str, int]], *, followers: int, scheduling: bool) -> None:
        self._counted, self._followers, self._scheduling = counted, followers, scheduling

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, states in self._counted.items():
            family = GaugeMetricFamily(f"sark_{name}", f"In the store, by state: {name}.", labels=["state"])
            for state, number in sorted(states.items()):
                family.add_metric([state], number)
            yield family
        yield GaugeMetricFamily("sark_api_streams", "Readers of a campaign's events.", value=self._followers)
        yield GaugeMetricFamily(
            "sark_scheduling", "1 while a scheduler process of this home runs.", value=int(self._scheduling)
        )


class MetricFamilies:
    """ASGI middleware that counts what is answered."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._app, self._metrics, self._clock = app, metrics, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = self._clock()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", ELSEWHERE)
                self._metrics.count(scope["method"], route, message["status"], self._clock() - begun)
            await send(message)

        with self._metrics.open.track_inprogress():
            await self._app(scope, receive, counted)
