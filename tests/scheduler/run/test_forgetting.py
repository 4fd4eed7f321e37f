"""A deleted campaign: which workers are asked to forget it, when, and the effect of their answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from protocol.errors import CampaignError
from protocol.messages.forget import Forget, Forgotten
from protocol.messages.work import AdoptRequest, Cancel, Denied, Renew
from protocol.values.attempt import TaskState
from protocol.words import Reason
from scheduler.experiments.deletion import too_old
from scheduler.store import archive
from scheduler.store.deletion import KEEP_S
from scheduler.store.store import Store, delete_old
from tests.scheduler.conftest import SCHEDULER

World = Any
"""`World` of conftest.py."""


class Forgetful:
    """What a scripted worker was asked to forget, and its answer."""

    def __init__(self, worker: Any) -> None:
        self.asked: list[tuple[str, str, int]] = []
        self.answers: list[Denied] = []
        self.forgot = trio.Event()
        self.rest = worker.answer
        worker.answer = self.answer
        worker.start()

    async def answer(self, link: Any, message: Any) -> Any:
        if not isinstance(message, Forget):
            return await self.rest(link, message)
        self.asked.append((link.peer, message.campaign, message.epoch))
        if self.answers:
            return self.answers.pop(0)
        self.forgot.set()
        return Forgotten(models=1, size=7)


def delete(world: World, campaign: str = "c-one") -> Any:
    with Store(world.store_path) as other:
        return other.deletions.delete(campaign, SCHEDULER.peer_id)


async def test_the_workers_that_ran_a_campaign_are_asked_to_forget_it_and_then_no_more(
    world: World, autojump_clock: MockClock
) -> None:
    mini, idle = Forgetful(world.worker("mini")), Forgetful(world.worker("idle", seconds=1))
    world.submit(1)
    await world.run()
    (peer,) = {attempt.worker for attempt in world.store.attempts.all("c-one")}
    asked = next(
        one for one, worker in zip((mini, idle), world.index.workers, strict=True) if worker.peer == peer
    )
    epoch = world.store.campaigns.get("c-one").epoch
    deleted = delete(world)
    assert (deleted.tasks, deleted.records) == (1, 1)
    assert [row.worker for row in deleted.forgets] == [peer]
    world.new_process()
    await world.run()  # no campaign is open, so it ends once the worker was asked
    assert asked.asked == [(SCHEDULER.peer_id, "c-one", epoch)]
    assert len(mini.asked + idle.asked) == 1
    assert world.store.deletions.owed() == ()
    assert world.store.campaigns.get("c-one") is None


async def test_a_worker_that_is_away_is_asked_when_it_is_reached_again_and_keeps_no_process_alive(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini")
    forgetful = Forgetful(worker)
    world.submit(1)
    await world.run()
    worker.die()
    delete(world)
    world.new_process()
    await world.run()
    (owed,) = world.store.deletions.owed()
    assert (owed.campaign, owed.worker, owed.device) == ("c-one", worker.peer, "mini")
    world.new_process()
    world.submit(1, campaign="c-two", wait_s=10_000.0)
    async with world.scheduler():
        await trio.sleep(100)
        assert not forgetful.asked
        worker.restart()
        await world.until(lambda: world.states("c-two") == {TaskState.SUCCEEDED}, 500)
        await world.until(forgetful.forgot.is_set, 5)
        await world.until(lambda: not world.store.deletions.owed())


async def test_a_worker_of_a_version_that_cannot_forget_is_not_asked_until_it_was_updated(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini")
    forgetful = Forgetful(worker)
    worker.advert = worker.advert.model_copy(update={"features": None, "version": "0.0.9"})
    world.submit(1)
    await world.run()
    delete(world)
    world.new_process()
    await world.run()  # it keeps no process alive
    assert not forgetful.asked
    assert too_old(world.store, world.store.deletions.owed()) == {"mini": "0.0.9"}
    worker.advert = worker.advert.model_copy(update={"features": ("forget",), "version": "0.2.0"})
    world.new_process()
    world.submit(1, campaign="c-two")
    async with world.scheduler():
        await world.until(lambda: world.states("c-two") == {TaskState.SUCCEEDED}, 500)
        await world.until(lambda: not world.store.deletions.owed(), 5000)
    assert [campaign for _, campaign, _ in forgetful.asked] == ["c-one"]
    assert too_old(world.store, ()) == {}


async def test_workers_are_asked_to_forget_what_is_pruned_as_old_too(
    world: World, autojump_clock: MockClock
) -> None:
    forgetful = Forgetful(world.worker("mini"))
    world.submit(1)
    await world.run()
    with Store(world.store_path) as other:
        assert delete_old(other, -1e9) == ("c-one",)
        assert other.deletions.owed() == (), "without the key that signed it nobody may ask"
    world.new_process()
    world.submit(1, campaign="c-two")
    await world.run()
    with Store(world.store_path) as other:
        assert delete_old(other, -1e9, scheduler=SCHEDULER.peer_id) == ("c-two",)
    world.new_process()
    await world.run()
    assert [campaign for _, campaign, _ in forgetful.asked] == ["c-two"]


async def test_a_busy_worker_is_asked_again_and_one_where_another_scheduler_leads_is_not(
    world: World, autojump_clock: MockClock
) -> None:
    forgetful = Forgetful(world.worker("mini"))
    world.submit(1)
    world.submit(1, campaign="c-two")
    await world.run()
    delete(world)
    delete(world, "c-two")
    forgetful.answers = [
        Denied(reason=Reason.BUSY, retry_s=20.0),
        Denied(reason=Reason.STALE_EPOCH),
    ]
    world.new_process()
    await world.run()
    assert [campaign for _, campaign, _ in forgetful.asked] == ["c-one", "c-two", "c-one"]
    assert world.store.deletions.owed() == ()


async def test_nothing_is_deleted_while_something_of_it_goes_on(
    world: World, autojump_clock: MockClock
) -> None:
    worker = world.worker("mini", seconds=10_000.0)
    world.submit(1)
    async with world.scheduler():
        await world.until(lambda: world.task().state is TaskState.RUNNING)
        with pytest.raises(CampaignError, match="c-one has not ended") as running:
            delete(world)
        assert running.value.hint == "cancel it first: sark-node cancel c-one"
        worker.mute = (Renew, AdoptRequest, Cancel)
        with Store(world.store_path) as other:
            other.campaigns.request_cancel("c-one")
        await world.until(lambda: not world.store.campaigns.unfinished())
        with pytest.raises(CampaignError, match="mini has not confirmed yet that its run was stopped"):
            delete(world)
    assert world.store.campaigns.get("c-one") is not None
    assert world.store.deletions.owed() == ()


async def test_a_campaign_of_another_key_goes_here_but_nobody_is_asked(
    world: World, autojump_clock: MockClock
) -> None:
    world.worker("mini")
    world.submit(1)
    await world.run()
    with Store(world.store_path) as other:
        assert other.deletions.delete("c-one", "another key").forgets == ()
    assert world.store.campaigns.get("c-one") is None


async def test_a_campaign_that_was_deleted_and_imported_can_be_deleted_again(
    world: World, autojump_clock: MockClock, tmp_path: Path
) -> None:
    world.worker("mini")
    world.submit(1)
    await world.run()
    with Store(world.store_path) as store:
        archive.write_copy(tmp_path / "copy.db", store)
    before = delete(world)
    with Store(world.store_path) as store, archive.open_copy(tmp_path / "copy.db", tmp_path) as source:
        archive.load(store, source, with_open=False)
    assert [one.worker for one in delete(world).forgets] == [one.worker for one in before.forgets]
    assert len(world.store.deletions.owed()) == 1


async def test_what_is_owed_for_too_long_or_was_imported_again_is_given_up(
    world: World, autojump_clock: MockClock
) -> None:
    world.worker("mini")
    for campaign in ("c-one", "c-two", "c-three"):
        world.submit(1, campaign=campaign)
    await world.run()
    for campaign in ("c-one", "c-two", "c-three"):
        delete(world, campaign)
    world.submit(1, campaign="c-two")
    with Store(world.store_path) as later:
        later.deletions.settle("c-three", world.index.workers[0].peer)
        later.deletions.give_up()
        assert [row.campaign for row in later.deletions.owed()] == ["c-one"]
        now = later.database.wall()
        later.database.wall = lambda: now + KEEP_S + 1
        later.deletions.give_up()
        assert later.deletions.owed() == ()
