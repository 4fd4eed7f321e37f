"""What very many tasks and campaigns cost the scheduler: how long its loop stands still, a cancel, a restart, the commands that read them.

    python benchmarks/scheduling/crowd.py [--tasks 10000] [--campaigns 1000] [--run 300] [--only cancel restart run commands]

One process: the scheduler service over the in-memory swarm with scripted workers, on a real SQLite file. Figures are processor seconds of
the loop's thread, and wall seconds beside them; a busy machine makes both larger, so `sark-node --version` is among the commands.

  cancel    a campaign of --tasks tasks without a device is taken up and cancelled, as the command does it; a submit beside it
  restart   --campaigns campaigns of 3 tasks are taken up by a new process
  run       --run tasks of a campaign of --tasks, and as many of --campaigns campaigns of 3, at 4 scripted workers, and the same campaign at
            one device of 64 slots, from the moment at which they come; both sides' time
  commands  `campaigns`, `results`, `explain` over a store with --tasks ended tasks, as processes on a terminal, and a `watch` of as many
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog
import trio
import trio.lowlevel
from rich.console import Console

from protocol.values.attempt import TaskEvent, TaskState
from protocol.words import Reason
from scheduler.core.commands import EndPending
from scheduler.output.watch import watch
from scheduler.store import schema
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.base.process import GC_THRESHOLDS
from swarm.memory.network import MemorySwarm
from tests.scheduler.conftest import MODEL, SCHEDULER, SHA, FakeIndex, World

WORKERS = 4
_C, _T = schema.campaigns, schema.tasks
_EPOCH = sa.select(_C.c.id).where(_C.c.epoch > 0)
_DONE = _T.c.state == TaskState.SUCCEEDED


class Turns(trio.abc.Instrument):
    """Processor seconds of each turn of the loop, and what took most of the longest one."""

    def __init__(self) -> None:
        self.longest = self._since = self._step_at = 0.0
        self._step = (0.0, "")
        self.most = (0.0, "")

    def after_io_wait(self, timeout: float) -> None:
        self._since, self._step = time.thread_time(), (0.0, "")

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._step_at = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._step = max(self._step, (time.thread_time() - self._step_at, task.name))

    def before_io_wait(self, timeout: float) -> None:
        if self._since:
            spent = time.thread_time() - self._since
            if spent > self.longest:
                self.longest, self.most = spent, self._step


@asynccontextmanager
async def a_world(folder: Path) -> AsyncIterator[World]:
    spool = folder / "spool"
    spool.mkdir(exist_ok=True)
    (spool / SHA).write_bytes(MODEL)
    async with MemorySwarm(random.Random(1), latency_s=0.001) as swarm, trio.open_nursery() as nursery:
        place = folder / "store.db"
        world = World(swarm, nursery, place, spool, FakeIndex(), swarm.node(SCHEDULER), Store(place))
        yield world
        world.store.close()
        nursery.cancel_scope.cancel()


@contextmanager
def measured(what: str) -> Iterator[Turns]:
    """Prints processor and wall seconds, and the longest turn."""
    gc.collect()
    turns = Turns()
    trio.lowlevel.add_instrument(turns)
    cpu, wall = time.thread_time(), time.monotonic()
    try:
        yield turns
    finally:
        trio.lowlevel.remove_instrument(turns)
        spent, waited = time.thread_time() - cpu, time.monotonic() - wall
        print(
            f"{what:<44} {spent:8.2f} s CPU {waited:8.2f} s {turns.longest * 1e3:9.0f} ms longest turn"
            f" ({turns.most[0] * 1e3:.0f} ms of it {turns.most[1].rpartition('.')[2]})",
            flush=True,
        )


async def until(condition: Callable[[], bool], within: float = 300.0) -> None:
    with trio.fail_after(within):
        while not condition():  # noqa: ASYNC110  (the store has no events)
            await trio.sleep(0.02)


async def cancel(folder: Path, tasks: int) -> None:
    async with a_world(folder) as world:
        world.submit(tasks, wait_s=3600)
        async with AsyncExitStack() as stack:
            with measured(f"take up {tasks} tasks"):
                await stack.enter_async_context(world.scheduler())
                await until(lambda: bool(world.store.database.all(_EPOCH)))
                await trio.sleep(3)
            with measured(f"cancel {tasks} tasks, as the command"):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(beside, world.store_path)
                    await _script(CANCEL, str(world.store_path))


async def beside(place: Any) -> None:
    """Other submits to the same store."""
    await _script(SUBMITS, str(place))


async def _script(text: str, *words: str) -> None:
    """A process of its own."""
    done = await trio.run_process([sys.executable, "-c", text, *words], capture_stdout=True, check=False)
    print(done.stdout.decode(), end="", flush=True)


CANCEL = """
import sys, time, resource
from pathlib import Path
from protocol.errors import SarkError
from scheduler.store.store import Store
from scheduler.submit.submit import cancel_and_wait
began, cpu = time.monotonic(), time.process_time()
with Store(Path(sys.argv[1])) as store:
    try:
        said = cancel_and_wait(store, "c-one", keep_alive=lambda: None)
    except SarkError as exc:
        said = exc.what
print(f"{'  the command itself':<44} {time.process_time() - cpu:8.2f} s CPU {time.monotonic() - began:8.2f} s   {said}")
"""
SUBMITS = """
import sys, time
from pathlib import Path
from protocol.errors import SarkError
from tests.scheduler.conftest import World
most, failed = 0.0, 0
for n in range(10):
    at = time.monotonic()
    try:
        World(None, None, Path(sys.argv[1]), None, None, None, None).submit(1, campaign=f"c-beside{n}", wait_s=3600)
    except SarkError as exc:
        failed += 1
    most = max(most, time.monotonic() - at)
    time.sleep(0.2)
print(f"{'  the longest of 10 submits beside it':<44} {'':>8}       {most:8.2f} s   {failed} failed")
"""


async def restart(folder: Path, campaigns: int) -> None:
    async with a_world(folder) as world:
        for n in range(campaigns):
            world.submit(3, campaign=f"c-{n:04}", wait_s=3600)
        for name in ("first start", "restart"):
            before = epochs(world)
            with measured(f"{name} with {campaigns} campaigns, and 3 s more"):
                async with world.scheduler():
                    await until(lambda before=before: before.isdisjoint(epochs(world)))  # type: ignore[misc]
                    await trio.sleep(3)
            world.new_process()


def epochs(world: World) -> set[tuple[str, int]]:
    """A campaign that was taken up has a new one."""
    return {(row.id, row.epoch) for row in world.store.database.all(sa.select(_C.c.id, _C.c.epoch))}


async def run(folder: Path, run: int, tasks: int, campaigns: int) -> None:
    for what, each, number, slots in (
        (f"{tasks} in one campaign", tasks, 1, [1] * WORKERS),
        (f"{campaigns} campaigns of 3", 3, campaigns, [1] * WORKERS),
        (f"{tasks} in one campaign, 64 slots", tasks, 1, [64]),
    ):
        inner = folder / what.replace(" ", "-")
        inner.mkdir()
        async with a_world(inner) as world:
            for n in range(number):
                world.submit(each, campaign=f"c-{n:04}", wait_s=3600)
            async with world.scheduler():
                await until(lambda: world.store.database.count(_C, _C.c.epoch < 1) == 0)
                await trio.sleep(1)
                began = time.thread_time()
                with measured(f"{run} of {what}"):
                    for n, free in enumerate(slots):
                        world.worker(f"w{n}", seconds=0.01 * free).slots = free
                    await until(lambda: world.store.database.count(_T, _DONE) >= run)
                spent, ran = time.thread_time() - began, world.store.database.count(_T, _DONE)
                print(f"{'  a task':<44} {spent / ran * 1e3:8.1f} ms CPU, workers included")
                for worker in world.index.workers:
                    worker.die()  # else they miss the scheduler
                world.nursery.cancel_scope.cancel()
                await trio.lowlevel.checkpoint()


def on_terminal(command: list[str]) -> None:
    """Run it as people do; with --json or --csv - it writes all there is."""
    ours, theirs = os.openpty()
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL):
        os.close(theirs)
        with contextlib.suppress(OSError):  # the end of a terminal
            while os.read(ours, 65_536):
                pass
    os.close(ours)


def commands(folder: Path, tasks: int) -> None:
    home = Home.at(folder / "home")
    home.store.parent.mkdir(parents=True, exist_ok=True)
    with Store(home.store) as store:
        maker: Any = World(None, None, home.store, folder, None, None, store)  # type: ignore[arg-type]
        maker.submit(tasks, wait_s=3600)
        ids = [task.id for task in store.tasks.all("c-one")]
        for first in range(0, len(ids), 500):
            store.attempts.end_pending(
                EndPending(
                    ids[first : first + 500],
                    TaskEvent.FAIL,
                    reason=Reason.NOTHING_FITS,
                    detail="no device fits",
                )
            )
        open_ = World(None, None, home.store, folder, None, None, store)  # type: ignore[arg-type]
        open_.submit(tasks, campaign="c-open", wait_s=3600)
        store.campaigns.end("c-one")
    for words in (
        ["--version"],
        ["campaigns"],
        ["results", "c-one"],
        ["results", "c-one", "--csv", "-"],
        ["results", "c-one", "--json"],
        ["explain", "c-one"],
        ["explain", "c-open"],
    ):
        before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        on_terminal([sys.executable, "-m", "sark", "--home", str(folder / "home"), *words])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(
            f"{'sark-node ' + ' '.join(words):<44} {spent:8.2f} s CPU {time.monotonic() - wall:8.2f} s",
            flush=True,
        )
    with Store(home.store) as store, Store(home.store) as other:
        looks = 80

        def pause(seconds: float) -> None:
            nonlocal looks
            looks -= 1
            other.workers.save("1" * 44, f"d{looks}", ())  # the scheduler writes all the time
            if not looks:
                raise KeyboardInterrupt

        began = time.thread_time()
        first = 0.0

        def alive() -> None:
            nonlocal first
            first = first or time.thread_time() - began

        try:
            watch(store, "c-open", Console(file=io.StringIO(), width=120), keep_alive=alive, pause=pause)
        except KeyboardInterrupt:
            spent = time.thread_time() - began
        print(f"{f'watch {tasks}: the first look':<44} {first:8.2f} s CPU")
        print(f"{f'watch {tasks}: 10 s of further looks':<44} {spent - first:8.2f} s CPU", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--campaigns", type=int, default=1000)
    parser.add_argument("--run", type=int, default=300)
    parser.add_argument("--only", nargs="+", default=["cancel", "restart", "run", "commands"])
    given = parser.parse_args()
    gc.set_threshold(*GC_THRESHOLDS)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    print(f"load {os.getloadavg()[0]:.1f}")
    for part in given.only:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if part == "commands":
                commands(folder, given.tasks)
            elif part == "run":
                trio.run(run, folder, given.run, given.tasks, given.campaigns)
            else:
                number = given.tasks if part == "cancel" else given.campaigns
                trio.run({"cancel": cancel, "restart": restart}[part], folder, number)


if __name__ == "__main__":
    main()
