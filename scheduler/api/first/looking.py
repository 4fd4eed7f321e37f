"""The swarm as the first system's clients see it: its workers, or a line that says why there are none."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from protocol.errors import SarkError
from scheduler.api.first.worker_shapes import FirstWorker, first_worker
from scheduler.api.fleet import picture_of
from scheduler.api.problems import Wrong
from scheduler.devices import show_device
from scheduler.lookout import Lookout


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
