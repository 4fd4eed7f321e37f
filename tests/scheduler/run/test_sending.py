"""Results on their way to a URL: sent when their campaign has ended, retried, and continued by the next process."""

from __future__ import annotations

import sys
from typing import Any

import trio
from trio.testing import MockClock

from scheduler.campaign.load import parse_campaign
from scheduler.run.sending import STAY_TRIES, send_apart
from tests.scheduler.conftest import SCHEDULER

World = Any
"""`World` of conftest.py."""
URL = "memory://x"
SPEC = parse_campaign(
    f"campaign: t\nmodels: [m.onnx]\nunits: [CPU (ONNX)]\nresults: {URL}\n".encode(), "c.yaml"
).spec()


class Storage:
    """Accepts results after a number of refusals."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, campaign: str, url: str) -> str:
        await trio.lowlevel.checkpoint()
        self.asked.append((campaign, url))
        return "the bucket is closed" if len(self.asked) <= self.refusals else ""


async def test_results_are_sent_once_their_campaign_has_ended_and_tried_again(
    world: World, autojump_clock: MockClock
) -> None:
    world.worker("mini")
    world.submit(1, spec=SPEC)
    world.submit(1, campaign="c-two")
    storage = Storage(refusals=2)
    await world.service(send=storage).run()
    assert storage.asked == [("c-one", URL)] * 3
    row = world.store.sendings.get("c-one")
    assert (row.tries, row.why, row.sent is None) == (3, "", False)
    assert world.store.sendings.get("c-two") is None


async def test_what_a_process_gave_up_or_died_over_the_next_one_goes_on_with(
    world: World, autojump_clock: MockClock
) -> None:
    world.worker("mini")
    world.submit(1, spec=SPEC)
    closed = Storage(refusals=99)
    await world.service(send=closed).run()  # it ends although nothing was sent
    assert len(closed.asked) == STAY_TRIES
    assert [row.campaign for row in world.store.sendings.due(SCHEDULER.peer_id)] == ["c-one"]
    world.new_process()
    opened = Storage()
    await world.service(send=opened).run()
    assert opened.asked == [("c-one", URL)]
    assert world.store.sendings.due(SCHEDULER.peer_id) == ()


async def test_a_process_that_sends_says_in_one_line_why_it_failed() -> None:
    python = [sys.executable, "-c"]
    assert await send_apart([*python, "pass"], "c-one", URL) == ""
    said = "import sys; print('sark-node: no bucket', file=sys.stderr); print('hint', file=sys.stderr); sys.exit(6)"
    assert await send_apart([*python, said], "c-one", URL) == "no bucket"
    assert await send_apart([*python, "raise RuntimeError('a bug')"], "c-one", URL) == "RuntimeError: a bug"
    assert "cannot start" in await send_apart(["/no/such/program"], "c-one", URL)
