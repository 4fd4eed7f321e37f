"""All meters of this host during a run, except the accelerator's (`drivers.measure.telemetry`). A process reads them, the parent sums up.

meters = HostMeters(file)               what this user may read; the owner's file of a meter at the wall
metering = meters.of_run(gpu=False)
metering.start() … metering.stop(windows, stretches) ─▶ MeterReport, …
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from drivers.contract.base import MeterReport
from drivers.contract.boot import boot_command
from drivers.measure.meter_file import MeterFileError, read_file
from drivers.measure.meters import (
    MeterName,
    MeterReading,
    Window,
    find_meters,
    late_ns,
    may_have_meters,
    report,
)
from drivers.measure.powermetrics import open_powermetrics
from drivers.measure.reader_process import INTERVAL_S, ReaderProcess, interval_s, lower_priority, read_on

IDLE_NS: Final = 10_000_000_000
"""How far before a run readings in a meter's file count as power of the idle device."""
LATE_NS: Final = 3_000_000_000
"""The longest wait for a meter's reading after the last window."""
LATE_LOOK_S: Final = 0.05

Wait = Callable[[float], object]
"""Waits for the given seconds; returns a true value once nobody needs the readings any longer."""


class HostMeters:
    """The meters of this host, for all runs of this process: remembers if there is nothing to read. Thread-safe."""

    def __init__(self, file: Path | None = None, root: Path = Path("/")) -> None:
        """`file`: the file of a meter at the wall (`drivers.measure.meter_file`)."""
        self._file, self._root = file, root
        self._nothing = set[bool]()

    def of_run(self, *, gpu: bool, run_s: float | None = None) -> Metering:
        """The metering of one run. `gpu`: the run is on a GPU. `run_s`: how long it lasts; None: it is short."""
        return Metering(
            gpu=gpu,
            file=self._file,
            every_s=interval_s(run_s),
            root=self._root,
            look=gpu not in self._nothing,
            found_nothing=lambda: self._nothing.add(gpu),
        )


class Metering:
    """The metering of one run, in the parent. Use once; always call `stop`. Without a meter it starts no process and reports nothing."""

    def __init__(
        self,
        *,
        gpu: bool,
        file: Path | None = None,
        every_s: float = INTERVAL_S,
        root: Path = Path("/"),
        clock: Callable[[], int] = time.perf_counter_ns,
        look: bool = True,
        found_nothing: Callable[[], object] = lambda: None,
    ) -> None:
        """`gpu`: the run is on a GPU. `file`: of a meter at the wall. `clock`: nanoseconds, on the clock of the windows. `look`: False: the
        file is the only meter. `found_nothing`: called if no other meter can be read here."""
        self._file, self._clock, self._found_nothing = file, clock, found_nothing
        command = boot_command("measure.metering", str(root), "gpu" if gpu else "", str(every_s))
        self._reader = ReaderProcess(command) if look and may_have_meters(root, gpu=gpu) else None
        self._began_ns = 0

    def start(self) -> None:
        """Start reading; returns after the idle readings."""
        if self._reader is not None and not self._reader.start():
            if self._reader.found_nothing:
                self._found_nothing()
            self._reader.stop()
            self._reader = None
        self._began_ns = self._clock()

    def stop(
        self, windows: Sequence[Window], stretches: Sequence[Window] = (), wait: Wait = time.sleep
    ) -> list[MeterReport]:
        """Stop reading and sum up; without windows the result is empty. May `wait` for the last line of a meter's file."""
        output = self._reader.stop() if self._reader is not None else None
        self._reader = None
        if not windows:
            return []
        reports = [
            report(meter, readings, windows, stretches, self._began_ns)
            for meter, readings in (parse(output) if output else [])
        ]
        if self._file is not None:
            reports.append(self._of_file(self._file, windows, stretches, wait))
        return [one for one in reports if one is not None]

    def _of_file(
        self, path: Path, windows: Sequence[Window], stretches: Sequence[Window], wait: Wait
    ) -> MeterReport:
        meter, offset_ns = MeterName("csv", "wall", path.name), time.time_ns() - self._clock()

        def read() -> list[MeterReading]:
            return read_file(path, offset_ns, self._began_ns - IDLE_NS, windows[-1][1])

        try:
            size, readings = _size(path), read()
            until = self._clock() + min(LATE_NS, late_ns(readings, windows))
            while self._clock() < until and not wait(LATE_LOOK_S):
                if (grown := _size(path)) != size:
                    size, readings = grown, read()
                    if not late_ns(readings, windows):
                        break
            why = "it has no readings"
        except MeterFileError as exc:
            readings, why = [], str(exc)
        found = report(meter, readings, windows, stretches, self._began_ns)
        return found or MeterReport(meter.source, meter.part, meter.device, 0, None, notes=(why,))


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def parse(output: bytes) -> list[tuple[MeterName, list[MeterReading]]]:
    """The meters and the readings of each, by time; leaves out a last line that was cut off."""
    heading, *lines = output.split(b"\n")
    try:
        meters = [MeterName(*names) for names in json.loads(heading)]
    except ValueError:
        return []
    found: list[list[MeterReading]] = [[] for _ in meters]
    for line in lines:
        with contextlib.suppress(ValueError):
            for readings, one in zip(found, json.loads(line), strict=True):
                if one is not None and (not readings or one[0] > readings[-1].at_ns):
                    readings.append(MeterReading(*one))
    return list(zip(meters, found, strict=True))


def main(arguments: Sequence[str]) -> None:
    """Read until standard input ends; return at once without a meter. `arguments`: root of the host's files, `gpu` or empty, seconds
    between readings."""
    root, gpu, every = arguments
    lower_priority()
    meters = find_meters(Path(root), gpu=bool(gpu), clock=time.perf_counter_ns)
    apple = open_powermetrics() if sys.platform == "darwin" else None
    if apple is not None:
        meters.append(apple)
    if not meters:
        return
    heading = json.dumps([[one.source, one.part, one.device] for one in meters])
    settle = apple.settle if apple is not None else lambda: None
    read_on(heading, lambda: json.dumps([_line(one.read()) for one in meters]), float(every), settle)


def _line(reading: MeterReading | None) -> list[Any] | None:
    return None if reading is None else [reading.at_ns, reading.joules, reading.watts]
