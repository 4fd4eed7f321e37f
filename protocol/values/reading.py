"""What a device's sensors show at one moment while it runs a task, for the whole device. Values without a sensor are absent, never zero."""

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
    """Temperature of the processor."""
    POWER = "power"
    """Power of the processor's package."""
    GPU = "gpu"
    """Utilisation of the GPU."""
    VRAM = "vram"
    GPU_TEMPERATURE = "gpu-temperature"
    GPU_POWER = "gpu-power"


SensorWord = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z-]{0,31}$")]
"""A `Sensor`, or a word that only newer versions know."""
Share = Annotated[float, Field(ge=0, le=1)]
Celsius = Annotated[float, Field(ge=-100, le=200)]
Watts = Annotated[float, Field(ge=0, le=100_000)]


class GpuReading(Message):
    """One GPU, whatever uses it."""

    utilisation: Share | None = None
    memory: Count | None = None
    """Bytes in use."""
    temperature_c: Celsius | None = None
    power_w: Watts | None = None


class SensorValues(Message):
    """Values for the whole device with everything that runs on it, not for the task alone."""

    cpu: Share | None = None
    """Busy share of all processors' time since the previous reading."""
    memory: Count | None = None
    """Bytes in use."""
    temperature_c: Celsius | None = None
    """Temperature of the processor, at its hottest point."""
    power_w: Watts | None = None
    """Power of the processor's packages, the mean since the previous reading."""
    gpus: Annotated[tuple[GpuReading, ...], Field(max_length=MAX_GPUS)] = ()


class DeviceReading(SensorValues):
    """A reading as sent, with its age at that time."""

    age_s: Seconds = 0.0
