"""How often the intervals of a device's rows hold, as commands, programs and pages show it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from results.analysis.sittings import HeldIntervals
from results.row.form import JsonModel

NONE_HELD: Final[Mapping[str, HeldIntervals]] = {}


class DeviceCoverage(JsonModel):
    """How well the intervals of a device's rows hold on it, by its own sittings."""

    share: float
    """Of its sittings, those whose 95 % interval holds the median that the others have together."""
    held: int
    """The same as a number."""
    sittings: int
    """At least 5."""

    @property
    def words(self) -> str:
        """`47 of 50 intervals hold the median of its other sittings (94 %)`"""
        return (
            f"{self.held} of {self.sittings} intervals hold the median of its other sittings "
            f"({100 * self.share:.0f} %)"
        )


def coverage_of(device: str, held: Mapping[str, HeldIntervals]) -> DeviceCoverage | None:
    """Of one device (`device_identity`); None: too few sittings."""
    own = held.get(device, HeldIntervals())
    return (
        None if own.share is None else DeviceCoverage(share=own.share, held=own.held, sittings=own.sittings)
    )
