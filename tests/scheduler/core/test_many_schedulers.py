"""Schedulers with the same information do not all choose the same worker, and the loser of a race continues elsewhere at once."""

from __future__ import annotations

import random
import statistics

import pytest

from protocol.messages.work import Conflict, Quote
from protocol.values.attempt import TaskState
from protocol.values.lease import Fence
from protocol.words import Reason
from scheduler.core.commands import Command, CommitTo, RecordGrant, ReleaseOn
from scheduler.core.entries import LEASED_TASK_STATES, TaskEntry, TaskLimits
from scheduler.core.ranking import WorkerView
from scheduler.core.scheduler import SchedulerCore
from swarm.net.identity import Identity
from tests.scheduler.core_invariants import check
from tests.scheduler.core_parts import a_task, advert, decided, of, quote

WORKERS = 16
SCHEDULERS = 4
ADVERTS = [
    advert(0).model_copy(update={"peer": Identity.from_seed(f"herd {n}").peer_id, "device": f"d{n}"})
    for n in range(WORKERS)
]


class Field:
    """`workers` with one slot each, and schedulers that all saw them idle. Messages sent in one round arrive in the next."""

    def __init__(self, seed: int, tasks: int, *, queues: bool = True) -> None:
        self.rng = random.Random(seed)
        self.queues = queues
        self.now = 0.0
        self.number = 0
        self.first: dict[str, int] = {}
        self.commits = self.rounds = 0
        self.at: dict[str, list[str]] = {ad.peer: [] for ad in ADVERTS}
        """Worker → its leases, the one with the slot first."""
        self.cores = [SchedulerCore(random.Random(f"{seed} {n}")) for n in range(SCHEDULERS)]
        self.commands: list[tuple[SchedulerCore, Command]] = []
        for n, core in enumerate(self.cores):
            decided(core, core.workers.add_adverts("", ADVERTS, 0.0), 0.0)
            for ad in ADVERTS:
                core.state.worker(ad.peer).probing = False
                decided(core, core.workers.add_quote(ad.peer, quote(), 0.0), 0.0)
            entries = [TaskEntry(a_task(i, campaign=f"c-{n}")) for i in range(1, tasks + 1)]
            self.say(core, core.add(TaskLimits(f"c-{n}"), entries, 0.0))
        for _, order in self.commands:
            if isinstance(order, CommitTo):
                self.first[order.peer] = self.first.get(order.peer, 0) + 1

    def say(self, core: SchedulerCore, orders: list[Command]) -> None:
        orders = decided(core, orders, self.now)
        check(core.state)
        self.commits += len(of(orders, CommitTo))
        self.commands += [(core, order) for order in orders]

    def standing(self, peer: str) -> Quote:
        there = self.at[peer]
        return quote(free=0 if there else 1, queue=max(0, len(there) - 1))

    def round(self) -> None:
        self.rounds += 1
        self.now += 0.01
        result, self.commands = self.commands, []
        self.rng.shuffle(result)
        for core, order in result:
            if isinstance(order, ReleaseOn):
                for held in order.held:
                    if held.lease in self.at[order.peer]:
                        self.at[order.peer].remove(held.lease)
            elif isinstance(order, CommitTo):
                self.answer(core, order)

    def answer(self, core: SchedulerCore, order: CommitTo) -> None:
        there = self.at[order.peer]
        if there and not self.queues:
            late = Conflict(reason=Reason.BUSY, quote=self.standing(order.peer))
            self.say(core, core.reconciler.conflict(order.task, order.attempt, late, self.now))
            return
        self.number += 1
        lease = f"l{self.number}"
        there.append(lease)
        self.say(
            core,
            core.reconciler.grant(
                order.peer,
                RecordGrant(
                    order.task,
                    order.attempt,
                    lease,
                    Fence(incarnation=1, number=self.number),
                    queued=len(there) > 1,
                    position=len(there) - 1 or None,
                    start_s=30.0 * (len(there) - 1),
                ),
                self.now,
            ),
        )

    def placed(self) -> int:
        return sum(
            entry.state in LEASED_TASK_STATES for core in self.cores for entry in core.state.tasks.values()
        )


@pytest.mark.parametrize("queues", [True, False], ids=["queued", "conflict"])
def test_four_schedulers_with_the_same_view_spread_over_sixteen_idle_workers(queues: bool) -> None:
    """If each chose the best node, all four would begin with the same four workers: those would get 4 requests each, and 12 workers
    none.
    """
    loads: list[int] = []
    used: list[int] = []
    requests: list[float] = []
    for seed in range(40):
        field = Field(seed, 4, queues=queues)
        loads.append(max(field.first.values()))
        used.append(len(field.first))
        while field.commands and field.rounds < 30:
            field.round()
        if queues:
            assert field.placed() == SCHEDULERS * 4, "one task for each worker, none waits"
            assert field.rounds <= 16
        requests.append(field.commits / (SCHEDULERS * 4))
    assert statistics.mean(loads) < 3
    assert statistics.mean(used) > 10
    assert statistics.mean(requests) < 2.3


def test_two_workers_at_least_are_drawn_and_the_sooner_is_taken() -> None:
    """Power of two choices: the slowest worker is never chosen while there are others, any other may be."""
    taken: set[str] = set()
    for seed in range(200):
        core = SchedulerCore(random.Random(seed))
        views: list[WorkerView] = []
        decided(core, core.workers.add_adverts("", ADVERTS, 0.0), 0.0)
        for n, ad in enumerate(ADVERTS):
            view = core.state.worker(ad.peer)
            decided(core, core.workers.add_quote(ad.peer, quote(free=0, queue=n), 0.0), 0.0)
            views.append(view)
        decided(core, core.add(TaskLimits("c-one"), [TaskEntry(a_task(1))], 0.0), 0.0)
        taken.add(next(entry.worker for entry in core.state.tasks.values() if entry.worker) or "")
        assert next(iter(core.state.tasks.values())).state is TaskState.COMMITTING
    assert ADVERTS[-1].peer not in taken
    assert len(taken) >= WORKERS - 4
