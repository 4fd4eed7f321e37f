"""Readings of the accelerator by a separate process while inferences are timed.

    sampler = Sampler(gpu)                  a process at the lowest priority reads NVML every 30 ms
    sampler.start()                         … and has read the idle device when this returns
    (launches: MeasureReport.began_ns, wall_s)
    sampler.stop(windows) ─▶ Telemetry      of the readings inside the windows; None: no NVML

Both sides read `time.perf_counter_ns`, which is one clock for all processes of a host. No thread runs next to the measured loop.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from operator import attrgetter, itemgetter, or_
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from drivers.contract.base import MeasureReport, SustainedReport, Telemetry
from drivers.contract.boot import boot_command
from drivers.measure.nvml import decoded, devices, query, visible
from drivers.measure.reader_process import INTERVAL_S, ReaderProcess, lower_priority, read_on

NEAR_NS: Final = 60_000_000
"""A window without a reading inside uses the next reading, if it is no further away than this."""
SLOW_METER_S: Final = 1.0
"""The driver averages power and utilisation over up to this many seconds."""

REASONS: Final = ((0x4, "power"), (0x8, "hardware"), (0x20, "heat"), (0x40, "heat"), (0x80, "power"))
"""NVML's clock event reasons that mean a reduced speed; the others mean an idle device, or a setting."""

Window = tuple[int, int]
"""Start and end, in nanoseconds of `time.perf_counter_ns`."""


@dataclass(frozen=True, slots=True)
class TelemetryReading:
    """The device at one moment. None: not reported."""

    at_ns: int
    utilisation: float | None = None
    """Share from 0 to 1."""
    memory: int | None = None
    """Bytes in use on the whole device."""
    by_process: Mapping[int, int] = field(default_factory=dict)
    """Process id → bytes."""
    power_w: float | None = None
    energy_j: float | None = None
    """Reading of a counter that only rises."""
    clock_mhz: float | None = None
    temperature_c: float | None = None
    slowed: int = 0
    """Bits of `REASONS`."""


# -- the process that reads ----------------------------------------------------------------------------------------------


def read(nvml: Any, handle: Any) -> TelemetryReading:

    def number(function: str, *arguments: Any, per: int = 1) -> float | None:
        value = query(nvml, function, handle, *arguments)
        return None if value is None else value / per

    at_ns = time.perf_counter_ns()
    used = query(nvml, "nvmlDeviceGetUtilizationRates", handle)
    memory = query(nvml, "nvmlDeviceGetMemoryInfo", handle)
    slowed = query(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if slowed is None:  # the function's name before driver 535
        slowed = query(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    processes = query(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or ()
    return TelemetryReading(
        at_ns=at_ns,
        utilisation=used.gpu / 100 if used is not None else None,
        memory=int(memory.used) if memory is not None else None,
        by_process={
            int(one.pid): int(one.usedGpuMemory) for one in processes if one.usedGpuMemory is not None
        },
        power_w=number("nvmlDeviceGetPowerUsage", per=1000),
        energy_j=number("nvmlDeviceGetTotalEnergyConsumption", per=1000),
        clock_mhz=number("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        temperature_c=number("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        slowed=int(slowed or 0),
    )


def main(arguments: Sequence[str]) -> None:
    """Read until standard input ends: prints the device's name as the first line, then a line of JSON per reading.

    `arguments`: GPU, seconds between readings, path of a module instead of pynvml. Prints `ready` on stderr after the idle readings, and
    nothing at all if there is no such GPU.
    """
    which, every, module = arguments
    lower_priority()
    nvml = _library(module)
    try:
        nvml.nvmlInit()
        handle = _handle(nvml, which)
        name = decoded(nvml.nvmlDeviceGetName(handle))
    except (nvml.NVMLError, LookupError):
        return
    read_on(json.dumps(name), lambda: json.dumps(asdict(read(nvml, handle))), float(every))


def _library(path: str) -> Any:
    if not path:
        return importlib.import_module("pynvml")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _handle(nvml: Any, which: str) -> Any:
    """The GPU by UUID, or by its index among those that CUDA shows; empty: the first. Raises LookupError, or NVML's errors."""
    if which and not which.isdigit():
        return nvml.nvmlDeviceGetHandleByUUID(which)
    return visible(devices(nvml), os.environ)[int(which or 0)].handle


# -- its parent ----------------------------------------------------------------------------------------------------------


class Sampler:
    """Readings of one GPU. Use once; always call `stop`. A missing GPU raises nothing.

    `gpu`: UUID or index as in `WorkOrder.gpu`; `module`: path of a module instead of pynvml.
    """

    def __init__(self, gpu: str = "", *, every_s: float = INTERVAL_S, module: str = "") -> None:
        self._reader = ReaderProcess(boot_command("measure.telemetry", gpu, str(every_s), module))

    def start(self) -> bool:
        """Returns True after the idle readings (a fifth of a second), or False if there is nothing to read."""
        return self._reader.start()

    def stop(
        self, windows: Sequence[Window], stretches: Sequence[Window] = (), launches: Sequence[Window] = ()
    ) -> Telemetry | None:
        """Stop reading and sum up the windows (`windows_of`). None: no readings in them, or a second call. `stretches`: of a sustained run;
        each is summed up too. `launches`: from the start of each process of the run to its end; between these spans another run may use the
        device. Empty: no other run uses it."""
        output = self._reader.stop()
        if output is None:
            return None
        device, readings = parse(output)
        telemetry = summarise(
            readings, windows, device=device, began_ns=self._reader.began_ns, launches=launches
        )
        if telemetry is None or not stretches:
            return telemetry
        counter, each = _counter(readings), [_within(readings, stretch) for stretch in stretches]
        return replace(
            telemetry,
            stretch_energy_j=tuple(_energy(readings, counter, [stretch])[0] for stretch in stretches),
            stretch_clock_mhz=tuple(_mean(one.clock_mhz for one in inside) for inside in each),
            stretch_temperature_c=tuple(_hottest(inside) for inside in each),
        )


def parse(output: bytes) -> tuple[str, list[TelemetryReading]]:
    """The device's name and the readings, without a last line that was cut off."""
    name, *rows = output.split(b"\n")
    readings = []
    for row in rows:
        try:
            values = json.loads(row)
        except ValueError:
            continue
        values["by_process"] = {int(pid): size for pid, size in values["by_process"].items()}
        readings.append(TelemetryReading(**values))
    return (json.loads(name) if name else ""), readings


# -- readings to figures ---------------------------------------------------------------------------------------------------


def windows_of(measured: Sequence[MeasureReport]) -> tuple[Window, ...]:
    return tuple(
        (one.began_ns, one.began_ns + round(one.wall_s * 1e9))
        for one in measured
        if one.began_ns and one.wall_s
    )


def stretches_of(measured: MeasureReport, sustained: SustainedReport) -> tuple[Window, ...]:
    """Start and end of each stretch of a sustained run."""
    blocks = zip(sustained.starts_ns, measured.blocks, strict=True)
    return tuple(
        (measured.began_ns + start, measured.began_ns + start + block.wall_ns) for start, block in blocks
    )


def summarise(
    readings: Sequence[TelemetryReading],
    windows: Sequence[Window],
    *,
    device: str,
    began_ns: int,
    launches: Sequence[Window] = (),
) -> Telemetry | None:
    """The device during the windows; None if no reading is near one. `began_ns`: readings before it are of the idle device. `launches`: as
    in `Sampler.stop`."""
    inside = [reading for window in windows for reading in _within(readings, window)]
    if not inside:
        return None
    notes: list[str] = []
    longest = max(end - begin for begin, end in windows) / 1e9
    if longest < SLOW_METER_S:
        notes.append(
            f"the longest timed window is {longest:.2g} s; power and utilisation are the driver's means over up to {SLOW_METER_S:g} s"
        )
    memory, note = _memory(readings, began_ns, launches)
    energy, energy_note = _energy(readings, _counter(readings), windows)
    notes += [text for text in (note, energy_note) if text]
    idle = [r.power_w for r in readings if r.at_ns < began_ns and r.power_w is not None]
    slowed = reduce(or_, (reading.slowed for reading in inside))
    return Telemetry(
        source="nvml",
        device=device,
        samples=len(inside),
        utilisation=_mean(reading.utilisation for reading in inside),
        memory_bytes=memory,
        power_w=_mean(reading.power_w for reading in inside),
        idle_w=median(idle) if idle else None,
        energy_j=energy,
        clock_mhz=_mean(reading.clock_mhz for reading in inside),
        temperature_c=_hottest(inside),
        throttled=tuple(dict.fromkeys(reason for bit, reason in REASONS if slowed & bit)),
        notes=tuple(notes),
    )


def _within(readings: Sequence[TelemetryReading], window: Window) -> list[TelemetryReading]:
    """The readings inside a window; if there are none, the first reading after it, if it is near."""
    begin, end = window
    first = bisect_left(readings, begin, key=attrgetter("at_ns"))
    after = bisect_right(readings, end, key=attrgetter("at_ns"))
    near = [reading for reading in readings[after : after + 1] if reading.at_ns <= end + NEAR_NS]
    return list(readings[first:after]) or near


def _mean(values: Iterator[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None


def _hottest(readings: Sequence[TelemetryReading]) -> float | None:
    return max((one.temperature_c for one in readings if one.temperature_c is not None), default=None)


def _memory(
    readings: Sequence[TelemetryReading], began_ns: int, launches: Sequence[Window]
) -> tuple[int | None, str]:
    """The peak memory of the run, and a note on its source: inside a container NVML reports process ids other than ours."""
    idle = {pid for reading in readings if reading.at_ns < began_ns for pid in reading.by_process}
    busy = [reading for reading in readings if reading.at_ns >= began_ns]
    if launches:
        busy = [reading for launch in launches for reading in _within(busy, launch)]
    if {pid for reading in busy for pid in reading.by_process} - idle:
        peak = max(
            sum(size for pid, size in reading.by_process.items() if pid not in idle) for reading in busy
        )
        return peak, "memory is that of the processes that appeared on the device with the run"
    whole = max((reading.memory for reading in busy if reading.memory is not None), default=None)
    return (
        whole,
        "memory is that of the whole device: it is not reported per process" if whole is not None else "",
    )


CounterPoint = tuple[int, float]
"""Nanoseconds, and joules of a counter that only rises."""


def _counter(readings: Sequence[TelemetryReading]) -> list[CounterPoint]:
    return [(one.at_ns, one.energy_j) for one in readings if one.energy_j is not None]


def _energy(
    readings: Sequence[TelemetryReading], counter: Sequence[CounterPoint], windows: Sequence[Window]
) -> tuple[float | None, str]:
    """Joules over all windows, and a note: the counter's difference if it was read on both sides, else power × time."""
    total, counted = 0.0, True
    for begin, end in windows:
        at_begin, at_end = _counter_at(counter, begin), _counter_at(counter, end)
        if at_begin is not None and at_end is not None and at_end > at_begin:
            used = at_end - at_begin
        else:  # it did not rise, or was not read around the window
            counted = False
            power = _mean(reading.power_w for reading in _within(readings, (begin, end)))
            if power is None:
                return None, ""
            used = power * (end - begin) / 1e9
        total += used
    return total, "" if counted else "energy is power × time: the device's counter does not cover the windows"


def _counter_at(points: Sequence[CounterPoint], at_ns: int) -> float | None:
    """The counter at a given time, interpolated linearly."""
    following = bisect_right(points, at_ns, key=itemgetter(0))
    if not 0 < following < len(points):
        return None
    (before_ns, before), (after_ns, after) = points[following - 1 : following + 1]
    return before + (at_ns - before_ns) / (after_ns - before_ns) * (after - before)
