"""What a comparison of two models says: a ratio with its interval, one of four verdicts, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MARGIN: Final = 0.01
"""Times that are closer than this share are the same to whoever reads them."""


class ComparisonVerdict(StrEnum):
    """What B is, compared with A."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    AMBIGUOUS = "AMBIGUOUS"


_THAN: Final = {"FASTER": "FASTER than", "SLOWER": "SLOWER than", "SAME": "the SAME as"}


def than(verdict: str) -> str:
    """`FASTER than`, for before the name of A."""
    return _THAN.get(verdict, "AMBIGUOUS beside")


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """B's time by A's, and the ends of its interval."""

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
    """B's time by A's; None where one of them has no samples or takes no time."""
    low: float | None = None
    """Ends of its 95 % interval; None below `MIN_LAUNCHES` of either side: fewer ranks never differ surely enough."""
    high: float | None = None
    p_value: float | None = None
    """How often chance alone puts the ranks this far apart."""
    launches: tuple[int, int] = (0, 0)
    """That each side has."""
    medians_ms: tuple[float, float] | None = None
    """Of either side's launches, in ms, where no rows have them."""
    cpu: RatioInterval | None = None
    """By the CPU time of all threads, where both were measured in turns (`results.row.rounds`); `ratio` is then by wall time."""
    contention: bool = False
    """Wall and CPU time give ratios that differ surely: one side waits more than the other, beside what it computes."""


def ambiguous(why: str, ratio: float | None = None, launches: tuple[int, int] = (0, 0)) -> Comparison:
    """A comparison of which nothing can be said, and why."""
    return Comparison(ComparisonVerdict.AMBIGUOUS, why, ratio, launches=launches)
