"""Whether a model's outputs are right: those of the timed inference against a plain reference with the same inputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from drivers.contract.base import CheckReport, DriverError, WorkOrder

TOLERANCE: Final[Mapping[str, float]] = {"float64": 1e-6, "float32": 1e-3, "float16": 1e-2}
"""Largest difference, relative to the largest magnitude of the reference output."""
INTEGER_SHARE: Final = 0.01
"""Share of integers (class numbers, quantised values) that may differ: ties and roundings fall either way."""
COSINE: Final = 0.999
"""Outputs of this direction agree although single values differ by more, as with quantised models and other kernels …"""
MAX_ERROR: Final = 0.1
"""… but by at most this share of the largest magnitude, because twice the output has the same direction …"""
MIN_VALUES: Final = 16
"""… and only with enough values for a direction to mean something."""


@dataclass(frozen=True, slots=True)
class Difference:
    agrees: bool
    error: float | None
    tolerance: float | None
    note: str = ""


def digest(outputs: Mapping[str, Any]) -> str:
    """SHA-256 over names, types, shapes and values of all outputs, in order of name."""
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
    """Sequences, maps and texts as JSON can hold them."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)


def compare(name: str, got: Any, reference: Any, tolerance: float | None = None) -> Difference:
    """One output. Numbers within a tolerance (None: that of their type), everything else equal; NaN or infinity only where the
    reference has it too."""
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
    return _compare_floats(name, got, reference, tolerance or TOLERANCE.get(str(got.dtype), 1e-2))


def _compare_floats(
    name: str, got: np.ndarray[Any, Any], reference: np.ndarray[Any, Any], tolerance: float
) -> Difference:
    def differs(what: str) -> Difference:
        return Difference(False, None, tolerance, f"output {name!r} {what}")

    wide, plain = real_values(got), real_values(reference)
    finite = np.isfinite(plain)
    broken = ~np.isfinite(wide) & finite
    if broken.any():
        return differs(f"has {int(broken.sum())} NaN or infinite values where the reference has none")
    if (np.isinf(wide) & (wide == -plain)).any():
        return differs("is infinite the other way than the reference")
    if (np.isfinite(wide) & ~finite).any():
        return differs("is finite where the reference is not")
    both = finite & np.isfinite(wide)
    if not both.any():
        return differs("is nothing but NaN or infinite values")
    scale = float(np.abs(plain[both]).max()) or 1.0
    error = float(np.abs(wide[both] - plain[both]).max()) / scale
    if error <= tolerance:
        odd = int((~both).sum())
        note = f"output {name!r} has {odd} NaN or infinite values, in the reference too" if odd else ""
        return Difference(True, error, tolerance, note)
    note = f"output {name!r} differs by {error:.2g} of its range"
    if error > MAX_ERROR or int(both.sum()) < MIN_VALUES:
        return Difference(False, error, tolerance, note)
    a, b = wide[both] / scale, plain[both] / scale
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b) / lengths if lengths else 0.0
    return Difference(cosine >= COSINE, error, tolerance, f"{note}, cosine {cosine:.5f}")


def real_values(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As float64; complex numbers as two of them each."""
    if values.dtype.kind == "c":
        return np.stack((values.real, values.imag)).astype(np.float64)
    return values.astype(np.float64)


def check(
    outputs: Mapping[str, Any], reference: Mapping[str, Any], tolerance: float | None = None
) -> CheckReport:
    """All outputs together: the worst of them counts. `tolerance`: of floats; None: that of their type."""
    differences = [compare(name, outputs[name], reference[name], tolerance) for name in outputs]
    errors = [one.error for one in differences if one.error is not None]
    tolerances = [one.tolerance for one in differences if one.tolerance is not None]
    notes = [one.note for one in differences if one.note]
    return CheckReport(
        agrees=all(one.agrees for one in differences),
        output_sha256=digest(outputs),
        max_error=max(errors, default=None),
        tolerance=min(tolerances, default=None),
        note="; ".join(notes)[:1000],
    )


def make_report(
    order: WorkOrder,
    outputs: Mapping[str, Any],
    repeat: Callable[[], Mapping[str, Any]],
    reference: Callable[[], Mapping[str, Any]],
    tolerance: float | None = None,
) -> CheckReport:
    """The check of an order. `repeat`: the outputs of one more inference; `reference`: those to compare with, may raise `DriverError`."""
    if not order.check:
        return CheckReport(None, digest(outputs), None, None, "not asked for")
    if unstable(outputs, repeat()):
        note = "the model answers differently each time: nothing to compare with"
        return CheckReport(None, digest(outputs), None, None, note)
    try:
        expected = reference()
    except DriverError as why:
        return CheckReport(None, digest(outputs), None, None, f"no reference: {why}"[:1000])
    return check(outputs, expected, tolerance)


def unstable(outputs: Mapping[str, Any], again: Mapping[str, Any]) -> bool:
    """Whether a second inference with the same inputs gave other outputs than `compare` allows."""
    if digest(outputs) == digest(again):  # also if it is the same NaN twice
        return False
    return not all(compare(name, again[name], outputs[name]).agrees for name in outputs)
