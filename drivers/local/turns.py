"""One model in a child of its own that takes turns with those of other children: it infers only while it has the token.

    ReadyReport ─▶ (waits ─▶ a block ─▶ TurnReport) … ─▶ MeasureReport, ModelDescription, CheckReport

The parent decides whose turn it is (`drivers.launch.turns`).
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

from drivers.contract import memory
from drivers.contract.base import Event, MeasureReport, ReadyReport, TurnReport, Unfit, WaitTurn, WorkOrder
from drivers.local.driver import LocalDriver
from drivers.local.model import load
from drivers.local.together import input_shapes, order_of, prepare, report_on
from drivers.measure import host
from drivers.measure.cpu_clock import CpuClock, cpu_clock, read_cpu
from drivers.measure.interleave import Block, block_of, time_block
from drivers.measure.timing import GLANCES, warm_up

REST_S: Final = 0.0005
RESTING_NS: Final = 50_000
"""CPU time of all threads in `REST_S`, below which no thread still computes or spins."""
MAX_RESTS: Final = 40


def run_in_turns(driver: LocalDriver, order: WorkOrder, has_turn: WaitTurn) -> Iterator[Event]:
    """Run one launch."""
    if order.witnessed:
        raise Unfit(
            "a witnessed run has one model: a model that takes turns with others cannot be measured again alone"
        )
    with ExitStack() as running:
        each = prepare((yield from load(driver, order_of(order))), running)
        loop, prepared, warm = each.prepared.loop(), each.prepared, each.warm
        warm.add(prepared.first_ns)
        reader, glances = host.HostReader(), deque[float | None](maxlen=GLANCES)
        yield from warm_up(loop, warm, reader, glances)
        ready = ReadyReport(round(warm.typical_ns), input_shapes(each))
        count = block_of(ready.typical_ns)
        cpu = cpu_clock()
        gc.collect()
        gc.disable()
        rest(cpu)
        yield ready
        blocks: list[Block] = []
        turn = has_turn()
        before, began, used = reader.look(), time.perf_counter_ns(), time.process_time()
        while turn:
            blocks.append(time_block(loop, count, cpu))
            rest(cpu)
            yield TurnReport(*blocks[-1])
            turn = has_turn()
        after, spent_s = reader.look(), time.process_time() - used
        gc.enable()
        if not blocks:
            raise Unfit("the comparison ended before this model had a turn")
        yield MeasureReport(
            samples_ns=tuple(round(wall_ns / count) for wall_ns, _ in blocks),
            warmup_ns=tuple(warm.samples),
            cpu_s=spent_s,
            wall_s=after.at_s - before.at_s,
            peak_bytes=memory.peak_bytes(prepared.peak_was_reset),
            timer_overhead_ns=loop.overhead_ns(),
            involuntary_switches=None,
            per_sample=count,
            began_ns=began,
            host=host.state(before, after, spent_s, reader, glances),
        )
        if not order.brief:
            yield from report_on(driver, each)


def rest(cpu: CpuClock | None, pause: Callable[[float], None] = time.sleep) -> None:
    """Return when this process's threads use no processor: a pool that spins after its work would take processor time from the next
    model."""
    for _ in range(MAX_RESTS):
        before = read_cpu(cpu)
        pause(REST_S)
        after = read_cpu(cpu)
        if before is None or after is None or after - before < RESTING_NS:
            return
