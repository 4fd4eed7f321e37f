"""Whether a model's outputs are right: compares those of the timed inference with a plain reference for the same inputs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from drivers.contract.base import CheckReport, DriverError, WorkOrder

RELATIVE: Final[Mapping[str, float]] = {"float64": 1e-6, "float32": 1e-3, "float16": 1e-2}
"""Tolerated difference, as a share of each value and of the values' root mean square, by type …"""
EPSILON: Final[Mapping[str, float]] = {"float64": 2.2e-16, "float32": 1.2e-7, "float16": 9.8e-4}
"""… and, in addition, the error that rounding alone causes in values of about 1 inside the model: this much for each operator, times …"""
ROUNDINGS: Final = 8.0
"""… this and the square root of their number, because roundings partly cancel. An output may be far smaller than the values it is made
of."""
DEPTH: Final = 100
"""Operators before the output, if their number is unknown."""
INTEGER_SHARE: Final = 0.01
"""Share of integers (class numbers, quantised values) that may differ, because ties and roundings fall either way."""
COSINE: Final = 0.999
"""Outputs with this cosine agree even if single values differ by more, as with quantised models and other kernels …"""
MAX_ERROR: Final = 0.1
"""… but by at most this share of the largest magnitude, because twice the output has the same direction …"""
MAX_COMPARED: Final = 400
MIN_VALUES: Final = 16
"""… and only if there are enough values for a direction to mean something."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Tolerated difference of an output's values. `relative`: as a share of each value and of all. `absolute`: added to it."""

    relative: float
    absolute: float


def tolerance_of(dtype: str, depth: int, relative: float | None = None) -> Tolerance:
    """The tolerance for outputs of type `dtype` after `depth` operators. `relative`: the tolerated share; None: the default of the type."""
    share = RELATIVE.get(dtype, 1e-2) if relative is None else relative
    return Tolerance(share, ROUNDINGS * EPSILON.get(dtype, 7.8e-3) * math.sqrt(max(depth, 1)))


@dataclass(frozen=True, slots=True)
class Difference:
    agrees: bool
    error: float | None
    tolerance: float | None
    note: str = ""
    compared: str = ""
    """The comparison and the difference, in words."""


def digest(outputs: Mapping[str, Any]) -> str:
    """SHA-256 over names, types, shapes and values of all outputs, sorted by name."""
    sha256 = hashlib.sha256()
    for name in sorted(outputs):
        value = outputs[name]
        if isinstance(value, np.ndarray) and value.dtype != object:
            sha256.update(f"{name}|{value.dtype}|{value.shape}|".encode())
            sha256.update(np.ascontiguousarray(value).tobytes())
        else:
            sha256.update(f"{name}|{json.dumps(_plain(value), sort_keys=True)}|".encode())
    return sha256.hexdigest()


def _plain(value: Any) -> Any:
    """Sequences, maps and texts in a form that JSON can hold."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)


def compare(
    name: str, got: Any, reference: Any, relative: float | None = None, depth: int = DEPTH
) -> Difference:
    """Compare one output. Numbers must agree within `tolerance_of`, everything else must be equal; NaN or infinity only where the reference
    has it too."""
    if not isinstance(got, np.ndarray) or not isinstance(reference, np.ndarray) or got.dtype == object:
        same = _plain(got) == _plain(reference)
        return Difference(same, None, None, "" if same else f"output {name!r} differs from the reference")
    if got.shape != reference.shape:
        note = f"output {name!r} has shape {got.shape}, the reference {reference.shape}"
        return Difference(False, None, None, note)
    if got.size == 0:
        return Difference(True, 0.0, None)
    if got.dtype.kind in "iub":
        share = float(np.mean(got != reference))
        note = f"output {name!r} differs from the reference in {share:.1%} of its values"
        return Difference(share <= INTEGER_SHARE, share, INTEGER_SHARE, note if share > INTEGER_SHARE else "")
    return _compare_floats(name, got, reference, tolerance_of(str(got.dtype), depth, relative))


def _compare_floats(
    name: str, got: np.ndarray[Any, Any], reference: np.ndarray[Any, Any], tolerance: Tolerance
) -> Difference:
    def differs(what: str) -> Difference:
        return Difference(False, None, tolerance.relative, f"output {name!r} {what}")

    wide, plain = real_values(got), real_values(reference)
    finite = np.isfinite(plain)
    broken = ~np.isfinite(wide) & finite
    if broken.any():
        return differs(f"has {int(broken.sum())} NaN or infinite values where the reference has none")
    if (np.isinf(wide) & (wide == -plain)).any():
        return differs("is infinite with the opposite sign to the reference")
    if (np.isfinite(wide) & ~finite).any():
        return differs("is finite where the reference is not")
    both = finite & np.isfinite(wide)
    if not both.any():
        return differs("contains only NaN or infinite values")
    values, apart = np.abs(plain[both]), np.abs(wide[both] - plain[both])
    scale, rms = float(values.max()) or 1.0, float(np.sqrt(np.mean(values**2)))
    allowed = tolerance.absolute + tolerance.relative * np.maximum(values, rms)
    worst = int(np.argmax(apart / allowed))
    error = float(apart.max()) / scale
    compared = f"{name}: {values.size:,} values of at most {scale:.3g}; the worst is {apart[worst]:.2g} off"
    compared += f", {allowed[worst]:.2g} is tolerated there"
    if apart[worst] <= allowed[worst]:
        odd = int((~both).sum())
        note = f"output {name!r} has {odd} NaN or infinite values, in the reference too" if odd else ""
        return Difference(True, error, tolerance.relative, note, compared)
    note = f"output {name!r} differs by {error:.2g} of its range"
    if error > MAX_ERROR or int(both.sum()) < MIN_VALUES:
        return Difference(False, error, tolerance.relative, note, compared)
    a, b = wide[both] / scale, plain[both] / scale
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b) / lengths if lengths else 0.0
    return Difference(cosine >= COSINE, error, tolerance.relative, f"{note}, cosine {cosine:.5f}", compared)


def real_values(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As float64; a complex number becomes two of them."""
    if values.dtype.kind == "c":
        return np.stack((values.real, values.imag)).astype(np.float64)
    return values.astype(np.float64)


def check(
    outputs: Mapping[str, Any],
    reference: Mapping[str, Any],
    relative: float | None = None,
    depth: int = DEPTH,
) -> CheckReport:
    """Check all outputs together: the worst counts. `relative`: tolerance of floats; None: the default of their type. `depth`: operators
    before the outputs."""
    differences = [compare(name, outputs[name], reference[name], relative, depth) for name in outputs]
    worst = max(
        differences, key=lambda one: (not one.agrees, bool(one.compared), one.error or 0.0), default=None
    )
    errors = [one.error for one in differences if one.error is not None]
    tolerances = [one.tolerance for one in differences if one.tolerance is not None]
    notes = [one.note for one in differences if one.note]
    return CheckReport(
        agrees=all(one.agrees for one in differences),
        output_sha256=digest(outputs),
        max_error=max(errors, default=None),
        tolerance=min(tolerances, default=None),
        note="; ".join(notes)[:1000],
        compared=_words(worst)[:MAX_COMPARED] if worst is not None else "",
    )


def _words(worst: Difference) -> str:
    return "; ".join(filter(None, ["" if worst.agrees else worst.note, worst.compared]))


def make_report(
    order: WorkOrder,
    outputs: Mapping[str, Any],
    repeat: Callable[[], Mapping[str, Any]],
    reference: Callable[[], Mapping[str, Any]],
    relative: float | None = None,
    depth: int = DEPTH,
) -> CheckReport:
    """The check of an order. `repeat`: returns the outputs of one more inference. `reference`: returns the outputs to compare with; may
    raise `DriverError`."""
    if not order.check:
        return CheckReport(None, digest(outputs), None, None, "not asked for")
    if unstable(outputs, repeat()):
        note = "the model answers differently each time: nothing to compare with"
        return CheckReport(None, digest(outputs), None, None, note)
    try:
        expected = reference()
    except DriverError as why:
        return CheckReport(None, digest(outputs), None, None, f"no reference: {why}"[:1000])
    return check(outputs, expected, relative, depth)


def unstable(outputs: Mapping[str, Any], again: Mapping[str, Any]) -> bool:
    """Whether a second inference with the same inputs gave outputs that differ by more than `compare` allows."""
    if digest(outputs) == digest(again):  # also if both have the same NaN
        return False
    return not all(compare(name, again[name], outputs[name]).agrees for name in outputs)
