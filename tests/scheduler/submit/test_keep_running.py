"""A service of a home runs the open campaigns of its store."""

from __future__ import annotations

from pathlib import Path

import trio

from scheduler.store.rows import NewCampaign
from scheduler.store.store import open_store
from scheduler.submit.keep_running import take_up_campaigns
from swarm.base.home import Home


async def test_a_service_that_starts_takes_up_the_campaigns_that_are_open(tmp_path: Path) -> None:
    home, started = Home.at(tmp_path), trio.Event()
    async with trio.open_nursery() as nursery:

        def start() -> None:
            trio.from_thread.run_sync(started.set)

        with open_store(home) as store:
            store.campaigns.create(NewCampaign("c-one", "one", "12D3Koo", "{}"), [], None)
        nursery.start_soon(lambda: take_up_campaigns(home, start, every_s=0.0))
        with trio.fail_after(60):
            await started.wait()
        nursery.cancel_scope.cancel()
