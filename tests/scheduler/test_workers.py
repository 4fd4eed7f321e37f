"""Links to workers that answer slowly, and not to the end."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import MockClock

from protocol.attempt import TaskState
from scheduler.entries import FORGET_S

World = Any
"""`World` of conftest.py."""


async def test_a_worker_that_says_page_by_page_and_slowly_what_it_has_neither_stops_the_scheduler_nor_keeps_tasks(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("a", seconds=2000.0)
    for campaign in ("c-one", "c-two"):
        world.submit(1, campaign=campaign)
    async with world.scheduler():
        await world.until(lambda: len(worker.places) == 2)
    world.new_process()
    worker.page_s = 4.5
    async with world.scheduler():
        world.store.request_cancel("c-two")
        quick = world.worker("b")
        world.index.workers.remove(worker)
        await world.until(lambda: world.states("c-two") == {TaskState.CANCELLED})
        await world.until(lambda: world.states() == {TaskState.SUCCEEDED}, seconds=100)
        assert [task for task, _ in quick.ran] == ["c-one/1"]
        world.submit(
            1, campaign="c-three"
        )  # something to do for longer than a campaign that ended is remembered
        await trio.sleep(worker.page_s * 64 + FORGET_S)
        assert world.states("c-three") == {TaskState.SUCCEEDED}
