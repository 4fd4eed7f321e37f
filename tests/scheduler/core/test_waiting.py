"""What tasks wait for, and for how long: models that are not here, devices that have not tried them, a device that another run occupies."""

from __future__ import annotations

import math
import random

import pytest

from protocol.formats.phase import Phase
from protocol.messages.work import Conflict, Progress
from protocol.values.attempt import TaskState
from protocol.values.lease import Fence
from protocol.values.task import Measure
from protocol.words import Reason, WorkerState
from scheduler.core.commands import CancelOn, CommitTo, Discover, ProbeWorker, RecordGrant, RecordWaitReason
from scheduler.core.entries import TaskEntry, TaskLimits
from scheduler.core.retry import BACKOFF_CAP_S, ELSEWHERE_S, retry_delay_s
from scheduler.core.scheduler import SchedulerCore
from tests.scheduler.core_invariants import check
from tests.scheduler.core_parts import PEERS, Story, a_task, advert, decided, of, quote


def test_a_task_whose_model_is_here_is_not_kept_waiting_by_those_whose_model_is_not() -> None:
    core, now = SchedulerCore(random.Random(1)), 100.0
    entries = [TaskEntry(a_task(n)) for n in range(1, 102)]
    here, missing = entries[50], [entry for entry in entries if entry is not entries[50]]
    for entry in missing:
        entry.model_missing = True
    need = of(decided(core, core.add(TaskLimits("c-one"), entries, now), now), Discover)[0].group
    decided(core, core.workers.add_adverts(need, [advert(0)], now), now)
    (commit,) = of(decided(core, core.workers.add_quote(PEERS[0], quote(), now), now), CommitTo)
    assert commit.task == here.id
    fence = Fence(incarnation=1, number=1)
    decided(
        core,
        core.reconciler.grant(
            commit.peer, RecordGrant(commit.task, commit.attempt, "l1", fence, queued=False), now
        ),
        now,
    )
    decided(core, core.failures.lose_leases(commit.peer, ["l1"], Reason.LOST, now), now)
    again: list[CommitTo] = []
    for _ in range(60):
        now += 1.0
        again += of(decided(core, core.tick(now), now), CommitTo)
        check(core.state)
    assert [order.task for order in again] == [here.id]
    missing[7].model_missing = False
    core.add_models([missing[7]])
    orders = core.decide(now)
    check(core.state)
    assert [order.task for order in of(orders, CommitTo)] == [missing[7].id]


def test_a_task_goes_back_to_where_it_failed_when_the_others_do_not_take_it() -> None:
    story = Story(1, 2, backoff_s=5.0)
    first = story.commits[0]
    story.begin(first)
    failed_at, observed = story.now, len(story.commits)
    story.fail(first.task, Reason.CRASHED)
    back: float | None = None
    while back is None and story.now < failed_at + 300:
        new, observed = story.commits[observed:], len(story.commits)
        for commit in new:
            if commit.peer == first.peer:
                back = story.now - failed_at
            else:
                busy = Conflict(reason=Reason.BUSY, quote=quote(free=0, queue=5))
                story.tell(story.core.reconciler.conflict(commit.task, commit.attempt, busy, story.now))
        for order in of(story.after(0.5), ProbeWorker):
            story.tell(story.core.workers.add_quote(order.peer, quote(), story.now))
    assert back is not None
    assert 5.0 + ELSEWHERE_S <= back <= 5.0 + ELSEWHERE_S + 5.0


def test_a_run_that_waits_for_a_device_another_run_has_is_given_its_time_from_the_end_of_that_wait() -> None:
    story = Story(1, 1)
    story.grant(story.commits[0])
    entry = story.core.state.tasks["c-one/1"]
    fence, limit_s, began = Fence(incarnation=1, number=1), entry.max_run_s(entry.current), story.now

    def cancels_at(phase: Phase, seq: int) -> list[CancelOn]:
        note = Progress(lease="l1", fence=fence, seq=seq, phase=phase)
        assert story.core.reconciler.progress(PEERS[0], note, story.now) is not None
        return of(story.tell(story.core.tick(story.now)), CancelOn)

    for n in range(50):
        assert not cancels_at(Phase.QUEUED, n)
        story.now += (limit_s + entry.task.timeouts.queue_s) / 52
    assert story.now - began > limit_s
    assert not cancels_at(Phase.LOAD, 60)
    story.now += limit_s - 1.0
    assert not cancels_at(Phase.QUEUED, 61), "it may not wait twice"
    story.now += 2.0
    assert cancels_at(Phase.QUEUED, 62)
    assert entry.state is TaskState.RUNNING


def test_a_spread_run_may_wait_for_its_device_after_gaps_as_long_in_all_as_a_task_may_queue() -> None:
    spread = a_task(1).model_copy(update={"measure": Measure(runs=120, loads=6, over_s=3600.0)})
    story = Story([spread], 1)
    story.grant(story.commits[0])
    entry = story.core.state.tasks["c-one/1"]
    limit_s, queue_s = entry.max_run_s(entry.current), spread.timeouts.queue_s
    began, numbers = story.now, iter(range(100))

    def cancels_at(phase: Phase) -> list[CancelOn]:
        note = Progress(lease="l1", fence=Fence(incarnation=1, number=1), seq=next(numbers), phase=phase)
        assert story.core.reconciler.progress(PEERS[0], note, story.now) is not None
        return of(story.tell(story.core.tick(story.now)), CancelOn)

    assert not cancels_at(Phase.RUN)
    assert entry.max_run_s(entry.current) == limit_s, "a run that hangs is given no more time"
    waited = 0.0
    for wait_s in (queue_s / 4, queue_s / 2):
        assert not cancels_at(Phase.QUEUED)
        story.now += wait_s
        waited += wait_s
        assert not cancels_at(Phase.QUEUED)
        assert not cancels_at(Phase.LOAD)
        assert entry.max_run_s(entry.current) == limit_s + waited
    assert not cancels_at(Phase.QUEUED)
    story.now = began + limit_s + queue_s - 1.0
    assert not cancels_at(Phase.QUEUED)
    story.now += 2.0
    assert cancels_at(Phase.QUEUED), "not for ever"


def test_a_task_that_failed_before_a_restart_waits_its_backoff_anew_before_it_goes_back() -> None:
    core, now = SchedulerCore(random.Random(1)), 100.0
    entry = TaskEntry(a_task(1), tries=2, tried=frozenset({PEERS[0]}), last=2)
    orders = decided(core, core.add(TaskLimits("c-one", backoff_s=5.0), [entry], now), now)
    decided(core, core.workers.add_adverts(of(orders, Discover)[0].group, [advert(0)], now), now)
    assert not of(decided(core, core.workers.add_quote(PEERS[0], quote(), now), now), CommitTo)
    assert not of(decided(core, core.tick(now + 9.0), now + 9.0), CommitTo)
    assert of(decided(core, core.tick(now + 10.5), now + 10.5), CommitTo)


@pytest.mark.parametrize(
    ("backoff_s", "tries", "left_s", "delay_s"),
    [
        (5.0, 1, math.inf, 5.0),
        (5.0, 3, math.inf, 20.0),
        (5.0, 990, math.inf, BACKOFF_CAP_S),
        (900.0, 4, math.inf, 900.0),
        (5.0, 6, 100.0, 50.0),
        (5.0, 6, -1.0, 0.0),
    ],
)
def test_a_backoff_doubles_up_to_a_cap_and_leaves_half_of_the_time_for_the_retry(
    backoff_s: float, tries: int, left_s: float, delay_s: float
) -> None:
    assert retry_delay_s(backoff_s, tries, left_s) == delay_s


def test_a_retry_whose_backoff_is_longer_than_the_queue_limit_is_made() -> None:
    task = a_task(1)
    brief = task.timeouts.model_copy(update={"queue_s": 10.0})
    story = Story([task.model_copy(update={"timeouts": brief})], backoff_s=60.0)
    story.grant(story.commits[0])
    story.fail("c-one/1", Reason.CRASHED)
    story.commits.clear()
    for _ in range(61):
        story.after(1.0)
    assert [commit.task for commit in story.commits] == ["c-one/1"]


def test_why_a_task_waits_is_withdrawn_once_a_device_serves_again() -> None:
    story = Story(5)
    first = story.commits[0]
    story.begin(first)
    paused = quote(state=WorkerState.DRAINING).model_copy(update={"why": "paused by its owner"})
    orders = story.tell(story.core.workers.add_quote(PEERS[0], paused, story.now)) + story.after(1.0)
    assert [note.words for note in of(orders, RecordWaitReason)] == ["w0: paused by its owner"]
    orders = story.tell(story.core.workers.add_quote(PEERS[0], quote(), story.now)) + story.after(1.0)
    assert [note.words for note in of(orders, RecordWaitReason)] == [""]


@pytest.mark.parametrize("how", ["paused", "gone"])
def test_a_device_that_was_away_for_days_is_given_work_as_soon_as_it_is_back(how: str) -> None:
    """After that many failed searches and calls, the power of two no longer fits into a float."""
    story = Story(5, workers=0)
    workers = story.core.workers
    paused = quote(state=WorkerState.DRAINING).model_copy(update={"why": "paused by its owner"})
    for _ in range(1100):
        if how == "gone" and PEERS[0] in story.core.state.workers:
            story.tell(workers.mark_unreachable(PEERS[0], "no way", story.now))
        elif PEERS[0] in story.core.state.workers:
            story.tell(workers.add_quote(PEERS[0], paused, story.now))
        if story.core.state.groups[story.group].searching:
            story.tell(workers.add_adverts(story.group, [advert(0)], story.now))
        story.after(30.0)
    assert not story.commits
    story.tell(workers.add_quote(PEERS[0], quote(), story.now))
    story.after(30.0)
    assert story.commits


def test_a_task_for_one_device_searches_for_it_only_while_it_is_not_there() -> None:
    """A campaign over a thousand devices would otherwise search a thousand times every few seconds."""
    story = Story(5, clauses=(f"device == {advert(0).device}",))
    first = story.commits[0]
    story.begin(first)
    for _ in range(100):
        assert not of(story.after(1.0), Discover)
    story.tell(story.core.workers.mark_unreachable(first.peer, "no way", story.now))
    assert of(story.after(10.0), Discover)


def test_a_task_whose_device_was_found_before_it_came_does_not_search() -> None:
    core = SchedulerCore(random.Random(1))
    core.workers.add_adverts("", [advert(0), advert(1)], 0.0)
    entry = TaskEntry(a_task(1, f"device == {advert(1).device}"))
    orders = decided(core, core.add(TaskLimits("c-one"), [entry], 0.0), 0.0)
    check(core.state)
    assert not of(orders, Discover)
    assert [order.peer for order in of(orders, ProbeWorker)] == [PEERS[1]]


def test_why_tasks_wait_is_written_once_however_often_the_index_is_searched() -> None:
    story = Story(5, workers=0)
    notes: list[RecordWaitReason] = []
    for _ in range(60):
        if story.core.state.groups[story.group].searching:
            notes += of(
                story.tell(story.core.workers.add_adverts(story.group, [], story.now)), RecordWaitReason
            )
        notes += of(story.after(1.0), RecordWaitReason)
    assert [note.words for note in notes] == ["no device that fits is up yet"]


def test_a_reason_that_holds_no_more_is_replaced_also_while_the_index_is_searched() -> None:
    story = Story(5, clauses=("ram >= 1 GiB",))
    group = story.core.state.groups[story.group]
    group.searching, group.searches = True, group.searches + 1
    changed = advert(0).model_copy(update={"ram": 1, "seq": 9})
    story.tell(story.core.workers.add_adverts("", [changed], story.now))
    assert not group.fits
    assert group.searching
    assert group.wait_reason == "no device that fits is up yet"


def test_a_device_that_is_known_and_never_serves_is_searched_for_now_and_then() -> None:
    core, now, searches = SchedulerCore(random.Random(1)), 0.0, 0
    core.workers.add_adverts("", [advert(0)], now)
    entry = TaskEntry(a_task(1, f"device == {advert(0).device}"))
    decided(core, core.add(TaskLimits("c-one"), [entry], now), now)
    for _ in range(1000):
        now += 1.0
        orders = decided(core, core.tick(now), now)
        for order in of(orders, Discover):
            searches += 1
            core.workers.add_adverts(order.group, [], now)
    assert searches == 3


def test_a_worker_whose_advert_names_another_device_gets_only_what_is_for_that() -> None:
    story = Story([a_task(1, "device == somewhere else")], workers=1)
    assert not story.commits
    there = advert(0).model_copy(update={"device": "somewhere else", "seq": 9})
    story.tell(story.core.workers.add_adverts("", [there], story.now))
    assert [commit.peer for commit in story.commits] == [PEERS[0]]
    back = advert(0).model_copy(update={"seq": 10})
    story.tell(story.core.workers.add_adverts("", [back], story.now))
    assert not any(group.fits for group in story.core.state.ranked)
