"""Runs that no task waits for: their worker is told until it has heard it. Also: a cancel of a campaign that another scheduler leads."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import MockClock

from protocol.messages.work import AdoptRequest, Cancel, Commit, Denied
from protocol.values.attempt import TaskState
from protocol.wire.base import Message
from protocol.words import Reason
from scheduler.run.epochs import ADOPTION_EPOCH_STEP, make_proof
from scheduler.store.store import Store
from swarm.net.link import Link
from tests.scheduler.conftest import SCHEDULER, FakeWorker

World = Any
"""`World` of conftest.py."""
TASK = "c-one/1"


class Late(FakeWorker):
    """Hangs when it is asked to take a task, and takes it later."""

    awake: trio.Event | None = None
    taken: trio.Event | None = None

    async def answer(self, link: Link, message: Message) -> Message | None:
        if self.awake is None:
            return await super().answer(link, message)
        with trio.CancelScope(shield=True):
            if isinstance(message, Commit) and self.taken is None:
                self.taken = trio.Event()
                await self.awake.wait()
                answer = await super().answer(link, message)
                self.taken.set()
                return answer
            if self.taken is not None:
                await self.taken.wait()
        if isinstance(message, Commit):
            await trio.sleep_forever()  # asked again, it takes the task once
        return await super().answer(link, message)


class Breaks(FakeWorker):
    """Breaks the link on which the first cancel arrived, and does not carry it out."""

    broke = False

    async def answer(self, link: Link, message: Message) -> Message | None:
        if isinstance(message, Cancel) and not self.broke:
            self.broke = True
            await link.reset()
            return None
        return await super().answer(link, message)


class Adopted(FakeWorker):
    """Says that another scheduler leads the campaign: in answer to a cancel, and with the proof when it is asked what it holds."""

    async def answer(self, link: Link, message: Message) -> Message | None:
        if isinstance(message, Cancel):
            return Denied(reason=Reason.STALE_EPOCH, detail="adopted")
        if isinstance(message, AdoptRequest):
            proof = make_proof(SCHEDULER.peer_id, "c-one", 2 * ADOPTION_EPOCH_STEP, SCHEDULER.sign)
            return Denied(reason=Reason.STALE_EPOCH, detail="adopted", proof=proof)
        return await super().answer(link, message)


def add(world: World, worker: FakeWorker) -> None:
    worker.nursery = world.nursery
    world.index.workers.append(worker)


async def test_a_worker_that_took_a_task_when_it_was_given_up_is_told_to_stop_it(
    world: World, autojump_clock: MockClock
) -> None:
    late = Late(world.swarm, "late", seconds=2000.0)
    late.awake = trio.Event()
    add(world, late)
    world.submit(1, attempts=5)
    async with world.scheduler():
        await world.until(lambda: world.task().worker == late.peer)
        good = world.worker("good", seconds=2000.0)
        await world.until(lambda: world.task().worker == good.peer, seconds=90)
        late.awake.set()
        await world.until(lambda: late.cancelled == [TASK], seconds=60)
        assert world.task().worker == good.peer, "it goes on there"


async def test_a_worker_that_took_a_second_request_when_the_first_had_started_is_told_to_stop_it(
    world: World, autojump_clock: MockClock
) -> None:
    first = world.worker("first", seconds=2000.0)
    first.occupy(12.0)
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: world.task().state is TaskState.QUEUED)
        late = Late(world.swarm, "late", seconds=2000.0)
        late.awake = trio.Event()
        add(world, late)
        await world.until(lambda: bool(first.ran), seconds=60)
        assert len(world.store.attempts.of_task(TASK)) == 2, "both were asked"
        await trio.sleep(20)
        late.awake.set()
        await world.until(lambda: TASK in late.cancelled and not late.places, seconds=60)
        assert world.task().worker == first.peer


async def test_a_stop_of_a_run_in_vain_that_is_not_answered_is_told_again(
    world: World, autojump_clock: MockClock
) -> None:
    lost = world.worker("lost", seconds=2000.0)
    world.submit(1, attempts=5)
    async with world.scheduler():
        await world.until(lambda: TaskState.RUNNING in world.states())
        good = world.worker("good", seconds=2000.0)
        world.swarm.partition([lost.peer], [SCHEDULER.peer_id])
        await world.until(lambda: world.task().worker == good.peer, seconds=60)
        lost.mute = (Cancel,)
        world.swarm.heal()
        await trio.sleep(60)
        assert lost.cancelled == []
        lost.mute = ()
        await world.until(lambda: lost.cancelled == [TASK], seconds=60)


async def test_a_stop_whose_link_broke_before_the_answer_is_told_again(
    world: World, autojump_clock: MockClock
) -> None:
    lost = Breaks(world.swarm, "lost", seconds=2000.0)
    add(world, lost)
    world.submit(1, attempts=5)
    async with world.scheduler():
        await world.until(lambda: TaskState.RUNNING in world.states())
        good = world.worker("good", seconds=2000.0)
        world.swarm.partition([lost.peer], [SCHEDULER.peer_id])
        await world.until(lambda: world.task().worker == good.peer, seconds=60)
        world.swarm.heal()
        await world.until(lambda: lost.cancelled == [TASK], seconds=60)


async def test_a_cancel_that_is_denied_shows_that_another_scheduler_leads_the_campaign(
    world: World, autojump_clock: MockClock
) -> None:
    worker = Adopted(world.swarm, "a", seconds=2000.0)
    add(world, worker)
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: TaskState.RUNNING in world.states())
        assert worker.link is not None
        link = worker.link
        with Store(world.store_path) as other:
            other.campaigns.request_cancel("c-one")
        await world.until(lambda: not world.store.campaigns.unfinished(), seconds=10)
        assert worker.link is link, "the link, which others use too, is not broken for that"
    assert world.task().reason is Reason.ADOPTED
    assert not worker.cancelled
