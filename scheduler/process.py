"""The scheduler process of a home: onto the network, then the service until no campaign is left."""

from __future__ import annotations

import structlog
import trio

from scheduler.service import run_scheduler
from scheduler.settings import SchedulerSettings
from scheduler.spool import tidy
from scheduler.store import Store
from swarm.entry import enter, until_told_to_stop
from swarm.home import Home

log = structlog.get_logger("sark.scheduler")


async def run_process(home: Home, settings: SchedulerSettings, stay: bool, stop_with_stdin: bool) -> None:
    """Run every unfinished campaign of `home`; `stay`: and wait for more. Raises `ResourceError` when another process does that."""
    async with enter("scheduler", home, settings, holder=False) as here, trio.open_nursery() as nursery:

        async def signals() -> None:
            name = await until_told_to_stop(with_stdin=stop_with_stdin)
            log.info("scheduler.stopping", signal=name)
            nursery.cancel_scope.cancel()

        nursery.start_soon(signals)
        with Store(home.store) as store:
            tidied = tidy(home.spool, store.needed_models())
            log.info(
                "scheduler.up", models_removed=tidied, peer=here.identity.peer_id, gates=list(here.gates)
            )
            await run_scheduler(
                network=here.network,
                index=here.index,
                identity=here.identity,
                store=store,
                spool=home.spool,
                stop_when_idle=not stay,
            )
        nursery.cancel_scope.cancel()
