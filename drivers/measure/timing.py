"""The measuring loop, for every driver: warm up until settled, then exactly N timed calls with nothing else going on.

A driver gives its inference as a `TimedLoop`: `TimedCalls` around a Python call, or one of its own in native code. Times are
nanoseconds. Between chunks of timed calls (a few in a second) progress is reported; nothing happens inside a chunk but the
calls and the clock.
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
from drivers.contract.base import (
    MeasureReport,
    ProgressReport,
    SampleBlock,
    WorkOrder,
)
from drivers.measure import host
from protocol.formats.phase import Phase

if sys.platform != "win32":
    import resource

FLOOR_NS: Final = 2_000_000_000
"""Inferences so long that the floor would take more than this are settled sooner, after the cold one and one more."""
MAX_WARMUP: Final = 5000
BLOCK_NS: Final = 2_000_000
"""Short inferences are judged in blocks of this length, longer ones singly …"""
BLOCK_SAMPLES: Final = 500
"""… and very short ones in blocks of so many."""
BLOCKS: Final = 6
"""Settled: the median of the last three of them against the three before."""
TOLERANCE: Final = 0.02
SHARE: Final = 0.2
"""Warm-up may take this much of the time that the timed inferences will take …"""
LEAST_CAP_NS: Final = 50_000_000
"""… or this, whichever is more."""
CHUNK_NS: Final = 250_000_000
"""Between two reports of progress."""
LOOK_NS: Final = 20_000_000
"""Between two looks at the host, which take some 40 µs."""
STALL_NS: Final = 10_000_000
"""The kernel weighs pressure by whole ticks, of up to 10 ms: over less it says 0 whatever waited, which is no measurement."""
GLANCES: Final = 4
"""Looks at what others run, the last of warm-up and one after the window: of windows too short to tell otherwise."""
MOST_BLOCKS: Final = 2000
MOST_AT_A_TIME: Final = 1024
MOST_SAMPLES: Final = 5000
"""Of a launch that goes by time: enough for its 99th percentile, and quickly told. Shorter inferences come several to a sample."""
LEAST_SAMPLES: Final = 20
LONGEST_NS: Final = 1_000_000_000
"""Fewer than that where they would take longer than this."""
CLOCK_SHARE: Final = 100


@dataclass(slots=True)
class WarmUp:
    """Decides after each sample whether the warm-up is over. Pure: samples in, `done` out."""

    runs: int
    wanted: int | None
    floor: int = 5
    window_s: float | None = None
    samples: list[int] = field(default_factory=list)
    settled: bool = False
    _blocks: list[float] = field(default_factory=list)
    _block: list[int] = field(default_factory=list)
    _block_ns: int = 0
    _spent_ns: int = 0

    def add(self, sample_ns: int) -> None:
        """Take one inference. The first is the cold one and is not judged."""
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
    def done(self) -> bool:
        """Whether to stop: the count that was asked for, or settled, or as long as a warm-up may take."""
        if self.wanted is not None:
            return len(self.samples) >= max(1, self.wanted)
        if len(self.samples) < self.floor and (len(self.samples) < 2 or self._spent_ns < FLOOR_NS):
            return False
        return self.settled or len(self.samples) >= max(MAX_WARMUP, self.floor) or self._at_cap()

    def next_count(self) -> int:
        """How many to make before asking again, at least 1: what was asked for, one by one up to the floor, then a block."""
        if self.wanted is not None:
            return max(1, self.wanted - len(self.samples))
        if len(self.samples) < self.floor:
            return 1
        return max(1, min(BLOCK_SAMPLES, int(BLOCK_NS / max(1.0, self._typical_ns()))))

    def _typical_ns(self) -> float:
        return self._spent_ns / max(1, len(self.samples) - 1)

    def _at_cap(self) -> bool:
        coming = self.runs * self._typical_ns() if self.window_s is None else self.window_s * 1e9
        return self._spent_ns >= max(SHARE * coming, LEAST_CAP_NS)

    def note(self) -> str:
        """How it ended, for the row."""
        if self.wanted is not None:
            return f"warm-up: {len(self.samples)} as asked"
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
    """One inference, ready to be timed over and over."""

    def time(self, samples: array[int], start: int, stop: int, per_sample: int) -> None:
        """Fill `samples[start:stop]` (type code `q`) with nanoseconds, each the rounded mean of `per_sample` inferences in a row.

        Everything it needs is made before; nothing happens here but the inferences and two clock readings for each sample.
        Raises what the driver turns into its own words; `samples` beyond what was reached stay as they were.
        """
        ...

    def overhead_ns(self) -> int:
        """What reading the clock once costs in this loop, calibrated in this process."""
        ...


@dataclass(frozen=True, slots=True)
class TimedCalls:
    """The loop in plain Python: `call(argument)` is one inference."""

    call: Callable[[Any], object]
    argument: Any = None

    def time(self, samples: array[int], start: int, stop: int, per_sample: int) -> None:
        """See `TimedLoop`. The one loop that is measured: keep it bare."""
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
        """See `TimedLoop`."""
        return timer_overhead_ns()


def window_samples(window_ns: float, typical_ns: float) -> int:
    """How many samples a window of time takes: enough for a median, and fewer of long inferences, at least one."""
    wanted = math.ceil(window_ns / typical_ns)
    return max(wanted, min(LEAST_SAMPLES, max(1, int(LONGEST_NS / typical_ns))))


def in_a_sample(typical_ns: float, overhead_ns: int) -> int:
    """Inferences in a sample, so that the clock's share of it is below one in a hundred."""
    return max(1, math.ceil(CLOCK_SHARE * overhead_ns / typical_ns))


def chunk_samples(runs: int, typical_ns: float) -> int:
    """Samples between two looks at the host, so that looking costs little and the blocks of a long run are not too many to tell."""
    return max(1, -(-runs // MOST_BLOCKS), int(LOOK_NS / typical_ns))


def _switches() -> int | None:
    return None if sys.platform == "win32" else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def collect(
    events: Iterator[ProgressReport | MeasureReport | str], notes: list[str]
) -> Generator[ProgressReport, None, MeasureReport]:
    """Sorts what `measure_calls` yields: progress is yielded, notes go onto the list, the measurement is returned."""
    measured: MeasureReport | None = None
    for event in events:
        if isinstance(event, str):
            notes.append(event)
        elif isinstance(event, ProgressReport):
            yield event
        else:
            measured = event
    assert measured is not None
    return measured


def measure_calls(
    loop: TimedLoop,
    order: WorkOrder,
    first_ns: int,
    peak_was_reset: bool,
    reader: host.HostReader | None = None,
) -> Iterator[ProgressReport | MeasureReport | str]:
    """Warm up and time the loop as `order` says; yields progress, one note on the warm-up, and at last the `MeasureReport`.

    `first_ns` is the time of the cold inference, made by the caller while it looked for the shapes; it is the first warm-up.
    Exactly `order.runs` samples of one inference each, or `order.window_s` of samples that hold several where one is short.
    """
    reader = reader or host.HostReader()
    before, used = reader.look(), time.process_time()
    warm = WarmUp(order.runs, order.warmup, max(1, order.warmup_floor), order.window_s)
    warm.add(first_ns)
    glances = deque[float | None](maxlen=GLANCES)
    yield from _warm_up(loop, warm, reader, glances)
    yield warm.note()
    typical = max(1.0, median(warm.samples[len(warm.samples) // 2 :]))
    overhead = loop.overhead_ns()
    runs, grouped = order.runs, 1
    if order.window_s is not None:
        few = math.ceil(order.window_s * 1e9 / typical / MOST_SAMPLES)
        grouped = max(in_a_sample(typical, overhead), few)
        runs = window_samples(order.window_s * 1e9, typical * grouped)
    samples = array("q", bytes(8 * runs))
    blocks: list[SampleBlock] = []
    yield ProgressReport(Phase.RUN, 0, runs)
    gc.collect()
    gc.disable()
    # not before: collecting takes longer than a short window, and an accelerator's energy is taken from here on
    reported = began = time.perf_counter_ns()
    try:
        step = chunk_samples(runs, typical * grouped)
        for start in range(0, runs, step):
            stop = min(start + step, runs)
            blocks.append(timed_block(loop, samples, start, stop, grouped, reader))
            if stop == runs and runs * typical * grouped > LOOK_NS:
                # before our parent is told of it, and long after it was told that this begins: else it would be what runs
                glances.append(reader.others_now())
            if stop == runs or time.perf_counter_ns() - reported > CHUNK_NS:
                reported = time.perf_counter_ns()
                yield ProgressReport(Phase.RUN, stop, runs, median(samples[start:stop]) / 1e6)
    finally:
        gc.enable()
    switches = [block.switches for block in blocks if block.switches is not None]
    yield MeasureReport(
        samples_ns=tuple(samples),
        warmup_ns=tuple(warm.samples),
        cpu_s=sum(block.cpu_ns for block in blocks) / 1e9,
        wall_s=sum(block.wall_ns for block in blocks) / 1e9,
        peak_bytes=memory.peak_bytes(peak_was_reset),
        timer_overhead_ns=overhead,
        involuntary_switches=sum(switches) if switches else None,
        per_sample=grouped,
        began_ns=began,
        blocks=tuple(blocks),
        host=host.state(before, reader.look(), time.process_time() - used, reader, glances),
    )


def _warm_up(
    loop: TimedLoop, warm: WarmUp, reader: host.HostReader, glances: deque[float | None]
) -> Iterator[ProgressReport]:
    """Single inferences as far as the floor, then some at a time, as they will be timed. `glances` take what others run in between."""
    yield ProgressReport(Phase.WARM_UP, 1, warm.wanted)
    some = array("q", bytes(8 * MOST_AT_A_TIME))
    reported = time.perf_counter_ns()
    while not warm.done:
        count = min(warm.next_count(), MOST_AT_A_TIME)
        loop.time(some, 0, count, 1)
        for sample in some[:count]:
            warm.add(sample)
        glances.append(reader.others_now())
        if time.perf_counter_ns() - reported > CHUNK_NS:
            yield ProgressReport(Phase.WARM_UP, len(warm.samples), warm.wanted)
            reported = time.perf_counter_ns()


def timed_block(
    loop: TimedLoop, samples: array[int], start: int, stop: int, grouped: int, reader: host.HostReader
) -> SampleBlock:
    """Time one stretch; the host is read before and after it."""
    stalled, switched = reader.stall_ns(), _switches()
    used, began = time.process_time_ns(), time.perf_counter_ns()
    loop.time(samples, start, stop, grouped)
    wall, cpu = time.perf_counter_ns() - began, time.process_time_ns() - used
    switches, stall = _switches(), reader.stall_ns()
    return SampleBlock(
        samples=stop - start,
        wall_ns=wall,
        cpu_ns=cpu,
        stall_ns=None if stall is None or stalled is None or wall < STALL_NS else max(0, stall - stalled),
        switches=None if switches is None or switched is None else switches - switched,
    )
