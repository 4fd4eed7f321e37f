"""The core as a whole: a random walk that no order of stimuli, and no worker, can break; and many requirements at once."""

from __future__ import annotations

import random
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.formats.phase import Phase
from protocol.messages.work import Conflict, Denied, LiveLease, Progress, QueuedLease, Renewed
from protocol.values.attempt import TASK, TaskEvent, TaskState
from protocol.values.lease import MAX_PREEMPTIONS, Fence
from protocol.wire.table import step
from protocol.words import Reason, RunOutcome, WorkerState
from scheduler.core.allocator import MAX_PROBING
from scheduler.core.commands import (
    Command,
    CommitTo,
    Discover,
    EndAttempt,
    EndCampaign,
    EndHedge,
    EndPending,
    Explain,
    ProbeWorker,
    RecordGrant,
    SwitchAttempt,
)
from scheduler.core.entries import TaskEntry, TaskLimits
from scheduler.core.ranking import WorkerView
from scheduler.core.scheduler import SchedulerCore
from swarm.net.identity import Identity
from tests.scheduler.core_invariants import check
from tests.scheduler.core_parts import PEERS, a_record, a_task, advert, decided, of, quote

X = TypeVar("X")
HEDGEABLE = (TaskState.QUEUED, TaskState.LEASED, TaskState.RUNNING)


class Counted(dict[str, WorkerView]):
    """Counts how often all workers are iterated over."""

    walks = 0

    def values(self) -> Any:
        self.walks += 1
        return super().values()


def test_a_decision_goes_through_the_workers_as_often_for_many_needs_as_for_few() -> None:
    walks: list[int] = []
    for needs in (1, 40):
        core = SchedulerCore(random.Random(1))
        counted = core.state.workers = Counted()
        decided(
            core,
            core.add(
                TaskLimits("c-one"),
                [TaskEntry(a_task(n, f"device == d{n}")) for n in range(1, needs + 1)],
                0.0,
            ),
            0.0,
        )
        decided(core, core.workers.add_adverts("", [advert(n) for n in range(4)], 0.1), 0.1)
        counted.walks = 0
        core.decide(0.2)
        walks.append(counted.walks)
    assert walks[0] == walks[1]


def test_at_most_so_many_workers_are_probed_at_once_whatever_the_needs() -> None:
    core = SchedulerCore(random.Random(1))
    decided(
        core,
        core.add(TaskLimits("c-one"), [TaskEntry(a_task(n, f"device == d{n}")) for n in range(1, 41)], 0.0),
        0.0,
    )
    adverts = [
        advert(0).model_copy(update={"peer": Identity.from_seed(f"many {n}").peer_id, "device": f"d{n}"})
        for n in range(1, 41)
    ]
    assert len(of(decided(core, core.workers.add_adverts("", adverts, 0.1), 0.1), ProbeWorker)) == MAX_PROBING
    assert [len(need.fits) for need in core.state.groups.values()] == [1] * 40


def recent(items: list[X]) -> st.SearchStrategy[X]:
    """Mostly one of the last items, sometimes any: a walk over old events only leads nowhere."""
    return st.one_of(st.sampled_from(items[-3:]), st.sampled_from(items[-3:]), st.sampled_from(items))


class Walk(RuleBasedStateMachine):
    """Any stimulus at any time, old and foreign ones among them. A shadow of the store checks what the commands would write."""

    @initialize(
        seed=st.integers(0, 1000), tasks=st.integers(1, 6), others=st.integers(0, 3), replicas=st.booleans()
    )
    def begin(self, seed: int, tasks: int, others: int, replicas: bool) -> None:
        self.core = SchedulerCore(random.Random(seed))
        self.now = 0.0
        self.number = 0
        self.commits: list[CommitTo] = []
        self.leases: list[tuple[CommitTo, str, Fence]] = []
        self.needs: list[str] = []
        self.recorded: dict[str, int] = {}
        self.final: dict[str, TaskState] = {}
        self.took: dict[str, tuple[int, Fence | None]] = {}
        self.second: dict[str, int] = {}
        self.answered: dict[str, set[int]] = {}
        self.leased: dict[str, set[int]] = {}
        self.last: dict[str, int] = {}
        self.preempted: dict[str, int] = {}
        self.elsewhere: set[str] = set()
        names = [f"c-one/{n}" for n in range(1, tasks + 1)] + [f"c-two/{n}" for n in range(1, others + 1)]
        self.disk = dict.fromkeys(names, TaskState.PENDING)
        alike = [a_task(n, replica=n) if replicas else a_task(n) for n in range(1, tasks + 1)]
        terms = TaskLimits("c-one", attempts=2, wait_s=5.0)
        self.do(self.core.add(terms, [TaskEntry(task) for task in alike], 0.0))
        entries = [TaskEntry(a_task(n, campaign="c-two")) for n in range(1, others + 1)]
        self.do(self.core.add(TaskLimits("c-two", attempts=2, priority=90), entries, 0.0))
        for n in range(4):
            self.found(n)
        for n in range(3):
            self.quoted(n, n % 2, 0, 1)

    def write(self, task: str, event: TaskEvent) -> None:
        """Record an event in the shadow store. Raises where the real store would refuse it and so end the scheduler."""
        self.disk[task] = step(TASK, self.disk[task], event, story=task)
        if event is TaskEvent.PREEMPT:
            self.preempted[task] = self.preempted.get(task, 0) + 1
            assert self.preempted[task] <= MAX_PREEMPTIONS, "the same task gives way twice at most"

    def do(self, orders: list[Command]) -> None:
        orders = decided(self.core, orders, self.now)
        for order in orders:
            match order:
                case CommitTo():
                    self.intend(order)
                case RecordGrant():
                    self.keep(order)
                case SwitchAttempt():
                    assert (order.before, order.attempt) == (
                        self.took[order.task][0],
                        self.second.pop(order.task),
                    )
                    assert self.disk[order.task] in HEDGEABLE
                    self.took[order.task] = (order.attempt, None)
                    request = order.attempt not in self.answered.get(order.task, ())
                    leased = order.attempt in self.leased.get(order.task, ())
                    self.disk[order.task] = (
                        TaskState.LEASED if leased else TaskState.COMMITTING if request else TaskState.QUEUED
                    )
                case EndHedge():
                    assert self.second.pop(order.task) == order.attempt
                case EndAttempt():
                    assert order.attempt == self.took[order.task][0]
                    assert order.task not in self.second, (
                        "a hedged request ends before the task leaves its queue"
                    )
                    self.write(order.task, order.event)
                case EndPending():
                    for task in order.tasks:
                        assert self.disk[task] is TaskState.PENDING
                        self.write(task, order.event)
                case EndCampaign(detail=detail) if detail:
                    self.elsewhere.add(order.campaign)
                case _:
                    pass
        self.commits += of(orders, CommitTo)
        self.needs += [order.group for order in of(orders, Discover)]

    def intend(self, commit: CommitTo) -> None:
        assert commit.attempt == self.last.get(commit.task, 0) + 1, "attempts rise one by one"
        assert self.core.state.tasks[commit.task].task.campaign not in self.elsewhere, (
            "what went elsewhere is not asked for any more"
        )
        self.last[commit.task] = commit.attempt
        if commit.hedge:
            assert self.disk[commit.task] in HEDGEABLE
            assert commit.task not in self.second, "two leases at most"
            self.second[commit.task] = commit.attempt
        else:
            self.write(commit.task, TaskEvent.COMMIT)
            self.took[commit.task] = (commit.attempt, None)

    def keep(self, order: RecordGrant) -> None:
        self.answered.setdefault(order.task, set()).add(order.attempt)
        if not order.queued:
            self.leased.setdefault(order.task, set()).add(order.attempt)
        if order.attempt == self.second.get(order.task):
            assert order.queued or order.beside, "a hedged request that starts is the current attempt first"
            return
        assert order.attempt == self.took[order.task][0]
        self.write(order.task, TaskEvent.ENQUEUE if order.queued else TaskEvent.GRANT)

    def up(self, peer: str, lease: str, fence: Fence) -> str | None:
        """A queued lease gets its turn: the required writes come before the answer."""
        task, orders = self.core.reconciler.start(peer, lease, fence, self.now)
        self.do(orders)
        return task

    @rule(n=st.integers(0, 3))
    def found(self, n: int) -> None:
        for need in self.needs[-1:]:
            self.do(self.core.workers.add_adverts(need, [advert(n)], self.now))

    @rule(n=st.integers(0, 3), free=st.integers(0, 1), queue=st.integers(0, 3), incarnation=st.integers(1, 3))
    def quoted(self, n: int, free: int, queue: int, incarnation: int) -> None:
        result = quote(free=free, queue=queue, incarnation=incarnation)
        self.do(self.core.workers.add_quote(PEERS[n], result, self.now))

    @rule(n=st.integers(0, 3))
    def unreachable(self, n: int) -> None:
        self.do(self.core.workers.mark_unreachable(PEERS[n], "silence", self.now))

    @rule(n=st.integers(0, 3), reason=st.sampled_from([Reason.NOT_ALLOWED, Reason.BUSY]))
    def refused(self, n: int, reason: Reason) -> None:
        retry = 1.0 if reason is Reason.BUSY else None
        self.do(self.core.workers.refuse(PEERS[n], Denied(reason=reason, retry_s=retry), self.now))

    @precondition(lambda self: self.commits)
    @rule(data=st.data(), queued=st.booleans(), incarnation=st.integers(1, 3))
    def granted(self, data: st.DataObject, queued: bool, incarnation: int) -> None:
        commit = data.draw(recent(self.commits))
        self.number += 1
        fence = Fence(incarnation=incarnation, number=self.number)
        self.leases.append((commit, f"l{self.number}", fence))
        lease = f"l{self.number}"
        entry = self.core.state.tasks[commit.task]
        mine = next((attempt for attempt in entry.attempts() if attempt.number == commit.attempt), None)
        required = mine is not None and mine.lease is None
        before = {(attempt.number, attempt.lease, attempt.fence) for attempt in entry.attempts()}
        position = self.number % 3 + 1 if queued else None
        self.do(
            self.core.reconciler.grant(
                commit.peer,
                RecordGrant(
                    commit.task,
                    commit.attempt,
                    lease,
                    fence,
                    queued=queued,
                    position=position,
                    start_s=None if position is None else 20.0 * position,
                ),
                self.now,
            )
        )
        if not required:
            held = {
                (attempt.number, attempt.lease, attempt.fence)
                for attempt in entry.attempts()
                if attempt.lease
            }
            assert held <= before, "an old grant counts for nothing"

    @precondition(lambda self: self.commits)
    @rule(data=st.data(), how=st.sampled_from(["conflict", "denied", "unfit", "lost", "unsent"]))
    def not_granted(self, data: st.DataObject, how: str) -> None:
        c = data.draw(recent(self.commits))
        core = self.core
        if how == "conflict":
            conflict = Conflict(reason=Reason.BUSY, quote=quote())
            self.do(core.reconciler.conflict(c.task, c.attempt, conflict, self.now))
        elif how in ("denied", "unfit"):
            reason = Reason.NOT_SERVING if how == "denied" else Reason.DOES_NOT_FIT
            self.do(core.reconciler.deny(c.task, c.attempt, Denied(reason=reason), self.now))
        else:
            self.do(core.reconciler.fail_commit(c.task, c.attempt, "silence", self.now, sent=how == "lost"))

    @rule(
        n=st.integers(0, 3),
        what=st.sampled_from(
            ["ready", "progress", "stopped", "lost", "adopted", "result", "preempt", "stale"]
        ),
        lease=st.sampled_from(["l1", "l2", "l3", "l4", "made-up"]),
        incarnation=st.integers(0, 4),
        number=st.integers(1, 4),
        task=st.integers(1, 7),
        attempt=st.integers(1, 3),
        flags=st.tuples(st.booleans(), st.booleans()),
        reason=st.sampled_from(list(Reason)),
    )
    def a_worker_says_anything(
        self,
        n: int,
        what: str,
        lease: str,
        incarnation: int,
        number: int,
        task: int,
        attempt: int,
        flags: tuple[bool, bool],
        reason: Reason,
    ) -> None:
        """About leases, fences, tasks and attempts that are its own, another worker's or made up. The core accepts any of them without
        breaking.
        """
        core, peer, fence = self.core, PEERS[n], Fence(incarnation=incarnation, number=number)
        if what == "ready":
            self.up(peer, lease, fence)
        elif what == "progress":
            core.reconciler.progress(
                peer, Progress(lease=lease, fence=fence, seq=1, phase=Phase.RUN), self.now
            )
        elif what == "stopped":
            self.do(core.failures.confirm_stop(peer, (lease,), self.now))
        elif what == "lost":
            self.do(core.failures.lose_leases(peer, (lease,), reason, self.now))
        elif what == "adopted":
            live_lease = LiveLease(
                task=f"c-one/{task}",
                attempt=attempt,
                lease=lease,
                fence=fence,
                queued=flags[0],
                reporting=flags[1],
            )
            expected = frozenset(held.lease for held in core.held_on(peer))
            self.do(
                core.reconciler.reconcile(
                    peer, "c-one", incarnation, (live_lease,), self.now, expected=expected
                )
            )
        elif what == "preempt":
            self.do(core.reconciler.warn(peer, lease, fence, 60 + number, self.now))
        elif what == "stale":
            if flags == (True, True):
                self.do(core.failures.end_superseded("c-one", self.now))
        else:
            entry = core.state.tasks.get(f"c-one/{task}")
            if entry is not None and entry.live and (entry.worker, entry.attempt) == (peer, attempt):
                self.do(
                    core.reconciler.grant(
                        peer, RecordGrant(entry.id, attempt, lease, fence, queued=False), self.now
                    )
                )

    @rule(n=st.integers(0, 3))
    def silence(self, n: int) -> None:
        self.do(self.core.failures.lose_all_at_worker(PEERS[n], "silence", self.now))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def ready_and_progress(self, data: st.DataObject) -> None:
        commit, lease, fence = data.draw(recent(self.leases))
        task = self.up(commit.peer, lease, fence)
        progress = Progress(lease=lease, fence=fence, seq=1, phase=Phase.RUN)
        live = self.core.reconciler.progress(commit.peer, progress, self.now)
        hedge = self.core.state.tasks[commit.task].hedge
        if hedge is not None and hedge.number == commit.attempt:
            assert live is None, "what is shown of a task is its current attempt"
        elif task is not None:
            assert live is not None
            assert (live.task, live.attempt) == (task, commit.attempt)

    @precondition(lambda self: self.leases)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(list(RunOutcome)),
        permanent=st.booleans(),
        failure=st.sampled_from([Reason.CRASHED, Reason.BROKEN_MODEL, Reason.WRONG_UNIT, Reason.TIMED_OUT]),
    )
    def result(self, data: st.DataObject, outcome: RunOutcome, permanent: bool, failure: Reason) -> None:
        """As in the conversation and the store: only a live attempt under its fence is recorded, and of two only the first."""
        commit, _, fence = data.draw(recent(self.leases))
        entry, failures = self.core.state.tasks[commit.task], self.core.failures
        attempt = entry.at(commit.peer)
        if (
            attempt is None
            or not entry.counts(attempt)
            or (attempt.number, attempt.fence) != (commit.attempt, fence)
        ):
            return
        reason = None if outcome is RunOutcome.COMPLETE else failure
        changes = {"attempt": attempt.number, "fence": fence, "worker": commit.peer}
        record = a_record(
            self.core, commit.task, outcome=outcome, reason=reason, permanent=permanent, **changes
        )
        event, why, detail = failures.judge(record)
        if entry.hedge is not None and event is not TaskEvent.SUCCEED:
            tries = entry.tries
            self.do(
                failures.end_one_of_two(entry, attempt, event, why, detail, self.now, permanent=permanent)
            )
            assert entry.live, "the other attempt goes on"
            assert entry.tries == tries, "one of two costs no try"
            return
        self.do(failures.promote_decisive_attempt(entry, attempt, self.now))
        self.write(commit.task, event)
        if event is TaskEvent.SUCCEED:
            self.recorded[commit.task] = self.recorded.get(commit.task, 0) + 1
        self.do(self.core.failures.settle(commit.task, event, why, self.now, permanent=permanent))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), how=st.sampled_from(["stopped", "expired", "preempted"]))
    def lost(self, data: st.DataObject, how: str) -> None:
        commit, lease, _ = data.draw(recent(self.leases))
        if how == "stopped":
            self.do(self.core.failures.confirm_stop(commit.peer, [lease], self.now))
        else:
            reason = Reason.EXPIRED if how == "expired" else Reason.PREEMPTED
            self.do(self.core.failures.lose_leases(commit.peer, [lease], reason, self.now))

    @rule(n=st.integers(0, 3), incarnation=st.integers(1, 3), paused=st.booleans(), data=st.data())
    def seen(self, n: int, incarnation: int, paused: bool, data: st.DataObject) -> None:
        held = self.core.renewable_on(PEERS[n])
        waiting = tuple(
            QueuedLease(lease=item.lease, position=data.draw(st.integers(1, 5)), start_s=30.0)
            for item in held
        )
        why = "paused by its owner" if paused else ""
        self.do(
            self.core.workers.update_status(
                PEERS[n],
                Renewed(incarnation=incarnation, state=WorkerState.BUSY, why=why, waiting=waiting),
                self.now,
            )
        )

    @rule(n=st.integers(0, 3), data=st.data())
    def adopted(self, n: int, data: st.DataObject) -> None:
        known = [
            LiveLease(task=c.task, attempt=c.attempt, lease=lease, fence=fence, queued=queued)
            for c, lease, fence in self.leases
            if c.peer == PEERS[n]
            for queued in (data.draw(st.booleans()),)
        ]
        stored = data.draw(st.lists(st.sampled_from(known), unique_by=lambda x: x.lease)) if known else []
        expected = frozenset(held.lease for held in self.core.held_on(PEERS[n]))
        self.do(self.core.reconciler.reconcile(PEERS[n], "c-one", 1, stored, self.now, expected=expected))

    @rule(n=st.integers(0, 1), rises=st.integers(1, 3))
    def a_worker_says_that_it_was_restarted(self, n: int, rises: int) -> None:
        """A liar claims a restart in every answer. It may lose some waiting tasks by it, but others continue and no number is raised for
        nothing.
        """
        view = self.core.state.worker(PEERS[n])
        for _ in range(rises):
            self.do(
                self.core.workers.update_status(
                    PEERS[n],
                    Renewed(incarnation=(view.incarnation or 0) + 1, state=WorkerState.BUSY),
                    self.now,
                )
            )

    @precondition(lambda self: self.leases)
    @rule(n=st.integers(0, 3), flags=st.tuples(st.booleans(), st.booleans()))
    def a_worker_owes_all_its_results(self, n: int, flags: tuple[bool, bool]) -> None:
        """After every break of the link it claims that the results are on their way, which gains it a minute for each attempt."""
        core, peer = self.core, PEERS[n]
        lines = tuple(
            LiveLease(
                task=task,
                attempt=attempt.number,
                lease=attempt.lease,
                fence=attempt.fence,
                reporting=flags[0],
                settled=flags[1] and not flags[0],
            )
            for task in core.state.worker(peer).held
            if (attempt := core.state.tasks[task].at(peer)) is not None
            if attempt.lease is not None and attempt.fence is not None and task.startswith("c-one/")
        )
        expected = frozenset(held.lease for held in core.held_on(peer))
        self.do(core.workers.close_link(peer))
        self.do(
            core.reconciler.reconcile(
                peer, "c-one", core.state.worker(peer).incarnation or 0, lines, self.now, expected=expected
            )
        )

    @rule(n=st.integers(1, 30), campaign=st.sampled_from(["c-one", "c-two"]))
    def cancel(self, n: int, campaign: str) -> None:
        self.do(self.core.cancel([f"{campaign}/{n}"], self.now))

    @rule(seconds=st.sampled_from([0.2, 1.5, 1.5, 3.0, 3.0, 3.0, 40.0, 700.0]))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        orders = decided(self.core, self.core.tick(self.now), self.now)
        self.do(orders)
        for explain in of(orders, Explain):
            self.do(self.core.timeouts.end_unplaceable(explain.group, Reason.NOTHING_FITS, "none", self.now))

    @invariant()
    def holds_together(self) -> None:
        check(self.core.state)
        for task, entry in self.core.state.tasks.items():
            if task in self.final:
                assert entry.state is self.final[task], "a terminal state is final"
            elif entry.over:
                self.final[task] = entry.state
            if entry.over or entry.state in (TaskState.PENDING, TaskState.COMMITTING):
                assert self.disk[task] is entry.state, "the store says the same"
            assert (entry.state is TaskState.SUCCEEDED) == (self.recorded.get(task, 0) == 1)
            assert self.recorded.get(task, 0) <= 1


class BusyWalk(Walk):
    """The walk with workers that are all busy with other schedulers' tasks: the tasks wait, most of them at two workers."""

    @initialize(
        seed=st.integers(0, 1000), tasks=st.integers(1, 4), others=st.integers(0, 1), replicas=st.booleans()
    )
    def begin(self, seed: int, tasks: int, others: int, replicas: bool) -> None:
        super().begin(seed, tasks, others, replicas)
        for n in range(4):
            self.quoted(n, 0, 1, 1)
        for seconds in (0.2, 1.5, 1.5):
            for commit in tuple(self.commits):
                if commit.attempt not in self.answered.get(commit.task, ()):
                    self.number += 1
                    lease, fence = f"l{self.number}", Fence(incarnation=1, number=self.number)
                    self.leases.append((commit, lease, fence))
                    grant = RecordGrant(commit.task, commit.attempt, lease, fence, True, 2, 60.0)
                    self.do(self.core.reconciler.grant(commit.peer, grant, self.now))
            self.now += seconds
            self.do(self.core.tick(self.now))


Walk.TestCase.settings = settings(max_examples=50, stateful_step_count=40)
TestWalk = Walk.TestCase
BusyWalk.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestBusyWalk = BusyWalk.TestCase
