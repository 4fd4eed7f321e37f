"""A gate's metrics for Prometheus; docs/gates.md describes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from protocol.messages.gate import GateSnapshot


class GateCollector(Collector):
    """Turns a `GateSnapshot` into metrics at each scrape."""

    def __init__(self, snapshot: Callable[[], GateSnapshot], peer: str) -> None:
        """`peer`: the gate's own id."""
        self._snapshot = snapshot
        self._peer = peer

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        here = self._snapshot()
        yield InfoMetricFamily(
            "sark_gate",
            "Which gate this is.",
            {"version": here.version, "peer": self._peer, "admit": here.admit},
        )
        yield _gauge("uptime_seconds", "Seconds since the gate came up.", here.uptime_s)
        yield _gauge(
            "draining", "1 while the gate accepts nothing new because it is stopping.", here.draining
        )
        yield _gauge("connected_peers", "Peers with a live connection.", here.connected)
        yield _gauge("index_adverts", "Devices whose adverts are stored.", here.adverts)
        yield _gauge("index_shards", "Shards of the index with at least one advert.", here.shards)
        yield _gauge("index_bytes", "Bytes of stored adverts.", here.advert_bytes)
        yield _gauge("loop_lag_seconds", "Longest delay of the event loop in the last minute.", here.lag_s)
        refusals = CounterMetricFamily(
            "sark_gate_refusals", "Requests that were refused.", labels=("service", "reason")
        )
        for key, count in sorted(here.refused.items()):
            service, _, reason = key.partition(" ")
            refusals.add_metric((service, reason), count)
        yield refusals
        if here.caps is not None:
            yield from _relay(here)


def _relay(here: GateSnapshot) -> Iterator[Metric]:
    assert here.caps is not None
    yield _gauge("relay_reservations", "Peers with a reservation.", here.reservations)
    yield _gauge("relay_reservations_limit", "Most reservations at a time.", here.caps.reservations)
    yield _counter("relay_reservations_made", "New reservations.", here.reservations_made)
    yield _gauge("relay_circuits", "Live relayed connections.", here.circuits)
    yield _gauge("relay_circuits_limit", "Most relayed connections at a time.", here.caps.circuits)
    yield _counter("relay_circuits_begun", "Relayed connections established.", here.circuits_begun)
    ended = CounterMetricFamily(
        "sark_gate_relay_circuits_ended", "Relayed connections that ended, by reason.", labels=("reason",)
    )
    for reason, count in sorted(here.circuits_ended.items()):
        ended.add_metric((reason,), count)
    yield ended
    yield _counter("relay_bytes", "Bytes carried by relayed connections.", here.relayed_bytes)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"sark_gate_{name}", text, value=float(value))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"sark_gate_{name}", text, value=float(value))


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Whatever a request accepts: the library's own choice fails on odd `Accept` headers."""


def page_of(snapshot: Callable[[], GateSnapshot], peer: str) -> Callable[[], bytes]:
    """A function that renders the page. On Linux it includes the process (`process_…`)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(GateCollector(snapshot, peer))
    ProcessCollector(registry=registry)

    return lambda: generate_latest(registry)
