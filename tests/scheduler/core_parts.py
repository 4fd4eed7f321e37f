"""Building blocks for the tests of the core: minimal tasks, adverts, quotes and records."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from protocol.formats.phase import Phase
from protocol.messages.work import Progress, Quote
from protocol.values.advert import Advert, UnitOffer
from protocol.values.attempt import AttemptStatus, TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.values.record import DeviceFacts, Record, RunFacts, Timing, pack_samples
from protocol.values.requirement import Requirement, parse_clause
from protocol.values.task import Measure, Model, Task, Timeouts
from protocol.values.trust import OWN, Trust
from protocol.words import Reason, RunOutcome, WorkerState
from scheduler.core.commands import Command, CommitTo, Discover, RecordGrant
from scheduler.core.entries import Attempt, TaskEntry, TaskLimits
from scheduler.core.scheduler import SchedulerCore
from swarm.net.identity import Identity
from tests.scheduler.core_invariants import check

UNIT = "CPU (ONNX)"
SHA = "ab" * 32
PEERS = [Identity.from_seed(n).peer_id for n in range(4)]
SCHEDULER = Identity.from_seed("scheduler").peer_id
O = TypeVar("O")  # noqa: E741


def a_task(n: int, *clauses: str, campaign: str = "c-one", replica: int | None = None) -> Task:
    return Task(
        campaign=campaign,
        task=f"{campaign}/{n}",
        scheduler=SCHEDULER,
        model=Model(name="m.onnx", sha256=SHA, size=100),
        unit=UNIT,
        requirement=Requirement(clauses=tuple(parse_clause(text) for text in clauses)),
        measure=Measure(),
        timeouts=Timeouts(),
        replica=replica,
    )


def a_live_task(
    n: int, state: TaskState, worker: str, lease: str | None, fence: Fence | None, **more: Any
) -> TaskEntry:
    """A task with an attempt, as a store has it after a restart. `more`: fields of the entry, or of the attempt."""
    of_attempt = {name: more.pop(name) for name in ("found", "inherited", "stranger") if name in more}
    current = Attempt(1, worker, lease, fence, AttemptStatus.RESTORED, **of_attempt)
    return TaskEntry(a_task(n), state, current, **more)


def advert(n: int, ram: int = 8 * 1024**3) -> Advert:
    return Advert(
        peer=PEERS[n],
        seq=1,
        device=f"d{n}",
        name=f"w{n}",
        ram=ram,
        units=(UnitOffer(unit=UNIT, runtime="r"),),
    )


def quote(
    *, free: int = 1, queue: int = 0, incarnation: int = 1, state: WorkerState = WorkerState.ACTIVE
) -> Quote:
    return Quote(incarnation=incarnation, ledger=1, state=state, free=free, queue=queue)


def a_record(core: SchedulerCore, task: str, **changes: object) -> Record:
    entry = core.state.tasks[task]
    values: dict[str, object] = {
        "campaign": entry.task.campaign,
        "task": task,
        "attempt": entry.attempt,
        "fence": entry.fence,
        "worker": entry.worker,
        "task_sha256": SHA,
        "model_sha256": SHA,
        "outcome": RunOutcome.COMPLETE,
        "device": DeviceFacts(device="d", name="w"),
        "ran": RunFacts(unit=UNIT, driver="x", runtime="r"),
        "timings": (Timing(samples=pack_samples([1]), warmup=pack_samples([]), cpu_s=0, wall_s=0),),
    }
    return Record.model_validate({**values, **changes})


def of(orders: Iterable[Command], kind: type[O]) -> list[O]:
    return [order for order in orders if isinstance(order, kind)]


def decided(core: SchedulerCore, orders: list[Command], now: float) -> list[Command]:
    """The commands that follow from an event, and those that the core decides afterwards, until no decision is left."""
    orders = orders + core.decide(now)
    while core.state.unfinished:
        orders += core.decide(now)
    return orders


class Story:
    """A core with tasks and workers, set up quickly."""

    def __init__(
        self,
        tasks: int | list[Task] = 1,
        workers: int = 1,
        *,
        looks: bool = True,
        clauses: tuple[str, ...] = (),
        trust_of: Callable[[str], Trust] = lambda peer: OWN,
        **terms: object,
    ) -> None:
        self.core = SchedulerCore(random.Random(1), trust_of)
        self.now = 100.0
        values: dict[str, object] = {"campaign": "c-one", **terms}
        if isinstance(tasks, int):
            tasks = [a_task(n, *clauses) for n in range(1, tasks + 1)]
        entries = [TaskEntry(task) for task in tasks]
        self.commits: list[CommitTo] = []
        self.tell(self.core.add(TaskLimits(**values), entries, self.now))  # type: ignore[arg-type]
        self.group = of(self.orders, Discover)[0].group if looks else ""
        self.numbers = 0
        adverts = [advert(n) for n in range(workers)]
        if workers:
            self.tell(self.core.workers.add_adverts(self.group, adverts, self.now))
        for n in range(workers):
            self.tell(self.core.workers.add_quote(PEERS[n], quote(), self.now))

    def tell(self, orders: list[Command]) -> list[Command]:
        self.orders = decided(self.core, orders, self.now)
        check(self.core.state)
        self.commits += of(self.orders, CommitTo)
        return self.orders

    def after(self, seconds: float) -> list[Command]:
        self.now += seconds
        return self.tell(self.core.tick(self.now))

    def grant(
        self,
        commit: CommitTo,
        *,
        queued: bool = False,
        incarnation: int = 1,
        position: int | None = None,
        start_s: float | None = None,
    ) -> list[Command]:
        self.numbers += 1
        fence = Fence(incarnation=incarnation, number=self.numbers)
        lease = f"l{self.numbers}"
        grant = RecordGrant(commit.task, commit.attempt, lease, fence, queued, position, start_s)
        return self.tell(self.core.reconciler.grant(commit.peer, grant, self.now))

    def begin(self, commit: CommitTo) -> None:
        """Grant the commit, and report that its run has begun."""
        self.grant(commit)
        fence = Fence(incarnation=1, number=self.numbers)
        progress = Progress(lease=f"l{self.numbers}", fence=fence, seq=1, phase=Phase.RUN)
        assert self.core.reconciler.progress(commit.peer, progress, self.now) is not None

    def fail(self, task: str, reason: Reason, *, permanent: bool = False) -> tuple[TaskEvent, list[Command]]:
        record = a_record(
            self.core, task, outcome=RunOutcome.FAILED, reason=reason, permanent=permanent, timings=()
        )
        event, why, _ = self.core.failures.judge(record)
        return event, self.tell(self.core.failures.settle(task, event, why, self.now, permanent=permanent))

    def succeed(self, task: str) -> list[Command]:
        event, why, _ = self.core.failures.judge(a_record(self.core, task))
        assert event is TaskEvent.SUCCEED
        return self.tell(self.core.failures.settle(task, event, why, self.now))
