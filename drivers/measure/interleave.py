"""Models that take turns: in each round every model has a block of inferences, or two about the round's middle, in an order drawn anew.

    short: A B B A | B A A B | A B B A | …        long: A B | B A | B A | …

A host that becomes slower meets them alike: a block and its mirror image have the same mean place in time, and no model is always first.
"""

from __future__ import annotations

import math
import random
import time
from array import array
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final

from drivers.measure.cpu_clock import CpuClock
from drivers.measure.timing import TimedLoop

ROUNDS: Final = 24
BLOCK_NS: Final = 6_000_000
"""Long beside a change of caches and a reading of clocks, short beside what a neighbour does."""
SHORT_NS: Final = 5_000_000_000
"""If a launch with two blocks each would take longer, each has one …"""
LONGEST_NS: Final = 20_000_000_000
"""… and if that takes longer still, there are fewer rounds."""
MIN_ROUNDS: Final = 6


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Of one launch."""

    rounds: int
    turns: int
    """Blocks of each model in one round: two, or one of long inferences."""
    per_block: tuple[int, ...]
    """Inferences of each model in one block."""

    @property
    def models(self) -> int:
        return len(self.per_block)


def plan_rounds(typical_ns: Sequence[float]) -> RoundPlan:
    """By how long one inference of each model takes."""
    per_block = tuple(max(1, round(BLOCK_NS / max(1.0, each))) for each in typical_ns)
    once = sum(count * each for count, each in zip(per_block, typical_ns, strict=True))
    turns = 2 if 2 * once * ROUNDS <= SHORT_NS else 1
    fitting = math.floor(LONGEST_NS / max(1.0, turns * once))
    return RoundPlan(min(ROUNDS, max(MIN_ROUNDS, fitting)), turns, per_block)


def draw_orders(plan: RoundPlan, chance: random.Random) -> tuple[tuple[int, ...], ...]:
    """Whose block comes when, round by round."""
    orders = []
    for _ in range(plan.rounds):
        order = tuple(chance.sample(range(plan.models), plan.models))
        orders.append(order if plan.turns == 1 else (*order, *reversed(order)))
    return tuple(orders)


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Nanoseconds of one inference, by model and round."""

    wall_ns: tuple[tuple[int, ...], ...]
    cpu_ns: tuple[tuple[int, ...], ...] | None


def time_rounds(
    loops: Sequence[TimedLoop],
    plan: RoundPlan,
    orders: Sequence[Sequence[int]],
    cpu: CpuClock | None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Generator[int, None, RoundTimes]:
    """Time all rounds; yields the number of each that is done, between rounds. CPU time is dropped where a thread ended meanwhile."""
    wall = [array("q", bytes(8 * plan.rounds)) for _ in loops]
    used = [array("q", bytes(8 * plan.rounds)) for _ in loops]
    sample = array("q", [0])
    for number, order in enumerate(orders):
        for model in order:
            count = plan.per_block[model]
            try:
                before = 0 if cpu is None else cpu()
            except OSError:
                cpu, before = None, 0
            began = clock()
            loops[model].time(sample, 0, 1, count)
            wall[model][number] += clock() - began
            if cpu is not None:
                try:
                    used[model][number] += cpu() - before
                except OSError:
                    cpu = None
        yield number + 1
    per_round = [count * plan.turns for count in plan.per_block]

    def per_inference(sums: Sequence[array[int]]) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(round(total / count) for total in each) for each, count in zip(sums, per_round, strict=True)
        )

    return RoundTimes(per_inference(wall), None if cpu is None else per_inference(used))
