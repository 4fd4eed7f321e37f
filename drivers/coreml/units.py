"""The units of the CoreML driver, the setting requested of CoreML for each, and where its plan says that operators run. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from drivers.contract.base import WrongUnit

CPU: Final = "CPU (CoreML)"
GPU: Final = "GPU (CoreML)"
NEURAL: Final = "Neural Engine (CoreML)"


@dataclass(frozen=True, slots=True)
class KnownUnit:
    """A unit: the name in `coremltools.ComputeUnit`, and the prefix of its device's class name in a compute plan."""

    unit: str
    compute_unit: str
    device: str


UNITS: Final = (
    KnownUnit(CPU, "CPU_ONLY", "MLCPU"),
    KnownUnit(GPU, "CPU_AND_GPU", "MLGPU"),
    KnownUnit(NEURAL, "CPU_AND_NE", "MLNeuralEngine"),
)
"""The units. GPU and Neural Engine are `CPU_AND_…`, as in the predecessor: CoreML always adds a CPU for operators that they cannot run."""


def by_name(unit: str) -> KnownUnit:
    """The unit by its public name. Raises `WrongUnit`."""
    result = next((one for one in UNITS if one.unit == unit), None)
    if result is None:
        raise WrongUnit(f"unknown unit {unit!r}: this driver has {', '.join(one.unit for one in UNITS)}")
    return result


def compute_unit(ct: Any, unit: str) -> Any:
    """The value for `MLModel(…, compute_units=…)`."""
    return getattr(ct.ComputeUnit, by_name(unit).compute_unit)


def require_macos(platform: str, unit: str) -> None:
    """Raises `WrongUnit` on other systems than macOS."""
    by_name(unit)
    if platform != "darwin":
        raise WrongUnit(
            f"{unit}: CoreML runs only on macOS, and this is {platform}; export the model to ONNX for this device"
        )


def present(devices: Iterable[Any]) -> tuple[KnownUnit, ...]:
    """The units whose devices are among those that the system lists."""
    kinds = [type(device).__name__ for device in devices]
    return tuple(one for one in UNITS if any(kind.startswith(one.device) for kind in kinds))


def count_places(usages: Iterable[Any]) -> Counter[str]:
    """Number of operators by public unit. `usages`: the plan's entry for each operator; None for operators that do nothing."""
    counts: Counter[str] = Counter()
    for usage in usages:
        device = getattr(usage, "preferred_compute_device", None)
        kind = type(device).__name__
        where = next((one.unit for one in UNITS if kind.startswith(one.device)), None)
        if device is not None and where is not None:
            counts[where] += 1
    return counts


def verdict(unit: str, counts: Counter[str]) -> str:
    """The row's note on where the model ran. Raises `WrongUnit` if no operator was on the unit."""
    total = sum(counts.values())
    if not total:
        return f"CoreML does not report where operators run; {by_name(unit).compute_unit} was asked for"
    if not counts[unit]:
        elsewhere = ", ".join(f"{count} on {where}" for where, count in counts.most_common())
        raise WrongUnit(f"asked for {unit}, but in CoreML's plan no operator runs there: {elsewhere}")
    return f"in CoreML's plan {counts[unit]} of {total} operators run on {unit}"
