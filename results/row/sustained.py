"""Findings of a sustained run: how fast the device starts, when it slows down, what speed it sustains, and when it recovers. Pure.

The medians of the stretches are cut into levels where they change (a scan of rank sums, repeated on either side), and neighbours that
differ by less than `CHANGE` are merged. The knee is where the device becomes slower and stays slower: a passing disturbance, such as
another program, is not a knee.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from protocol.formats.sustain import ZERO_C_MK
from results.row.record import RecordView
from results.row.stats import median
from results.row.verdict import Finding
from results.row.verdicts import RowVerdict

CHANGE: Final = 0.05
"""Minimum share by which the medians of two levels differ."""
CHANCE: Final = 0.01
"""Probability of a cut where nothing changes, over all possible positions of the cut, if stretches were independent."""
MIN_LEVEL: Final = 3
"""Minimum stretches in a level."""
LEAST_MS: Final = 1e-6
"""No inference takes less time; a record may say 0."""
LASTING: Final = 0.2
"""The last level is the steady state if it takes at least this share of the time."""
AS_MEANT: Final = frozenset(
    {
        *(RowVerdict.VALID, RowVerdict.FEW_RUNS, RowVerdict.THROTTLED),
        *(RowVerdict.DRIFT, RowVerdict.BIMODAL, RowVerdict.NOISY),
    }
)
"""Verdicts on other runs that do not apply to a sustained run."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Part of a sustained run; None: unknown."""

    start_s: float
    wall_s: float
    inferences: int
    median_ms: float
    cpu: float
    """Number of processors that it used."""
    temperature_c: float | None = None
    clock_mhz: float | None = None
    joules: float | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """Consecutive stretches that are alike."""

    start_s: float
    end_s: float
    median_ms: float
    joules: float | None
    """Joules of one inference."""


@dataclass(frozen=True, slots=True)
class SustainedPhases:
    burst: Level
    """The level before the knee; without a knee, the first level."""
    knee_s: float | None
    """None: there is no knee."""
    steady: Level | None
    """None: the speed was still changing at the end."""
    recovery_s: float | None
    """Rest after which the device was as fast as at first; None: there was no knee, or recovery was not seen."""
    probes: tuple[tuple[float, float], ...]
    """Seconds of rest, and the median in ms after it."""
    levels: tuple[Level, ...]

    @property
    def slowdown(self) -> float | None:
        """Steady state divided by burst, minus one."""
        if self.steady is None or not self.burst.median_ms:
            return None
        return self.steady.median_ms / self.burst.median_ms - 1

    def text(self) -> str:
        """The findings in a sentence."""
        changing = "its speed was still changing at the end"
        if self.knee_s is None:
            return changing if self.steady is None else "it kept its speed to the end"
        words = "slower" if self.slowdown is None else f"{100 * self.slowdown:.0f} % slower"
        words += f" from {self.knee_s:.3g} s on" + (f", and {changing}" if self.steady is None else "")
        if self.recovery_s is not None:
            return f"{words}; as fast as at first after {self.recovery_s:.3g} s of rest"
        return words + (
            f"; not as fast as at first after {self.probes[-1][0]:.3g} s of rest" if self.probes else ""
        )


def stretches_of(observed: RecordView, joules: Sequence[float | None] = ()) -> tuple[Stretch, ...]:
    """Stretches of a sustained run; empty for any other run. `joules`: of each stretch, if known."""
    sustained = observed.sustained
    if sustained is None:
        return ()
    (launch,) = observed.launches
    at, made = 0, list[Stretch]()
    for index, (block, start) in enumerate(zip(launch.blocks, sustained.starts_ns, strict=True)):
        samples = launch.samples[at : at + block.samples]
        at += block.samples
        if not samples:
            continue
        heat = sustained.temperature_mk[index] if sustained.temperature_mk else 0
        clock = sustained.clock_khz[index] if sustained.clock_khz else 0
        made.append(
            Stretch(
                start_s=start / 1e9,
                wall_s=block.wall_ns / 1e9,
                inferences=block.samples * launch.per_sample,
                median_ms=median(samples) / 1e6,
                cpu=block.cpu_ns / block.wall_ns if block.wall_ns else 0.0,
                temperature_c=(heat - ZERO_C_MK) / 1000 if heat else None,
                clock_mhz=clock / 1000 if clock else None,
                joules=joules[index] if joules else None,
            )
        )
    return tuple(made)


def phases(
    stretches: Sequence[Stretch], probes: Sequence[tuple[float, float]] = ()
) -> SustainedPhases | None:
    """`probes`: seconds of rest, and the median in ms after it. None without stretches."""
    if not stretches:
        return None
    cuts = levels_of([one.median_ms for one in stretches])
    levels = [_level(stretches[first:end]) for first, end in cuts]
    knee = _knee([level.median_ms for level in levels])
    start = 0 if knee is None else cuts[knee][0]
    burst = levels[0] if knee is None else _level(stretches[:start])
    ended = levels[-1].end_s
    lasts = levels[-1].end_s - levels[-1].start_s >= LASTING * ended
    return SustainedPhases(
        burst=burst,
        knee_s=None if knee is None else levels[knee].start_s,
        steady=levels[-1] if lasts else None,
        recovery_s=None if knee is None else _recovered(burst.median_ms, probes),
        probes=tuple(probes),
        levels=tuple(levels),
    )


def probes_of(observed: RecordView) -> tuple[tuple[float, float], ...]:
    """Seconds of rest, and the median of one inference in ms after it."""
    if observed.sustained is None:
        return ()
    each = zip(observed.sustained.pauses_ns, observed.sustained.probes_ns, strict=True)
    return tuple((pause / 1e9, median(samples) / 1e6) for pause, samples in each)


def phases_of(observed: RecordView, joules: Sequence[float | None] = ()) -> SustainedPhases | None:
    """None for a run that was not sustained. `joules`: of each stretch, if known."""
    return phases(stretches_of(observed, joules), probes_of(observed))


def findings_of(observed: RecordView, found: Sequence[Finding]) -> list[Finding]:
    """What the numbers of a sustained run are worth. `found`: the findings for any run. A sustained run is meant to be one launch in which
    the device changes, so findings about that are dropped.
    """
    grave = [finding for finding in found if finding[0] not in AS_MEANT]
    seen = phases_of(observed)
    return grave or [(RowVerdict.VALID, f"checked; {seen.text()}" if seen else "checked")]


def _level(stretches: Sequence[Stretch]) -> Level:
    inferences = sum(one.inferences for one in stretches)
    known = [one.joules for one in stretches if one.joules is not None]
    return Level(
        start_s=stretches[0].start_s,
        end_s=stretches[-1].start_s + stretches[-1].wall_s,
        median_ms=median([one.median_ms for one in stretches]),
        joules=sum(known) / inferences if len(known) == len(stretches) and inferences else None,
    )


def _knee(medians: Sequence[float]) -> int | None:
    """The first level from which all levels are slower than the first one."""
    slower = [value > (1 + CHANGE) * medians[0] for value in medians]
    if not slower[-1]:
        return None
    return len(slower) - slower[::-1].index(False)


def _recovered(burst_ms: float, probes: Sequence[tuple[float, float]]) -> float | None:
    """The shortest rest after which the device was as fast as at first, and stayed so."""
    since = None
    for rest_s, ms in probes:
        quick = ms <= (1 + CHANGE) * burst_ms
        since = (rest_s if since is None else since) if quick else None
    return since


def levels_of(values: Sequence[float]) -> list[tuple[int, int]]:
    """The start and end of each level of times in ms, as indices."""
    levels = _cut(values, 0, len(values))
    while len(levels) > 1:
        middles = [max(median(values[first:end]), LEAST_MS) for first, end in levels]
        steps = [abs(math.log(right / left)) for left, right in pairwise(middles)]
        least = min(range(len(steps)), key=steps.__getitem__)
        if steps[least] >= math.log1p(CHANGE):
            break
        levels[least : least + 2] = [(levels[least][0], levels[least + 1][1])]
    return levels


def _cut(values: Sequence[float], first: int, end: int) -> list[tuple[int, int]]:
    at = change_at(values[first:end])
    if at is None:
        return [(first, end)]
    return _cut(values, first, first + at) + _cut(values, first + at, end)


def change_at(values: Sequence[float]) -> int | None:
    """The index at which the values before and after it differ most in rank; None if chance explains the difference."""
    n = len(values)
    if n < 2 * MIN_LEVEL:
        return None
    total, best, at = 0.0, 0.0, 0
    for index, rank in enumerate(_ranks(values)[: n - MIN_LEVEL], start=1):
        total += rank
        if index < MIN_LEVEL:
            continue
        z = abs(total - index * (n + 1) / 2) / math.sqrt(index * (n - index) * (n + 1) / 12)
        if z > best:
            best, at = z, index
    return at if n * math.erfc(best / math.sqrt(2)) <= CHANCE else None


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    first = 0
    while first < len(order):
        end = first
        while end < len(order) and values[order[end]] == values[order[first]]:
            end += 1
        for place in order[first:end]:
            ranks[place] = (first + 1 + end) / 2
        first = end
    return ranks
