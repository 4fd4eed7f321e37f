"""Calibrates again while this worker idles and the host is quiet, if the calibration is uncertain or a day old.

idle, due ─▶ quiet? ─▶ one more round under the device lock ─▶ joined
                          └ a task begins here, or another process on this host waits for the device: ended at once, retried later
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from node.device.calibration import Calibration, headline
from node.device.calibration_rounds import Calibrator, RoundEnd
from protocol.errors import ResourceError

LOOK_S: Final = 60.0
WANTED_S: Final = 0.1
"""Seconds between checks for processes that wait for the device."""
SURE_ROUNDS: Final = 3
UNSURE_S: Final = 3600.0
"""Age at which a calibration of fewer rounds gets another one."""
OLD_S: Final = 24 * 3600.0
LONGEST_PAUSE_S: Final = 6 * 3600.0
"""Longest pause. Each pause after a disturbed round is twice as long as the previous one."""

log = structlog.get_logger("sark.worker")


def is_due(calibration: Calibration | None, now: float) -> bool:
    """Whether another round is due. `now`: seconds since the epoch; a clock that was set back makes a round due."""
    if calibration is None or calibration.quiet is False:
        return True
    return not 0 <= now - calibration.at < (OLD_S if calibration.rounds >= SURE_ROUNDS else UNSURE_S)


def pause_after(end: RoundEnd | None, spoilt: int) -> float:
    """Seconds until the next check. None: the round gave way, or could not be stored or measured. `spoilt`: disturbed rounds in a row."""
    if end is RoundEnd.DISTURBED:
        return float(min(LONGEST_PAUSE_S, LOOK_S * 2**spoilt))
    return LOOK_S


@dataclass
class Recheck:
    """Repeats calibration rounds; each worker that calibrates has one."""

    calibrator: Calibrator
    idle: Callable[[], bool]
    """Whether the worker serves, and no task runs or waits here."""
    tell: Callable[[str], object] = lambda line: None
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = trio.sleep
    _round: trio.CancelScope = field(default_factory=trio.CancelScope)
    _spoilt: int = 0

    def give_way(self) -> None:
        """End a calibration round in progress, because a task begins. Never waits."""
        self._round.cancel()

    async def keep(self) -> None:
        """Run until cancelled."""
        end: RoundEnd | None = None
        while True:
            await self.sleep(pause_after(end, self._spoilt))
            if self.idle() and is_due(self.calibrator.current, self.wall()):
                end = await self.once()
                self._spoilt = self._spoilt + 1 if end is RoundEnd.DISTURBED else 0

    async def once(self) -> RoundEnd | None:
        """One round, if the host is quiet. None: the round gave way, or its result could not be stored."""
        end: RoundEnd | None = None
        self._round = trio.CancelScope()
        try:
            with self._round:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch)
                    end = await self.calibrator.at_quiet()
                    nursery.cancel_scope.cancel()
        except* (ResourceError, OSError) as group:
            log.warning("calibration.lost", why=str(_first(group)))
        if end is RoundEnd.JOINED and self.calibrator.current is not None:
            self.tell(f"calibrated at a quiet moment: {headline(self.calibrator.current)}")
        log.info("calibration.round", end=end or "gave way")
        return end

    async def _watch(self) -> None:
        while True:
            await self.sleep(WANTED_S)  # poll: other processes give no event to wait for
            if self.calibrator.lock.wanted():
                self._round.cancel()


def _first(error: BaseException) -> BaseException:
    """The first exception of a group, which may contain groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
