"""The verdict on a row, which names the gravest problem, and every reason for it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.values.record import Accelerator, HostLoad
from results.row.record import RecordBlock, RecordLaunch, RecordView
from results.row.verdict import change, findings, modes
from results.row.verdicts import RowVerdict


def judge(view: RecordView, **more: Any) -> tuple[RowVerdict, str]:
    """The verdict, and all reasons joined."""
    reasons = findings(view, **more)
    return reasons[0][0], "; ".join(why for _, why in reasons)


STEADY = tuple(1_000_000 + n % 7 for n in range(30))


def measured(*launches: tuple[int, ...], host: HostLoad = HostLoad(), stall: int | None = None) -> RecordView:
    """Launches of one second each. `stall`: nanoseconds in each."""
    return RecordView(
        launches=tuple(
            RecordLaunch(
                samples=samples,
                wall_s=1.0,
                blocks=(RecordBlock(len(samples), 10**9, 10**9 - 1, stall),),
                host=host,
            )
            for samples in launches
        )
    )


def scaled(*factors: float) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(factor * sample) for sample in STEADY) for factor in factors)


SIX = scaled(1, 1.01, 0.99, 1.02, 1, 0.98)


def test_six_steady_checked_launches_are_valid() -> None:
    verdict, why = judge(measured(*SIX), agrees=True)
    assert verdict is RowVerdict.VALID
    assert why == "checked; 6 launches, the median within ±2.0%"


@pytest.mark.parametrize("samples", [(0,) * 30, (0, 0, 0, 1_000_000)])
def test_inferences_that_take_no_time_are_never_valid(samples: tuple[int, ...]) -> None:
    for precision in (None, 0.02):
        verdict, why = judge(measured(*[samples] * 6), agrees=True, precision=precision)
        assert (verdict, why.startswith("the median is 0")) == (RowVerdict.NOISY, True)


def test_what_was_not_compared_is_unchecked_whatever_else_is_wrong() -> None:
    verdict, why = judge(measured((1, 1000)), agrees=None)
    assert verdict is RowVerdict.UNCHECKED
    assert "not compared" in why
    assert "2 timed inferences in 1 launch, 6 launches are needed" in why


def test_outputs_that_differ_are_never_called_valid() -> None:
    verdict, why = judge(measured(*SIX), agrees=False, difference="y: 3 values")
    assert (verdict, why) == (RowVerdict.MISMATCH, "outputs differ from the reference: y: 3 values")


@pytest.mark.parametrize("launches", range(1, 9))
def test_below_six_launches_a_row_has_few_runs_however_many_samples(launches: int) -> None:
    verdict, _ = judge(measured(*[STEADY] * launches), agrees=True)
    assert verdict is (RowVerdict.FEW_RUNS if launches < 6 else RowVerdict.VALID)


def test_the_interval_is_held_against_the_precision_that_was_asked_for() -> None:
    assert judge(measured(*SIX), agrees=True, precision=0.03)[0] is RowVerdict.VALID
    verdict, why = judge(measured(*SIX), agrees=True, precision=0.01)
    assert verdict is RowVerdict.NOISY
    assert why == "the median is known within ±2.0%, ±1.0% was requested"


def test_without_a_precision_a_tenth_is_the_limit() -> None:
    verdict, why = judge(measured(*scaled(1, 1.3, 0.9, 1.2, 1, 0.95)), agrees=True)
    assert verdict is RowVerdict.NOISY
    assert "±10.0% is the limit" in why


def test_launches_that_become_slower_from_one_on_drift() -> None:
    verdict, why = judge(measured(*scaled(1, 1.01, 0.99, 1.2, 1.21, 1.22)), agrees=True)
    assert verdict is RowVerdict.DRIFT
    assert "launch 4 and later differ by +19% from those before" in why


def test_a_launch_that_grows_slower_within_drifts() -> None:
    grows = (1000,) * 50 + (1200,) * 50
    verdict, why = judge(measured(*[grows] * 6), agrees=True)
    assert verdict is RowVerdict.DRIFT
    assert "the second half of the samples differs by +18% from the first" in why


def test_two_modes_in_no_order_are_reported_as_such() -> None:
    verdict, why = judge(measured(*scaled(1, 1.5, 1.01, 1.51, 1.49, 1)), agrees=True, precision=1.0)
    assert verdict is RowVerdict.BIMODAL
    assert "3 launches at 1 ms, 3 at 1.5 ms" in why
    assert change([1, 2, 1, 2, 1, 2]) is None
    assert modes([1.0, 1.0, 1.0, 1.0, 1.0, 1.5]) is None, "one launch is no mode"


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (HostLoad(others=0.3), "30% of the processors' time went to other work"),
        (HostLoad(steal=0.1), "10% of the processors' time was taken by the hypervisor"),
    ],
)
def test_other_work_on_the_device_is_reported(host: HostLoad, words: str) -> None:
    verdict, why = judge(measured(*SIX, host=host), agrees=True)
    assert verdict is RowVerdict.BUSY_HOST
    assert words in why


def test_launches_that_creep_say_that_the_interval_may_be_too_narrow() -> None:
    creeping = scaled(*(1 + 0.004 * each for each in range(10)))
    verdict, why = judge(measured(*creeping), agrees=True)
    assert verdict is RowVerdict.DRIFT
    assert why == "launches resemble those before them (spread 3.5%): the interval may be too narrow"
    slightly = scaled(*(1 + 0.0009 * each for each in range(10)))
    assert judge(measured(*slightly), agrees=True)[0] is RowVerdict.VALID


def test_more_threads_than_cores_wait_for_each_other_and_not_for_others() -> None:
    waiting = measured(*SIX, stall=2 * 10**8)
    assert judge(waiting, agrees=True, crowded=True)[0] is RowVerdict.VALID
    busy = measured(*SIX, host=HostLoad(others=0.3), stall=2 * 10**8)
    assert judge(busy, agrees=True, crowded=True)[0] is RowVerdict.BUSY_HOST


def test_waiting_for_a_processor_is_a_busy_host_where_its_effect_is_not_known() -> None:
    assert judge(measured(*SIX, stall=10**7), agrees=True)[0] is RowVerdict.VALID
    verdict, why = judge(measured(*SIX, stall=3 * 10**8), agrees=True)
    assert (verdict, why) == (RowVerdict.BUSY_HOST, "30% of the time something waited for a processor")
    assert judge(measured(*SIX, stall=3 * 10**8), agrees=True, threads=1)[0] is RowVerdict.VALID


def test_heat_a_fallen_clock_and_a_slowed_accelerator_are_throttling() -> None:
    assert judge(measured(*SIX, host=HostLoad(throttles=1)), agrees=True)[0] is RowVerdict.THROTTLED
    gpu = Accelerator(source="nvml", device="g", samples=9, throttled=("heat", "power"))
    verdict, why = judge(measured(*SIX), agrees=True, accelerator=gpu)
    assert (verdict, why) == (RowVerdict.THROTTLED, "the accelerator was slowed: heat, power")
    falls = RecordView(
        launches=tuple(
            RecordLaunch(samples=samples, host=HostLoad(clock_mhz=clock))
            for samples, clock in zip(SIX, (3000, 3000, 3000, 3000, 3000, 2000), strict=True)
        )
    )
    verdict, why = judge(falls, agrees=True)
    assert (verdict, why) == (RowVerdict.THROTTLED, "the clock fell from 3000 to 2000 MHz")


def test_the_gravest_reason_names_the_verdict_and_all_are_listed() -> None:
    noisy = measured(*scaled(1, 1.3, 0.9, 1.2, 1, 0.95), host=HostLoad(others=0.5, throttles=2))
    verdict, why = judge(noisy, agrees=None)
    assert verdict is RowVerdict.UNCHECKED
    assert [words in why for words in ("not compared", "heat", "other work", "is the limit")] == [True] * 4


@given(
    st.lists(st.lists(st.integers(0, 10**9), max_size=30).map(tuple), max_size=12),
    st.sampled_from([None, True, False]),
    st.sampled_from([None, 0.02]),
)
def test_any_samples_have_a_verdict_with_a_reason(
    launches: list[tuple[int, ...]], agrees: bool | None, precision: float | None
) -> None:
    verdict, why = judge(measured(*launches), agrees=agrees, precision=precision)
    assert verdict in RowVerdict
    assert why


def test_launches_that_only_scatter_are_seldom_called_drifting_or_bimodal() -> None:
    chance = random.Random(5)
    odd = 0
    for _ in range(400):
        medians = [chance.gauss(1e6, 4e4) for _ in range(8)]
        odd += change(medians) is not None or modes(medians) is not None
    assert odd / 400 <= 0.02
