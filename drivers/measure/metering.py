"""All meters of this host during a run, but the accelerator's own (`drivers.measure.telemetry`): a process reads them, the parent sums up.

metering = Metering(gpu=False)          what this user may read; the owner's file of a meter at the wall
metering.start() … metering.stop(windows, stretches) ─▶ MeterReport, …
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from drivers.contract.base import MeterReport
from drivers.contract.boot import boot_command
from drivers.measure.meter_file import FileMeter, MeterFileError, read_file
from drivers.measure.meters import (
    Meter,
    MeterReading,
    PowermetricsText,
    Window,
    find_meters,
    may_have_meters,
    report,
)
from drivers.measure.reader_process import INTERVAL_S, ReaderProcess, lower_priority, read_on

POWERMETRICS: Final = ("powermetrics", "--samplers", "cpu_power,gpu_power", "-i", "500")
FIRST_S: Final = 2.0
"""Limit for its first sample."""
IDLE_NS: Final = 10_000_000_000
"""How long before a run a meter's file is looked at for what the idle device takes."""


class Metering:
    """In the parent. Use once; always call `stop`. Where there is no meter, no process is started, and nothing is reported."""

    def __init__(
        self,
        *,
        gpu: bool,
        file: Path | None = None,
        every_s: float = INTERVAL_S,
        root: Path = Path("/"),
    ) -> None:
        """`gpu`: the run is on one. `file`: of a meter at the wall."""
        self._file = file
        command = boot_command("measure.metering", str(root), "gpu" if gpu else "", str(every_s))
        self._reader = ReaderProcess(command) if may_have_meters(root, gpu=gpu) else None
        self._began_ns = 0

    def start(self) -> None:
        """Returns after the idle readings."""
        if self._reader is not None and not self._reader.start():
            self._reader.stop()
            self._reader = None
        self._began_ns = time.perf_counter_ns()

    def stop(self, windows: Sequence[Window], stretches: Sequence[Window] = ()) -> list[MeterReport]:
        """End it and sum up."""
        output = self._reader.stop() if self._reader is not None else None
        self._reader = None
        if not windows:
            return []
        reports = [
            report(meter, readings, windows, stretches, self._began_ns)
            for meter, readings in (parse(output) if output else [])
        ]
        if self._file is not None:
            reports.append(self._of_file(self._file, windows, stretches))
        return [one for one in reports if one is not None]

    def _of_file(
        self, path: Path, windows: Sequence[Window], stretches: Sequence[Window]
    ) -> MeterReport | None:
        meter = FileMeter(path)
        offset_ns = time.time_ns() - time.perf_counter_ns()
        try:
            readings = read_file(path, offset_ns, self._began_ns - IDLE_NS, windows[-1][1])
        except MeterFileError as exc:
            return MeterReport(meter.source, meter.part, meter.device, 0, None, notes=(str(exc),))
        found = report(meter, readings, windows, stretches, self._began_ns)
        return found or MeterReport(
            meter.source, meter.part, meter.device, 0, None, notes=("it has no readings",)
        )


class _Named:
    """A meter that another process read."""

    def __init__(self, source: str, part: str, device: str) -> None:
        self.source, self.part, self.device = source, part, device

    def read(self) -> MeterReading | None:
        return None


def parse(output: bytes) -> list[tuple[Meter, list[MeterReading]]]:
    """The meters and what each read, by time; a last line that was cut off is left out."""
    heading, *lines = output.split(b"\n")
    try:
        meters: list[Meter] = [_Named(*names) for names in json.loads(heading)]
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
    """Read until standard input ends; nothing without a meter. `arguments`: where the host's files are, `gpu` or nothing, seconds between
    readings."""
    root, gpu, every = arguments
    lower_priority()
    meters = find_meters(Path(root), gpu=bool(gpu), clock=time.perf_counter_ns)
    if sys.platform == "darwin" and (apple := _powermetrics()) is not None:
        meters.append(apple)
    if not meters:
        return
    heading = json.dumps([[one.source, one.part, one.device] for one in meters])
    read_on(heading, lambda: json.dumps([_line(one.read()) for one in meters]), float(every))


def _line(reading: MeterReading | None) -> list[Any] | None:
    return None if reading is None else [reading.at_ns, reading.joules, reading.watts]


def _powermetrics() -> PowermetricsText | None:
    """It runs until this process ends and its pipe is gone: a user may not signal what root runs. None where it may not be run without a
    password."""
    text, first = PowermetricsText(time.perf_counter_ns), threading.Event()
    try:
        process = subprocess.Popen(
            ["sudo", "-n", *POWERMETRICS],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    except OSError:
        return None

    def follow() -> None:
        for line in process.stdout or ():
            text.feed(line)
            if text.read() is not None:
                first.set()
        first.set()

    threading.Thread(target=follow, daemon=True).start()
    first.wait(FIRST_S)
    return text if text.read() is not None else None
