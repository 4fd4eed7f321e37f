"""Watching the swarm for many at once: one visitor stays while anybody looks, and everybody sees what it saw last.

somebody looks ──▶ run: open the eyes ──▶ look, show, wait a little ──▶ look …  nobody for a while ──▶ close them
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from protocol.errors import SarkError
from scheduler.output.peers import Opening, SeenPeer

EVERY_S: Final = 3.0
LINGER_S: Final = 20.0
"""So long the visitor stays when nobody looks any more: whoever comes back sees the swarm at once."""
REST: Final = 3.0
"""Looking takes no more than a part of the time: a large swarm is asked less often."""

log = structlog.get_logger("sark.api")


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """What was seen in one look, or why nothing could be seen."""

    number: int
    """From 1, rising."""
    at: float
    """Wall seconds since 1970."""
    seen: tuple[SeenPeer, ...]
    error: SarkError | None = None


class FleetWatcher:
    """One for a server. `run` must be running; `opening` opens the eyes and raises SarkErrors."""

    def __init__(
        self,
        opening: Opening,
        *,
        every_s: float = EVERY_S,
        linger_s: float = LINGER_S,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._opening = opening
        self._every_s = every_s
        self._linger_s = linger_s
        self._wall = wall
        self._looking = 0
        self._left_at = 0.0
        self._came = trio.Event()
        self._shown = trio.Event()
        self._number = 0
        self._picture: FleetSnapshot | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Somebody looks for as long as the block lasts."""
        self._looking += 1
        self._came.set()
        try:
            yield
        finally:
            self._looking -= 1
            self._left_at = trio.current_time()

    @property
    def readers(self) -> int:
        """How many look now."""
        return self._looking

    async def newer(self, than: int = 0) -> FleetSnapshot:
        """The latest picture, once there is one with a higher number. To be called while watching."""
        while self._picture is None or self._picture.number <= than:
            await self._shown.wait()
        return self._picture

    async def run(self) -> None:
        """Look around for as long as somebody wants it, again and again, for ever."""
        while True:
            await self._came.wait()
            error: SarkError | None = None
            try:
                await self._keep_looking()
            except* SarkError as group:
                error = _first(group)
            if error is not None:
                log.info("lookout.blind", why=error.what)
                self._show((), error)
                await trio.sleep(self._every_s)
            if not self._wanted():
                self._picture = None  # what comes next shall not be what was long ago
                self._came = trio.Event()

    async def _keep_looking(self) -> None:
        async with self._opening() as eyes:
            while self._wanted():
                began = trio.current_time()
                self._show(await eyes.look())
                took_s = trio.current_time() - began
                await trio.sleep(max(self._every_s, REST * took_s))

    def _wanted(self) -> bool:
        return self._looking > 0 or trio.current_time() - self._left_at < self._linger_s

    def _show(self, seen: tuple[SeenPeer, ...], error: SarkError | None = None) -> None:
        self._number += 1
        self._picture = FleetSnapshot(self._number, self._wall(), seen, error)
        self._shown.set()
        self._shown = trio.Event()


def _first(group: BaseExceptionGroup[SarkError]) -> SarkError:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
