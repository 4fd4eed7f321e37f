"""An inference's outputs in a few numbers: two devices that round differently have different hashes but nearly the same sketch.

    values x₀ … xₙ, signs s drawn from the seed   ─▶   16 sums, sum j of all sᵢxᵢ with i mod 16 = j, as shares of the norm

The squared distance of two such lists of sums is, on average over the signs, that of the values themselves (Alon, Matias and Szegedy 1999).
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from drivers.contract.base import MAX_FIGURE, OutputReport, SketchReport
from drivers.measure.check import digest, real_values
from protocol.formats.chain import SUMS

MAX_SKETCHED: Final = 4
"""Most outputs of one inference that get a sketch."""
MAX_VALUES: Final = 1 << 20
"""Most values of one output that are used; of a larger output only every second, third, … value is."""


def report_outputs(outputs: Mapping[str, Any], seed: int) -> OutputReport:
    """Hash of all outputs, and a sketch of each of the first numeric ones. `seed`: the seed of the inputs, which also determines the
    signs."""
    arrays = [outputs[name] for name in sorted(outputs)]
    numbers = [value for value in arrays if isinstance(value, np.ndarray) and value.dtype.kind in "fciub"]
    sketches = tuple(make_sketch(value, seed, index) for index, value in enumerate(numbers[:MAX_SKETCHED]))
    return OutputReport(digest(outputs), sketches)


def make_sketch(values: np.ndarray[Any, Any], seed: int, index: int) -> SketchReport:
    """The sketch of the output with this index among the numeric outputs."""
    flat = values.reshape(-1)[:: max(1, -(-values.size // MAX_VALUES))]
    flat = flat if flat.dtype in (np.float32, np.float64) else real_values(flat).reshape(-1)
    largest = float(np.abs(flat).max(initial=0.0))
    if not math.isfinite(largest):
        flat = np.nan_to_num(flat, nan=0.0, posinf=0.0, neginf=0.0)
        largest = float(np.abs(flat).max(initial=0.0))
    scaled = flat / largest if largest else flat
    size = float(np.linalg.norm(scaled))
    sums = _signed_sums(scaled, seed, index) / size if size else np.zeros(SUMS)
    norm = min(size * largest, MAX_FIGURE)
    return SketchReport(str(values.dtype), int(values.size), norm, struct.pack(f">{SUMS}f", *sums).hex())


def _signed_sums(flat: np.ndarray[Any, Any], seed: int, index: int) -> np.ndarray[Any, Any]:
    key = hashlib.sha256(f"sketch/{seed}/{index}".encode()).digest()
    words = np.random.Philox(key=int.from_bytes(key[:16], "big")).random_raw(-(-flat.size // 64) or 1)
    signs = np.unpackbits(words.astype("<u8").view(np.uint8))[: flat.size].view(np.int8)
    signed = flat * (2 * signs - 1)
    padded = np.zeros(-(-flat.size // SUMS) * SUMS, signed.dtype)
    padded[: flat.size] = signed
    return np.asarray(padded.reshape(-1, SUMS).sum(axis=0, dtype=np.float64))
