"""The host's effect on the numbers: waiting is subtracted from the longest inferences, and the rest is compared with the measurement."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.values.record import HostLoad
from results.row.effect import host_figures, remarks, subtract_waiting, waiting_effect
from results.row.record import RecordBlock, RecordLaunch, RecordView
from results.row.verdict import findings
from results.row.verdicts import RowVerdict

MS = 1_000_004
"""Nanoseconds, not a whole number of ticks of a coarse clock."""


def launch(blocks: list[tuple[tuple[int, ...], int]], host: HostLoad = HostLoad()) -> RecordLaunch:
    """A launch of blocks of samples, each with the time that the block waited."""
    samples = tuple(chain.from_iterable(each for each, _ in blocks))
    told = tuple(RecordBlock(len(each), sum(each), max(0, sum(each) - waited)) for each, waited in blocks)
    return RecordLaunch(samples, wall_s=sum(samples) / 1e9, blocks=told, host=host)


def test_waiting_is_taken_from_the_longest_inferences_first() -> None:
    assert subtract_waiting([1, 1, 9, 1], 8) == [1, 1, 1, 1]
    assert subtract_waiting([1, 1, 9, 1], 4) == [1, 1, 5, 1]
    assert subtract_waiting([2, 4, 6], 6) == [2, 2, 2]
    assert subtract_waiting([2, 4, 6], 9) == [1, 1, 1]
    assert subtract_waiting([2, 4, 6], 99) == [0, 0, 0]
    assert subtract_waiting([2, 4, 6], -1) == [2, 4, 6]


@pytest.mark.parametrize("tick_ns", [15_625_000, 10_000_000, 4_000_000, 1_000_000])
def test_cpu_time_in_ticks_says_nothing_of_a_stretch(tick_ns: int) -> None:
    """In each stretch of 20 ms, a clock of 15.6 ms counts one tick or two."""
    blocks = tuple(
        RecordBlock(20, 20 * MS, (n + 1) * 20 * MS // tick_ns * tick_ns - n * 20 * MS // tick_ns * tick_ns)
        for n in range(25)
    )
    launches = [RecordLaunch((MS,) * 500, blocks=blocks)] * 6
    assert waiting_effect(launches, 1) is None
    assert verdict(launches)[0] is RowVerdict.VALID


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=50), st.floats(0, 1))
def test_what_is_taken_is_what_was_waited(samples: list[int], share: float) -> None:
    waited = share * sum(samples)
    left = subtract_waiting(samples, waited)
    assert sum(left) == pytest.approx(sum(samples) - waited, rel=1e-6, abs=1e-3)
    assert all(after <= before for after, before in zip(left, samples, strict=True))


def test_a_neighbour_that_hits_some_of_many_short_inferences_has_no_effect_on_their_median() -> None:
    short = [((MS // 4,) * 60 + (4 * MS,) * 5, 5 * (4 * MS - MS // 4))] * 3
    assert waiting_effect([launch(short)] * 6, 1) == pytest.approx(0, abs=1e-9)


def test_a_neighbour_that_hits_every_inference_doubles_the_median() -> None:
    long = [((10 * MS,) * 2, 10 * MS)] * 5
    assert waiting_effect([launch(long)] * 6, 1) == pytest.approx(1.0, abs=0.1)


def test_a_sample_of_several_inferences_waited_its_share() -> None:
    """Ten samples of 1 ms, each the mean of four inferences, take 40 ms."""
    means = RecordLaunch((MS,) * 10, per_sample=4, blocks=(RecordBlock(10, 40 * MS, 20 * MS),))
    assert waiting_effect([means] * 6, 1) == pytest.approx(1.0, abs=0.1)


def test_threads_that_always_wait_for_each_other_are_no_effect_and_a_disturbed_launch_is() -> None:
    """The best stretches of two threads' CPU time show how much of both an inference keeps busy."""
    calm = RecordLaunch((MS,) * 20, blocks=(RecordBlock(20, 20 * MS, 30 * MS),))
    hit = RecordLaunch((2 * MS,) * 20, blocks=(RecordBlock(20, 40 * MS, 30 * MS),))
    assert waiting_effect([calm] * 6, 2) == 0
    assert waiting_effect([calm, hit] * 3, 2) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("threads", [None, 1])
def test_nothing_is_said_of_what_no_processor_computes_or_of_stretches_that_are_not_known(
    threads: int | None,
) -> None:
    known = launch([((MS,) * 4, 0)])
    assert waiting_effect([known] * 6, None) is None
    assert waiting_effect([replace(known, blocks=())] * 6, threads) is None
    assert waiting_effect([replace(known, samples=(MS,) * 5)] * 6, threads) is None
    assert waiting_effect([], threads) is None


def verdict(launches: list[RecordLaunch], threads: int | None = 1) -> tuple[RowVerdict, str]:
    return findings(RecordView(launches=tuple(launches)), agrees=True, threads=threads)[0]


STEADY = [((MS,) * 20, 0)]


def test_a_little_other_work_that_changes_nothing_is_a_remark() -> None:
    launches = [launch(STEADY, HostLoad(others=0.12))] * 6
    assert verdict(launches)[0] is RowVerdict.VALID
    assert remarks(launches) == ["host busy 12%"]
    assert remarks([launch(STEADY, HostLoad(others=0.04))] * 6) == []


def test_other_work_is_to_blame_where_launches_disagree() -> None:
    launches = [
        launch([((factor * MS // 10,) * 20, 0)], HostLoad(others=0.17)) for factor in (10, 14, 9, 15, 10, 13)
    ]
    assert verdict(launches) == (RowVerdict.BUSY_HOST, "17% of the processors' time went to other work")
    calm = [replace(each, host=HostLoad()) for each in launches]
    assert verdict(calm)[0] is RowVerdict.NOISY


def test_waiting_that_made_the_median_longer_is_a_busy_host_though_launches_agree() -> None:
    word, why = verdict([launch([((10 * MS,) * 2, 4 * MS)] * 5)] * 6)
    assert word is RowVerdict.BUSY_HOST
    assert why.startswith("waiting for a processor made the median 2")


def test_other_work_that_takes_much_may_have_an_effect_that_nothing_shows() -> None:
    """A neighbour that streams through memory lengthens CPU time itself, equally in all launches."""
    word, why = verdict([launch(STEADY, HostLoad(others=0.5))] * 6)
    assert word is RowVerdict.BUSY_HOST
    assert (
        why
        == "50% of the processors' time went to other work; no figure shows its effect on caches and memory"
    )


def test_pressure_counts_above_one_tick_of_the_kernel() -> None:
    short = replace(launch(STEADY), blocks=(RecordBlock(20, 20 * MS, 20 * MS, stall_ns=2 * MS),))
    assert [each.raised for each in host_figures([short] * 6)] == [False]
    long = replace(short, blocks=(RecordBlock(20, 1000 * MS, 1000 * MS, stall_ns=100 * MS),))
    assert [each.raised for each in host_figures([long] * 6)] == [True]
    assert host_figures([long] * 6, crowded=True) == []
