"""Calibrates again at quiet moments: while this worker idles, whenever what is known is unsure or of yesterday.

idle, due ─▶ quiet? ─▶ one more round under the device lock ─▶ joined
                          └ a task begins here, or somebody on this host waits for the device: ended at once, tried again later
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
"""How often it sees whether somebody waits for the device."""
SURE_ROUNDS: Final = 3
UNSURE_S: Final = 3600.0
"""Age at which a calibration of fewer rounds is made surer."""
OLD_S: Final = 24 * 3600.0
LONGEST_PAUSE_S: Final = 6 * 3600.0
"""After rounds that were spoilt, each pause is twice the one before."""

log = structlog.get_logger("sark.worker")


def is_due(calibration: Calibration | None, now: float) -> bool:
    """Whether another round is worth its seconds. `now`: since the epoch; a clock that was put back makes it due."""
    if calibration is None or calibration.quiet is False:
        return True
    return not 0 <= now - calibration.at < (OLD_S if calibration.rounds >= SURE_ROUNDS else UNSURE_S)


def pause_after(end: RoundEnd | None, spoilt: int) -> float:
    """Seconds until the next look. None: it gave way, or could not be stored or measured. `spoilt`: rounds in a row that were disturbed."""
    if end is RoundEnd.DISTURBED:
        return float(min(LONGEST_PAUSE_S, LOOK_S * 2**spoilt))
    return LOOK_S


@dataclass
class Recheck:
    """One for each worker that calibrates."""

    calibrator: Calibrator
    idle: Callable[[], bool]
    """Whether the worker serves, and nothing runs or waits here."""
    tell: Callable[[str], object] = lambda line: None
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = trio.sleep
    _round: trio.CancelScope = field(default_factory=trio.CancelScope)
    _spoilt: int = 0

    def give_way(self) -> None:
        """A task begins: end what this runs. Never waits."""
        self._round.cancel()

    async def keep(self) -> None:
        """For ever."""
        end: RoundEnd | None = None
        while True:
            await self.sleep(pause_after(end, self._spoilt))
            if self.idle() and is_due(self.calibrator.current, self.wall()):
                end = await self.once()
                self._spoilt = self._spoilt + 1 if end is RoundEnd.DISTURBED else 0

    async def once(self) -> RoundEnd | None:
        """One round, if the host is quiet. None: it gave way, or its result could not be stored."""
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
            await self.sleep(WANTED_S)  # other processes wait: there is no event to wait for
            if self.calibrator.lock.wanted():
                self._round.cancel()


def _first(error: BaseException) -> BaseException:
    """Of a group that may have groups in it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
