"""Units on one of several GPUs of a device: `GPU 1 (ONNX)` is the same as `GPU (ONNX)`, but on the device's GPU 1."""

from __future__ import annotations

import re
from typing import Final

_NUMBERED: Final = re.compile(r"(GPU|TensorRT) (\d|[1-9]\d)( \(.+\))")


def numbered(unit: str, gpu: int) -> str:
    """`GPU 1 (ONNX)` for `GPU (ONNX)`."""
    kind, space, framework = unit.partition(" (")
    return f"{kind} {gpu}{space}{framework}"


def without_number(unit: str) -> str:
    """`GPU (ONNX)` for `GPU 1 (ONNX)`; any other unit unchanged."""
    found = _NUMBERED.fullmatch(unit)
    return unit if found is None else found[1] + found[3]


def gpu_number(unit: str) -> int | None:
    """1 for `GPU 1 (ONNX)`; None if the unit has no number."""
    found = _NUMBERED.fullmatch(unit)
    return None if found is None else int(found[2])
