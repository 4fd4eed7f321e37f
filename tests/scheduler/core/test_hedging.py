"""Two queued leases for one task: the first that is ready is started, the other is released, and neither loss costs a try."""

from __future__ import annotations

import random
from typing import Any

import pytest

from protocol.formats.phase import Phase
from protocol.messages.work import Conflict, Denied, LiveLease, Progress, QueuedLease, Renewed
from protocol.values.attempt import AttemptStatus, TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.words import Reason, WorkerState
from scheduler.core.commands import (
    CancelOn,
    CommitTo,
    EndAttempt,
    EndHedge,
    RecordGrant,
    ReleaseOn,
    SwitchAttempt,
)
from scheduler.core.entries import Attempt, TaskEntry, TaskLimits
from scheduler.core.scheduler import SchedulerCore
from tests.scheduler.core_invariants import check
from tests.scheduler.core_parts import PEERS, Story, a_live_task, advert, decided, of, quote

A, B = PEERS[:2]
ONE = "c-one/1"


def both(*, asked_only: bool = False) -> tuple[Story, str, str]:
    """A task that waits at two workers that are busy with others' work: at the first as `l1`, at the second as `l2`."""
    story = Story(workers=0)
    story.tell(story.core.workers.add_adverts(story.group, [advert(0), advert(1)], story.now))
    for peer in (A, B):
        story.tell(story.core.workers.add_quote(peer, quote(free=0), story.now))
    story.grant(story.commits[0], queued=True, position=1, start_s=40.0)
    first = story.commits[0].peer
    second = B if first == A else A
    (commit,) = of(story.after(1.5), CommitTo)
    assert (commit.peer, commit.hedge, commit.attempt) == (second, True, 2)
    if not asked_only:
        story.grant(commit, queued=True, position=2, start_s=50.0)
    return story, first, second


def fence(number: int) -> Fence:
    return Fence(incarnation=1, number=number)


def entry_of(story: Story) -> TaskEntry:
    return story.core.state.tasks[ONE]


def test_a_task_that_waits_long_at_a_busy_worker_is_hedged_at_another() -> None:
    story, first, second = both()
    assert [attempt.worker for attempt in entry_of(story).attempts()] == [first, second]
    assert entry_of(story).state is TaskState.QUEUED
    assert not of(story.after(10.0), CommitTo), "two are enough"
    assert [len(story.core.renewable_on(peer)) for peer in (A, B)] == [1, 1], "both are renewed"


def test_a_task_that_is_to_start_at_once_is_not_hedged() -> None:
    story = Story(workers=0)
    story.tell(story.core.workers.add_adverts(story.group, [advert(0), advert(1)], story.now))
    for peer in (A, B):
        story.tell(story.core.workers.add_quote(peer, quote(free=0), story.now))
    story.grant(story.commits[0], queued=True, position=1, start_s=2.0)
    assert not of(story.after(1.5), CommitTo)


def test_while_anything_waits_for_a_worker_none_gets_two() -> None:
    story = Story(tasks=5, workers=0)
    story.tell(story.core.workers.add_adverts(story.group, [advert(0), advert(1)], story.now))
    for peer in (A, B):
        story.tell(story.core.workers.add_quote(peer, quote(free=0, queue=1), story.now))
    for commit in tuple(story.commits):
        story.grant(commit, queued=True, position=3, start_s=60.0)
    assert len(story.commits) == 4
    assert not of(story.after(5.0), CommitTo)


def test_the_first_lease_that_is_ready_is_started_and_the_other_is_released_and_skipped() -> None:
    story, first, second = both()
    task, orders = story.core.reconciler.start(second, "l2", fence(2), story.now)
    story.tell(orders)
    assert task == ONE
    assert of(orders, SwitchAttempt) == [SwitchAttempt(ONE, 2, 1, None, "another worker was first")]
    assert [(order.peer, order.held[0].lease) for order in of(orders, ReleaseOn)] == [(first, "l1")]
    assert story.core.reconciler.start(first, "l1", fence(1), story.now) == (None, [])
    entry = entry_of(story)
    assert (entry.state, entry.attempt, entry.worker) == (TaskState.LEASED, 2, second)


def test_the_other_lease_is_over_on_disk_before_the_first_one_is_started() -> None:
    story, first, second = both()
    task, orders = story.core.reconciler.start(first, "l1", fence(1), story.now)
    story.tell(orders)
    assert task == ONE
    assert [(order.attempt, order.reason) for order in of(orders, EndHedge)] == [(2, None)]
    assert [order.peer for order in of(orders, ReleaseOn)] == [second]
    assert story.core.reconciler.start(second, "l2", fence(2), story.now) == (None, [])


def test_a_place_at_once_at_the_second_worker_ends_the_wait_at_the_first() -> None:
    story, first, second = both(asked_only=True)
    assert story.core.hedging.rival_asked(first, "l1"), "the second worker may have given it a place already"
    orders = story.grant(story.commits[-1])
    assert isinstance(orders[0], SwitchAttempt)
    assert of(orders, RecordGrant)[0].attempt == 2
    assert [(order.peer, order.held[0].lease) for order in of(orders, ReleaseOn)] == [(first, "l1")]
    assert (entry_of(story).state, entry_of(story).worker) == (TaskState.LEASED, second)
    assert not story.core.hedging.rival_asked(second, "l2")


@pytest.mark.parametrize("which", ["first", "second"])
@pytest.mark.parametrize("how", ["lost", "silence", "restart", "gone"])
def test_a_queued_lease_lost_while_the_other_lives_is_no_try_and_no_way_back(which: str, how: str) -> None:
    story, first, second = both()
    core, peer, lease = story.core, *((first, "l1") if which == "first" else (second, "l2"))
    if how == "lost":
        orders = story.tell(core.failures.lose_leases(peer, [lease], Reason.EXPIRED, story.now))
    elif how == "silence":
        orders = story.tell(core.failures.lose_all_at_worker(peer, "gone", story.now))
    elif how == "restart":
        orders = story.tell(
            core.workers.update_status(peer, Renewed(incarnation=2, state=WorkerState.BUSY), story.now)
        )
    else:
        expected = frozenset({lease})
        orders = story.tell(core.reconciler.reconcile(peer, "c-one", 1, (), story.now, expected=expected))
    entry = entry_of(story)
    assert (entry.state, entry.tries, entry.tried) == (TaskState.QUEUED, 0, set())
    assert entry.worker == (second if which == "first" else first)
    assert not of(orders, EndAttempt)
    assert len(of(orders, SwitchAttempt)) == (which == "first")
    assert len(of(orders, EndHedge)) == (which == "second")


def test_a_queued_lease_lost_while_the_other_worker_is_still_asked_leaves_the_task_with_that_one() -> None:
    story, first, second = both(asked_only=True)
    story.tell(story.core.failures.lose_leases(first, ["l1"], Reason.EXPIRED, story.now))
    assert (entry_of(story).state, entry_of(story).worker) == (TaskState.COMMITTING, second)
    story.grant(story.commits[-1], queued=True)
    assert entry_of(story).state is TaskState.QUEUED


@pytest.mark.parametrize("how", ["conflict", "denied", "silence", "unsent"])
def test_a_second_worker_that_does_not_take_it_changes_nothing_at_the_first(how: str) -> None:
    story, first, _ = both(asked_only=True)
    core = story.core
    if how == "conflict":
        late = Conflict(reason=Reason.BUSY, quote=quote(free=0, queue=4))
        orders = decided(core, core.reconciler.conflict(ONE, 2, late, story.now), story.now)
    elif how == "denied":
        orders = decided(
            core, core.reconciler.deny(ONE, 2, Denied(reason=Reason.BUSY, retry_s=5.0), story.now), story.now
        )
    else:
        orders = decided(
            core, core.reconciler.fail_commit(ONE, 2, "silence", story.now, sent=how == "silence"), story.now
        )
    story.tell(orders)
    assert len(of(orders, EndHedge)) == 1
    assert (entry_of(story).state, entry_of(story).worker, entry_of(story).tries) == (
        TaskState.QUEUED,
        first,
        0,
    )
    assert of(story.grant(story.commits[-1]), CancelOn), "what it grants later is stopped"


def test_a_cancel_ends_both_queued_leases() -> None:
    story, first, second = both()
    orders = story.tell(story.core.cancel([ONE], story.now))
    assert [order.peer for order in of(orders, ReleaseOn)] == [second]
    assert [order.peer for order in of(orders, CancelOn)] == [first]
    (end,) = of(story.tell(story.core.failures.confirm_stop(first, ["l1"], story.now)), EndAttempt)
    assert end.event is TaskEvent.CANCEL
    assert story.core.reconciler.start(second, "l2", fence(2), story.now) == (None, [])


def test_an_idle_worker_takes_over_what_waits_at_a_busy_one_and_the_queued_lease_is_kept_until_then() -> None:
    story = Story(tasks=2)
    story.grant(story.commits[0])
    story.grant(story.commits[1], queued=True)
    story.tell(story.core.workers.add_adverts(story.group, [advert(0), advert(1)], story.now))
    orders = story.tell(story.core.workers.add_quote(B, quote(), story.now))
    (commit,) = of(orders, CommitTo)
    assert (commit.peer, commit.hedge) == (B, True)
    assert not of(orders, ReleaseOn)
    assert [order.peer for order in of(story.grant(commit), ReleaseOn)] == [A]


def test_after_a_lost_race_the_task_is_asked_for_at_another_idle_worker_at_once() -> None:
    story = Story(workers=3)
    orders = story.grant(story.commits[0], queued=True, position=1, start_s=30.0)
    (commit,) = of(orders, CommitTo)
    assert commit.hedge
    assert commit.peer != story.commits[0].peer
    orders = story.grant(commit, queued=True, position=1, start_s=30.0)
    (third,) = of(orders, CommitTo)
    assert third.peer not in (commit.peer, story.commits[0].peer)
    assert [order.peer for order in of(orders, ReleaseOn)] == [commit.peer], "two leases at most"


def test_a_worker_that_reports_one_of_two_queued_leases_as_running_is_not_believed() -> None:
    story, first, _ = both()
    progress = Progress(lease="l1", fence=fence(1), seq=1, phase=Phase.RUN)
    assert story.core.reconciler.progress(first, progress, story.now) is None
    assert entry_of(story).state is TaskState.QUEUED


def restarted(**hedge: Any) -> tuple[SchedulerCore, TaskEntry]:
    """A core after a restart, with a task whose two queued leases are on disk."""
    second = Attempt(2, B, status=AttemptStatus.RESTORED, **hedge)
    entry = a_live_task(1, TaskState.QUEUED, A, "l1", fence(1), hedge=second)
    core = SchedulerCore(random.Random(1))
    decided(core, core.add(TaskLimits("c-one"), [entry], 0.0), 0.0)
    check(core.state)
    return core, entry


def reported(attempt: int, lease: str, *, queued: bool) -> LiveLease:
    return LiveLease(task=ONE, attempt=attempt, lease=lease, fence=fence(attempt), queued=queued)


def test_after_a_restart_both_queued_leases_go_on() -> None:
    core, entry = restarted(lease="l2", fence=fence(2))
    for peer, attempt, lease in ((A, 1, "l1"), (B, 2, "l2")):
        reports = (reported(attempt, lease, queued=True),)
        decided(
            core, core.reconciler.reconcile(peer, "c-one", 1, reports, 1.0, expected=frozenset({lease})), 1.0
        )
        check(core.state)
    assert [attempt.status for attempt in entry.attempts()] == [AttemptStatus.QUEUED] * 2


def test_after_a_restart_a_second_worker_that_runs_it_already_has_it() -> None:
    core, entry = restarted()
    assert core.hedging.rival_asked(A, "l1"), "nobody knows yet whether it was asked"
    orders = decided(
        core,
        core.reconciler.reconcile(
            B, "c-one", 1, (reported(2, "l2", queued=False),), 1.0, expected=frozenset()
        ),
        1.0,
    )
    check(core.state)
    assert (entry.state, entry.worker, entry.attempt) == (TaskState.LEASED, B, 2)
    assert [order.peer for order in of(orders, ReleaseOn)] == [A]


@pytest.mark.parametrize(("peer", "attempt", "ended"), [(A, 1, {2}), (B, 2, set())])
def test_after_a_restart_the_store_learns_at_once_that_a_queued_lease_runs(
    peer: str, attempt: int, ended: set[int]
) -> None:
    """The previous process was killed before it stored the start. Without the start, a hedge would look like the other lease of a queued
    task.
    """
    core, _ = restarted(lease="l2", fence=fence(2))
    lease = f"l{attempt}"
    orders = decided(
        core,
        core.reconciler.reconcile(
            peer, "c-one", 1, (reported(attempt, lease, queued=False),), 1.0, expected=frozenset({lease})
        ),
        1.0,
    )
    check(core.state)
    assert of(orders, RecordGrant) == [RecordGrant(ONE, attempt, lease, fence(attempt), queued=False)]
    assert {order.attempt for order in of(orders, EndHedge)} == ended


@pytest.mark.parametrize("status", [AttemptStatus.QUEUED, AttemptStatus.RESTORED])
def test_after_a_restart_the_store_learns_that_a_hedge_beside_a_run_runs(status: AttemptStatus) -> None:
    second = Attempt(2, B, "l2", fence(2), status, beside=True)
    entry = a_live_task(1, TaskState.LEASED, A, "l1", fence(1), hedge=second)
    core = SchedulerCore(random.Random(1))
    decided(core, core.add(TaskLimits("c-one"), [entry], 0.0), 0.0)
    reports = (reported(2, "l2", queued=False),)
    commands = core.reconciler.reconcile(B, "c-one", 1, reports, 1.0, expected=frozenset({"l2"}))
    orders = decided(core, commands, 1.0)
    check(core.state)
    assert of(orders, RecordGrant) == [RecordGrant(ONE, 2, "l2", fence(2), queued=False, beside=True)]


def test_after_a_restart_a_second_worker_that_was_never_asked_is_left_out() -> None:
    core, entry = restarted()
    orders = decided(core, core.reconciler.reconcile(B, "c-one", 1, (), 1.0, expected=frozenset()), 1.0)
    check(core.state)
    assert of(orders, EndHedge)
    assert (entry.state, entry.worker, entry.hedge) == (TaskState.QUEUED, A, None)


def test_the_position_of_a_hedged_task_is_that_of_the_lease_that_starts_first() -> None:
    story, _, second = both()
    assert story.core.state.positions[ONE].position == 1
    waiting = (QueuedLease(lease="l2", position=1, start_s=3.0),)
    story.tell(
        story.core.workers.update_status(
            second, Renewed(incarnation=1, state=WorkerState.BUSY, waiting=waiting), story.now
        )
    )
    place = story.core.state.positions[ONE]
    assert (place.attempt, place.position, place.start_s) == (1, 1, 3.0)


def test_the_result_of_a_second_queued_lease_that_a_backup_knew_only_as_queued_counts() -> None:
    story = Story([], workers=0, looks=False)
    entry = a_live_task(1, TaskState.QUEUED, PEERS[0], "l1", Fence(incarnation=1, number=1))
    entry.hedge = Attempt(2, PEERS[1], "l2", Fence(incarnation=1, number=2), AttemptStatus.RESTORED)
    entry.last = 2
    story.tell(story.core.add(TaskLimits("c-one"), [entry], story.now))
    assert entry.counts(entry.hedge)
    orders = story.tell(story.core.failures.promote_decisive_attempt(entry, entry.hedge, story.now))
    assert [(order.attempt, order.before) for order in of(orders, SwitchAttempt)] == [(2, 1)]
    story.tell(story.core.failures.settle(entry.id, TaskEvent.SUCCEED, None, story.now))
    assert entry.state is TaskState.SUCCEEDED
