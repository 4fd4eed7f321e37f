"""What a device's sensors show at one moment while it runs a task, of the whole device. What no sensor tells is absent, never zero."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from protocol.wire.base import Count, Message, Seconds

MAX_GPUS: Final = 8


class Sensor(StrEnum):
    """What a device may be able to show."""

    CPU = "cpu"
    """Share of all processors' time."""
    MEMORY = "memory"
    TEMPERATURE = "temperature"
    """Of the processor."""
    POWER = "power"
    """Of the processor's package."""
    GPU = "gpu"
    """Utilisation."""
    VRAM = "vram"
    GPU_TEMPERATURE = "gpu-temperature"
    GPU_POWER = "gpu-power"


SensorWord = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z-]{0,31}$")]
"""A `Sensor`, or one that only newer versions know."""
Share = Annotated[float, Field(ge=0, le=1)]
Celsius = Annotated[float, Field(ge=-100, le=200)]
Watts = Annotated[float, Field(ge=0, le=100_000)]


class GpuReading(Message):
    """Sensor values of one GPU, whatever uses it."""

    utilisation: Share | None = None
    memory: Count | None = None
    """Bytes in use."""
    temperature_c: Celsius | None = None
    power_w: Watts | None = None


class SensorValues(Message):
    """Sensor values of the whole device with everything that runs on it, not of the task alone."""

    cpu: Share | None = None
    """Busy share of all processors' time since the reading before."""
    memory: Count | None = None
    """Bytes in use."""
    temperature_c: Celsius | None = None
    """Of the processor, where it is hottest."""
    power_w: Watts | None = None
    """Of the processor's packages, the mean since the reading before."""
    gpus: Annotated[tuple[GpuReading, ...], Field(max_length=MAX_GPUS)] = ()


class DeviceReading(SensorValues):
    """The device's sensor values, with their age when they were sent."""

    age_s: Seconds = 0.0
