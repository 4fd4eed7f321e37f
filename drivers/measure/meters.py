"""Meters of energy: readings of each, and joules over the timed windows from these readings. Files and programs are arguments.

rapl (package, dram): `/sys/class/powercap/intel-rapl:*/energy_uj`, also for AMD's processors: microjoules, restarting at 0 beyond
    `max_energy_range_uj`; only for root since 2020
amdgpu (gpu): `/sys/class/hwmon/*/power1_average` or `power1_input`: microwatts of the chip, on APUs including the processor
powermetrics (package): macOS on Apple's chips, as root or by `sudo -n`: processor, GPU and Neural Engine together
csv (wall): a file that the owner's meter writes (`drivers.measure.meter_file`)

https://www.kernel.org/doc/html/latest/power/powercap/powercap.html, https://www.kernel.org/doc/html/latest/gpu/amdgpu/thermal.html
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Final, Protocol

from drivers.contract.base import MeterReport

Window = tuple[int, int]
"""Start and end, in nanoseconds of `time.perf_counter_ns`."""
GAP: Final = 10.0
"""Readings this many times further apart than usual have a gap between them, about which nothing is known …"""
MIN_GAP_NS: Final = 1_000_000_000
"""… if the gap is longer than this."""


@dataclass(frozen=True, slots=True)
class MeterReading:
    """One reading; either `joules` or `watts` is known."""

    at_ns: int
    joules: float | None = None
    """Reading of a counter that only rises."""
    watts: float | None = None


@dataclass(frozen=True, slots=True)
class MeterName:
    """Name of a meter that another process or program reads."""

    source: str
    part: str
    device: str


class Meter(Protocol):
    source: str
    part: str
    device: str

    def read(self) -> MeterReading | None:
        """The current reading, or the next unread one; None: there is none."""
        ...


class RaplMeter:
    """A zone of RAPL by its folder, such as `intel-rapl:0`."""

    source: str = "rapl"

    def __init__(self, zone: Path, part: str, device: str, clock: Callable[[], int]) -> None:
        self.part, self.device = part, device
        self._energy, self._clock = zone / "energy_uj", clock
        self._range_uj = _number(zone / "max_energy_range_uj") or 0
        self._last_uj = self._wrapped_uj = 0

    def read(self) -> MeterReading | None:
        at_ns, now_uj = self._clock(), _number(self._energy)
        if now_uj is None:
            return None
        if now_uj < self._last_uj:
            if not self._range_uj:
                return None
            self._wrapped_uj += self._range_uj
        self._last_uj = now_uj
        return MeterReading(at_ns, joules=(self._wrapped_uj + now_uj) / 1e6)


class HwmonMeter:
    """A meter that is a file with microwatts."""

    def __init__(self, source: str, part: str, device: str, power: Path, clock: Callable[[], int]) -> None:
        self.source, self.part, self.device = source, part, device
        self._power, self._clock = power, clock

    def read(self) -> MeterReading | None:
        at_ns, microwatts = self._clock(), _number(self._power)
        return None if microwatts is None else MeterReading(at_ns, watts=microwatts / 1e6)


def rapl_zones(root: Path) -> list[tuple[Path, str, str]]:
    """Folder, part and name of each zone that counts. A package's figure includes the zones inside it (core, uncore). psys covers the whole
    platform on some machines but not on others."""
    zones = []
    for folder in sorted((root / "sys/class/powercap").glob("intel-rapl:*")):
        name = _word(folder / "name")
        part = "package" if name.startswith("package") else "dram" if name == "dram" else ""
        if part:
            zones.append((folder, part, f"{name} {folder.name}" if part == "dram" else name))
    return zones


def find_meters(root: Path, *, gpu: bool, clock: Callable[[], int]) -> list[Meter]:
    """The meters of this host that this user may read, except powermetrics. `gpu`: the run is on a GPU."""
    meters: list[Meter] = []
    for folder, part, device in rapl_zones(root):
        if _number(folder / "energy_uj") is not None:
            meters.append(RaplMeter(folder, part, device, clock))
    cards = [one for one in sorted((root / "sys/class/hwmon").glob("*")) if _word(one / "name") == "amdgpu"]
    if gpu and len(cards) == 1:  # with several cards it is unknown which one runs
        files = (cards[0] / name for name in ("power1_average", "power1_input"))
        power = next((file for file in files if _number(file) is not None), None)
        if power is not None:
            meters.append(HwmonMeter("amdgpu", "gpu", cards[0].name, power, clock))
    return meters


def may_have_meters(root: Path, *, gpu: bool) -> bool:
    """Whether starting a process to look for meters is worthwhile."""
    return sys.platform == "darwin" or bool(find_meters(root, gpu=gpu, clock=lambda: 0))


# -- readings to joules ---------------------------------------------------------------------------------------------------------


def report(
    meter: Meter | MeterName,
    readings: Sequence[MeterReading],
    windows: Sequence[Window],
    stretches: Sequence[Window],
    began_ns: int,
) -> MeterReport | None:
    """What the meter read in the windows; None without a reading. `began_ns`: readings before it are of the idle device."""
    if not readings:
        return None
    apart = spacing(readings)
    shortest = _shortest(windows)
    longest = longest_step(apart)
    energies = [energy(readings, window, longest) for window in windows]
    why = ""
    if apart is None:
        why = "it was read once"
    elif shortest < apart:
        spans = f"{apart / 1e9:.2g} s apart, and the shortest timed window takes {shortest / 1e9:.2g} s"
        why = f"its readings are {spans}: measure with sustain"
    elif None in energies:
        why = "its readings do not cover the timed windows"
    return MeterReport(
        source=meter.source,
        part=meter.part,
        device=meter.device,
        samples=sum(_after(readings, end) - _from(readings, begin) for begin, end in windows),
        energy_j=None if why else sum(one or 0.0 for one in energies),
        idle_w=_idle_w([reading for reading in readings if reading.at_ns < began_ns]),
        stretch_energy_j=tuple(energy(readings, stretch, longest) for stretch in stretches),
        notes=(why,) if why else (),
    )


def late_ns(readings: Sequence[MeterReading], windows: Sequence[Window]) -> float:
    """How long the reading after the last window may take to arrive; 0: it is there, or would not help."""
    apart = spacing(readings)
    if apart is None or _shortest(windows) < apart:
        return 0.0
    missing_ns = windows[-1][1] - readings[-1].at_ns
    return 2 * apart if 0 < missing_ns <= longest_step(apart) else 0.0


def spacing(readings: Sequence[MeterReading]) -> float | None:
    """Median nanoseconds between readings; None for fewer than two."""
    steps = [after.at_ns - before.at_ns for before, after in pairwise(readings)]
    return median(steps) if steps else None


def longest_step(apart: float | None) -> float:
    """Most nanoseconds between two readings that leave no gap, if readings are usually `apart` nanoseconds apart."""
    return max(MIN_GAP_NS, GAP * (apart or 0.0))


def energy(readings: Sequence[MeterReading], window: Window, longest: float) -> float | None:
    """Joules in the window: a counter's difference, or power over time, both linear between two readings. None: there is no reading before
    or after the window, or there is a gap in it (`longest_step`). `readings`: sorted by time, all of one kind."""
    begin, end = window
    first, last = _after(readings, begin) - 1, _from(readings, end)
    if first < 0 or last >= len(readings) or end <= begin:
        return None
    inside = readings[first : last + 1]
    if any(after.at_ns - before.at_ns > longest for before, after in pairwise(inside)):
        return None
    total = 0.0
    for before, after in pairwise(inside):
        length = after.at_ns - before.at_ns
        left, right = max(begin, before.at_ns), min(end, after.at_ns)
        if right <= left:
            continue
        if before.joules is not None and after.joules is not None:
            total += (after.joules - before.joules) * (right - left) / length
        elif before.watts is not None and after.watts is not None:
            slope = (after.watts - before.watts) / length
            middle = before.watts + slope * ((left + right) / 2 - before.at_ns)
            total += middle * (right - left) / 1e9
        else:
            return None
    return total


def _from(readings: Sequence[MeterReading], at_ns: int) -> int:
    """Index of the first reading at that time or later."""
    return bisect_left(readings, at_ns, key=attrgetter("at_ns"))


def _after(readings: Sequence[MeterReading], at_ns: int) -> int:
    return bisect_right(readings, at_ns, key=attrgetter("at_ns"))


def _shortest(windows: Sequence[Window]) -> int:
    return min((end - begin for begin, end in windows), default=0)


def _idle_w(readings: Sequence[MeterReading]) -> float | None:
    watts = [reading.watts for reading in readings if reading.watts is not None]
    if watts:
        return median(watts)
    if len(readings) < 2 or readings[0].joules is None or readings[-1].joules is None:
        return None
    seconds = (readings[-1].at_ns - readings[0].at_ns) / 1e9
    return (readings[-1].joules - readings[0].joules) / seconds if seconds > 0 else None


def _number(path: Path) -> int | None:
    """The whole number in a file; None: the file does not exist, or this user may not read it."""
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):
        return None


def _word(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace").strip()
    except OSError:
        return ""
