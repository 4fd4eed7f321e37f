"""The measuring loop: exactly as many samples as asked, the warm-up apart and ended for a reason."""

from __future__ import annotations

import gc
import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from drivers import timing
from drivers.base import Measured, Phase, Progressed, WorkOrder
from drivers.timing import WarmUp

MS = 1_000_000


def ordered(**asked: Any) -> WorkOrder:
    """An order for one launch."""
    return WorkOrder("model", "unit", **asked)


def warmed(
    samples: list[int],
    runs: int = 100,
    wanted: int | None = None,
    floor: int = 5,
    window_s: float | None = None,
) -> WarmUp:
    """Feed samples until it is done or they are used up."""
    warm = WarmUp(runs, wanted, floor, window_s)
    for sample in samples:
        if warm.done:
            break
        warm.add(sample)
    return warm


def test_a_given_count_is_kept_to_the_letter() -> None:
    warm = warmed([5 * MS] * 100, wanted=12)
    assert len(warm.samples) == 12
    assert warm.note() == "warm-up: 12 as asked"


def test_a_count_of_none_still_has_the_inference_that_finds_the_shapes() -> None:
    assert len(warmed([MS] * 10, wanted=0).samples) == 1


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
    said = list(
        timing.measure_calls(
            timing.Calls(calls.append, "argument"),
            ordered(runs=23, warmup=4),
            first_ns=77,
            peak_was_reset=False,
        )
    )
    measured = said[-1]
    assert isinstance(measured, Measured)
    assert len(measured.samples_ns) == 23
    assert len(measured.warmup_ns) == 4
    assert measured.warmup_ns[0] == 77
    assert len(calls) == 23 + 3  # the first of the four warm-ups was made before
    progress = [one for one in said if isinstance(one, Progressed) and one.phase is Phase.RUN]
    assert (progress[0].done, progress[-1].done) == (0, 23)
    assert measured.peak_bytes is None  # no reset, no figure


def test_the_collector_rests_inside_the_loop_and_works_after_it() -> None:
    states: list[bool] = []
    for _ in timing.measure_calls(
        timing.Calls(lambda _: states.append(gc.isenabled())),
        ordered(runs=3, warmup=1),
        first_ns=1,
        peak_was_reset=False,
    ):
        pass
    assert states == [False] * 3
    assert gc.isenabled()


def test_the_clock_costs_what_two_readings_differ_by() -> None:
    ticks = itertools.count(0, 40)
    assert timing.timer_overhead_ns(lambda: next(ticks)) == 40
