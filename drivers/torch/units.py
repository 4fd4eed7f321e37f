"""The units of the Torch driver and their devices. torch is an argument."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from drivers.contract.base import DriverError, UnitInfo, WrongUnit

CPU: Final = "CPU (Torch)"
GPU: Final = "GPU (Torch)"
UNITS: Final = (CPU, GPU)
"""The units of the processors and of the GPU, in this order, as in every driver that runs torch."""


def backend(torch: Any) -> str:
    """The backend of the GPU unit: `cuda`, `rocm` (which torch also calls cuda), `mps`; empty: none."""
    if torch.cuda.is_available():
        return "rocm" if getattr(torch.version, "hip", None) else "cuda"
    mps = getattr(torch.backends, "mps", None)
    return "mps" if mps is not None and mps.is_available() else ""


def device_for(torch: Any, unit: str, gpu: str = "", units: tuple[str, str] = UNITS) -> str:
    """Torch's device for one of a driver's `units`. `gpu`: UUID or index; empty: the first. Raises `WrongUnit`."""
    if unit == units[0]:
        return "cpu"
    if unit != units[1]:
        raise WrongUnit(f"unknown unit {unit!r}: this driver has {', '.join(units)}")
    name = backend(torch)
    if not name:
        raise WrongUnit(f"asked for {unit}, but this torch ({torch.__version__}) finds no GPU")
    if name == "mps":
        return "mps"
    count = torch.cuda.device_count()
    if not gpu:
        return "cuda:0"
    if gpu.isdecimal() and int(gpu) < count:
        return f"cuda:{int(gpu)}"
    for index in range(count):
        if str(getattr(torch.cuda.get_device_properties(index), "uuid", "")) == gpu.removeprefix("GPU-"):
            return f"cuda:{index}"
    raise WrongUnit(f"asked for the GPU {gpu!r}, but torch finds {count} others")


def working_units(torch: Any, units: tuple[str, str], driver: str, runtime: str) -> Iterator[UnitInfo]:
    """The units on which a tensor has just been computed."""
    for unit in units:
        try:
            device = device_for(torch, unit, units=units)
            doubled = (torch.full((1,), 21.0, device=device) * 2).item()
        except (DriverError, RuntimeError):
            continue
        if doubled == 42:
            yield UnitInfo(unit, driver, runtime, provider(torch, device))


def provider(torch: Any, device: str) -> str:
    """What ran, for the row: the backend and the GPU's name."""
    if device in ("cpu", "mps"):
        return device
    return f"{backend(torch)}: {torch.cuda.get_device_name(device)}"


def verify_device(unit: str, device: str, tensors: dict[str, str]) -> None:
    """Raise `WrongUnit` if a tensor is not on the unit's device. `tensors`: name → device."""
    for name, where in tensors.items():
        if device not in (where, where.partition(":")[0]):  # `mps` has one device, `mps:0`
            raise WrongUnit(f"asked for {unit}, but {name} was on {where}")


def precision_note(torch: Any, device: str) -> str:
    """A note if torch's settings let a GPU compute float32 with reduced precision; empty otherwise."""
    if (
        not device.startswith("cuda")
        or backend(torch) != "cuda"
        or torch.cuda.get_device_capability(device) < (8, 0)
    ):
        return ""
    kinds = {"products": torch.backends.cuda.matmul, "convolutions": torch.backends.cudnn}
    lossy = " and ".join(kind for kind, settings in kinds.items() if settings.allow_tf32)
    return f"float32 {lossy} may use TF32, with 10 bits of mantissa (torch's setting)" if lossy else ""
