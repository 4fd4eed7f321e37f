"""A gate's numbers as Prometheus reads them. Names and units are told in docs/gates.md; a name, once out, keeps its meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from protocol.messages.gate import GateSnapshot


class GateCollector(Collector):
    """Reads a `GateSnapshot` into metrics, anew at each scrape."""

    def __init__(self, standing: Callable[[], GateSnapshot], peer: str) -> None:
        """`peer`: the gate's own id."""
        self._standing = standing
        self._peer = peer

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        here = self._standing()
        yield InfoMetricFamily(
            "sark_gate",
            "Which gate this is.",
            {"version": here.version, "peer": self._peer, "admit": here.admit},
        )
        yield _gauge("uptime_seconds", "Seconds since the gate came up.", here.uptime_s)
        yield _gauge("draining", "1 while it lends nothing new because it is about to stop.", here.draining)
        yield _gauge("connected_peers", "Peers with a live connection.", here.connected)
        yield _gauge("index_adverts", "Devices whose adverts are kept for the swarm.", here.adverts)
        yield _gauge("index_shards", "Shards of the index with at least one advert.", here.shards)
        yield _gauge("index_bytes", "Bytes of adverts that are kept.", here.advert_bytes)
        yield _gauge(
            "loop_lag_seconds", "By how much the event loop was late at worst in a minute.", here.lag_s
        )
        refusals = CounterMetricFamily(
            "sark_gate_refusals", "Requests that were refused.", labels=("desk", "reason")
        )
        for told, count in sorted(here.refused.items()):
            desk, _, reason = told.partition(" ")
            refusals.add_metric((desk, reason), count)
        yield refusals
        if here.caps is not None:
            yield from _relay(here)


def _relay(here: GateSnapshot) -> Iterator[Metric]:
    assert here.caps is not None
    yield _gauge("relay_places", "Peers that hold a place, where others may call them.", here.places)
    yield _gauge("relay_places_limit", "Places there are.", here.caps.reservations)
    yield _counter("relay_places_given", "Places given, renewals left out.", here.places_given)
    yield _gauge("relay_circuits", "Relayed connections that go through this gate now.", here.circuits)
    yield _gauge("relay_circuits_limit", "Relayed connections there may be at a time.", here.caps.circuits)
    yield _counter("relay_circuits_begun", "Relayed connections that came about.", here.circuits_begun)
    ended = CounterMetricFamily(
        "sark_gate_relay_circuits_ended", "Relayed connections that ended, and how.", labels=("reason",)
    )
    for reason, count in sorted(here.circuits_ended.items()):
        ended.add_metric((reason,), count)
    yield ended
    yield _counter("relay_bytes", "Bytes carried by relayed connections.", here.relayed_bytes)


def _gauge(name: str, told: str, value: float) -> Metric:
    return GaugeMetricFamily(f"sark_gate_{name}", told, value=float(value))


def _counter(name: str, told: str, value: float) -> Metric:
    return CounterMetricFamily(f"sark_gate_{name}", told, value=float(value))


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The one form there is, whatever a request accepts: the library's own choice falls over odd `Accept` headers."""


def page_of(standing: Callable[[], GateSnapshot], peer: str) -> Callable[[], bytes]:
    """What gives the page. On Linux it tells of the process, too (`process_…`)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(GateCollector(standing, peer))
    ProcessCollector(registry=registry)

    return lambda: generate_latest(registry)
