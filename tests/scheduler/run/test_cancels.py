"""Cancelled campaigns, and their tasks that still run somewhere."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from protocol.errors import ResourceError
from protocol.values.attempt import TaskState
from protocol.values.task import TaskReader
from scheduler.conversation.effects import SleepUntil
from scheduler.core.commands import EndPending
from scheduler.core.failures import PORTION
from scheduler.run import service
from scheduler.run.restore import PORTION as RESTORED
from scheduler.run.restore import RestoredTasks, restore_some
from scheduler.store.rows import CampaignStatus as CampaignStatus
from scheduler.store.store import Store

World = Any
"""`World` of conftest.py."""


async def test_a_cancel_ends_running_queued_and_pending_tasks(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini", seconds=1000.0)
    world.submit(20)
    async with world.scheduler():
        await world.until(lambda: TaskState.RUNNING in world.states())
        asked = trio.current_time()
        with Store(world.store_path) as other:
            assert other.campaigns.request_cancel("c-one") == 20
        await world.until(lambda: not world.store.campaigns.unfinished())
        assert trio.current_time() - asked < 2
    assert world.states() == {TaskState.CANCELLED}
    assert worker.ran[0][0] in worker.cancelled
    assert world.store.campaigns.summaries()[0].campaign.outcome is CampaignStatus.CANCELLED


async def test_a_cancel_of_very_many_tasks_goes_on_where_a_crash_left_it_and_others_have_their_turn(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.submit(2 * PORTION + 50)
    ends: list[int] = []
    write = world.store.attempts.end_pending

    def write_twice(end: EndPending) -> None:
        if len(ends) == 2:
            raise ResourceError("the disk is full")
        ends.append(len(end.tasks))
        write(end)

    monkeypatch.setattr(world.store.attempts, "end_pending", write_twice)
    with Store(world.store_path) as other:
        other.campaigns.request_cancel("c-one")
    with pytest.raises(ResourceError):
        await world.run()
    assert ends == [PORTION, PORTION]
    assert world.states() == {TaskState.PENDING, TaskState.CANCELLED}
    world.new_process()
    await world.run()
    assert world.states() == {TaskState.CANCELLED}
    (summary,) = world.store.campaigns.summaries()
    assert summary.campaign.outcome is CampaignStatus.CANCELLED


async def test_a_cancel_of_a_task_on_a_vanished_worker_ends_when_its_lease_does(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini", seconds=1000.0)
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: world.task().state is TaskState.RUNNING)
        worker.die()
        with Store(world.store_path) as other:
            other.campaigns.request_cancel("c-one/1")
        asked = trio.current_time()
        await world.until(lambda: world.task().state is TaskState.CANCELLED)
        assert trio.current_time() - asked < 20


@pytest.mark.parametrize("target", ["c-one", "c-one/1"])
async def test_a_cancel_counts_that_comes_while_the_campaign_is_taken_up(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    world.submit(2 * RESTORED + 1)

    def restore(store: Store, campaign: str, after: int, reader: TaskReader) -> RestoredTasks | None:
        if after == RESTORED:  # the campaign itself, and its first tasks, have been read
            with Store(world.store_path) as other:
                assert other.campaigns.request_cancel(target)
        return restore_some(store, campaign, after, reader)

    monkeypatch.setattr(service, "restore_some", restore)
    # other tasks get their turn between two portions: here for two seconds, so that the request is seen before the campaign is there
    monkeypatch.setattr(service, "SleepUntil", lambda at: SleepUntil(at + 2))
    async with world.scheduler():
        await world.until(lambda: world.store.tasks.get("c-one/1").state is TaskState.CANCELLED)
        await trio.sleep(5)
    assert world.states() == {TaskState.CANCELLED} | ({TaskState.PENDING} if "/" in target else set())
