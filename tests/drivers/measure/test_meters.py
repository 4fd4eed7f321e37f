"""Energy meters, from files and lines in their real formats: joules of the timed windows, or none and the reason."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from drivers.measure.meter_file import MeterFileError, read_file
from drivers.measure.metering import LATE_NS, HostMeters, Metering, parse
from drivers.measure.meters import (
    HwmonMeter,
    MeterName,
    MeterReading,
    RaplMeter,
    energy,
    find_meters,
    late_ns,
    longest_step,
    may_have_meters,
    report,
    spacing,
)
from drivers.measure.powermetrics import PowermetricsText, open_powermetrics
from drivers.measure.reader_process import (
    IDLE_READINGS,
    INTERVAL_S,
    MAX_READINGS,
    ReaderProcess,
    interval_s,
)

MS = 1_000_000
S = 1000 * MS


def put(root: Path, name: str, text: object) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
    return path


def rapl_host(root: Path) -> Path:
    """Write two packages with their zones, and the platform, as in the kernel's documentation of powercap."""
    for zone, name in (
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "package-1"),
        ("intel-rapl:2", "psys"),
    ):
        put(root, f"sys/class/powercap/{zone}/name", name)
        put(root, f"sys/class/powercap/{zone}/energy_uj", 5_000_000)
        put(root, f"sys/class/powercap/{zone}/max_energy_range_uj", 262_143_328_850)
    return root


def test_packages_and_memory_count_and_nothing_that_is_in_them_or_around(tmp_path: Path) -> None:
    found = find_meters(rapl_host(tmp_path), gpu=False, clock=lambda: 0)
    assert [(one.source, one.part, one.device) for one in found] == [
        ("rapl", "package", "package-0"),
        ("rapl", "dram", "dram intel-rapl:0:1"),
        ("rapl", "package", "package-1"),
    ]


def test_a_counter_that_wraps_goes_on(tmp_path: Path) -> None:
    zone = tmp_path / "intel-rapl:0"
    put(zone, "max_energy_range_uj", 10_000_000)
    counter = put(zone, "energy_uj", 9_000_000)
    meter = RaplMeter(zone, "package", "package-0", lambda: 7)
    assert meter.read() == MeterReading(7, joules=9.0)
    for microjoules, joules in ((500_000, 10.5), (9_500_000, 19.5), (1_000_000, 21.0)):
        counter.write_text(str(microjoules))
        assert meter.read() == MeterReading(7, joules=joules)
    (zone / "max_energy_range_uj").unlink()
    boundless = RaplMeter(zone, "package", "package-0", lambda: 7)
    boundless.read()
    counter.write_text("5")
    assert boundless.read() is None, "nobody knows how far it had come"


def test_a_counter_that_may_not_be_read_is_no_meter(tmp_path: Path) -> None:
    for zone in (rapl_host(tmp_path) / "sys/class/powercap").iterdir():
        (zone / "energy_uj").unlink()
        (zone / "energy_uj").mkdir()  # root may read any file, but nobody can read a folder
    assert find_meters(tmp_path, gpu=False, clock=lambda: 0) == []
    assert not may_have_meters(tmp_path, gpu=False)


@pytest.mark.parametrize("name", ["power1_average", "power1_input"])
def test_one_amd_gpu_is_read_and_of_several_none(tmp_path: Path, name: str) -> None:
    put(tmp_path, "sys/class/hwmon/hwmon0/name", "k10temp")
    put(tmp_path, "sys/class/hwmon/hwmon3/name", "amdgpu")
    put(tmp_path, f"sys/class/hwmon/hwmon3/{name}", 87_000_000)
    (meter,) = find_meters(tmp_path, gpu=True, clock=lambda: 3)
    assert isinstance(meter, HwmonMeter)
    assert (meter.source, meter.part, meter.read()) == ("amdgpu", "gpu", MeterReading(3, watts=87.0))
    assert find_meters(tmp_path, gpu=False, clock=lambda: 3) == []
    put(tmp_path, "sys/class/hwmon/hwmon4/name", "amdgpu")
    assert find_meters(tmp_path, gpu=True, clock=lambda: 3) == []


POWERMETRICS = """\
Machine model: Mac15,12
*** Sampled system activity (Tue Dec  9 13:28:01 2025 -0600) (1000.00ms elapsed) ***

**** Processor usage ****

E-Cluster HW active frequency: 0 MHz
CPU Power: 823 mW
GPU Power: 26 mW
ANE Power: 323 mW
Combined Power (CPU + GPU + ANE): 1172 mW

**** GPU usage ****

GPU Power: 26 mW
Combined Power (CPU + GPU + ANE): 1172 mW
*** Sampled system activity (Tue Dec  9 13:28:02 2025 -0600) (500.00ms elapsed) ***
Combined Power (CPU + GPU + ANE): 7150mW
"""


def test_powermetrics_counts_each_sample_once_for_as_long_as_it_took() -> None:
    now = 0
    text, seen = PowermetricsText(lambda: now), list[MeterReading | None]()
    for line in POWERMETRICS.splitlines():
        now += MS
        text.feed(line)
        seen.append(text.read())
    assert seen[0] is None
    assert [one.joules for one in seen if one] == [pytest.approx(1.172), pytest.approx(4.747)]


def test_powermetrics_has_two_samples_when_it_is_begun_with_and_none_where_it_is_refused(
    tmp_path: Path,
) -> None:
    printed = tmp_path / "printed"
    printed.write_text(POWERMETRICS)
    meter = open_powermetrics(["cat", str(printed)])
    assert meter is not None
    assert [meter.read() is None for _ in range(3)] == [False, False, True], "an idle device needs two"
    assert open_powermetrics(["false"]) is open_powermetrics(["no-such-program"]) is None


def test_the_last_sample_of_powermetrics_is_one_that_came_after_the_run() -> None:
    clock, seen = itertools.count(), threading.Event()
    text = PowermetricsText(lambda: next(clock))

    def printing() -> None:
        while not seen.is_set():
            for line in POWERMETRICS.splitlines():
                text.feed(line)

    for line in POWERMETRICS.splitlines():
        text.feed(line)
    ended = next(clock)
    thread = threading.Thread(target=printing)
    thread.start()
    text.settle(most_s=60)
    last = text.read()
    seen.set()
    thread.join()
    assert last is not None
    assert last.at_ns > ended


# -- a window's joules -------------------------------------------------------------------------------------------------------------------


def joules(readings: Sequence[MeterReading], window: tuple[int, int]) -> float | None:
    return energy(readings, window, longest_step(spacing(readings)))


COUNTER = [MeterReading(at * 100 * MS, joules=at * 2.0) for at in range(101)]
POWER = [MeterReading(at * S, watts=50.0 + 10 * at) for at in range(11)]


def test_a_window_has_its_share_of_a_counter_and_power_over_its_time() -> None:
    assert joules(COUNTER, (1 * S + 50 * MS, 3 * S + 25 * MS)) == pytest.approx(20 * 1.975)
    assert joules(POWER, (2 * S, 4 * S)) == pytest.approx(2 * 80)
    assert joules(POWER, (2 * S + S // 2, 3 * S)) == pytest.approx(0.5 * 77.5)


@pytest.mark.parametrize("window", [(-5, S), (9 * S, 11 * S), (4 * S, 4 * S)])
def test_what_was_not_read_on_both_sides_is_not_known(window: tuple[int, int]) -> None:
    assert joules(COUNTER, window) is None


def test_a_gap_is_not_filled() -> None:
    gap = [one for one in COUNTER if not 3 * S < one.at_ns < 5 * S]
    assert joules(gap, (2 * S, 6 * S)) is None
    assert joules(gap, (6 * S, 7 * S)) == pytest.approx(20)


PLUG = MeterName("csv", "wall", "plug.csv")


def test_a_report_has_the_windows_the_stretches_and_the_idle_device() -> None:
    found = report(PLUG, COUNTER, [(2 * S, 3 * S), (4 * S, 6 * S)], [(4 * S, 5 * S), (99 * S, 100 * S)], S)
    assert found is not None
    assert (found.energy_j, found.idle_w) == (pytest.approx(60), pytest.approx(20))
    assert found.stretch_energy_j == (pytest.approx(20), None)
    assert (found.samples, found.notes) == (11 + 21, ())


def test_the_reading_behind_the_last_window_is_late_where_it_would_tell_something() -> None:
    assert late_ns(POWER, [(2 * S, 4 * S), (8 * S, 10 * S + 1)]) == 2 * S
    assert late_ns(POWER, [(8 * S, 10 * S)]) == 0, "it is there"
    assert late_ns(POWER, [(8 * S, 8 * S + 5), (9 * S, 10 * S + 5)]) == 0, "it is too slow for these windows"
    assert late_ns(POWER, [(8 * S, 21 * S)]) == 0, "it ended long ago"
    assert late_ns(POWER[:1], [(8 * S, 21 * S)]) == late_ns([], [(8 * S, 21 * S)]) == 0


def test_a_meter_too_slow_for_the_windows_has_no_energy_and_says_why() -> None:
    found = report(PLUG, POWER, [(2 * S, 2 * S + 50 * MS)], [], S)
    assert found is not None
    assert found.energy_j is None
    assert found.notes == (
        "its readings are 1 s apart, and the shortest timed window takes 0.05 s: measure with sustain",
    )
    beyond = report(PLUG, POWER, [(8 * S, 20 * S)], [], S)
    assert beyond is not None
    assert (beyond.energy_j, beyond.notes) == (None, ("its readings do not cover the timed windows",))
    assert report(PLUG, [], [(0, S)], [], S) is None


# -- a meter's file ----------------------------------------------------------------------------------------------------------------------

WALL = 1_795_399_800 * S


def test_a_file_is_joined_by_the_wall_clock(tmp_path: Path) -> None:
    path = tmp_path / "plug.csv"
    path.write_text(
        "Time, Watts, volts\n1795399800,80,230\n1795399801.5,90,230\n"
        "2026-11-23T04:10:03+02:00,100,230\n2026-11-23T02:10:04Z,110,231\n1795399806,1"
    )
    read = read_file(path, WALL - 5 * S, 0, 100 * S)
    assert read == [
        MeterReading(5 * S, watts=80.0),
        MeterReading(6 * S + S // 2, watts=90.0),
        MeterReading(8 * S, watts=100.0),
        MeterReading(9 * S, watts=110.0),
    ], "the last line is being written"
    assert read_file(path, WALL - 5 * S, 7 * S, 8 * S - 1) == read[1:3]


@pytest.mark.parametrize(
    "text",
    [
        "time,watts\n1795399800,80\n1795399801",
        "time,watts\n1795399800,80\n17953998",
        'time,watts\n1795399800,80\n"179',
        "\ufefftime,watts\r\n1795399800,80\r\n\r\n",
        "time,watts\n1795399800,80\n\ufeffTime,Watts\n",
        'time,watts\n1795399800,"80\n',
        'what,"time", "watts"\n"a, b", "1795399800","80"\n',
    ],
)
def test_what_loggers_do_to_a_file_loses_no_reading(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plug.csv"
    path.write_text(text, newline="")
    assert read_file(path, WALL, 0, S) == [MeterReading(0, watts=80.0)]


@pytest.mark.parametrize("block", [50, 64, 1000, 1 << 20])
def test_of_a_long_file_only_the_end_is_looked_at(tmp_path: Path, block: int) -> None:
    path = tmp_path / "plug.csv"
    lines = [f"{1795399800 + at},{at % 90}" for at in range(500)]
    path.write_text("time,watts\n" + "\n".join(lines) + "\n")
    whole = read_file(path, WALL, 400 * S + 1, 450 * S, 1 << 20)
    assert [one.at_ns // S for one in whole] == list(range(400, 452))
    assert read_file(path, WALL, 400 * S + 1, 450 * S, block) == whole
    assert read_file(path, WALL, -9 * S, 900 * S, block) == read_file(path, WALL, -9 * S, 900 * S, 1 << 20)
    spoilt = lines.copy()
    spoilt[3] = "who cares"
    path.write_text("time,watts\n" + "\n".join(spoilt) + "\n")
    if block <= 1000:
        assert read_file(path, WALL, 400 * S + 1, 450 * S, block) == whole
    spoilt[470] = "noon,80"
    path.write_text("time,watts\n" + "\n".join(spoilt) + "\n")
    with pytest.raises(
        MeterFileError, match="line 5: not" if block > 1000 else "plug.csv, 'noon,80': 'noon' is not"
    ):
        read_file(path, WALL, 400 * S + 1, 450 * S, block)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "line 1: no columns time and watts"),
        ("at,power\n1,2\n", "line 1: no columns time and watts"),
        ("time,watts\n1795399800\n", "line 2: not a time and watts"),
        ("time,watts\n1795399800,80\nnoon,80\n", "line 3: 'noon' is not a time"),
        ("time,watts\n2026-11-23T02:50:04,80\n", "line 2: '2026-11-23T02:50:04' has no time zone"),
        ("time,watts\n1795399800,-3\n", "line 2: -3 W is not the power"),
        ("time,watts\n1795399800,nan\n", "line 2: nan W is not the power"),
        ("time,watts\n12,nan\n", "line 2"),
        ('time,watts\n"1795399800,80\n1795399801,81\n', "line 2: not a time and watts"),
        ('time,watts\n1795399800,80\n1795399801,8"1\n', "line 3: not a time and watts"),
        ('time,watts\n1795399800,80\n"' + "1," * 70_000 + "\n", "line 3: not a time and watts"),
    ],
)
def test_a_file_with_something_wrong_says_what_and_where(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "plug.csv"
    path.write_text(text)
    with pytest.raises(MeterFileError, match=why):
        read_file(path, 0, 0, S)
    with pytest.raises(MeterFileError, match="No such file"):
        read_file(tmp_path / "gone.csv", 0, 0, S)


# -- all meters together -----------------------------------------------------------------------------------------------------------------


def test_a_process_apart_reads_counters_while_something_runs(tmp_path: Path) -> None:
    counter = rapl_host(tmp_path) / "sys/class/powercap/intel-rapl:0/energy_uj"
    metering, before = Metering(gpu=False, root=tmp_path, every_s=0.002), time.perf_counter_ns()
    metering.start()
    began = time.perf_counter_ns()
    while time.perf_counter_ns() < began + 60 * MS:
        fresh = counter.with_name("next")
        fresh.write_text(str(5_000_000 + (time.perf_counter_ns() - began) // 100))  # 10 W
        fresh.replace(counter)
    ended = time.perf_counter_ns()
    reports = {one.device: one for one in metering.stop(((before, ended),), ((began, ended),))}
    assert len(reports) == 3
    package = reports["package-0"]
    assert package.samples >= IDLE_READINGS, "it had read the idle device when it said that it was ready"
    assert (package.energy_j, package.notes) == (None, ("its readings do not cover the timed windows",))
    (joules,) = package.stretch_energy_j
    assert joules is None or 0 < joules <= 10.0 * (ended - began) / S + 0.001
    assert metering.stop(((before, ended),)) == []


def test_a_host_without_meters_starts_no_process_and_reports_none(tmp_path: Path) -> None:
    metering = Metering(gpu=True, root=tmp_path)
    metering.start()
    assert metering.stop(((0, S),)) == []


def test_where_there_is_nothing_to_read_that_is_found_out_once(tmp_path: Path) -> None:
    """Stands for a host on which each look is a refused `sudo`. Here the counters vanish between the look and the process."""
    rapl, away = rapl_host(tmp_path) / "sys/class/powercap", tmp_path / "away"
    meters = HostMeters(root=tmp_path)
    first = meters.of_run(gpu=False)
    rapl.rename(away)
    first.start()
    assert first.stop(((0, S),)) == []
    away.rename(rapl)
    assert may_have_meters(tmp_path, gpu=False)
    again = meters.of_run(gpu=False)
    again.start()
    assert again.stop(((0, S),)) == []


class Wall:
    """A wall meter that writes a line each second, by a clock that moves only while somebody waits."""

    def __init__(self, path: Path, lines: int) -> None:
        self.path, self.now, self.waited = path, 100 * S, 0
        self._next, self._lines = 1, lines
        path.write_text("time,watts\n")

    def clock(self) -> int:
        return self.now

    def pass_by(self, seconds: float) -> bool:
        self.now += round(seconds * S)
        while self._next <= min(self._lines, (self.now - 100 * S) // S):
            at = time.time() + (self._next - (self.now - 100 * S) / S)
            with self.path.open("a") as file:
                file.write(f"{at},50\n")
            self._next += 1
        return False

    def wait(self, seconds: float) -> bool:
        self.waited += round(seconds * S)
        return self.pass_by(seconds)


@pytest.mark.parametrize(
    ("lines", "least", "most", "covered"),
    [(99, 400 * MS, 700 * MS, True), (5, 2 * S, 2 * S + 100 * MS, False)],
)
def test_the_line_behind_the_last_window_is_waited_for_a_little(
    tmp_path: Path, lines: int, least: int, most: int, covered: bool
) -> None:
    wall = Wall(tmp_path / "plug.csv", lines)
    metering = Metering(gpu=False, file=wall.path, root=tmp_path / "none", clock=wall.clock)
    metering.start()
    wall.pass_by(5.5)
    windows = ((101 * S + S // 2, 105 * S + S // 2),)
    (found,) = metering.stop(windows, (), wall.wait)
    assert least <= wall.waited <= most <= LATE_NS
    assert found.energy_j == (pytest.approx(200, rel=0.01) if covered else None)
    assert found.notes == (() if covered else ("its readings do not cover the timed windows",))


def test_of_a_run_that_was_cancelled_no_line_is_waited_for(tmp_path: Path) -> None:
    wall = Wall(tmp_path / "plug.csv", 99)
    metering = Metering(gpu=False, file=wall.path, root=tmp_path / "none", clock=wall.clock)
    metering.start()
    wall.pass_by(5.5)
    looks = list[float]()

    def cancelled(seconds: float) -> bool:
        looks.append(seconds)
        return True

    metering.stop(((101 * S + S // 2, 105 * S + S // 2),), (), cancelled)
    assert len(looks) == 1


def test_the_owners_file_is_read_at_the_end_and_its_faults_stand_in_the_record(tmp_path: Path) -> None:
    path = tmp_path / "plug.csv"
    metering = Metering(gpu=False, file=path, root=tmp_path)
    metering.start()
    now, began = time.time(), time.perf_counter_ns()
    lines = (f"{now - 5 + at},{100 if at < 5 else 200}" for at in range(20))
    path.write_text("time,watts\n" + "\n".join(lines) + "\n")
    (found,) = metering.stop(((began + S, began + 4 * S),), ((began + S, began + 2 * S),))
    assert (found.source, found.part, found.device) == ("csv", "wall", "plug.csv")
    assert found.energy_j == pytest.approx(600, rel=0.01)
    assert found.stretch_energy_j == (pytest.approx(200, rel=0.01),)
    assert found.idle_w == pytest.approx(100)
    again = Metering(gpu=False, file=path, root=tmp_path)
    again.start()
    path.write_text("time;watts\n")
    (broken,) = again.stop(((began, began + S),))
    assert (broken.energy_j, broken.samples) == (None, 0)
    assert "no columns time and watts" in broken.notes[0]


def test_lines_that_were_cut_off_or_repeat_are_left_out() -> None:
    heading = json.dumps([["rapl", "package", "package-0"], ["powermetrics", "package", "all"]])
    lines = [
        "[[1, 0.5, null], null]",
        "[[2, 0.75, null], [1, 3.0, null]]",
        "[[3, 1.0, null], [1, 3.0, null]]",
        "[[4",
    ]
    (rapl, one), (_, other) = parse("\n".join([heading, *lines]).encode())
    assert (rapl.source, rapl.device) == ("rapl", "package-0")
    assert one == [MeterReading(1, 0.5), MeterReading(2, 0.75), MeterReading(3, 1.0)]
    assert other == [MeterReading(1, 3.0)]
    assert parse(b"") == []


def test_without_a_disk_for_readings_a_run_goes_on_without_them(tmp_path: Path) -> None:
    reader = ReaderProcess(["true"], folder=tmp_path / "gone")
    assert (reader.start(), reader.found_nothing, reader.stop()) == (False, False, None)


def test_a_long_run_is_read_less_often() -> None:
    assert interval_s(None) == interval_s(600) == INTERVAL_S
    assert 14_400 / interval_s(14_400) == pytest.approx(MAX_READINGS)
