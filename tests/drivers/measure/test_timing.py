"""The measuring loop: exactly as many samples as requested, and a separate warm-up that ends for a stated reason."""

from __future__ import annotations

import gc
import itertools
import time
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.contract.base import MAX_ENTRIES, HostState, MeasureReport, ProgressReport, WorkOrder
from drivers.measure import host, timing
from drivers.measure.timing import WarmUp
from protocol.formats.phase import Phase

MS = 1_000_000


def ordered(**changes: Any) -> WorkOrder:
    """An order for one launch."""
    return WorkOrder("model", "unit", **changes)


def warmed(
    samples: list[int],
    runs: int = 100,
    warmup: int | None = None,
    floor: int = 5,
    window_s: float | None = None,
) -> WarmUp:
    """Feed samples until the warm-up is done or none are left."""
    warm = WarmUp(runs, warmup, floor, window_s)
    for sample in samples:
        if warm.done:
            break
        warm.add(sample)
    return warm


def test_a_given_count_is_kept_to_the_letter() -> None:
    warm = warmed([5 * MS] * 100, warmup=12)
    assert len(warm.samples) == 12
    assert warm.note() == "warm-up: 12 as requested"


def test_a_count_of_none_still_has_the_inference_that_finds_the_shapes() -> None:
    assert len(warmed([MS] * 10, warmup=0).samples) == 1


def test_steady_times_settle_after_the_cold_one_and_six_blocks() -> None:
    warm = warmed([900 * MS] + [5 * MS] * 100)
    assert warm.settled
    assert len(warm.samples) == 1 + timing.BLOCKS


def test_times_that_still_fall_are_not_settled() -> None:
    falling = [round(100 * MS * 0.95**step) for step in range(30)]
    assert not warmed(falling, runs=10_000).settled


def test_a_warm_up_that_never_settles_ends_at_its_share_of_the_run() -> None:
    restless = list(itertools.islice(itertools.cycle([10 * MS] * 3 + [20 * MS] * 3), 1000))
    warm = warmed([10 * MS, *restless], runs=100)
    assert warm.done
    assert not warm.settled
    assert "not settled" in warm.note()
    assert len(warm.samples) <= 1 + 0.2 * 100 + 6


def test_few_runs_of_a_slow_model_are_warmed_up_as_often_as_the_floor_says() -> None:
    assert len(warmed([100 * MS] * 50, runs=1).samples) == 5
    assert len(warmed([100 * MS] * 50, runs=1, floor=3).samples) == 3


def test_the_floor_of_a_device_that_needs_more_is_kept_although_the_times_settle_sooner() -> None:
    assert len(warmed([MS] * 500, runs=10_000, floor=100).samples) == 100


def test_inferences_of_seconds_are_not_made_five_times_for_nothing() -> None:
    assert len(warmed([3000 * MS] * 50, runs=1).samples) == 2


def test_in_a_window_the_warm_up_ends_at_its_cap_whatever_the_runs_say() -> None:
    restless = list(itertools.islice(itertools.cycle([4 * MS] * 3 + [8 * MS] * 3), 1000))
    warm = warmed(restless, runs=1_000_000, window_s=0.05)
    assert 50 <= sum(warm.samples[1:]) / MS <= 60


@given(st.lists(st.integers(1, 50 * MS), min_size=1, max_size=30), st.integers(1, 500))
def test_a_warm_up_always_ends(repeated: list[int], runs: int) -> None:
    warm = warmed(list(itertools.islice(itertools.cycle(repeated), timing.MAX_WARMUP + 1)), runs)
    assert warm.done
    assert 5 <= len(warm.samples) <= timing.MAX_WARMUP


def test_samples_are_as_many_as_runs_and_the_warm_up_is_not_among_them() -> None:
    calls: list[str] = []
    measured, reports = measured_by(timing.TimedCalls(calls.append, "argument"), runs=23, warmup=4)
    assert len(measured.samples_ns) == 23
    assert len(measured.warmup_ns) == 4
    assert measured.warmup_ns[0] == 77
    assert len(calls) == 23 + 3  # the first of the four warm-up calls came earlier
    progress = [one for one in reports if one.phase is Phase.RUN]
    assert (progress[0].done, progress[-1].done) == (0, 23)
    assert measured.peak_bytes is None  # without a reset there is no figure


def test_the_collector_rests_inside_the_loop_and_works_after_it() -> None:
    states: list[bool] = []
    measured_by(timing.TimedCalls(lambda _: states.append(gc.isenabled())), runs=3, warmup=1)
    assert states == [False] * 3
    assert gc.isenabled()


def test_the_clock_costs_what_two_readings_differ_by() -> None:
    ticks = itertools.count(0, 40)
    assert timing.timer_overhead_ns(lambda: next(ticks)) == 40


class Clockwork:
    """A loop whose inferences take a given time. Records how it was called."""

    def __init__(self, takes_ns: int, overhead_ns: int = 50) -> None:
        self._takes_ns, self._overhead_ns = takes_ns, overhead_ns
        self.called: list[tuple[int, int, int]] = []

    def time(self, samples: array[int], start: int, stop: int, per_sample: int) -> None:
        self.called.append((start, stop, per_sample))
        for index in range(start, stop):
            samples[index] = self._takes_ns

    def overhead_ns(self) -> int:
        return self._overhead_ns


def measured_by(
    loop: timing.TimedLoop,
    reader: host.HostReader | None = None,
    watch: Callable[[ProgressReport], None] = lambda progress: None,
    **changes: Any,
) -> tuple[MeasureReport, list[ProgressReport]]:
    """The report of a loop's launch, and its progress."""
    progress: list[ProgressReport] = []
    notes: list[str] = []
    events = timing.measure_calls(loop, ordered(**changes), 77, False, notes, reader)
    while True:
        try:
            progress.append(next(events))
            watch(progress[-1])
        except StopIteration as ended:
            assert len(notes) == 1, "how the warm-up ended"
            measured: MeasureReport = ended.value
            return measured, progress


def test_runs_that_were_counted_are_single_inferences_however_short() -> None:
    loop = Clockwork(200)
    made, _ = measured_by(loop, runs=5000, warmup=1)
    assert (len(made.samples_ns), made.per_sample) == (5000, 1)
    assert {per_sample for _, _, per_sample in loop.called} == {1}


def test_in_a_window_short_inferences_are_timed_several_to_a_sample() -> None:
    loop = Clockwork(1000, overhead_ns=200)
    made, _ = measured_by(loop, window_s=0.05, warmup=10)
    assert made.per_sample == 20  # reading the clock takes 1 % of 20 µs
    assert len(made.samples_ns) == 2500
    assert made.timer_overhead_ns == 200
    assert loop.called[-1] == (2000, 2500, 20)  # blocks of 20 ms


def test_a_window_has_no_more_samples_than_are_quickly_sent() -> None:
    made, _ = measured_by(Clockwork(2000, overhead_ns=1), window_s=0.2, warmup=10)
    assert (len(made.samples_ns), made.per_sample) == (timing.MAX_WINDOW_SAMPLES, 20)


def test_the_shortest_inferences_settle_too_before_the_cap() -> None:
    warm = warmed([9000, *[1000] * 10_000], runs=1_000_000)
    assert warm.settled
    assert len(warm.samples) == 1 + timing.BLOCKS * timing.BLOCK_SAMPLES


def test_blocks_are_the_samples_in_order_and_their_times_are_the_windows() -> None:
    made, result = measured_by(Clockwork(7 * MS), runs=23, warmup=2)
    assert [block.samples for block in made.blocks] == [*[2] * 11, 1]
    assert sum(block.wall_ns for block in made.blocks) == round(made.wall_s * 1e9)
    assert sum(block.cpu_ns for block in made.blocks) == round(made.cpu_s * 1e9)
    assert all(block.wall_ns > 0 for block in made.blocks)
    progress = [one.done for one in result if one.phase is Phase.RUN]
    assert (progress[0], progress[-1]) == (0, 23)
    assert made.began_ns > 0


def test_the_pressure_of_each_block_is_what_was_added_while_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressure = tmp_path / "proc/pressure/cpu"
    pressure.parent.mkdir(parents=True)
    total, wall_ns = 0, timing.STALL_NS

    class Pressed(Clockwork):
        def time(self, samples: array[int], start: int, stop: int, per_sample: int) -> None:
            nonlocal total
            super().time(samples, start, stop, per_sample)
            until = time.perf_counter_ns() + wall_ns
            while time.perf_counter_ns() < until:
                pass
            total += 250
            pressure.write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n")

    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    made, _ = measured_by(Pressed(20 * MS), host.HostReader(tmp_path), runs=3, warmup=2)
    assert [block.stall_ns for block in made.blocks] == [250_000] * 3
    assert made.host == HostState()  # nothing else is reported, and nothing invented
    wall_ns = 0
    monkeypatch.setattr(timing, "STALL_NS", 10**15)  # the block is shorter, however long this machine takes
    made, _ = measured_by(Pressed(1), host.HostReader(tmp_path), runs=3, warmup=2)
    assert [block.stall_ns for block in made.blocks] == [None], (
        "pressure is reported in ticks: of less it says 0"
    )


@given(st.floats(1e3, 1e11), st.floats(0.05, 0.2))
def test_a_window_has_enough_samples_and_ends_in_a_sane_time(typical_ns: float, window_s: float) -> None:
    count = timing.window_samples(window_s * 1e9, typical_ns)
    assert count >= 1
    assert count * typical_ns >= window_s * 1e9 or count * typical_ns >= timing.MAX_SAMPLES_NS / 2
    if typical_ns <= timing.MAX_SAMPLES_NS / timing.MIN_WINDOW_SAMPLES:
        assert count >= timing.MIN_WINDOW_SAMPLES
    if count > 1:
        assert count * typical_ns <= timing.MAX_SAMPLES_NS + typical_ns


@given(st.integers(1, 1_000_000), st.floats(1.0, 1e11))
def test_a_long_run_has_no_more_blocks_than_fit_into_a_report(runs: int, typical_ns: float) -> None:
    assert -(-runs // timing.chunk_samples(runs, typical_ns)) <= timing.MAX_BLOCKS < MAX_ENTRIES


@given(st.floats(1.0, 1e9), st.integers(0, 1000))
def test_the_clock_is_less_than_a_hundredth_of_a_sample(typical_ns: float, overhead_ns: int) -> None:
    grouped = timing.inferences_per_sample(typical_ns, overhead_ns)
    assert overhead_ns <= 0.01 * grouped * typical_ns * (1 + 1e-9)
    assert grouped == 1 or overhead_ns > 0.01 * (grouped - 1) * typical_ns * (1 - 1e-9)


def test_plain_calls_in_a_row_are_one_sample_with_their_mean() -> None:
    calls: list[None] = []
    samples = array("q", bytes(8 * 4))
    timing.TimedCalls(calls.append).time(samples, 1, 3, 10)
    assert len(calls) == 20
    assert (samples[0], samples[3]) == (0, 0)
    assert all(0 <= sample < 1_000_000_000 for sample in samples)


def test_a_warm_up_by_the_count_is_made_to_the_letter_by_any_loop() -> None:
    loop = Clockwork(10)
    made, _ = measured_by(loop, runs=1, warmup=3000)
    assert len(made.warmup_ns) == 3000
    assert sum(stop - start for start, stop, _ in loop.called[:-1]) == 2999


def test_other_load_is_seen_during_warm_up_and_not_right_after_a_report(
    tmp_path: Path,
) -> None:
    lines: list[str] = []

    class Watching(host.HostReader):
        def others_now(self) -> float | None:
            lines.append("glance")
            return 0.25 * lines.count("glance")

        def look(self) -> host.HostSample:
            return replace(super().look(), at_s=0.0)  # no time passes, however busy this machine is

    def note(progress: ProgressReport) -> None:
        lines.append(progress.phase)

    made, _ = measured_by(Clockwork(MS), Watching(tmp_path), note, runs=3, warmup=None)
    window = lines.index(Phase.RUN)
    assert "glance" in lines[:window]
    assert "glance" not in lines[window:], "its parent would be what runs"
    count = lines.count("glance")
    assert made.host.others_share == sum(0.25 * number for number in range(count - 3, count + 1)) / 4


def test_the_window_begins_when_all_garbage_is_collected() -> None:
    collected: list[int] = []

    def note(phase: str, details: object) -> None:
        collected.append(time.perf_counter_ns())

    gc.callbacks.append(note)
    try:
        made, _ = measured_by(Clockwork(MS), runs=3, warmup=2)
    finally:
        gc.callbacks.remove(note)
    assert collected
    assert made.began_ns >= collected[-1]
