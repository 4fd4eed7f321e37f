"""Parsing the kernel's texts, and comparing two readings. The texts are shortened copies of real ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.contract.base import HostState
from drivers.measure import host
from drivers.measure.host import CpuTimes, HostReader, HostSample

PRESSURE = b"""some avg10=0.00 avg60=3.39 avg300=15.69 total=5171522802
full avg10=0.00 avg60=0.00 avg300=0.00 total=17
"""
STAT = b"""cpu  1915740 185672 205979 3465419 9972 0 5426 5188 77 0
cpu0 848370 89156 94196 1857222 2295 0 1625 2604 77 0
cpu1 1067370 96515 111783 1608197 7676 0 3801 2584 0 0
intr 11704856 0 0 0
ctxt 16331489
btime 1763700000
processes 301714
procs_running 3
procs_blocked 0
"""


def look(at_s: float, total_s: float, idle_s: float, **changes: object) -> HostSample:
    """A reading of a host with two processors."""
    steal = float(str(changes.pop("steal_s", 0.0)))
    fields: dict[str, object] = {"stall_ns": None, "throttles": None} | changes
    return HostSample(at_s, CpuTimes(total_s, idle_s, steal, 2, 1), **fields)  # type: ignore[arg-type]


def test_the_pressure_is_the_total_of_some_in_nanoseconds() -> None:
    assert host.stall_ns(PRESSURE) == 5_171_522_802_000
    assert host.stall_ns(b"") is None
    assert host.stall_ns(b"full avg10=0.00 avg60=0.00 avg300=0.00 total=17\n") is None


def test_processor_times_are_in_seconds_and_count_guests_once() -> None:
    result = host.times(STAT)
    assert result is not None
    assert result.total_s == pytest.approx((1915740 + 185672 + 205979 + 3465419 + 9972 + 5426 + 5188) / 100)
    assert result.idle_s == pytest.approx((3465419 + 9972) / 100)
    assert (result.steal_s, result.processors, result.running) == (51.88, 2, 3)


@given(st.binary(max_size=200))
def test_any_other_text_tells_nothing_and_raises_nothing(text: bytes) -> None:
    assert host.times(text) is None
    assert host.stall_ns(text) is None
    host.whole(text)


def test_others_took_what_was_neither_idle_nor_stolen_nor_ours() -> None:
    before = look(10.0, 100.0, 50.0, steal_s=1.0)
    after = look(11.0, 102.0, 50.5, steal_s=1.1)
    # of 2 s: 0.5 idle, 0.1 stolen, 1.0 ours
    assert host.others_share(before, after, 1.0) == pytest.approx(0.2)
    assert host.steal_share(before, after) == pytest.approx(0.05)
    assert host.others_share(before, after, 5.0) == 0.0
    assert host.others_share(before, before, 0.0) is None


def test_our_own_processes_are_taken_off_and_no_share_is_below_nothing() -> None:
    assert host.subtract_own_share(0.3, cpu_s=0.2, span_s=1.0, processors=2) == pytest.approx(0.2)
    assert host.subtract_own_share(0.05, cpu_s=0.2, span_s=1.0, processors=2) == 0.0
    assert host.subtract_own_share(None, 0.2, 1.0, 2) is None


def test_the_share_that_was_stalled_is_of_the_wall_time() -> None:
    before = look(10.0, 0.0, 0.0, stall_ns=0)
    assert host.stall_share(before, look(12.0, 0.0, 0.0, stall_ns=500_000_000)) == 0.25
    assert host.stall_share(before, look(12.0, 0.0, 0.0)) is None


def test_the_hottest_sensor_of_the_processor_counts_and_a_broken_one_does_not() -> None:
    assert host.hottest([("acpitz", 70_000), ("x86_pkg_temp", 55_500), ("cpu-1", 54_000)]) == 55.5
    assert host.hottest([("acpitz", 30_000), ("pch", 41_000)]) == 41.0
    assert host.hottest([("x86_pkg_temp", 3_000_000)]) is None
    assert host.hottest([]) is None


@pytest.mark.parametrize(
    ("supplies", "on"),
    [
        ([], None),
        ([("Mains", "1", "")], None),
        ([("Mains", "1", ""), ("Battery", "", "Charging")], False),
        ([("Mains", "0", ""), ("Battery", "", "Discharging")], True),
        ([("Mains", "0", ""), ("USB", "1", ""), ("Battery", "", "Full")], False),
        ([("Battery", "", "Discharging")], True),
        ([("Battery", "", "Full")], False),
    ],
)
def test_a_device_is_on_its_battery_when_nothing_feeds_it(
    supplies: list[tuple[str, str, str]], on: bool | None
) -> None:
    assert host.on_battery(supplies) is on


def a_laptop(root: Path) -> Path:
    """Write the files of a laptop with two processors that runs on its battery, and of a mouse with a battery of its own."""
    texts = {
        "proc/stat": STAT.decode(),
        "proc/pressure/cpu": PRESSURE.decode(),
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2400000\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "1200000\n",
        "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3\n",
        "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "4\n",
        "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp\n",
        "sys/class/thermal/thermal_zone0/temp": "61000\n",
        "sys/class/power_supply/AC/type": "Mains\n",
        "sys/class/power_supply/AC/online": "0\n",
        "sys/class/power_supply/BAT0/type": "Battery\n",
        "sys/class/power_supply/BAT0/status": "Discharging\n",
        "sys/class/power_supply/hidpp/type": "Battery\n",
        "sys/class/power_supply/hidpp/scope": "Device\n",
    }
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_reader_finds_all_that_a_laptop_tells(tmp_path: Path) -> None:
    reader = HostReader(a_laptop(tmp_path), clock=lambda: 5.0)
    observed = reader.look()
    assert (observed.at_s, observed.stall_ns, observed.throttles) == (5.0, 5_171_522_802_000, 7)
    assert (reader.clock_mhz(), reader.temperature_c(), reader.on_battery()) == (1800.0, 61.0, True)
    assert reader.running() == (3, 2)


@pytest.mark.parametrize("processor", ["coretemp", "k10temp", "zenpower", "cpu_thermal"])
def test_a_processor_without_a_thermal_zone_has_a_chip_that_tells(tmp_path: Path, processor: str) -> None:
    zone = tmp_path / "sys/class/thermal/thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "type").write_text("iwlwifi_1\n")
    (zone / "temp").write_text("64000\n")
    for chip, name, milli in (("hwmon0", "nvme", 71_000), ("hwmon1", processor, 55_500)):
        folder = tmp_path / "sys/class/hwmon" / chip
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "temp1_input").write_text(f"{milli}\n")
    assert HostReader(tmp_path).temperature_c() == 55.5


def test_a_system_without_these_files_tells_nothing_rather_than_zero(tmp_path: Path) -> None:
    reader = HostReader(tmp_path)
    observed = reader.look()
    assert host.state(observed, reader.look(), 0.0, reader) == HostState()
    assert (reader.running(), reader.stall_ns()) == (None, None)


def test_what_others_run_at_a_moment_is_all_that_runs_less_our_own_threads(tmp_path: Path) -> None:
    reader = HostReader(a_laptop(tmp_path))
    assert reader.others_now() == 1.0  # three processes run on two processors, and one of them is ours
    for number, state in enumerate("RSR"):
        thread = tmp_path / f"proc/self/task/{number}/stat"
        thread.parent.mkdir(parents=True)
        thread.write_text(f"{number} (a) R) {state} 1 1 0\n")
    assert reader.others_now() == 0.5
    assert HostReader(tmp_path / "elsewhere").others_now() is None


def test_of_a_time_too_short_for_ticks_others_share_is_what_single_moments_showed(tmp_path: Path) -> None:
    reader, before = HostReader(tmp_path), look(10.0, 100.0, 50.0)
    short = host.state(before, look(10.2, 100.4, 50.0), 0.0, reader, (0.5, None, 1.0))
    assert short.others_share == 0.75
    assert host.state(before, look(10.2, 100.4, 50.0), 0.0, reader, (None,)).others_share is None
    long = host.state(before, look(10.5, 101.0, 50.5), 0.25, reader, (1.0, 1.0))
    assert long.others_share == 0.25


def test_shares_over_too_short_a_time_are_not_reported(tmp_path: Path) -> None:
    reader = HostReader(tmp_path)
    before = look(10.0, 100.0, 50.0, throttles=3)
    short = host.state(before, look(10.2, 100.4, 50.0, throttles=5), 0.0, reader)
    assert (short.others_share, short.steal_share, short.throttles) == (None, None, 2)
    long = host.state(before, look(10.5, 101.0, 50.5, throttles=3), 0.25, reader)
    assert (long.others_share, long.steal_share, long.throttles) == (0.25, 0.0, 0)
