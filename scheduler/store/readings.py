"""Current readings of the devices of running tasks: a small file beside the store, written by the scheduler process and read by `top` and
the dashboard. The file is not durable: it may be missing, and readings older than `KEPT_S` are left out.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from protocol.values.reading import DeviceReading
from swarm.base.durable import write_atomically

KEPT_S: Final = 60.0


class LiveReading(BaseModel):
    """A device's sensor reading with its time."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    at: float
    """Time of the reading, in wall seconds since 1970."""
    reading: DeviceReading


_FORM: Final = TypeAdapter(dict[str, LiveReading])


class ReadingsFile:
    """Writes the readings; used by the scheduler process."""

    def __init__(self, path: Path, wall: Callable[[], float] = time.time) -> None:
        self._path, self._wall = path, wall
        self._newest: dict[str, LiveReading] = {}

    def put(self, readings: Mapping[str, DeviceReading]) -> None:
        """Write readings that just arrived, by worker. A full disk affects only the views."""
        now = self._wall()
        fresh = {
            peer: LiveReading(at=now - reading.age_s, reading=reading) for peer, reading in readings.items()
        }
        self._newest = {**_recent(self._newest, now), **fresh}
        with contextlib.suppress(OSError):
            write_atomically(self._path, _FORM.dump_json(self._newest, exclude_none=True))


def read_readings(path: Path, now: float) -> Mapping[str, LiveReading]:
    """The newest reading by worker; empty where no scheduler has written any. Blocking."""
    try:
        return _recent(_FORM.validate_json(path.read_bytes()), now)
    except (OSError, ValidationError):
        return {}


def _recent(readings: Mapping[str, LiveReading], now: float) -> dict[str, LiveReading]:
    return {peer: one for peer, one in readings.items() if now - one.at < KEPT_S}
