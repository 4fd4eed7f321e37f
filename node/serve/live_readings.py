"""Reads the device's sensors every few seconds while a task runs here, and passes each reading on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import structlog
import trio

from protocol.values.reading import DeviceReading
from swarm.base.threads import WAITING

INTERVAL_S: Final = 2.0
FIRST_S: Final = 0.5
"""Seconds from the beginning of a run to its first reading."""
REST: Final = 20.0
"""Least wait, as a multiple of the time that a reading takes, so that slow sensors and busy devices are read less often."""

log = structlog.get_logger("sark.worker")


class ReadableSensors(Protocol):
    """See `node.device.monitor.OpenSensors`."""

    def read(self) -> DeviceReading: ...

    def close(self) -> None: ...


class LiveReadings:
    """The readings of one worker. While no task runs, no sensor is read and no library is open."""

    def __init__(
        self,
        open_sensors: Callable[[], ReadableSensors] | None,
        running: Callable[[], bool],
        take: Callable[[DeviceReading], None],
        aside: Callable[..., Awaitable[Any]] = WAITING.run,
    ) -> None:
        """`open_sensors`: of `DeviceMonitor`; None: no sensor can be read. `take` gets each reading and never waits. `aside` runs blocking
        functions."""
        self._open, self._running, self._take, self._aside = open_sensors, running, take, aside
        self._begun = trio.Event()
        self._latest: tuple[DeviceReading, float] | None = None

    def begin(self) -> None:
        """A task runs: begin to read. Never waits."""
        self._begun.set()

    def latest(self) -> DeviceReading | None:
        """The latest reading, with its age; None: no task runs, or no sensor was read yet."""
        if self._latest is None:
            return None
        reading, at = self._latest
        return reading.model_copy(update={"age_s": trio.current_time() - at})

    async def keep(self) -> None:
        """Read the sensors whenever a task runs, until cancelled."""
        while self._open is not None:
            await self._begun.wait()
            self._begun = trio.Event()
            try:
                sensors: ReadableSensors = await self._aside(self._open)
                try:
                    await self._read_on(sensors)
                finally:
                    self._latest = None
                    with trio.CancelScope(shield=True):
                        await self._aside(sensors.close)
            except OSError as exc:  # such as too many open files: the run continues without readings
                log.warning("sensors.unreadable", why=str(exc))
                await trio.sleep(INTERVAL_S)
                self._begun.set()

    async def _read_on(self, sensors: ReadableSensors) -> None:
        pause_s = FIRST_S
        while True:
            await trio.sleep(pause_s)
            if not self._running():
                return
            began = trio.current_time()
            reading: DeviceReading = await self._aside(sensors.read)
            now = trio.current_time()
            self._latest = reading, now
            self._take(reading)
            pause_s = max(INTERVAL_S, REST * (now - began))
