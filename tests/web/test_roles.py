"""The other roles of a home over HTTP: its worker and the orders it takes, and the gates it knows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import trio
import trio.testing
from fastapi import APIRouter, FastAPI

import gate.api
import node.api
from node.cli.remote import HERE, OwnerReply
from protocol.errors import NotPermitted, Refused, SarkError, Unreachable
from protocol.formats.phase import Phase
from protocol.messages.gate import GateSnapshot
from protocol.messages.work import Action, Control, RunningJob, StatusRequest, WorkerStatus
from protocol.words import Reason, WorkerState
from swarm.base.home import Home
from swarm.join.known_gates import write_addresses
from swarm.net.identity import Identity, load_or_create
from web.http.problems import add_problem_handlers

GATES = [Identity.from_seed(f"gate-{n}").peer_id for n in range(3)]


def client(router: APIRouter) -> httpx.AsyncClient:
    app = FastAPI()
    add_problem_handlers(app)
    app.include_router(router)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:5000")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "home")


# -- the worker ----------------------------------------------------------------------------------------------------------------


class Worker:
    """A worker that records the messages it gets."""

    def __init__(self, home: Home) -> None:
        self.messages: list[Control | StatusRequest] = []
        self.error: SarkError | None = None
        self.me = load_or_create(home.key("scheduler")).peer_id
        write_addresses(home.worker_file, ["/ip4/127.0.0.1/tcp/4001"])

    async def say(
        self, home: Home, words: Sequence[str], gates: Sequence[str], message: Control | StatusRequest
    ) -> tuple[OwnerReply, ...]:
        await trio.lowlevel.checkpoint()
        assert (tuple(words), tuple(gates)) == ((), ())  # this home's own worker only
        self.messages.append(message)
        if self.error is not None:
            return (OwnerReply(HERE, "", None, self.error),)
        paused = any(isinstance(one, Control) and one.action is Action.PAUSE for one in self.messages)
        job = RunningJob(
            task="c-1/1", model="a.onnx", principal=self.me, priority=50, state="running", phase=Phase.RUN, since_s=2.0
        )  # fmt: skip
        standing = WorkerStatus(
            incarnation=1,
            state=WorkerState.DRAINING if paused else WorkerState.ACTIVE,
            why="paused by its owner" if paused else "",
            jobs=(job, job.model_copy(update={"principal": GATES[0]})),
            running=1,
        )
        return (OwnerReply(HERE, GATES[1], standing),)


async def test_a_home_without_a_worker_says_how_to_start_one_and_makes_nothing(home: Home) -> None:
    async with client(node.api.router(home)) as asking:
        document = (await asking.get("/api/v1/worker")).json()
        assert (document["error"], document["hint"]) == (
            "no worker of this home is running",
            "start it: sark-node join",
        )
        order = await asking.post("/api/v1/worker/pause", json={})
        assert order.status_code == HTTPStatus.FAILED_DEPENDENCY
    assert not home.key("worker").exists()


async def test_the_worker_is_shown_with_what_it_runs_for_whom(home: Home) -> None:
    worker = Worker(home)
    async with client(node.api.router(home, worker.say)) as asking:
        document = (await asking.get("/api/v1/worker")).json()
    assert (document["peer"], document["state"], document["running"], document["error"]) == (
        GATES[1],
        "active",
        1,
        None,
    )
    assert [(job["task"], job["mine"], job["phase"]) for job in document["jobs"]] == [
        ("c-1/1", True, "run"),
        ("c-1/1", False, "run"),
    ]
    assert worker.messages == [StatusRequest()]


async def test_an_order_reaches_the_worker_as_it_was_given(home: Home) -> None:
    worker = Worker(home)
    async with client(node.api.router(home, worker.say)) as asking:
        document = (await asking.post("/api/v1/worker/pause", json={"now": True})).json()
        assert (document["state"], document["why"]) == ("draining", "paused by its owner")
        await asking.post("/api/v1/worker/drain", json={"finish": True})
        await asking.post("/api/v1/worker/resume")
        assert (await asking.post("/api/v1/worker/explode")).status_code == HTTPStatus.UNPROCESSABLE_ENTITY
        assert (await asking.post("/api/v1/worker/pause", json={"sudo": 1})).status_code == 422
    assert worker.messages == [
        Control(action=Action.PAUSE, now=True),
        Control(action=Action.DRAIN, finish=True),
        Control(action=Action.RESUME),
    ]


class Few:
    """Counts the callers present at a time, and releases them once all that are allowed have come."""

    def __init__(self, few: int) -> None:
        self.few, self.present, self.most = few, 0, 0
        self._full = trio.Event()

    async def stay(self) -> None:
        self.present += 1
        self.most = max(self.most, self.present)
        if self.present >= self.few:
            self._full.set()
        await self._full.wait()
        await trio.testing.wait_all_tasks_blocked()
        self.present -= 1


async def test_a_few_words_at_a_time_go_to_the_worker_however_many_ask(home: Home) -> None:
    worker, few = Worker(home), Few(node.api.MAX_COMMANDS)

    async def say(*args: Any) -> tuple[OwnerReply, ...]:
        await few.stay()
        return await worker.say(*args)

    async with client(node.api.router(home, say)) as asking, trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(asking.get, "/api/v1/worker")
    assert (few.most, len(worker.messages)) == (node.api.MAX_COMMANDS, 10)


async def test_a_worker_that_says_no_is_heard(home: Home) -> None:
    worker = Worker(home)
    worker.error = Refused("you are not its owner", reason=Reason.NOT_ALLOWED, hint="sark-node join --owner")
    async with client(node.api.router(home, worker.say)) as asking:
        answer = await asking.post("/api/v1/worker/drain")
    assert answer.status_code == HTTPStatus.FORBIDDEN
    assert answer.json()["detail"] == "you are not its owner"


# -- the gates -------------------------------------------------------------------------------------------------------------------


def address(n: int) -> str:
    return f"/ip4/127.0.0.1/tcp/{4100 + n}/p2p/{GATES[n]}"


@asynccontextmanager
async def asking_gate(home: Home, gates: Sequence[str]) -> AsyncIterator[SimpleNamespace]:
    """The first gate answers, the second answers only its operators, the third does not exist."""

    async def status() -> GateSnapshot:
        await trio.lowlevel.checkpoint()
        if gates == [address(1)]:
            raise NotPermitted("only its operators may see it", hint="sark-node gate --operator")
        return GateSnapshot(version="1", incarnation=2, uptime_s=3.0, admit="open", refused={"relay full": 2})

    async with trio.open_nursery() as nursery:
        if gates == [address(2)]:
            raise Unreachable("no gate answers")
        yield SimpleNamespace(status=status)
        nursery.cancel_scope.cancel()


async def test_each_gate_is_shown_as_it_stands_or_with_why_it_does_not_say(home: Home) -> None:
    ways = tuple(map(address, range(3)))
    router = gate.api.router(home, lambda: ways, asking_gate)  # type: ignore[arg-type]
    async with client(router) as asking:
        document = (await asking.get("/api/v1/gate")).json()
    assert document["count"] == 3
    first, second, third = document["gates"]
    assert (first["peer"], first["own"], first["reached"]) == (GATES[0], False, True)
    assert first["status"]["refused"] == {"relay full": 2}
    assert (second["reached"], second["status"], second["hint"]) == (
        True,
        None,
        "sark-node gate --operator",
    )
    assert (third["reached"], third["error"]) == (False, "no gate answers")


async def test_gates_are_asked_for_a_few_at_a_time_however_many_ask(home: Home) -> None:
    few = Few(gate.api.AT_ONCE)

    @asynccontextmanager
    async def ask(home: Home, gates: Sequence[str]) -> AsyncIterator[SimpleNamespace]:
        await few.stay()
        async with asking_gate(home, gates) as opened:
            yield opened

    router = gate.api.router(home, lambda: (address(0),), ask)  # type: ignore[arg-type]
    async with client(router) as asking, trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(asking.get, "/api/v1/gate")
    assert few.most == gate.api.AT_ONCE


async def test_a_homes_own_gate_stands_alone_and_its_worker_is_no_gate(home: Home) -> None:
    worker = load_or_create(home.key("worker")).peer_id
    write_addresses(home.worker_file, ["/ip4/127.0.0.1/tcp/4200"])
    ways = (f"/ip4/127.0.0.1/tcp/4200/p2p/{worker}", address(1))
    async with client(gate.api.router(home, lambda: ways, asking_gate)) as asking:  # type: ignore[arg-type]
        document = (await asking.get("/api/v1/gate")).json()
        assert [one["peer"] for one in document["gates"]] == [GATES[1]]
        write_addresses(home.gate_file, [address(0)])
        document = (await asking.get("/api/v1/gate")).json()
        assert [(one["peer"], one["own"]) for one in document["gates"]] == [(GATES[0], True)]


async def test_a_home_that_knows_no_gate_has_an_empty_list(home: Home) -> None:
    async with client(gate.api.router(home, tuple)) as asking:
        assert (await asking.get("/api/v1/gate")).json() == {"count": 0, "gates": []}
