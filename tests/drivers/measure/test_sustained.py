"""A sustained run: as long as asked, however long the inferences take, stretch by stretch, then probes after longer and longer rests."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from drivers.contract.base import MeasureReport, ProgressReport, SampleBlock, SustainedReport, WorkOrder
from drivers.contract.frames import Garbled
from drivers.launch.events import LaunchEvents
from drivers.measure import host, sustained
from drivers.measure.stopping import LaunchPlanner, LaunchSpec, MeasureJob
from drivers.measure.sustained import merged, plan_stretches, settled_ns, sustain_calls
from protocol.formats.sustain import MAX_STRETCHES, MAX_SUSTAINED, ZERO_C_MK

MS = 1_000_000
S = 1000 * MS


class HotDevice:
    """Inferences take `quick` ns, then `slow` ns after `lasts` seconds of work. Rest cools the device. It is its own clock."""

    def __init__(self, quick: int, slow: int = 0, lasts: float = 1e9) -> None:
        self.now = 7 * S
        self._quick, self._slow, self._lasts, self._worked = quick, slow or quick, lasts * S, 0.0

    def clock(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * S)
        self._worked = max(0.0, self._worked - 20 * seconds * S)

    def time(self, samples: array[int], start: int, stop: int, per_sample: int) -> None:
        for index in range(start, stop):
            one = self._quick if self._worked < self._lasts else self._slow
            samples[index] = one
            self.now += one * per_sample
            self._worked += one * per_sample

    def overhead_ns(self) -> int:
        return 30


def sustain(
    device: HotDevice, seconds: float, reader: host.HostReader | None = None
) -> tuple[MeasureReport, SustainedReport, list[ProgressReport]]:
    order = WorkOrder("model", "unit", warmup=2, sustain_s=seconds)
    steps = sustain_calls(
        device,
        order,
        5 * MS,
        False,
        [],
        reader or host.HostReader(Path("/nowhere")),
        device.clock,
        device.sleep,
        lambda: lambda: device.now // 2,
    )
    reports = list[ProgressReport]()
    while True:
        try:
            reports.append(next(steps))
        except StopIteration as end:
            return *end.value, reports


@pytest.mark.parametrize("inference_ns", [40_000, 3 * MS, 700 * MS])
def test_it_lasts_as_long_as_asked_whatever_an_inference_takes(inference_ns: int) -> None:
    measured, report, progress = sustain(HotDevice(inference_ns), 60)
    inferring_ns = sum(measured.samples_ns) * measured.per_sample
    assert 60 * S <= inferring_ns <= 60 * S + max(inference_ns, sustained.CHUNK_NS)
    assert len(measured.samples_ns) <= 1.2 * sustained.USUAL_SAMPLES
    assert sum(block.samples for block in measured.blocks) == len(measured.samples_ns)
    assert len(measured.blocks) == len(report.starts_ns) <= MAX_STRETCHES
    assert min(block.wall_ns for block in measured.blocks) >= sustained.MIN_STRETCH_NS / 2
    assert progress[-1].total == 66


def test_each_stretch_says_when_it_began_and_what_it_found() -> None:
    measured, report, _ = sustain(HotDevice(3 * MS, 6 * MS, lasts=20), 60)
    ends = [start + block.wall_ns for start, block in zip(report.starts_ns, measured.blocks, strict=True)]
    assert list(report.starts_ns) == [0, *ends[:-1]]
    half = len(measured.blocks) // 2
    assert measured.samples_ns[0] == 3 * MS
    assert measured.samples_ns[sum(block.samples for block in measured.blocks[:half])] == 6 * MS


def test_its_cpu_time_is_the_kernels_own_account() -> None:
    measured, _, _ = sustain(HotDevice(3 * MS), 5)
    assert measured.cpu_s == pytest.approx(measured.wall_s / 2)


@pytest.mark.parametrize(("seconds", "probes"), [(1, 5), (2, 4), (20, 2)])
def test_of_slow_inferences_there_are_no_more_probes_than_rests(seconds: int, probes: int) -> None:
    _, report, _ = sustain(HotDevice(seconds * S), 5 * 60)
    assert len(report.pauses_ns) == probes
    assert report.pauses_ns[-1] >= 30 * S


def test_it_rests_longer_and_longer_between_probes() -> None:
    _, report, progress = sustain(HotDevice(3 * MS, 6 * MS, lasts=30), 60)
    assert [round(pause / S, 1) for pause in report.pauses_ns] == pytest.approx(
        [0.4, 0.8, 1.5, 3, 6], abs=0.11
    )
    assert [set(probe) for probe in report.probes_ns] == [{ms * MS} for ms in (6, 6, 6, 3, 3)]
    silences = [later.done - sooner.done for sooner, later in pairwise(progress)]
    assert max(silences) <= 2, "a child that rests is not taken for dead"


def test_heat_and_clock_are_read_after_each_stretch_and_nothing_is_made_up(tmp_path: Path) -> None:
    zone = tmp_path / "sys/class/thermal/thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "type").write_text("x86_pkg_temp\n")
    (zone / "temp").write_text("54000\n")
    _, read, _ = sustain(HotDevice(3 * MS), 5, host.HostReader(tmp_path))
    assert set(read.temperature_mk) == {54_000 + ZERO_C_MK}
    assert set(read.clock_khz) == {0}
    _, silent, _ = sustain(HotDevice(3 * MS), 5)
    assert set(silent.temperature_mk) == set(silent.clock_khz) == {0}


@pytest.mark.parametrize(
    ("warm_ns", "settled"), [(20_000.0, 1_300.0), (1_000.0, 1_000.0), (4.0 * MS, 4.0 * MS)]
)
def test_a_short_warm_up_of_a_quick_model_does_not_fill_the_record_early(
    warm_ns: float, settled: float
) -> None:
    assert settled_ns(HotDevice(1_300), warm_ns) == settled


def test_a_model_that_becomes_much_quicker_ends_where_the_record_is_full() -> None:
    device = HotDevice(300_000, 3000, lasts=1)
    measured, report, _ = sustain(device, 600)
    assert len(measured.samples_ns) == MAX_SUSTAINED
    assert len(report.starts_ns) == len(measured.blocks)


@pytest.mark.parametrize(("typical_ns", "sustain_s"), [(10_000, 14_400), (1 * MS, 600), (5 * S, 5)])
def test_a_plan_fits_a_record(typical_ns: float, sustain_s: float) -> None:
    plan = plan_stretches(sustain_s * S, typical_ns, 30)
    assert sustain_s * S / typical_ns / plan.per_sample <= sustained.USUAL_SAMPLES
    assert sustain_s * S / plan.stretch_ns <= sustained.STRETCHES
    assert plan.chunk >= 1
    assert plan.probe >= sustained.MIN_PROBE_SAMPLES


def test_what_one_part_does_not_tell_is_not_known_of_the_whole() -> None:
    parts = [SampleBlock(2, 10, 9, 1, None), SampleBlock(3, 20, 18, 2, 4)]
    assert merged(parts) == SampleBlock(5, 30, 27, 3, None)


def test_it_is_one_launch() -> None:
    planner = LaunchPlanner(WorkOrder("m", "u", sustain_s=60.0, loads=6, runs=100), 100.0)
    assert planner.next(0.0) == LaunchSpec(MeasureJob.SUSTAIN, window_s=60.0)
    assert planner.next(66.0) is None


def checked(change: Callable[[SustainedReport], SustainedReport]) -> None:
    measured, report, _ = sustain(HotDevice(3 * MS), 5)
    answers = LaunchEvents(LaunchSpec(MeasureJob.SUSTAIN, window_s=5.0), served=False, cold=False)
    answers.take(measured)
    answers.take(change(report))


def test_a_child_must_have_an_entry_for_each_stretch_and_a_probe_for_each_pause() -> None:

    def fewer(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(values[1:])

    checked(lambda report: report)
    for change, why in (
        (lambda report: replace(report, clock_khz=fewer(report.clock_khz)), "an entry for each"),
        (lambda report: replace(report, pauses_ns=fewer(report.pauses_ns)), "the probe after it"),
        (lambda report: replace(report, probes_ns=((),) * len(report.probes_ns)), "the probe after it"),
    ):
        with pytest.raises(Garbled, match=why):
            checked(change)
