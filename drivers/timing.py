"""The measuring loop, for every driver: warm up until settled, then exactly N timed calls with nothing else going on.

A driver gives its inference as a `Loop`: `Calls` around a Python call, or one of its own in native code. Times are
nanoseconds. Between chunks of timed calls (a few in a second) progress is reported; nothing happens inside a chunk but the
calls and the clock.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, Protocol

from drivers import memory
from drivers.base import Measured, Phase, Progressed, WorkOrder

if sys.platform != "win32":
    import resource

FLOOR: Final = 5
"""Fewest warm-up inferences when the count is left to us."""
MAX_WARMUP: Final = 5000
BLOCK_NS: Final = 2_000_000
"""Short inferences are judged in blocks of this length, longer ones singly."""
BLOCKS: Final = 6
"""Settled: the median of the last three of them against the three before."""
TOLERANCE: Final = 0.02
SHARE: Final = 0.2
"""Warm-up may take this much of the time that the timed inferences will take …"""
LEAST_CAP_NS: Final = 50_000_000
"""… or this, whichever is more."""
CHUNK_NS: Final = 250_000_000


@dataclass(slots=True)
class WarmUp:
    """Decides after each sample whether the warm-up is over. Pure: samples in, `done` out."""

    runs: int
    wanted: int | None
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
        if self._block_ns >= BLOCK_NS:
            self._blocks.append(median(self._block))
            self._block, self._block_ns = [], 0
            self.settled = is_settled(self._blocks[-BLOCKS:])

    @property
    def done(self) -> bool:
        """Whether to stop: the count that was asked for, or settled, or as long as a warm-up may take."""
        if self.wanted is not None:
            return len(self.samples) >= max(1, self.wanted)
        if len(self.samples) < FLOOR:
            return False
        return self.settled or len(self.samples) >= MAX_WARMUP or self._at_cap()

    def _at_cap(self) -> bool:
        typical = self._spent_ns / (len(self.samples) - 1)
        return self._spent_ns >= max(SHARE * self.runs * typical, LEAST_CAP_NS)

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


class Loop(Protocol):
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
class Calls:
    """The loop in plain Python: `call(argument)` is one inference."""

    call: Callable[[Any], object]
    argument: Any = None

    def time(self, samples: array[int], start: int, stop: int, per_sample: int) -> None:
        """See `Loop`. The one loop that is measured: keep it bare."""
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
        """See `Loop`."""
        return timer_overhead_ns()


def _switches() -> int | None:
    return None if sys.platform == "win32" else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def measure_calls(
    loop: Loop, order: WorkOrder, first_ns: int, peak_was_reset: bool
) -> Iterator[Progressed | Measured | str]:
    """Warm up and time the loop as `order` says; yields progress, one note on the warm-up, and at last the `Measured`.

    `first_ns` is the time of the cold inference, made by the caller while it looked for the shapes; it is the first warm-up.
    """
    runs, warmup = order.runs, order.warmup
    warm = WarmUp(runs, warmup)
    warm.add(first_ns)
    yield Progressed(Phase.WARM_UP, 1, warmup)
    one = array("q", (0,))
    reported = time.perf_counter_ns()
    while not warm.done:
        loop.time(one, 0, 1, 1)
        warm.add(one[0])
        if time.perf_counter_ns() - reported > CHUNK_NS:
            yield Progressed(Phase.WARM_UP, len(warm.samples), warmup)
            reported = time.perf_counter_ns()
    yield warm.note()
    typical = median(warm.samples[len(warm.samples) // 2 :])
    chunk = max(1, int(CHUNK_NS / max(typical, 1)))
    overhead = loop.overhead_ns()
    samples = array("q", bytes(8 * runs))
    cpu = wall = 0.0
    switches: int | None = 0
    yield Progressed(Phase.RUN, 0, runs)
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for start in range(0, runs, chunk):
            stop = min(start + chunk, runs)
            switched, used, began = _switches(), time.process_time(), time.perf_counter()
            loop.time(samples, start, stop, 1)
            wall += time.perf_counter() - began
            cpu += time.process_time() - used
            after = _switches()
            switches = None if None in (switches, switched, after) else switches + after - switched  # type: ignore[operator]
            yield Progressed(Phase.RUN, stop, runs, median(samples[start:stop]) / 1e6)
    finally:
        gc.enable()
        gc.unfreeze()
    yield Measured(
        samples_ns=tuple(samples),
        warmup_ns=tuple(warm.samples),
        cpu_s=cpu,
        wall_s=wall,
        peak_bytes=memory.peak_bytes(peak_was_reset),
        timer_overhead_ns=overhead,
        involuntary_switches=switches,
    )
