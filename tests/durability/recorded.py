"""The run that is recorded: `python -m tests.durability.recorded ROOT --tasks N --seed N`, with the library of `shim.c` preloaded.

Two workers and a scheduler with homes of their own, below ROOT: the real services on real files, joined by the in-memory network. Meanwhile
they are killed and started again, cut off and cancelled; before and after it their owners type commands. Each promise is written down
before it goes out.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import random
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
import trio
from trio.testing import MockClock

from drivers.contract.base import (
    Cancelled,
    CheckReport,
    Limits,
    LoadReport,
    MeasureReport,
    ModelDescription,
    ProgressReport,
    WorkOrder,
)
from drivers.contract.base import Event as Shown
from node.device.lock import DeviceLock
from node.device.probe import Profile
from node.serve.owner_control import Pause
from node.serve.run_manager import DeviceParts
from node.serve.service import Worker, WorkerParts, run_worker
from node.settings.settings import WorkerSettings
from node.store.cache import ModelCache
from node.store.outbox_files import open_outbox
from protocol.formats.phase import Phase
from protocol.values.advert import Advert, SignedAdvert, UnitOffer
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
from tests.durability.commands import after, before
from tests.durability.facts import SCHEDULER, WORKERS
from tests.durability.promises import Promises, WatchedNetwork, Wire
from tests.scheduler.trusting import OwnWorkers

SPEED: Final = 12.0
UNIT: Final = "Fake (Simulation)"
STRIKES: Final = 6
MAX_S: Final = 1_500.0
HANGS_S: Final = 150.0
"""Of the wall clock: then it says where each thread is, and ends."""


@dataclass
class Script:
    """One launch: so many seconds, or until it is killed."""

    order: WorkOrder
    seconds: float
    killed: threading.Event = field(default_factory=threading.Event)

    def events(self) -> Iterator[Shown]:
        yield ProgressReport(Phase.LOAD)
        yield LoadReport(5_000_000, 100, 200)
        if self.killed.wait(self.seconds / SPEED):
            raise Cancelled("the run was cancelled")
        yield ModelDescription(UNIT, "fake", "r", ("CPUExecutionProvider",), 2, {"x": (1, 2)}, {"x": "f"}, 0)
        yield ProgressReport(Phase.RUN, 1, self.order.runs)
        yield MeasureReport(
            tuple(1_000 + run for run in range(self.order.runs)), (5_000,), 0.1, 0.2, 300, 40, 0
        )
        yield CheckReport(True, "0" * 64, 0.0, 1e-4, "")

    def kill(self) -> None:
        self.killed.set()


class Device:
    """A worker's home, and one life of its worker after the other."""

    def __init__(self, run: Run, name: str) -> None:
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

    def launch(self, order: WorkOrder, limits: Limits) -> Script:
        return Script(order, self.run.rng.choice((0.1, 0.3, 1.0)))

    async def start(self) -> None:
        """As `node.serve.process` puts a worker together."""
        folder = self.home.folder("worker")
        parts = WorkerParts(
            device=DeviceParts(
                profile=Profile(
                    device=f"d-{self.name}",
                    name=self.name,
                    soc="Test",
                    ram=8 * 1024**3,
                    cores=2,
                    threads=4,
                    units=(UnitOffer(unit=UNIT, runtime="fake 1"),),
                    drivers={UNIT: "fake"},
                ),
                lock=DeviceLock(f"d-{self.name}", self.run.elsewhere),
                launch=self.launch,
                examine=lambda: "",
            ),
            incarnation=next_incarnation(folder / "incarnation"),
            owners={self.run.identity.peer_id},
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


class Run:
    """From the first command to the last."""

    nursery: trio.Nursery
    swarm: MemorySwarm

    def __init__(self, root: Path, elsewhere: Path, tasks: int, seed: int) -> None:
        self.root, self.elsewhere, self.tasks = root, elsewhere, tasks
        self.rng = random.Random(seed)
        self.promises = Promises(root)
        self.home = Home.at(root / SCHEDULER)
        self.identity = load_or_create(self.home.key("scheduler"))
        self.devices = [Device(self, name) for name in WORKERS]
        names = {device.identity.peer_id: device.name for device in self.devices}
        self.wire = Wire(self.promises, {self.identity.peer_id: SCHEDULER, **names})
        self.scheduler = trio.CancelScope()
        self.campaigns: list[str] = []
        self.promises.make(SCHEDULER, "identity", "scheduler", self.identity.peer_id)
        for device in self.devices:
            self.promises.make(device.name, "identity", "worker", device.identity.peer_id)

    # -- the index ----------------------------------------------------------------------------------------------------------

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

    # -- what happens -------------------------------------------------------------------------------------------------------

    def submit(self, number: int, tasks: int) -> None:
        """As `submit` does it: the id is printed when this returns."""
        folder = self.elsewhere / f"campaign-{number}"
        folder.mkdir()
        models = []
        for n in range(1, 1 + (tasks + 1) // 2):
            filler = random.Random(n).randbytes((70_000, 50, 3_000)[n % 3]).hex()
            (folder / f"m{n}.json").write_text(json.dumps({"latencies_ms": [1.0], "filler": filler}), "utf-8")
            models.append(f"m{n}.json")
        content = {
            "campaign": f"number {number}",
            "models": models,
            "units": [UNIT],
            "measure": {"runs": 2, "loads": 1},
            "replicas": 2,
            "retry": {"attempts": 6, "backoff": "200ms"},
        }
        file = folder / "campaign.yaml"
        file.write_text(json.dumps(content), "utf-8")
        campaign = submit_campaign(self.home, file, wait_s=300.0)  # its id is printed
        self.campaigns.append(campaign)
        with open_store(self.home) as store:
            hashes = sorted(model.sha256 for model in store.campaigns.models(campaign))
        self.promises.make(SCHEDULER, "campaign", campaign, hashes)
        for sha256 in hashes:
            self.promises.make(SCHEDULER, "spooled", sha256)

    def cancel(self, target: str) -> None:
        with open_store(self.home) as store:
            if request_cancel(store, target):
                self.promises.make(SCHEDULER, "cancel", target)

    async def schedule(self) -> None:
        """One life of the scheduler, as `scheduler.run.process` puts it together."""
        self.scheduler = trio.CancelScope()
        with self.scheduler, open_store(self.home) as store:
            service = SchedulerService(
                network=WatchedNetwork(self.swarm.node(self.identity), self.wire),  # type: ignore[arg-type]
                index=self,
                identity=self.identity,
                trust=OwnWorkers(lambda: [device.identity.peer_id for device in self.devices]),
                pin=partial(pin_devices, self.home),
                store=store,
                spool=self.home.spool,
                rng=random.Random(self.rng.random()),
                stop_when_idle=False,
            )
            await service.run()

    async def strike(self) -> None:
        device = self.rng.choice(self.devices)
        what = self.rng.choice(("worker", "scheduler", "cut", "cancel", "pause"))
        if what == "worker":
            device.kill()
            await trio.sleep(1.0)
            await device.start()
        elif what == "scheduler":
            self.swarm.kill(self.identity.peer_id)
            self.scheduler.cancel()
            await trio.sleep(0.5)
            self.nursery.start_soon(self.schedule)
        elif what == "cut":
            self.swarm.cut_silently(self.identity.peer_id, device.identity.peer_id)
            await trio.sleep(4.0)
            self.swarm.heal()
        elif what == "pause":
            for on in (True, False):
                self.promises.end(device.name, "paused", "")
                Pause(device.home.folder("worker") / "paused").set(on)
                self.promises.make(device.name, "paused", "", on)
        else:
            self.cancel(f"{self.rng.choice(self.campaigns)}/1")

    def done(self) -> bool:
        with open_store(self.home) as store:
            return not store.campaigns.unfinished()

    def show(self) -> None:
        """What a run that does not end waits for."""
        with open_store(self.home) as store:
            rows = [row for campaign in self.campaigns for row in store.tasks.all(campaign)]
        for row in rows:
            sys.stderr.write(
                f"{row.id}: {row.state} {row.phase or ''} attempt {row.attempt}, {row.note or row.detail}\n"
            )

    async def serve(self) -> None:
        async with (
            MemorySwarm(random.Random(1), latency_s=0.005) as self.swarm,
            trio.open_nursery() as self.nursery,
        ):
            for device in self.devices:
                await device.start()
            self.submit(1, self.tasks // 2)
            self.nursery.start_soon(self.schedule)
            with trio.fail_after(MAX_S):
                for strike in range(STRIKES):
                    await trio.sleep(self.rng.uniform(2.0, 10.0))
                    await self.strike()
                    if not strike:
                        self.submit(2, self.tasks - self.tasks // 2)
                try:
                    while not self.done():
                        await trio.sleep(1.0)
                except trio.Cancelled:
                    self.show()
                    raise
            await trio.sleep(3.0)
            self.nursery.cancel_scope.cancel()

    def all(self) -> None:
        before(self.home, self.elsewhere, self.promises)
        trio.run(self.serve, clock=MockClock(rate=SPEED))
        after(self.home, self.elsewhere, self.promises)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.durability.recorded")
    parser.add_argument("root", type=Path)
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    faulthandler.dump_traceback_later(HANGS_S, exit=True)
    elsewhere = given.root.with_name("elsewhere")
    elsewhere.mkdir()
    Run(given.root, elsewhere, given.tasks, given.seed).all()


if __name__ == "__main__":
    main()
