"""The measuring loop of every driver: warm up until settled, then make exactly N timed calls with nothing else going on.

A driver passes its inference as a `TimedLoop`: `TimedCalls` around a Python call, or a loop in native code. Times are nanoseconds. Progress
is reported a few times a second, between chunks; inside a chunk there are only the calls and the clock.
"""

from __future__ import annotations

import gc
import itertools
import math
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, Protocol

from drivers.contract import memory
from drivers.contract.base import MeasureReport, ProgressReport, SampleBlock, WorkOrder
from drivers.measure import host
from drivers.measure.cpu_clock import CpuClock, cpu_clock, read_cpu
from protocol.formats.phase import Phase

if sys.platform != "win32":
    import resource

FLOOR_NS: Final = 2_000_000_000
"""If the floor would take longer than this, the warm-up may settle after the cold inference and one more."""
MAX_WARMUP: Final = 5000
BLOCK_NS: Final = 2_000_000
"""Short inferences are judged in blocks of this length, longer ones one by one …"""
BLOCK_SAMPLES: Final = 500
"""… and very short ones in blocks of this many inferences."""
BLOCKS: Final = 6
"""Settled: the medians of the last three blocks are compared with those of the three before."""
TOLERANCE: Final = 0.02
SHARE: Final = 0.2
"""The warm-up may take this share of the time of the timed inferences …"""
MIN_CAP_NS: Final = 50_000_000
"""… or this long, whichever is longer."""
CHUNK_NS: Final = 250_000_000
"""Time between two progress reports."""
LOOK_NS: Final = 20_000_000
"""Time between two readings of the host, which take some 40 µs."""
STALL_NS: Final = 10_000_000
"""The kernel counts pressure in ticks of up to 10 ms: over a shorter time it always reports 0."""
GLANCES: Final = 4
"""Momentary readings of others' share, for short windows: the last of the warm-up and one after the window."""
MAX_BLOCKS: Final = 2000
MAX_CHUNK: Final = 1024
MAX_WINDOW_SAMPLES: Final = 5000
"""Most samples of a window of time: enough for its 99th percentile. Short inferences are timed several to a sample."""
MIN_WINDOW_SAMPLES: Final = 20
MAX_SAMPLES_NS: Final = 1_000_000_000
"""A window has fewer samples than that if they would take longer than this."""
CLOCK_SHARE: Final = 100


@dataclass(slots=True)
class WarmUp:
    """Decides after each sample whether the warm-up is over."""

    runs: int
    requested: int | None
    floor: int = 5
    window_s: float | None = None
    samples: list[int] = field(default_factory=list)
    settled: bool = False
    _blocks: list[float] = field(default_factory=list)
    _block: list[int] = field(default_factory=list)
    _block_ns: int = 0
    _spent_ns: int = 0

    def add(self, sample_ns: int) -> None:
        """Add one inference. The first is the cold one and is not judged."""
        self.samples.append(sample_ns)
        if len(self.samples) == 1:
            return
        self._block.append(sample_ns)
        self._block_ns += sample_ns
        self._spent_ns += sample_ns
        if self._block_ns >= BLOCK_NS or len(self._block) >= BLOCK_SAMPLES:
            self._blocks.append(median(self._block))
            self._block, self._block_ns = [], 0
            self.settled = is_settled(self._blocks[-BLOCKS:])

    @property
    def typical_ns(self) -> float:
        """Time of one inference, once the warm-up is over."""
        return max(1.0, median(self.samples[len(self.samples) // 2 :]))

    @property
    def done(self) -> bool:
        """Whether to stop: at the requested count, once settled, or at a cap."""
        if self.requested is not None:
            return len(self.samples) >= max(1, self.requested)
        if len(self.samples) < self.floor and (len(self.samples) < 2 or self._spent_ns < FLOOR_NS):
            return False
        return self.settled or len(self.samples) >= max(MAX_WARMUP, self.floor) or self._at_cap()

    def next_count(self) -> int:
        """Inferences before the next decision: all that are requested; one at a time up to the floor; then a block."""
        if self.requested is not None:
            return max(1, self.requested - len(self.samples))
        if len(self.samples) < self.floor:
            return 1
        return max(1, min(BLOCK_SAMPLES, int(BLOCK_NS / max(1.0, self._typical_ns()))))

    def _typical_ns(self) -> float:
        return self._spent_ns / max(1, len(self.samples) - 1)

    def _at_cap(self) -> bool:
        timed_ns = self.runs * self._typical_ns() if self.window_s is None else self.window_s * 1e9
        return self._spent_ns >= max(SHARE * timed_ns, MIN_CAP_NS)

    def note(self) -> str:
        if self.requested is not None:
            return f"warm-up: {len(self.samples)} as requested"
        return f"warm-up: {len(self.samples)}, {'settled' if self.settled else 'stopped at its cap, not settled'}"


def is_settled(blocks: Sequence[float]) -> bool:
    """Whether the older and the newer half of enough block medians differ by at most 2 %."""
    if len(blocks) < BLOCKS:
        return False
    older, newer = median(blocks[: BLOCKS // 2]), median(blocks[BLOCKS // 2 :])
    return abs(older - newer) <= TOLERANCE * min(older, newer)


def timer_overhead_ns(clock: Callable[[], int] = time.perf_counter_ns, tries: int = 200) -> int:
    """Median cost of one clock reading, in nanoseconds."""
    readings = [0] * (tries + 1)
    for index in range(tries + 1):
        readings[index] = clock()
    return round(median(later - sooner for sooner, later in itertools.pairwise(readings)))


class TimedLoop(Protocol):
    """One inference, ready to be timed repeatedly."""

    def time(self, samples: array[int], start: int, stop: int, per_sample: int) -> None:
        """Fill `samples[start:stop]` (type code `q`) with nanoseconds, each the rounded mean of `per_sample` inferences in a row.

        Nothing happens here but the inferences and two clock readings per sample. If it raises, later `samples` stay as they were.
        """
        ...

    def overhead_ns(self) -> int:
        """Cost of reading the clock once in this loop, calibrated in this process."""
        ...


@dataclass(frozen=True, slots=True)
class TimedCalls:
    """The loop in plain Python: `call(argument)` is one inference."""

    call: Callable[[Any], object]
    argument: Any = None

    def time(self, samples: array[int], start: int, stop: int, per_sample: int) -> None:
        """See `TimedLoop`. Keep it bare."""
        clock, call, argument = time.perf_counter_ns, self.call, self.argument
        if per_sample == 1:
            for index in range(start, stop):
                began = clock()
                call(argument)
                samples[index] = clock() - began
            return
        for index in range(start, stop):
            began = clock()
            for _ in range(per_sample):
                call(argument)
            samples[index] = round((clock() - began) / per_sample)

    def overhead_ns(self) -> int:
        return timer_overhead_ns()


def window_samples(window_ns: float, typical_ns: float) -> int:
    """Samples of a window of time: enough for a median, fewer if inferences are long, at least one."""
    count = math.ceil(window_ns / typical_ns)
    return max(count, min(MIN_WINDOW_SAMPLES, max(1, int(MAX_SAMPLES_NS / typical_ns))))


def inferences_per_sample(typical_ns: float, overhead_ns: int) -> int:
    """Enough inferences that reading the clock takes less than 1 % of a sample."""
    return max(1, math.ceil(CLOCK_SHARE * overhead_ns / typical_ns))


def chunk_samples(runs: int, typical_ns: float) -> int:
    """Samples between two readings of the host: few readings, and at most `MAX_BLOCKS` blocks."""
    return max(1, -(-runs // MAX_BLOCKS), int(LOOK_NS / typical_ns))


def _switches() -> int | None:
    return None if sys.platform == "win32" else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def measure_calls(
    loop: TimedLoop,
    order: WorkOrder,
    first_ns: int,
    peak_was_reset: bool,
    notes: list[str],
    reader: host.HostReader | None = None,
) -> Generator[ProgressReport, None, MeasureReport]:
    """Warm up and time the loop as `order` says; yields progress, and returns the measurement. Appends a note on how the warm-up ended to
    `notes`.

    `first_ns`: time of the cold inference, which the caller made while it searched for shapes; it is the first warm-up. Makes exactly
    `order.runs` samples of one inference each, or samples for `order.window_s`, of several inferences each if one is short.
    """
    reader = reader or host.HostReader()
    before, used = reader.look(), time.process_time()
    warm = WarmUp(order.runs, order.warmup, max(1, order.warmup_floor), order.window_s)
    warm.add(first_ns)
    glances = deque[float | None](maxlen=GLANCES)
    yield from warm_up(loop, warm, reader, glances)
    notes.append(warm.note())
    typical = warm.typical_ns
    overhead = loop.overhead_ns()
    runs, per_sample = order.runs, 1
    if order.window_s is not None:
        fewest = math.ceil(order.window_s * 1e9 / typical / MAX_WINDOW_SAMPLES)
        per_sample = max(inferences_per_sample(typical, overhead), fewest)
        runs = window_samples(order.window_s * 1e9, typical * per_sample)
    samples = array("q", bytes(8 * runs))
    blocks: list[SampleBlock] = []
    cpu = cpu_clock()
    yield ProgressReport(Phase.RUN, 0, runs)
    gc.collect()
    gc.disable()
    # taken after the collection, which takes longer than a short window
    reported = began = time.perf_counter_ns()
    try:
        step = chunk_samples(runs, typical * per_sample)
        for start in range(0, runs, step):
            stop = min(start + step, runs)
            blocks.append(timed_block(loop, samples, start, stop, per_sample, reader, cpu=cpu))
            if stop == runs and runs * typical * per_sample > LOOK_NS:
                # before the parent gets the report and starts to work: its work would be counted
                glances.append(reader.others_now())
            if stop == runs or time.perf_counter_ns() - reported > CHUNK_NS:
                reported = time.perf_counter_ns()
                yield ProgressReport(Phase.RUN, stop, runs, median(samples[start:stop]) / 1e6)
    finally:
        gc.enable()
    switches = [block.switches for block in blocks if block.switches is not None]
    return MeasureReport(
        samples_ns=tuple(samples),
        warmup_ns=tuple(warm.samples),
        cpu_s=sum(block.cpu_ns for block in blocks) / 1e9,
        wall_s=sum(block.wall_ns for block in blocks) / 1e9,
        peak_bytes=memory.peak_bytes(peak_was_reset),
        timer_overhead_ns=overhead,
        involuntary_switches=sum(switches) if switches else None,
        per_sample=per_sample,
        began_ns=began,
        blocks=tuple(blocks),
        host=host.state(before, reader.look(), time.process_time() - used, reader, glances),
    )


def warm_up(
    loop: TimedLoop, warm: WarmUp, reader: host.HostReader, glances: deque[float | None]
) -> Iterator[ProgressReport]:
    """Make single inferences up to the floor, then blocks, as they will be timed. `glances`: receives others' share between blocks."""
    yield ProgressReport(Phase.WARM_UP, 1, warm.requested)
    chunk = array("q", bytes(8 * MAX_CHUNK))
    reported = time.perf_counter_ns()
    while not warm.done:
        count = min(warm.next_count(), MAX_CHUNK)
        loop.time(chunk, 0, count, 1)
        for sample in chunk[:count]:
            warm.add(sample)
        glances.append(reader.others_now())
        if time.perf_counter_ns() - reported > CHUNK_NS:
            yield ProgressReport(Phase.WARM_UP, len(warm.samples), warm.requested)
            reported = time.perf_counter_ns()


def timed_block(
    loop: TimedLoop,
    samples: array[int],
    start: int,
    stop: int,
    per_sample: int,
    reader: host.HostReader,
    clock: Callable[[], int] = time.perf_counter_ns,
    cpu: CpuClock | None = None,
) -> SampleBlock:
    """Time one stretch; reads the host before and after it. Without a value from `cpu`, CPU time is the process's own account."""
    stalled, switched = reader.stall_ns(), _switches()
    rough, used, began = time.process_time_ns(), read_cpu(cpu), clock()
    loop.time(samples, start, stop, per_sample)
    wall, now = clock() - began, read_cpu(cpu)
    spent = time.process_time_ns() - rough if now is None or used is None else now - used
    switches, stall = _switches(), reader.stall_ns()
    return SampleBlock(
        samples=stop - start,
        wall_ns=wall,
        cpu_ns=spent,
        stall_ns=None if stall is None or stalled is None or wall < STALL_NS else max(0, stall - stalled),
        switches=None if switches is None or switched is None else switches - switched,
    )
