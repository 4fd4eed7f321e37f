"""Campaigns on virtual time among workers that hold their leases without running them, and among honest ones of very different speeds.

python -m tests.simulation.holders      how long they take, with and without deadlines; how often an honest run is hedged
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from protocol.messages.permission import CallPermission
from protocol.values.attempt import TaskState
from protocol.values.task import Task
from scheduler.core.scheduler import SchedulerCore
from tests.simulation.history import Event, Kind
from tests.simulation.kernel import Kernel
from tests.simulation.model import World, peer_name
from tests.simulation.sim_scheduler import SimScheduler
from tests.simulation.sim_store import SimCampaign, SimStore
from tests.simulation.sim_worker import Runs, SimWorker
from tests.simulation.wire import Air

MAX_S: Final = 10_000.0
HONEST: Final = Runs(seconds=(0.6, 0.8), steps=4)
HOLDING: Final = Runs(holds=1.0)
PRETENDING: Final = Runs(holds=1.0, pretends=True)


@dataclass(frozen=True)
class Played:
    """The outcome of one campaign."""

    seconds: float
    succeeded: int
    runs: int
    """Runs of honest workers."""
    hedged: int
    """How many of these were hedged because of a deadline."""


def play(
    seed: int,
    workers: Sequence[Runs],
    tasks: int,
    *,
    models: int = 1,
    make_core: Callable[[random.Random], SchedulerCore] = SchedulerCore,
) -> Played:
    """Run one campaign of one scheduler. Nothing goes wrong except what its workers do."""
    kernel, rng, events = Kernel(), random.Random(seed), list[Event]()

    def tell(kind: Kind, **what: object) -> None:
        events.append(Event(kernel.now, kind, **what))  # type: ignore[arg-type]

    air, name = Air(random.Random(rng.random())), peer_name("s1")
    permission = CallPermission(principal=name, rights=frozenset())
    devices = [
        SimWorker(
            kernel,
            air,
            peer_name(f"w{n}"),
            random.Random(rng.random()),
            tell,
            runs=runs,
            slots=1,
            permit=lambda worker, peer: permission,
            advert=partial(World._advert, peer_name(f"w{n}")),
        )
        for n, runs in enumerate(workers, 1)
    ]
    scheduler = SimScheduler(
        kernel,
        air,
        name,
        random.Random(rng.random()),
        tell,
        store=SimStore(name, tell, lambda: kernel.now),
        adverts=lambda: [World._advert(device.name).model_copy(update={"seq": 1}) for device in devices],
        broke=lambda each: None,
        make_core=make_core,
    )
    for each in (*devices, scheduler):
        kernel.at(rng.uniform(0.0, 0.1), each.start)
    names = [f"{rng.getrandbits(64):064x}" for _ in range(models)]
    batch = [_task(name, n, names[n % models]) for n in range(1, tasks + 1)]
    campaign = SimCampaign("c-1a", attempts=3, backoff_s=2.0, wait_s=60.0, priority=50)
    scheduler.store.create(campaign, batch)
    kernel.run(MAX_S, lambda: kernel.now > 1.0 and not scheduler.store.unfinished())
    for each in (*devices, scheduler):
        each.process.kill()
    honest = {device.name for device in devices if not device.runs.holds}
    began = {(e.task, e.attempt): e.worker for e in events if e.kind is Kind.BEGAN and e.worker in honest}
    ended = max((e.at for e in events if e.kind is Kind.ENDED), default=MAX_S)
    beside = [e for e in events if e.kind is Kind.COMMITTED and e.word == "beside"]
    return Played(
        seconds=ended,
        succeeded=sum(row.state is TaskState.SUCCEEDED for row in scheduler.store.tasks.values()),
        runs=len(began),
        hedged=len(
            {e.task for e in beside if any(task == e.task and attempt < e.attempt for task, attempt in began)}
        ),
    )


def _task(scheduler: str, n: int, model: str) -> Task:
    """A task with the default time limits."""
    task = World._task(scheduler, "c-1a", n, model)
    return task.model_copy(update={"timeouts": type(task.timeouts)()})


def of_speeds(slowest: float, count: int, seconds: float = 3.0, steps: int = 10) -> list[Runs]:
    """Honest devices with run times from `seconds` to `slowest` times as long, evenly spaced on a logarithmic scale."""
    times = [seconds * slowest ** (n / max(1, count - 1)) for n in range(count)]
    return [Runs(seconds=(0.9 * each, 1.1 * each), steps=steps) for each in times]
