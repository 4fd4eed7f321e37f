"""A run past its deadline is hedged at another worker: the first result counts, the other run is stopped, and neither costs a try."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from protocol.formats.phase import Phase
from protocol.messages.work import Denied, LiveLease, Progress
from protocol.values.attempt import AttemptStatus, TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.values.task import Measure, Model
from protocol.words import Reason, RunOutcome
from scheduler.core.commands import (
    CancelOn,
    Command,
    CommitTo,
    EndAttempt,
    EndHedge,
    LiveAttempt,
    RecordEvent,
    RecordGrant,
    ReleaseOn,
    SetAside,
    SwitchAttempt,
)
from scheduler.core.entries import Attempt, TaskEntry
from scheduler.core.run_times import (
    FACTOR,
    FETCH_RATE,
    FIRST_REPORT_S,
    LEAST_S,
    MOST,
    RunTimes,
    default_run_s,
    past_run_s,
)
from tests.scheduler.core_parts import PEERS, Story, a_record, a_task, advert, of, quote

ONE = "c-one/1"
KNOWN_S = 2.0
"""The duration of a run, as the tests' schedulers know it."""
ALLOWED_S = LEAST_S + FACTOR * KNOWN_S


def fence(number: int) -> Fence:
    return Fence(incarnation=1, number=number)


def entry_of(story: Story, task: str = ONE) -> TaskEntry:
    return story.core.state.tasks[task]


def knowing(tasks: int = 1, workers: int = 2) -> Story:
    """A scheduler that knows how long the model takes. Its first task is granted, and the task's worker only renews."""
    story = Story(tasks=tasks, workers=workers)
    for _ in range(3):
        story.core.state.run_times.add(a_task(1), "", KNOWN_S)
    for view in story.core.state.workers.values():
        view.warm.add(a_task(1).model.sha256)
    story.grant(story.commits[0])
    return story


def late(story: Story, seconds: float = ALLOWED_S + 0.1) -> CommitTo:
    """The hedge that follows once the deadline has passed."""
    (commit,) = of(story.after(seconds), CommitTo)
    assert commit.hedge
    return commit


def progress(story: Story, number: int, phase: Phase, done: int = 0) -> LiveAttempt | None:
    report = Progress(lease=f"l{number}", fence=fence(number), seq=1, phase=phase, done=done)
    peer = next(each.worker for each in entry_of(story).attempts() if each.lease == f"l{number}")
    return story.core.reconciler.progress(peer, report, story.now)


def result(story: Story, attempt: Attempt, outcome: RunOutcome = RunOutcome.COMPLETE) -> list[Command]:
    """Report a result, as the conversation does."""
    entry, failures = entry_of(story), story.core.failures
    reason = None if outcome is RunOutcome.COMPLETE else Reason.CRASHED
    changes: dict[str, object] = {
        "worker": attempt.worker,
        "attempt": attempt.number,
        "fence": attempt.fence,
        "reason": reason,
    }
    record = a_record(story.core, entry.id, outcome=outcome, **changes)
    event, why, detail = failures.judge(record)
    if entry.hedge is not None and event is not TaskEvent.SUCCEED:
        return story.tell(failures.end_one_of_two(entry, attempt, event, why, detail, story.now))
    first = story.tell(failures.promote_decisive_attempt(entry, attempt, story.now))
    return [*first, *story.tell(failures.settle(entry.id, event, why, story.now))]


def stopped(orders: Iterable[Command]) -> list[str]:
    return [held.lease for order in of(orders, CancelOn) for held in order.held]


def test_a_run_past_its_deadline_is_hedged_at_another_worker_and_goes_on() -> None:
    story = knowing()
    progress(story, 1, Phase.FETCH)
    assert not of(story.after(ALLOWED_S - 0.1), CommitTo)
    orders = story.after(0.2)
    (commit,) = of(orders, CommitTo)
    assert (commit.hedge, commit.attempt) == (True, 2)
    assert commit.peer != story.commits[0].peer
    assert [order.name for order in of(orders, RecordEvent)] == ["task.late"]
    orders = story.grant(commit)
    assert [grant.beside for grant in of(orders, RecordGrant)] == [True]
    assert entry_of(story).state is TaskState.RUNNING
    assert [len(story.core.renewable_on(peer)) for peer in PEERS[:2]] == [1, 1], "both are renewed"
    assert not of(story.after(1.0), CommitTo)


def test_of_a_run_and_its_hedge_the_progress_of_the_run_is_shown() -> None:
    story = knowing()
    story.grant(late(story))
    shown = [progress(story, number, Phase.RUN) for number in (1, 2)]
    assert [None if each is None else each.attempt for each in shown] == [1, None]
    assert [attempt.status for attempt in entry_of(story).attempts()] == [AttemptStatus.RUNNING] * 2


def test_a_run_that_reports_nothing_at_all_is_hedged_sooner() -> None:
    story = knowing()
    assert not of(story.after(FIRST_REPORT_S - 0.1), CommitTo)
    assert len(of(story.after(0.2), CommitTo)) == 1


@pytest.mark.parametrize(("phase", "hedged"), [(Phase.LOAD, False), (None, True)])
def test_a_run_whose_first_reports_were_lost_with_its_link_is_not_taken_for_a_silent_one(
    phase: Phase | None, hedged: bool
) -> None:
    story = knowing()
    attempt = entry_of(story).current
    assert attempt is not None
    assert attempt.lease is not None
    assert attempt.fence is not None
    story.after(3.0)
    known = LiveLease(task=ONE, attempt=attempt.number, lease=attempt.lease, fence=attempt.fence, phase=phase)
    expected = frozenset({attempt.lease})
    story.tell(
        story.core.reconciler.reconcile(attempt.worker, "c-one", 1, (known,), story.now, expected=expected)
    )
    assert bool(of(story.after(FIRST_REPORT_S - 2.9), CommitTo)) == hedged


def test_a_run_that_an_earlier_scheduler_granted_is_not_taken_for_a_silent_one() -> None:
    story = knowing()
    attempt = entry_of(story).current
    assert attempt is not None
    attempt.started_at = None
    assert not of(story.after(ALLOWED_S - 0.1), CommitTo)
    assert len(of(story.after(0.2), CommitTo)) == 1


def test_with_no_other_worker_nothing_happens() -> None:
    story = knowing(workers=1)
    assert not of(story.after(ALLOWED_S + 100.0), CommitTo)
    assert entry_of(story).state is TaskState.LEASED


def test_what_waits_for_a_worker_goes_first() -> None:
    story = knowing(tasks=6, workers=2)
    for commit in story.commits[1:]:
        story.grant(commit, queued=commit.peer == story.commits[0].peer)
    story.after(ALLOWED_S + 0.1)
    assert entry_of(story).hedge is None
    assert any(group.pending for group in story.core.state.ranked)


@pytest.mark.parametrize("which", ["first", "second"])
def test_the_first_result_counts_and_the_other_run_is_stopped_and_costs_no_try(which: str) -> None:
    story = knowing()
    story.grant(late(story))
    entry = entry_of(story)
    first, second = entry.attempts()
    winner, loser, lease = (first, second, "l2") if which == "first" else (second, first, "l1")
    orders = result(story, winner)
    assert (entry.state, entry.attempt, entry.tries) == (TaskState.SUCCEEDED, winner.number, 0)
    assert stopped(orders) == [lease]
    ends = [(order.before, order.event) for order in of(orders, SwitchAttempt)]
    ends += [(order.attempt, order.event) for order in of(orders, EndHedge)]
    assert ends == [(loser.number, TaskEvent.CANCEL)]
    assert not of(orders, EndAttempt)
    late_grant = story.core.reconciler.progress(
        loser.worker, Progress(lease=lease, fence=fence(3 - winner.number), seq=1, phase=Phase.RUN), story.now
    )
    assert late_grant is None


@pytest.mark.parametrize("which", ["first", "second"])
@pytest.mark.parametrize("how", ["failed", "lost", "silence", "restart"])
def test_one_of_two_attempts_that_ends_costs_no_try_and_the_other_goes_on(which: str, how: str) -> None:
    story = knowing()
    story.grant(late(story))
    entry, core = entry_of(story), story.core
    first, second = entry.attempts()
    gone, other = (first, second) if which == "first" else (second, first)
    assert gone.lease is not None
    if how == "failed":
        orders = result(story, gone, RunOutcome.FAILED)
    elif how == "lost":
        args = (gone.worker, [gone.lease], Reason.EXPIRED, story.now)
        orders = story.tell(core.failures.lose_leases(*args))
    elif how == "silence":
        orders = story.tell(core.failures.lose_all_at_worker(gone.worker, "gone", story.now))
    else:
        view = core.state.worker(gone.worker)
        orders = story.tell(core.workers.update_incarnation(view, 2, story.now))
    assert (entry.state, entry.tries, entry.current, entry.hedge) == (TaskState.LEASED, 0, other, None)
    assert not of(orders, EndAttempt)
    assert not stopped(orders)
    result(story, other)
    assert entry.state is TaskState.SUCCEEDED


def test_a_worker_that_refuses_the_hedge_changes_nothing() -> None:
    story = knowing()
    commit = late(story)
    no = Denied(reason=Reason.BUSY, retry_s=30.0)
    orders = story.tell(story.core.reconciler.deny(ONE, commit.attempt, no, story.now))
    assert [order.event for order in of(orders, EndHedge)] == [TaskEvent.REFUSE]
    assert (entry_of(story).state, entry_of(story).attempt) == (TaskState.LEASED, 1)


def test_a_hedge_that_is_only_queued_is_given_up_for_an_idle_worker() -> None:
    story = knowing(workers=3)
    commit = late(story)
    orders = story.grant(commit, queued=True, position=1, start_s=60.0)
    orders = orders if of(orders, CommitTo) else story.after(0.3)
    (third,) = of(orders, CommitTo)
    assert third.peer not in (commit.peer, story.commits[0].peer)
    assert [order.held[0].lease for order in of(orders, ReleaseOn)] == ["l2"]


def test_of_two_workers_past_their_deadline_the_first_one_gives_way_to_a_third() -> None:
    story = knowing(workers=3)
    story.grant(late(story))
    assert not of(story.after(FIRST_REPORT_S + 0.1), CommitTo), (
        "each hedge has twice the time of the one before"
    )
    orders = story.after(FIRST_REPORT_S)
    (third,) = of(orders, CommitTo)
    assert stopped(orders) == ["l1"]
    assert [(order.before, order.event) for order in of(orders, SwitchAttempt)] == [(1, TaskEvent.CANCEL)]
    story.grant(third)
    assert not of(story.after(1000.0), CommitTo), "nobody is left"
    assert entry_of(story).tries == 0


def test_a_hedge_whose_queued_lease_comes_up_runs_beside_the_first_attempt() -> None:
    story = knowing()
    commit = late(story)
    story.grant(commit, queued=True, position=1, start_s=1.0)
    hedge = entry_of(story).hedge
    assert hedge is not None
    assert hedge.status is AttemptStatus.QUEUED
    task, orders = story.core.reconciler.start(commit.peer, "l2", fence(2), story.now)
    story.tell(orders)
    assert task == ONE
    assert [attempt.status for attempt in entry_of(story).attempts()] == [AttemptStatus.GRANTED] * 2
    result(story, hedge)
    assert entry_of(story).state is TaskState.SUCCEEDED


def test_progress_that_advances_extends_the_deadline_and_progress_that_repeats_itself_does_not() -> None:
    story = knowing()
    progress(story, 1, Phase.FETCH)
    for step in range(4):
        story.after(ALLOWED_S / 2)
        progress(story, 1, Phase.RUN, step)
    assert entry_of(story).hedge is None
    commits = []
    for _ in range(3):
        progress(story, 1, Phase.RUN, 1)
        commits += of(story.after(ALLOWED_S / 2), CommitTo)
    assert len(commits) == 1


def test_no_progress_extends_a_deadline_for_ever() -> None:
    story = knowing()
    began = story.now
    for step in range(1000):
        progress(story, 1, Phase.RUN, step)
        if of(story.after(1.0), CommitTo):
            break
    assert story.now - began == pytest.approx(MOST * ALLOWED_S, abs=1.0)


def test_a_worker_whose_tasks_had_to_be_finished_elsewhere_again_and_again_is_set_aside() -> None:
    story = Story(tasks=2, workers=1)
    for _ in range(3):
        story.core.state.run_times.add(a_task(1), "", KNOWN_S)
    for commit in tuple(story.commits):
        story.grant(commit)
    holder = story.commits[0].peer
    story.tell(story.core.workers.add_adverts(story.group, [advert(1)], story.now))
    story.tell(story.core.workers.add_quote(PEERS[1], quote(), story.now))
    asides = []
    hedges = of(story.after(ALLOWED_S + 5.0), CommitTo)
    while hedges:
        commit = hedges.pop(0)
        story.grant(commit)
        entry = entry_of(story, commit.task)
        attempt = entry.at(commit.peer)
        assert attempt is not None
        orders = story.tell(story.core.failures.promote_decisive_attempt(entry, attempt, story.now))
        asides += of(orders, SetAside)
        orders = story.tell(story.core.failures.settle(entry.id, TaskEvent.SUCCEED, None, story.now))
        hedges += of(orders, CommitTo) or of(story.after(0.3), CommitTo)
    assert [aside.peer for aside in asides] == [holder]
    assert "past their deadline" in asides[0].why


@pytest.mark.parametrize(("silent_s", "counts"), [(FIRST_REPORT_S + 0.1, 1), (LEAST_S + 0.1, 2)])
def test_silence_that_may_be_a_broken_link_counts_once_and_longer_silence_twice(
    silent_s: float, counts: int
) -> None:
    story = knowing()
    story.grant(late(story, FIRST_REPORT_S + 0.1))
    story.after(silent_s - FIRST_REPORT_S - 0.1)
    entry = entry_of(story)
    first, second = entry.attempts()
    result(story, second)
    assert len(story.core.state.worker(first.worker).failures) == counts


def test_the_outer_limit_of_a_run_that_is_hedged_stops_it_and_fails_nothing() -> None:
    story = knowing()
    progress(story, 1, Phase.RUN)
    commit = late(story)
    limit_s = entry_of(story).max_run_s(entry_of(story).current)
    story.after(200.0)
    story.grant(commit)
    progress(story, 2, Phase.RUN)
    orders = story.after(limit_s - 200.0)
    assert stopped(orders) == ["l1"]
    assert (entry_of(story).state, entry_of(story).attempt, entry_of(story).tries) == (
        TaskState.RUNNING,
        2,
        0,
    )


def test_a_cancel_stops_both_runs() -> None:
    story = knowing()
    story.grant(late(story))
    orders = story.tell(story.core.cancel([ONE], story.now))
    assert sorted(stopped(orders)) == ["l1", "l2"]
    story.tell(story.core.failures.confirm_stop(story.commits[0].peer, ["l1"], story.now))
    assert entry_of(story).state is TaskState.CANCELLED


def test_after_a_break_both_runs_go_on() -> None:
    story = knowing()
    story.grant(late(story))
    for attempt in entry_of(story).attempts():
        assert attempt.lease is not None
        assert attempt.fence is not None
        known = LiveLease(task=ONE, attempt=attempt.number, lease=attempt.lease, fence=attempt.fence)
        args = (attempt.worker, "c-one", 1, (known,), story.now)
        orders = story.tell(story.core.reconciler.reconcile(*args, expected=frozenset({attempt.lease})))
        assert not of(orders, CancelOn)
    assert [attempt.status for attempt in entry_of(story).attempts()] == [AttemptStatus.CONFIRMED] * 2


# -- expected duration of a run ----------------------------------------------------------------------------------------------------------


def test_what_a_run_takes_is_known_from_that_worker_then_from_others_then_from_models_measured_alike() -> (
    None
):
    times, task = RunTimes(), a_task(1)
    other = task.model_copy(update={"model": task.model.model_copy(update={"sha256": "cd" * 32, "size": 50})})
    assert times.expect_s(task, "a") == default_run_s(task) == 7 * 5.0 + 100 * 0.1
    times.add(other, "a", 3.0)
    assert times.expect_s(task, "a") == 6.0, "twice the size"
    for worker, seconds in (("b", 10.0), ("c", 20.0), ("d", 900.0)):
        times.add(task, worker, seconds)
    assert times.expect_s(task, "a") == 20.0, "one liar moves it little"
    times.add(task, "a", 5.0)
    assert times.expect_s(task, "a") == 5.0
    assert times.expect_s(task.model_copy(update={"measure": Measure(runs=7)}), "a") != 5.0


def test_the_fetch_of_every_model_counts_unless_it_is_there() -> None:
    times, alone = RunTimes(), a_task(1)
    other = alone.model.model_copy(update={"sha256": "cd" * 32, "size": int(60 * FETCH_RATE)})
    both = alone.model_copy(update={"beside": (other,)})
    times.add(both, "a", 1.0)
    here, all_here = frozenset({alone.model.sha256}), frozenset({alone.model.sha256, other.sha256})
    assert times.allowance_s(both, "a", warm=all_here, hedged=0, silent=False) == LEAST_S + FACTOR
    assert times.allowance_s(both, "a", warm=here, hedged=0, silent=False) == LEAST_S + FACTOR * 61


def test_who_ran_a_comparison_has_both_models() -> None:
    task = a_task(1)
    other = task.model.model_copy(update={"sha256": "cd" * 32})
    story = Story([task.model_copy(update={"beside": (other,)})], workers=1)
    story.grant(story.commits[0])
    story.succeed(ONE)
    assert story.core.state.worker(story.commits[0].peer).warm == {task.model.sha256, other.sha256}


def test_a_sustained_run_is_expected_to_last_as_long_as_asked() -> None:
    times, task = RunTimes(), a_task(1)
    lasting = task.model_copy(update={"measure": Measure(sustain_s=600.0)})
    times.add(task, "a", 3.0)
    assert 660 <= times.expect_s(lasting, "a") <= 680


def test_launches_that_are_spread_are_expected_to_take_that_time() -> None:
    times, task = RunTimes(), a_task(1)
    spread = task.model_copy(update={"measure": task.measure.model_copy(update={"over_s": 600.0})})
    times.add(task, "a", 3.0)
    assert times.expect_s(spread, "a") > 600
    assert past_run_s(task, [(spread, 603.0), (task, 3.0)]) == 3.0
    times.add(spread, "a", 602.0)
    larger = Model(name="larger", sha256="e" * 64, size=1000 * spread.model.size)
    assert times.expect_s(spread.model_copy(update={"model": larger}), "a") == 600 + 1000 * 2.0, (
        "gaps do not grow"
    )


def test_history_counts_only_what_was_measured_alike() -> None:
    task = a_task(1)
    longer = task.model_copy(update={"measure": Measure(runs=1000)})
    assert past_run_s(task, [(longer, 90.0), (task, 3.0), (task, 5.0)]) == 4.0
    assert past_run_s(longer, [(task, 3.0)]) is None
