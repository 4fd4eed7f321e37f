"""A double of pynvml that a real sampler process loads by path: a device that draws 50 W, and 250 W once it has idled."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_CLOCK_SM = 1
NVML_TEMPERATURE_GPU = 0
_BEGAN = time.perf_counter_ns()
_asked = {"power": 0}


class NVMLError(Exception):
    """Named as in pynvml."""


class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801
    """Named as in pynvml."""


def nvmlInit() -> None:  # noqa: N802
    if not _here():
        raise NVMLError_LibraryNotFound("NVML Shared Library Not Found")


def _here() -> bool:
    return not Path(__file__).with_name("no_gpu").exists()


def nvmlDeviceGetCount() -> int:  # noqa: N802
    return 2


def nvmlDeviceGetHandleByIndex(index: int) -> str:  # noqa: N802
    if index > 1:
        raise NVMLError("Invalid Argument")
    return f"gpu {index}"


def nvmlDeviceGetHandleByUUID(uuid: str) -> str:  # noqa: N802
    return uuid


def nvmlDeviceGetName(handle: str) -> bytes:  # noqa: N802
    return f"Double {handle}, nice {os.nice(0)}".encode()


def nvmlDeviceGetUtilizationRates(handle: str) -> Any:  # noqa: N802
    return SimpleNamespace(gpu=75, memory=10)


def nvmlDeviceGetMemoryInfo(handle: str) -> Any:  # noqa: N802
    return SimpleNamespace(total=8 << 30, used=2 << 30)


def nvmlDeviceGetComputeRunningProcesses(handle: str) -> list[Any]:  # noqa: N802
    return [SimpleNamespace(pid=4711, usedGpuMemory=1 << 30), SimpleNamespace(pid=1, usedGpuMemory=None)]


def nvmlDeviceGetPowerUsage(handle: str) -> int:  # noqa: N802
    _asked["power"] += 1
    return 50_000 if _asked["power"] <= 5 else 250_000


def nvmlDeviceGetTotalEnergyConsumption(handle: str) -> int:  # noqa: N802
    return round((time.perf_counter_ns() - _BEGAN) * 250 / 1e6)


def nvmlDeviceGetClockInfo(handle: str, kind: int) -> int:  # noqa: N802
    raise NVMLError("Not Supported")


def nvmlDeviceGetTemperature(handle: str, kind: int) -> int:  # noqa: N802
    return 61


def nvmlDeviceGetCurrentClocksThrottleReasons(handle: str) -> int:  # noqa: N802
    return 0x4 | 0x20 | 0x1
