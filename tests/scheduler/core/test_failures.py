"""Failed tasks are tried elsewhere, within limits; workers and models that fail again and again are set aside."""

from __future__ import annotations

import pytest

from protocol.values.attempt import TaskEvent, TaskState
from protocol.values.task import Task
from protocol.words import Reason
from scheduler.core.commands import (
    Command,
    CommitTo,
    EndCampaign,
    RecordEvent,
    SetAside,
)
from scheduler.core.entries import TaskEntry, TaskLimits
from tests.scheduler.core_parts import (
    PEERS,
    Story,
    a_task,
    of,
)


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
    """Let `times` tasks crash at this worker, one after the other."""
    orders: list[Command] = []
    for _ in range(times):
        commit = next(each for each in story.commits if each.peer == peer)
        story.commits.remove(commit)
        story.grant(commit)
        story.now += 0.1
        orders += story.fail(commit.task, Reason.CRASHED)[1]
    return orders


def models(number: int) -> list[Task]:
    """A task for each of `number` models."""
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
    """Eight models that crash and twenty that run, on one device with two slots: all twenty end before the first retry."""
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
