"""The swarm as the first system's clients see it: its workers, or a line that says why there are none."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from protocol.errors import SarkError
from scheduler.output.fleet import show_device
from scheduler.output.watcher import FleetWatcher
from web.compat.worker_models import FirstWorker, first_worker
from web.http.problems import InvalidField
from web.routes.fleet import picture_of


@dataclass(frozen=True, slots=True)
class CompatSnapshot:
    """One look."""

    at: float
    """Wall seconds since 1970."""
    workers: tuple[FirstWorker, ...]
    note: str = ""
    """Why nothing can be seen."""


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """Looks when somebody asks."""

    lookout: FleetWatcher
    wall: Callable[[], float] = time.time

    async def look(self) -> CompatSnapshot:
        """Every worker that can be found; a swarm that cannot be reached has none, as an orchestrator without workers."""
        try:
            picture = await picture_of(self.lookout)
        except SarkError as exc:
            return CompatSnapshot(self.wall(), (), f"{exc.what}; {exc.hint}" if exc.hint else exc.what)
        except InvalidField as exc:
            return CompatSnapshot(self.wall(), (), exc.detail)
        return CompatSnapshot(
            picture.at, tuple(first_worker(show_device(item), picture.at) for item in picture.seen)
        )

    async def find(self, worker: str) -> tuple[FirstWorker, float]:
        """One of them, and when it was looked at. Raises `InvalidField`."""
        seen = await self.look()
        for one in seen.workers:
            if one.worker_id == worker:
                return one, seen.at
        raise InvalidField(
            HTTPStatus.NOT_FOUND,
            f"no worker {worker!r} can be found" + (f": {seen.note}" if seen.note else ""),
            hint="a device joins by itself: POST /api/register answers with the command to type there",
        )
