"""What very many tasks and campaigns cost the scheduler: how long its loop blocks, a cancel, a restart, the commands that read them.

    python benchmarks/scheduling/crowd.py [--tasks 10000] [--campaigns 1000] [--run 300] [--devices 100]
            [--only cancel restart run commands exports memory everywhere]

One process: the scheduler service over the in-memory swarm with scripted workers, on a real SQLite file. Figures are processor seconds of
the loop's thread, with wall seconds beside them; a busy machine increases both, so `sark-node --version` is one of the commands.

  cancel    a campaign of --tasks tasks without a device is taken up and cancelled, as the command does it, with submits beside it
  restart   --campaigns campaigns of 3 tasks are taken up by a new process
  run       --run tasks of a campaign of --tasks, and as many of --campaigns campaigns of 3, on 4 scripted workers, and the same campaign
            on one device of 64 slots, from the moment at which the workers appear; the time of both sides
  commands  `campaigns`, `results`, `explain` over a store with a campaign of --tasks ended tasks and one of the same size of which half
            have ended, as processes on a terminal; and `watch` of the second, on a terminal and a pipe.
            A gate and two workers run beside them: `explain` queries the swarm about waiting tasks.
            The ended tasks are invented: their rows are inserted in bulk, nine in ten with a record of six launches of 100 samples
  memory    memory that the scheduler holds for --tasks waiting tasks, by tracemalloc
  everywhere  a campaign of --tasks tasks on --devices scripted workers, each task for one of them: planned and taken up, then --run of
            them run; with the growth of the process's memory per task
  exports   `results --csv -` and `--json` of --tasks results
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa
import structlog
import trio
import trio.lowlevel
from rich.console import Console

from benchmarks.scheduling.store import a_record
from protocol.values.attempt import TaskState
from protocol.values.record import record_body
from protocol.values.task import read_task
from protocol.words import Reason
from results.export.figures import figures_of
from scheduler.campaign.model import Campaign, Devices, ModelEntry
from scheduler.output.watch import MANY, watch
from scheduler.store import schema
from scheduler.store.rows import AttemptState, NewCampaign, NewModel
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.base.process import GC_THRESHOLDS
from swarm.join.known_gates import save_gates
from swarm.memory.network import MemorySwarm
from tests.scheduler.conftest import MODEL, SCHEDULER, SHA, UNIT, FakeIndex, World

WORKERS = 4
_C, _T = schema.campaigns, schema.tasks
_EPOCH = sa.select(_C.c.id).where(_C.c.epoch > 0)
_DONE = _T.c.state == TaskState.SUCCEEDED


class Turns(trio.abc.Instrument):
    """Processor seconds of each turn of the loop, and the task that took most of the longest turn."""

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
    """Print processor and wall seconds, and the longest turn."""
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
    """Run the text in a process of its own."""
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


async def memory(folder: Path, tasks: int) -> None:
    """Tracing makes this take several times as long."""
    async with a_world(folder) as world:
        with ProcessPoolExecutor(1, get_context("spawn")) as other:
            other.submit(submit, folder / "store.db", "c-one", tasks).result()
        gc.collect()
        tracemalloc.start()
        async with world.scheduler():
            before = -1
            while (now := tracemalloc.get_traced_memory()[0]) > before + 1000:
                before = now
                await trio.sleep(5)
            gc.collect()
            kept, peak = tracemalloc.get_traced_memory()
        print(
            f"memory of {tasks} tasks taken up: {kept / tasks:.0f} B a task, {peak / tasks:.0f} at most",
            flush=True,
        )


async def everywhere(folder: Path, tasks: int, devices: int, run: int) -> None:
    """As in a lab: many models, each on each device."""
    spec = Campaign(
        campaign="everywhere",
        models=tuple(ModelEntry(path=f"m{n}.onnx") for n in range(tasks // devices)),
        units=(UNIT,),
        devices=Devices(spread="device"),
    )
    new = NewCampaign("c-all", "everywhere", SCHEDULER.peer_id, spec.model_dump_json(), wait_s=3600)
    models = [NewModel(each.label, SHA, len(MODEL), facts="tiny.onnx") for each in spec.models]
    async with a_world(folder) as world:
        for n in range(devices):
            world.worker(f"w{n}", seconds=0.05)
        world.store.campaigns.create(new, models, None)
        del spec, models
        gc.collect()
        before = resident()
        made = f"{tasks} tasks on {devices} devices"
        with measured(f"plan {made}, of which"), measured("  take up and run the first") as turns:
            async with world.scheduler():
                with measured("  plan"):
                    await until(lambda: not world.store.campaigns.unfinished_ids(planned=False), 3600)
                turns.longest = 0.0
                await until(lambda: world.store.database.count(_T, _DONE) > 0, 3600)
                held = resident() - before
                print(f"{'  memory':<44} {held / tasks:8.0f} B a task", flush=True)
                first = world.store.database.count(_T, _DONE)
                with measured(f"  {run} of them"):
                    await until(lambda: world.store.database.count(_T, _DONE) >= first + run, 3600)
                print(f"{'  memory':<44} {(resident() - before) / tasks:8.0f} B a task", flush=True)
                for worker in world.index.workers:
                    worker.die()  # else they miss the scheduler
        world.nursery.cancel_scope.cancel()


def resident() -> int:
    """Bytes of resident memory of this process."""
    return psutil.Process().memory_info().rss


def epochs(world: World) -> set[tuple[str, int]]:
    """Campaigns with their epochs; taking up a campaign gives it a new one."""
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


def on_terminal(command: list[str]) -> tuple[float, float]:
    """Run the command on a terminal, as people do; with --json or --csv - it writes everything. Returns its processor and wall seconds."""
    ours, theirs = os.openpty()
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL)
    os.close(theirs)
    drain(ours)
    _, process.returncode, used = os.wait4(process.pid, 0)
    return used.ru_utime + used.ru_stime, time.monotonic() - began


def drain(terminal: int) -> None:
    """Read everything written to the terminal, and close it."""
    with contextlib.suppress(OSError):  # the end of a terminal
        while os.read(terminal, 65_536):
            pass
    os.close(terminal)


def fill(store: Store, campaign: str, ended: int) -> None:
    """End the first `ended` tasks of a campaign on eight devices, nine in ten with a record; the rows are inserted in bulk."""
    body = read_task(store.tasks.bodies(campaign, 1, 1)[f"{campaign}/1"])
    record = a_record(body, "device-1", random.Random(1), 12.0)
    packed, figures, now = record_body(record), figures_of(body, record), time.time()
    nothing = {name: "" if isinstance(value, str) else None for name, value in figures.items()}
    with store.database.transaction() as c:
        for first in range(1, ended + 1, 1000):
            tables: dict[sa.Table, list[dict[str, Any]]] = {
                table: [] for table in (schema.attempts, schema.records, schema.results, schema.events)
            }
            for n in range(first, min(first + 1000, ended + 1)):
                task, device, good = f"{campaign}/{n}", f"device-{n % 8}", n % 10 > 0
                state = TaskState.SUCCEEDED if good else TaskState.FAILED
                ran = {"task": task, "attempt": 1, "worker": "2" * 44}
                own = {"model": body.model.name, "sha256": SHA, "unit": UNIT, "campaign": campaign, "n": n}
                why = {"device": device, "reason": None if good else Reason.CRASHED}
                tables[schema.attempts].append(
                    {**ran, **why, "key": f"k/{task}", "epoch": 1, "state": AttemptState(state), "begun": now}
                )
                if good:
                    signed = {"sha256": "a" * 64, "body": packed, "signature": bytes(64)}
                    tables[schema.records].append({**ran, **signed, "decides": True, "accepted": now})
                line = {
                    "task": task,
                    "device": device,
                    "ended": now,
                    "state": state,
                    "reason": why["reason"] or "",
                }
                tables[schema.results].append({**own, **(figures if good else nothing), **line})
                fields = {"attempt": 1, "worker": "2" * 44, "device": device}
                tables[schema.events] += [
                    {"campaign": campaign, "seq": 10 + 4 * n + step, "at": now, "name": f"task.{name}"}
                    | {"task": task, "fields": fields, "hash": "a" * 64}
                    for step, name in enumerate(("committing", "leased", "running", str(state)))
                ]
            for table, rows in tables.items():
                c.execute(table.insert(), rows)
        c.execute(_C.update().where(_C.c.id == campaign).values(next_seq=10 + 4 * (ended + 1)))
        of = (_T.c.campaign == campaign, _T.c.n <= ended)
        where = {"attempt": 1, "worker": "2" * 44, "device": "device-1", "ended": now}
        failed = {"state": TaskState.FAILED, "reason": Reason.CRASHED, "detail": "signal 11", "tries": 1}
        c.execute(_T.update().where(*of, _T.c.n % 10 > 0).values(state=TaskState.SUCCEEDED, **where))
        c.execute(_T.update().where(*of, _T.c.n % 10 == 0).values(**failed, **where))


def submit(place: Path, campaign: str, tasks: int) -> None:
    World(None, None, place, None, None, None, None).submit(tasks, campaign=campaign, wait_s=3600)  # type: ignore[arg-type]


def start_swarm(folder: Path) -> None:
    """Start a gate and two workers, known to the home as after a submit; they end with this process."""
    from tests.real.lab import Lab  # its memory would count as the commands'

    lab = Lab(folder, ("home",))
    save_gates(lab.home("home"), (lab.gate,))
    lab.mend()


def commands(folder: Path, tasks: int) -> None:
    home = filled(folder, tasks, {"c-one": tasks, "c-open": tasks // 2})
    with ProcessPoolExecutor(1, get_context("spawn")) as swarm:  # its end ends them all
        swarm.submit(start_swarm, folder).result()
        for words in ("--version", "campaigns", "results c-one", "explain c-one", "explain c-open"):
            show(home, words)
    ours, theirs = os.openpty()
    threading.Thread(target=drain, args=(ours,), daemon=True).start()
    with os.fdopen(theirs, "w") as terminal:
        for what, file in (("terminal", terminal), ("pipe", io.StringIO())):
            looks(
                home, what, Console(file=file, width=120, height=40, force_terminal=file is terminal), tasks
            )


def exports(folder: Path, tasks: int) -> None:
    home = filled(folder, tasks, {"c-one": tasks})
    for words in ("--version", "results c-one --csv -", "results c-one --json"):
        show(home, words)


def filled(folder: Path, tasks: int, ended: dict[str, int]) -> Home:
    """A home with campaigns of `tasks` tasks each; `ended` gives how many of each campaign's tasks have ended."""
    home = Home.at(folder / "home")
    home.store.parent.mkdir(parents=True, exist_ok=True)
    with Store(home.store) as store:
        for campaign, number in ended.items():
            with ProcessPoolExecutor(
                1, get_context("spawn")
            ) as other:  # its memory would count as the commands'
                other.submit(submit, home.store, campaign, tasks).result()
            fill(store, campaign, number)
            if number == tasks:
                store.campaigns.end(campaign)
    return home


def show(home: Home, words: str) -> None:
    root = home.data.parent
    spent, wall = on_terminal([sys.executable, "-m", "sark", "--home", str(root), *words.split()])
    print(f"{f'sark-node {words}':<44} {spent:8.2f} s CPU {wall:8.2f} s", flush=True)


def looks(home: Home, what: str, console: Console, tasks: int) -> None:
    """The first look of `watch`, and the looks of ten more seconds, while the scheduler writes."""
    with Store(home.store) as store, Store(home.store) as other:
        left = 80 if tasks < MANY else 10
        began, first, spent = time.thread_time(), 0.0, 0.0

        def pause(seconds: float) -> None:
            nonlocal left, first
            first = first or time.thread_time() - began
            left -= 1
            other.workers.save("1" * 44, f"d{left}", ())
            if not left:
                raise KeyboardInterrupt

        try:
            watch(store, "c-open", console, keep_alive=lambda: None, pause=pause)
        except KeyboardInterrupt:
            spent = time.thread_time() - began
        print(f"{f'watch {tasks} on a {what}: the first look':<44} {first:8.2f} s CPU")
        print(f"{f'watch {tasks} on a {what}: 10 s more':<44} {spent - first:8.2f} s CPU", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--campaigns", type=int, default=1000)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--run", type=int, default=300)
    parser.add_argument(
        "--only", nargs="+", default=["cancel", "restart", "run", "commands", "exports", "memory"]
    )
    given = parser.parse_args()
    gc.set_threshold(*GC_THRESHOLDS)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    print(f"load {os.getloadavg()[0]:.1f}")
    for part in given.only:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if part in ("commands", "exports"):
                {"commands": commands, "exports": exports}[part](folder, given.tasks)
            elif part == "everywhere":
                trio.run(everywhere, folder, given.tasks, given.devices, given.run)
            elif part == "run":
                trio.run(run, folder, given.run, given.tasks, given.campaigns)
            else:
                number = given.campaigns if part == "restart" else given.tasks
                trio.run({"cancel": cancel, "restart": restart, "memory": memory}[part], folder, number)


if __name__ == "__main__":
    main()
