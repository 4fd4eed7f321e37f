"""The predecessor's endpoints for workers: the swarm's devices in its terms, and honest answers to what a client claims about them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httpx
import pytest
import trio

from protocol.errors import Refused
from protocol.messages.work import Action
from protocol.words import Reason, WorkerState
from scheduler.output.fleet import FleetWatcher
from swarm.join.known_gates import write_addresses
from swarm.net.identity import Identity, load_or_create
from tests.web.swarm_parts import GATE, HOSTILE, Swarm, observed
from web.app import make_open_app
from web.compat.workers import WORKER, ip_address
from web.http.context import ApiContext

BIG = Identity.from_seed("big").peer_id
SILENT = Identity.from_seed("dumb").peer_id
REGISTER = {
    "device_name": "MacBook Pro",
    "ip_address": "192.168.1.100",
    "capabilities": ["CPU (ONNX)", "GPU (CoreML)"],
    "device_info": {"Soc": "Apple M2 Pro", "Ram": "16", "DeviceOs": "Darwin", "UDID": "unique-device-id"},
}
"""The example in the predecessor's README."""


@dataclass
class Owner:
    """Records the orders sent to workers. Only workers in `own` obey."""

    own: set[str] = field(default_factory=set)
    orders: list[tuple[str, Action]] = field(default_factory=list)
    state: WorkerState = WorkerState.ACTIVE

    async def tell(self, peer: str, action: Action) -> WorkerState:
        await trio.lowlevel.checkpoint()
        if peer not in self.own:
            raise Refused("you are not its owner", reason=Reason.NOT_ALLOWED, hint="on that device: …")
        self.orders.append((peer, action))
        return WorkerState.DRAINING if action is Action.PAUSE else self.state


@pytest.fixture
def swarm() -> Swarm:
    reached = ("/ip4/127.0.0.1/tcp/1", f"/ip4/192.0.2.1/tcp/1/p2p/{GATE}/p2p-circuit", "/ip4/192.0.2.7/tcp/9")
    return Swarm(observed("big", 64, addresses=reached), observed("dumb", 32, silent=True))


@pytest.fixture
def owner(context: ApiContext) -> Owner:
    owner = Owner()
    context.send_action = owner.tell
    return owner


@pytest.fixture
async def asking(context: ApiContext, swarm: Swarm, owner: Owner) -> AsyncIterator[httpx.AsyncClient]:
    watcher = FleetWatcher(swarm.open)  # type: ignore[arg-type]
    transport = httpx.ASGITransport(make_open_app(context, watcher=watcher))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watcher.run)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:5000") as client:
            yield client
        nursery.cancel_scope.cancel()


async def test_workers_are_the_devices_that_can_be_found(asking: httpx.AsyncClient) -> None:
    document = (await asking.get("/api/workers")).json()
    assert document["count"] == 2
    big, silent = document["workers"]
    assert (big["worker_id"], big["device_name"], big["capabilities"]) == (BIG, "big", ["CPU (ONNX)"])
    assert big["device_info"] == {"Soc": HOSTILE, "Ram": "64", "DeviceOs": "", "UDID": "d-big"}
    assert (big["status"], big["ip_address"]) == ("active", "192.0.2.7")
    assert big["last_heartbeat"]
    assert (silent["status"], silent["detail"], silent["last_heartbeat"]) == ("faulty", "silence", None)
    assert (await asking.get(f"/api/workers/{BIG}")).json()["device_info"] == big["device_info"]


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (WorkerState.ACTIVE, "active"),
        (WorkerState.BUSY, "busy"),
        (WorkerState.CLEANUP, "cleanup"),
        (WorkerState.DRAINING, "cleanup"),
        (WorkerState.FAULTY, "faulty"),
        (None, "active"),  # it answers, but without a state
    ],
)
async def test_our_states_in_its_words(
    asking: httpx.AsyncClient, swarm: Swarm, state: WorkerState | None, word: str
) -> None:
    swarm.devices = [observed("big", 64, state=state)]
    assert (await asking.get(f"/api/workers/{BIG}")).json()["status"] == word
    health = (await asking.get(f"/api/workers/{BIG}/health")).json()
    assert health["is_healthy"] is (word != "faulty")
    assert set(WORKER) == set(WorkerState)


async def test_health_of_one_and_of_all(asking: httpx.AsyncClient) -> None:
    one = (await asking.get(f"/api/workers/{BIG}/health")).json()
    assert {"worker_id", "is_healthy", "last_heartbeat", "seconds_since_heartbeat"} <= set(one)
    assert one["is_healthy"] is True
    assert one["seconds_since_heartbeat"] >= 0
    silent = (await asking.get(f"/api/workers/{SILENT}/health")).json()
    assert (silent["is_healthy"], silent["seconds_since_heartbeat"]) == (False, None)
    every = (await asking.get("/api/health/workers")).json()
    assert (every["total"], every["healthy"], every["unhealthy"]) == (2, 1, 1)
    assert [item["worker_id"] for item in every["workers"]] == [BIG, SILENT]


async def test_without_a_swarm_there_are_no_workers_with_a_reason(
    asking: httpx.AsyncClient, swarm: Swarm
) -> None:
    swarm.dark = True
    document = (await asking.get("/api/workers")).json()
    assert (document["count"], document["workers"]) == (0, [])
    assert document["note"] == "no gate is known here; start one with: sark-node gate"
    assert (await asking.get("/api/health/workers")).json()["total"] == 0
    assert (await asking.get("/api/monitoring/stats")).status_code == HTTPStatus.OK
    gone = await asking.get(f"/api/workers/{BIG}")
    assert gone.status_code == HTTPStatus.NOT_FOUND
    assert "no gate is known here" in gone.json()["error"]


async def test_registering_says_how_a_device_joins_and_keeps_nothing(
    asking: httpx.AsyncClient, context: ApiContext
) -> None:
    context.gates = lambda: ("/ip4/127.0.0.1/tcp/4101/p2p/" + GATE, "/ip4/192.0.2.7/tcp/4101/p2p/" + GATE)
    answer = await asking.post("/api/register", content=json.dumps(REGISTER).encode())  # as `curl -d`
    document = answer.json()
    assert answer.status_code == HTTPStatus.OK
    assert (document["status"], document["action"], document["joined"]) == ("registered", "created", False)
    me = load_or_create(context.home.key("scheduler")).peer_id
    join = f"sark-node join --gate /ip4/192.0.2.7/tcp/4101/p2p/{GATE} --allow {me}"
    assert document["how_to_join"] == join
    again = (await asking.post("/api/register", json=REGISTER)).json()
    assert again["worker_id"] == document["worker_id"]
    assert (await asking.get("/api/workers")).json()["count"] == 2
    unknown = await asking.get(f"/api/workers/{document['worker_id']}")
    assert unknown.status_code == HTTPStatus.NOT_FOUND
    assert "how" in unknown.json()["hint"] or "command" in unknown.json()["hint"]


async def test_registering_a_device_that_is_there_gives_its_peer_id(asking: httpx.AsyncClient) -> None:
    document = (await asking.post("/api/register", json={"device_info": {"UDID": "d-big"}})).json()
    assert (document["worker_id"], document["action"], document["joined"]) == (BIG, "reconnected", True)


@pytest.mark.parametrize("info", [{"UDID": 7}, {"UDID": None}, {}, {"UDID": ""}, {"UDID": "x" * 100_000}])
async def test_a_strange_device_can_register(asking: httpx.AsyncClient, info: dict[str, Any]) -> None:
    result = await asking.post("/api/register", json={"device_name": HOSTILE, "device_info": info})
    assert result.status_code == HTTPStatus.OK
    assert result.json()["joined"] is False
    assert HOSTILE not in result.text


async def test_a_heartbeat_changes_nothing_and_says_so(asking: httpx.AsyncClient, owner: Owner) -> None:
    document = (await asking.post(f"/api/workers/{BIG}/heartbeat")).json()
    assert (document["worker_id"], document["status"], document["action"]) == (BIG, "active", "none")
    assert document["note"]
    assert not owner.orders


async def test_an_own_worker_obeys(asking: httpx.AsyncClient, owner: Owner) -> None:
    owner.own = {BIG}
    values = {"active": ("active", Action.RESUME), "cleanup": ("cleanup", Action.PAUSE)}
    for request, (word, action) in values.items():
        body = json.dumps({"status": request}).encode()
        result = await asking.put(f"/api/workers/{BIG}/status", content=body)
        assert result.json() == {"worker_id": BIG, "status": word}
        assert owner.orders[-1] == (BIG, action)
    reset = (await asking.put(f"/api/workers/{BIG}/reset")).json()
    assert {"worker_id", "status", "message"} == set(reset)
    assert owner.orders[-1] == (BIG, Action.RESET)
    owner.state = WorkerState.FAULTY
    still = (await asking.put(f"/api/workers/{BIG}/reset")).json()
    assert (still["status"], still["message"]) == ("faulty", "the worker was examined and is still faulty")


async def test_this_homes_worker_is_reached_without_a_gate(
    asking: httpx.AsyncClient, context: ApiContext, owner: Owner, swarm: Swarm
) -> None:
    swarm.dark = True
    own = load_or_create(context.home.key("worker")).peer_id
    write_addresses(context.home.worker_file, ["/ip4/127.0.0.1/tcp/4001"])
    owner.own = {own}
    result = await asking.put(f"/api/workers/{own}/status", json={"status": "cleanup"})
    assert result.json()["status"] == "cleanup"


async def test_somebody_elses_worker_is_not_commanded(asking: httpx.AsyncClient, owner: Owner) -> None:
    for path, body in (("status", {"status": "active"}), ("reset", {})):
        answer = await asking.put(f"/api/workers/{BIG}/{path}", json=body)
        assert answer.status_code == HTTPStatus.FORBIDDEN
        assert (answer.json()["error"], answer.json()["hint"]) == (
            "you are not its owner",
            "on that device: …",
        )
    assert not owner.orders


@pytest.mark.parametrize("status", ["busy", "faulty"])
async def test_nobody_makes_a_worker_busy_or_faulty(
    asking: httpx.AsyncClient, owner: Owner, status: str
) -> None:
    owner.own = {BIG}
    answer = await asking.put(f"/api/workers/{BIG}/status", json={"status": status})
    assert answer.status_code == HTTPStatus.CONFLICT
    assert not owner.orders


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "workers/worker-abc123", b""),
        ("GET", "workers/..%2f..", b""),
        ("GET", "workers/worker-abc123/health", b""),
        ("POST", "workers/worker-abc123/heartbeat", b""),
        ("PUT", "workers/worker-abc123/reset", b""),
        ("PUT", "workers/worker-abc123/status", b'{"status": "active"}'),
        ("PUT", f"workers/{BIG}/status", b'{"status": "sleeping"}'),
        ("PUT", f"workers/{BIG}/status", b""),
        ("PUT", f"workers/{BIG}/status", b"[" * 100_000),
        ("GET", "workers/" + "x" * 2000, b""),
    ],
    ids=range(10),
)
async def test_what_is_not_there_or_makes_no_sense_is_an_error(
    asking: httpx.AsyncClient, method: str, path: str, body: bytes
) -> None:
    answer = await asking.request(method, f"/api/{path}", content=body)
    assert answer.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY)
    assert answer.json()["error"]


def test_an_address_is_one_that_others_may_dial() -> None:
    assert ip_address(()) == ""
    assert ip_address(("/dns4/lab.example/tcp/1", "/ip6/2001:db8::1/tcp/1")) == "2001:db8::1"
    assert ip_address(("/ip4/127.0.0.1/tcp/1",)) == "127.0.0.1"
    assert ip_address((f"/ip4/192.0.2.1/tcp/1/p2p/{GATE}/p2p-circuit",)) == ""
