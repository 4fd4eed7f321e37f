"""A worker over an in-memory network, its scripted device, and a scheduler driven by hand."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from drivers.contract.base import (
    Cancelled,
    CheckReport,
    Crashed,
    Event,
    Limits,
    LoadReport,
    MeasureReport,
    ModelDescription,
    ProgressReport,
    WorkOrder,
)
from node.device.calibration_rounds import Calibrator
from node.device.lock import DeviceLock
from node.device.probe import Profile
from node.serve.live_readings import ReadableSensors
from node.serve.owner_control import OwnerSenses, Pause
from node.serve.run_manager import DeviceParts
from node.serve.service import Worker, WorkerParts, run_worker
from node.settings.settings import WorkerSettings
from node.store.cache import ModelCache, Source
from node.store.outbox_files import OutboxFiles, open_outbox
from protocol.formats.phase import Phase
from protocol.messages.work import (
    WORK,
    Accepted,
    Commit,
    HeldLease,
    Preempt,
    Progress,
    Ready,
    Result,
    Start,
)
from protocol.values.advert import Advert, UnitOffer
from protocol.values.record import Record, read_record, record_message
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts, task_body, task_message
from protocol.wire.base import Message
from protocol.words import ProtocolId
from swarm.blobs.server import serve_blobs
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.net.identity import Identity, verify
from swarm.net.link import Link

UNIT = "CPU (ONNX)"
CONTENT = random.Random(7).randbytes(5_000)


def profile() -> Profile:
    """A small device."""
    return Profile(
        device="d-1",
        name="lab-1",
        soc="Test",
        ram=8 * 1024**3,
        cores=2,
        threads=4,
        units=(UnitOffer(unit=UNIT, runtime="onnxruntime 1"),),
        drivers={UNIT: "onnx"},
    )


@dataclass
class Script:
    """One scripted launch: runs until `go` is set, or until it is killed."""

    order: WorkOrder
    limits: Limits
    go: threading.Event
    failure: Exception | None = None
    unit: str = UNIT
    agrees: bool | None = True
    noisy: bool = False
    killed: threading.Event = field(default_factory=threading.Event)
    dead: bool = False

    def events(self) -> Iterator[Event]:
        yield ProgressReport(Phase.LOAD)
        yield LoadReport(5_000_000, 100, 200)
        while not self.go.wait(0.002):
            if self.killed.is_set():
                self.dead = True
                raise Cancelled("the run was cancelled")
        if self.failure is not None:
            raise self.failure
        yield ModelDescription(
            self.unit, "onnx", "onnxruntime 1", ("CPUExecutionProvider",), 2, {"x": (1, 2)}, {"x": "f"}, 0
        )
        yield ProgressReport(Phase.RUN, 1, self.order.runs)
        runs = self.order.runs
        noise = random.Random(1)
        samples = tuple(noise.randrange(10**9) if self.noisy else 1_000 + run for run in range(runs))
        yield MeasureReport(samples, (5_000,), 0.1, 0.2, 300, 40, 0)
        yield CheckReport(self.agrees, "0" * 64, 0.0, 1e-4, "" if self.agrees else "output 0 is NaN")

    def kill(self) -> None:
        self.killed.set()


@dataclass
class Device:
    """The device on which the worker launches. `go` lets all launches complete."""

    go: threading.Event = field(default_factory=threading.Event)
    launches: list[Script] = field(default_factory=list)
    change: Callable[[Script], None] = lambda script: None

    def launch(self, order: WorkOrder, limits: Limits) -> Script:
        script = Script(order, limits, self.go)
        self.change(script)
        self.launches.append(script)
        return script


async def get_model(cache: ModelCache, model: Model, source: Source) -> Path:
    """Get the model into the cache, as a run would."""
    async with cache.using(model, source) as path:
        return path


class Board:
    """An index that only records calls."""

    def __init__(self) -> None:
        self.adverts: list[Advert] = []
        self.campaigns: list[tuple[str, ...]] = []
        self.withdrawn = 0

    async def publish(self, advert: Advert, campaigns: Any = ()) -> int:
        self.adverts.append(advert)
        self.campaigns.append(tuple(campaigns))
        return 1

    async def withdraw(self) -> int:
        self.withdrawn += 1
        return 1


class Hand:
    """A scheduler driven by hand: one link, the messages it received, and a default answer to each call."""

    def __init__(self, network: MemoryNetwork, identity: Identity) -> None:
        self.network = network
        self.identity = identity
        self.came: list[Message] = []
        self.news = trio.Condition()
        self.answers: dict[type[Message], Message] = {Ready: Start(), Result: Accepted()}
        self.content: bytes | None = CONTENT
        serve_blobs(network, lambda peer, sha256: self.content)

    async def link(self, worker: MemoryNetwork, nursery: trio.Nursery) -> Link:
        stream = await self.network.open(worker.peer_id, ProtocolId.WORK, worker.addresses)
        link = Link(stream, WORK, self._answer)
        await nursery.start(link.run)
        return link

    async def _answer(self, link: Link, message: Message) -> Message | None:
        async with self.news:
            self.came.append(message)
            self.news.notify_all()
        return None if isinstance(message, (Progress, Preempt)) else self.answers[type(message)]

    async def wait_for(self, kind: type[Message], count: int = 1) -> Any:
        """The `count`-th message of this kind."""
        with trio.fail_after(5):
            async with self.news:
                while True:
                    messages = [message for message in self.came if isinstance(message, kind)]
                    if len(messages) >= count:
                        return messages[count - 1]
                    await self.news.wait()

    def count(self, kind: type[Message]) -> int:
        return sum(isinstance(message, kind) for message in self.came)

    def task(self, number: int = 1, **changes: Any) -> Task:
        fields: dict[str, Any] = {
            "campaign": "c-1",
            "task": f"c-1/{number}",
            "scheduler": self.identity.peer_id,
            "model": Model(name="m.onnx", sha256=hashlib.sha256(CONTENT).hexdigest(), size=len(CONTENT)),
            "unit": UNIT,
            "requirement": Requirement(),
            "measure": Measure(runs=10, loads=1),
            "timeouts": Timeouts(),
        }
        return Task(**(fields | changes))

    def commit(self, task: Task, *, attempt: int = 1, queue: bool = False, **changes: Any) -> Commit:
        body = task_body(task)
        fields: dict[str, Any] = {
            "key": f"{task.task}/{attempt}",
            "attempt": attempt,
            "epoch": 1,
            "task": body,
            "signature": self.identity.sign(task_message(body)),
            "queue": queue,
        }
        return Commit(**(fields | changes))

    async def record(self, count: int = 1) -> Record:
        """The record in the `count`-th result. Checks its signature."""
        result = await self.wait_for(Result, count)
        assert result.body is not None
        assert hashlib.sha256(result.body).hexdigest() == result.sha256
        record = read_record(result.body)
        assert verify(record.worker, record_message(result.body), result.signature)
        return record


def held(answer: Any) -> HeldLease:
    """The reference by which a granted or queued lease is renewed."""
    return HeldLease(lease=answer.lease, fence=answer.fence)


class World:
    """A network with one worker that can be restarted, and any number of schedulers."""

    def __init__(self, swarm: MemorySwarm, nursery: trio.Nursery, folder: Path) -> None:
        self.swarm = swarm
        self.nursery = nursery
        self.folder = folder
        self.device = Device()
        self.board = Board()
        self.open_outbox: Callable[[Path], OutboxFiles] = open_outbox
        self.wall = 1_000_000.0
        self.incarnation = 0
        self.free = 10**12
        self.trouble = ""
        self.lines: list[str] = []
        self.local = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
        self.on_battery = False
        self.pools: dict[str, str] = {}
        self.owners: set[str] = set()
        self._seed = 10
        self.ann = self.scheduler()
        self.held = held
        self.crash = Crashed
        self.calibrator: Calibrator | None = None
        self.open_sensors: Callable[[], ReadableSensors] | None = None
        self.parts: WorkerParts
        self.worker: Worker
        self.network: MemoryNetwork
        self._worker: trio.CancelScope

    def scheduler(self) -> Hand:
        self._seed += 1
        identity = Identity.from_seed(self._seed)
        return Hand(self.swarm.node(identity), identity)

    async def start(self, **settings: Any) -> Worker:
        """Start the worker, or restart it: same key, same folder, next incarnation."""
        self.incarnation += 1
        self.network = self.swarm.node(Identity.from_seed(1))
        self.parts = WorkerParts(
            device=DeviceParts(
                profile=profile(),
                lock=DeviceLock("d-1", self.folder),
                launch=self.device.launch,
                examine=lambda: self.trouble,
                retry_s=0.01,
                version="0.1",
                calibrator=self.calibrator,
                open_sensors=self.open_sensors,
            ),
            incarnation=self.incarnation,
            owners={self.ann.identity.peer_id, *self.owners},
            cache=ModelCache(self.folder / "cache", 10**9, free=lambda path: self.free),
            outbox=self.open_outbox(self.folder / "outbox"),
            wall=lambda: self.wall,
            tell=self.lines.append,
            pools=self.pools,
            pause=Pause(self.folder / "paused"),
            senses=OwnerSenses(lambda: self.local, lambda: self.on_battery),
        )
        self._worker = trio.CancelScope()
        self.worker = await self.nursery.start(self._run, WorkerSettings(**settings))
        return self.worker

    async def _run(self, settings: WorkerSettings, task_status: trio.TaskStatus[Worker]) -> None:
        with self._worker:
            await run_worker(settings, self.network, self.board, self.parts, task_status=task_status)

    def unsent(self) -> int:
        """The number of results that wait for their schedulers."""
        return len(self.worker.conversation.outbox)

    def kill(self) -> None:
        """End the worker as kill -9 would."""
        self.swarm.kill(self.network.peer_id)
        self._worker.cancel()

    async def link(self, hand: Hand | None = None) -> Link:
        return await (hand or self.ann).link(self.network, self.nursery)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with MemorySwarm(random.Random(1)) as swarm, trio.open_nursery() as nursery:
        made = World(swarm, nursery, tmp_path)
        yield made
        made.device.go.set()
        nursery.cancel_scope.cancel()
