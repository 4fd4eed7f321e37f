"""The accelerator during a run: from readings and windows to figures, and a real process that reads a double of NVML."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from drivers.contract.base import MeasureReport
from drivers.measure.telemetry import Sampler, TelemetryReading, parse, summarise, windows_of

DOUBLE = Path(__file__).parents[1] / "nvml_double.py"
S = 1_000_000_000
MS = 1_000_000


def reading(at_ms: int, **changes: object) -> TelemetryReading:
    return replace(TelemetryReading(at_ms * MS), **changes)  # type: ignore[arg-type]


BUSY = [
    reading(
        at,
        utilisation=0.0 if at < 1000 else 0.9,
        power_w=60.0 if at < 1000 else 300.0,
        energy_j=at * 0.06 if at < 1000 else 60 + (at - 1000) * 0.3,
        clock_mhz=1980.0,
        temperature_c=40.0 + at / 1000,
        memory=10_000 + at,
        by_process={7: 500 + at, 8: 100},
        slowed=0x4 if at == 2500 else 0,
    )
    for at in range(0, 5000, 50)
]


def test_energy_is_the_counters_difference_over_the_windows_alone() -> None:
    observed = summarise(BUSY, [(2 * S, 3 * S), (4 * S, 4 * S + S // 2)], device="H", began_ns=1 * S)
    assert observed is not None
    assert observed.energy_j == pytest.approx(450, rel=1e-3)
    assert (observed.power_w, observed.idle_w, observed.utilisation, observed.clock_mhz) == (
        300,
        60,
        pytest.approx(0.9),
        1980,
    )
    assert observed.temperature_c == pytest.approx(44.5)
    assert observed.throttled == ("power",)
    assert observed.samples == 21 + 11
    assert not any("energy" in note for note in observed.notes)


def test_without_a_counter_energy_is_power_times_time_and_says_so() -> None:
    plain = [replace(one, energy_j=None) for one in BUSY]
    observed = summarise(plain, [(2 * S, 4 * S)], device="H", began_ns=S)
    assert observed is not None
    assert observed.energy_j == pytest.approx(600)
    assert any("power × time" in note for note in observed.notes)


def test_a_counter_that_stands_still_or_is_not_read_on_both_sides_is_not_believed() -> None:
    stuck = [replace(one, energy_j=5.0) for one in BUSY]
    for readings, window in ((stuck, (2 * S, 3 * S)), (BUSY, (4 * S, 6 * S))):
        observed = summarise(readings, [window], device="H", began_ns=S)
        assert observed is not None
        assert observed.energy_j == pytest.approx(300 * (window[1] - window[0]) / S)
        assert any("power × time" in note for note in observed.notes)


def test_memory_is_that_of_the_runs_processes_else_of_the_device_with_a_note() -> None:
    whole = summarise(BUSY, [(2 * S, 3 * S)], device="H", began_ns=S)
    later = [replace(one, by_process={8: 100} if one.at_ns < S else one.by_process) for one in BUSY]
    came = summarise(later, [(2 * S, 3 * S)], device="H", began_ns=S)
    assert came is not None
    assert came.memory_bytes == 500 + 4950
    assert any("appeared on the device" in note for note in came.notes)
    assert whole is not None
    assert whole.memory_bytes == 10_000 + 4950
    assert any("whole device" in note for note in whole.notes)


def test_what_the_device_does_not_tell_is_none_and_never_zero() -> None:
    silent = [TelemetryReading(at * 50 * MS) for at in range(40)]
    observed = summarise(silent, [(1 * S, 2 * S)], device="H", began_ns=S // 2)
    assert observed is not None
    assert (observed.utilisation, observed.memory_bytes, observed.power_w, observed.idle_w) == (
        None,
        None,
        None,
        None,
    )
    assert (observed.energy_j, observed.clock_mhz, observed.temperature_c, observed.throttled) == (
        None,
        None,
        None,
        (),
    )


def test_a_window_shorter_than_the_sampling_takes_the_reading_behind_it_and_no_other() -> None:
    short = summarise(BUSY, [(2010 * MS, 2020 * MS)], device="H", began_ns=S)
    assert short is not None
    assert short.samples == 1
    assert short.energy_j == pytest.approx(3)
    assert any("means over up to" in note for note in short.notes)
    assert summarise(BUSY, [(9 * S, 10 * S)], device="H", began_ns=S) is None
    assert summarise(BUSY, [], device="H", began_ns=S) is None


def test_the_windows_are_those_of_the_launches() -> None:
    one = MeasureReport((1,), (), 0.0, 0.5, None, 1, None, began_ns=7 * S)
    assert windows_of([one, replace(one, began_ns=0)]) == ((7 * S, 7 * S + S // 2),)


def test_a_last_line_that_was_cut_short_is_left_out() -> None:
    assert parse(b"") == ("", [])
    name, readings = parse(b'"H100"\n{"at_ns": 5, "by_process": {"7": 9}}\n{"at_ns": 6, "by_p')
    assert (name, readings) == ("H100", [TelemetryReading(5, by_process={7: 9})])


def test_a_process_apart_reads_while_something_runs() -> None:
    sampler = Sampler("1", every_s=0.005, module=str(DOUBLE))
    assert sampler.start()
    began = time.perf_counter_ns()
    while time.perf_counter_ns() < began + 60 * MS:
        sum(range(1000))
    windows = ((began, time.perf_counter_ns()),)
    observed = sampler.stop(windows)
    assert observed is not None
    assert (observed.source, observed.device) == ("nvml", "Double gpu 1, nice 19")
    assert observed.samples >= 1
    assert (observed.power_w, observed.idle_w, observed.temperature_c, observed.utilisation) == (
        250,
        50,
        61,
        0.75,
    )
    assert observed.memory_bytes == 2 << 30
    assert observed.clock_mhz is None
    assert observed.throttled == ("power", "heat")
    assert observed.energy_j == pytest.approx(250 * (windows[0][1] - began) / S, rel=0.2)
    assert sampler.stop(windows) is None


@pytest.mark.parametrize(("shown", "device"), [("1,0", "Double gpu 1"), ("0", "Double gpu 0"), ("", None)])
def test_what_is_read_is_the_gpu_that_cuda_shows_first(
    monkeypatch: pytest.MonkeyPatch, shown: str, device: str | None
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    sampler = Sampler(every_s=0.005, module=str(DOUBLE))
    assert sampler.start() is (device is not None)
    observed = sampler.stop(((0, time.perf_counter_ns()),))
    assert (observed.device.partition(",")[0] if observed else None) == device


def test_without_nvml_or_without_that_gpu_nothing_is_reported(tmp_path: Path) -> None:
    elsewhere = Path(shutil.copy(DOUBLE, tmp_path))
    (tmp_path / "no_gpu").touch()
    for gpu, module in (("0", elsewhere), ("7", DOUBLE)):
        sampler = Sampler(gpu, module=str(module))
        assert not sampler.start()
        assert sampler.stop(((0, time.perf_counter_ns()),)) is None


def test_memory_is_that_of_the_runs_own_launches_and_not_of_others_in_the_gaps_between() -> None:
    gib = 2**30
    readings = [
        TelemetryReading(
            at_ns=at * S,
            memory=size,
            by_process={} if not size else {pid: size},
            utilisation=0.5,
        )
        for at, (pid, size) in enumerate([(0, 0), (7, gib), (8, 39 * gib), (8, 39 * gib), (9, gib)])
    ]
    windows = [(S - 10, S + 10), (4 * S - 10, 4 * S + 10)]
    own = [(S // 2, S + S // 2), (3 * S + S // 2, 5 * S)]
    observed = summarise(readings, windows, device="H", began_ns=S // 2, launches=own)
    assert observed is not None
    assert observed.memory_bytes == gib
    whole = [replace(reading, by_process={}) for reading in readings]
    observed = summarise(whole, windows, device="H", began_ns=S // 2, launches=own)
    assert observed is not None
    assert observed.memory_bytes == gib
