"""The swarm as the first system's clients see it: its workers, or a line that says why there are none."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from protocol.errors import SarkError
from scheduler.output.fleet import show_device
from scheduler.output.watcher import Lookout
from web.compat.worker_models import FirstWorker, first_worker
from web.http.problems import Wrong
from web.routes.fleet import picture_of


@dataclass(frozen=True, slots=True)
class Seen:
    """One look."""

    at: float
    """Wall seconds since 1970."""
    workers: tuple[FirstWorker, ...]
    note: str = ""
    """Why nothing can be seen."""


@dataclass(frozen=True, slots=True)
class Looking:
    """Looks when somebody asks."""

    lookout: Lookout
    wall: Callable[[], float] = time.time

    async def look(self) -> Seen:
        """Every worker that can be found; a swarm that cannot be reached has none, as an orchestrator without workers."""
        try:
            picture = await picture_of(self.lookout)
        except SarkError as exc:
            return Seen(self.wall(), (), f"{exc.what}; {exc.hint}" if exc.hint else exc.what)
        except Wrong as exc:
            return Seen(self.wall(), (), exc.detail)
        return Seen(picture.at, tuple(first_worker(show_device(item), picture.at) for item in picture.seen))

    async def find(self, worker: str) -> tuple[FirstWorker, float]:
        """One of them, and when it was looked at. Raises `Wrong`."""
        seen = await self.look()
        for one in seen.workers:
            if one.worker_id == worker:
                return one, seen.at
        raise Wrong(
            HTTPStatus.NOT_FOUND,
            f"no worker {worker!r} can be found" + (f": {seen.note}" if seen.note else ""),
            hint="a device joins by itself: POST /api/register answers with the command to type there",
        )
