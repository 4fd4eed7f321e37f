"""The calibration of a device: warm-up floors, timer, idle host, micro-benchmarks, stored in its home.

    Calibration(fingerprint, floors={"CPU (ONNX)": 7}, timer_ns=38, host=…, micro=(…))

It is valid while the hardware's fingerprint stays the same. `node.device.calibrate` makes one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swarm.base.durable import write_durably

FILE: Final = "calibration.json"
MAX_FILE: Final = 1024 * 1024
FLOOR_UNKNOWN: Final = 5
LEAST_FLOOR: Final = 2
MOST_FLOOR: Final = 50
"""The floor applies to large models too, where each inference takes long."""
SETTLED: Final = 0.05
"""An inference is warm once those around it are this close to the median of the last half."""
AROUND: Final = 5
HEADLINES: Final = ("fp32_gflops_max", "memory_gb_s", "fp16_gflops_max", "bf16_gflops_max")


class MicroFigures(BaseModel):
    """The micro-benchmarks of one processor or GPU."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str
    backend: str
    threads: int
    figures: dict[str, float]
    seconds: float
    clock_mhz: float | None = None
    """Mean during the benchmark."""
    temperature_c: float | None = None
    power_w: float | None = None
    throttled: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class HostFigures(BaseModel):
    """The host while this node was idle. None: unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    others_share: float | None = None
    steal_share: float | None = None
    stall_share: float | None = None
    clock_mhz: float | None = None
    temperature_c: float | None = None
    on_battery: bool | None = None


class Calibration(BaseModel):
    """One calibration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    v: Literal[1] = 1
    fingerprint: str = Field(pattern="^[0-9a-f]{64}$")
    at: float
    """Seconds since the epoch."""
    full: bool = False
    """With whole curves; the quick calibration has shorter ones."""
    timer_ns: int
    """Cost of reading the clock."""
    host: HostFigures = HostFigures()
    floors: dict[str, int] = {}
    """Unit → fewest warm-up inferences, where learned."""
    micro: tuple[MicroFigures, ...] = ()
    notes: tuple[str, ...] = ()

    def floor(self, unit: str) -> int:
        """Fewest warm-up inferences of a unit; `FLOOR_UNKNOWN` if not learned."""
        return self.floors.get(unit, FLOOR_UNKNOWN)


def warm_after(samples: Sequence[int], each: int = 1) -> int:
    """Inferences before times settle at the level of the last half; `samples` in ns, `each`: inferences per sample.

    Compares medians of `AROUND` samples, so single slow ones do not count.
    """
    if len(samples) < 4 * AROUND:
        return FLOOR_UNKNOWN
    steady = median(samples[len(samples) // 2 :])
    for first in range(len(samples) // 2):
        if samples[first] <= steady * (1 + 2 * SETTLED) and median(
            samples[first : first + AROUND]
        ) <= steady * (1 + SETTLED):
            return min(MOST_FLOOR, max(LEAST_FLOOR, first * each))
    return min(MOST_FLOOR, len(samples) // 2 * each)


@dataclass(frozen=True, slots=True)
class StoredCalibration:
    """What the home has."""

    calibration: Calibration | None = None
    missing: str = ""
    """Why there is no valid calibration, for people."""


def read_calibration(folder: Path, fingerprint: str) -> StoredCalibration:
    """The calibration in a worker's folder, if it is of this hardware."""
    path = folder / FILE
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE)
    except FileNotFoundError:
        return StoredCalibration(missing="this device is not calibrated yet")
    except OSError as exc:
        return StoredCalibration(missing=f"cannot read {path}: {exc.strerror or exc}")
    try:
        calibration = Calibration.model_validate_json(text)
    except ValidationError:
        return StoredCalibration(missing=f"{path} is damaged")
    if calibration.fingerprint != fingerprint:
        return StoredCalibration(missing="hardware, system or runtimes changed since the last calibration")
    return StoredCalibration(calibration)


def write_calibration(folder: Path, calibration: Calibration) -> None:
    """Write it durably. Raises `ResourceError`."""
    write_durably(folder / FILE, calibration.model_dump_json(indent=1).encode() + b"\n")


def headline(calibration: Calibration) -> str:
    """`cpu 139 GFLOPS fp32, memory 33 GB/s; NVIDIA H100 51000 GFLOPS fp32, …; warm after 7 (CPU (ONNX))`."""
    parts = [f"{micro.device}: {text}" for micro in calibration.micro if (text := _peaks(micro.figures))]
    warm = ", ".join(f"{count} ({unit})" for unit, count in sorted(calibration.floors.items()))
    parts += [f"warm after {warm}"] if warm else []
    return "; ".join(parts) or "nothing could be measured"


def _peaks(figures: Mapping[str, float]) -> str:
    return ", ".join(
        f"memory {figures[name]:.3g} GB/s"
        if name == "memory_gb_s"
        else f"{figures[name]:.4g} GFLOPS {name.partition('_')[0]}"
        for name in HEADLINES
        if name in figures
    )


def curves(micro: MicroFigures) -> list[tuple[str, dict[str, float]]]:
    """Figures by curve, in the order measured: `copy_gb_s` → {"64_kib": 41.2, …, "max": 55.0}."""
    by_curve: dict[str, dict[str, float]] = {}
    for name, value in micro.figures.items():
        for unit in ("_gb_s_", "_gflops_"):
            if unit in name:
                kind, _, size = name.partition(unit)
                by_curve.setdefault(kind + unit[:-1], {})[size] = value
    return list(by_curve.items())
