"""How far apart the outputs of two devices are, by their sketches. Pure.

A distance is the distance of the outputs' values as a share of their size: 0 for equal outputs, about 1.4 for the outputs of different
inputs. It is estimated from 16 sums, to within a third of itself.
"""

from __future__ import annotations

import math
import struct
from typing import Final

from protocol.formats.chain import SUMS
from protocol.values.record import LaunchOutput, OutputSketch

TOLERANCE: Final = 0.05
"""Outputs this close count as the same. Units that compute with 8 or 16 bits, or in another order, lie within it. Outputs for another input
may lie within it too, which is why a canary also checks those (`canary`)."""
EXACT: Final = {"float64": 1e-3}
"""Tolerances of types that no device computes with reduced precision."""


def distance(one: LaunchOutput, other: LaunchOutput) -> float | None:
    """The largest distance over all outputs; infinite for different types or sizes, None if either side has no sketch."""
    if one.sha256 == other.sha256:
        return 0.0
    if not one.sketches or not other.sketches:
        return None
    if len(one.sketches) != len(other.sketches):
        return math.inf
    return max(_apart(a, b) for a, b in zip(one.sketches, other.sketches, strict=True))


def same_form(one: LaunchOutput, other: LaunchOutput) -> bool:
    """Whether both have the same number of outputs, with the same numbers of values and types."""
    forms = [[(sketch.dtype, sketch.count) for sketch in output.sketches] for output in (one, other)]
    return forms[0] == forms[1]


def tolerance_of(output: LaunchOutput) -> float:
    """The distance at which two devices still agree."""
    return min((EXACT.get(sketch.dtype, TOLERANCE) for sketch in output.sketches), default=TOLERANCE)


def _apart(one: OutputSketch, other: OutputSketch) -> float:
    if (one.dtype, one.count) != (other.dtype, other.count):
        return math.inf
    size = max(one.norm, other.norm)
    if not size:
        return 0.0
    pairs = zip(_sums(one), _sums(other), strict=True)
    apart = math.sqrt(sum((a * one.norm / size - b * other.norm / size) ** 2 for a, b in pairs))
    return apart if math.isfinite(apart) else math.inf


def _sums(sketch: OutputSketch) -> tuple[float, ...]:
    return struct.unpack(f">{SUMS}f", sketch.sums)


def show(output: LaunchOutput) -> str:
    """The text for a table cell: type, number of values, size and sums of each output."""
    return "; ".join(
        f"{sketch.dtype} {sketch.count} {sketch.norm:.9g} {sketch.sums.hex()}" for sketch in output.sketches
    )


def read(sha256: str, cell: str) -> LaunchOutput | None:
    """The inverse of `show`. None for other text."""
    try:
        parts = [part.split(" ") for part in cell.split("; ")] if cell else []
        sketches = tuple(
            OutputSketch(dtype=dtype, count=int(count), norm=float(norm), sums=bytes.fromhex(sums))
            for dtype, count, norm, sums in parts
        )
        return LaunchOutput(sha256=sha256, sketches=sketches)
    except ValueError:
        return None
