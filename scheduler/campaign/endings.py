"""Which units run a model, by the ending of its file: known before the file is seen, and the same on every machine. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

ONNX, TORCH, COREML = "(ONNX)", "(Torch)", "(CoreML)"
"""The suffixes of units that run one family of formats."""
_RUN_BY: Final = {
    ".onnx": ONNX,
    ".pt2": TORCH,
    ".ts": TORCH,
    ".safetensors": TORCH,
    ".mlpackage": COREML,
    ".mlmodel": COREML,
}


def family_of(name: str) -> str | None:
    """The suffix of the units that run the model in the file `name`; None: its ending does not tell."""
    file = name.rstrip("/\\").lower()
    return next((suffix for ending, suffix in _RUN_BY.items() if file.endswith(ending)), None)


def is_foreign(unit: str, family: str) -> bool:
    """Whether it is a unit of another family."""
    return unit.endswith(tuple(suffix for suffix in (ONNX, TORCH, COREML) if suffix != family))


def units_for(name: str, units: Collection[str]) -> tuple[str, ...]:
    """Of `units`, those that may run the model in the file `name`; all, where its ending does not tell, or none would be left."""
    own = family_of(name)
    if own is None or not any(unit.endswith(own) for unit in units):
        return tuple(units)
    return tuple(unit for unit in units if not is_foreign(unit, own))
