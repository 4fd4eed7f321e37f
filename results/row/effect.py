"""The effect of the host on the numbers: how much waiting lengthened the median, and which shares of other work are high.

    a stretch of inferences: wall time, CPU time of all threads ──▶ time in which the model did not compute as in the best stretches
    that time is taken from the longest inferences first ──▶ the median without it

Other work on a processor delays some inferences and leaves the rest unchanged. Of short inferences it hits few, so the median stays the
same; of long ones it hits all. Contention for caches, memory bandwidth and clock speed makes CPU time itself longer, which no figure of a
record can tell apart from a slow model: above `HEAVY` a row says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from results.row.order import in_order
from results.row.record import RecordLaunch
from results.row.stats import launch_medians, median, nearest_rank

EFFECT: Final = 0.03
"""If waiting lengthened the median by more than this share, the median is spoiled. For one thread …"""
THREADS_EFFECT: Final = 0.10
"""… and for several threads, which also wait for each other, unevenly over the stretches: by up to 8 % on a quiet host."""
RAISED: Final = 0.05
"""A share of the time, or of the processors, that is worth reporting …"""
BLAMED: Final = 0.15
"""… one that explains why launches disagree …"""
HEAVY: Final = 0.20
"""… and one above which the effect may be present although nothing shows it."""
SURE: Final = 0.05
"""Divided by √n and added to the limit of a share that is the mean of n launches: few readings say little."""
TICK_NS: Final = 10_000_000
"""The kernel counts pressure in ticks of this many nanoseconds: one tick per launch is noise, and so are √n ticks in n launches."""
CPU_TICK_NS: Final = 125_000
"""The common divisor of CPU-time clocks that tick every 15.625, 10, 4 or 1 ms. Such clocks are too coarse for a stretch of a few ticks."""
BEST: Final = 80
"""The percentile of the stretches' CPU time per wall time that stands for an undisturbed stretch."""
BLUR: Final = 0.02
"""Share of a stretch in which threads wait for each other by chance, beyond what they do in the best stretches."""


@dataclass(frozen=True, slots=True)
class HostFigure:
    """A share of time that went to something other than the run."""

    share: float
    words: str
    """The words after the share: what it is a share of."""
    remark: str = ""
    """A few words before the share in a remark; empty if the figure is never a mere remark."""
    limit: float = RAISED
    """Below this limit, the share is not worth reporting."""
    most: float = HEAVY
    """Above this limit, the effect may be present although nothing shows it."""
    unseen: str = ""
    """Words for that hidden effect."""

    def __str__(self) -> str:
        return f"{self.share:.0%} {self.words}"

    @property
    def raised(self) -> bool:
        return self.share > self.limit

    @property
    def blamed(self) -> bool:
        return self.share > max(self.limit, min(self.most, BLAMED))

    @property
    def heavy(self) -> bool:
        return self.share > max(self.limit, self.most)


def waiting_effect(launches: Sequence[RecordLaunch], threads: int | None) -> float | None:
    """The share by which the median of the launches exceeds the median without the time in which its threads had no processor. `threads`:
    the number that compute an inference; None if no processor of this device computes it. Returns None too if stretches are unknown, or
    their CPU time came in ticks.
    """
    launches = [launch for launch in launches if launch.samples]
    blocks = [block for launch in launches for block in launch.blocks if block.wall_ns > 0]
    if not threads or not blocks or any(not _covered(launch) for launch in launches):
        return None
    if all(block.cpu_ns % CPU_TICK_NS == 0 for block in blocks):
        return None
    used = (
        1.0 if threads == 1 else nearest_rank(sorted(block.cpu_ns / block.wall_ns for block in blocks), BEST)
    )
    if used <= 0:
        return None
    cleared = []
    for launch in launches:
        samples: list[float] = []
        start = 0
        for block in launch.blocks:
            waited = block.wall_ns * (1 - BLUR) - block.cpu_ns / min(used, threads)
            samples += subtract_waiting(
                launch.samples[start : start + block.samples], waited / launch.per_sample
            )
            start += block.samples
        cleared.append(samples)
    cleared_median = median([median(samples) for samples in cleared])
    found = median(launch_medians([launch.ordered for launch in launches]))
    return max(0.0, found / cleared_median - 1) if cleared_median > 0 else None


def is_median_spoiled(effect: float | None, threads: int | None) -> bool:
    """Whether waiting lengthened the median so much that it no longer represents a quiet host."""
    return effect is not None and effect > (EFFECT if threads == 1 else THREADS_EFFECT)


def subtract_waiting(samples: Sequence[int], waited: float) -> list[float]:
    """`samples` with `waited` subtracted in total, taken from the longest: those are cut to one level."""
    if waited <= 0:
        return list(samples)
    longest = in_order(samples)[::-1]
    above = 0.0
    for count, sample in enumerate(longest, 1):
        above += sample
        level = (above - waited) / count
        if count == len(longest) or level >= longest[count]:
            return [min(float(each), max(level, 0.0)) for each in samples]
    return []


def host_figures(
    launches: Sequence[RecordLaunch], crowded: bool = False, *, seen: bool = False
) -> list[HostFigure]:
    """All known figures of the host. `crowded`: the run's threads wait for each other, so waiting threads say nothing about other work.
    `seen`: the effect of waiting is known (`waiting_effect`), so waiting has no hidden effect.
    """
    slack = math.sqrt(max(1, len(launches)))
    figures = []
    if (share := None if crowded else stall_share(launches)) is not None:
        wall = sum(
            block.wall_ns for launch in launches for block in launch.blocks if block.stall_ns is not None
        )
        limit = RAISED + slack * TICK_NS / wall
        words = "of the time something waited for a processor"
        figures.append(HostFigure(share, words, "waiting", limit, 1.0 if seen else HEAVY))
    if (share := mean_share(launches, "others")) is not None:
        words = "of the processors' time went to other work"
        unseen = "; no figure shows its effect on caches and memory"
        figures.append(HostFigure(share, words, "host busy", RAISED + SURE / slack, unseen=unseen))
    if (share := mean_share(launches, "steal")) is not None:
        words = "of the processors' time was taken by the hypervisor"
        figures.append(HostFigure(share, words, most=RAISED))
    return figures


def remarks(launches: Sequence[RecordLaunch], crowded: bool = False) -> list[str]:
    """What is worth saying about the host of a row whose verdict does not mention it."""
    launches = [launch for launch in launches if launch.samples]
    raised = [each for each in host_figures(launches, crowded) if each.raised and each.remark]
    return [f"{each.remark} {each.share:.0%}" for each in raised]


def stall_share(launches: Iterable[RecordLaunch]) -> float | None:
    """The share of wall time in which something waited for a processor, over the blocks that report it; at most 1."""
    blocks = [block for launch in launches for block in launch.blocks if block.stall_ns is not None]
    wall = sum(block.wall_ns for block in blocks)
    return min(sum(block.stall_ns or 0 for block in blocks) / wall, 1.0) if wall else None


def mean_share(launches: Iterable[RecordLaunch], name: str) -> float | None:
    """`others` or `steal` of the launches that report it, weighted by their wall time."""
    shares = [
        (share, launch.wall_s) for launch in launches if (share := getattr(launch.host, name)) is not None
    ]
    wall = sum(seconds for _, seconds in shares)
    if not wall:
        return sum(share for share, _ in shares) / len(shares) if shares else None
    return float(sum(share * seconds for share, seconds in shares) / wall)


def _covered(launch: RecordLaunch) -> bool:
    """Whether the launch's blocks hold exactly its samples."""
    return sum(block.samples for block in launch.blocks) == len(launch.samples)
