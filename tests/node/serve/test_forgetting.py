"""A whole worker forgets a campaign and removes its models, but no other campaign's models and none of its owner's."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from node.store import model_files
from node.store.cache import ModelCache
from protocol.messages.forget import Forget, Forgotten
from protocol.messages.work import Denied, Granted
from protocol.values.task import Model
from protocol.words import Reason, RunOutcome
from tests.node.conftest import CONTENT, get_model
from tests.node.store.test_cache import Holder, cache, model

SHA = hashlib.sha256(CONTENT).hexdigest()


async def measured(world: Any, link: Any, number: int, hand: Any = None) -> None:
    hand = hand or world.ann
    assert isinstance(await link.call(hand.commit(hand.task(number))), Granted)
    assert (await hand.record(number)).outcome is RunOutcome.COMPLETE


async def test_a_model_that_only_the_forgotten_campaign_used_is_removed(world: Any) -> None:
    worker = await world.start()
    world.device.go.set()
    link = await world.link()
    await measured(world, link, 1)
    assert worker._parts.cache.has(SHA)
    await worker.shell.wait_for(lambda: not world.unsent())
    reply = await link.ask(Forget(campaign="c-1", epoch=1), Forgotten)
    assert (reply.records, reply.models, reply.size) == (1, 1, len(CONTENT))
    assert not worker._parts.cache.has(SHA)
    assert not list((world.folder / "cache").glob("*.model"))
    again = await link.ask(Forget(campaign="c-1", epoch=1), Forgotten)
    assert (again.records, again.models) == (0, 0)
    await measured(world, link, 2)  # the model can be fetched again


async def test_while_something_is_measured_the_models_stay_and_it_is_to_be_asked_again(world: Any) -> None:
    bob = world.scheduler()
    worker = await world.start(allow=(bob.identity.peer_id,))
    link = await world.link()
    world.device.go.set()
    await measured(world, link, 1)
    async with worker.sharing.exclusive:
        answer = await link.ask(Forget(campaign="c-1", epoch=1), Denied)
        assert answer.reason is Reason.BUSY
        assert answer.retry_s
        assert worker._parts.cache.has(SHA)
    assert (await link.ask(Forget(campaign="c-1", epoch=1), Forgotten)).models == 1


async def test_in_the_gap_between_two_launches_of_a_run_its_model_stays(world: Any) -> None:
    worker = await world.start()
    link = await world.link()
    world.device.go.set()
    await measured(world, link, 1)
    cached, what = worker._parts.cache, Model(name="m.onnx", sha256=SHA, size=len(CONTENT))
    async with cached.using(what, Holder(CONTENT)):
        assert not worker.sharing.exclusive.locked()
        assert (await link.ask(Forget(campaign="c-1", epoch=1), Denied)).reason is Reason.BUSY
        assert cached.has(SHA)
    assert (await link.ask(Forget(campaign="c-1", epoch=1), Forgotten)).models == 1


async def used(stored: ModelCache, number: int, *campaigns: str) -> tuple[Model, bytes]:
    what, content = model(number)
    for campaign in campaigns:
        stored.uses.note(what.sha256, "ann", campaign)
    await get_model(stored, what, Holder(content))
    return what, content


async def test_models_that_others_use_or_that_the_owner_added_or_pinned_stay(tmp_path: Path) -> None:
    stored = cache(tmp_path)
    own, _ = await used(stored, 1, "c-1")
    both, _ = await used(stored, 2, "c-1", "c-2")
    pinned, _ = await used(stored, 3, "c-1")
    model_files.set_pin(tmp_path, model_files.find(tmp_path, pinned.sha256), True)
    added, content = await used(stored, 4, "c-1")
    source = tmp_path.parent / "added.onnx"
    source.write_bytes(content)
    model_files.add(tmp_path, source, room=10**6)
    unknown, _ = await used(stored, 5)
    later = cache(tmp_path)  # the next process knows the uses too
    assert await later.forget("bob", "c-1") == (0, 0)
    assert await later.forget("ann", "c-1") == (1, 1000)
    here = [one for one in (own, both, pinned, added, unknown) if later.has(one.sha256)]
    assert here == [both, pinned, added, unknown]
    assert await cache(tmp_path).forget("ann", "c-2") == (1, 1000)


async def test_what_has_arrived_of_a_model_is_removed_too(tmp_path: Path) -> None:
    stored = cache(tmp_path)
    what, _ = model(1)
    stored.uses.note(what.sha256, "ann", "c-1")
    part = model_files.file_of(tmp_path, what.sha256, "part")
    part.write_bytes(b"half")
    await stored.forget("ann", "c-1")
    assert not part.exists()
