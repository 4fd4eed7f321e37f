"""The metrics for Prometheus: their names, and a listener that strangers cannot exhaust. The sockets are real."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import httpx
import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families

from gate.settings import split_listener
from gate.status.metrics import MAX_AT_ONCE, MAX_HEAD, WITHIN_S, answer, page_of, serve_metrics
from protocol.errors import ResourceError
from protocol.messages.gate import GateSnapshot, RelayCaps

CAPS = RelayCaps(
    reservations=100,
    reservations_per_network=10,
    circuits=50,
    circuits_from_peer=5,
    circuits_to_peer=5,
    circuits_from_network=9,
    circuit_bytes=1 << 20,
    circuit_s=60.0,
)
STANDING = GateSnapshot(
    version="1.2.3",
    incarnation=4,
    uptime_s=61.5,
    admit="ticket",
    connected=7,
    caps=CAPS,
    reservations=3,
    reservations_made=9,
    circuits=2,
    circuits_begun=11,
    circuits_ended={"closed": 8, "bytes": 1},
    relayed_bytes=123_456,
    refused={"relay network-share": 5, "index not-allowed": 2},
    adverts=4,
    shards=80,
    advert_bytes=3_600,
    memory_bytes=90_000_000,
    cpu_s=1.5,
    lag_s=0.25,
)
GATE = "12D3KooWgate"


def samples(page: bytes) -> dict[tuple[str, str], float]:
    """(name, labels) → value."""
    return {
        (
            sample.name,
            ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_every_number_has_its_name_and_unit() -> None:
    read = samples(page_of(lambda: STANDING, GATE)())
    own = {key: value for key, value in read.items() if key[0].startswith("sark_gate_")}
    assert own == {
        ("sark_gate_info", f"admit=ticket,peer={GATE},version=1.2.3"): 1,
        ("sark_gate_uptime_seconds", ""): 61.5,
        ("sark_gate_draining", ""): 0,
        ("sark_gate_connected_peers", ""): 7,
        ("sark_gate_index_adverts", ""): 4,
        ("sark_gate_index_shards", ""): 80,
        ("sark_gate_index_bytes", ""): 3_600,
        ("sark_gate_loop_lag_seconds", ""): 0.25,
        ("sark_gate_refusals_total", "reason=network-share,service=relay"): 5,
        ("sark_gate_refusals_total", "reason=not-allowed,service=index"): 2,
        ("sark_gate_relay_reservations", ""): 3,
        ("sark_gate_relay_reservations_limit", ""): 100,
        ("sark_gate_relay_reservations_made_total", ""): 9,
        ("sark_gate_relay_circuits", ""): 2,
        ("sark_gate_relay_circuits_limit", ""): 50,
        ("sark_gate_relay_circuits_begun_total", ""): 11,
        ("sark_gate_relay_circuits_ended_total", "reason=closed"): 8,
        ("sark_gate_relay_circuits_ended_total", "reason=bytes"): 1,
        ("sark_gate_relay_bytes_total", ""): 123_456,
    }


def test_a_gate_that_relays_nothing_tells_nothing_of_relaying() -> None:
    page = page_of(lambda: STANDING.model_copy(update={"caps": None}), GATE)()
    assert b"sark_gate_relay" not in page
    assert b"sark_gate_connected_peers 7.0" in page


def test_two_gates_in_one_process_do_not_share_their_numbers() -> None:
    one, other = (
        page_of(lambda: STANDING, GATE),
        page_of(lambda: STANDING.model_copy(update={"reservations": 1}), GATE),
    )
    assert b"sark_gate_relay_reservations 3.0" in one()
    assert b"sark_gate_relay_reservations 1.0" in other()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        ("9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("[::1]:9464", ("::1", 9464)),
        ("192.0.2.7:0", ("192.0.2.7", 0)),
    ],
)
def test_where_to_listen_is_loopback_unless_it_says_otherwise(text: str, where: tuple[str, int]) -> None:
    assert split_listener(text) == where


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:x", "127.0.0.1:-1"]
)
def test_where_nobody_can_listen_is_no_place(text: str) -> None:
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:9464"):
        split_listener(text)


# -- over HTTP -----------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def listener(page: Callable[[], bytes] = lambda: b"up 1\n") -> AsyncIterator[int]:
    async with trio.open_nursery() as nursery:
        _, port = await nursery.start(serve_metrics, "127.0.0.1:0", page)
        yield port
        nursery.cancel_scope.cancel()


async def test_prometheus_gets_the_page() -> None:
    async with listener(page_of(lambda: STANDING, GATE)) as port, httpx.AsyncClient() as http:
        got = await http.get(f"http://127.0.0.1:{port}/metrics", headers={"Accept": "text/plain;version=zz"})
        assert got.status_code == 200
        assert got.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert samples(got.content)["sark_gate_relay_reservations", ""] == 3


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/metrics?x=1", 200),
        ("HEAD", "/metrics", 200),
        ("GET", "/", 404),
        ("GET", "/metrics/../../etc/passwd", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/metrics", 405),
        ("CONNECT", "/metrics", 405),
        ("HEAD", "/other", 404),
    ],
)
async def test_there_is_one_page_and_one_thing_to_do_with_it(method: str, path: str, status: int) -> None:
    async with listener() as port:
        got = await talk(port, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert got.startswith(f"HTTP/1.1 {status} ".encode())
        assert (b"up 1" in got) is (status == 200 and method == "GET")


async def talk(port: int, sent: bytes) -> bytes:
    """Send bytes on a fresh connection; returns what arrives until the other side has finished."""
    with trio.fail_after(20):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            try:
                await stream.send_all(sent)
                return b"".join([piece async for piece in stream])
            except trio.BrokenResourceError:  # it was reset before it had read all of our bytes
                return b""


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01 hello",
        b"GET /metrics HTTP/1.1\r\nBad Header\r\n\r\n",
        b"GET /metrics HTTP/x.y\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 2 * MAX_HEAD,
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    ],
    ids=["tls", "bad header", "unknown version", "long head", "two lengths"],
)
async def test_what_is_no_request_is_refused_and_harms_nobody(sent: bytes) -> None:
    async with listener() as port:
        got = await talk(port, sent)
        assert got == b"" or b" 4" in got.splitlines()[0] or b" 5" in got.splitlines()[0]
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"http://127.0.0.1:{port}/metrics")).text == "up 1\n"


async def test_a_taken_port_is_a_one_line_error() -> None:
    async with listener() as port:
        with pytest.raises(ResourceError, match="cannot serve metrics at"):
            await serve_metrics(f"127.0.0.1:{port}", lambda: b"")


async def test_who_sends_nothing_is_not_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    here, there = trio.testing.memory_stream_pair()
    began = trio.current_time()
    with trio.move_on_after(WITHIN_S):
        await answer(lambda: b"up 1\n", there)
    assert trio.current_time() - began == WITHIN_S
    await here.aclose()


async def test_more_connections_than_it_takes_are_closed_at_once_and_the_rest_are_served_later() -> None:
    async with listener() as port:
        idle = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(MAX_AT_ONCE)]
        with trio.fail_after(20):
            while True:  # until the listener has accepted all of them
                async with await trio.open_tcp_stream("127.0.0.1", port) as late:
                    with trio.move_on_after(0.2):
                        try:
                            if await late.receive_some() == b"":
                                break
                        except trio.BrokenResourceError:
                            break
        for stream in idle:
            await stream.aclose()
        got = partial(httpx.get, f"http://127.0.0.1:{port}/metrics", trust_env=False)
        with trio.fail_after(20):
            while True:
                try:
                    page = await trio.to_thread.run_sync(got)
                except httpx.HTTPError:
                    continue
                assert page.text == "up 1\n"
                break
