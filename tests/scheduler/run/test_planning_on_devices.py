"""Campaigns in which each device gets its own tasks, planned on the devices that are present."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from protocol.values.attempt import TaskState
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts, read_task
from protocol.words import Reason
from scheduler.campaign.model import Campaign, Devices, ModelEntry, TrustText
from scheduler.planning import devices, tasks
from scheduler.planning.tasks import derive
from scheduler.store.rows import CampaignStatus as CampaignStatus
from scheduler.store.rows import NewCampaign, NewModel
from scheduler.store.store import Store
from swarm.net.identity import Identity

World = Any
"""`World` of conftest.py."""


def over_devices(
    world: World,
    *where: str,
    wait_s: float = 60.0,
    limit_s: float | None = None,
    trust: TrustText = "mine",
) -> None:
    """Submit a campaign whose tasks are fixed once the devices are seen."""
    spec = Campaign(
        campaign="everywhere",
        models=(ModelEntry(path="tiny.onnx"),),
        units=("CPU (ONNX)",),
        devices=Devices(spread="device", where=where, trust=trust),
    )
    label = spec.models[0].label
    new = NewCampaign(
        "c-all", "everywhere", world.network.peer_id, spec.model_dump_json(), wait_s=wait_s, limit_s=limit_s
    )
    with Store(world.store_path) as other:
        other.campaigns.create(new, [NewModel(label, world.sha256, 7, facts="tiny.onnx")], None)


async def test_a_campaign_for_each_device_is_planned_on_those_that_are_there(
    world: World, autojump_clock: MockClock
) -> None:
    over_devices(world)
    async with world.scheduler():
        await trio.sleep(5)
        workers = [world.worker(name) for name in ("a", "b", "c")]
        await world.until(lambda: not world.store.campaigns.unfinished())
    assert [len(worker.ran) for worker in workers] == [1, 1, 1]
    assert world.states("c-all") == {TaskState.SUCCEEDED}


async def test_a_glimpse_of_the_index_is_no_ground_for_a_plan(
    world: World, autojump_clock: MockClock
) -> None:
    workers = [world.worker(name) for name in ("a", "b", "c")]
    world.index.partial = 3
    over_devices(world)
    await world.run()
    assert [len(worker.ran) for worker in workers] == [1, 1, 1]


async def test_devices_that_come_up_together_are_all_planned_for(
    world: World, autojump_clock: MockClock
) -> None:
    workers = [world.worker("a")]
    world.awaited.add(Identity.from_seed("b").peer_id)
    over_devices(world)
    asked = 0

    def look() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            workers.append(world.worker("b"))

    world.index.asked = look
    await world.run()
    assert [len(worker.ran) for worker in workers] == [1, 1]


async def test_an_index_that_never_answers_whole_is_planned_on_after_the_wait(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("a")
    world.index.partial = 1000
    over_devices(world, wait_s=10.0)
    await world.run()
    assert len(worker.ran) == 1


async def test_a_cancel_that_comes_between_the_last_look_and_the_plan_is_heeded(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("a", seconds=1000.0)
    over_devices(world)
    planned = world.store.campaigns.plan

    def plan(campaign: str, tasks: Any, **how: Any) -> Any:
        with Store(world.store_path) as other:
            other.campaigns.request_cancel(campaign)
        return planned(campaign, tasks, **how)

    world.store.campaigns.plan = plan
    await world.run()
    assert world.states("c-all") == {TaskState.CANCELLED}
    assert not worker.ran


def of_many_models(world: World, models: int) -> None:
    """Submit a campaign with so many tasks that the scheduler plans them."""
    spec = Campaign(
        campaign="many",
        models=tuple(ModelEntry(path=f"m{n}.onnx") for n in range(models)),
        units=("CPU (ONNX)",),
        devices=Devices(spread="any"),
    )
    new = NewCampaign("c-many", "many", world.network.peer_id, spec.model_dump_json())
    files = [NewModel(each.label, world.sha256, 7, facts="tiny.onnx") for each in spec.models]
    with Store(world.store_path) as other:
        assert other.campaigns.create(new, files, None)


async def test_a_campaign_of_many_tasks_is_planned_in_portions_and_needs_no_device_for_that(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "PORTION", 2)
    of_many_models(world, 5)
    async with world.scheduler():
        await world.until(lambda: not world.store.campaigns.unfinished_ids(planned=False))
        assert world.store.tasks.counts("c-many") == {TaskState.PENDING: 5}
        world.worker("a")
        await world.until(lambda: not world.store.campaigns.unfinished())
    assert world.states("c-many") == {TaskState.SUCCEEDED}


async def test_a_plan_that_was_cut_off_is_made_anew(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "PORTION", 2)
    of_many_models(world, 5)
    old = Task(
        campaign="c-many",
        task="c-many/1",
        scheduler=world.network.peer_id,
        model=Model(name="old.onnx", sha256=world.sha256, size=7),
        unit="CPU (ONNX)",
        requirement=Requirement(clauses=()),
        measure=Measure(),
        timeouts=Timeouts(),
    )
    stored = [old.model_copy(update={"task": f"c-many/{n}"}) for n in (1, 2, 3)]
    assert world.store.campaigns.plan("c-many", stored, last=False)
    world.worker("a")
    await world.run()
    tasks = world.store.tasks.all("c-many")
    assert len(tasks) == 5
    assert {task.state for task in tasks} == {TaskState.SUCCEEDED}
    assert {read_task(body).model.name for body in world.store.tasks.bodies("c-many").values()} == {
        "tiny.onnx"
    }


async def test_a_cancel_that_comes_while_tasks_are_planned_ends_the_campaign_without_any(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "PORTION", 2)
    worker = world.worker("a")
    of_many_models(world, 5)
    planned = world.store.campaigns.plan

    def plan(campaign: str, tasks: Any, **how: Any) -> Any:
        stored = planned(campaign, tasks, **how)
        with Store(world.store_path) as other:
            other.campaigns.request_cancel(campaign)
        return stored

    world.store.campaigns.plan = plan
    await world.run()
    row = world.store.campaigns.get("c-many")
    assert row.outcome is CampaignStatus.CANCELLED
    assert not world.store.tasks.all("c-many")
    assert not worker.ran


async def test_a_campaign_that_makes_too_many_tasks_fails_and_leaves_none(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "PORTION", 2)
    monkeypatch.setattr(devices, "derive", partial(derive, most=3))
    monkeypatch.setattr(
        tasks, "least_tasks", lambda campaign: 1
    )  # like a campaign that is spread over devices
    of_many_models(world, 5)
    await world.run()
    row = world.store.campaigns.get("c-many")
    assert row.outcome is CampaignStatus.FAILED
    assert row.detail == "this campaign makes more than 3 tasks"
    assert not world.store.tasks.all("c-many")


async def test_a_campaign_submitted_while_the_scheduler_starts_is_seen(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("a")
    world.submit(1)
    epoch = world.store.campaigns.next_epoch

    def slow(campaign: str, **above: int) -> int:
        if campaign == "c-one":
            world.submit(1, campaign="c-two")
        return int(epoch(campaign, **above))

    world.store.campaigns.next_epoch = slow
    with trio.fail_after(60):
        await world.run()
    assert len(worker.ran) == 2


@pytest.mark.parametrize("jump", [-1e6, 1e6], ids=["back", "forward"])
async def test_a_clock_that_was_set_does_not_prolong_a_campaign_and_ends_one_at_the_earliest_at_once(
    world: World, autojump_clock: MockClock, jump: float
) -> None:
    world.worker("a", seconds=1000.0)
    world.submit(1, limit_s=50.0)
    world.wall = lambda: time.time() + jump
    began = trio.current_time()
    await world.run()
    assert world.task().reason is Reason.TIMED_OUT
    assert trio.current_time() - began <= (60 if jump < 0 else 5)


async def test_a_plan_waits_no_longer_than_the_campaign_may_last(
    world: World, autojump_clock: MockClock
) -> None:
    over_devices(world, wait_s=1000.0, limit_s=20.0)
    began, submitted = trio.current_time(), time.time()
    world.wall = lambda: submitted + trio.current_time() - began
    await world.run()
    assert trio.current_time() - began < 30
    assert world.task(campaign="c-all").reason is Reason.TIMED_OUT


async def test_a_campaign_for_each_device_that_finds_none_says_so(
    world: World, autojump_clock: MockClock
) -> None:
    world.worker("mini")
    over_devices(world, "ram >= 64 GiB", wait_s=30.0)
    began, service = trio.current_time(), world.service()
    await service.run()
    assert not service._waited, "nothing is kept of a campaign that has ended"
    assert 30 <= trio.current_time() - began < 40, "it waits once, not again when it is planned"
    (task,) = world.store.tasks.all("c-all")
    assert (task.state, task.reason) == (TaskState.FAILED, Reason.NOTHING_FITS)
    assert "ram >= 64 GiB" in task.detail


async def test_a_campaign_that_is_cancelled_before_it_is_planned_ends(
    world: World, autojump_clock: MockClock
) -> None:
    over_devices(world)
    async with world.scheduler():
        await trio.sleep(3)
        with Store(world.store_path) as other:
            assert other.campaigns.request_cancel("c-all") == 1
        await world.until(lambda: not world.store.campaigns.unfinished())
    assert world.store.campaigns.summaries()[0].campaign.outcome is CampaignStatus.CANCELLED


async def test_a_scheduler_that_is_stopped_while_a_campaign_waits_for_its_devices_ends(
    world: World, autojump_clock: MockClock
) -> None:
    over_devices(world)
    read, looks = world.store.campaigns.models, 0

    def models(campaign: str) -> Any:
        nonlocal looks
        looks += 1
        if looks == 100:  # otherwise it would never end
            world.store.campaigns.end("c-all")
        return read(campaign)

    async with world.scheduler():
        await trio.sleep(3)
        world.store.campaigns.models = models
    assert not looks
