"""Models that take turns: in each round every model has one block of inferences, or two that mirror each other, in a newly drawn order.

    short: A B B A | B A A B | A B B A | …        long: A B | B A | A B | …

A host that becomes slower affects all models alike: a block and its mirror image have the same mean place in time, and no model is always
first.
"""

from __future__ import annotations

import math
import random
import time
from array import array
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final

from drivers.contract.base import Unshaped
from drivers.measure.cpu_clock import CpuClock, read_cpu
from drivers.measure.timing import TimedLoop

ROUNDS: Final = 24
BLOCK_NS: Final = 6_000_000
"""Long compared with refilling caches and reading clocks, short compared with a disturbance by other processes."""
SHORT_NS: Final = 5_000_000_000
"""If a launch with two blocks per model and round would take longer, each model has one …"""
LONGEST_NS: Final = 20_000_000_000
"""… and if even that takes longer than this, there are fewer rounds."""
MIN_ROUNDS: Final = 6


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """The plan of one launch."""

    rounds: int
    turns: int
    """Blocks of each model in one round: two, or one if inferences are long."""
    per_block: tuple[int, ...]
    """Inferences of each model in one block."""

    @property
    def models(self) -> int:
        return len(self.per_block)


def block_of(typical_ns: float) -> int:
    """Number of inferences in one block of a model whose inference takes `typical_ns` nanoseconds."""
    return max(1, round(BLOCK_NS / max(1.0, typical_ns)))


def plan_rounds(typical_ns: Sequence[float]) -> RoundPlan:
    """A plan for models whose inferences take these times."""
    per_block = tuple(map(block_of, typical_ns))
    once = sum(count * each for count, each in zip(per_block, typical_ns, strict=True))
    turns = 2 if 2 * once * ROUNDS <= SHORT_NS else 1
    fitting = math.floor(LONGEST_NS / max(1.0, turns * once))
    return RoundPlan(min(ROUNDS, max(MIN_ROUNDS, fitting)), turns, per_block)


def draw_orders(plan: RoundPlan, chance: random.Random) -> tuple[tuple[int, ...], ...]:
    """The order of the models' blocks, round by round."""
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


def check_shapes(shapes: Sequence[Sequence[tuple[int, ...]]]) -> None:
    """Raises `Unshaped` unless the models' inputs have equal shapes. Names may differ, as between two exports of a model."""
    for other in shapes[:-1]:
        if sorted(other) != sorted(shapes[-1]):
            raise Unshaped(
                f"they take inputs of different shapes ({_text(other)} and {_text(shapes[-1])}): their times cannot be compared"
            )


def _text(shapes: Sequence[Sequence[int]]) -> str:
    return ", ".join("×".join(map(str, shape)) or "one value" for shape in shapes)


Block = tuple[int, int | None]
"""Wall and CPU nanoseconds of one block; no CPU time where the system does not report it, or if a thread ended during the block."""


def time_block(
    loop: TimedLoop, count: int, cpu: CpuClock | None, clock: Callable[[], int] = time.perf_counter_ns
) -> Block:
    """Time one block of `count` inferences."""
    sample = array("q", [0])
    before = read_cpu(cpu)
    began = clock()
    loop.time(sample, 0, 1, count)
    wall_ns = clock() - began
    after = None if before is None else read_cpu(cpu)
    return wall_ns, None if before is None or after is None else after - before


def time_rounds(
    loops: Sequence[TimedLoop],
    plan: RoundPlan,
    orders: Sequence[Sequence[int]],
    cpu: CpuClock | None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Generator[int, None, RoundTimes]:
    """Time all rounds; yields the number of each completed round before the next one."""
    blocks: list[list[Block]] = [[] for _ in loops]
    for number, order in enumerate(orders):
        for model in order:
            blocks[model].append(time_block(loops[model], plan.per_block[model], cpu, clock))
        yield number + 1
    return round_times(plan, blocks)


def round_times(plan: RoundPlan, blocks: Sequence[Sequence[Block]]) -> RoundTimes:
    """The times that result from each model's blocks, in their order. If one block has no CPU time, CPU time is dropped for all."""
    starts = range(0, plan.rounds * plan.turns, plan.turns)

    def per_inference(part: int) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(
                round(sum(block[part] or 0 for block in own[at : at + plan.turns]) / (count * plan.turns))
                for at in starts
            )
            for own, count in zip(blocks, plan.per_block, strict=True)
        )

    timed = all(cpu_ns is not None for own in blocks for _, cpu_ns in own)
    return RoundTimes(per_inference(0), per_inference(1) if timed else None)
