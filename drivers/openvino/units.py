"""The units of the OpenVINO driver, their devices and the settings requested of them. Pure: OpenVINO's core is an argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from drivers.contract.base import WrongUnit

CPU: Final = "CPU (OpenVINO)"
KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {CPU: "CPU", "GPU (OpenVINO)": "GPU", "NPU (OpenVINO)": "NPU"}
)
"""Unit → prefix of its devices' names."""
HALF: Final = ("bf16", "f16")
"""Types less precise than float32 in which OpenVINO may choose to compute."""
PLAIN: Final[Mapping[str, object]] = MappingProxyType(
    {
        "EXECUTION_MODE_HINT": "ACCURACY",
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }
)
"""Settings of the reference: full float32 precision …"""
BARE: Final[Mapping[str, object]] = MappingProxyType(
    {"SNIPPETS_MODE": "DISABLE", "LP_TRANSFORMS_MODE": False}
)
"""… and, where the CPU's plug-in still accepts these, no generated kernels and no integer arithmetic."""


def kind_of(unit: str) -> str:
    """Kind of device: `CPU`, `GPU` or `NPU`. Raises `WrongUnit`."""
    if unit not in KINDS:
        raise WrongUnit(f"unknown unit {unit!r}: this driver has {', '.join(KINDS)}")
    return KINDS[unit]


def devices_of(kind: str, available: Sequence[str]) -> list[str]:
    """The devices of a kind, as OpenVINO lists them: `GPU`, or `GPU.0` and `GPU.1`."""
    return [name for name in available if name.partition(".")[0] == kind]


def device_for(core: Any, unit: str, gpu: str = "") -> str:
    """OpenVINO's device for a unit. `gpu`: UUID or index; empty: the first. Raises `WrongUnit`."""
    kind = kind_of(unit)
    if kind == "CPU":  # without listing the others, whose plug-ins start slowly
        return kind
    found = devices_of(kind, core.available_devices)
    if not found:
        raise WrongUnit(f"asked for {unit}, but OpenVINO finds no {kind} here")
    if kind != "GPU" or not gpu:
        return found[0]
    if gpu.isdecimal() and int(gpu) < len(found):
        return found[int(gpu)]
    wanted = _plain(gpu.removeprefix("GPU-"))
    for name in found:
        if _plain(str(core.get_property(name, "DEVICE_UUID"))) == wanted:
            return name
    raise WrongUnit(f"asked for the GPU {gpu!r}, but OpenVINO finds {len(found)} others")


def _plain(uuid: str) -> str:
    return uuid.replace("-", "").lower()


def settings(device: str, threads: int, compute_type: str = "") -> dict[str, object]:
    """Settings for one inference at a time, as fast as possible; nothing is cached. `compute_type`: empty: OpenVINO chooses."""
    asked: dict[str, object] = {"PERFORMANCE_HINT": "LATENCY"}
    if compute_type:
        asked["INFERENCE_PRECISION_HINT"] = compute_type
    if device != "NPU":
        asked["NUM_STREAMS"] = 1
    if device == "CPU":
        asked["INFERENCE_NUM_THREADS"] = threads
    return asked


def verify_devices(unit: str, device: str, ran_on: Sequence[str]) -> None:
    """Raise `WrongUnit` if the compiled model is on a device other than the unit's."""
    for where in ran_on:
        if device not in (where, where.partition(".")[0]):
            raise WrongUnit(f"asked for {unit}, but the compiled model is on {where}")


def precision_note(precision: str) -> str:
    """The type of floats in which the device computes, for the row. `precision`: as read back."""
    if precision in HALF:
        return f"OpenVINO computes in {precision} where it can on this device, whatever the model's type"
    return (
        f"OpenVINO computes in {precision}"
        if precision != "dynamic"
        else "OpenVINO computes in the model's own types"
    )
