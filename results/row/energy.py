"""Joules of a run: which of its record's meters count, and what they measured. Pure.

    wall  >  gpu + package + dram, as far as they were read

A part is unknown, and left out, if one of its meters has no reading (such as one of two packages). What AMD's GPUs report may include the
processor on the same chip, so no package is added to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.values.energy import MeteredPart, MeterSample
from protocol.values.record import Record
from results.row.record import RecordView

_PARTS: Final[tuple[MeteredPart, ...]] = ("gpu", "package", "dram")
_WHOLE_CHIP: Final = "amdgpu"


@dataclass(frozen=True, slots=True)
class MeasuredEnergy:
    """The energy of the timed windows."""

    joules: float
    source: str
    """Which source read which part, such as `nvml gpu + rapl package`."""
    stretch_j: tuple[float | None, ...] = ()
    """Joules of each stretch of a sustained run; empty if not read by stretches."""


def measured_energy(record: Record, observed: RecordView) -> MeasuredEnergy | None:
    """The measured energy; None if no meter covers the windows."""
    if record.meters is None:
        old = record.accelerator
        return (
            None if old is None or old.energy_j is None else MeasuredEnergy(old.energy_j, f"{old.source} gpu")
        )
    columns: Sequence[tuple[int, ...] | None] = observed.stretch_uj or (None,) * len(record.meters)
    read = list(zip(record.meters, columns, strict=True))
    wall = next(
        ([one] for one in read if one[0].part == "wall" and one[0].energy_j is not None),
        None,
    )
    counted = wall or [one for part in _PARTS for one in _of_part(read, part)]
    if any(meter.source == _WHOLE_CHIP for meter, _ in counted):
        counted = [one for one in counted if one[0].part == "gpu"]
    if not counted:
        return None
    names = dict.fromkeys(f"{meter.source} {meter.part}" for meter, _ in counted)
    return MeasuredEnergy(
        sum(meter.energy_j or 0.0 for meter, _ in counted),
        " + ".join(names),
        _summed([column for _, column in counted]),
    )


def _of_part(
    read: Sequence[tuple[MeterSample, tuple[int, ...] | None]], part: MeteredPart
) -> list[tuple[MeterSample, tuple[int, ...] | None]]:
    """All meters of the part; none if one of them has no reading."""
    own = [one for one in read if one[0].part == part]
    return own if all(meter.energy_j is not None for meter, _ in own) else []


def _summed(columns: Sequence[tuple[int, ...] | None]) -> tuple[float | None, ...]:
    known = [column for column in columns if column is not None]
    if len(known) != len(columns):
        return ()
    return tuple(
        None if 0 in stretch else sum(number - 1 for number in stretch) / 1e6
        for stretch in zip(*known, strict=True)
    )
