"""The real services, `SchedulerService` and `run_worker`, over the in-memory network, with faults drawn from a seed.

    run_swarm(seed) -> Outcome     the history that the store and the devices tell, checked against every invariant

Time runs SPEED times as fast as real time, not in jumps, because the workers have threads and a disk. So a seed always draws the same
faults, but not the same history to the last event. Devices are scripted: a launch takes some seconds and reports what a real one reports.
"""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol

import trio
from trio.testing import MockClock

from drivers.contract.base import (
    Limits,
    WorkOrder,
)
from node.serve.service import Worker, WorkerParts, run_worker
from node.settings.settings import WorkerSettings
from node.store.cache import ModelCache
from node.store.outbox_files import open_outbox
from protocol.values.advert import Advert, SignedAdvert
from protocol.values.match import match
from protocol.values.requirement import Requirement, parse_clause
from protocol.values.task import Measure, Model, Task, Timeouts
from scheduler.run.service import SchedulerService
from scheduler.store.rows import NewCampaign
from scheduler.store.store import Store
from swarm.index.query import QueryResult, Sighting
from swarm.memory.network import MemorySwarm
from swarm.net.identity import Identity
from tests.scheduler.trusting import OwnWorkers
from tests.scripted import TimedLaunch, scripted_device
from tests.simulation.history import FINAL, Event, History, Kind
from tests.simulation.history import Limits as Promised
from tests.simulation.invariants import check
from tests.simulation.model import Outcome
from tests.simulation.store_history import from_store

SPEED: Final = 12.0
FAULTS_S: Final = 25.0
MAX_WAIT_S: Final = 150.0
UNIT: Final = "CPU (ONNX)"
MODEL: Final = b"a model"
SHA: Final = hashlib.sha256(MODEL).hexdigest()
OWNER: Final = Identity.from_seed("scheduler")
CAMPAIGN: Final = "c-one"


class Device:
    """A machine with a worker that may be killed and started again."""

    def __init__(self, storm: Scene, name: str) -> None:
        self.storm = storm
        self.name = name
        self.identity = Identity.from_seed(name)
        self.folder = storm.folder / name
        self.incarnation = 0
        self.advert: Advert | None = None
        self.scope: trio.CancelScope | None = None
        self.seen: set[str] = set()

    async def publish(self, advert: Advert, campaigns: Iterable[str] = ()) -> int:
        """Publish to an index that keeps only the newest advert."""
        self.advert = advert
        return 1

    async def withdraw(self) -> int:
        """Leave the index."""
        self.advert = None
        return 1

    def launch(self, order: WorkOrder, limits: Limits) -> TimedLaunch:
        """The launch that the worker runs."""
        return TimedLaunch(UNIT, order, self.storm.seconds() / SPEED)

    async def start(self) -> None:
        """Start the worker, or its next life."""
        self.incarnation += 1
        storm = self.storm
        network = storm.swarm.node(self.identity)
        parts = WorkerParts(
            device=scripted_device(self.name, UNIT, self.folder, self.launch),
            incarnation=self.incarnation,
            owners={OWNER.peer_id},
            cache=ModelCache(self.folder / "cache", 10**9, free=lambda path: 10**12),
            outbox=open_outbox(self.folder / "outbox"),
            wall=storm.clock,
        )
        self.scope = trio.CancelScope()
        storm.tell(Kind.BORN, worker=network.peer_id)
        worker = await storm.nursery.start(self._serve, network, parts)
        if storm.look_s is not None:
            storm.nursery.start_soon(self._watch, worker, self.incarnation, storm.look_s)

    async def _serve(
        self,
        network: object,
        parts: WorkerParts,
        task_status: trio.TaskStatus[Worker] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        assert self.scope is not None
        with self.scope:
            await run_worker(WorkerSettings(), network, self, parts, task_status=task_status)  # type: ignore[arg-type]

    async def _watch(self, worker: Worker, incarnation: int, look_s: float) -> None:
        """Report what the ledger lets run."""
        while self.incarnation == incarnation and self.scope is not None and not self.scope.cancel_called:
            self.storm.look(self, worker)
            await trio.sleep(look_s)

    def kill(self) -> None:
        """Kill the worker as kill -9 does, with everything that it ran."""
        if self.scope is not None and not self.scope.cancel_called:
            self.storm.tell(Kind.DIED, worker=self.identity.peer_id)
            self.storm.swarm.kill(self.identity.peer_id)
            self.scope.cancel()


class Scene(Protocol):
    """What a device knows of the run it takes part in."""

    folder: Path
    swarm: MemorySwarm
    nursery: trio.Nursery
    look_s: float | None
    """Seconds between two looks at what runs there; None: never."""

    def clock(self) -> float: ...
    def seconds(self) -> float: ...
    def tell(self, kind: Kind, **what: object) -> None: ...
    def look(self, device: Device, worker: Worker) -> None: ...


def sightings(devices: Iterable[Device], requirement: Requirement) -> tuple[Sighting, ...]:
    """The devices that meet the requirement, by their newest adverts."""
    signed = SignedAdvert(body=b"", signature=b"s" * 64)
    adverts = (device.advert for device in devices if device.advert is not None)
    return tuple(Sighting(advert, signed, 0.0) for advert in adverts if match(requirement, advert).fits)


class Storm:
    """One run."""

    look_s: float | None = 0.05
    nursery: trio.Nursery
    swarm: MemorySwarm

    def __init__(self, seed: int, folder: Path, clock: Callable[[], float]) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.clock = clock
        self.began = clock()
        self.history = History(limits=Promised(stop_s=2.0, end_s=MAX_WAIT_S, slack_s=2.0))
        self.faults: Counter[str] = Counter()
        self.devices = [Device(self, f"w{n}") for n in (1, 2, 3)]
        self.scheduler: trio.CancelScope | None = None
        self.spool = folder / "spool"
        self.spool.mkdir()
        (self.spool / SHA).write_bytes(MODEL)
        self.running: dict[str, set[str]] = {}

    def seconds(self) -> float:
        """Duration of a run."""
        return self.rng.choice((0.3, 1.0, 3.0, 8.0))

    def tell(self, kind: Kind, **what: object) -> None:
        """Add an event to the history."""
        self.history.events.append(Event(self.clock() - self.began, kind, **what))  # type: ignore[arg-type]

    def look(self, device: Device, worker: Worker) -> None:
        """Report what runs on the device now, according to its ledger."""
        peer = device.identity.peer_id
        now = {
            place.lease: place
            for place in worker.ledger.allocations()
            if str(place.state) in ("running", "lapsed", "stopping")
        }
        before = self.running.get(f"{peer} {device.incarnation}", set())
        for lease in sorted(before - set(now)):
            self.tell(Kind.DEAD, worker=peer, lease=lease)
        for lease, place in now.items():
            if lease not in before:
                request = place.request
                self.tell(
                    Kind.BEGAN,
                    worker=peer,
                    lease=lease,
                    fence=place.fence.key(),
                    task=request.task.task,
                    attempt=request.commit.attempt,
                    sha256=request.task.model.sha256,
                )
        self.running[f"{peer} {device.incarnation}"] = set(now)

    # -- the index -------------------------------------------------------------------------------------------------------------

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult:
        """All devices that are published and fit."""
        await trio.lowlevel.checkpoint()
        fits = sightings(self.devices, requirement)
        return QueryResult(fits, (), len(fits), True, {})

    async def survey(self, requirement: Requirement, limit: int = 256) -> QueryResult:
        """Like `query`, for any requirement."""
        return await self.query(Requirement(), limit)

    # -- events ----------------------------------------------------------------------------------------------------------------

    def submit(self, tasks: int) -> None:
        """Put a campaign on disk."""
        need = Requirement(clauses=(parse_clause(f"units has {UNIT}"),))
        made = [
            Task(
                campaign=CAMPAIGN,
                task=f"{CAMPAIGN}/{n}",
                scheduler=OWNER.peer_id,
                model=Model(name="tiny.onnx", sha256=SHA, size=len(MODEL)),
                unit=UNIT,
                requirement=need,
                measure=Measure(runs=1, loads=1),
                timeouts=Timeouts(),
            )
            for n in range(1, tasks + 1)
        ]
        for task in made:
            self.history.tasks[task.task] = CAMPAIGN
            self.history.models[task.task] = SHA
        self.history.attempts[CAMPAIGN] = 6
        with Store(self.folder / "store.db", wall=self.clock) as store:
            new = NewCampaign(CAMPAIGN, "one", OWNER.peer_id, "{}", attempts=6, backoff_s=1.0, wait_s=120.0)
            store.campaigns.create(new, [], made)

    async def schedule(self) -> None:
        """Run one life of the scheduler."""
        self.scheduler = trio.CancelScope()
        with self.scheduler, Store(self.folder / "store.db", wall=self.clock) as store:
            service = SchedulerService(
                network=self.swarm.node(OWNER),
                index=self,
                identity=OWNER,
                trust=OwnWorkers(lambda: [device.identity.peer_id for device in self.devices]),
                store=store,
                spool=self.spool,
                rng=random.Random(self.rng.random()),
                wall=self.clock,
            )
            await service.run()

    async def strike(self) -> None:
        """Inject one fault, which ends after a while."""
        rng, device = self.rng, self.rng.choice(self.devices)
        what = rng.choice(("worker killed", "worker killed", "scheduler killed", "cut", "cancelled"))
        self.faults[what] += 1
        if what == "worker killed":
            device.kill()
            await trio.sleep(rng.choice((0.5, 4.0, 12.0)))
            await device.start()
        elif what == "scheduler killed":
            if self.scheduler is not None:
                self.swarm.kill(OWNER.peer_id)
                self.scheduler.cancel()
            await trio.sleep(rng.choice((0.5, 3.0)))
            self.nursery.start_soon(self.schedule)
        elif what == "cut":
            self.swarm.cut_silently(OWNER.peer_id, device.identity.peer_id)
            await trio.sleep(rng.choice((2.0, 9.0, 18.0)))
            self.swarm.heal()
        else:
            task = f"{CAMPAIGN}/{rng.randint(1, len(self.history.tasks))}"
            with Store(self.folder / "store.db", wall=self.clock) as store:
                store.campaigns.request_cancel(task)
            self.tell(Kind.CANCEL_ASKED, task=task)

    def done(self) -> bool:
        """Whether the campaign has ended."""
        with Store(self.folder / "store.db", wall=self.clock) as store:
            return all(str(row.state) in FINAL for row in store.tasks.all(CAMPAIGN))

    async def run(self) -> None:
        """Run from the first start to the last end."""
        async with (
            MemorySwarm(random.Random(1), latency_s=0.005) as self.swarm,
            trio.open_nursery() as self.nursery,
        ):
            for device in self.devices:
                self.history.slots[device.identity.peer_id] = 1
                await device.start()
            self.submit(self.rng.randint(6, 10))
            self.nursery.start_soon(self.schedule)
            until = trio.current_time() + FAULTS_S
            while trio.current_time() < until and not self.done():
                await trio.sleep(self.rng.uniform(0.5, 5.0))
                await self.strike()
            self.tell(Kind.QUIET)
            with trio.move_on_after(MAX_WAIT_S):
                while not self.done():
                    await trio.sleep(1.0)
            await trio.sleep(3.0)
            self.nursery.cancel_scope.cancel()


def run_swarm(seed: int) -> Outcome:
    """One run."""
    clock = MockClock(rate=SPEED)
    with tempfile.TemporaryDirectory(prefix="sark-swarm-") as folder:
        storm = Storm(seed, Path(folder), clock.current_time)
        trio.run(storm.run, clock=clock)
        from_store(Path(folder) / "store.db", "scheduler", storm.history, began=storm.began)
    history = storm.history.sorted()
    began = sum(1 for _ in history.of(Kind.BEGAN))
    recorded = sum(1 for event in history.of(Kind.RECORDED) if event.word == "succeeded")
    seconds = history.events[-1].at if history.events else 0.0
    return Outcome(seed, history, check(history), storm.faults, seconds, wasted=began - recorded, began=began)
