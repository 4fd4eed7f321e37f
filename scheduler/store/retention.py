"""How long campaigns are kept after they have ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog
import trio

from protocol.errors import ResourceError
from swarm.base.units import parse_age

if TYPE_CHECKING:
    from scheduler.store.store import Store

DAY_S: Final = 86_400.0

log = structlog.get_logger("sark.scheduler")


def forget_old(store: Store, older_s: float, *, keep: int = 0) -> tuple[str, ...]:
    """Remove what ended longer ago, but for the `keep` campaigns that ended last; gives the ids. Open ones always stay. Blocking."""
    old = store.old_campaigns(older_s, keep=keep)
    return tuple(campaign.id for campaign in old if store.forget_campaign(campaign.id))


async def keep_tidy(open_store: Callable[[], Store], keep: str) -> None:
    """Remove what is older than `keep` now and once a day, in a thread, for ever."""
    while True:
        try:
            gone = await trio.to_thread.run_sync(_tidy, open_store, parse_age(keep))
            if gone:
                log.info("campaigns.forgotten", campaigns=gone, older_than=keep)
        except ResourceError as exc:
            log.warning("campaigns.not-forgotten", why=exc.what)
        await trio.sleep(DAY_S)


def _tidy(open_store: Callable[[], Store], older_s: float) -> int:
    with open_store() as store:
        return len(forget_old(store, older_s))
