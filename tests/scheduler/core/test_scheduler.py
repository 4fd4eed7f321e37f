"""The core alone: its policy, one stimulus at a time."""

from __future__ import annotations

import random

import pytest

from protocol.messages.work import Denied, LiveLease, Renewed
from protocol.values.attempt import TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.values.task import Model
from protocol.words import Reason, WorkerState
from scheduler.core.commands import (
    CancelOn,
    CommitTo,
    Discover,
    EndAttempt,
    EndCampaign,
    EndPending,
    ProbeWorker,
)
from scheduler.core.entries import TaskEntry, TaskLimits
from scheduler.core.scheduler import SchedulerCore
from tests.scheduler.core_invariants import check
from tests.scheduler.core_parts import (
    PEERS,
    SHA,
    Story,
    a_live_task,
    a_record,
    a_task,
    advert,
    decided,
    of,
    quote,
)


def test_a_worker_is_found_probed_and_asked() -> None:
    story = Story(workers=0)
    result = story.tell(story.core.workers.add_adverts(story.group, [advert(0)], story.now))
    assert of(result, ProbeWorker) == [ProbeWorker(PEERS[0])]
    (commit,) = of(story.tell(story.core.workers.add_quote(PEERS[0], quote(), story.now)), CommitTo)
    assert (commit.peer, commit.task, commit.attempt, commit.key) == (
        PEERS[0],
        "c-one/1",
        1,
        "c-one/1/1",
    )


def test_idle_workers_get_a_task_each_before_any_gets_a_second() -> None:
    story = Story(tasks=3, workers=0)
    story.tell(story.core.workers.add_adverts(story.group, [advert(n) for n in range(3)], story.now))
    for n in range(3):
        story.tell(story.core.workers.add_quote(PEERS[n], quote(), story.now))
    story.grant(story.commits[0])
    held = [len(story.core.state.worker(peer).held) for peer in PEERS[:3]]
    assert max(held) <= 2
    assert sum(held) == 3


def test_a_large_model_waits_for_the_answer_of_the_device_that_has_it_and_for_nobody_else() -> None:
    large = a_task(1).model_copy(update={"model": Model(name="m.onnx", sha256=SHA, size=10**9)})
    for says in ("free", "busy", "gone"):
        core, now = SchedulerCore(random.Random(1)), 100.0
        need = of(decided(core, core.add(TaskLimits("c-one"), [TaskEntry(large)], now), now), Discover)[
            0
        ].group
        warm = advert(1).model_copy(update={"models": (SHA,)})
        decided(core, core.workers.add_adverts(need, [advert(0), warm], now), now)
        assert of(decided(core, core.workers.add_quote(PEERS[0], quote(), now), now), CommitTo) == [], (
            "the other one has it"
        )
        if says == "gone":
            orders = decided(core, core.workers.mark_unreachable(PEERS[1], "no answer", now + 1), now + 1)
        else:
            free = says == "free"
            orders = decided(
                core,
                core.workers.add_quote(PEERS[1], quote(free=int(free), queue=0 if free else 3), now + 1),
                now + 1,
            )
        orders += decided(core, core.tick(now + 1.2), now + 1.2)
        (commit,) = of(orders, CommitTo)
        assert commit.peer == PEERS[1 if says == "free" else 0]


def test_two_queued_leases_are_kept_at_a_worker_and_more_when_its_tasks_are_short() -> None:
    story = Story(tasks=30)
    assert len(story.commits) == 2
    for commit in tuple(story.commits):
        story.grant(commit)
    story.now += 0.05
    story.succeed("c-one/1")
    assert len(story.core.state.worker(PEERS[0]).held) == 8


def test_a_result_that_waited_for_us_while_we_were_down_does_not_make_its_worker_look_quick() -> None:
    core, now = SchedulerCore(random.Random(1)), 100.0
    fence = Fence(incarnation=1, number=1)
    held = a_live_task(1, TaskState.RUNNING, PEERS[0], "l1", fence)
    decided(
        core, core.add(TaskLimits("c-one"), [held, *(TaskEntry(a_task(n)) for n in range(2, 30))], now), now
    )
    decided(core, core.workers.add_adverts(held.group, [advert(0)], now), now)
    there = LiveLease(task="c-one/1", attempt=1, lease="l1", fence=fence, reporting=True)
    decided(
        core, core.reconciler.reconcile(PEERS[0], "c-one", 1, [there], now, expected=frozenset({"l1"})), now
    )
    decided(core, core.workers.add_quote(PEERS[0], quote(), now), now)
    event, why, _ = core.failures.judge(a_record(core, "c-one/1"))
    decided(core, core.failures.settle("c-one/1", event, why, now + 0.05), now + 0.05)
    check(core.state)
    assert len(core.state.worker(PEERS[0]).held) == 2


def test_a_run_that_a_copy_of_this_scheduler_had_begin_anew_is_cancelled_and_is_not_ours() -> None:
    core, now = SchedulerCore(random.Random(1)), 100.0
    ours = Fence(incarnation=1, number=6)
    held = a_live_task(1, TaskState.RUNNING, PEERS[0], "l-1.6", ours)
    decided(core, core.add(TaskLimits("c-one"), [held], now), now)
    theirs = Fence(incarnation=2, number=1)
    there = LiveLease(task="c-one/1", attempt=1, lease="l-2.1", fence=theirs)
    orders = decided(
        core,
        core.reconciler.reconcile(PEERS[0], "c-one", 2, [there], now, expected=frozenset({"l-1.6"})),
        now,
    )
    (cancel,) = of(orders, CancelOn)
    assert [(one.lease, one.fence) for one in cancel.held] == [("l-2.1", theirs)]
    assert of(orders, EndAttempt)[0].reason is Reason.LOST
    assert held.at(PEERS[0]) is None


def test_of_two_runs_of_one_attempt_the_one_that_is_known_goes_on() -> None:
    core, now = SchedulerCore(random.Random(1)), 100.0
    ours = Fence(incarnation=1, number=3)
    held = a_live_task(1, TaskState.RUNNING, PEERS[0], "l-1.3", ours)
    decided(core, core.add(TaskLimits("c-one"), [held], now), now)
    later = Fence(incarnation=1, number=6)
    there = [
        LiveLease(task="c-one/1", attempt=1, lease="l-1.3", fence=ours, reporting=True),
        LiveLease(task="c-one/1", attempt=1, lease="l-1.6", fence=later, settled=True),
    ]
    args = (PEERS[0], "c-one", 1, there, now)
    orders = decided(core, core.reconciler.reconcile(*args, expected=frozenset({"l-1.3"})), now)
    assert not of(orders, EndAttempt)
    attempt = held.at(PEERS[0])
    assert attempt is not None
    assert attempt.due is not None, "its result is awaited"


def test_a_lost_run_counts_as_a_try_and_a_lost_queued_lease_does_not() -> None:
    story = Story(tasks=2)
    story.grant(story.commits[0])
    story.grant(story.commits[1], queued=True)
    orders = story.tell(story.core.failures.lose_all_at_worker(PEERS[0], "gone", story.now))
    assert [order.event for order in of(orders, EndAttempt)] == [TaskEvent.LOSE, TaskEvent.REFUSE]
    assert [story.core.state.tasks[f"c-one/{n}"].tries for n in (1, 2)] == [1, 0]


def test_a_new_incarnation_voids_what_the_old_one_gave() -> None:
    story = Story(tasks=2)
    for commit in tuple(story.commits):
        story.grant(commit)
    orders = story.tell(
        story.core.workers.update_status(
            PEERS[0], Renewed(incarnation=2, state=WorkerState.ACTIVE), story.now
        )
    )
    assert len(of(orders, EndAttempt)) == 2


def test_a_queued_lease_is_started_at_its_turn_and_skipped_when_it_is_not_wanted() -> None:
    story = Story(tasks=2)
    for commit in story.commits:
        story.grant(commit, queued=True)
    core = story.core
    assert core.reconciler.start(PEERS[0], "l1", Fence(incarnation=1, number=1), story.now)[0] == "c-one/1"
    assert core.state.tasks["c-one/1"].state is TaskState.LEASED
    story.tell(core.cancel(["c-one/2"], story.now))
    assert core.reconciler.start(PEERS[0], "l2", Fence(incarnation=1, number=2), story.now)[0] is None
    assert core.reconciler.start(PEERS[1], "l1", Fence(incarnation=1, number=1), story.now) == (None, [])
    assert core.reconciler.start(PEERS[0], "l1", Fence(incarnation=1, number=9), story.now) == (None, [])


def test_a_grant_for_an_attempt_that_is_over_is_given_back() -> None:
    story = Story()
    commit = story.commits[0]
    story.tell(
        story.core.reconciler.fail_commit(commit.task, commit.attempt, "silence", story.now, sent=True)
    )
    story.after(10)
    story.tell(story.core.workers.add_quote(PEERS[0], quote(), story.now))
    assert story.commits[-1].attempt == 2
    orders = story.grant(commit)
    assert of(orders, CancelOn)
    assert story.core.state.tasks["c-one/1"].lease is None


def test_a_late_grant_is_given_back_to_the_worker_that_gave_it() -> None:
    story = Story(workers=2)
    first = story.commits[0]
    story.tell(story.core.reconciler.fail_commit(first.task, 1, "silence", story.now, sent=True))
    story.after(1)
    assert story.commits[-1].peer != first.peer
    assert [order.peer for order in of(story.grant(first), CancelOn)] == [first.peer]


def test_a_cancelled_task_ends_when_its_worker_confirms() -> None:
    story = Story()
    story.grant(story.commits[0])
    (stop,) = of(story.tell(story.core.cancel(["c-one/1"], story.now)), CancelOn)
    assert story.core.state.tasks["c-one/1"].state is TaskState.LEASED
    orders = story.tell(story.core.failures.confirm_stop(PEERS[0], [stop.held[0].lease], story.now))
    assert of(orders, EndAttempt)[0].event is TaskEvent.CANCEL
    assert of(orders, EndCampaign)


def test_a_task_cancelled_while_it_was_asked_for_is_stopped_on_its_grant() -> None:
    story = Story()
    assert not of(story.tell(story.core.cancel(["c-one/1"], story.now)), CancelOn)
    assert of(story.grant(story.commits[0]), CancelOn)


def test_the_campaigns_limit_ends_all_of_it() -> None:
    story = Story(tasks=4, ends_at=200.0)
    story.grant(story.commits[0])
    orders = story.after(150)
    assert len(of(orders, EndPending)[0].tasks) == 2
    assert of(orders, CancelOn)
    story.tell(story.core.failures.confirm_stop(PEERS[0], ["l1"], story.now))
    assert story.core.state.tasks["c-one/1"].state is TaskState.FAILED


def test_a_run_far_beyond_its_limits_is_stopped_and_failed() -> None:
    story = Story()
    story.begin(story.commits[0])
    limit_s = story.core.state.tasks["c-one/1"].max_run_s(None)
    assert not of(story.after(limit_s - 1), CancelOn)
    (stop,) = of(story.after(2), CancelOn)
    assert stop.reason is Reason.TIMED_OUT
    orders = story.tell(story.core.failures.confirm_stop(PEERS[0], ["l1"], story.now))
    assert of(orders, EndAttempt)[0].reason is Reason.TIMED_OUT


def test_a_campaign_that_ended_is_forgotten_after_a_while() -> None:
    story = Story(tasks=2, workers=2)
    for commit in tuple(story.commits):
        story.grant(commit)
        story.succeed(commit.task)
    assert story.core.idle
    assert not story.core.forget(story.now)
    assert not story.core.forget(story.now + 59)
    (course,) = story.core.forget(story.now + 60)
    assert course.limits.campaign == "c-one"
    core, late = story.core, story.commits[0]
    assert (core.state.tasks, core.state.groups, core.state.campaigns) == ({}, {}, {})
    assert of(story.grant(late), CancelOn), "what is granted for it now is given back"
    assert not decided(
        core, core.reconciler.deny(late.task, late.attempt, Denied(reason=Reason.BUSY), story.now), story.now
    )
    assert not decided(
        core, core.timeouts.end_unplaceable(story.group, Reason.NOTHING_FITS, "none", story.now), story.now
    )
    story.tell(core.workers.add_adverts(story.group, [advert(2)], story.now))


@pytest.mark.parametrize("why", ["overtime", "cancel"])
def test_an_unconfirmed_stop_is_repeated_and_then_given_up(why: str) -> None:
    story = Story()
    story.begin(story.commits[0])
    assert story.core.renewable_on(PEERS[0])
    if why == "cancel":
        story.tell(story.core.cancel(["c-one/1"], story.now))
    else:
        story.after(story.core.state.tasks["c-one/1"].max_run_s(None) + 1)
    assert len(of(story.orders, CancelOn)) == 1
    assert not story.core.renewable_on(PEERS[0]), "what is being stopped is not renewed"
    again = [of(story.after(1.0), CancelOn) for _ in range(29)]
    assert sum(map(len, again)) == 2
    (end,) = of(story.after(1.0), EndAttempt)
    assert end.reason is (Reason.CANCELLED if why == "cancel" else Reason.TIMED_OUT)
    assert not story.core.state.worker(PEERS[0]).held


def test_every_message_about_a_lease_has_the_epoch_of_its_campaign() -> None:
    story = Story(epoch=7)
    story.begin(story.commits[0])
    (held,) = story.core.held_on(PEERS[0])
    assert [held.epoch, *(each.epoch for each in story.core.renewable_on(PEERS[0]))] == [7, 7]
    zombie = LiveLease(task="c-one/9", attempt=1, lease="l9", fence=Fence(incarnation=1, number=9))
    live = LiveLease(task="c-one/1", attempt=1, lease=held.lease, fence=held.fence)
    expected = frozenset({held.lease})
    result = story.tell(
        story.core.reconciler.reconcile(PEERS[0], "c-one", 1, [live, zombie], story.now, expected=expected)
    )
    stops = of(result, CancelOn) + of(story.tell(story.core.cancel(["c-one/1"], story.now)), CancelOn)
    assert [(each.lease, each.epoch) for stop in stops for each in stop.held] == [("l9", 7), (held.lease, 7)]


def test_a_lease_that_is_known_from_its_worker_alone_may_be_another_schedulers() -> None:
    story = Story(tasks=2)
    first, second = story.commits
    story.begin(first)
    found = LiveLease(task=second.task, attempt=1, lease="l9", fence=Fence(incarnation=1, number=9))
    args = (second.peer, "c-one", 1, [found], story.now)
    story.tell(story.core.reconciler.reconcile(*args, expected=frozenset()))
    at = [story.core.state.tasks[commit.task].at(commit.peer) for commit in (first, second)]
    assert [attempt.found for attempt in at if attempt is not None] == [False, True]


def test_a_stop_of_overtime_is_repeated_when_the_link_is_back() -> None:
    story = Story()
    story.begin(story.commits[0])
    story.after(story.core.state.tasks["c-one/1"].max_run_s(None) + 1)
    (held,) = story.core.held_on(PEERS[0])
    live = LiveLease(task="c-one/1", attempt=1, lease=held.lease, fence=held.fence)
    expected = frozenset({held.lease})
    orders = story.tell(
        story.core.reconciler.reconcile(PEERS[0], "c-one", 1, [live], story.now, expected=expected)
    )
    assert [order.reason for order in of(orders, CancelOn)] == [Reason.TIMED_OUT]


def test_silence_loses_leases_but_not_a_commit_that_is_on_its_way() -> None:
    story = Story(tasks=2)
    story.grant(story.commits[0])
    story.tell(story.core.failures.lose_all_at_worker(PEERS[0], "silence", story.now))
    assert story.core.state.tasks["c-one/1"].tries == 1
    assert story.core.state.tasks["c-one/2"].state is TaskState.COMMITTING


def test_a_task_that_is_only_ever_queued_fails_after_the_queue_limit() -> None:
    story = Story()
    story.grant(story.commits[0], queued=True)
    limit = story.core.state.tasks["c-one/1"].task.timeouts.queue_s
    story.after(limit - 1)
    assert story.core.state.tasks["c-one/1"].outcome is None
    story.after(2)
    assert of(story.orders, CancelOn)
    (end,) = of(story.tell(story.core.failures.confirm_stop(PEERS[0], ["l1"], story.now)), EndAttempt)
    assert (end.event, end.reason) == (TaskEvent.FAIL, Reason.TIMED_OUT)


def test_a_renewal_that_says_nothing_new_asks_nothing_of_the_book() -> None:
    story = Story(tasks=30)
    assert (
        story.tell(
            story.core.workers.update_status(
                PEERS[0], Renewed(incarnation=1, state=WorkerState.ACTIVE), story.now + 60
            )
        )
        == []
    )


def test_after_a_restart_what_the_worker_holds_goes_on_and_the_rest_is_lost() -> None:
    core = SchedulerCore(random.Random(1))
    fences = [Fence(incarnation=1, number=n) for n in range(4)]
    entries = [
        a_live_task(1, TaskState.COMMITTING, PEERS[0], None, None),
        a_live_task(2, TaskState.QUEUED, PEERS[0], "l1", fences[1]),
        a_live_task(3, TaskState.RUNNING, PEERS[0], "l2", fences[2]),
        a_live_task(4, TaskState.COMMITTING, PEERS[0], None, None),
    ]
    decided(core, core.add(TaskLimits("c-one"), entries, 0.0), 0.0)
    check(core.state)
    lines = [
        LiveLease(task="c-one/1", attempt=1, lease="l0", fence=fences[0], queued=True),
        LiveLease(task="c-one/2", attempt=1, lease="l1", fence=fences[1]),
        LiveLease(task="c-one/9", attempt=1, lease="l9", fence=fences[3]),
    ]
    expected = frozenset({"l1", "l2"})
    orders = decided(
        core, core.reconciler.reconcile(PEERS[0], "c-one", 1, lines, 1.0, expected=expected), 1.0
    )
    check(core.state)
    assert [entry.state for entry in entries] == [
        TaskState.QUEUED,
        TaskState.LEASED,
        TaskState.PENDING,
        TaskState.PENDING,
    ]
    ended = {order.task: order.event for order in of(orders, EndAttempt)}
    assert ended == {"c-one/3": TaskEvent.LOSE, "c-one/4": TaskEvent.REFUSE}
    assert [held.lease for order in of(orders, CancelOn) for held in order.held] == ["l9"]


def test_a_lease_granted_while_the_question_was_under_way_is_not_taken_for_lost() -> None:
    story = Story()
    story.grant(story.commits[0])
    orders = story.tell(
        story.core.reconciler.reconcile(PEERS[0], "c-one", 1, (), story.now, expected=frozenset())
    )
    assert not of(orders, EndAttempt)
