"""What a sustained run showed besides its times, raw: part of a record. The times stand in its one `Timing`, a block for each stretch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from protocol.formats.sustain import MAX_PROBES
from protocol.wire.base import Message


class SustainedSample(Message):
    """Columns with a number for each block of the timing, packed like samples; in a column of measurements 0 is: not known."""

    starts: bytes
    """Nanoseconds from the beginning of the window."""
    part: Literal["processor", "gpu"] = "processor"
    """What temperature and clock are of."""
    temperature: bytes | None = None
    """Thousandths of a kelvin, at the end of the block. None: its system does not tell."""
    clock: bytes | None = None
    """Kilohertz, at the end of the block."""
    pauses: bytes
    """Nanoseconds from the end of the window to each probe of whether it is as quick again."""
    probes: Annotated[tuple[bytes, ...], Field(max_length=MAX_PROBES)]
    """Of each probe: nanoseconds of one inference, as the samples of the timing are."""
