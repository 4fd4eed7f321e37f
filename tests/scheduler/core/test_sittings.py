"""Sittings in the core: when the next one begins, where, and how it ends without ever beginning."""

from __future__ import annotations

import random

import pytest

from protocol.values.attempt import TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.values.sitting import Sitting
from protocol.values.task import Task
from protocol.words import Reason
from scheduler.core.commands import Command, EndPending, Explain, RecordWaitReason
from scheduler.core.entries import Attempt, TaskEntry, TaskLimits
from scheduler.core.scheduler import SchedulerCore
from tests.scheduler.core_invariants import check
from tests.scheduler.core_parts import PEERS, Story, a_live_task, a_record, a_task, advert, decided, of, quote

HOUR = 3600.0


def a_sitting(n: int, number: int, *, step: int = 1) -> Task:
    sitting = Sitting(number=number, of=3, step=step, apart_s=HOUR)
    return a_task(n).model_copy(update={"sitting": sitting})


def three() -> list[Task]:
    return [a_sitting(n, n) for n in (1, 2, 3)]


def words(commands: list[Command]) -> dict[str, tuple[str, float | None]]:
    return {task: (each.words, each.until) for each in of(commands, RecordWaitReason) for task in each.tasks}


def run_next(story: Story) -> str:
    """Grant the latest commit and end it with a result; returns its worker."""
    commit = story.commits[-1]
    story.grant(commit)
    story.succeed(commit.task)
    return commit.peer


def test_the_next_sitting_begins_an_hour_after_the_one_before_has_ended() -> None:
    story = Story(three(), workers=1)
    assert [commit.task for commit in story.commits] == ["c-one/1"]
    story.after(2 * HOUR)
    assert len(story.commits) == 1, "the first one has not ended"
    run_next(story)
    story.after(HOUR - 1)
    assert len(story.commits) == 1
    story.after(1.0)
    assert [commit.task for commit in story.commits] == ["c-one/1", "c-one/2"]
    story.after(HOUR)
    run_next(story)
    story.after(HOUR)
    assert [commit.task for commit in story.commits] == ["c-one/1", "c-one/2", "c-one/3"]
    run_next(story)
    assert story.core.idle


def test_it_begins_on_the_device_of_the_first_one_alone() -> None:
    story = Story(three(), workers=3)
    where = run_next(story)
    story.after(HOUR)
    assert [commit.peer for commit in story.commits] == [where, where]
    story.grant(story.commits[-1])
    event, _ = story.fail("c-one/2", Reason.CRASHED)
    assert event is TaskEvent.RETRY
    for _ in range(40):
        story.after(1.0)
    assert [commit.peer for commit in story.commits] == [where] * 3


def test_it_says_what_it_waits_for() -> None:
    story = Story(three(), workers=0)
    core = SchedulerCore(random.Random(1))
    commands = decided(core, core.add(TaskLimits("c-one"), [TaskEntry(task) for task in three()], 0.0), 0.0)
    assert words(commands) == {
        "c-one/2": ("waits for its 2nd sitting, after the 1st", None),
        "c-one/3": ("waits for its 3rd sitting, after the 2nd", None),
    }
    story = Story(three(), workers=1)
    story.grant(story.commits[-1])
    assert words(story.succeed("c-one/1"))["c-one/2"] == ("waits for its 2nd sitting", story.now + HOUR)
    assert words(story.after(HOUR))["c-one/2"] == ("", None)


def test_later_sittings_ask_with_the_lowest_priority() -> None:
    story = Story([*three(), a_task(4)], workers=1, priority=70)
    state = story.core.state
    assert [state.priority_of(state.tasks[f"c-one/{n}"].task) for n in (1, 2, 4)] == [70, 0, 70]
    story.grant(story.commits[0])
    story.succeed("c-one/1")
    story.after(HOUR)
    assert [bool(group.pin) for group in state.ranked] == [False, True]


def test_if_its_device_is_gone_it_waits_as_long_as_any_task_and_says_for_whom() -> None:
    story = Story(three(), workers=2)
    run_next(story)
    first = story.commits[0].peer
    story.after(HOUR - 1)
    story.tell(story.core.workers.mark_unreachable(first, "no answer", story.now))
    story.after(2.0)
    for _ in range(300):
        story.after(60.0)
        assert not of(story.orders, Explain)
        assert len(story.commits) == 1
    entry = story.core.state.tasks["c-one/2"]
    assert entry.state is TaskState.PENDING
    ends: list[EndPending] = []
    for _ in range(600):
        ends += of(story.after(60.0), EndPending)
    assert entry.state is TaskState.FAILED
    assert "w0" in ends[0].detail or "w1" in ends[0].detail
    assert "timeouts.queue" in ends[0].detail


def test_the_limit_of_the_queue_does_not_run_while_it_is_gated() -> None:
    tasks = [
        task.model_copy(update={"timeouts": task.timeouts.model_copy(update={"queue_s": 60.0})})
        for task in three()
    ]
    story = Story(tasks, workers=1)
    run_next(story)
    for _ in range(59):
        story.after(60.0)
    assert story.core.state.tasks["c-one/2"].state is TaskState.PENDING
    story.after(60.0)
    assert story.commits[-1].task == "c-one/2"


def test_a_cancel_ends_what_is_gated_at_once() -> None:
    story = Story(three(), workers=1)
    run_next(story)
    commands = story.tell(story.core.cancel_campaigns(["c-one"], story.now))
    assert {task for each in of(commands, EndPending) for task in each.tasks} == {"c-one/2", "c-one/3"}
    assert story.core.idle
    story.after(2 * HOUR)
    assert len(story.commits) == 1


def test_of_a_first_one_that_failed_there_is_nothing_to_repeat() -> None:
    story = Story(three(), workers=1, attempts=1)
    story.grant(story.commits[-1])
    event, commands = story.fail("c-one/1", Reason.CRASHED)
    assert event is TaskEvent.FAIL
    ends = {task: each for each in of(commands, EndPending) for task in each.tasks}
    while not story.core.idle:
        ends |= {task: each for each in of(story.after(0.2), EndPending) for task in each.tasks}
    assert (ends["c-one/2"].event, ends["c-one/2"].detail) == (TaskEvent.FAIL, "its 1st sitting failed")
    assert ends["c-one/3"].detail == "its 2nd sitting failed"


def test_a_later_one_that_failed_is_followed_by_the_next() -> None:
    story = Story(three(), workers=1, attempts=1)
    where = run_next(story)
    story.after(HOUR)
    story.grant(story.commits[-1])
    story.fail("c-one/2", Reason.CRASHED)
    story.after(HOUR)
    assert (story.commits[-1].task, story.commits[-1].peer) == ("c-one/3", where)


def ended(task: Task, worker: str, over_s: float) -> TaskEntry:
    return TaskEntry(task, TaskState.SUCCEEDED, Attempt(1, worker), over_s=over_s)


@pytest.mark.parametrize(("over_s", "left_s"), [(1000.0, 2600.0), (0.0, HOUR), (-500.0, HOUR), (9999.0, 0.0)])
def test_after_a_restart_the_wait_goes_on_and_a_clock_that_was_set_back_makes_it_no_shorter(
    over_s: float, left_s: float
) -> None:
    core, now = SchedulerCore(random.Random(1)), 50.0
    entries = [ended(a_sitting(1, 1), PEERS[1], over_s), *(TaskEntry(task) for task in three()[1:])]
    decided(core, core.add(TaskLimits("c-one"), entries[::-1], now), now)
    decided(core, core.workers.add_adverts("", [advert(0), advert(1)], now), now)
    for n in (0, 1):
        decided(core, core.workers.add_quote(PEERS[n], quote(), now), now)
    if left_s:
        decided(core, core.tick(now + left_s - 1), now + left_s - 1)
        assert core.state.tasks["c-one/2"].waits_for_sitting
    decided(core, core.tick(now + left_s), now + left_s)
    check(core.state)
    entry = core.state.tasks["c-one/2"]
    assert (entry.state, entry.worker) == (TaskState.COMMITTING, PEERS[1])
    assert core.state.tasks["c-one/3"].waits_for_sitting


def test_one_that_is_taken_up_while_it_is_live_and_is_lost_before_its_turn_is_gated_again() -> None:
    core, now = SchedulerCore(random.Random(1)), 50.0
    first, second, third = three()
    live = TaskEntry(second, TaskState.COMMITTING, Attempt(1, PEERS[0]))
    decided(core, core.add(TaskLimits("c-one"), [TaskEntry(first), live, TaskEntry(third)], now), now)
    decided(
        core,
        core.failures.attempt_refused(live, live.attempts()[0], TaskEvent.REFUSE, Reason.BUSY, "", now),
        now,
    )
    check(core.state)
    assert live.waits_for_sitting


def test_replicas_sit_apart_from_each_other() -> None:
    tasks = [a_sitting(n, number, step=2) for number in (1, 2, 3) for n in (2 * number - 1, 2 * number)]
    story = Story(tasks, workers=2)
    assert [commit.task for commit in story.commits] == ["c-one/1", "c-one/2"]
    story.grant(story.commits[0])
    story.grant(story.commits[1])
    story.succeed("c-one/1")
    story.after(HOUR)
    assert [commit.task for commit in story.commits[2:]] == ["c-one/3"]


def test_one_that_a_worker_turns_out_to_run_before_its_turn_is_counted_where_it_is() -> None:
    """A home that was set back to an earlier moment finds its own later sittings."""
    story = Story(three(), workers=1)
    run_next(story)
    entry = story.core.state.tasks["c-one/2"]
    group = story.core.state.groups[entry.group]
    assert entry.waits_for_sitting
    assert entry.id in group.tasks
    story.after(HOUR)
    assert entry.id not in group.tasks
    assert entry.id in story.core.state.groups[entry.group].tasks


def test_one_that_is_found_at_a_worker_before_the_first_ones_result_stays_with_that_device() -> None:
    core, now = SchedulerCore(random.Random(1)), 50.0
    tasks = three()
    running = a_live_task(1, TaskState.RUNNING, PEERS[0], "l1", Fence(incarnation=1, number=1))
    queued = a_live_task(2, TaskState.QUEUED, PEERS[0], "l2", Fence(incarnation=1, number=2))
    running.form, queued.form = tasks[0], tasks[1]
    decided(core, core.add(TaskLimits("c-one"), [running, queued, TaskEntry(tasks[2])], now), now)
    event, why, _ = core.failures.judge(a_record(core, "c-one/1"))
    decided(core, core.failures.settle("c-one/1", event, why, now), now)
    check(core.state)
    assert queued.pin == PEERS[0]
    state = core.state
    first, ended_at = state.tasks["c-one/1"], state.tasks["c-one/1"].ended_at
    assert ended_at is not None
    assert state.is_sitting_too_soon(queued, ended_at + HOUR - 1)
    assert not state.is_sitting_too_soon(queued, ended_at + HOUR)
    assert not state.is_sitting_too_soon(first, ended_at)
