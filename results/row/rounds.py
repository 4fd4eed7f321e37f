"""Is B faster than A, measured in turns within one process? Pure and exact: the same times give the same answer anywhere.

    launch: its rounds, in each of which all models ran ──▶ log(B / A) of each round ──▶ Hodges–Lehmann: one figure per launch
    launches' figures ──▶ an interval over launches alone, once for wall time, once for CPU time ──▶ one verdict for both

Wall time is what a user waits for, CPU time what the code costs on all threads. SLOWER (FASTER) needs the interval of one of the two wholly
beyond +1 % (-1 %), and the other's not wholly on the other side of 1. SAME: each present lies within ±1 %. Else AMBIGUOUS.

The answer may be looked at after 6, 10, 20, 40, 80, 130 and 200 launches (`LOOKS`), and measuring ends at the first look that tells; the
last three are made only while there is time. `SPENT` divides an error of 2 % among those looks, and `alpha_at` each share among the two
kinds of time and the pairs: the intervals of all looks hold the truth together in at least 98 % of comparisons, and a model beside itself
is called FASTER or SLOWER in at most 1 % (on the loudest host that was measured in 0.4 %). Below 20 launches the interval is Student's,
about the mean of logarithms; from 20 on it is the signed-rank test's, about their Hodges–Lehmann estimate: it needs no distribution, only
that noise hits A and B alike, which a random order in each round makes so. `benchmarks/measuring/rounds.py` compares it with others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from protocol.formats.turns import LOOKS, UNHURRIED
from protocol.values.task import Task
from results.row.comparison import MARGIN, Comparison, ComparisonVerdict, RatioInterval, ambiguous
from results.row.order import hodges_lehmann, signed_rank_interval, t_interval
from results.row.stats import MAX_LAUNCHES, median
from swarm.base.text import count

SPENT: Final = (0.0005, 0.001, 0.002, 0.0035, 0.004, 0.004, 0.005)
"""What each of these looks adds to the probability that an interval misses the truth."""
BY_RANKS: Final = 20
"""Launches from which the interval is one of ranks."""

PerRound = Sequence[int]
"""Of one model in one launch: nanoseconds of one inference, for each round."""


@dataclass(frozen=True, slots=True)
class LaunchRounds:
    """One launch of two or more models that take turns: `wall_ns[model][round]`, as many rounds of each. 0: it could not be measured."""

    wall_ns: Sequence[PerRound]
    cpu_ns: Sequence[PerRound] | None = None
    """Of all threads together; None where the system does not tell, or the work is not the CPU's."""


def launches_of(task: Task) -> int:
    """Most launches that the task asks for."""
    return _launches(task, LOOKS[-1])


def timed_launches(task: Task) -> int:
    """Most launches that may each take all the time that the task gives a launch: more are made only while a comparison is short."""
    return _launches(task, UNHURRIED)


def _launches(task: Task, in_turns: int) -> int:
    alone = task.measure.loads if task.measure.precision is None else MAX_LAUNCHES
    return alone if task.beside is None else max(alone, in_turns)


def compare_rounds(launches: Sequence[LaunchRounds]) -> tuple[Comparison, ...]:
    """Each model but the first compared with the first. CPU time counts where every launch has it. Raises ValueError where launches have
    not the same models, or models of one launch not the same rounds.
    """
    models = {len(times) for each in launches for times in (each.wall_ns, each.cpu_ns) if times is not None}
    if len(models) > 1:
        raise ValueError(
            f"launches of {' and '.join(map(str, sorted(models)))} models are not one comparison"
        )
    pairs = max(models, default=1) - 1
    return tuple(_compare_pair(launches, model, pairs) for model in range(1, pairs + 1))


def enough(launches: Sequence[LaunchRounds]) -> bool:
    """Whether to end here: at the last look, or at one that tells FASTER, SLOWER or SAME for every pair. Between looks False."""
    if len(launches) not in LOOKS:
        return len(launches) > LOOKS[-1]
    if len(launches) == LOOKS[-1]:
        return True
    return all(each.verdict is not ComparisonVerdict.AMBIGUOUS for each in compare_rounds(launches))


def alpha_at(launches: int, estimands: int = 2, pairs: int = 1) -> float:
    """How often one interval over so many launches may miss. One cut short between two looks spends what the later has."""
    look = next((at for at, most in enumerate(LOOKS) if launches <= most), len(LOOKS) - 1)
    return SPENT[look] / estimands / pairs


def alpha_of_all(estimands: int = 2) -> float:
    """How often one interval may miss that is looked at once, after all launches: what the looks have together."""
    return sum(SPENT) / estimands


def launch_log_ratio(a: PerRound, b: PerRound) -> float | None:
    """log(B / A) of one launch: the Hodges–Lehmann estimate of its rounds'. Rounds in which either has 0 are left out; None if all are."""
    logs = [math.log(other / one) for one, other in zip(a, b, strict=True) if one > 0 and other > 0]
    return hodges_lehmann(logs) if logs else None


def estimate(logs: Sequence[float], alpha: float) -> RatioInterval:
    """The ratio and its interval from one log ratio per launch, at least two."""
    ends = signed_rank_interval(logs, alpha) if len(logs) >= BY_RANKS else None
    middle = hodges_lehmann(logs) if ends else fmean(logs)
    low, high = ends or t_interval(logs, alpha)
    return RatioInterval(math.exp(middle), math.exp(low), math.exp(high))


def judge(wall: RatioInterval, cpu: RatioInterval | None) -> tuple[ComparisonVerdict, bool]:
    """The verdict, and whether the two differ surely and by more than ±1 %: their intervals have nothing in common."""
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
    """B compared with A by log(B / A) of each launch; `pairs`: how many such comparisons the answer consists of."""
    counts = (len(wall), len(wall))
    if len(wall) < LOOKS[0]:
        ratio = math.exp(hodges_lehmann(wall)) if wall else None
        why = f"{count(len(wall), 'launch', 'launches')}, {LOOKS[0]} are needed"
        return ambiguous(why, ratio, counts)
    alpha = alpha_at(len(wall), 1 if cpu is None else 2, pairs)
    by_wall, by_cpu = estimate(wall, alpha), None if cpu is None else estimate(cpu, alpha)
    return judged(by_wall, by_cpu, counts)


def judged(wall: RatioInterval, cpu: RatioInterval | None, launches: tuple[int, int]) -> Comparison:
    """What two ratios with their intervals come to, and why."""
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
    """None where one is missing."""
    known = [value for value in logs if value is not None]
    return known if len(known) == len(logs) else None


def _within(each: RatioInterval) -> bool:
    return each.low >= 1 - MARGIN and each.high <= 1 + MARGIN


def _why(wall: RatioInterval, cpu: RatioInterval | None, contention: bool) -> str:
    present = {"wall time": wall} if cpu is None else {"wall time": wall, "CPU time": cpu}
    text = ", ".join(f"{name} {each}" for name, each in present.items())
    if contention and cpu is not None:
        text += f"; contention: B waits {'more' if wall.ratio > cpu.ratio else 'less'} than A, beside what it computes"
    across = [
        name
        for name, each in present.items()
        if each.low <= 1 + MARGIN and each.high >= 1 - MARGIN and not _within(each)
    ]
    if across:
        text += f"; the interval of {' and that of '.join(across)} reaches across ±{MARGIN:.0%}"
    return text


def _median_ms(launches: Sequence[LaunchRounds], model: int) -> float:
    return median([median(each.wall_ns[model]) for each in launches]) / 1e6
