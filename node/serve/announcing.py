"""What a worker tells the swarm of itself: its advert, which is made anew whenever it says something else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import structlog
import trio

from node.serve.dependencies import AdvertIndex
from protocol.values.advert import Advert
from protocol.values.index_keys import MAX_CAMPAIGNS

SPACING_S: Final = 5.0
"""Between two adverts, however much happens."""
CHECK_S: Final = 60.0

log = structlog.get_logger("sark.worker")


class Announcer:
    """Keeps the advert in the index as it should be.

    advert     this worker's advert, as of now
    campaigns  those that it works for, and those whose results lie here, most important first
    """

    def __init__(self, advert: Callable[[], Advert], campaigns: Callable[[], Iterable[str]]) -> None:
        self.advert = advert
        self._campaigns = campaigns
        self._old = trio.Event()

    def moved(self) -> None:
        """The advert may say something else now. Never waits."""
        self._old.set()

    async def keep(self, index: AdvertIndex) -> None:
        """Publish what changed, at once and then each `SPACING_S` at most."""
        last: tuple[Advert, tuple[str, ...]] | None = None
        while True:
            current = (self.advert(), tuple(dict.fromkeys(self._campaigns()))[:MAX_CAMPAIGNS])
            if current != last:
                holders = await index.publish(*current)
                log.debug("advert.published", holders=holders, models=len(current[0].models))
                last = current
            with trio.move_on_after(CHECK_S):
                await self._old.wait()
            self._old = trio.Event()
            await trio.sleep(SPACING_S)
