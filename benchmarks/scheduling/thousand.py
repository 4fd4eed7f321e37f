"""A thousand real workers and one scheduler in one process: a campaign over all of them while devices join and die.

    python benchmarks/scheduling/thousand.py [--devices 1000] [--tasks 1000] [--urgent 100] [--late 100] [--lost 50] [--run 1.0] [--profile]

The product's worker service, with its ledger, cache and outbox on disk, and its scheduler service on a SQLite file, over the in-memory
network. There is no libp2p, no gate and no launch: a run sleeps. Adverts come from a list of all devices instead of the index;
`benchmarks/network/scale` measures what finding them costs. All nodes share one interpreter and one disk, so the wall times are those of
one core; TMPDIR=/dev/shm avoids the disk.

  all up     the initial workers are started, one after the other
  campaign   --tasks tasks, one for each device that is present; --late more devices join while it runs, --lost are killed for good, and
             --urgent tasks of priority 90 are submitted when a quarter has ended
  figures    total processor seconds per task, memory per node, waits, and runs that were repeated because a device died
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import random
import resource
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
import structlog
import trio

from node.serve.service import Worker
from protocol.values.attempt import TaskState
from protocol.values.requirement import Requirement, parse_clause
from protocol.values.task import Measure, Model, Task, Timeouts
from scheduler.run.service import SchedulerService
from scheduler.store.rows import NewCampaign, TaskRow
from scheduler.store.store import Store
from swarm.index.query import QueryResult
from swarm.memory.network import MemorySwarm
from tests.scheduler.trusting import OwnWorkers
from tests.simulation.history import Kind
from tests.simulation.swarm_run import MODEL, OWNER, SHA, SPEED, UNIT, Device, sightings

MIB: Final = 2**20
LOOK_S: Final = 0.5
WITHIN_S: Final = 1800.0


@dataclass
class Crowd:
    """The state of one run. A scripted `Device` sees it as its storm."""

    folder: Path
    arguments: argparse.Namespace
    swarm: MemorySwarm
    nursery: trio.Nursery
    devices: list[Device] = field(default_factory=list)
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    look_s: float | None = None
    """How often a device's runs are recorded; None: never."""

    def __post_init__(self) -> None:
        self.spool = self.folder / "spool"
        self.spool.mkdir()
        (self.spool / SHA).write_bytes(MODEL)
        self.place = self.folder / "store.db"
        self.store = Store(self.place)

    def clock(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def tell(self, kind: Kind, **what: object) -> None:
        """Ignored: there is no history here, the store has the facts."""

    def look(self, device: Device, worker: Worker) -> None:
        """Never called."""

    def seconds(self) -> float:
        """Duration of a run, on the simulation's clock."""
        return SPEED * float(self.arguments.run) * self.rng.uniform(0.5, 1.5)

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult:
        """A random sample of the matching devices, different each time."""
        await trio.lowlevel.checkpoint()
        found = sightings(self.devices, requirement)
        some = tuple(self.rng.sample(found, min(want, len(found))))
        return QueryResult(some, (), len(some), len(some) == len(found), {})

    async def survey(self, requirement: Requirement, limit: int = 256) -> QueryResult:
        """Like `query`, for any device."""
        return await self.query(Requirement(), limit)

    async def model(self, sha256: str, limit: int = 32) -> QueryResult:
        """No device is known to have the model."""
        await trio.lowlevel.checkpoint()
        return QueryResult((), (), 0, True, {})

    async def join(self, count: int) -> None:
        """Add `count` devices."""
        for _ in range(count):
            device = Device(self, f"w{len(self.devices)}")
            self.devices.append(device)
            await device.start()

    def submit(self, campaign: str, count: int, priority: int) -> None:
        """Write a campaign to the store."""
        need = Requirement(clauses=(parse_clause(f"units has {UNIT}"),))
        model = Model(name="tiny.onnx", sha256=SHA, size=len(MODEL))
        new = NewCampaign(
            campaign,
            campaign,
            OWNER.peer_id,
            "{}",
            attempts=6,
            backoff_s=1.0,
            wait_s=600.0,
            priority=priority,
        )
        shared = {
            "campaign": campaign,
            "scheduler": OWNER.peer_id,
            "model": model,
            "unit": UNIT,
            "requirement": need,
        }
        tasks = [
            Task(task=f"{campaign}/{n}", measure=Measure(runs=1, loads=1), timeouts=Timeouts(), **shared)
            for n in range(1, count + 1)
        ]
        self.store.campaigns.create(new, [], tasks)

    async def schedule(self) -> None:
        """Run the scheduler."""
        with Store(self.place) as store:
            await SchedulerService(
                network=self.swarm.node(OWNER),
                index=self,
                identity=OWNER,
                trust=OwnWorkers(lambda: [device.identity.peer_id for device in self.devices]),
                store=store,
                spool=self.spool,
            ).run()

    def ended(self, campaign: str) -> int:
        """How many of the campaign's tasks have ended."""
        summary = self.store.campaigns.summary(campaign)
        counts = {} if summary is None else summary.counts
        return sum(
            count for state, count in counts.items() if state in (TaskState.SUCCEEDED, TaskState.FAILED)
        )

    async def until(self, campaign: str, count: int) -> None:
        """Wait until `count` of the campaign's tasks have ended."""
        with trio.fail_after(WITHIN_S):
            while self.ended(campaign) < count:  # noqa: ASYNC110  (another connection writes)
                await trio.sleep(LOOK_S)

    async def run(self) -> None:
        """Run from the first device to the last result, with a line for each step."""
        arguments, before = self.arguments, memory()
        began, cpu = time.monotonic(), cpu_s()
        await self.join(arguments.devices - arguments.late)
        up = len(self.devices)
        print(
            f"{up} workers up after {time.monotonic() - began:.1f} s, {1000 * (cpu_s() - cpu) / up:.1f} ms of processor each"
        )
        print(f"{(memory() - before) / up / 1024:.0f} KiB of memory for a worker")
        began, cpu = time.monotonic(), cpu_s()
        self.submit("c-all", arguments.tasks, 50)
        self.nursery.start_soon(self.schedule)
        await self.until("c-all", 1)
        print(f"first result after {time.monotonic() - began:.1f} s, {cpu_s() - cpu:.1f} s of processor")
        self.nursery.start_soon(self.join, arguments.late)
        await self.until("c-all", arguments.tasks // 4)
        for device in self.rng.sample(self.devices, arguments.lost):
            device.kill()
        asked = time.time()
        self.submit("c-urgent", arguments.urgent, 90)
        await self.until("c-urgent", arguments.urgent)
        left = arguments.tasks - self.ended("c-all")
        print(
            f"urgent tasks have ended {time.time() - asked:.1f} s after they were submitted; {left} of the others had not"
        )
        await self.until("c-all", arguments.tasks)
        took, used, tasks = time.monotonic() - began, cpu_s() - cpu, arguments.tasks + arguments.urgent
        each = f"{tasks / took:.1f} a second, {1000 * used / tasks:.0f} ms of processor for each"
        print(f"all {tasks} tasks have ended after {took:.1f} s: {each}")
        for campaign in ("c-all", "c-urgent"):
            self.report(campaign)
        print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
        self.nursery.cancel_scope.cancel()

    def report(self, campaign: str) -> None:
        """Print how the campaign's tasks went."""
        rows: tuple[TaskRow, ...] = self.store.tasks.all(campaign)
        row = self.store.campaigns.get(campaign)
        if not rows or row is None:  # as with --urgent 0
            return
        waits = sorted((task.begun or 0.0) - row.created for task in rows)
        attempts = Counter(task.attempt for task in rows)
        where = len({task.worker for task in rows})
        print(
            f"{campaign}: {dict(Counter(str(task.state) for task in rows))} on {where} devices; wait for the run p50 "
            f"{waits[len(waits) // 2]:.1f} s, last {waits[-1]:.1f} s; tasks by their last attempt {dict(sorted(attempts.items()))}"
        )


def cpu_s() -> float:
    """Processor seconds of this process."""
    used = os.times()
    return used.user + used.system


def memory() -> int:
    """Bytes of resident memory."""
    return int(psutil.Process().memory_info().rss)


async def crowd(arguments: argparse.Namespace) -> None:
    """Run once, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="sark-thousand-") as folder:
        async with MemorySwarm(random.Random(1), latency_s=0.005) as swarm, trio.open_nursery() as nursery:
            await Crowd(Path(folder), arguments, swarm, nursery).run()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--urgent", type=int, default=100)
    parser.add_argument("--late", type=int, default=100, help="devices that join while the campaign runs")
    parser.add_argument("--lost", type=int, default=50, help="devices that are killed for good")
    parser.add_argument("--run", type=float, default=1.0, help="seconds of a run, on average")
    parser.add_argument("--profile", action="store_true", help="and what took the loop's time")
    arguments = parser.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), processors=[])
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    profile = cProfile.Profile()
    if arguments.profile:
        profile.enable()
    try:
        trio.run(crowd, arguments)
    finally:
        profile.disable()
        if arguments.profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
