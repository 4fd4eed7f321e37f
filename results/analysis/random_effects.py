"""The mean of values that differ by more than their own errors explain, such as one value per sitting. Pure.

The variance between them is DerSimonian and Laird's (1986), the interval Hartung and Knapp's (2001): from Student's t with one degree of
freedom less than there are values, and never narrower than the values' own errors imply.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from results.row.order import ALPHA, t_quantile

LEAST_ERROR: Final = 1e-4
"""Minimum standard error of a log: no clock, and no interval over so few launches, is more precise."""


@dataclass(frozen=True, slots=True)
class RandomEffects:
    """The pooled result of several values."""

    centre: float
    half: float
    """Half of the width of the interval."""
    between: float
    """Share of the values' variance that lies between them, not within them (I²)."""


def random_effects(
    values: Sequence[float], variances: Sequence[float], alpha: float = ALPHA
) -> RandomEffects:
    """Pool at least two values, given the variances of their errors. `alpha`: how often the interval may miss."""
    tau, between = _heterogeneity(values, variances)
    weights = [1 / (variance + tau) for variance in variances]
    centre = _mean(values, weights)
    spread = sum(weight * (value - centre) ** 2 for weight, value in zip(weights, values, strict=True))
    freedom = len(values) - 1
    error = math.sqrt(max(1.0, spread / freedom) / sum(weights))
    return RandomEffects(centre, t_quantile(1 - alpha / 2, freedom) * error, between)


def log_variance(low: float, high: float, launches: int, alpha: float = ALPHA) -> float:
    """Variance of the log of a figure over `launches` launches whose interval misses in `alpha` of cases, by Student's t, which rank
    intervals closely follow.
    """
    half = (math.log(high) - math.log(low)) / 2
    return max(LEAST_ERROR, half / t_quantile(1 - alpha / 2, max(1, launches - 1))) ** 2


def _heterogeneity(values: Sequence[float], variances: Sequence[float]) -> tuple[float, float]:
    """The variance between the values, and I²."""
    weights = [1 / variance for variance in variances]
    total, freedom = sum(weights), len(values) - 1
    centre = _mean(values, weights)
    q = sum(weight * (value - centre) ** 2 for weight, value in zip(weights, values, strict=True))
    scale = total - sum(weight * weight for weight in weights) / total
    return max(0.0, (q - freedom) / scale), max(0.0, 1 - freedom / q) if q else 0.0


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)
