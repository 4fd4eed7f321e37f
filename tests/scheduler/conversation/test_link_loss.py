"""Links to workers that break again and again."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import MockClock

from protocol.values.attempt import TaskState
from protocol.values.lease import LEASE_TTL_S
from scheduler.conversation.links import RETRY_S, SILENT_S
from swarm.net.link import Link
from tests.scheduler.conftest import FakeWorker

World = Any
"""`World` of conftest.py."""


class Shutter(FakeWorker):
    """Accepts links, and ends each at once while `shut`."""

    shut = False
    opens = 0

    async def opened(self, link: Link) -> None:
        self.opens += 1
        if self.shut:
            await link.reset()
        else:
            await super().opened(link)


async def test_a_worker_that_ends_each_link_at_once_is_linked_once_a_second_and_no_more_often(
    world: World, autojump_clock: MockClock
) -> None:
    worker = Shutter(world.swarm, "a", seconds=2000.0)
    worker.nursery = world.nursery
    world.index.workers.append(worker)
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: len(worker.places) == 1)
        worker.shut = True
        before = worker.opens
        assert worker.link is not None
        await worker.link.reset()
        await trio.sleep(SILENT_S - 2.0)
        assert worker.opens - before <= SILENT_S
        worker.shut = False
        await trio.sleep(2 * RETRY_S)
        assert world.store.tasks.get("c-one/1").attempt == 1, "it came back in time, and nothing was lost"


async def test_a_silent_worker_is_given_up_before_its_leases_may_go_to_others(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("a", seconds=2000.0)
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: world.states() == {TaskState.RUNNING})
        world.swarm.cut_silently(world.network.peer_id, worker.peer)
        await trio.sleep(LEASE_TTL_S - 0.5)
        assert "task.lost" in {event.name for event in world.store.events.all("c-one")}


async def test_a_scheduler_that_stood_still_itself_does_not_take_its_workers_for_silent(
    world: World, autojump_clock: MockClock
) -> None:
    workers = [world.worker(name, seconds=40.0) for name in "ab"]
    world.submit(2)
    async with world.scheduler():
        await world.until(lambda: all(worker.places for worker in workers))
        await trio.sleep(1.0)
        autojump_clock.jump(SILENT_S + 5.0)
        await world.until(lambda: world.states() == {TaskState.SUCCEEDED})
    assert "task.lost" not in {event.name for event in world.store.events.all("c-one")}
    assert sorted(len(worker.ran) for worker in workers) == [1, 1]
