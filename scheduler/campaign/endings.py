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


def units_for(name: str, units: Collection[str]) -> tuple[str, ...]:
    """Of `units`, those that may run the model in the file `name`; all, where its ending does not tell, or none would be left."""
    file = name.rstrip("/\\").lower()
    own = next((suffix for ending, suffix in _RUN_BY.items() if file.endswith(ending)), None)
    others = tuple(suffix for suffix in (ONNX, TORCH, COREML) if suffix != own)
    if own is None or not any(unit.endswith(own) for unit in units):
        return tuple(units)
    return tuple(unit for unit in units if not unit.endswith(others))
