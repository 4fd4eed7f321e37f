"""What a device's sensors show, in words for a terminal."""

from __future__ import annotations

from typing import Final

from protocol.values.reading import SensorValues
from protocol.values.requirement import show_size

LATE_S: Final = 10.0
"""An older reading is shown with its age."""
LACKS: Final = "—"
"""Shown where the device has no sensor."""


def show_share(share: float | None) -> str:
    """`62 %`"""
    return LACKS if share is None else f"{100 * share:.0f} %"


def show_memory(size: int | None) -> str:
    """`3.1 GiB`"""
    return LACKS if size is None else show_size(size)


def show_heat(celsius: float | None) -> str:
    """`71 °C`"""
    return LACKS if celsius is None else f"{celsius:.0f} °C"


def show_power(watts: float | None) -> str:
    """`4.2 W`, `300 W`"""
    return LACKS if watts is None else f"{watts:.{1 if watts < 9.95 else 0}f} W"


def reading_words(values: SensorValues, age_s: float) -> str:
    """`cpu 62 %, memory 3.1 GiB, temperature 71 °C, power —`, the same for each GPU after a semicolon, and the age of an old reading."""
    own = ("cpu", values.cpu, values.memory, values.temperature_c, values.power_w)
    gpus = [("gpu", one.utilisation, one.memory, one.temperature_c, one.power_w) for one in values.gpus]
    parts = [
        f"{what} {show_share(share)}, memory {show_memory(memory)}, temperature {show_heat(heat)}, power {show_power(power)}"
        for what, share, memory, heat, power in (own, *gpus)
    ]
    late = f" ({age_s:.0f} s ago)" if age_s > LATE_S else ""
    return "; ".join(parts) + late
