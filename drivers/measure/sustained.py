"""Inferences without a break for as long as the order says, then a rest with short probes: the speed that a device sustains once warm.

    warm-up ─▶ stretch, stretch, … for sustain_s ─▶ rest, probe, longer rest, probe, …

The warm-up is short, so that the device is still cool in the first stretches. Each stretch is half a second or longer; heat and clock are
read between stretches. `results.row.sustained` judges the figures.
"""

from __future__ import annotations

import gc
import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from drivers.contract import memory
from drivers.contract.base import MeasureReport, ProgressReport, SampleBlock, SustainedReport, WorkOrder
from drivers.measure import host
from drivers.measure.cpu_clock import CpuClock, cpu_clock
from drivers.measure.timing import (
    GLANCES,
    TimedLoop,
    WarmUp,
    inferences_per_sample,
    timed_block,
    warm_up,
)
from protocol.formats.phase import Phase
from protocol.formats.sustain import MAX_PROBE_SAMPLES, MAX_SUSTAINED, ZERO_C_MK, recovery_s

S_NS: Final = 1_000_000_000
USUAL_SAMPLES: Final = 60_000
"""Samples of the whole run, if it stays as fast as after the warm-up: a third of what a record may hold."""
STRETCHES: Final = 600
MIN_STRETCH_NS: Final = 500_000_000
CHUNK_NS: Final = 100_000_000
"""Time between two readings of the clock."""
PROBE_NS: Final = 200_000_000
MIN_PROBE_SAMPLES: Final = 3
PILOT_NS: Final = 2_000_000
PILOTS: Final = 5
PROBES: Final = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
"""When each probe starts, as shares of the rest; slow inferences skip some probes, but never the first and the last."""
REPORT_S: Final = 1.0
"""The longest silence of a resting child."""


@dataclass(frozen=True, slots=True)
class StretchPlan:
    per_sample: int
    chunk: int
    """Samples between two readings of the clock."""
    stretch_ns: float
    probe: int
    """Samples of a probe."""


def plan_stretches(sustain_ns: float, typical_ns: float, overhead_ns: int) -> StretchPlan:
    """`typical_ns`: time of one inference, once warm. `overhead_ns`: cost of reading the clock."""
    fewest = math.ceil(sustain_ns / typical_ns / USUAL_SAMPLES)
    per_sample = max(inferences_per_sample(typical_ns, overhead_ns), fewest)
    sample_ns = typical_ns * per_sample
    return StretchPlan(
        per_sample,
        chunk=max(1, int(CHUNK_NS / sample_ns)),
        stretch_ns=max(MIN_STRETCH_NS, sustain_ns / STRETCHES),
        probe=min(MAX_PROBE_SAMPLES, max(MIN_PROBE_SAMPLES, int(PROBE_NS / sample_ns))),
    )


def settled_ns(loop: TimedLoop, warm_ns: float) -> float:
    """Time of one inference among many in a row. A fast model has not settled within the few inferences of a short warm-up (`warm_ns`), and
    the samples that a record holds are limited."""
    if warm_ns >= PILOT_NS:
        return warm_ns
    pilots = array("q", bytes(8 * PILOTS))
    loop.time(pilots, 0, PILOTS, int(PILOT_NS / warm_ns))
    return max(1.0, min(warm_ns, median(pilots)))


def merged(parts: Sequence[SampleBlock]) -> SampleBlock:
    """Merge consecutive blocks into one; a value that one of them lacks is unknown for the whole."""

    def total(values: Sequence[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    return SampleBlock(
        samples=sum(part.samples for part in parts),
        wall_ns=sum(part.wall_ns for part in parts),
        cpu_ns=sum(part.cpu_ns for part in parts),
        stall_ns=total([part.stall_ns for part in parts]),
        switches=total([part.switches for part in parts]),
    )


def sustain_calls(
    loop: TimedLoop,
    order: WorkOrder,
    first_ns: int,
    peak_was_reset: bool,
    notes: list[str],
    reader: host.HostReader | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
    sleep: Callable[[float], None] = time.sleep,
    cpu: Callable[[], CpuClock | None] = cpu_clock,
) -> Generator[ProgressReport, None, tuple[MeasureReport, SustainedReport]]:
    """Like `drivers.measure.timing.measure_calls`, but for `order.sustain_s` seconds. `clock`: in nanoseconds. `cpu`: makes a clock of CPU
    time."""
    assert order.sustain_s is not None
    reader = reader or host.HostReader()
    before, used = reader.look(), time.process_time()
    glances = deque[float | None](maxlen=GLANCES)
    warm = WarmUp(1, order.warmup, max(1, order.warmup_floor))
    warm.add(first_ns)
    yield from warm_up(loop, warm, reader, glances)
    notes.append(warm.note())
    overhead = loop.overhead_ns()
    sustain_ns = round(order.sustain_s * S_NS)
    plan = plan_stretches(sustain_ns, settled_ns(loop, warm.typical_ns), overhead)
    total_s = math.ceil(order.sustain_s + recovery_s(order.sustain_s))
    run = _Stretches(loop, plan, reader, clock, cpu())
    yield ProgressReport(Phase.RUN, 0, total_s)
    gc.collect()
    gc.disable()
    began = clock()
    try:
        for _ in run.all(began, began + sustain_ns):
            yield ProgressReport(Phase.RUN, (clock() - began) // S_NS, total_s, run.latest_ms)
        ended = clock()
        state = host.state(before, reader.look(), time.process_time() - used, reader, glances)
        pauses: list[int] = []
        probes: list[tuple[int, ...]] = []
        dues = [ended + round(share * recovery_s(order.sustain_s) * S_NS) for share in PROBES]
        for due, following in zip(dues, (*dues[1:], math.inf), strict=True):
            if pauses and following <= clock():
                continue  # the previous probe took too long
            while (left := due - clock()) > 0:
                sleep(min(REPORT_S, left / S_NS))
                yield ProgressReport(Phase.RUN, (clock() - began) // S_NS, total_s)
            pauses.append(clock() - ended)
            probes.append(run.probe())
    finally:
        gc.enable()
    if len(run.samples) >= MAX_SUSTAINED:
        notes.append(f"the sustained run ended at the most samples that a record can hold: {MAX_SUSTAINED:,}")
    switches = [block.switches for block in run.blocks if block.switches is not None]
    measured = MeasureReport(
        samples_ns=tuple(run.samples),
        warmup_ns=tuple(warm.samples),
        cpu_s=sum(block.cpu_ns for block in run.blocks) / 1e9,
        wall_s=(ended - began) / 1e9,
        peak_bytes=memory.peak_bytes(peak_was_reset),
        timer_overhead_ns=overhead,
        involuntary_switches=sum(switches) if switches else None,
        per_sample=plan.per_sample,
        began_ns=began,
        blocks=tuple(run.blocks),
        host=state,
    )
    return measured, SustainedReport(
        starts_ns=tuple(run.starts),
        temperature_mk=tuple(run.temperatures),
        clock_khz=tuple(run.clocks),
        pauses_ns=tuple(pauses),
        probes_ns=tuple(probes),
    )


class _Stretches:
    """The timed samples, and the readings after each stretch."""

    def __init__(
        self,
        loop: TimedLoop,
        plan: StretchPlan,
        reader: host.HostReader,
        clock: Callable[[], int],
        cpu: CpuClock | None,
    ) -> None:
        self._loop, self._plan, self._reader, self._clock, self._cpu = loop, plan, reader, clock, cpu
        self._chunk = array("q", bytes(8 * max(plan.chunk, plan.probe)))
        self.samples = array("q")
        self.blocks: list[SampleBlock] = []
        self.starts: list[int] = []
        self.temperatures: list[int] = []
        self.clocks: list[int] = []

    @property
    def latest_ms(self) -> float:
        return median(self.samples[-self.blocks[-1].samples :]) / 1e6

    def all(self, began: int, until: int) -> Iterator[None]:
        """Time stretch after stretch; the last is never much shorter than the others."""
        while self._clock() < until and len(self.samples) < MAX_SUSTAINED:
            self.starts.append(self._clock() - began)
            self.blocks.append(merged(list(self._chunks(self._clock(), until))))
            celsius, mhz = self._reader.temperature_c(), self._reader.clock_mhz()
            self.temperatures.append(0 if celsius is None else max(0, round(celsius * 1000) + ZERO_C_MK))
            self.clocks.append(0 if mhz is None else round(mhz * 1000))
            yield

    def _chunks(self, began: int, until: int) -> Iterator[SampleBlock]:
        stretch = self._plan.stretch_ns
        while len(self.samples) < MAX_SUSTAINED:
            yield self._time(min(self._plan.chunk, MAX_SUSTAINED - len(self.samples)))
            now = self._clock()
            if now >= until or (now - began >= stretch and until - now >= stretch / 2):
                return

    def _time(self, count: int) -> SampleBlock:
        block = timed_block(
            self._loop, self._chunk, 0, count, self._plan.per_sample, self._reader, self._clock, self._cpu
        )
        self.samples.extend(self._chunk[:count])
        return block

    def probe(self) -> tuple[int, ...]:
        """Time a few inferences and return their samples."""
        count = self._plan.probe
        self._loop.time(self._chunk, 0, count, self._plan.per_sample)
        return tuple(self._chunk[:count])
