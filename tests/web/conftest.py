"""Servers over a store of their own: one called without sockets, and one on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest
import trio

from protocol.values.attempt import TaskEvent
from protocol.values.lease import Fence
from protocol.values.requirement import Requirement, parse_clause
from protocol.values.task import Measure, Model, Task, Timeouts
from protocol.words import Reason
from scheduler.campaign.load import parse_campaign
from scheduler.core.commands import CommitTo, EndPending, RecordGrant
from scheduler.store.rows import NewCampaign, NewModel
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.net.identity import Identity
from web.app import make_app, make_open_app
from web.http.context import ApiContext
from web.http.middleware import AccessRules
from web.http.server import bind, serve


class Woken:
    """Counts requests to start the scheduler process."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


@pytest.fixture
def woken() -> Woken:
    return Woken()


@pytest.fixture
def context(tmp_path: Path, woken: Woken) -> Iterator[ApiContext]:
    made = ApiContext(Home.at(tmp_path / "home"), gates=tuple, start_scheduler=woken)
    yield made
    made.close()


@pytest.fixture
async def client(context: ApiContext) -> AsyncIterator[httpx.AsyncClient]:
    """A client that calls the endpoints directly."""
    transport = httpx.ASGITransport(make_open_app(context))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:5000") as asking:
        yield asking


@pytest.fixture
async def served(context: ApiContext) -> AsyncIterator[httpx.AsyncClient]:
    """A client over a real socket, through the guard."""
    sockets = bind(["127.0.0.1"], 0)
    url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, make_app(context, AccessRules()), sockets)
        async with httpx.AsyncClient(base_url=url, trust_env=False) as asking:
            yield asking
        nursery.cancel_scope.cancel()


WORKER = Identity.from_seed("worker").peer_id
SCHEDULER = Identity.from_seed("scheduler").peer_id
SPEC = parse_campaign(b"campaign: vision\nmodels: [m.onnx]\nunits: [CPU (ONNX)]\n", "c.yaml")


class StoreWriter:
    """Writes campaigns into a home's store, as another process would."""

    def __init__(self, home: Home) -> None:
        self.store = Store(home.store)

    def campaign(
        self,
        name: str = "c-one",
        tasks: int = 3,
        title: str = "vision",
        device: str = "d",
        batches: bool = False,
    ) -> str:
        """A campaign whose tasks have not begun. With `batches`, task n has batch n and two threads."""
        self.store.campaigns.create(
            NewCampaign(name, title, SCHEDULER, SPEC.model_dump_json()),
            [NewModel("m.onnx", "ab" * 32, 7, facts="m.onnx")],
            [
                self.task(name, n, Measure(threads=2, batch=n) if batches else None)
                for n in range(1, tasks + 1)
            ],
        )
        return name

    def task(self, campaign: str, n: int, measure: Measure | None = None) -> Task:
        """The n-th task of a campaign."""
        return Task(
            campaign=campaign,
            task=f"{campaign}/{n}",
            scheduler=SCHEDULER,
            model=Model(name="m.onnx", sha256="ab" * 32, size=7),
            unit="CPU (ONNX)",
            requirement=Requirement(clauses=(parse_clause("ram >= 1 GiB"),)),
            measure=measure or Measure(),
            timeouts=Timeouts(),
        )

    def begin(self, task: str, device: str = "laptop-7", worker: str = WORKER) -> Fence:
        """Grant the task to a worker."""
        fence = Fence(incarnation=1, number=int(task.rpartition("/")[2]))
        self.store.attempts.begin([CommitTo(task, 1, f"key of {task}", worker, device, 1)])
        self.store.attempts.record_grant(
            RecordGrant(task, 1, lease=f"lease of {task}", fence=fence, queued=False)
        )
        return fence

    def succeed(self, task: str, device: str = "laptop-7", body: bytes = b"cannot be read") -> None:
        """Complete the task."""
        fence = self.begin(task, device)
        self.store.attempts.record_result(
            task=task, attempt=1, fence=fence, worker=WORKER, sha256="cd" * 32, body=body,
            signature=b"s" * 64, event=TaskEvent.SUCCEED,
        )  # fmt: skip

    def fail(self, *tasks: str, detail: str = "") -> None:
        """Fail the tasks, because no device fits."""
        self.store.attempts.end_pending(
            EndPending(list(tasks), TaskEvent.FAIL, reason=Reason.NOTHING_FITS, detail=detail)
        )


@pytest.fixture
def writer(context: ApiContext) -> Iterator[StoreWriter]:
    made = StoreWriter(context.home)
    yield made
    made.store.close()


@pytest.fixture(scope="session")
def filled() -> Callable[[Home], None]:
    """A function that fills a home's store with the campaign `c-one`: one task succeeded, one failed, one has a lease."""

    def fill(home: Home) -> None:
        made = StoreWriter(home)
        made.campaign("c-one")
        made.succeed("c-one/1")
        made.fail("c-one/2", detail="no device")
        made.begin("c-one/3")
        made.store.close()

    return fill
