"""Keeps this worker's advert in the index up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

import structlog
import trio

from protocol.values.advert import Advert
from protocol.values.index_keys import MAX_CAMPAIGNS

SPACING_S: Final = 5.0
"""Between two adverts, however much happens."""
CHECK_S: Final = 60.0

log = structlog.get_logger("sark.worker")


class AdvertIndex(Protocol):
    """What the worker needs of `swarm.index.index.Index`."""

    async def publish(self, advert: Advert, campaigns: Iterable[str] = ()) -> int: ...

    async def withdraw(self) -> int: ...


class Announcer:
    def __init__(self, advert: Callable[[], Advert], campaigns: Callable[[], Iterable[str]]) -> None:
        """`advert`: as of now. `campaigns`: those it works for, then those whose results are here."""
        self.advert = advert
        self._campaigns = campaigns
        self._changed = trio.Event()

    def changed(self) -> None:
        """The advert may say something else now. Never waits."""
        self._changed.set()

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
                await self._changed.wait()
            self._changed = trio.Event()
            await trio.sleep(SPACING_S)
