"""The scheduler over the in-memory swarm with shared workers: hedged requests, preemption, queues, and campaigns led elsewhere."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import MockClock

from protocol.messages.work import Commit, Denied
from protocol.values.attempt import TaskState
from protocol.values.lease import make_proof
from protocol.words import Reason
from scheduler.run.epochs import ADOPTION_EPOCH_STEP
from scheduler.store.readers import campaign_rows
from scheduler.store.rows import AttemptState, CampaignStatus
from swarm.net.identity import Identity

World = Any
"""`World` of conftest.py."""
SCHEDULER = Identity.from_seed("scheduler")
STRANGER = Identity.from_seed("stranger")


async def test_a_task_that_waits_at_two_busy_workers_runs_once_where_it_comes_up_first(
    world: World, autojump_clock: MockClock
) -> None:
    slow, quick = (world.worker(name, seconds=seconds) for name, seconds in (("a", 100.0), ("b", 20.0)))
    for worker in (slow, quick):
        worker.occupy(worker.seconds)
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: len(world.store.attempts.all("c-one")) == 2)
        await world.until(lambda: all(len(worker.places) == 2 for worker in (slow, quick)))
        assert world.task().state is TaskState.QUEUED
        await world.until(lambda: world.task().state is TaskState.SUCCEEDED)
        assert world.task().worker == quick.peer
        await world.until(lambda: len(slow.places) == 1)  # released at once, not when its turn comes
    assert [task for worker in (slow, quick) for task, _ in worker.ran] == ["c-one/1"]
    states = sorted(attempt.state for attempt in world.store.attempts.all("c-one"))
    assert states == [AttemptState.REFUSED, AttemptState.SUCCEEDED]
    assert world.task().tries == 0


async def test_a_scheduler_killed_while_a_task_waits_at_two_workers_keeps_both_queued_leases(
    world: World, autojump_clock: MockClock
) -> None:
    workers = [world.worker(name, seconds=30.0) for name in ("a", "b")]
    for worker in workers:
        worker.occupy(30.0)
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: all(len(worker.places) == 2 for worker in workers))
    world.new_process()
    await world.run()
    assert world.states() == {TaskState.SUCCEEDED}
    assert len(world.store.attempts.all("c-one")) == 2
    assert sum(len(worker.ran) for worker in workers) == 1


async def test_the_position_of_a_queued_lease_is_in_the_store_and_up_to_date(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("a", seconds=30.0)
    worker.occupy(30.0)
    world.submit(2)
    async with world.scheduler():
        await world.until(lambda: {world.task(n).position for n in (1, 2)} == {1, 2})
        last = next(n for n in (1, 2) if world.task(n).position == 2)
        assert world.task(last).start_s == 60.0
        await world.until(lambda: world.task(last).position == 1)


async def test_a_task_that_gave_way_is_run_again_and_has_lost_no_try(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("a", seconds=50.0)
    world.submit(1, attempts=1)
    async with world.scheduler():
        await world.until(lambda: world.task().state is TaskState.RUNNING)
        await worker.preempt(80)
        await world.until(lambda: world.task().preempted == 1)
        await world.until(lambda: world.task().state is TaskState.SUCCEEDED, seconds=100)
    assert [commit.preempted for commit in worker.commits] == [0, 1]
    assert world.task().tries == 0
    (row,) = campaign_rows(world.store.results.rows("c-one"))
    assert (row.preempted, row.attempt) == (1, 2)
    first, _ = world.store.attempts.all("c-one")
    assert (first.state, first.reason) == (AttemptState.PREEMPTED, Reason.PREEMPTED)
    assert "of priority 80" in first.detail
    names = [event.name for event in world.store.events.since("c-one")]
    assert names.index("task.yields") < names.index("task.preempted")


async def test_a_campaign_that_was_adopted_elsewhere_ends_here_and_its_run_goes_on(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("a", seconds=60.0)
    world.submit(2)
    async with world.scheduler():
        await world.until(lambda: TaskState.RUNNING in world.states())
        proof = make_proof(SCHEDULER.peer_id, "c-one", 2 * ADOPTION_EPOCH_STEP, SCHEDULER.sign)
        worker.stale = Denied(reason=Reason.STALE_EPOCH, detail="adopted under epoch 9", proof=proof)
        began = trio.current_time()
        await world.until(lambda: not world.store.campaigns.unfinished())
        assert trio.current_time() - began < 10
    assert {task.reason for task in world.store.tasks.all("c-one")} == {Reason.ADOPTED}
    (summary,) = world.store.campaigns.summaries()
    assert summary.campaign.outcome is CampaignStatus.ADOPTED
    assert summary.campaign.detail == "carried on elsewhere (adopted)"
    assert not worker.cancelled
    assert len(worker.places) == 2, "nothing is touched there"


async def test_two_workers_that_only_say_that_it_was_adopted_get_no_more_of_it_and_it_goes_on(
    world: World, autojump_clock: MockClock
) -> None:
    stranger = make_proof(STRANGER.peer_id, "c-one", 9, STRANGER.sign)
    for name, proof in (("x1", None), ("x2", stranger)):
        world.worker(name).stale = Denied(reason=Reason.STALE_EPOCH, detail="so I say", proof=proof)
    good = world.worker("good")
    world.submit(5, attempts=1)
    await world.run()
    assert world.states() == {TaskState.SUCCEEDED}
    assert {row.worker for row in world.store.results.rows("c-one")} == {good.peer}
    events = [event for event in world.store.events.since("c-one") if event.name == "worker.refused"]
    assert {event.fields["device"] for event in events} == {"x1", "x2"}


async def test_a_lease_that_is_said_to_be_lost_to_another_scheduler_leads_to_a_question(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("a", seconds=60.0)
    world.submit(2)
    async with world.scheduler():
        await world.until(lambda: TaskState.RUNNING in world.states())
        worker.lost_to = Denied(
            reason=Reason.STALE_EPOCH,
            proof=make_proof(SCHEDULER.peer_id, "c-one", 2 * ADOPTION_EPOCH_STEP, SCHEDULER.sign),
        )
        await world.until(lambda: not world.store.campaigns.unfinished())
    assert {task.reason for task in world.store.tasks.all("c-one")} == {Reason.ADOPTED}


async def test_a_returning_worker_that_was_given_up_gets_its_run_cancelled(
    world: World, autojump_clock: MockClock
) -> None:
    lost = world.worker("lost", seconds=500.0)
    world.submit(1, attempts=5)
    async with world.scheduler():
        await world.until(lambda: TaskState.RUNNING in world.states())
        good = world.worker("good", seconds=40.0)
        world.swarm.partition([lost.peer], [SCHEDULER.peer_id])
        await world.until(lambda: world.task().worker == good.peer, seconds=60)
        world.swarm.heal()
        await world.until(lambda: bool(lost.cancelled), seconds=30)
        await world.until(lambda: world.task().state is TaskState.SUCCEEDED, seconds=100)


async def test_what_a_commit_says_of_priority_and_time(world: World, autojump_clock: MockClock) -> None:
    worker = world.worker("a")
    world.submit(1, priority=70, limit_s=1000.0)
    await world.run()
    (commit,) = worker.commits
    assert commit.priority == 70
    assert commit.left_s is not None
    assert 990 < commit.left_s <= 1000


async def test_a_worker_that_never_answers_commits_is_set_aside_and_the_others_do_its_work(
    world: World, autojump_clock: MockClock
) -> None:
    mute = world.worker("mute")
    mute.mute = (Commit,)
    good = world.worker("good", seconds=5.0)
    world.submit(12, backoff_s=0.1)
    await world.run()
    assert world.states() == {TaskState.SUCCEEDED}
    assert {row.worker for row in world.store.results.rows("c-one")} == {good.peer}
    events = [event for event in world.store.events.since("c-one") if event.name == "worker.set-aside"]
    assert events
    assert "not answering" in str(events[0].fields["why"])
