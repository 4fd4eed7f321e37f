"""How many tasks per second one core takes from the store to the recorded result, and where its time goes.

    python benchmarks/scheduling/throughput.py [--tasks 2000] [--workers 16] [--slots 4] [--runs 100] [--loads 6] [--turns 1] [--profile]

The scheduler service on a real SQLite file, over the in-memory swarm. Workers are test doubles at the wire: they exchange the real messages
and signatures, and a run takes no time. One process holds both sides, so every step of the loop is charged to the side whose task it was:
tasks that descend from the workers' stream handlers are the workers', all others the scheduler's. The loop's own time is divided by the
number of steps; other threads (which check records) are the scheduler's.

  a task    processor time of the scheduler alone, from taking the campaign up to the last result; the store is on the disk of --folder
  by part   with --profile: where the scheduler's steps were, sampled once per ms of processor time: by the library or folder of the
            innermost function, and by which functions were active (C counts for the Python that calls it)
"""

from __future__ import annotations

import argparse
import contextvars
import gc
import os
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final

import structlog
import trio

from protocol.values.attempt import TaskState
from protocol.values.record import Timing, pack_samples
from protocol.values.requirement import Requirement, parse_clause
from protocol.values.task import Measure, Model, Task, Timeouts
from sark import GC_THRESHOLDS
from scheduler.store import schema
from scheduler.store.rows import NewCampaign
from scheduler.store.store import Store
from swarm.base.threads import COMPUTING
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.memory.parts import InboundStreams
from swarm.net.cost import PeerClass
from swarm.net.identity import Identity
from swarm.net.network import Handler, Stream
from tests.scheduler.conftest import MODEL, SCHEDULER, SHA, UNIT, FakeIndex, World

SIDE: Final[contextvars.ContextVar[str]] = contextvars.ContextVar("side", default="scheduler")
_T = schema.tasks
_DONE = _T.c.state == TaskState.SUCCEEDED


class Meter(trio.abc.Instrument, trio.abc.Clock):
    """Processor seconds and steps of each side, and samples of where the scheduler's steps were. Its clock advances while the loop computes
    or waits, but not while other programs have its processor: even on a busy machine, a latency or the time between two commits keeps the
    same ratio to the loop's computation as on a free machine.
    """

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self.steps: Counter[str] = Counter()
        self.innermost: Counter[str] = Counter()
        self.under_way: Counter[str] = Counter()
        self._side, self._stepping = "worker", False
        self._at = time.thread_time()
        self._waited = self._waits_at = 0.0

    def begin(self) -> None:
        """Count from now on."""
        self.spent.clear()
        self.steps.clear()

    def start_clock(self) -> None:
        trio.lowlevel.add_instrument(self)

    def current_time(self) -> float:
        return self._at + self._waited

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()

    def before_io_wait(self, timeout: float) -> None:
        self._waits_at = time.monotonic()

    def after_io_wait(self, timeout: float) -> None:
        self._waited += min(timeout, time.monotonic() - self._waits_at)
        self._at = time.thread_time()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._side, self._at = task.context.get(SIDE, "scheduler"), time.thread_time()
        self._stepping = self._side == "scheduler"

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        began, self._at, self._stepping = self._at, time.thread_time(), False
        self.spent[self._side] += self._at - began
        self.steps[self._side] += 1

    def look(self, number: int, frame: FrameType | None) -> None:
        """Handle the timer's signal."""
        if self._stepping and frame is not None:
            self.innermost[frame.f_code.co_filename] += 1
            names = set()
            while frame is not None:
                names.add(
                    f"{frame.f_code.co_filename.rpartition('site-packages/')[2]}:{frame.f_code.co_name}"
                )
                frame = frame.f_back
            self.under_way.update(names)


class SidedSwarm(MemorySwarm):
    """Tasks that descend from the stream handlers of its nodes are the workers': no node dials the scheduler here."""

    def node(self, identity: Identity, holder: bool = True, behind: str | None = None) -> MemoryNetwork:
        node = super().node(identity, holder, behind)
        if identity != SCHEDULER:
            node.inbound = SidedStreams(identity.peer_id)
            node.governor.class_of = lambda peer: PeerClass.KNOWN
        return node


class SidedStreams(InboundStreams):
    def handle(self, protocol: str, handler: Handler) -> None:
        async def sided(stream: Stream) -> None:
            SIDE.set("worker")
            await handler(stream)

        super().handle(protocol, sided)


def submit(store: Store, tasks: int, measure: Measure) -> None:
    """Create a campaign of `tasks` tasks."""
    need = Requirement(clauses=(parse_clause(f"units has {UNIT}"),))
    model = Model(name="tiny.onnx", sha256=SHA, size=len(MODEL))
    new = NewCampaign("c-one", "one", SCHEDULER.peer_id, "{}", attempts=3, wait_s=3600)
    made = [
        Task(
            campaign=new.id,
            task=f"{new.id}/{n}",
            scheduler=SCHEDULER.peer_id,
            model=model,
            unit=UNIT,
            requirement=need,
            measure=measure,
            timeouts=Timeouts(),
        )
        for n in range(1, tasks + 1)
    ]
    store.campaigns.create(new, [], made)


def launches(runs: int, loads: int, rng: random.Random) -> dict[str, object]:
    """Samples divided evenly among launches, as drivers do."""
    each = [
        [int(rng.gauss(1e6, 2e4)) for _ in range(runs // loads + (n < runs % loads))] for n in range(loads)
    ]
    return {
        "timings": tuple(
            Timing(samples=pack_samples(times), warmup=pack_samples(times[:5]), cpu_s=0.1, wall_s=0.1)
            for times in each
        )
    }


async def run(folder: Path, a: argparse.Namespace, meter: Meter) -> None:
    spool = folder / "spool"
    spool.mkdir()
    (spool / SHA).write_bytes(MODEL)
    place = folder / "store.db"
    rng = random.Random(1)
    async with (
        SidedSwarm(random.Random(1), latency_s=a.latency / 1e3) as swarm,
        trio.open_nursery() as nursery,
    ):
        world = World(swarm, nursery, place, spool, FakeIndex(), swarm.node(SCHEDULER), Store(place))
        submit(world.store, a.tasks, Measure(runs=a.runs, loads=a.loads))
        watching = Store(place)  # a read through the scheduler's store would commit its gathered writes
        content = launches(a.runs, a.loads, rng)
        for n in range(a.workers):
            worker = world.worker(f"w{n}", seconds=0.0)
            worker.slots, worker.outcome = a.slots, lambda task: content
        world.aside = COMPUTING.run  # type: ignore[method-assign]
        gc.collect()
        meter.begin()
        if a.profile:
            signal.signal(signal.SIGPROF, meter.look)
            signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
        wall, loop, whole = time.monotonic(), time.thread_time(), time.process_time()
        async with world.scheduler():
            while watching.database.count(_T, _DONE) < a.tasks:
                SIDE.set("worker")
                await trio.sleep(0.1)
            loop, whole, wall = (
                time.thread_time() - loop,
                time.process_time() - whole,
                time.monotonic() - wall,
            )
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            trio.lowlevel.remove_instrument(meter)
        report(a.tasks, meter, loop, whole, wall)
        if a.profile:
            by_part(meter, a.tasks, a.top)
        watching.close()
        world.store.close()
        nursery.cancel_scope.cancel()


def report(tasks: int, meter: Meter, loop: float, whole: float, wall: float) -> None:
    stepping = sum(meter.spent.values())
    between = (loop - stepping) * meter.steps["scheduler"] / sum(meter.steps.values())
    aside = whole - loop
    spent = meter.spent["scheduler"] + between + aside
    print(
        f"{tasks} tasks: {tasks / spent:7.0f} a second and core of the scheduler; {spent / tasks * 1e3:.2f} ms a task ="
        f" {meter.spent['scheduler'] / tasks * 1e3:.2f} steps + {between / tasks * 1e3:.2f} loop + {aside / tasks * 1e3:.2f} aside;"
        f" workers {meter.spent['worker'] / tasks * 1e3:.2f}; {wall:.1f} s, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


PARTS: Final = (
    ("store", ("sqlalchemy", "scheduler/store")),
    ("signatures", ("swarm/net/identity",)),
    ("wire", ("msgpack", "protocol/wire")),
    ("validation", ("pydantic", "protocol/values", "protocol/messages")),
    ("core", ("scheduler/core",)),
    ("conversation", ("scheduler/conversation",)),
    ("service", ("scheduler/run",)),
    ("records", ("results/",)),
    ("logging", ("structlog", "logging")),
    ("network", ("swarm/",)),
    ("trio", ("trio", "outcome", "sortedcontainers")),
)
"""The part that a file belongs to, by words in its path; the first match counts."""


def by_part(meter: Meter, tasks: int, top: int) -> None:
    """Print the shares of the scheduler's steps."""
    parts: Counter[str] = Counter()
    for file, count in meter.innermost.items():
        parts[next((part for part, words in PARTS if any(word in file for word in words)), "other")] += count
    whole, spent = max(1, parts.total()), meter.spent["scheduler"] / tasks * 1e3
    for part, count in parts.most_common():
        print(f"  {part:<14} {count / whole * 100:5.1f} %   {count / whole * spent:6.3f} ms a task")
    for name, count in meter.under_way.most_common(top):
        print(f"    {count / whole * 100:5.1f} %   {name}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--runs", type=int, default=100, help="samples of each record")
    parser.add_argument("--loads", type=int, default=6, help="launches among which they are divided")
    parser.add_argument("--latency", type=float, default=1.0, help="one way, in ms")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--top", type=int, default=0, help="functions to print of the profile")
    parser.add_argument("--folder", type=Path, default=None, help="on the disk that is meant")
    a = parser.parse_args()
    gc.set_threshold(*GC_THRESHOLDS)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    for _ in range(a.turns):
        with tempfile.TemporaryDirectory(dir=a.folder) as name:
            meter = Meter()
            trio.run(run, Path(name), a, meter, clock=meter)


if __name__ == "__main__":
    main()
