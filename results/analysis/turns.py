"""Two models that took turns, according to rows: in one sitting, and over several together. Pure.

Each sitting's ratio is one value, whose error follows from its interval over launches. Over sittings, these values are pooled on the log by
random effects, as medians are. The pooled answer is one look, so its intervals spend the entire error that the looks of one sitting share:
the intervals of wall and CPU time hold the ratio beyond these sittings together in at least 98 % of comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from results.analysis.random_effects import log_variance, random_effects
from results.row.comparison import Comparison, ComparisonVerdict, RatioInterval
from results.row.rounds import alpha_at, alpha_of_all, judged
from results.row.row import Row, RowStatus
from results.row.stats import median

Measured = tuple[RatioInterval, int, float]
"""The measurement of one sitting: the ratio, its number of launches, and the probability that its interval misses."""


def comparison_in(row: Row) -> Comparison:
    """The comparison stored in a row."""
    launches = row.launches or 0
    return Comparison(
        ComparisonVerdict(row.compare_verdict or ComparisonVerdict.AMBIGUOUS),
        row.compare_reason,
        row.ratio,
        row.ratio_low,
        row.ratio_high,
        launches=(launches, launches),
        cpu=_cpu_ratio(row),
        contention=bool(row.contention),
    )


@dataclass(frozen=True, slots=True)
class PooledTurns:
    """What several sittings together say about a model and the model that took turns with it."""

    comparison: Comparison
    sittings: int


def pooled_turns(rows: Sequence[Row]) -> PooledTurns | None:
    """Pool sittings of one comparison; None if fewer than two have a ratio with its interval."""
    measured = [(row, ratio) for row in rows if (ratio := _wall_ratio(row)) is not None]
    if len(measured) < 2:
        return None
    wall = [(ratio, row.launches or 1, _alpha(row)) for row, ratio in measured]
    cpu = [(ratio, row.launches or 1, _alpha(row)) for row, _ in measured if (ratio := _cpu_ratio(row))]
    kinds = [wall, cpu] if len(cpu) == len(wall) else [wall]
    by_wall, *by_cpu = (_pooled(kind, alpha_of_all(len(kinds))) for kind in kinds)
    launches = sum(row.launches or 0 for row, _ in measured)
    found = judged(by_wall, by_cpu[0] if by_cpu else None, (launches, launches))
    beside, own = (
        [getattr(row, name) for row, _ in measured] for name in ("against_ms_median", "inference_ms_median")
    )
    known = None not in beside and None not in own
    found = replace(
        found,
        why=f"{len(measured)} sittings: {found.why}",
        medians_ms=(median(beside), median(own)) if known else None,
    )
    return PooledTurns(found, len(measured))


def _pooled(measured: Sequence[Measured], alpha: float) -> RatioInterval:
    logs = [math.log(ratio.ratio) for ratio, _, _ in measured]
    variances = [
        log_variance(ratio.low, ratio.high, launches, missed) for ratio, launches, missed in measured
    ]
    found = random_effects(logs, variances, alpha)
    middle, low, high = (math.exp(found.centre + sign * found.half) for sign in (0, -1, 1))
    return RatioInterval(middle, low, high)


def _alpha(row: Row) -> float:
    """How often each interval of the row's ratios may miss."""
    return alpha_at(row.launches or 1, 1 if _cpu_ratio(row) is None else 2)


def _wall_ratio(row: Row) -> RatioInterval | None:
    if row.status is not RowStatus.COMPLETE:
        return None
    return _interval(row.ratio, row.ratio_low, row.ratio_high)


def _cpu_ratio(row: Row) -> RatioInterval | None:
    return _interval(row.cpu_ratio, row.cpu_ratio_low, row.cpu_ratio_high)


def _interval(ratio: float | None, low: float | None, high: float | None) -> RatioInterval | None:
    return RatioInterval(ratio, low, high) if ratio and low and high else None
