"""A meter's file: `time,watts` as CSV, as a metering plug or a bench logger writes it. Joined to a run by the wall clock.

time,watts
2026-11-23T02:10:05.250+01:00,87.4        or seconds since 1970: 1795399805.25,87.4
"""

from __future__ import annotations

import csv
import math
import os
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final

from drivers.measure.meters import MeterReading

FORM: Final = "a line time,watts, then such as 2026-11-23T02:10:05+01:00,87.4"
MAX_TAIL: Final = 64 * 1024 * 1024
"""Most bytes read from the end of a longer file."""
MAX_WATTS: Final = 1e6
BLOCK: Final = 256 * 1024
"""The file is read backwards in blocks of this many bytes: it may grow for years."""


class MeterFileError(Exception):
    """Says what is wrong with the file, and where."""


def read_file(
    path: Path, offset_ns: int, begin_ns: int, end_ns: int, block: int = BLOCK
) -> list[MeterReading]:
    """The readings from the last before `begin_ns` to the first after `end_ns`, by time; few older lines are read. Leaves out a last line
    without a line end, which is still being written, and repeated headings. `offset_ns`: the wall clock minus the clock of `begin_ns` and
    `end_ns`. Raises `MeterFileError`."""
    try:
        with path.open("rb") as file:
            names = [name.lower() for name in _cells(_text(file.readline(1000)))]
            if "time" not in names or "watts" not in names:
                raise MeterFileError(f"{path.name} line 1: no columns time and watts; it begins with {FORM}")
            at, watts = names.index("time"), names.index("watts")

            def is_old(line: str) -> bool:
                try:
                    return _reading(_cells(line), at, watts, offset_ns, "").at_ns < begin_ns
                except MeterFileError:
                    return False

            lines, whole = _last_lines(file, file.tell(), block, is_old)
    except OSError as exc:
        raise MeterFileError(f"{path.name}: {exc.strerror or exc}") from None
    readings = []
    for number, line in enumerate(lines, start=2):
        cells = _cells(line)
        if any(cells) and [cell.lower() for cell in cells] != names:
            where = f"{path.name} line {number}" if whole else f"{path.name}, {line[:40]!r}"
            readings.append(_reading(cells, at, watts, offset_ns, where))
    readings.sort(key=lambda reading: reading.at_ns)
    return list(_around(readings, begin_ns, end_ns))


def _last_lines(
    file: BinaryIO, first: int, block: int, enough: Callable[[str], bool]
) -> tuple[list[str], bool]:
    """The complete lines after `first`, read from the end back to a block with a line that is `enough`; and whether these are all lines."""
    end = begin = file.seek(0, os.SEEK_END)
    blocks = deque[bytes]()
    while begin > first and end - begin < MAX_TAIL:
        before = max(first, begin - block)
        file.seek(before)
        blocks.appendleft(file.read(begin - before))
        begin = before
        parts = blocks[0].split(b"\n", 2)
        if len(parts) == 3 and enough(_text(parts[1])):
            break
    ended, _, _ = b"".join(blocks).rpartition(b"\n")
    if begin > first:
        ended = ended.partition(b"\n")[2]
    return _text(ended).splitlines(), begin <= first


def _text(line: bytes) -> str:
    return line.decode(errors="replace")


def _cells(line: str) -> list[str]:
    """The cells of one line: a stray quotation mark does not swallow the following lines."""
    try:
        row = next(csv.reader([line.removeprefix("\ufeff")], skipinitialspace=True), [])
    except csv.Error:  # longer than the longest line allowed
        row = [line]
    return [cell.strip() for cell in row]


def _reading(cells: list[str], at: int, watts: int, offset_ns: int, where: str) -> MeterReading:
    try:
        moment, power = cells[at], float(cells[watts])
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
