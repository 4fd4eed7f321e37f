"""Workers and schedulers that die, fall silent or restart: their tasks continue elsewhere, and nothing is recorded twice."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from protocol.errors import ResourceError
from protocol.messages.work import AdoptRequest, Cancel, Renew
from protocol.values.attempt import TaskState
from protocol.wire.base import Message
from protocol.words import Reason
from scheduler.conversation.effects import SleepUntil
from scheduler.core.commands import CommitTo
from scheduler.core.entries import BEGIN_S
from scheduler.store.rows import AttemptState
from scheduler.store.rows import CampaignStatus as CampaignStatus
from scheduler.store.store import Store

World = Any
"""`World` of conftest.py."""


async def test_a_worker_that_dies_in_mid_run_loses_its_tasks_to_another(
    world: World, autojump_clock: MockClock
) -> None:
    first = world.worker("first", seconds=1000.0)
    world.submit(2)
    async with world.scheduler():
        await world.until(lambda: bool(first.ran) and TaskState.RUNNING in world.states())
        second = world.worker("second")
        died = trio.current_time()
        first.die()
        await world.until(lambda: world.states() == {TaskState.SUCCEEDED})
        assert (
            trio.current_time() - died < 6
        )  # its port refuses connections, so the wait is shorter than for a silent worker
        assert {task for task, _ in second.ran} == {"c-one/1", "c-one/2"}
    lost = [row for row in world.store.attempts.all("c-one") if row.state is AttemptState.LOST]
    assert [(row.worker, row.reason) for row in lost] == [(first.peer, Reason.LOST)]


async def test_a_worker_that_restarts_gets_its_tasks_anew_at_once(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini", seconds=1000.0)
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: world.task().state is TaskState.RUNNING)
        worker.die()
        worker.seconds = 0.1
        worker.restart()
        restarted = trio.current_time()
        await world.until(lambda: world.task().state is TaskState.SUCCEEDED)
        assert trio.current_time() - restarted < 10
    assert worker.ran == [("c-one/1", 1), ("c-one/1", 2)]


async def test_a_result_delivered_twice_is_recorded_once(world: World, autojump_clock: MockClock) -> None:
    worker = world.worker("mini")
    worker.deliveries = 3
    world.submit(1)
    await world.run()
    assert worker.answers == ["accepted"] * 3
    assert [event.name for event in world.store.events.since("c-one")].count("task.succeeded") == 1


async def test_a_partitioned_worker_comes_back_with_a_stale_result(
    world: World, autojump_clock: MockClock
) -> None:
    cut = world.worker("cut", seconds=40.0)
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: world.task().state is TaskState.RUNNING)
        other = world.worker("other", seconds=60.0)
        world.swarm.partition([cut.peer], [world.network.peer_id])
        await world.until(lambda: bool(other.ran))
        place = next(iter(cut.places.values()))
        await world.until(lambda: place.state == "reporting")
        world.swarm.heal()
        world.submit(1, campaign="c-next")
        await world.until(lambda: bool(cut.answers), seconds=200)
        assert cut.answers[0] == "fenced"
        await world.until(lambda: world.states() == {TaskState.SUCCEEDED}, seconds=200)
    assert world.task().worker == other.peer


async def test_a_scheduler_that_was_killed_carries_on_and_nothing_runs_twice(
    world: World, autojump_clock: MockClock
) -> None:
    workers = [world.worker(name, seconds=3.0) for name in ("a", "b")]
    world.submit(6)
    async with world.scheduler():
        await world.until(lambda: len(workers[0].ran) >= 2 and TaskState.SUCCEEDED in world.states())
    world.new_process()
    await world.run()
    assert world.states() == {TaskState.SUCCEEDED}
    ran = sorted(task for worker in workers for task, _ in worker.ran)
    assert ran == sorted(set(ran))
    row = world.store.campaigns.get("c-one")
    assert row is not None
    assert row.epoch > 1


async def test_a_scheduler_killed_before_it_asked_asks_again(world: World, autojump_clock: MockClock) -> None:
    worker = world.worker("mini")
    world.submit(1)
    # the state that a kill between intent and commit leaves
    world.store.attempts.begin([CommitTo("c-one/1", 1, "c-one/1/1", worker.peer, "mini", 1)])
    world.store.workers.save(worker.peer, "mini", worker.advert.addresses)
    await world.run()
    assert world.states() == {TaskState.SUCCEEDED}
    assert worker.ran == [("c-one/1", 2)]


async def test_what_a_worker_says_while_its_campaign_is_still_to_be_taken_up_waits_for_that(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini", seconds=1.0)
    world.submit(1, campaign="c-later")
    async with world.scheduler():
        await world.until(lambda: world.task(campaign="c-later").state is TaskState.RUNNING)
        world.submit(1, campaign="c-first", priority=90)
        await world.until(lambda: world.task(campaign="c-first").state is TaskState.QUEUED)
    await world.until(lambda: "reporting" in {place.state for place in worker.places.values()})
    world.new_process()
    service = world.service()
    restore = service.restore

    async def restore_slowly(campaign: str, epoch: int) -> Any:
        if campaign == "c-later":
            await SleepUntil(trio.current_time() + 3.0)
        return await restore(campaign, epoch)

    service.restore = restore_slowly
    await service.run()
    assert worker.ran == [("c-later/1", 1), ("c-first/1", 1)]
    assert len(world.store.attempts.all("c-later")) == 1


@pytest.mark.parametrize(
    "mute", [(Renew,), (Renew, AdoptRequest), (Cancel,)], ids=["renew", "adopt", "cancel"]
)
async def test_a_worker_that_takes_links_but_does_not_answer_loses_what_it_has(
    world: World, autojump_clock: MockClock, mute: tuple[type[Message], ...]
) -> None:
    worker = world.worker("mute", seconds=10_000.0)
    worker.mute = mute
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: world.task().state is TaskState.RUNNING)
        with Store(world.store_path) as other:
            other.campaigns.request_cancel("c-one")
        asked = trio.current_time()
        await world.until(lambda: not world.store.campaigns.unfinished())
        assert trio.current_time() - asked < 35
    assert world.states() == {TaskState.CANCELLED}


async def test_a_task_leaves_a_worker_that_answers_everything_but_renewals(
    world: World, autojump_clock: MockClock
) -> None:
    mute = world.worker("mute", seconds=10_000.0)
    mute.mute = (Renew, AdoptRequest)
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: world.task().state is TaskState.RUNNING)
        other = world.worker("other")
        await world.until(lambda: world.task().state is TaskState.SUCCEEDED)
        assert world.task().worker == other.peer


@pytest.mark.slow
async def test_a_full_disk_ends_the_scheduler_with_one_line_and_a_new_start_carries_on(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini")
    world.submit(200)
    pages = world.store.database.connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    world.store.database.connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 12}")
    with pytest.raises(ResourceError, match="the disk is full"):
        await world.run()
    done = sum(task.state is TaskState.SUCCEEDED for task in world.store.tasks.all("c-one"))
    world.new_process()
    await world.run()
    assert world.states() == {TaskState.SUCCEEDED}
    assert worker.answers.count("accepted") >= 200 - done


async def test_a_run_that_was_reported_before_its_grant_was_heard_is_one_that_began(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini", seconds=BEGIN_S + 60)
    worker.commit_s = 0.5
    world.submit(1)
    await world.run()
    assert worker.ran == [("c-one/1", 1)]
    assert world.task().state is TaskState.SUCCEEDED
