"""How a measurement's launches are spread over time: the earliest start of each, and what its task's limits have to cover."""

from __future__ import annotations

from typing import Final

MIN_OVER_S: Final = 1.0
MAX_OVER_S: Final = 4 * 3600.0
MIN_SHARE: Final = 4
"""Fewest runs for each launch: with fewer, a median says little, and all runs are made in the first launch."""
FEWEST_LAUNCHES: Final = 6
"""Launches after which a measurement by precision may stop; these are spread over the requested time."""
MOST_LAUNCHES: Final = 20
"""Most launches of a measurement by precision. Those beyond the fewest follow at the same pace."""


def has_several(runs: int, loads: int) -> bool:
    """Whether `runs` are timed in several of the `loads`, so that there is something to spread."""
    return loads > 1 and runs >= MIN_SHARE * loads


def gap_s(over_s: float | None, launches: int) -> float:
    """Least seconds between the starts of successive launches' timed windows if `launches` are spread over `over_s`."""
    return 0.0 if over_s is None or launches < 2 else over_s / (launches - 1)


def with_gaps(run_s: float, over_s: float | None, *, precise: bool) -> float:
    """The limit of a run that may take `run_s` without the gaps between its launches. `precise`: it measures by precision."""
    if over_s is None:
        return run_s
    return run_s + (gap_s(over_s, FEWEST_LAUNCHES) * (MOST_LAUNCHES - 1) if precise else over_s)
