"""Lets a long-lived process of a home keep its scheduler running: a server, or the service that joins again after a reboot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

import structlog
import trio

from protocol.errors import SarkError
from scheduler.store.store import has_store, open_store
from scheduler.submit.daemon import is_running
from swarm.base.home import Home
from swarm.base.threads import DISK

CHECK_S: Final = 5.0
MAX_CHECK_S: Final = 300.0

log = structlog.get_logger("sark.scheduler")


async def keep_running(
    home: Home,
    unfinished: Callable[[], Awaitable[int]],
    start: Callable[[], Awaitable[object]],
    *,
    every_s: float = CHECK_S,
) -> NoReturn:
    """Start the scheduler while campaigns are open and none runs, with a growing delay if it keeps ending. `unfinished`: returns the number
    of open campaigns.
    """
    wait_s = every_s
    while True:
        await trio.sleep(wait_s)
        try:
            campaigns = await unfinished()
            if not campaigns or await DISK.run(is_running, home):
                wait_s = every_s
                continue
            log.info("scheduler.restarted", campaigns=campaigns)
            await start()
        except SarkError as exc:  # also for settings that broke meanwhile: they may be corrected
            log.warning("scheduler.start_failed", why=exc.what)
        wait_s = min(2 * wait_s, MAX_CHECK_S)


async def take_up_campaigns(home: Home, start: Callable[[], object], *, every_s: float = CHECK_S) -> NoReturn:
    """Keep the scheduler running for the campaigns of this home's store. `start` blocks."""

    def unfinished() -> int:
        if not has_store(home):
            return 0
        with open_store(home) as store:
            return len(store.campaigns.unfinished())

    await keep_running(home, lambda: DISK.run(unfinished), lambda: DISK.run(start), every_s=every_s)
