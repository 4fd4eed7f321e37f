"""Waits for an idle host before the first launch, up to a limit. Then it measures anyway, and the row says how busy the host was.

    glance   a few readings, 2 ms apart, of how many processes run: only the reader ─▶ go; an idle device loses 2 ms
    look     a tenth of a second of what others use of the processors ─▶ little: go; else wait and repeat

The processor time of the node's own process tree does not count. On a host that is never idle the wait becomes shorter from task to task,
so that a long campaign makes progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final

from drivers.measure import host
from drivers.measure.process_tree import process_tree_cpu_s

BUSY: Final = 0.05
"""The host is busy above this share of the processors' time used by others, or of the time in which something waits for a processor."""
GLANCE_S: Final = 0.002
GLANCES: Final = 4
"""Most readings before a look: 6 ms."""
LOOK_S: Final = 0.1
PAUSE_S: Final = 0.25
IN_A_ROW: Final = 2
"""Idle readings in a row that suffice."""
MIN_WAIT_S: Final = 0.2
"""The limit of the wait shrinks to this if waiting never helps."""


@dataclass(frozen=True, slots=True)
class IdleWaitReport:
    seconds: float
    busy_share: float | None
    """Share of the processors used by others; None: the host is idle, or does not report it."""

    def note(self) -> str:
        if self.busy_share is None:
            return "the host was idle before the first launch"
        waited = f"after {self.seconds:.1f} s of waiting"
        return (
            f"other processes used {self.busy_share:.0%} of the processors before the first launch, {waited}"
        )


class IdleWait:
    """One per node: it learns whether waiting helps."""

    def __init__(
        self,
        max_wait_s: float = 10.0,
        *,
        reader: host.HostReader | None = None,
        own_cpu_s: Callable[[], float] = process_tree_cpu_s,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_wait_s = max_wait_s
        self.allowed_s = max_wait_s
        """Limit of the next wait."""
        self._reader = reader or host.HostReader()
        self._own_cpu_s = own_cpu_s
        self._clock = clock

    def wait(self, sleep: Callable[[float], object]) -> Generator[tuple[float, float], None, IdleWaitReport]:
        """Wait until the host is idle. Yields (seconds waited, limit) before each further wait.

        `sleep` takes seconds and may return early.
        """
        if not self._max_wait_s or self._glance(sleep, GLANCES):
            return IdleWaitReport(0.0, None)
        began = self._clock()
        while True:
            share = self._look(sleep)
            waited = self._clock() - began
            if share is None:
                self.allowed_s = self._max_wait_s
                return IdleWaitReport(waited, None)
            if waited >= self.allowed_s:
                self.allowed_s = max(min(MIN_WAIT_S, self._max_wait_s), self.allowed_s / 2)
                return IdleWaitReport(waited, share)
            yield waited, self.allowed_s
            sleep(min(PAUSE_S, self.allowed_s - waited))

    def _glance(self, sleep: Callable[[float], object], most: int) -> bool:
        """Whether nothing else ran at `IN_A_ROW` consecutive readings, out of at most `most`. True if the system reports no readings."""
        row = 0
        for count in range(1, most + 1):
            reading = self._reader.running()
            if reading is None:
                return True
            running, processors = reading
            row = row + 1 if running - 1 <= BUSY * processors else 0
            if row == IN_A_ROW:
                return True
            if count < most:
                sleep(GLANCE_S)
        return False

    def _look(self, sleep: Callable[[float], object]) -> float | None:
        """The share of the processors that others use over `LOOK_S`, 0 to 1; None as soon as the host is idle."""
        before, own = self._reader.look(), self._own_cpu_s()
        if self._glance(sleep, round(LOOK_S / GLANCE_S)):
            return None
        after, own = self._reader.look(), self._own_cpu_s() - own
        others, stalled = host.others_share(before, after, own), host.stall_share(before, after)
        return others if others is not None and max(others, stalled or 0.0) > BUSY else None
