"""Looks at each of a node's connections when it is due, in one shared task: two tasks took a third of an idle connection's memory."""

from __future__ import annotations

import heapq
import math
from typing import Protocol

import trio


class CheckedConnection(Protocol):
    """A connection that `DueChecks` can look at."""

    event_shutting_down: trio.Event

    def look(self) -> float | None:
        """Return when to look again, on trio's clock; None: it will add itself again. Must not wait."""
        ...


class DueChecks:
    """Connections, and when each is due. The task runs while there are any."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, CheckedConnection]] = []
        self._count = 0
        self._running = False
        self._until = -math.inf
        """When the task wakes."""
        self._sooner = trio.Event()

    def add(self, connection: CheckedConnection, at: float) -> None:
        """Look at the connection at this time, unless it is closing by then."""
        self._count += 1
        heapq.heappush(self._due, (at, self._count, connection))
        if not self._running:
            self._running = True
            trio.lowlevel.spawn_system_task(self._run)
        elif at < self._until:
            self._sooner.set()

    async def _run(self) -> None:
        while self._due:
            self._until, self._sooner = self._due[0][0], trio.Event()
            with trio.move_on_at(self._until):
                await self._sooner.wait()
            now = trio.current_time()
            while self._due and self._due[0][0] <= now:
                _, _, connection = heapq.heappop(self._due)
                if connection.event_shutting_down.is_set():
                    continue
                again = connection.look()
                if again is not None:
                    self.add(connection, again)
            self._until = -math.inf
        self._running = False
