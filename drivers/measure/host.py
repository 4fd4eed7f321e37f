"""The state of the host: pressure, other processes' share, clocks, heat, power. Parsers of the kernel's files, and a thin reader.

Everything is read between timed stretches, never inside one. None: this system does not report it.

    before, after = reader.look(), reader.look()
    state(before, after, own_cpu_s, reader)  what others used between the looks, and the host now
"""

from __future__ import annotations

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
MIN_SPAN_S: Final = 0.3
"""Over a shorter span, ticks are too coarse for shares to one or two hundredths."""
MAX_C: Final = 150.0
"""A sensor that reports more is broken."""

_SOME: Final = re.compile(rb"^some .*\btotal=(\d+)", re.MULTILINE)
_CPU: Final = re.compile(rb"^cpu +([\d ]+)", re.MULTILINE)
_EACH_CPU: Final = re.compile(rb"^cpu\d+ ", re.MULTILINE)
_RUNNING: Final = re.compile(rb"^procs_running (\d+)", re.MULTILINE)
_CPU_CHIPS: Final = frozenset({"coretemp", "k10temp", "zenpower", "cpu_thermal"})
_CPU_ZONE: Final = re.compile(r"x86_pkg_temp|cpu|core|soc|package", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """The time of all processors together since boot, in seconds."""

    total_s: float
    idle_s: float
    steal_s: float
    processors: int
    running: int
    """Runnable processes, including this one."""


def stall_ns(pressure: bytes) -> int | None:
    """The total of `some` in /proc/pressure/cpu, in nanoseconds."""
    match = _SOME.search(pressure)
    return int(match[1]) * 1000 if match else None


def times(stat: bytes) -> CpuTimes | None:
    """The first line of /proc/stat and its number of running processes. None for any other text."""
    line, running = _CPU.search(stat), _RUNNING.search(stat)
    fields = [int(field) / TICKS_S for field in line[1].split()] if line else []
    processors = len(_EACH_CPU.findall(stat))
    if len(fields) < 8 or running is None or not processors:
        return None
    # user nice system idle iowait irq softirq steal; user includes guests
    return CpuTimes(sum(fields[:8]), fields[3] + fields[4], fields[7], processors, int(running[1]))


def whole(text: bytes | None) -> int | None:
    """The integer in a file that contains nothing else."""
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def hottest(zones: Sequence[tuple[str, int]]) -> float | None:
    """Temperature of the processor's hottest thermal zone in °C; of the hottest zone of any kind if the processor has none. `zones`: type
    and thousandths of a degree."""
    own = [milli for kind, milli in zones if _CPU_ZONE.search(kind)]
    valid = [milli / 1000 for milli in own or [milli for _, milli in zones] if 0 < milli / 1000 < MAX_C]
    return max(valid, default=None)


def on_battery(supplies: Sequence[tuple[str, str, str]]) -> bool | None:
    """Whether the device runs on battery; None: it has none. `supplies`: type, `online` and status of each."""
    if not any(kind == "Battery" for kind, _, _ in supplies):
        return None
    mains = [online for kind, online, _ in supplies if kind in ("Mains", "USB")]
    if mains:
        return "1" not in mains
    return any(kind == "Battery" and status == "Discharging" for kind, _, status in supplies)


@dataclass(frozen=True, slots=True)
class HostSample:
    at_s: float
    times: CpuTimes | None
    stall_ns: int | None
    throttles: int | None


def others_share(before: HostSample, after: HostSample, own_cpu_s: float) -> float | None:
    """Share of all processors' time used by others, 0 to 1; `own_cpu_s` is not theirs."""
    if before.times is None or after.times is None:
        return None
    total = after.times.total_s - before.times.total_s
    idle = after.times.idle_s - before.times.idle_s + max(0.0, after.times.steal_s - before.times.steal_s)
    return _share(total - idle - own_cpu_s, total)


def subtract_own_share(share: float | None, cpu_s: float, span_s: float, processors: int) -> float | None:
    """A share of all processors' time, minus `cpu_s` of our own."""
    if share is None or span_s <= 0 or processors < 1:
        return share
    return max(0.0, share - cpu_s / (span_s * processors))


def steal_share(before: HostSample, after: HostSample) -> float | None:
    """Share of all processors' time taken by the hypervisor, 0 to 1."""
    if before.times is None or after.times is None:
        return None
    return _share(after.times.steal_s - before.times.steal_s, after.times.total_s - before.times.total_s)


def stall_share(before: HostSample, after: HostSample) -> float | None:
    """Share of the time in which a runnable task had no processor, 0 to 1."""
    if before.stall_ns is None or after.stall_ns is None:
        return None
    return _share((after.stall_ns - before.stall_ns) / 1e9, after.at_s - before.at_s)


def _share(part: float, total: float) -> float | None:
    return min(1.0, max(0.0, part / total)) if total > 0 else None


def state(
    before: HostSample,
    after: HostSample,
    own_cpu_s: float,
    reader: HostReader,
    glances: Sequence[float | None] = (),
) -> HostState:
    """The host between two looks and at the second. Over less than `MIN_SPAN_S` the share of others is the mean of `glances`, their share
    at single moments."""
    moments = [glance for glance in glances if glance is not None]
    long_enough = after.at_s - before.at_s >= MIN_SPAN_S
    others = fmean(moments) if moments else None
    throttles = None
    if before.throttles is not None and after.throttles is not None:
        throttles = max(0, after.throttles - before.throttles)
    return HostState(
        others_share=others_share(before, after, own_cpu_s) if long_enough else others,
        steal_share=steal_share(before, after) if long_enough else None,
        clock_mhz=reader.clock_mhz(),
        throttles=throttles,
        temperature_c=reader.temperature_c(),
        on_battery=reader.on_battery(),
    )


class HostReader:
    """Reads files below `root`, and a clock in seconds. Linux only; elsewhere everything is None."""

    def __init__(self, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stat = root / "proc/stat"
        self._threads = root / "proc/self/task"
        self._pressure = root / "proc/pressure/cpu"
        self._cpus = root / "sys/devices/system/cpu"
        self._thermal = root / "sys/class/thermal"
        self._hwmon = root / "sys/class/hwmon"
        self._power = root / "sys/class/power_supply"

    def look(self) -> HostSample:
        """Read all counters now; takes some tens of microseconds."""
        stat = _text(self._stat)
        return HostSample(self._clock(), times(stat) if stat else None, self.stall_ns(), self._throttles())

    def stall_ns(self) -> int | None:
        """See `stall_ns`; about 16 µs."""
        pressure = _text(self._pressure)
        return stall_ns(pressure) if pressure else None

    def running(self) -> tuple[int, int] | None:
        """Runnable processes, including this one, and the number of processors."""
        stat = _text(self._stat)
        now = times(stat) if stat else None
        return (now.running, now.processors) if now else None

    def others_now(self) -> float | None:
        """Share of the processors that others run on at this moment, 0 to 1; this process's own threads do not count."""
        running, own = self.running(), 0
        if running is None:
            return None
        for thread in self._threads.glob("*/stat"):
            own += (_text(thread) or b"").rpartition(b")")[2].split(maxsplit=1)[:1] == [b"R"]
        return min(1.0, max(0, running[0] - max(1, own)) / running[1])

    def clock_mhz(self) -> float | None:
        """Mean of the processors' clocks."""
        clocks = [whole(_text(path)) for path in self._cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")]
        khz = [clock for clock in clocks if clock]
        return fmean(khz) / 1000 if khz else None

    def temperature_c(self) -> float | None:
        zones = [
            (_word(one / "type"), whole(_text(one / "temp"))) for one in self._thermal.glob("thermal_zone*")
        ]
        for chip in self._hwmon.glob("*"):
            if _word(chip / "name") in _CPU_CHIPS:
                zones += [("cpu", whole(_text(sensor))) for sensor in chip.glob("temp*_input")]
        return hottest([(kind, milli) for kind, milli in zones if milli is not None])

    def on_battery(self) -> bool | None:
        # a mouse's battery has another scope
        own = [supply for supply in self._power.glob("*") if _word(supply / "scope") != "Device"]
        return on_battery(
            [(_word(one / "type"), _word(one / "online"), _word(one / "status")) for one in own]
        )

    def _throttles(self) -> int | None:
        files = self._cpus.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
        counts = [count for path in files if (count := whole(_text(path))) is not None]
        return sum(counts) if counts else None


def _text(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _word(path: Path) -> str:
    return (_text(path) or b"").decode(errors="replace").strip()
