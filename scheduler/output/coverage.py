"""How often the intervals of a device's rows hold, as commands, programs and pages show it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from results.analysis.sittings import IntervalCoverage
from results.row.form import JsonModel

NO_COVERAGE: Final[Mapping[str, IntervalCoverage]] = {}


class DeviceCoverage(JsonModel):
    """How often the intervals of a device's rows hold, judged by its own sittings."""

    share: float
    """Share of the device's sittings whose 95 % interval contains the pooled median of the other sittings."""
    held: int
    """Number of these sittings."""
    sittings: int
    """Number of sittings, at least 5."""
    margin_percent: float | None
    """Percentage by which both ends of an interval must move out so that 95 % of intervals hold. Null below 19 sittings, which are too few
    to tell."""

    @property
    def words(self) -> str:
        """`40 of 50 intervals hold the median of its other sittings (80 %); extended by 3.1 % at both ends, 95 % do`"""
        longer = (
            f"; extended by {self.margin_percent:.2g} % at both ends, 95 % do" if self.margin_percent else ""
        )
        return (
            f"{self.held} of {self.sittings} intervals hold the median of its other sittings "
            f"({100 * self.share:.0f} %){longer}"
        )

    def widened(self, low: float, high: float) -> tuple[float, float] | None:
        """The interval that holds on this device in 95 %; None: it is not known."""
        if self.margin_percent is None:
            return None
        factor = 1 + self.margin_percent / 100
        return low / factor, high * factor


def coverage_of(device: str, held: Mapping[str, IntervalCoverage]) -> DeviceCoverage | None:
    """Coverage of one device (`device_identity`); None: too few sittings."""
    own = held.get(device, IntervalCoverage())
    if own.share is None:
        return None
    percent = None if own.margin is None else 100 * math.expm1(own.margin)
    return DeviceCoverage(share=own.share, held=own.held, sittings=own.sittings, margin_percent=percent)
