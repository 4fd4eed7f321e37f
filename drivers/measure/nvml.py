"""NVIDIA's GPUs from NVML, restricted to those that `CUDA_VISIBLE_DEVICES` shows: NVML itself lists all. The library is an argument.

A GPU that is divided (MIG) is not visible to CUDA as a whole: a process sees one of its instances, the first unless the variable names
another.
https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
https://docs.nvidia.com/datacenter/tesla/mig-user-guide
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

VARIABLE: Final = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """A GPU, or an instance of a divided one."""

    index: int
    """Index of the whole GPU, by its place on the bus."""
    uuid: str
    handle: Any
    whole: Any = None
    """Handle of the GPU that this instance belongs to; None: it is not an instance."""


@contextmanager
def initialised(nvml: Any) -> Iterator[None]:
    """Initialise NVML, and shut it down afterwards. Raises NVML's errors."""
    nvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def query(nvml: Any, function: str, *arguments: Any) -> Any:
    """The result of an NVML function; None if this library, driver or GPU does not support it."""
    call = getattr(nvml, function, None)
    if call is None:
        return None
    try:
        return call(*arguments)
    except nvml.NVMLError:
        return None


def decoded(value: str | bytes) -> str:
    """The value as a string: older bindings of NVML return bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def devices(nvml: Any) -> tuple[NvmlDevice, ...]:
    """All devices of this host. Raises NVML's errors."""
    return tuple(one for index in range(nvml.nvmlDeviceGetCount()) for one in _parts(nvml, index))


def _parts(nvml: Any, index: int) -> Iterator[NvmlDevice]:
    whole = nvml.nvmlDeviceGetHandleByIndex(index)
    mode = query(nvml, "nvmlDeviceGetMigMode", whole)
    if not mode or not mode[0]:
        yield NvmlDevice(index, _uuid(nvml, whole), whole)
        return
    for place in range(query(nvml, "nvmlDeviceGetMaxMigDeviceCount", whole) or 0):
        part = query(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", whole, place)
        if part is not None:
            yield NvmlDevice(index, _uuid(nvml, part), part, whole)


def _uuid(nvml: Any, handle: Any) -> str:
    return decoded(query(nvml, "nvmlDeviceGetUUID", handle) or "")


def visible(all_devices: Sequence[NvmlDevice], environ: Mapping[str, str]) -> tuple[NvmlDevice, ...]:
    """The devices that CUDA shows to a process with these variables, in CUDA's order."""
    wanted = environ.get(VARIABLE)
    shown = list(all_devices)
    if wanted is not None:
        shown = []
        for entry in wanted.split(","):
            found = _named(all_devices, entry.strip())
            if found is None or found in shown:
                break  # CUDA, too, stops at the first name that it does not know
            shown.append(found)
    instance = next((one for one in shown if one.whole is not None), None)
    return tuple(shown) if instance is None else (instance,)


def _named(all_devices: Sequence[NvmlDevice], name: str) -> NvmlDevice | None:
    """The device with the whole GPU's index, or the beginning of its UUID, as `name`."""
    if name.isdecimal():
        return next((one for one in all_devices if one.index == int(name)), None)
    found = [one for one in all_devices if name and one.uuid.startswith(name)]
    return found[0] if len(found) == 1 else None
