"""A meter's file: `time,watts` as CSV, as a plug with a meter or a logger on the bench writes it. Joined to a run by the wall clock.

time,watts
2026-11-23T02:10:05.250+01:00,87.4        or seconds since 1970: 1795399805.25,87.4
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

from drivers.measure.meters import MeterReading

FORM: Final = "a line time,watts, then such as 2026-11-23T02:10:05+01:00,87.4"
MAX_TAIL: Final = 64 * 1024 * 1024
"""Of a longer file its end is read."""
MAX_WATTS: Final = 1e6


class MeterFileError(Exception):
    """What is wrong with the file, and where."""


class FileMeter:
    source: str = "csv"
    part: str = "wall"

    def __init__(self, path: Path) -> None:
        self.device = path.name

    def read(self) -> MeterReading | None:
        """Its readings come all at once: `read_file`."""
        return None


def read_file(path: Path, offset_ns: int, begin_ns: int, end_ns: int) -> list[MeterReading]:
    """The readings from the last before `begin_ns` to the first after `end_ns`, by time. `offset_ns`: of the wall clock, less the clock of
    `begin_ns` and `end_ns`. Raises `MeterFileError`.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.readline(1000).decode(errors="replace")
            if size > MAX_TAIL:
                file.seek(size - MAX_TAIL)
                file.readline()
            text = file.read(MAX_TAIL).decode(errors="replace")
    except OSError as exc:
        raise MeterFileError(f"{path.name}: {exc.strerror or exc}") from None
    names = [name.strip().lower() for name in head.split(",")]
    if "time" not in names or "watts" not in names:
        raise MeterFileError(f"{path.name} line 1: no columns time and watts; it begins with {FORM}")
    at, watts = names.index("time"), names.index("watts")
    whole = size <= MAX_TAIL
    readings = []
    for number, cells in enumerate(csv.reader(text.splitlines()), start=2):
        if not cells:
            continue
        where = f"{path.name} line {number}" if whole else path.name
        readings.append(_reading(cells, at, watts, offset_ns, where))
    if readings and not text.endswith("\n"):
        readings.pop()  # it is being written
    readings.sort(key=lambda reading: reading.at_ns)
    return list(_around(readings, begin_ns, end_ns))


def _reading(cells: list[str], at: int, watts: int, offset_ns: int, where: str) -> MeterReading:
    try:
        moment, power = cells[at].strip(), float(cells[watts])
    except (IndexError, ValueError):
        raise MeterFileError(f"{where}: not a time and watts; write {FORM}") from None
    if not 0 <= power <= MAX_WATTS:
        raise MeterFileError(f"{where}: {power:g} W is not the power of a device")
    return MeterReading(_wall_ns(moment, where) - offset_ns, watts=power)


def _wall_ns(text: str, where: str) -> int:
    """Nanoseconds since 1970."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise MeterFileError(f"{where}: {text[:40]!r} is not a time; write {FORM}") from None
        if moment.tzinfo is None:
            raise MeterFileError(f"{where}: {text[:40]!r} has no time zone; write {FORM}") from None
        seconds = moment.timestamp()
    if not math.isfinite(seconds) or not 0 < seconds < 1e11:
        raise MeterFileError(f"{where}: {text[:40]!r} is not a time in seconds since 1970") from None
    return round(seconds * 1e9)


def _around(readings: list[MeterReading], begin_ns: int, end_ns: int) -> Iterable[MeterReading]:
    for index, reading in enumerate(readings):
        follows = readings[index + 1].at_ns if index + 1 < len(readings) else None
        before = readings[index - 1].at_ns if index else None
        if (follows is None or follows >= begin_ns) and (before is None or before <= end_ns):
            yield reading
