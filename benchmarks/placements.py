"""How many tasks per second the scheduler's core alone places: no network, no disk, workers that answer at once.

    python benchmarks/placements.py [--workers 1000] [--tasks 10000] [--seconds 2] [--needs 1] [--profile]

Each worker has one slot and a queue; a task runs for `--seconds` simulated seconds. The benchmark counts the CPU time that the core spends
on a task's whole life, from adding the campaign to the last result: probes, commits, queued leases, slots, progress, results, and the tick,
five times per simulated second.
"""

from __future__ import annotations

import argparse
import cProfile
import heapq
import itertools
import pstats
import random
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from protocol.formats.phase import Phase
from protocol.messages.work import Progress, Quote
from protocol.values.advert import Advert, UnitOffer
from protocol.values.attempt import TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.values.requirement import Requirement, parse_clause
from protocol.values.task import Measure, Model, Task, Timeouts
from protocol.words import WorkerState
from scheduler.core.commands import Command, CommitTo, Discover, ProbeWorker, RecordGrant, ReleaseOn
from scheduler.core.entries import TaskEntry, TaskLimits
from scheduler.core.scheduler import SchedulerCore
from swarm.net.identity import Identity

UNIT = "CPU (ONNX)"
BEAT_S = 0.2
ANSWER_S = 0.002
R = TypeVar("R")


class Field:
    """Simulated workers around one core."""

    def __init__(self, workers: int, tasks: int, seconds: float, needs: int) -> None:
        self.core = SchedulerCore(random.Random(1))
        self.seconds = seconds
        self.noise = random.Random(2)
        self.adverts = [an_advert(n) for n in range(workers)]
        self.running: dict[str, str] = {}
        self.waiting: dict[str, deque[tuple[str, Fence]]] = {advert.peer: deque() for advert in self.adverts}
        self.tasks = [a_task(n, n % needs) for n in range(1, tasks + 1)]
        self.now = self.spent = 0.0
        self.calls: list[float] = []
        self.numbers = itertools.count(1)
        self.order = itertools.count()
        self.coming: list[tuple[float, int, Callable[[], None]]] = []
        self.commits = 0

    def counted(self, event: Callable[[], R]) -> R:
        """Return the core's answer to an event, counting the time it takes."""
        began = time.thread_time()
        result = event()
        took = time.thread_time() - began
        self.spent += took
        self.calls.append(took)
        return result

    def tell(self, event: Callable[[], list[Command]]) -> None:
        """Carry out the commands that follow from an event and from the next decision."""
        self.do(self.counted(lambda: event() + self.core.decide(self.now)))

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.coming, (self.now + seconds, next(self.order), what))

    def do(self, orders: list[Command]) -> None:
        for order in orders:
            if isinstance(order, Discover):
                self.later(ANSWER_S, lambda need=order.group: self.found(need))  # type: ignore[misc]
            elif isinstance(order, ProbeWorker):
                self.later(ANSWER_S, lambda peer=order.peer: self.quote(peer))  # type: ignore[misc]
            elif isinstance(order, CommitTo):
                self.commits += 1
                self.later(ANSWER_S, lambda order=order: self.take(order))  # type: ignore[misc]
            elif isinstance(order, ReleaseOn):
                leases = {held.lease for held in order.held}
                stored = deque(item for item in self.waiting[order.peer] if item[0] not in leases)
                self.waiting[order.peer] = stored

    def found(self, need: str) -> None:
        self.tell(lambda: self.core.workers.add_adverts(need, self.adverts, self.now))

    def quote(self, peer: str) -> None:
        busy, queue = peer in self.running, len(self.waiting[peer])
        state = WorkerState.BUSY if busy else WorkerState.ACTIVE
        quote = Quote(incarnation=1, ledger=1, state=state, free=0 if busy else 1, queue=queue)
        self.tell(lambda: self.core.workers.add_quote(peer, quote, self.now))

    def take(self, order: CommitTo) -> None:
        number = next(self.numbers)
        lease, fence = f"l{number}", Fence(incarnation=1, number=number)
        queued = order.peer in self.running
        if queued:
            self.waiting[order.peer].append((lease, fence))
        else:
            self.begin(order.peer, lease, fence)
        position = len(self.waiting[order.peer]) if queued else None
        start_s = None if position is None else position * self.seconds
        grant = RecordGrant(order.task, order.attempt, lease, fence, queued, position, start_s)
        self.tell(lambda: self.core.reconciler.grant(order.peer, grant, self.now))

    def begin(self, peer: str, lease: str, fence: Fence) -> None:
        self.running[peer] = lease
        self.later(ANSWER_S, lambda: self.report(peer, lease, fence))
        self.later(self.seconds * self.noise.uniform(0.8, 1.2), lambda: self.finish(peer, lease))

    def report(self, peer: str, lease: str, fence: Fence) -> None:
        progress = Progress(lease=lease, fence=fence, seq=1, phase=Phase.RUN)
        self.counted(lambda: self.core.reconciler.progress(peer, progress, self.now))

    def finish(self, peer: str, lease: str) -> None:
        core = self.core
        del self.running[peer]
        entry = next(
            (core.state.tasks[t] for t in core.state.worker(peer).held if core.state.tasks[t].lease == lease),
            None,
        )
        if entry is not None:
            self.tell(lambda: core.failures.settle(entry.id, TaskEvent.SUCCEED, None, self.now))
        while self.waiting[peer] and peer not in self.running:
            up, fence = self.waiting[peer].popleft()
            task, orders = self.counted(
                lambda up=up, fence=fence: core.reconciler.start(peer, up, fence, self.now)
            )  # type: ignore[misc]
            self.do(orders)
            if task is not None:
                self.begin(peer, up, fence)

    def beat(self) -> None:
        self.tell(lambda: self.core.tick(self.now))
        if not self.core.idle:
            self.later(BEAT_S, self.beat)

    def run(self) -> None:
        entries = [TaskEntry(task) for task in self.tasks]
        self.tell(lambda: self.core.add(TaskLimits("c-one"), entries, 0.0))
        self.later(BEAT_S, self.beat)
        while self.coming and not self.core.idle:
            self.now, _, what = heapq.heappop(self.coming)
            what()


def an_advert(n: int) -> Advert:
    return Advert(
        peer=Identity.from_seed(f"placements {n}").peer_id,
        seq=1,
        device=f"d{n}",
        name=f"w{n}",
        ram=8 * 1024**3,
        units=(UnitOffer(unit=UNIT, runtime="r"),),
    )


def a_task(n: int, need: int) -> Task:
    return Task(
        campaign="c-one",
        task=f"c-one/{n}",
        scheduler=Identity.from_seed("scheduler").peer_id,
        model=Model(name="m.onnx", sha256="ab" * 32, size=100),
        unit=UNIT,
        requirement=Requirement(clauses=(parse_clause(f"ram >= {need + 1} MiB"),)),
        measure=Measure(),
        timeouts=Timeouts(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--needs", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    a = parser.parse_args()
    field = Field(a.workers, a.tasks, a.seconds, a.needs)
    profile = cProfile.Profile() if a.profile else None
    if profile is None:
        field.run()
    else:
        profile.runcall(field.run)
    done = sum(entry.state is TaskState.SUCCEEDED for entry in field.core.state.tasks.values())
    calls = sorted(field.calls)
    print(f"{a.workers} workers, {a.tasks} tasks of {a.seconds:g} s, {a.needs} needs: {done} succeeded")
    print(
        f"placed {a.tasks / field.spent:.0f} tasks a second of the core's CPU time ({field.spent:.2f} s in all)"
    )
    print(
        f"one call, ms: median {statistics.median(calls) * 1e3:.3f}, p99 {calls[int(0.99 * len(calls))] * 1e3:.3f}, "
        f"most {calls[-1] * 1e3:.1f}; commits for each task {field.commits / a.tasks:.2f}; "
        f"simulated {field.now:.1f} s, at best {a.tasks * a.seconds / a.workers:.1f} s"
    )
    if profile is not None:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(25)


if __name__ == "__main__":
    main()
