"""The units of the MLX driver and their devices. MLX is an argument."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from drivers.contract.base import DriverError, UnitInfo, WrongUnit
from drivers.contract.registry import BROKEN_DRIVER_ERRORS

CPU: Final = "CPU (MLX)"
GPU: Final = "GPU (MLX)"
UNITS: Final = (CPU, GPU)


def device_for(mx: Any, unit: str) -> Any:
    """MLX's device for a unit. Raises `WrongUnit`."""
    if unit not in UNITS:
        raise WrongUnit(f"unknown unit {unit!r}: this driver has {', '.join(UNITS)}")
    kind = mx.cpu if unit == CPU else mx.gpu
    if not mx.is_available(kind):
        raise WrongUnit(f"asked for {unit}, but this MLX finds no GPU")
    return mx.Device(kind, 0)


def working_units(mx: Any, driver: str, title: str) -> Iterator[UnitInfo]:
    """The units that have just doubled 21."""
    for unit in UNITS:
        try:
            device = device_for(mx, unit)
            doubled = mx.add(mx.array(21.0), mx.array(21.0), stream=device).item()
        except (DriverError, *BROKEN_DRIVER_ERRORS):
            continue
        if doubled == 42:
            yield UnitInfo(unit, driver, title, provider(mx, device))


def provider(mx: Any, device: Any) -> str:
    """What runs there, for the row: `cpu`, `metal: Apple M3 Max`, `cuda: NVIDIA H200`."""
    if device.type == mx.cpu:
        return "cpu"
    backend = "metal" if mx.metal.is_available() else "cuda"
    name = mx.device_info(device).get("device_name", "")
    return f"{backend}: {name}" if name else backend


def verify_device(mx: Any, unit: str, device: Any) -> None:
    """Raise `WrongUnit` unless this is MLX's default device."""
    live = mx.default_device()
    if live != device:
        raise WrongUnit(f"asked for {unit}, but MLX computes on {live}")
