"""The result of comparing two models: a ratio with its interval, one of four verdicts, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MARGIN: Final = 0.01
"""Times that differ by less than this share count as the same."""


class ComparisonVerdict(StrEnum):
    """How B compares with A."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    AMBIGUOUS = "AMBIGUOUS"


_THAN: Final = {"FASTER": "FASTER than", "SLOWER": "SLOWER than", "SAME": "the SAME as"}


def verdict_phrase(verdict: str) -> str:
    """`FASTER than`, to be followed by the name of A."""
    return _THAN.get(verdict, "AMBIGUOUS against")


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """B's time divided by A's, and the ends of its interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Comparison:
    """B compared with A."""

    verdict: ComparisonVerdict
    why: str
    ratio: float | None = None
    """B's time divided by A's; None if either side has no samples or takes no time."""
    low: float | None = None
    """Ends of its 95 % interval; None if either side has fewer than `MIN_LAUNCHES`, too few for a significant difference in ranks."""
    high: float | None = None
    p_value: float | None = None
    """The probability that chance alone puts the ranks this far apart."""
    launches: tuple[int, int] = (0, 0)
    """Launches of each side."""
    medians_ms: tuple[float, float] | None = None
    """Medians of each side's launches, in ms, if no rows hold them."""
    cpu: RatioInterval | None = None
    """The ratio by the CPU time of all threads, if both were measured in turns (`results.row.rounds`); `ratio` is then by wall time."""
    contention: bool = False
    """Whether the wall-time and CPU-time ratios differ significantly: one side waits more than the other, beyond what it computes."""


def ambiguous(why: str, ratio: float | None = None, launches: tuple[int, int] = (0, 0)) -> Comparison:
    """An inconclusive comparison, and why it is inconclusive."""
    return Comparison(ComparisonVerdict.AMBIGUOUS, why, ratio, launches=launches)
