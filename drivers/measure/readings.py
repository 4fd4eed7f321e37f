"""Readings of an accelerator and the windows in which inferences were timed, made into facts. Pure.

    readings (any process's, on the host's one clock) + windows ─▶ summarise() ─▶ Telemetry

Who reads: `drivers.measure.telemetry`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Final

from drivers.contract.base import MeasureReport, Telemetry

NEAR_NS: Final = 60_000_000
"""A window shorter than the time between two readings takes the first one that is no further behind it."""
SLOW_METER_S: Final = 1.0
"""Drivers give power and utilisation as means over up to so long."""

REASONS: Final = (
    (0x4, "power"),
    (0x8, "hardware"),
    (0x20, "heat"),
    (0x40, "heat"),
    (0x80, "power"),
)
"""Bits of NVML's clock event reasons that mean less speed than there could be: the others say idle, or what somebody has set."""

Window = tuple[int, int]
"""Begin and end, in nanoseconds of `time.perf_counter_ns`."""


@dataclass(frozen=True, slots=True)
class TelemetryReading:
    """What the device told at one moment. None: it does not tell."""

    at_ns: int
    utilisation: float | None = None
    """0 to 1."""
    memory: int | None = None
    """Bytes in use on the whole device."""
    by_process: Mapping[int, int] = field(default_factory=dict)
    """Process id → bytes, as far as that is told."""
    power_w: float | None = None
    energy_j: float | None = None
    """A counter that only rises."""
    clock_mhz: float | None = None
    temperature_c: float | None = None
    slowed: int = 0
    """Bits of `REASONS`."""


def windows_of(measured: Sequence[MeasureReport]) -> tuple[Window, ...]:
    """When inferences were timed."""
    return tuple(
        (one.began_ns, one.began_ns + round(one.wall_s * 1e9))
        for one in measured
        if one.began_ns and one.wall_s
    )


def summarise(
    readings: Sequence[TelemetryReading],
    windows: Sequence[Window],
    *,
    device: str,
    began_ns: int,
    pids: Collection[int] = (),
    source: str = "nvml",
) -> Telemetry | None:
    """The device over the windows; None without a reading near one. Pure.

    `began_ns`: readings before it are of the idle device. `pids`: the run's processes, whose memory is told apart where NVML can; none
    given: those that came to the device since it was idle (inside a container NVML has other numbers for them than we have).
    """
    inside = [reading for window in windows for reading in _within(readings, window)]
    if not inside:
        return None
    notes: list[str] = []
    longest = max(end - begin for begin, end in windows) / 1e9
    if longest < SLOW_METER_S:
        notes.append(
            f"the longest timed window is {longest:.2g} s; power and utilisation are the driver's means over up to {SLOW_METER_S:g} s"
        )
    memory, note = _memory(readings, began_ns, pids)
    energy, energy_note = _energy(readings, windows)
    notes += [said for said in (note, energy_note) if said]
    idle = [r.power_w for r in readings if r.at_ns < began_ns and r.power_w is not None]
    slowed = 0
    for reading in inside:
        slowed |= reading.slowed
    return Telemetry(
        source=source,
        device=device,
        samples=len(inside),
        utilisation=_mean(reading.utilisation for reading in inside),
        memory_bytes=memory,
        power_w=_mean(reading.power_w for reading in inside),
        idle_w=median(idle) if idle else None,
        energy_j=energy,
        clock_mhz=_mean(reading.clock_mhz for reading in inside),
        temperature_c=max((r.temperature_c for r in inside if r.temperature_c is not None), default=None),
        throttled=tuple(dict.fromkeys(reason for bit, reason in REASONS if slowed & bit)),
        notes=tuple(notes),
    )


def _within(readings: Sequence[TelemetryReading], window: Window) -> list[TelemetryReading]:
    """Those inside a window; for one shorter than the time between two readings, the first one after its begin, if it is near."""
    begin, end = window
    found = [reading for reading in readings if begin <= reading.at_ns <= end]
    if found:
        return found
    return [r for r in readings if end < r.at_ns <= end + NEAR_NS][:1]


def _mean(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _memory(
    readings: Sequence[TelemetryReading], began_ns: int, pids: Collection[int]
) -> tuple[int | None, str]:
    """The most that the run held, and how that is known."""
    idle = {pid for reading in readings if reading.at_ns < began_ns for pid in reading.by_process}
    busy = [reading for reading in readings if reading.at_ns >= began_ns]
    note = ""
    own = {pid for reading in busy for pid in reading.by_process if pid in pids}
    if not own and not pids:
        own = {pid for reading in busy for pid in reading.by_process} - idle
        note = "memory is of the processes that came to the device with the run"
    if own:
        return max(
            sum(held for pid, held in reading.by_process.items() if pid in own) for reading in busy
        ), note
    whole = max((reading.memory for reading in busy if reading.memory is not None), default=None)
    return whole, "memory is of the whole device: it is not told by process" if whole is not None else ""


def _energy(readings: Sequence[TelemetryReading], windows: Sequence[Window]) -> tuple[float | None, str]:
    """Joules over all windows: the counter's difference where it has readings on both sides, else power × time."""
    total, counted = 0.0, True
    for begin, end in windows:
        used = _counter_between(readings, begin, end)
        if used is None:
            counted = False
            power = _mean(reading.power_w for reading in _within(readings, (begin, end)))
            if power is None:
                return None, ""
            used = power * (end - begin) / 1e9
        total += used
    return total, "" if counted else "energy is power × time: the device's counter does not cover the windows"


def _counter_between(readings: Sequence[TelemetryReading], begin: int, end: int) -> float | None:
    """How far the energy counter went between two moments; None where it did not move, went back, or was not read around them."""
    at_begin, at_end = _counter_at(readings, begin), _counter_at(readings, end)
    if at_begin is None or at_end is None or at_end <= at_begin:
        return None
    return at_end - at_begin


def _counter_at(readings: Sequence[TelemetryReading], at_ns: int) -> float | None:
    """The counter at a moment, on the line between the readings around it."""
    before = after = None
    for reading in readings:
        if reading.energy_j is None:
            continue
        if reading.at_ns <= at_ns:
            before = reading
        else:
            after = reading
            break
    if before is None or after is None or before.energy_j is None or after.energy_j is None:
        return None
    share = (at_ns - before.at_ns) / (after.at_ns - before.at_ns)
    return before.energy_j + share * (after.energy_j - before.energy_j)
