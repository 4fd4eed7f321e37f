"""Links to workers that answer slowly, and never finish."""

from __future__ import annotations

import random
from typing import Any

import trio
from trio.testing import MockClock

from protocol.values.attempt import TaskState
from protocol.values.record import Timing, pack_samples
from protocol.words import Reason
from scheduler.core.scheduler import FORGET_S
from scheduler.store import schema
from swarm.net.identity import Identity
from swarm.net.reservations import RelayReservations

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
        world.store.campaigns.request_cancel("c-two")
        quick = world.worker("b")
        world.index.workers.remove(worker)
        await world.until(lambda: world.states("c-two") == {TaskState.CANCELLED})
        await world.until(lambda: world.states() == {TaskState.SUCCEEDED}, seconds=100)
        assert [task for task, _ in quick.ran] == ["c-one/1"]
        world.submit(1, campaign="c-three")  # work that takes longer than an ended campaign is remembered
        await trio.sleep(worker.page_s * 64 + FORGET_S)
        assert world.states("c-three") == {TaskState.SUCCEEDED}


async def test_a_campaign_whose_tasks_cannot_be_read_back_ends_with_the_reason_and_the_others_go_on(
    world: World, autojump_clock: MockClock
) -> None:
    world.submit(2)
    world.submit(1, campaign="c-two")
    world.worker("a")
    with world.store.database.transaction() as c:
        c.execute(schema.tasks.update().where(schema.tasks.c.id == "c-one/2").values(body=b"\0"))
    await world.run()
    assert world.states() == {TaskState.FAILED}
    assert world.states("c-two") == {TaskState.SUCCEEDED}
    assert {task.reason for task in world.store.tasks.all("c-one")} == {Reason.BAD_REQUEST}


async def test_the_records_of_one_task_are_fetched_one_at_a_time(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("a")
    worker.deliveries, worker.at_once = 8, True
    noise = random.Random(5)
    samples = pack_samples([noise.randrange(10**9) for _ in range(15_000)])
    timing = Timing(samples=samples, warmup=pack_samples([]), cpu_s=0, wall_s=100_000)
    worker.outcome = lambda task: {"timings": (timing,)}
    world.submit(1, runs=15_000)
    await world.run()
    assert world.states() == {TaskState.SUCCEEDED}
    assert (worker.served, worker.answers) == (1, ["accepted"] * 8)


async def test_a_link_moves_to_a_direct_connection_as_soon_as_there_is_one_and_outlives_the_gate(
    world: World, autojump_clock: MockClock
) -> None:
    gate = world.swarm.node(Identity.from_seed("gate"))
    gate.serve_relay(RelayReservations())
    worker = world.worker("a", seconds=60.0)
    world.swarm.translate(worker.peer, "home")
    place = await worker.network.reserve(gate.peer_id, gate.addresses)
    worker.advert = worker.advert.model_copy(update={"addresses": place.addresses})
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: bool(worker.ran))
        by_the_gate = worker.link
        assert by_the_gate.relayed
        world.swarm.punch(world.network.peer_id, worker.peer)
        await world.until(lambda: worker.link is not by_the_gate)
        await by_the_gate.closed.wait()  # closed normally, because no call was in progress on it
        direct = worker.link
        assert not direct.relayed
        world.swarm.kill(gate.peer_id)
        await world.until(lambda: world.states() == {TaskState.SUCCEEDED}, seconds=100)
        assert worker.link is direct
    assert worker.ran == [("c-one/1", 1)]
