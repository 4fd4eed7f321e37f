"""How the host is: pressure, other processes' share, clocks, heat, power. Parsers of the kernel's texts, and a thin reader.

Everything here is read between timed stretches, never inside one. What a system does not tell is None.

    before, after = reader.look(), reader.look()
    state(before, after, own_cpu_s, reader)  what others took in between, and how the host is now
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from drivers.contract.base import HostState

TICKS_S: Final = 100
"""The unit of /proc/stat: hundredths of a second, on every architecture that reports to user space."""
LEAST_SPAN_S: Final = 0.3
"""Ticks say what others took to one or two hundredths only over at least so long."""
HOTTEST_C: Final = 150.0
"""A sensor that says more is broken."""

_SOME: Final = re.compile(rb"^some .*\btotal=(\d+)", re.MULTILINE)
_CPU: Final = re.compile(rb"^cpu +([\d ]+)", re.MULTILINE)
_EACH_CPU: Final = re.compile(rb"^cpu\d+ ", re.MULTILINE)
_RUNNING: Final = re.compile(rb"^procs_running (\d+)", re.MULTILINE)
_CPU_ZONE: Final = re.compile(r"x86_pkg_temp|cpu|core|soc|package|k10temp", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """The processors' time since the start of the system, all together, in seconds."""

    total_s: float
    idle_s: float
    steal_s: float
    processors: int
    running: int
    """Processes that run or could run at this moment, the reader's own among them."""


def stall_ns(pressure: bytes) -> int | None:
    """The total of `some` in /proc/pressure/cpu, in nanoseconds."""
    found = _SOME.search(pressure)
    return int(found[1]) * 1000 if found else None


def times(stat: bytes) -> CpuTimes | None:
    """The first line of /proc/stat and its number of running processes. None for a text that is no such thing."""
    line, running = _CPU.search(stat), _RUNNING.search(stat)
    fields = [int(field) / TICKS_S for field in line[1].split()] if line else []
    processors = len(_EACH_CPU.findall(stat))
    if len(fields) < 8 or running is None or not processors:
        return None
    # user nice system idle iowait irq softirq steal; what guests took is in user already
    return CpuTimes(sum(fields[:8]), fields[3] + fields[4], fields[7], processors, int(running[1]))


def whole(text: bytes | None) -> int | None:
    """A file with one whole number in it."""
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def hottest(zones: Sequence[tuple[str, int]]) -> float | None:
    """The hottest of the processor's thermal zones, in °C. `zones`: type and thousandths of a degree; of any kind where none is its own."""
    own = [milli for kind, milli in zones if _CPU_ZONE.search(kind)]
    sound = [milli / 1000 for milli in own or [milli for _, milli in zones] if 0 < milli / 1000 < HOTTEST_C]
    return max(sound, default=None)


def on_battery(supplies: Sequence[tuple[str, str, str]]) -> bool | None:
    """Whether the device runs on its battery. `supplies`: type, `online` and status of each. None where it has no battery of its own."""
    if not any(kind == "Battery" for kind, _, _ in supplies):
        return None
    mains = [online for kind, online, _ in supplies if kind in ("Mains", "USB")]
    if mains:
        return "1" not in mains
    return any(kind == "Battery" and status == "Discharging" for kind, _, status in supplies)


@dataclass(frozen=True, slots=True)
class HostSample:
    """The host's counters at one moment."""

    at_s: float
    times: CpuTimes | None
    stall_ns: int | None
    throttles: int | None


def others_share(before: HostSample, after: HostSample, own_cpu_s: float) -> float | None:
    """Share of all processors' time that others than `own_cpu_s` took, 0 to 1. None where it is not told."""
    if before.times is None or after.times is None:
        return None
    total = after.times.total_s - before.times.total_s
    if total <= 0:
        return None
    spare = after.times.idle_s - before.times.idle_s + max(0.0, after.times.steal_s - before.times.steal_s)
    return min(1.0, max(0.0, (total - spare - own_cpu_s) / total))


def without(share: float | None, cpu_s: float, span_s: float, processors: int) -> float | None:
    """A share of all processors' time less what was taken by somebody who counts as one of us."""
    if share is None or span_s <= 0 or processors < 1:
        return share
    return max(0.0, share - cpu_s / (span_s * processors))


def steal_share(before: HostSample, after: HostSample) -> float | None:
    """Share of all processors' time that the hypervisor took, 0 to 1."""
    if before.times is None or after.times is None:
        return None
    total = after.times.total_s - before.times.total_s
    return min(1.0, max(0.0, (after.times.steal_s - before.times.steal_s) / total)) if total > 0 else None


def stall_share(before: HostSample, after: HostSample) -> float | None:
    """Share of the time in which something that wanted to run had no processor, 0 to 1."""
    span = after.at_s - before.at_s
    if before.stall_ns is None or after.stall_ns is None or span <= 0:
        return None
    return min(1.0, max(0.0, (after.stall_ns - before.stall_ns) / 1e9 / span))


def state(
    before: HostSample,
    after: HostSample,
    own_cpu_s: float,
    reader: HostReader,
    glances: Sequence[float | None] = (),
) -> HostState:
    """The host between two looks and at the second. Over less than `LEAST_SPAN_S` the ticks tell no shares: others' is then the mean of
    `glances`, which are the share that they took at single moments.
    """
    seen = [glance for glance in glances if glance is not None]
    long_enough = after.at_s - before.at_s >= LEAST_SPAN_S
    throttles = (
        None
        if before.throttles is None or after.throttles is None
        else max(0, after.throttles - before.throttles)
    )
    return HostState(
        others_share=others_share(before, after, own_cpu_s) if long_enough else fmean(seen) if seen else None,
        steal_share=steal_share(before, after) if long_enough else None,
        clock_mhz=reader.clock_mhz(),
        throttles=throttles,
        temperature_c=reader.temperature_c(),
        on_battery=reader.on_battery(),
    )


class HostReader:
    """The thin edge: files below `root`, and a clock in seconds. Linux only; elsewhere every answer is None."""

    def __init__(self, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stat = root / "proc/stat"
        self._threads = root / "proc/self/task"
        self._pressure = root / "proc/pressure/cpu"
        self._cpus = root / "sys/devices/system/cpu"
        self._thermal = root / "sys/class/thermal"
        self._power = root / "sys/class/power_supply"

    def look(self) -> HostSample:
        """All counters now; some tens of microseconds."""
        stat = _text(self._stat)
        return HostSample(self._clock(), times(stat) if stat else None, self.stall_ns(), self._throttles())

    def stall_ns(self) -> int | None:
        """See `stall_ns`; about 16 µs."""
        pressure = _text(self._pressure)
        return stall_ns(pressure) if pressure else None

    def running(self) -> tuple[int, int] | None:
        """Processes that run at this moment, this one among them, and how many processors there are."""
        stat = _text(self._stat)
        seen = times(stat) if stat else None
        return (seen.running, seen.processors) if seen else None

    def others_now(self) -> float | None:
        """Share of the processors on which others run at this moment, 0 to 1: all that run less this process's own threads."""
        told, own = self.running(), 0
        if told is None:
            return None
        for thread in self._threads.glob("*/stat"):
            own += (_text(thread) or b"").rpartition(b")")[2].split(maxsplit=1)[:1] == [b"R"]
        return min(1.0, max(0, told[0] - max(1, own)) / told[1])

    def clock_mhz(self) -> float | None:
        """Mean of the processors' clocks."""
        told = [
            whole(_text(path)) for path in self._cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
        ]  # in kHz
        known = [khz for khz in told if khz]
        return fmean(known) / 1000 if known else None

    def temperature_c(self) -> float | None:
        """Of the processor's hottest sensor."""
        zones = []
        for zone in self._thermal.glob("thermal_zone*"):
            milli = whole(_text(zone / "temp"))
            if milli is not None:
                zones.append((_word(zone / "type"), milli))
        found = hottest(zones)
        return found if found is None or math.isfinite(found) else None

    def on_battery(self) -> bool | None:
        """See `on_battery`."""
        # a mouse has a battery too: its scope says that it is not the device's
        return on_battery(
            [
                (_word(supply / "type"), _word(supply / "online"), _word(supply / "status"))
                for supply in sorted(self._power.glob("*"))
                if _word(supply / "scope") != "Device"
            ]
        )

    def _throttles(self) -> int | None:
        told = [
            whole(_text(path)) for path in self._cpus.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
        ]
        known = [count for count in told if count is not None]
        return sum(known) if known else None


def _text(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _word(path: Path) -> str:
    return (_text(path) or b"").decode(errors="replace").strip()
