"""A campaign whose scheduler is gone is adopted by another, and nothing that runs or has run is run again."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from protocol.errors import CampaignError
from protocol.values.attempt import TaskState
from scheduler.adoption.token import Handover, passed_on, read_handover, write_handover
from scheduler.store.rows import CampaignStatus
from scheduler.store.store import Store
from tests.scheduler.adoption.world import ANN, BOB, CAMPAIGN, World, until

TASKS = 7


def states(store: Store) -> Counter[TaskState]:
    return Counter(task.state for task in store.tasks.all(CAMPAIGN))


def records(store: Store) -> list[int]:
    """The number of results of each task."""
    return [0 if row.record is None else 1 for row in store.results.rows(CAMPAIGN)]


async def midway(world: World) -> None:
    """Three workers. One task is done and its result taken, one more ended just when the scheduler was killed, one runs, and others
    wait.
    """
    for name in ("one", "two", "three"):
        await world.worker(name)
    world.submit("home-a", TASKS)
    async with world.scheduler("home-a") as store:
        await until(lambda: world.launched == 3, "three runs")
        world.workers["one"].runs[0].go.set()
        await until(lambda: states(store)[TaskState.SUCCEEDED] == 1, "one is done")
        await until(lambda: world.launched == 4, "the next one runs")
    world.workers["two"].runs[0].go.set()
    await until(lambda: world.workers["two"].unsent() == 1, "its result is on disk")


async def end(world: World, store: Store) -> None:
    for worker in world.workers.values():
        worker.let_go()
    await until(lambda: store.campaigns.get(CAMPAIGN).ended is not None, "the campaign ends")


async def test_with_the_owners_key_it_goes_on_elsewhere_and_nothing_is_run_again(world: World) -> None:
    await midway(world)
    adoption = await world.adopt("home-b")
    assert (adoption.tasks, adoption.running) == (TASKS, 2)
    assert adoption.finished == 2
    assert adoption.waiting + adoption.to_do == 3
    async with world.scheduler("home-b") as store:
        await until(lambda: states(store)[TaskState.SUCCEEDED] >= 2, "what had ended is recorded")
        assert world.launched <= 5, "the free slot may have gone to a queued lease"
        await end(world, store)
        assert store.campaigns.get(CAMPAIGN).outcome is CampaignStatus.SUCCEEDED
        assert states(store) == {TaskState.SUCCEEDED: TASKS}
        assert records(store) == [1] * TASKS
    assert world.launched == TASKS
    with world.store("home-a") as before:
        first = next(task for task in before.tasks.all(CAMPAIGN) if task.state is TaskState.SUCCEEDED)
        stored = {row.task.id: row.record for row in before.results.rows(CAMPAIGN)}[first.id]
    with world.store("home-b") as after:
        assert {row.task.id: row.record for row in after.results.rows(CAMPAIGN)}[first.id] == stored


async def test_the_campaigns_limit_counts_from_when_it_was_submitted_wherever_it_is_carried_on(
    world: World,
) -> None:
    await midway(world)
    await world.adopt("home-b", wall=lambda: time.time() + 3600.0)
    with world.store("home-a") as before, world.store("home-b") as after:
        assert after.campaigns.get(CAMPAIGN).created == int(before.campaigns.get(CAMPAIGN).created)


async def test_what_lets_a_home_speak_for_a_campaign_is_kept_before_the_campaign_is_there(
    world: World,
) -> None:
    await midway(world)
    observed: list[object] = []

    def keep() -> None:
        with world.store("home-b") as store:
            observed.append(store.campaigns.get(CAMPAIGN))

    await world.adopt("home-b", keep=keep)
    assert observed == [None]


async def test_with_the_owners_token_another_scheduler_carries_it_on(world: World) -> None:
    await midway(world)
    now = time.time()
    tokens = passed_on(ANN, (), BOB.peer_id, CAMPAIGN, own=True, lasts_s=3600.0, now=now)
    text = write_handover(Handover(campaign=CAMPAIGN, owner=ANN.peer_id, tokens=tokens))
    handover, held = read_handover(text, BOB.peer_id, now=now)
    assert handover.owner == ANN.peer_id
    adoption = await world.adopt("home-b", BOB, held)
    assert (adoption.running, adoption.finished) == (2, 2)
    async with world.scheduler("home-b", BOB, held) as store:
        await until(lambda: states(store)[TaskState.SUCCEEDED] >= 2, "what had ended is recorded")
        async with world.scheduler(
            "home-a"
        ) as old:  # the old scheduler comes back, and hears that another one leads
            await until(lambda: old.campaigns.get(CAMPAIGN).ended is not None, "the old one ends here")
        await end(world, store)
        assert states(store) == {TaskState.SUCCEEDED: TASKS}
        assert records(store) == [1] * TASKS
    assert world.launched == TASKS


async def test_what_a_worker_that_is_gone_had_is_run_again(world: World) -> None:
    await midway(world)
    world.kill("one")
    adoption = await world.adopt("home-b")
    assert list(adoption.silent) == [world.workers["one"].identity.peer_id]
    assert adoption.to_do >= 1
    async with world.scheduler("home-b") as store:
        await end(world, store)
        assert states(store) == {TaskState.SUCCEEDED: TASKS}
        assert records(store) == [1] * TASKS


async def test_results_of_a_worker_that_was_restarted_are_taken_too(world: World) -> None:
    await midway(world)
    world.kill("one")
    await world.start("one")
    adoption = await world.adopt("home-b")
    assert adoption.finished == 2
    async with world.scheduler("home-b") as store:
        await end(world, store)
        assert states(store) == {TaskState.SUCCEEDED: TASKS}
    assert world.launched == TASKS + 1, "only what the kill cut short is run again"


async def test_a_campaign_that_is_here_or_that_nobody_knows_is_not_adopted(world: World) -> None:
    await world.worker("one")
    with pytest.raises(CampaignError, match="no device has a usable campaign manifest"):
        await world.adopt("home-b")
    world.submit("home-a", 1)
    with pytest.raises(CampaignError, match="on this home already"):
        await world.adopt("home-a")
