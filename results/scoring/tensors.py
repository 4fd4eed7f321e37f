"""Tensors as JSON, so that outputs can serve as a reference: {"y": {"dtype": "float32", "shape": [1, 10], "base64": "…"}}."""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from results.scoring.arrays import KINDS

if TYPE_CHECKING:
    import numpy as np

FORM: Final = '{"NAME": {"dtype": "float32", "shape": [1, 10], "base64": "…"}}'


def tensors_to_json(tensors: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """Values in C order, little-endian."""
    return {
        name: {
            "dtype": tensor.dtype.name,
            "shape": list(tensor.shape),
            "base64": b64encode(tensor.astype(tensor.dtype.newbyteorder("<")).tobytes()).decode(),
        }
        for name, tensor in tensors.items()
    }


def tensors_from_json(value: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The inverse of `tensors_to_json`. Raises `ValueError` with one line for anything else."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"these are not outputs: {FORM}")
    return {str(name): _tensor(str(name), entry) for name, entry in value.items()}


def _tensor(name: str, entry: Any) -> np.ndarray[Any, Any]:
    import numpy as np

    match entry:
        case {"dtype": str() as word, "shape": list() as shape, "base64": str() as packed} if all(
            type(size) is int and size >= 0 for size in shape
        ):
            try:
                dtype, data = np.dtype(word), b64decode(packed, validate=True)
            except (TypeError, ValueError, SyntaxError):
                raise ValueError(f"{name!r} is not an output: {FORM}") from None
            if dtype.kind in KINDS and len(data) == math.prod(shape) * dtype.itemsize:
                flat = np.frombuffer(data, dtype.newbyteorder("<"))
                return flat.reshape(shape).astype(dtype.newbyteorder("="))
    raise ValueError(f"{name!r} is not an output: {FORM}")
