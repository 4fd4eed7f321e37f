"""A gate's metrics for Prometheus, described in docs/gates.md: one page over plain HTTP/1.1, on loopback unless set otherwise.

The listener runs in the gate's own event loop, so it limits what clients can cost: few connections at a time, one request on each, small
headers, and five seconds in total.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import h11
import structlog
import trio
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gate.settings import split_listener
from protocol.errors import ResourceError
from protocol.messages.gate import GateSnapshot

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Fixed, whatever a request accepts, because the library's own choice fails on unusual `Accept` headers."""
MAX_AT_ONCE: Final = 8
WITHIN_S: Final = 5.0
MAX_HEAD: Final = 8_192
PATH: Final = b"/metrics"

log = structlog.get_logger("sark.gate")

Page = Callable[[], bytes]


class GateCollector(Collector):
    """Turns a `GateSnapshot` into metrics at each scrape."""

    def __init__(self, snapshot: Callable[[], GateSnapshot], peer: str) -> None:
        """`peer`: the gate's own id."""
        self._snapshot = snapshot
        self._peer = peer

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        now = self._snapshot()
        labels = {"version": now.version, "peer": self._peer, "admit": now.admit}
        yield InfoMetricFamily("sark_gate", "Version, peer id and admission mode of the gate.", labels)
        yield _gauge("uptime_seconds", "Seconds since the gate came up.", now.uptime_s)
        yield _gauge(
            "draining", "1 while the gate is stopping and accepts nothing new, else 0.", now.draining
        )
        yield _gauge("connected_peers", "Peers with a live connection.", now.connected)
        yield _gauge("index_adverts", "Devices with stored adverts.", now.adverts)
        yield _gauge("index_shards", "Shards of the index with at least one advert.", now.shards)
        yield _gauge("index_bytes", "Bytes of stored adverts.", now.advert_bytes)
        yield _gauge("loop_lag_seconds", "Longest delay of the event loop in the last minute.", now.lag_s)
        refused = {tuple(key.split(" ", 1)): count for key, count in now.refused.items()}
        yield _counters("refusals", "Requests that were refused.", ("service", "reason"), refused)
        if now.caps is None:
            return
        yield _gauge("relay_reservations", "Peers with a reservation.", now.reservations)
        yield _gauge(
            "relay_reservations_limit", "Maximum number of simultaneous reservations.", now.caps.reservations
        )
        yield _counter("relay_reservations_made", "Reservations made.", now.reservations_made)
        yield _gauge("relay_circuits", "Live relayed connections.", now.circuits)
        yield _gauge(
            "relay_circuits_limit", "Maximum number of simultaneous relayed connections.", now.caps.circuits
        )
        yield _counter("relay_circuits_begun", "Relayed connections established.", now.circuits_begun)
        ended: dict[tuple[str, ...], int] = {(reason,): count for reason, count in now.circuits_ended.items()}
        yield _counters(
            "relay_circuits_ended", "Relayed connections that ended, by reason.", ("reason",), ended
        )
        yield _counter("relay_bytes", "Bytes carried by relayed connections.", now.relayed_bytes)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"sark_gate_{name}", text, value=float(value))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"sark_gate_{name}", text, value=float(value))


def _counters(
    name: str, text: str, labels: tuple[str, ...], counts: Mapping[tuple[str, ...], float]
) -> Metric:
    family = CounterMetricFamily(f"sark_gate_{name}", text, labels=labels)
    for values, count in sorted(counts.items()):
        family.add_metric(values, count)
    return family


def page_of(snapshot: Callable[[], GateSnapshot], peer: str) -> Page:
    """A function that renders the page. On Linux the page includes metrics of the process (`process_…`)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(GateCollector(snapshot, peer))
    ProcessCollector(registry=registry)
    return lambda: generate_latest(registry)


# -- over HTTP ----------------------------------------------------------------------------------------------------------------


async def serve_metrics(
    where: str, page: Page, *, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve at `HOST:PORT` until cancelled; started with the actual host and port. Raises `ResourceError` if it cannot listen there."""
    host, port = split_listener(where)
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as exc:
        raise ResourceError(
            f"cannot serve metrics at {where}: {exc.strerror or exc}", hint="choose another place: --metrics"
        ) from None
    name = listeners[0].socket.getsockname()
    log.info("gate.metrics", host=name[0], port=name[1])
    task_status.started((name[0], name[1]))
    await trio.serve_listeners(partial(_serve, page, trio.CapacityLimiter(MAX_AT_ONCE)), listeners)


async def _serve(page: Page, slots: trio.CapacityLimiter, stream: trio.SocketStream) -> None:
    try:
        slots.acquire_nowait()
    except trio.WouldBlock:
        await trio.aclose_forcefully(stream)
        return
    try:
        with trio.move_on_after(WITHIN_S):
            await answer(page, stream)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    finally:
        slots.release()
        await trio.aclose_forcefully(stream)


async def answer(page: Page, stream: trio.abc.Stream) -> None:
    """Read one request and answer it."""
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
    head = False
    try:
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some(MAX_HEAD)))
    except h11.RemoteProtocolError as exc:
        status, kind, content = exc.error_status_hint, "text/plain", b"not understood\n"
    else:
        if not isinstance(event, h11.Request):
            return
        status, kind, content = _content(page, event)
        head = event.method == b"HEAD"
    if http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    headers = [("Content-Type", kind), ("Content-Length", str(len(content))), ("Connection", "close")]
    parts = (
        h11.Response(status_code=status, headers=headers),
        h11.Data(data=b"" if head else content),
        h11.EndOfMessage(),
    )
    await stream.send_all(b"".join(http.send(part) or b"" for part in parts))
    if isinstance(stream, trio.SocketStream):
        await stream.send_eof()
        while await stream.receive_some(MAX_HEAD):  # closing with unread bytes would discard the response
            pass


def _content(page: Page, request: h11.Request) -> tuple[int, str, bytes]:
    if request.method not in (b"GET", b"HEAD"):
        return 405, "text/plain", b"only GET\n"
    if request.target.partition(b"?")[0] != PATH:
        return 404, "text/plain", b"the metrics are at /metrics\n"
    return 200, CONTENT_TYPE, page()
