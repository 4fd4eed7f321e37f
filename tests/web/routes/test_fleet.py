"""The devices of the swarm over HTTP: which fit, why others do not, in pages, and live as changes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from http import HTTPStatus
from typing import Any

import httpx
import pytest
import trio

from protocol.values.reading import DeviceReading, GpuReading
from protocol.values.requirement import Requirement
from results.analysis.sittings import IntervalCoverage
from scheduler.output.fleet import FleetWatcher
from scheduler.store.readings import ReadingsFile
from swarm.net.identity import Identity
from tests.web.conftest import StoreWriter
from tests.web.swarm_parts import GATE, HOSTILE, Swarm, observed
from web.app import make_open_app
from web.http.context import ApiContext
from web.http.coverage import CoverageView
from web.http.server import bind, serve
from web.http.sse import EventStream
from web.routes import fleet


@pytest.fixture
def swarm() -> Swarm:
    return Swarm(
        observed("big", 64),
        observed("far", 16, via=GATE),
        observed("small", 2),
        observed("dumb", 32, silent=True),
    )


@pytest.fixture
async def asking(context: ApiContext, swarm: Swarm) -> AsyncIterator[httpx.AsyncClient]:
    """A client over a real socket, because the server starts the observer."""
    app = make_open_app(context, watcher=FleetWatcher(swarm.open))  # type: ignore[arg-type]
    sockets = bind(["127.0.0.1"], 0)
    url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, app, sockets)
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            yield client
        nursery.cancel_scope.cancel()


async def test_devices_that_fit_come_first_and_the_others_say_why_not(asking: httpx.AsyncClient) -> None:
    answer = await asking.get("/api/v1/peers", params={"where": ["ram >= 8 GiB", "ram <= 32 GiB"]})
    document = answer.json()
    assert (document["count"], document["fit"], document["next"]) == (4, 2, None)
    assert [item["name"] for item in document["peers"]] == ["dumb", "far", "big", "small"]
    assert document["peers"][2]["unmet"] == ["ram: has 64 GiB, needs <= 32 GiB"]
    assert document["explain"].splitlines()[0] == "2 of 4 devices fit"
    far = document["peers"][1]
    assert far["path"] == {"direct": False, "gate": GATE, "rtt_ms": 2.04}
    assert far["via"] == f"…{GATE[-8:]}"
    assert far["warm"] == [{"sha256": "ab" * 32, "name": None}]
    assert far["soc"] == HOSTILE  # sent unchanged: escaping is up to the client
    assert far["why"] == "[31mred"
    assert document["peers"][0]["unreachable"] == "silence"
    assert document["peers"][0]["state"] is None


async def test_each_device_has_how_often_its_intervals_hold(
    context: ApiContext, asking: httpx.AsyncClient
) -> None:
    big = Identity.from_seed("big").peer_id

    async def read() -> dict[str, IntervalCoverage]:
        return {f"d-big {big}": IntervalCoverage(19, 20, (0.0,))}

    context.coverage = CoverageView(read)
    peers = {item["name"]: item for item in (await asking.get("/api/v1/peers")).json()["peers"]}
    assert peers["big"]["coverage"] == {"share": 0.95, "held": 19, "sittings": 20, "margin_percent": 0.0}
    assert peers["small"]["coverage"] is None


async def test_a_device_that_runs_our_task_has_what_its_sensors_show(
    context: ApiContext, asking: httpx.AsyncClient, writer: StoreWriter
) -> None:
    peers = {name: Identity.from_seed(name).peer_id for name in ("big", "far", "small")}
    writer.campaign()
    writer.begin("c-one/1", worker=peers["big"])
    writer.begin("c-one/2", worker=peers["far"])
    shown = DeviceReading(cpu=0.5, gpus=(GpuReading(memory=7),))
    late = shown.model_copy(update={"age_s": 30.0})
    file = ReadingsFile(context.home.readings_file)
    file.put({peers["big"]: shown, peers["far"]: late, peers["small"]: shown})
    document = (await asking.get("/api/v1/peers")).json()
    readings = {item["name"]: item["reading"] for item in document["peers"]}
    assert (readings["big"]["cpu"], readings["big"]["power_w"]) == (0.5, None)
    assert readings["big"]["gpus"][0]["memory"] == 7
    assert (readings["big"]["late"], readings["far"]["late"]) == (False, True)
    assert readings["small"] is None, "it runs nothing of ours"


async def test_the_list_comes_page_by_page(asking: httpx.AsyncClient) -> None:
    names: list[str] = []
    after: dict[str, str] = {}
    while True:
        document = (await asking.get("/api/v1/peers", params={"limit": 3, **after})).json()
        names += [item["name"] for item in document["peers"]]
        if document["next"] is None:
            break
        after = {"after": document["next"]}
    assert names == ["big", "dumb", "far", "small"]
    gone = await asking.get("/api/v1/peers", params={"after": "nobody"})
    assert gone.status_code == HTTPStatus.UNPROCESSABLE_ENTITY


async def test_an_invalid_clause_is_refused_with_a_hint(asking: httpx.AsyncClient) -> None:
    for path in ("/api/v1/peers", "/api/v1/fleet"):
        answer = await asking.get(path, params={"where": "rma >= 8 GiB"})
        assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
        assert "unknown attribute 'rma'" in answer.json()["detail"]
        assert "did you mean 'ram'" in answer.json()["hint"]


async def test_a_swarm_that_cannot_be_reached_is_no_fault_of_the_server(
    asking: httpx.AsyncClient, swarm: Swarm
) -> None:
    swarm.dark = True
    answer = await asking.get("/api/v1/peers")
    assert answer.status_code == HTTPStatus.FAILED_DEPENDENCY
    assert answer.json()["hint"] == "start one with: sark-node gate"


async def test_live_readers_above_the_limit_are_refused(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "MAX_FOLLOWERS", 0)
    answer = await client.get("/api/v1/fleet")
    assert answer.status_code == HTTPStatus.TOO_MANY_REQUESTS
    assert "/api/v1/peers" in answer.json()["hint"]


async def test_a_reader_who_disconnects_is_unsubscribed(context: ApiContext, swarm: Swarm) -> None:
    watcher = FleetWatcher(swarm.open)  # type: ignore[arg-type]
    sent: list[dict[str, Any]] = []
    gone = trio.Event()

    async def send(message: Any) -> None:
        sent.append(message)
        if b"event: fleet" in message.get("body", b""):
            gone.set()

    async def receive() -> dict[str, str]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watcher.run)
        answer = EventStream(partial(fleet._send_changes, context, watcher, Requirement()))
        with trio.fail_after(20):
            await answer({"type": "http"}, receive, send)  # returns once the stream holds nothing
        assert watcher.readers == 0
        nursery.cancel_scope.cancel()
    assert (b"content-type", b"text/event-stream") in [
        (name, value.partition(b";")[0]) for name, value in sent[0]["headers"]
    ]


async def test_live_readers_get_everything_first_and_then_changes(context: ApiContext, swarm: Swarm) -> None:
    watcher = FleetWatcher(swarm.open, interval_s=0.01)  # type: ignore[arg-type]
    result, hear = trio.open_memory_channel[tuple[str, dict[str, Any]]](0)

    async def tell(name: str, value: Any, *, id: str | None = None) -> None:
        await result.send((name, json.loads(json.dumps(value))))

    async def changes() -> tuple[str, dict[str, Any]]:
        while True:
            name, value = await hear.receive()
            if name != "fleet" or value["peers"] or value["gone"]:
                return name, value

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            nursery.start_soon(fleet._send_changes, context, watcher, Requirement(), tell)
            _, first = await changes()
            assert (first["whole"], first["count"], len(first["peers"])) == (True, 4, 4)
            swarm.devices[2] = observed("small", 4)
            _, second = await changes()
            assert second["whole"] is False
            assert [item["name"] for item in second["peers"]] == ["small"]
            del swarm.devices[0]
            _, third = await changes()
            assert (third["gone"], third["peers"]) == ([Identity.from_seed("big").peer_id], [])
            assert swarm.opened == 1
            nursery.cancel_scope.cancel()


async def test_live_readers_learn_why_nothing_is_seen(context: ApiContext, swarm: Swarm) -> None:
    swarm.dark = True
    watcher = FleetWatcher(swarm.open, interval_s=0.01)  # type: ignore[arg-type]
    result, hear = trio.open_memory_channel[tuple[str, dict[str, Any]]](0)

    async def tell(name: str, value: Any, *, id: str | None = None) -> None:
        await result.send((name, value))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            nursery.start_soon(fleet._send_changes, context, watcher, Requirement(), tell)
            assert await hear.receive() == (
                "problem",
                {"detail": "no gate is known here", "hint": "start one with: sark-node gate"},
            )
            swarm.dark = False
            while (event := await hear.receive())[0] == "problem":
                pass
            assert event[1]["whole"] is True
            nursery.cancel_scope.cancel()
