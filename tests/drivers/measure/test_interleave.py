"""Turns: the order is fair, times are per inference, and CPU time is counted for each model separately."""

from __future__ import annotations

import random
import sys
import threading
import time
from array import array
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.measure.cpu_clock import clock_of, computes_on_cpu, cpu_clock
from drivers.measure.interleave import (
    BLOCK_NS,
    LONGEST_NS,
    MIN_ROUNDS,
    ROUNDS,
    RoundPlan,
    RoundTimes,
    draw_orders,
    plan_rounds,
    time_rounds,
)


@dataclass
class Clocks:
    """Wall and CPU clocks that only scripted inferences move."""

    wall: int = 0
    cpu: int = 0
    ends_after: int | None = None
    """How many times the CPU time can be read before the thread ends."""

    def read_cpu(self) -> int:
        if self.ends_after is not None:
            self.ends_after -= 1
            if self.ends_after < 0:
                raise OSError("no such thread")
        return self.cpu


@dataclass
class Loop:
    """A loop with fixed wall and CPU times per inference."""

    clocks: Clocks
    wall_ns: int
    cpu_ns: int
    called: list[int] = field(default_factory=list)

    def time(self, samples: array[int], start: int, stop: int, per_sample: int) -> None:
        """See `TimedLoop`."""
        self.clocks.wall += self.wall_ns * per_sample
        self.clocks.cpu += self.cpu_ns * per_sample
        self.called.append(per_sample)

    def overhead_ns(self) -> int:
        return 1


def ended(rounds: Generator[int, None, RoundTimes]) -> tuple[list[int], RoundTimes]:
    """What the rounds yielded, and their times."""
    done = []
    while True:
        try:
            done.append(next(rounds))
        except StopIteration as end:
            times: RoundTimes = end.value
            return done, times


@pytest.mark.parametrize(
    ("typical", "expected"),
    [
        ((1e6, 2e6), RoundPlan(ROUNDS, 2, (6, 3))),
        ((1e3, 1e6), RoundPlan(ROUNDS, 2, (6000, 6))),
        ((2e7, 2e7), RoundPlan(ROUNDS, 2, (1, 1))),
        ((2e8, 2e8), RoundPlan(ROUNDS, 1, (1, 1))),
        ((1e9, 1e9), RoundPlan(10, 1, (1, 1))),
        ((1e11, 1e11), RoundPlan(MIN_ROUNDS, 1, (1, 1))),
    ],
)
def test_blocks_are_short_and_slow_models_have_fewer(typical: tuple[float, ...], expected: RoundPlan) -> None:
    assert plan_rounds(typical) == expected


@given(st.lists(st.floats(1, 1e12), min_size=2, max_size=8))
def test_a_launch_ends_in_time_unless_single_inferences_do_not(typical: list[float]) -> None:
    plan = plan_rounds(typical)
    once = sum(count * each for count, each in zip(plan.per_block, typical, strict=True))
    assert plan.rounds == MIN_ROUNDS or plan.rounds * plan.turns * once <= LONGEST_NS
    assert all(
        each > BLOCK_NS or count * each <= 1.5 * BLOCK_NS
        for count, each in zip(plan.per_block, typical, strict=True)
    )


@given(st.integers(2, 8), st.integers(1, 2), st.integers(0, 2**32))
def test_each_round_has_every_model_as_often_and_about_the_same_mean_place(
    models: int, turns: int, seed: int
) -> None:
    orders = draw_orders(RoundPlan(ROUNDS, turns, (1,) * models), random.Random(seed))
    assert len(orders) == ROUNDS
    for order in orders:
        assert sorted(order) == sorted([*range(models)] * turns)
        if turns == 2:
            places = [sum(at for at, who in enumerate(order) if who == model) for model in range(models)]
            assert len(set(places)) == 1


def test_no_model_is_always_first() -> None:
    orders = draw_orders(RoundPlan(ROUNDS, 2, (1, 1)), random.Random(0))
    assert {order[0] for order in orders} == {0, 1}


def test_times_are_of_one_inference_of_each_model() -> None:
    clocks = Clocks()
    loops = [Loop(clocks, 1000, 3000), Loop(clocks, 2000, 1000)]
    plan = RoundPlan(3, 2, (10, 5))
    done, times = ended(
        time_rounds(
            loops, plan, draw_orders(plan, random.Random(1)), clocks.read_cpu, clock=lambda: clocks.wall
        )
    )
    assert done == [1, 2, 3]
    assert times == RoundTimes(((1000,) * 3, (2000,) * 3), ((3000,) * 3, (1000,) * 3))
    assert [sum(loop.called) for loop in loops] == [60, 30]


@pytest.mark.parametrize("readings", [0, 1, 5])
def test_where_a_thread_ends_there_is_no_cpu_time_and_wall_time_stays(readings: int) -> None:
    clocks = Clocks(ends_after=readings)
    loops = [Loop(clocks, 1000, 3000), Loop(clocks, 2000, 1000)]
    plan = RoundPlan(4, 2, (1, 1))
    orders = draw_orders(plan, random.Random(1))
    _, times = ended(time_rounds(loops, plan, orders, clocks.read_cpu, clock=lambda: clocks.wall))
    assert times == RoundTimes(((1000,) * 4, (2000,) * 4), None)


# -- CPU time -------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of each thread")
def test_cpu_time_is_of_all_threads_and_a_wait_costs_none() -> None:
    begin, over, worked = (threading.Event() for _ in range(3))
    own: list[int] = []

    def work() -> None:
        begin.wait()
        began = time.thread_time_ns()
        sum(range(100_000))
        own.append(time.thread_time_ns() - began)
        worked.set()
        over.wait()

    helper = threading.Thread(target=work)
    helper.start()
    clock = cpu_clock()
    assert clock is not None
    before = clock()
    begin.set()
    worked.wait()
    spent = clock() - before
    over.set()
    helper.join()
    assert spent >= own[0] > 0


def test_the_kernels_clock_of_a_thread_is_numbered_as_it_has_them() -> None:
    assert clock_of(0) == -2
    assert clock_of(1234) == (~1234 << 3) + 6


def test_where_nothing_tells_there_is_no_clock(tmp_path: Any) -> None:
    assert cpu_clock(str(tmp_path / "none")) is None


@pytest.mark.parametrize(
    ("unit", "so"),
    [
        ("CPU (ONNX)", True),
        ("OpenVINO CPU (ONNX)", True),
        ("CPU (Torch)", True),
        ("GPU (ONNX)", False),
        ("Neural Engine (CoreML)", False),
        ("Mine (CPU)", False),
    ],
)
def test_cpu_time_says_what_a_model_costs_only_where_the_cpu_computes_it(unit: str, so: bool) -> None:
    assert computes_on_cpu(unit) is so
