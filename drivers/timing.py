"""The measuring loop, for every driver: warm up until settled, then exactly N timed calls with nothing else going on.

`call(argument)` is one inference. Times are nanoseconds of `time.perf_counter_ns`. Between chunks of timed calls (a few in a
second) progress is reported; nothing happens inside a chunk but the calls and the clock.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from drivers import memory
from drivers.base import Measured, Phase, Progressed

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


def time_calls(
    call: Callable[[Any], object], argument: Any, samples: list[int], start: int, stop: int
) -> None:
    """Fill `samples[start:stop]` with the times of single calls. The one loop that is measured: keep it bare."""
    clock = time.perf_counter_ns
    for index in range(start, stop):
        began = clock()
        call(argument)
        samples[index] = clock() - began


def _switches() -> int | None:
    return None if sys.platform == "win32" else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def measure_calls(
    call: Callable[[Any], object],
    argument: Any,
    runs: int,
    warmup: int | None,
    first_ns: int,
    peak_was_reset: bool,
) -> Iterator[Progressed | Measured | str]:
    """Warm up and time `call(argument)`; yields progress, one note on the warm-up, and at last the `Measured`.

    `first_ns` is the time of the cold inference, made by the caller while it looked for the shapes; it is the first warm-up.
    """
    warm = WarmUp(runs, warmup)
    warm.add(first_ns)
    yield Progressed(Phase.WARM_UP, 1, warmup)
    one = [0]
    reported = time.perf_counter_ns()
    while not warm.done:
        time_calls(call, argument, one, 0, 1)
        warm.add(one[0])
        if time.perf_counter_ns() - reported > CHUNK_NS:
            yield Progressed(Phase.WARM_UP, len(warm.samples), warmup)
            reported = time.perf_counter_ns()
    yield warm.note()
    typical = median(warm.samples[len(warm.samples) // 2 :])
    chunk = max(1, int(CHUNK_NS / max(typical, 1)))
    overhead = timer_overhead_ns()
    samples = [0] * runs
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
            time_calls(call, argument, samples, start, stop)
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
