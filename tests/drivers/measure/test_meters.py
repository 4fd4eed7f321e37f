"""Meters of energy, from files and lines in their real forms: joules of the windows, or none and why."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from drivers.measure.meter_file import MeterFileError, read_file
from drivers.measure.metering import Metering, parse
from drivers.measure.meters import (
    HwmonMeter,
    MeterReading,
    PowermetricsText,
    RaplMeter,
    energy,
    find_meters,
    may_have_meters,
    report,
)
from drivers.measure.reader_process import IDLE_READINGS, INTERVAL_S, MAX_READINGS, interval_s

MS = 1_000_000
S = 1000 * MS


def put(root: Path, name: str, text: object) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
    return path


def rapl_host(root: Path) -> Path:
    """Two packages with what is in them, and the platform: as in the kernel's documentation of powercap."""
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
        (zone / "energy_uj").mkdir()  # root reads what is forbidden; nobody reads a folder
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
    assert [one.joules for one in dict.fromkeys(seen) if one] == [pytest.approx(1.172), pytest.approx(4.747)]


# -- joules of a window ------------------------------------------------------------------------------------------------------------------

COUNTER = [MeterReading(at * 100 * MS, joules=at * 2.0) for at in range(101)]
POWER = [MeterReading(at * S, watts=50.0 + 10 * at) for at in range(11)]


def test_a_window_has_its_share_of_a_counter_and_power_over_its_time() -> None:
    assert energy(COUNTER, (1 * S + 50 * MS, 3 * S + 25 * MS)) == pytest.approx(20 * 1.975)
    assert energy(POWER, (2 * S, 4 * S)) == pytest.approx(2 * 80)
    assert energy(POWER, (2 * S + S // 2, 3 * S)) == pytest.approx(0.5 * 77.5)


@pytest.mark.parametrize("window", [(-5, S), (9 * S, 11 * S), (4 * S, 4 * S)])
def test_what_was_not_read_on_both_sides_is_not_known(window: tuple[int, int]) -> None:
    assert energy(COUNTER, window) is None


def test_a_gap_is_not_filled() -> None:
    gap = [one for one in COUNTER if not 3 * S < one.at_ns < 5 * S]
    assert energy(gap, (2 * S, 6 * S)) is None
    assert energy(gap, (6 * S, 7 * S)) == pytest.approx(20)


def a_meter() -> HwmonMeter:
    return HwmonMeter("csv", "wall", "plug.csv", Path("/nowhere"), lambda: 0)


def test_a_report_has_the_windows_the_stretches_and_the_idle_device() -> None:
    found = report(
        a_meter(), COUNTER, [(2 * S, 3 * S), (4 * S, 6 * S)], [(4 * S, 5 * S), (99 * S, 100 * S)], S
    )
    assert found is not None
    assert (found.energy_j, found.idle_w) == (pytest.approx(60), pytest.approx(20))
    assert found.stretch_energy_j == (pytest.approx(20), None)
    assert (found.samples, found.notes) == (11 + 21, ())


def test_a_meter_too_slow_for_the_windows_has_no_energy_and_says_why() -> None:
    found = report(a_meter(), POWER, [(2 * S, 2 * S + 50 * MS)], [], S)
    assert found is not None
    assert found.energy_j is None
    assert found.notes == (
        "its readings are 1 s apart, and the shortest timed window takes 0.05 s: measure with sustain",
    )
    beyond = report(a_meter(), POWER, [(8 * S, 20 * S)], [], S)
    assert beyond is not None
    assert (beyond.energy_j, beyond.notes) == (None, ("its readings do not cover the timed windows",))
    assert report(a_meter(), [], [(0, S)], [], S) is None


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
    ],
)
def test_a_file_with_something_wrong_says_what_and_where(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "plug.csv"
    path.write_text(text)
    with pytest.raises(MeterFileError, match=why):
        read_file(path, 0, 0, S)
    with pytest.raises(MeterFileError, match="No such file"):
        read_file(tmp_path / "gone.csv", 0, 0, S)


# -- all of them -------------------------------------------------------------------------------------------------------------------------


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


def test_a_long_run_is_read_less_often() -> None:
    assert interval_s(None) == interval_s(600) == INTERVAL_S
    assert 14_400 / interval_s(14_400) == pytest.approx(MAX_READINGS)
