"""What a device was found to be when it was enrolled, kept in its home under the fingerprint of its hardware.

    Enrolment(fingerprint, floors={"CPU (ONNX)": 7}, timer_ns=38, host=…, micro=(…))

It holds as long as the fingerprint does. A file that cannot be read, or is another device's, is no enrolment: it is made again.
How one is made: `node.device.calibrate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swarm.base.durable import write_durably

FILE: Final = "enrolment.json"
MAX_FILE: Final = 1024 * 1024
FLOOR_UNKNOWN: Final = 5
LEAST_FLOOR: Final = 2
MOST_FLOOR: Final = 50
"""A floor counts for large models too, where each inference takes long."""
SETTLED: Final = 0.05
"""An inference is warm once those around it are this close to what the last half took."""
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
    """Mean while it was at work."""
    temperature_c: float | None = None
    power_w: float | None = None
    throttled: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class HostFigures(BaseModel):
    """The host while this node did nothing. None: its system does not tell."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    others_share: float | None = None
    steal_share: float | None = None
    stall_share: float | None = None
    clock_mhz: float | None = None
    temperature_c: float | None = None
    on_battery: bool | None = None


class Calibration(BaseModel):
    """All that is kept of one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    v: Literal[1] = 1
    fingerprint: str = Field(pattern="^[0-9a-f]{64}$")
    at: float
    """Seconds since the epoch."""
    full: bool = False
    """Made at leisure; the quick one has shorter curves."""
    timer_ns: int
    """What reading the clock once costs."""
    host: HostFigures = HostFigures()
    floors: dict[str, int] = {}
    """Unit → fewest warm-up inferences; units that are not in it have none that was learned."""
    micro: tuple[MicroFigures, ...] = ()
    notes: tuple[str, ...] = ()

    def floor(self, unit: str) -> int:
        """Fewest warm-up inferences of a unit; `FLOOR_UNKNOWN` where none was learned."""
        return self.floors.get(unit, FLOOR_UNKNOWN)


def warm_after(samples: Sequence[int], each: int = 1) -> int:
    """How many inferences came before those that took as long as the last half did. Pure; nanoseconds in order, first one first.

    Single slow ones do not count: medians of `AROUND` at a time are compared. `each`: inferences behind a sample.
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
class CalibrationFile:
    """What lies in the home."""

    found: Calibration | None = None
    why: str = ""
    """Why there is none, or none that counts; for people."""


def path_of(folder: Path) -> Path:
    """Where a worker's folder keeps it."""
    return folder / FILE


def kept(folder: Path, fingerprint: str) -> CalibrationFile:
    """The enrolment of this very hardware, if there is one."""
    try:
        with path_of(folder).open("rb") as file:
            text = file.read(MAX_FILE)
    except FileNotFoundError:
        return CalibrationFile(why="this device is not enrolled yet")
    except OSError as exc:
        return CalibrationFile(why=f"the enrolment cannot be read ({exc.strerror or exc})")
    try:
        found = Calibration.model_validate_json(text)
    except ValidationError:
        return CalibrationFile(why=f"{path_of(folder)} is damaged")
    if found.fingerprint != fingerprint:
        return CalibrationFile(why="hardware, system or runtimes have changed since this device was enrolled")
    return CalibrationFile(found)


def keep(folder: Path, found: Calibration) -> None:
    """Write it, whole or not at all. Raises `ResourceError`."""
    write_durably(path_of(folder), found.model_dump_json(indent=1).encode() + b"\n")


# -- told ----------------------------------------------------------------------------------------------------------------


def headline(found: Calibration) -> str:
    """`cpu 139 GFLOPS fp32, memory 33 GB/s; NVIDIA H100 51000 GFLOPS fp32, …; warm after 7 (CPU (ONNX))`."""
    parts = [f"{one.device}: {_shown(one.figures)}" for one in found.micro if _shown(one.figures)]
    warm = ", ".join(f"{count} ({unit})" for unit, count in sorted(found.floors.items()))
    parts += [f"warm after {warm}"] if warm else []
    return "; ".join(parts) or "nothing could be measured"


def _shown(figures: Mapping[str, float]) -> str:
    told = []
    for name in HEADLINES:
        if name in figures:
            if name == "memory_gb_s":
                told.append(f"memory {figures[name]:.3g} GB/s")
            else:
                told.append(f"{figures[name]:.4g} GFLOPS {name.split('_', maxsplit=1)[0]}")
    return ", ".join(told)


def curves(one: MicroFigures) -> list[tuple[str, dict[str, float]]]:
    """Figures by curve: `copy_gb_s` → {"64_kib": 41.2, …, "max": 55.0}, in the order they were measured."""
    found: dict[str, dict[str, float]] = {}
    for name, value in one.figures.items():
        for unit in ("_gb_s_", "_gflops_"):
            if unit in name:
                kind, _, size = name.partition(unit)
                found.setdefault(kind + unit[:-1], {})[size] = value
    return list(found.items())
