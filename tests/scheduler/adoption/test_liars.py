"""Strangers' devices that answer whatever they like during an adoption."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from protocol.messages.work import WORK, AdoptReply, Denied, ListLeases, LiveLease
from protocol.values.attempt import TaskState
from protocol.values.lease import MAX_EPOCH, Fence, make_proof
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason
from scheduler.adoption.adopt import ADOPTION_EPOCH_STEP
from scheduler.adoption.recovery import HIGHEST, UNPROVEN
from scheduler.store.rows import CampaignStatus
from swarm.net.identity import Identity
from swarm.net.link import Link
from swarm.net.links import serve_links
from tests.scheduler.adoption.test_adoption import TASKS, end, midway, records, states
from tests.scheduler.adoption.world import CAMPAIGN, World, until

LIAR = Identity.from_seed("liar")
Says = Callable[[], AdoptReply]


def claims(attempt: int) -> Says:
    """Claims to have run all of the campaign's tasks."""

    def says() -> AdoptReply:
        leases = tuple(
            LiveLease(
                task=f"{CAMPAIGN}/{n}",
                attempt=attempt,
                lease=f"x-{n}",
                fence=Fence(incarnation=1, number=n),
                reporting=True,
            )
            for n in range(1, TASKS + 1)
        )
        return AdoptReply(incarnation=1, leases=leases)

    return says


def speaks_of(epoch: int, proof: bytes | None) -> Says:
    return lambda: AdoptReply(incarnation=1, epoch=epoch, proof=proof)


def liar(world: World, says: Says) -> None:
    network = world.swarm.node(LIAR)

    async def answer(link: Link, message: Message) -> Message | None:
        await trio.lowlevel.checkpoint()
        return says() if isinstance(message, ListLeases) else Denied(reason=Reason.NOT_ALLOWED)

    serve_links(network, ProtocolId.WORK, WORK, answer)
    some = next(iter(world.board.adverts.values()))
    values = {"peer": LIAR.peer_id, "name": "liar", "device": "d-liar", "addresses": network.addresses}
    world.board.adverts[LIAR.peer_id] = some.model_copy(update=values)


@pytest.mark.parametrize(
    "says",
    [
        speaks_of(MAX_EPOCH, None),
        speaks_of(MAX_EPOCH, make_proof(LIAR.peer_id, CAMPAIGN, MAX_EPOCH, LIAR.sign)),
        claims(1000),
        claims(HIGHEST),
    ],
    ids=["an epoch", "an epoch, signed", "the last attempts", "late attempts"],
)
async def test_a_strangers_device_neither_stops_an_adoption_nor_takes_tasks_away(
    world: World, says: Says
) -> None:
    await midway(world)
    liar(world, says)
    await world.adopt("home-b")
    with world.store("home-b") as store:
        assert store.campaigns.get(CAMPAIGN).epoch <= UNPROVEN + 2 * ADOPTION_EPOCH_STEP
    async with world.scheduler("home-b") as store:
        await end(world, store)
        assert store.campaigns.get(CAMPAIGN).outcome is CampaignStatus.SUCCEEDED
        assert states(store) == {TaskState.SUCCEEDED: TASKS}
        assert records(store) == [1] * TASKS
    assert world.launched == TASKS, "what honest workers had was not run again"


async def test_a_stranger_that_says_it_has_run_a_task_gets_none_of_a_campaign_that_admits_none(
    world: World,
) -> None:
    await midway(world)
    liar(world, claims(1))
    world.strangers.add(LIAR.peer_id)
    await world.adopt("home-b")
    with world.store("home-b") as store:
        assert LIAR.peer_id not in {task.worker for task in store.tasks.all(CAMPAIGN)}


async def test_an_epoch_that_is_proven_is_gone_beyond(world: World) -> None:
    await midway(world)
    await world.adopt("home-b")
    async with world.scheduler("home-b") as store:

        def proven() -> bool:
            return store.campaigns.get(CAMPAIGN).epoch in [
                worker.epoch() for worker in world.workers.values()
            ]

        await until(proven, "a worker has the proof")
        await end(world, store)
        first = store.campaigns.get(CAMPAIGN).epoch
    assert first > UNPROVEN
    await world.adopt("home-c")
    with world.store("home-c") as store:
        assert store.campaigns.get(CAMPAIGN).epoch >= first + ADOPTION_EPOCH_STEP
