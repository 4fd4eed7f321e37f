"""Two workers and a scheduler with their own homes: the real services on real files, joined by the in-memory network.

Meanwhile they are killed and restarted, cut off and cancelled; before and after the run their owners type commands.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from drivers.contract.base import (
    Limits,
    WorkOrder,
)
from node.serve.owner_control import Pause
from node.serve.service import Worker, WorkerParts, run_worker
from node.settings.settings import WorkerSettings
from node.store.cache import ModelCache
from node.store.outbox_files import open_outbox
from protocol.values.advert import Advert, SignedAdvert
from protocol.values.match import match
from protocol.values.requirement import Requirement
from scheduler.run.service import SchedulerService
from scheduler.store.store import open_store
from scheduler.submit.submit import request_cancel, submit_campaign
from scheduler.trust.pinned import pin_devices
from swarm.base.home import Home
from swarm.index.query import QueryResult, Sighting
from swarm.memory.network import MemorySwarm
from swarm.net.identity import load_or_create, next_incarnation
from swarm.pools.membership import Credential
from tests.durability.commands import after, before
from tests.durability.facts import SCHEDULER, WORKERS
from tests.durability.patient_clock import PatientClock
from tests.durability.promises import Promises, WatchedNetwork, Wire
from tests.scheduler.trusting import OwnWorkers
from tests.scripted import TimedLaunch, scripted_device

SPEED: Final = 12.0
UNIT: Final = "Fake (Simulation)"
STRIKES: Final = 6
MAX_S: Final = 1_500.0


class Device:
    """A worker's home, and the lives of its worker."""

    def __init__(self, run: Swarm, name: str) -> None:
        self.run, self.name = run, name
        self.home = Home.at(run.root / name)
        self.identity = load_or_create(self.home.key("worker"))
        self.advert: Advert | None = None
        self.scope = trio.CancelScope()

    async def publish(self, advert: Advert, campaigns: Iterable[str] = ()) -> int:
        self.advert = advert
        return 1

    async def withdraw(self) -> int:
        self.advert = None
        return 1

    def launch(self, order: WorkOrder, limits: Limits) -> TimedLaunch:
        return TimedLaunch(UNIT, order, self.run.rng.choice((0.1, 0.3, 1.0)) / SPEED)

    async def start(self) -> None:
        """Start the worker, put together as in `node.serve.process`."""
        folder = self.home.folder("worker")
        parts = WorkerParts(
            device=scripted_device(self.name, UNIT, self.run.elsewhere, self.launch),
            incarnation=next_incarnation(folder / "incarnation"),
            owners={self.run.ann.identity.peer_id},
            pause=Pause(folder / "paused"),
            cache=ModelCache(self.home.cache / "models", 10**9, free=lambda path: 10**12),
            outbox=open_outbox(folder / "outbox"),
            wall=time.time,
        )
        self.scope = trio.CancelScope()
        network = WatchedNetwork(self.run.swarm.node(self.identity), self.run.wire)
        await self.run.nursery.start(partial(self._serve, network, parts))

    async def _serve(
        self,
        network: Any,
        parts: WorkerParts,
        task_status: trio.TaskStatus[Worker] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        with self.scope:
            await run_worker(WorkerSettings(simulate=True), network, self, parts, task_status=task_status)

    def kill(self) -> None:
        self.run.swarm.kill(self.identity.peer_id)
        self.scope.cancel()


class Leader:
    """A scheduler's home, and the lives of its scheduler."""

    def __init__(
        self, run: Swarm, name: str, credentials: Callable[[], Sequence[Credential]] = tuple
    ) -> None:
        self.run, self.name, self.credentials = run, name, credentials
        self.home = Home.at(run.root / name)
        self.identity = load_or_create(self.home.key("scheduler"))
        run.promises.make(name, "identity", "scheduler", self.identity.peer_id)
        self.scope = trio.CancelScope()
        self.campaigns: list[str] = []

    async def schedule(self) -> None:
        """Run one life of the scheduler, put together as in `scheduler.run.process`."""
        self.scope = trio.CancelScope()
        self.run.wire.names[self.identity.peer_id] = self.name
        with self.scope, open_store(self.home) as store:
            service = SchedulerService(
                network=WatchedNetwork(self.run.swarm.node(self.identity), self.run.wire),  # type: ignore[arg-type]
                index=self.run,
                identity=self.identity,
                trust=OwnWorkers(lambda: [device.identity.peer_id for device in self.run.devices]),
                pin=partial(pin_devices, self.home),
                store=store,
                spool=self.home.spool,
                rng=random.Random(self.run.rng.random()),
                credentials=self.credentials,
                stop_when_idle=False,
            )
            await service.run()

    def kill(self) -> None:
        self.run.swarm.kill(self.identity.peer_id)
        self.scope.cancel()

    def submit(self, number: int, tasks: int) -> str:
        """Submit a campaign as `submit` does. The id is printed when this returns."""
        file = campaign_file(self.run.elsewhere / f"campaign-{number}", f"number {number}", (tasks + 1) // 2)
        campaign = submit_campaign(self.home, file, wait_s=300.0)
        self.campaigns.append(campaign)
        self.promise(campaign)
        return campaign

    def promise(self, campaign: str) -> None:
        """Promise what the printed id of a campaign promises."""
        with open_store(self.home) as store:
            hashes = sorted(model.sha256 for model in store.campaigns.models(campaign))
        self.run.promises.make(self.name, "campaign", campaign, hashes)
        for sha256 in hashes:
            if (
                self.home.spool / sha256
            ).exists():  # otherwise an adopted campaign's tasks wait for the model
                self.run.promises.make(self.name, "spooled", sha256)

    def cancel(self, target: str) -> None:
        with open_store(self.home) as store:
            if request_cancel(store, target):
                self.run.promises.make(self.name, "cancel", target)

    def recorded(self) -> int:
        """Number of results in the store."""
        with open_store(self.home) as store:
            return sum(row.record is not None for each in self.campaigns for row in store.results.rows(each))

    def done(self) -> bool:
        with open_store(self.home) as store:
            return not store.campaigns.unfinished()

    def show(self) -> None:
        """Show what a run that does not end waits for."""
        with open_store(self.home) as store:
            rows = [row for campaign in self.campaigns for row in store.tasks.all(campaign)]
        for row in rows:
            sys.stderr.write(
                f"{row.id}: {row.state} {row.phase or ''} attempt {row.attempt}, {row.note or row.detail}\n"
            )


class Swarm:
    """The homes, what connects them, and an index in which everybody finds everybody."""

    nursery: trio.Nursery
    swarm: MemorySwarm

    def __init__(self, root: Path, elsewhere: Path, promises: Promises, seed: int) -> None:
        self.root, self.elsewhere, self.promises = root, elsewhere, promises
        self.rng = random.Random(seed)
        self.wire = Wire(promises, {})
        self.ann = Leader(self, SCHEDULER)
        self.devices = [Device(self, name) for name in WORKERS]
        for device in self.devices:
            self.wire.names[device.identity.peer_id] = device.name
            promises.make(device.name, "identity", "worker", device.identity.peer_id)

    @contextlib.asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        """Run the workers, for at most `MAX_S`."""
        async with (
            MemorySwarm(random.Random(1), latency_s=0.005) as self.swarm,
            trio.open_nursery() as self.nursery,
        ):
            for device in self.devices:
                await device.start()
            with trio.fail_after(MAX_S):
                yield
            await trio.sleep(3.0)
            self.nursery.cancel_scope.cancel()

    async def until(self, leader: Leader, condition: Callable[[], bool]) -> None:
        """Wait for a condition. Raises `trio.TooSlowError`, and shows what `leader` waits for."""
        try:
            while not condition():
                await trio.sleep(1.0)
        except trio.Cancelled:
            leader.show()
            raise

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult:
        await trio.lowlevel.checkpoint()
        signed = SignedAdvert(body=b"", signature=b"s" * 64)
        adverts = [device.advert for device in self.devices if device.advert is not None]
        fits = tuple(Sighting(advert, signed, 0.0) for advert in adverts if match(requirement, advert).fits)
        return QueryResult(fits, (), len(fits), True, {})

    async def survey(self, requirement: Requirement, limit: int = 256) -> QueryResult:
        return await self.query(Requirement(), limit)

    async def model(self, sha256: str, limit: int = 32) -> QueryResult:
        return await self.query(Requirement(), limit)

    async def campaign(self, campaign: str, limit: int = 256) -> QueryResult:
        return await self.query(Requirement(), limit)

    async def everybody(self, limit: int = 256) -> QueryResult:
        return await self.query(Requirement(), limit)


class Run(Swarm):
    """Kills, cuts off and cancels while the services work."""

    async def strike(self) -> None:
        device = self.rng.choice(self.devices)
        what = self.rng.choice(("worker", "scheduler", "cut", "cancel", "pause"))
        if what == "worker":
            device.kill()
            await trio.sleep(1.0)
            await device.start()
        elif what == "scheduler":
            self.ann.kill()
            await trio.sleep(0.5)
            self.nursery.start_soon(self.ann.schedule)
        elif what == "cut":
            self.swarm.cut_silently(self.ann.identity.peer_id, device.identity.peer_id)
            await trio.sleep(4.0)
            self.swarm.heal()
        elif what == "pause":
            for on in (True, False):
                self.promises.end(device.name, "paused", "")
                Pause(device.home.folder("worker") / "paused").set(on)
                self.promises.make(device.name, "paused", "", on)
        else:
            self.ann.cancel(f"{self.rng.choice(self.ann.campaigns)}/1")

    async def serve(self, tasks: int) -> None:
        async with self.up():
            self.ann.submit(1, tasks // 2)
            self.nursery.start_soon(self.ann.schedule)
            for strike in range(STRIKES):
                await trio.sleep(self.rng.uniform(2.0, 10.0))
                await self.strike()
                if not strike:
                    self.ann.submit(2, tasks - tasks // 2)
            await self.until(self.ann, self.ann.done)


def campaign_file(folder: Path, name: str, models: int, **more: Any) -> Path:
    """A campaign of `models` models, each twice."""
    folder.mkdir()
    names = [f"m{n}.json" for n in range(1, 1 + models)]
    for n, model in enumerate(names, 1):
        filler = random.Random(n).randbytes((70_000, 50, 3_000)[n % 3]).hex()
        (folder / model).write_text(json.dumps({"latencies_ms": [1.0], "filler": filler}), "utf-8")
    content = {
        "campaign": name,
        "models": names,
        "units": [UNIT],
        "measure": {"runs": 2, "loads": 1},
        "replicas": 2,
        "retry": {"attempts": 6, "backoff": "200ms"},
        **more,
    }
    file = folder / "campaign.yaml"
    file.write_text(json.dumps(content), "utf-8")
    return file


def make(root: Path, elsewhere: Path, promises: Promises, tasks: int, seed: int) -> None:
    run = Run(root, elsewhere, promises, seed)
    before(run.ann.home, elsewhere, promises)
    trio.run(run.serve, tasks, clock=PatientClock(SPEED))
    after(run.ann.home, elsewhere, promises)
