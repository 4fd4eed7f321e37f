"""The core by itself: policy, one stimulus at a time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Final

import pytest

from protocol.messages.work import Conflict, Denied, LiveLease, Renewed
from protocol.values.attempt import TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.values.task import Model, Task, Timeouts
from protocol.words import Reason, WorkerState
from scheduler.core.commands import (
    CancelOn,
    Command,
    CommitTo,
    Discover,
    EndAttempt,
    EndCampaign,
    EndPending,
    Explain,
    ProbeWorker,
    RecordEvent,
    RecordGrant,
    RecordWaitReason,
    SetAside,
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


def test_a_crash_goes_to_a_worker_that_has_not_tried_it_without_delay() -> None:
    story = Story(workers=2)
    first = story.commits[0]
    story.grant(first)
    event, orders = story.fail("c-one/1", Reason.CRASHED)
    assert event is TaskEvent.RETRY
    (second,) = of(orders, CommitTo)
    assert second.peer != first.peer


def test_on_the_only_worker_a_second_attempt_waits_for_the_backoff() -> None:
    story = Story(backoff_s=5.0)
    story.grant(story.commits[0])
    _, orders = story.fail("c-one/1", Reason.CRASHED)
    assert not of(orders, CommitTo)
    assert not of(story.after(4.0), CommitTo)
    assert of(story.after(1.1), CommitTo)


def test_attempts_are_bounded_and_the_last_reason_stays() -> None:
    story = Story(attempts=2, workers=3)
    story.grant(story.commits[-1])
    assert story.fail("c-one/1", Reason.CRASHED)[0] is TaskEvent.RETRY
    story.grant(story.commits[-1])
    event, orders = story.fail("c-one/1", Reason.CRASHED)
    assert event is TaskEvent.FAIL
    assert of(orders, EndCampaign)


@pytest.mark.parametrize("reason", [Reason.TIMED_OUT, Reason.OUT_OF_MEMORY])
def test_a_limit_is_the_models_fault_after_two_workers_or_on_the_only_one(reason: Reason) -> None:
    alone = Story(workers=1)
    alone.grant(alone.commits[-1])
    assert alone.fail("c-one/1", reason)[0] is TaskEvent.FAIL
    several = Story(workers=3, attempts=5)
    several.grant(several.commits[-1])
    assert several.fail("c-one/1", reason)[0] is TaskEvent.RETRY
    several.grant(several.commits[-1])
    assert several.fail("c-one/1", reason)[0] is TaskEvent.FAIL


def test_a_model_that_a_device_calls_broken_has_failed_when_a_second_one_says_so_or_there_is_none() -> None:
    alone = Story(workers=1)
    alone.grant(alone.commits[-1])
    assert alone.fail("c-one/1", Reason.BROKEN_MODEL, permanent=True)[0] is TaskEvent.FAIL
    story = Story(tasks=3, workers=3, attempts=9)
    first, other, third = (story.commits[n] for n in (0, 2, 1))
    assert first.peer != other.peer
    for commit, event in ((first, TaskEvent.RETRY), (other, TaskEvent.FAIL), (third, TaskEvent.FAIL)):
        story.grant(commit)
        assert story.fail(commit.task, Reason.BROKEN_MODEL, permanent=True)[0] is event


def crash_at(story: Story, peer: str, times: int) -> list[Command]:
    """So many tasks crash at this worker, one after the other."""
    orders: list[Command] = []
    for _ in range(times):
        commit = next(each for each in story.commits if each.peer == peer)
        story.commits.remove(commit)
        story.grant(commit)
        story.now += 0.1
        orders += story.fail(commit.task, Reason.CRASHED)[1]
    return orders


def models(number: int) -> list[Task]:
    """A task for each of so many models."""
    tasks = [a_task(n) for n in range(1, number + 1)]
    return [
        task.model_copy(update={"model": task.model.model_copy(update={"sha256": f"{n:064x}"})})
        for n, task in enumerate(tasks)
    ]


def test_a_worker_on_which_one_model_after_another_fails_fast_is_set_aside_for_a_while() -> None:
    story = Story(models(40), workers=2, attempts=50)
    orders = crash_at(story, PEERS[0], 3)
    assert [aside.seconds for aside in of(orders, SetAside)] == [30.0]
    view = story.core.state.worker(PEERS[0])
    assert not view.serving(story.now)
    assert "quick failures" in view.why
    assert view.serving(story.now + 31)


def test_a_model_that_fails_fast_and_often_is_set_aside_on_that_worker_which_goes_on_with_others() -> None:
    story = Story(tasks=40, workers=2, attempts=50, backoff_s=0.0)
    orders = crash_at(story, PEERS[0], 3)
    assert not of(orders, SetAside)
    (aside,) = [each for each in of(orders, RecordEvent) if each.name == "model.set-aside"]
    assert (aside.fields["seconds"], aside.fields["model"]) == (30.0, "m.onnx")
    view = story.core.state.worker(PEERS[0])
    assert view.serving(story.now)
    story.commits.clear()
    story.after(1.0)
    assert PEERS[0] not in {commit.peer for commit in story.commits}
    (other,) = models(1)
    other = other.model_copy(update={"campaign": "c-two", "task": "c-two/1"})
    story.tell(story.core.add(TaskLimits("c-two", priority=90), [TaskEntry(other)], story.now))
    (commit,) = [commit for commit in story.commits if commit.task == "c-two/1"]
    assert commit.peer == PEERS[0]
    story.grant(commit)
    story.succeed("c-two/1")
    story.commits.clear()
    story.after(31.0)
    assert PEERS[0] in {commit.peer for commit in story.commits}


@pytest.mark.parametrize("permanent", [False, True])
def test_the_only_worker_is_never_set_aside_for_models_that_fail(permanent: bool) -> None:
    story = Story(models(12), attempts=1)
    for _ in range(12):
        commit = story.commits.pop(0)
        story.grant(commit)
        event, orders = story.fail(commit.task, Reason.CRASHED, permanent=permanent)
        assert event is TaskEvent.FAIL
        assert not of(orders, SetAside)
    assert not story.core.state.worker(PEERS[0]).failures


def test_tasks_that_failed_come_after_those_that_nobody_has_tried() -> None:
    """Eight models that crash and twenty that run, on one device that has two places: all twenty end before the first retry."""
    story = Story(models(28), backoff_s=0.0)
    order: list[str] = []
    while story.commits:
        commit = story.commits.pop(0)
        order.append(commit.task)
        story.grant(commit)
        if int(commit.task.partition("/")[2]) <= 8:
            story.fail(commit.task, Reason.CRASHED)
        else:
            story.succeed(commit.task)
        story.after(0.5)
    assert len(set(order[:28])) == 28
    states = [entry.state for entry in story.core.state.tasks.values()]
    assert states == [TaskState.FAILED] * 8 + [TaskState.SUCCEEDED] * 20


def test_a_worker_whose_results_are_no_results_is_set_aside() -> None:
    story = Story(tasks=40)
    asides: list[SetAside] = []
    for _ in range(3):
        story.grant(story.commits.pop(0))
        lease = f"l{story.numbers}"
        orders = story.tell(
            story.core.failures.lose_leases(PEERS[0], [lease], Reason.BAD_REQUEST, story.now, "junk")
        )
        asides += of(orders, SetAside)
    assert len(asides) == 1


def test_a_lost_run_counts_as_a_try_and_a_lost_queued_lease_does_not() -> None:
    story = Story(tasks=2)
    story.grant(story.commits[0])
    story.grant(story.commits[1], queued=True)
    orders = story.tell(story.core.failures.lose_all(PEERS[0], "gone", story.now))
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


def test_a_conflict_or_a_full_queue_is_no_try() -> None:
    story = Story()
    commit = story.commits[0]
    conflict = Conflict(reason=Reason.BUSY, quote=quote(free=0, queue=5))
    story.tell(story.core.reconciler.conflict(commit.task, commit.attempt, conflict, story.now))
    assert story.core.state.tasks[commit.task].tries == 0
    later = story.after(1.0)
    (again,) = of(later, CommitTo)
    assert again.attempt == 2
    denied = Denied(reason=Reason.BUSY, retry_s=3.0)
    story.tell(story.core.reconciler.deny(again.task, again.attempt, denied, story.now))
    assert not of(story.after(2.0), ProbeWorker)
    assert of(story.after(1.5), ProbeWorker)


def test_a_program_that_a_worker_runs_for_those_it_knows_alone_costs_the_other_models_nothing() -> None:
    core, now = SchedulerCore(random.Random(1)), 100.0
    program, plain = a_task(1), a_task(2)
    program = program.model_copy(update={"model": program.model.model_copy(update={"name": "net.pt2"})})
    orders = decided(
        core, core.add(TaskLimits(campaign="c-one"), [TaskEntry(program), TaskEntry(plain)], now), now
    )
    for look in of(orders, Discover):
        decided(core, core.workers.add_adverts(look.group, [advert(0)], now), now)
    first, second = of(decided(core, core.workers.add_quote(PEERS[0], quote(), now), now), CommitTo)
    assert (first.task, second.task) == ("c-one/1", "c-one/2")
    denied = Denied(
        reason=Reason.NOT_ALLOWED, detail="net.pt2: it carries a program", unmet=("a model without one",)
    )
    assert not of(decided(core, core.reconciler.deny(first.task, first.attempt, denied, now), now), CommitTo)
    fence = Fence(incarnation=1, number=1)
    decided(
        core,
        core.reconciler.grant(
            PEERS[0], RecordGrant(second.task, second.attempt, "l1", fence, queued=False), now
        ),
        now,
    )
    entry, need = core.state.tasks["c-one/1"], core.state.groups[core.state.tasks["c-one/1"].group]
    assert (entry.tries, need.fits, list(need.declined)) == (0, set(), [PEERS[0]])
    assert core.state.worker(PEERS[0]).refused is None
    assert core.state.groups[core.state.tasks["c-one/2"].group].fits == {PEERS[0]}


@pytest.mark.parametrize("how", ["denied", "conflict"])
def test_a_worker_that_says_no_again_and_again_is_left_alone_for_longer_and_longer(how: str) -> None:
    story = Story()
    requests: list[float] = []
    for _ in range(300):
        while story.commits:
            commit = story.commits.pop()
            requests.append(story.now)
            if how == "denied":
                busy = Denied(reason=Reason.BUSY, retry_s=0.01)
                story.tell(story.core.reconciler.deny(commit.task, commit.attempt, busy, story.now))
            else:
                late = Conflict(reason=Reason.STALE_QUOTE, quote=quote())
                story.tell(story.core.reconciler.conflict(commit.task, commit.attempt, late, story.now))
        for probe in of(story.after(0.5), ProbeWorker):
            story.tell(story.core.workers.add_quote(probe.peer, quote(), story.now))
    waits = [after - before for before, after in itertools.pairwise(requests)]
    assert len(waits) < 12
    assert waits == sorted(waits)
    assert max(waits) <= 31
    story.after(31)
    for probe in of(story.orders, ProbeWorker):
        story.tell(story.core.workers.add_quote(probe.peer, quote(), story.now))
    story.grant(story.commits[-1])
    assert story.core.state.worker(PEERS[0]).backoff_s == 0


def test_a_worker_that_is_out_of_order_does_not_keep_a_task_from_the_others() -> None:
    story = Story(workers=2, backoff_s=5.0)
    first = story.commits[0]
    other = next(peer for peer in PEERS[:2] if peer != first.peer)
    story.tell(story.core.workers.add_quote(other, quote(state=WorkerState.FAULTY), story.now))
    story.grant(first)
    assert story.fail("c-one/1", Reason.CRASHED)[0] is TaskEvent.RETRY
    (again,) = of(story.after(6.0), CommitTo)
    assert again.peer == first.peer


AWAY: Final[dict[str, Callable[[Story], list[Command]]]] = {
    "paused": lambda story: story.core.workers.add_quote(
        PEERS[0],
        quote(state=WorkerState.DRAINING).model_copy(update={"why": "paused by its owner"}),
        story.now,
    ),
    "faulty": lambda story: story.core.workers.add_quote(
        PEERS[0], quote(state=WorkerState.FAULTY), story.now
    ),
    "gone": lambda story: story.core.workers.mark_unreachable(PEERS[0], "no answer", story.now),
    "quiet hours": lambda story: story.core.workers.refuse(
        PEERS[0], Denied(reason=Reason.NOT_SERVING, detail="quiet hours until 07:00"), story.now
    ),
}


@pytest.mark.parametrize("away", AWAY)
@pytest.mark.parametrize("refusing", [False, True])
def test_a_device_that_is_away_is_waited_for_as_long_as_the_queue_limit_says(
    away: str, refusing: bool
) -> None:
    """Beside it, where `refusing`, is one that does not serve this scheduler: that is not final either."""
    story = Story(workers=0, wait_s=10.0)
    story.tell(story.core.workers.add_adverts(story.group, [advert(0), advert(1)][: 1 + refusing], story.now))
    if refusing:
        denied = Denied(reason=Reason.NOT_ALLOWED, detail="not yours")
        story.tell(story.core.workers.refuse(PEERS[1], denied, story.now))
    hours = int(Timeouts().queue_s // 3600)
    orders: list[Command] = []
    for _ in range(60 * hours - 1):
        story.tell(AWAY[away](story))
        orders += story.after(60.0)
    assert not of(orders, Explain)
    notes = [each.words for each in of(orders, RecordWaitReason)]
    assert any(away in words for words in notes), notes
    story.tell(AWAY[away](story))
    (ended,) = of(story.after(121.0), EndPending)
    assert ended.reason is Reason.TIMED_OUT
    assert "no device took it within 12 h (timeouts.queue)" in ended.detail
    assert away in ended.detail


def test_tasks_that_every_device_refuses_are_given_up_after_the_wait() -> None:
    story = Story(workers=0, wait_s=10.0)
    story.tell(story.core.workers.add_adverts(story.group, [advert(0)], story.now))
    denied = Denied(reason=Reason.NOT_ALLOWED, detail="not yours")
    story.tell(story.core.workers.refuse(PEERS[0], denied, story.now))
    assert of(story.after(11.0), Explain)


def test_a_device_that_was_paused_is_called_paused_and_a_faulty_one_faulty() -> None:
    for state, says, why in (
        (WorkerState.DRAINING, "paused by its owner", "paused by its owner"),
        (WorkerState.DRAINING, "", "it is draining"),
        (WorkerState.FAULTY, "three runs crashed", "it is faulty: three runs crashed"),
    ):
        story = Story(workers=0)
        story.tell(story.core.workers.add_adverts(story.group, [advert(0)], story.now))
        result = quote(state=state).model_copy(update={"why": says})
        story.tell(story.core.workers.add_quote(PEERS[0], result, story.now))
        assert story.core.state.worker(PEERS[0]).why == why


def test_nothing_that_fits_is_explained_after_the_wait_and_fails_the_tasks() -> None:
    story = Story(tasks=2, workers=0, wait_s=10.0)
    story.tell(story.core.workers.add_adverts(story.group, [], story.now))
    assert not of(story.after(9.0), Explain)
    story.tell(story.core.workers.add_adverts(story.group, [], story.now))
    (explain,) = of(story.after(1.0), Explain)
    assert not of(story.after(1.0), Explain)
    orders = story.tell(
        story.core.timeouts.end_hopeless(explain.group, Reason.NOTHING_FITS, "none", story.now)
    )
    assert of(orders, EndPending)[0].tasks == ("c-one/1", "c-one/2")
    assert of(orders, EndCampaign)


def test_a_worker_that_turns_up_while_we_explain_gets_the_tasks() -> None:
    story = Story(workers=0, wait_s=1.0)
    story.tell(story.core.workers.add_adverts(story.group, [], story.now))
    (explain,) = of(story.after(1.5), Explain)
    story.tell(story.core.workers.add_adverts(story.group, [advert(0)], story.now))
    orders = story.tell(
        story.core.timeouts.end_hopeless(explain.group, Reason.NOTHING_FITS, "none", story.now)
    )
    assert not of(orders, EndPending)
    assert of(story.tell(story.core.workers.add_quote(PEERS[0], quote(), story.now)), CommitTo)


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
        core, core.timeouts.end_hopeless(story.group, Reason.NOTHING_FITS, "none", story.now), story.now
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
    story.tell(story.core.failures.lose_all(PEERS[0], "silence", story.now))
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
