"""Is B faster than A, measured in turns within one process? Pure and exact: the same times give the same answer everywhere.

    launch: its rounds, in each of which all models ran ──▶ log(B / A) of each round ──▶ Hodges–Lehmann: one figure per launch
    launches' figures ──▶ an interval over launches alone, once for wall time, once for CPU time ──▶ one verdict for both

Wall time is what a user waits for, CPU time what the code costs on all threads. SLOWER (FASTER) needs one of the two intervals wholly
beyond +1 % (-1 %), and the other not wholly on the opposite side of 1. SAME: every interval present lies within ±1 %. Otherwise AMBIGUOUS.

The answer may be looked at after 6, 10, 20, 40, 80, 130 and 200 launches (`LOOKS`), and measuring ends at the first conclusive look; the
last three happen only while there is time. `ALPHA_SPENDING` divides an error of 2 % among those looks, and `alpha_at` divides each share
among the two kinds of time and the pairs: the intervals of all looks together hold the true value in at least 98 % of comparisons, and a
model compared with itself is called FASTER or SLOWER in at most 1 % (0.4 % on the noisiest host measured). Below 20 launches the interval
is Student's, about the mean of logarithms. From 20 on it is the signed-rank test's, about their Hodges–Lehmann estimate. That test assumes
no distribution, only that noise affects A and B alike, which the random order within each round ensures. `benchmarks/measuring/rounds.py`
compares this method with others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from protocol.formats.turns import LOOKS, MIN_COMPARISON_LAUNCHES
from protocol.values.task import Task
from results.row.comparison import MARGIN, Comparison, ComparisonVerdict, RatioInterval, ambiguous
from results.row.order import hodges_lehmann, signed_rank_interval, t_interval
from results.row.stats import MAX_LAUNCHES, median
from swarm.base.text import count

ALPHA_SPENDING: Final = (0.0005, 0.001, 0.002, 0.0035, 0.004, 0.004, 0.005)
"""What each look adds to the probability that an interval misses the true value."""
BY_RANKS: Final = 20
"""Number of launches from which the interval is based on ranks."""

PerRound = Sequence[int]
"""For one model in one launch: nanoseconds of one inference, for each round."""


@dataclass(frozen=True, slots=True)
class LaunchRounds:
    """One launch of two or more models that take turns: `wall_ns[model][round]`, with the same number of rounds for each model. 0: too
    short to measure.
    """

    wall_ns: Sequence[PerRound]
    cpu_ns: Sequence[PerRound] | None = None
    """CPU time of all threads together; None if the system does not report it, or the CPU does not do the work."""


def launches_of(task: Task) -> int:
    """Maximum launches that the task asks for."""
    return _launches(task, LOOKS[-1])


def timed_launches(task: Task) -> int:
    """Maximum launches that may each take all the time that the task gives a launch: more launches run only while a comparison is short."""
    return _launches(task, MIN_COMPARISON_LAUNCHES)


def _launches(task: Task, in_turns: int) -> int:
    alone = task.measure.loads if task.measure.precision is None else MAX_LAUNCHES
    return alone if task.beside is None else max(alone, in_turns)


def compare_rounds(launches: Sequence[LaunchRounds]) -> tuple[Comparison, ...]:
    """Compare each model with the first. CPU time counts only if every launch has it. Raises ValueError if launches have different models,
    or models of one launch different rounds.
    """
    models = {len(times) for each in launches for times in (each.wall_ns, each.cpu_ns) if times is not None}
    if len(models) > 1:
        raise ValueError(
            f"launches of {' and '.join(map(str, sorted(models)))} models are not one comparison"
        )
    pairs = max(models, default=1) - 1
    return tuple(_compare_pair(launches, model, pairs) for model in range(1, pairs + 1))


def enough(launches: Sequence[LaunchRounds]) -> bool:
    """Whether to stop here: at the last look, or at a look that says FASTER, SLOWER or SAME for every pair. False between looks."""
    if len(launches) not in LOOKS:
        return len(launches) > LOOKS[-1]
    if len(launches) == LOOKS[-1]:
        return True
    return all(each.verdict is not ComparisonVerdict.AMBIGUOUS for each in compare_rounds(launches))


def alpha_at(launches: int, estimands: int = 2, pairs: int = 1) -> float:
    """How often one interval over `launches` launches may miss. A comparison cut short between two looks spends the share of the later
    look.
    """
    look = next((at for at, most in enumerate(LOOKS) if launches <= most), len(LOOKS) - 1)
    return ALPHA_SPENDING[look] / estimands / pairs


def alpha_of_all(estimands: int = 2) -> float:
    """How often one interval may miss if it is looked at only once, after all launches: the sum over all looks."""
    return sum(ALPHA_SPENDING) / estimands


def launch_log_ratio(a: PerRound, b: PerRound) -> float | None:
    """log(B / A) of one launch: the Hodges–Lehmann estimate over its rounds. Rounds in which either is 0 are left out; None if all are."""
    logs = [math.log(other / one) for one, other in zip(a, b, strict=True) if one > 0 and other > 0]
    return hodges_lehmann(logs) if logs else None


def estimate(logs: Sequence[float], alpha: float) -> RatioInterval:
    """The ratio and its interval from at least two log ratios, one per launch."""
    ends = signed_rank_interval(logs, alpha) if len(logs) >= BY_RANKS else None
    middle = hodges_lehmann(logs) if ends else fmean(logs)
    low, high = ends or t_interval(logs, alpha)
    return RatioInterval(math.exp(middle), math.exp(low), math.exp(high))


def judge(wall: RatioInterval, cpu: RatioInterval | None) -> tuple[ComparisonVerdict, bool]:
    """The verdict, and whether the two ratios differ significantly and by more than 1 %: their intervals do not overlap."""
    present = [wall] if cpu is None else [wall, cpu]
    contention = False
    if cpu is not None:
        lower, upper = sorted(present, key=lambda each: each.ratio)
        contention = lower.high < upper.low and upper.ratio > lower.ratio * (1 + MARGIN)
    slower = any(each.low > 1 + MARGIN for each in present) and all(each.high >= 1 for each in present)
    faster = any(each.high < 1 - MARGIN for each in present) and all(each.low <= 1 for each in present)
    if slower or faster:
        return ComparisonVerdict.SLOWER if slower else ComparisonVerdict.FASTER, contention
    same = all(_within(each) for each in present)
    return ComparisonVerdict.SAME if same else ComparisonVerdict.AMBIGUOUS, contention


# -- one pair -------------------------------------------------------------------------------------------------------------------------


def compare_logs(wall: Sequence[float], cpu: Sequence[float] | None, pairs: int = 1) -> Comparison:
    """Compare B with A by log(B / A) of each launch; `pairs`: the number of such comparisons in the answer."""
    counts = (len(wall), len(wall))
    if len(wall) < LOOKS[0]:
        ratio = math.exp(hodges_lehmann(wall)) if wall else None
        why = f"{count(len(wall), 'launch', 'launches')}, {LOOKS[0]} are needed"
        return ambiguous(why, ratio, counts)
    alpha = alpha_at(len(wall), 1 if cpu is None else 2, pairs)
    by_wall, by_cpu = estimate(wall, alpha), None if cpu is None else estimate(cpu, alpha)
    return judged(by_wall, by_cpu, counts)


def judged(wall: RatioInterval, cpu: RatioInterval | None, launches: tuple[int, int]) -> Comparison:
    """The verdict of two ratios with their intervals, and why."""
    verdict, contention = judge(wall, cpu)
    return Comparison(
        verdict,
        _why(wall, cpu, contention),
        wall.ratio,
        wall.low,
        wall.high,
        launches=launches,
        cpu=cpu,
        contention=contention,
    )


def _compare_pair(launches: Sequence[LaunchRounds], model: int, pairs: int) -> Comparison:
    wall = _all([launch_log_ratio(each.wall_ns[0], each.wall_ns[model]) for each in launches])
    if wall is None:
        why = "one side took no time that could be measured"
        return ambiguous(why, launches=(len(launches), len(launches)))
    cpu = _all(
        [
            None if not each.cpu_ns else launch_log_ratio(each.cpu_ns[0], each.cpu_ns[model])
            for each in launches
        ]
    )
    result = compare_logs(wall, cpu, pairs)
    return replace(result, medians_ms=(_median_ms(launches, 0), _median_ms(launches, model)))


def _all(logs: Sequence[float | None]) -> list[float] | None:
    """The values; None if one is missing."""
    known = [value for value in logs if value is not None]
    return known if len(known) == len(logs) else None


def _within(each: RatioInterval) -> bool:
    return each.low >= 1 - MARGIN and each.high <= 1 + MARGIN


def _why(wall: RatioInterval, cpu: RatioInterval | None, contention: bool) -> str:
    present = {"wall time": wall} if cpu is None else {"wall time": wall, "CPU time": cpu}
    text = ", ".join(f"{name} {each}" for name, each in present.items())
    if contention and cpu is not None:
        text += f"; contention: B waits {'more' if wall.ratio > cpu.ratio else 'less'} than A, beyond what it computes"
    across = [
        name
        for name, each in present.items()
        if each.low <= 1 + MARGIN and each.high >= 1 - MARGIN and not _within(each)
    ]
    if across:
        text += f"; the ±{MARGIN:.0%} limit lies within the interval of {' and that of '.join(across)}"
    return text


def _median_ms(launches: Sequence[LaunchRounds], model: int) -> float:
    return median([median(each.wall_ns[model]) for each in launches]) / 1e6
