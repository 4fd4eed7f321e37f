"""A real worker gets a task whose model the scheduler cannot give. It follows the task's URL: for the owner always, for anybody else
not into the device's own network."""

from __future__ import annotations

from typing import Any

import trio

from node.store.model_files import listing
from protocol.messages.work import Granted
from protocol.words import Reason, RunOutcome
from tests.node.conftest import CONTENT
from tests.swarm.web_parts import web


async def test_the_owners_task_gets_its_model_from_its_url(world: Any) -> None:
    async with web() as site:
        site.file("/m.onnx?key=s3cret", CONTENT)
        await world.start()
        world.ann.content = None
        world.device.go.set()
        link = await world.link()
        task = world.ann.task(model_url=f"http://127.0.0.1:{site.port}/m.onnx?key=s3cret")
        assert isinstance(await link.call(world.ann.commit(task)), Granted)
        assert (await world.ann.record()).outcome is RunOutcome.COMPLETE
        assert len(site.asked) == 1
        (stored,) = listing(world.folder / "cache")
        assert stored.origin == f"http://127.0.0.1:{site.port}/m.onnx"


async def test_a_url_that_changed_ends_the_run_with_the_reason(world: Any) -> None:
    async with web() as site:
        site.file("/m.onnx", CONTENT[::-1])
        await world.start()
        world.ann.content = None
        link = await world.link()
        task = world.ann.task(model_url=f"http://127.0.0.1:{site.port}/m.onnx")
        assert isinstance(await link.call(world.ann.commit(task)), Granted)
        record = await world.ann.record()
        assert (record.outcome, record.reason) == (RunOutcome.FAILED, Reason.WRONG_HASH)
        assert "the URL does not hold the campaign's file" in record.detail


async def test_somebody_who_is_let_in_cannot_reach_the_devices_own_network(world: Any) -> None:
    bob = world.scheduler()
    async with web() as site:
        site.file("/m.onnx", CONTENT)
        await world.start(allow=(bob.identity.peer_id,))
        bob.content = None
        link = await world.link(bob)
        for number, host in enumerate(("127.0.0.1", "localhost", "[::1]", "169.254.169.254"), start=1):
            for scheme in ("http", "https"):
                at = 2 * number + (scheme == "https")
                task = bob.task(at, model_url=f"{scheme}://{host}:{site.port}/m.onnx")
                assert isinstance(await link.call(bob.commit(task)), Granted)
                record = await bob.record(at - 1)
                assert (record.outcome, record.reason) == (RunOutcome.FAILED, Reason.FETCH_FAILED)
        assert site.asked == []


async def test_where_the_scheduler_gives_it_the_url_is_not_asked(world: Any) -> None:
    async with web() as site:
        await world.start()
        world.device.go.set()
        link = await world.link()
        task = world.ann.task(model_url=f"http://127.0.0.1:{site.port}/m.onnx")
        assert isinstance(await link.call(world.ann.commit(task)), Granted)
        assert (await world.ann.record()).outcome is RunOutcome.COMPLETE
        assert site.asked == []
        await trio.lowlevel.checkpoint()
