"""Devices with many slots, tasks that only waited there, and owed stops."""

from __future__ import annotations

from protocol.formats.phase import Phase
from protocol.messages.work import Progress
from protocol.values.attempt import TaskEvent, TaskState
from protocol.values.lease import Fence
from scheduler.core.allocator import MAX_HANDED_OUT
from scheduler.core.commands import CancelOn, CommitTo, EndAttempt, EndPending, EndStop
from scheduler.core.entries import TaskLimits
from scheduler.core.failures import PORTION
from scheduler.core.ranking import LEAST_AHEAD, MOST_AHEAD, depth
from scheduler.core.scheduler import FORGET_S
from scheduler.core.stops import OWED_S
from tests.scheduler.core_parts import PEERS, Story, a_live_task, advert, of, quote

ONE = "c-one/1"


def test_a_device_of_64_slots_is_given_64_tasks_at_once() -> None:
    story = Story(tasks=100, workers=0)
    story.tell(story.core.workers.add_adverts(story.group, [advert(0)], story.now))
    orders = story.tell(story.core.workers.add_quote(PEERS[0], quote(free=64), story.now))
    assert len(of(orders, CommitTo)) == 64 - 1 + LEAST_AHEAD


def test_they_are_given_out_in_portions_and_each_decision_goes_on_where_the_last_one_stopped() -> None:
    story = Story(tasks=100, workers=0)
    story.tell(story.core.workers.add_adverts(story.group, [advert(0)], story.now))
    orders = story.core.workers.add_quote(PEERS[0], quote(free=64), story.now)
    portions = [len(of(orders + story.core.decide(story.now), CommitTo))]
    while story.core.state.unfinished:
        portions.append(len(of(story.core.decide(story.now), CommitTo)))
    assert max(portions) == MAX_HANDED_OUT
    assert sum(portions) == 64 - 1 + LEAST_AHEAD
    assert of(story.core.decide(story.now), CommitTo) == []


def test_slots_count_where_some_are_taken_and_are_forgotten_with_the_process() -> None:
    story = Story(tasks=20, workers=1)
    view = story.core.state.worker(PEERS[0])
    story.grant(story.commits[0])
    story.tell(story.core.workers.add_quote(PEERS[0], quote(free=7), story.now))
    assert view.slots == 8
    story.tell(story.core.workers.add_quote(PEERS[0], quote(free=2, incarnation=2), story.now))
    assert view.slots == 2


def test_what_waits_behind_the_slots_is_bounded() -> None:
    assert depth(60.0, 64) == 64 + 2  # one task ends each second
    assert depth(0.001, 64) == 2 * 64
    assert depth(0.001, 2) == 2 + MOST_AHEAD - 1


def test_a_task_that_only_waited_for_its_device_loses_no_try_when_the_device_dies() -> None:
    story = Story(tasks=2, workers=0)
    story.tell(story.core.workers.add_adverts(story.group, [advert(0)], story.now))
    story.tell(story.core.workers.add_quote(PEERS[0], quote(free=2), story.now))
    ran, waited = story.commits
    story.begin(ran)
    story.grant(waited)
    fence = Fence(incarnation=1, number=story.numbers)
    report = Progress(lease=f"l{story.numbers}", fence=fence, seq=1, phase=Phase.QUEUED)
    assert story.core.reconciler.progress(PEERS[0], report, story.now) is not None
    story.tell(story.core.failures.lose_all_at_worker(PEERS[0], "gone", story.now, gone=True))
    tries = {task: entry.tries for task, entry in story.core.state.tasks.items()}
    assert tries == {ran.task: 1, waited.task: 0}


def test_very_many_tasks_end_in_portions_and_nobody_gets_those_that_wait_to_end() -> None:
    story = Story(tasks=PORTION + 5, workers=0)
    first = story.tell(story.core.cancel_campaigns(["c-one"], story.now))
    assert [len(end.tasks) for end in of(first, EndPending)] == [PORTION]
    story.tell(story.core.workers.add_adverts(story.group, [advert(0)], story.now))
    assert [len(end.tasks) for end in of(story.orders, EndPending)] == [5]
    assert not story.commits
    assert {entry.state for entry in story.core.state.tasks.values()} == {TaskState.CANCELLED}


def unconfirmed(story: Story) -> EndAttempt:
    """A run is to be stopped, and its worker falls silent."""
    story.begin(story.commits[0])
    assert of(story.tell(story.core.cancel([ONE], story.now)), CancelOn)
    story.now += 14
    (end,) = of(story.tell(story.core.failures.lose_all_at_worker(PEERS[0], "silent", story.now)), EndAttempt)
    return end


def test_a_stop_without_an_answer_is_owed_with_since_when_and_until_when() -> None:
    story = Story()
    end = unconfirmed(story)
    assert end.event is TaskEvent.CANCEL
    assert end.stop is not None
    assert (end.stop.since_s, end.stop.left_s) == (14, OWED_S - 14)
    story.after(FORGET_S + 1)
    story.after(1)
    assert not story.core.idle  # the worker has to be told again
    (told,) = story.core.state.stops.tell(PEERS[0])
    assert [held.lease for held in told.held] == ["l1"]
    orders = story.tell(story.core.failures.confirm_stop(PEERS[0], ["l1"], story.now))
    assert of(orders, EndStop) == [EndStop(ONE, 1, confirmed=True)]
    assert story.core.idle


def test_an_owed_stop_is_told_under_the_epoch_of_its_campaign_so_that_an_adopters_run_goes_on() -> None:
    story = Story(epoch=7)
    unconfirmed(story)
    (told,) = story.core.state.stops.tell(PEERS[0])
    assert [held.epoch for held in told.held] == [7]


def test_an_owed_stop_is_over_when_the_lease_must_be() -> None:
    story = Story()
    unconfirmed(story)
    assert not of(story.after(OWED_S - 15), EndStop)
    assert of(story.after(2), EndStop) == [EndStop(ONE, 1, confirmed=False)]
    assert not of(story.tell(story.core.failures.confirm_stop(PEERS[0], ["l1"], story.now)), EndStop)


def test_nothing_is_owed_by_a_process_that_is_gone_or_for_a_queued_lease() -> None:
    for gone, queued in ((True, False), (False, True)):
        story = Story()
        if queued:
            story.grant(story.commits[0], queued=True)
        else:
            story.begin(story.commits[0])
        story.tell(story.core.cancel([ONE], story.now))
        (end,) = of(
            story.tell(story.core.failures.lose_all_at_worker(PEERS[0], "", story.now, gone=gone)), EndAttempt
        )
        assert end.stop is None


def test_a_queued_lease_of_an_earlier_life_may_have_been_started_by_it() -> None:
    story = Story([], workers=0, looks=False)
    entry = a_live_task(1, TaskState.QUEUED, PEERS[0], "l1", Fence(incarnation=1, number=1))
    story.tell(story.core.add(TaskLimits("c-one"), [entry], story.now))
    story.tell(story.core.cancel([entry.id], story.now))
    (end,) = of(story.tell(story.core.failures.lose_all_at_worker(PEERS[0], "", story.now)), EndAttempt)
    assert end.stop is not None


def test_a_queued_lease_that_is_skipped_is_over_and_a_run_that_asks_twice_is_not() -> None:
    for begun in (False, True):
        story = Story()
        story.grant(story.commits[0], queued=True)
        ready = (PEERS[0], "l1", Fence(incarnation=1, number=1))
        if begun:
            assert story.core.reconciler.start(*ready, story.now) == (ONE, [])
        story.tell(story.core.cancel([ONE], story.now))
        task, orders = story.core.reconciler.start(*ready, story.now)
        assert task is None
        assert [end.event for end in of(story.tell(orders), EndAttempt)] == [TaskEvent.CANCEL][begun:]


def test_a_commit_that_was_never_answered_may_run_too() -> None:
    story = Story()
    story.tell(story.core.cancel([ONE], story.now))
    orders = story.core.reconciler.fail_commit(ONE, 1, "no answer", story.now, sent=True)
    (end,) = of(story.tell(orders), EndAttempt)
    assert end.stop is not None
    assert story.core.state.stops.tell(PEERS[0]) == []  # nobody knows its lease
