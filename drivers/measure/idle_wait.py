"""A busy host is waited for before the first launch, and then measured on all the same: the row says how busy it was.

    glance   a few readings, 2 ms apart, of how many processes run: nobody but the reader ─▶ go; a quiet device loses 2 ms
    look     a tenth of a second of what others took of the processors ─▶ little: go; else wait and begin anew

The node's own work is not others' work: the processor time of its whole family is taken off. On a host that is never quiet the
wait becomes shorter from task to task, so that a long campaign does not stand still.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final

from drivers.measure import host

BUSY: Final = 0.05
"""Share of the processors' time that others take, or of the time in which something waits for a processor."""
GLANCE_S: Final = 0.002
GLANCES: Final = 4
"""Before a look is taken: 6 ms."""
LOOK_S: Final = 0.1
PAUSE_S: Final = 0.25
IN_A_ROW: Final = 2
"""Readings that find nobody else running."""
LEAST_S: Final = 0.2
"""To which the wait shrinks where it never helps."""


@dataclass(frozen=True, slots=True)
class IdleWaitReport:
    """How the host was when the wait was over."""

    seconds: float
    busy_share: float | None
    """What others took of the processors; None: the host is quiet, or does not tell."""

    def note(self) -> str:
        """For the row."""
        if self.busy_share is None:
            return "the host was quiet before the first launch"
        return f"others took {self.busy_share:.0%} of the processors before the first launch, after {self.seconds:.1f} s of waiting too"


def family_cpu_s() -> float:
    """Processor time of this process and everything below it, in seconds; what has ended counts with its parent."""
    import psutil

    spent = time.process_time()
    me = psutil.Process()
    told = me.cpu_times()
    spent += told.children_user + told.children_system
    for child in me.children(recursive=True):
        try:
            told = child.cpu_times()
        except psutil.Error:
            continue
        spent += told.user + told.system + told.children_user + told.children_system
    return spent


class IdleWait:
    """One for a node: it learns whether waiting helps here."""

    def __init__(
        self,
        most_s: float = 10.0,
        *,
        reader: host.HostReader | None = None,
        own_cpu_s: Callable[[], float] = family_cpu_s,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_s = most_s
        self._allowed_s = most_s
        self._reader = reader or host.HostReader()
        self._own_cpu_s = own_cpu_s
        self._clock = clock

    @property
    def allowed_s(self) -> float:
        """How long the next wait may take."""
        return self._allowed_s

    def wait(self, sleep: Callable[[float], object]) -> Generator[tuple[float, float], None, IdleWaitReport]:
        """Wait until the host is quiet. Yields (seconds waited, seconds at most) before it goes on waiting; returns how it ended.

        `sleep` takes seconds and may come back early.
        """
        if not self._most_s or self._glance(sleep, GLANCES):
            return IdleWaitReport(0.0, None)
        began = self._clock()
        while True:
            share = self._look(sleep)
            waited = self._clock() - began
            if share is None:
                self._allowed_s = self._most_s
                return IdleWaitReport(waited, None)
            if waited >= self._allowed_s:
                self._allowed_s = max(min(LEAST_S, self._most_s), self._allowed_s / 2)
                return IdleWaitReport(waited, share)
            yield waited, self._allowed_s
            sleep(min(PAUSE_S, self._allowed_s - waited))

    def _glance(self, sleep: Callable[[float], object], most: int) -> bool:
        """Whether nobody else ran at `IN_A_ROW` readings in a row, out of at most so many. True where that is not told."""
        row = 0
        for reading in range(most):
            told = self._reader.running()
            if told is None:
                return True
            running, processors = told
            row = row + 1 if running - 1 <= BUSY * processors else 0
            if row == IN_A_ROW:
                return True
            if reading < most - 1:
                sleep(GLANCE_S)
        return False

    def _look(self, sleep: Callable[[float], object]) -> float | None:
        """How busy others keep the host for `LOOK_S`, 0 to 1; None as soon as it is quiet."""
        before, own = self._reader.look(), self._own_cpu_s()
        if self._glance(sleep, round(LOOK_S / GLANCE_S)):
            return None
        after, own = self._reader.look(), self._own_cpu_s() - own
        others, stalled = host.others_share(before, after, own), host.stall_share(before, after)
        return others if others is not None and max(others, stalled or 0.0) > BUSY else None
