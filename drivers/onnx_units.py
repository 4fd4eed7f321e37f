"""The units of the ONNX driver and what runs them. Apart from the driver, so that a node can read it without the runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CPU: Final = "CPUExecutionProvider"


@dataclass(frozen=True, slots=True)
class Provider:
    """How a unit is reached: onnxruntime's execution providers in order of preference (the first one that is there is used)."""

    unit: str
    names: tuple[str, ...]


UNITS: Final = (
    Provider("CPU (ONNX)", (CPU,)),
    Provider("GPU (ONNX)", ("CUDAExecutionProvider", "MIGraphXExecutionProvider", "ROCMExecutionProvider")),
    Provider("DirectML (ONNX)", ("DmlExecutionProvider",)),
)
