"""A cancel that a device has not confirmed: it is reported, repeated, and over when the run's lease is."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from protocol.errors import Unreachable
from protocol.messages.work import AdoptRequest, Cancel, Renew
from protocol.values.attempt import TaskState
from scheduler.core.stops import OWED_S
from scheduler.run.restore import owed_stops
from scheduler.store.rows import AttemptState
from scheduler.store.store import Store
from scheduler.submit.submit import CancelRequest

World = Any
"""`World` of conftest.py."""
TASK = "c-one/1"


async def cancelled_unheard(world: World) -> Any:
    """A worker that runs the only task of a cancelled campaign and does not answer any more; no scheduler runs."""
    worker = world.worker("mini", seconds=10_000.0)
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: world.task().state is TaskState.RUNNING)
        worker.mute = (Renew, AdoptRequest, Cancel)
        with Store(world.store_path) as other:
            request = CancelRequest(other, "c-one")
            await world.until(lambda: not world.store.campaigns.unfinished())
            with pytest.raises(
                Unreachable,
                match="0 stopped, 1 asked to stop but not confirmed by mini: c-one/1 asked to stop at",
            ):
                request.wait(keep_alive=lambda: None)
    return worker


def events(world: World) -> list[str]:
    return [event.name for event in world.store.events.all("c-one")]


async def test_a_stop_that_was_not_confirmed_is_said_and_told_again_by_the_next_scheduler(
    world: World, autojump_clock: MockClock
) -> None:
    worker = await cancelled_unheard(world)
    assert world.task().state is TaskState.CANCELLED
    assert "not confirmed by mini; its run ends by" in world.task().detail
    (stop,) = world.store.attempts.unconfirmed()
    assert (stop.task, stop.state) == (TASK, AttemptState.UNCONFIRMED)
    campaign = world.store.campaigns.get("c-one")
    (owed,) = owed_stops(world.store, 0.0, 0.0)
    assert owed.held is not None
    assert campaign.epoch == owed.held.epoch > 0
    assert "stop.unconfirmed" in events(world)
    worker.mute, worker.cancelled = (), []
    world.new_process()
    began = trio.current_time()
    await world.run()  # no campaign is open, so it stays until the stop is confirmed, and no longer
    assert trio.current_time() - began < 30
    assert worker.cancelled == [TASK]
    assert world.store.attempts.unconfirmed() == ()
    assert world.task().detail == ""
    assert events(world)[-1] == "stop.confirmed"
    with Store(world.store_path) as other:
        assert CancelRequest(other, "c-one").wait(keep_alive=lambda: None) == "c-one had ended already."


async def test_a_stop_is_told_again_as_soon_as_the_worker_is_back(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini", seconds=10_000.0)
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: world.task().state is TaskState.RUNNING)
        worker.mute = (Renew, AdoptRequest, Cancel)
        with Store(world.store_path) as other:
            other.campaigns.request_cancel("c-one")
        await world.until(lambda: bool(world.store.attempts.unconfirmed("c-one")))
        await trio.sleep(200)  # by then it is forgotten that the worker had a task of the campaign
        worker.mute, worker.cancelled = (), []
        await world.until(lambda: not world.store.attempts.unconfirmed("c-one"), 30)
    assert worker.cancelled == [TASK]


async def test_a_stop_that_nobody_ever_confirms_is_over_with_the_lease(
    world: World, autojump_clock: MockClock
) -> None:
    await cancelled_unheard(world)
    world.new_process()
    began = trio.current_time()
    await world.run()
    assert OWED_S - 60 < trio.current_time() - began < OWED_S + 5
    assert world.task().detail.startswith("its device never confirmed")
    assert events(world)[-1] == "stop.lapsed"


async def test_a_cancel_that_the_device_confirms_leaves_nothing_owed(
    world: World, autojump_clock: MockClock
) -> None:
    world.worker("mini", seconds=10_000.0)
    world.submit(3)
    async with world.scheduler():
        await world.until(lambda: TaskState.RUNNING in world.states())
        with Store(world.store_path) as other:
            request = CancelRequest(other, "c-one")
            await world.until(lambda: not world.store.campaigns.unfinished())
            assert (
                request.wait(keep_alive=lambda: None) == "c-one is cancelled: 3 stopped, 0 had ended before."
            )
    assert "stop.unconfirmed" not in events(world)
