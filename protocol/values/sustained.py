"""What a sustained run showed other than times, raw: part of a record. The times are in its one `Timing`, a block for each stretch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from protocol.formats.sustain import MAX_PROBES
from protocol.wire.base import Message


class SustainedSample(Message):
    """Columns with a number for each block of the timing, packed like samples; in columns of measurements, 0 means unknown."""

    starts: bytes
    """Nanoseconds since the beginning of the window."""
    part: Literal["processor", "gpu"] = "processor"
    """What temperature and clock refer to."""
    temperature: bytes | None = None
    """Thousandths of a kelvin, at the end of each block. None: its system does not report it."""
    clock: bytes | None = None
    """Kilohertz, at the end of each block."""
    pauses: bytes
    """Nanoseconds from the end of the window to each probe, which checks whether the device is as quick again."""
    probes: Annotated[tuple[bytes, ...], Field(max_length=MAX_PROBES)]
    """For each probe: nanoseconds of one inference, packed like the samples of the timing."""
