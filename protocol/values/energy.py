"""What energy meters read while inferences were timed: part of a record."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.wire.base import Count, Detail, Line, Message

MAX_METERS: Final = 16
MeteredPart = Literal["gpu", "package", "dram", "wall"]
"""What a meter measures: a GPU's board, a processor's package, its memory, or everything the device draws from its plug."""
Quantity = Annotated[float, Field(ge=0, le=1e18)]


class MeterSample(Message):
    """One meter over the timed windows of all launches."""

    source: Line
    """What read it: nvml, rapl, amdgpu, powermetrics or csv."""
    part: MeteredPart
    device: Line = ""
    """The source's name for it, such as `package-0`."""
    samples: Count = 0
    """Number of readings in the windows."""
    energy_j: Quantity | None = None
    """Energy over the windows. None: the meter does not cover them; a note says why."""
    idle_w: Quantity | None = None
    """Power just before the first load."""
    stretches: bytes | None = None
    """For a sustained run: packed microjoules of each block, plus one; 0: unknown."""
    notes: Annotated[tuple[Detail, ...], Field(max_length=8)] = ()
