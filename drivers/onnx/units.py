"""The units of the ONNX driver and their execution providers. A node reads this without the runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
TENSORRT: Final = "TensorrtExecutionProvider"
MIGRAPHX: Final = "MIGraphXExecutionProvider"
ROCM: Final = "ROCMExecutionProvider"
DML: Final = "DmlExecutionProvider"
OPENVINO: Final = "OpenVINOExecutionProvider"
COREML: Final = "CoreMLExecutionProvider"
QNN: Final = "QNNExecutionProvider"


@dataclass(frozen=True, slots=True)
class Provider:
    """A unit and its execution providers; the first one that is available is used."""

    unit: str
    names: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)


UNITS: Final = (
    Provider("CPU (ONNX)", (CPU,)),
    Provider("GPU (ONNX)", (CUDA, MIGRAPHX, ROCM)),
    Provider("TensorRT (ONNX)", (TENSORRT,)),
    Provider("DirectML (ONNX)", (DML,)),
    Provider("OpenVINO CPU (ONNX)", (OPENVINO,), {"device_type": "CPU"}),
    Provider("OpenVINO GPU (ONNX)", (OPENVINO,), {"device_type": "GPU"}),
    Provider("OpenVINO NPU (ONNX)", (OPENVINO,), {"device_type": "NPU"}),
    Provider("CoreML (ONNX)", (COREML,), {"MLComputeUnits": "ALL"}),
    Provider("NPU (ONNX)", (QNN,), {"backend_path": "QnnHtp.dll" if os.name == "nt" else "libQnnHtp.so"}),
)

DEVICES: Final[Mapping[str, tuple[str, str]]] = {
    CUDA: ("cuda", "CUDA_VISIBLE_DEVICES"),
    TENSORRT: ("cuda", "CUDA_VISIBLE_DEVICES"),
    MIGRAPHX: ("cuda", "HIP_VISIBLE_DEVICES"),
    ROCM: ("cuda", "HIP_VISIBLE_DEVICES"),
    DML: ("dml", ""),
}
"""Of a provider with a device of its own: the runtime's name for its memory (AMD's is called cuda too), and the variable that shows one
GPU alone, which is then the first. Others use host memory."""


@dataclass(frozen=True, slots=True)
class ProviderPlacement:
    """Where a unit's session runs and where its inputs and outputs lie."""

    provider: str
    options: Mapping[str, str] = field(default_factory=dict)
    memory: str = "cpu"
    index: int = 0
    """Of the device, as its provider counts."""


def placement_for(unit: Provider, provider: str, gpu: str) -> ProviderPlacement:
    """`gpu`: index or UUID; empty: the first. With a variable in `DEVICES` it is the first."""
    if provider == DML and gpu.isdecimal():
        return ProviderPlacement(provider, {**unit.options, "device_id": gpu}, DEVICES[DML][0], int(gpu))
    return ProviderPlacement(provider, unit.options, DEVICES.get(provider, ("cpu", ""))[0])


def visible_devices(provider: str, gpu: str) -> dict[str, str]:
    """The environment variable that shows a provider's libraries one GPU alone; to be set before they are loaded."""
    variable = DEVICES.get(provider, ("cpu", ""))[1]
    return {variable: gpu} if gpu and variable else {}


def precision_note(options: Mapping[str, str]) -> str:
    """Where a session's provider computes in float32 with fewer digits than that, by its live options; empty: nowhere."""
    if options.get("use_tf32") != "1":
        return ""
    return "float32 products and convolutions may use TF32, with 10 bits of mantissa, where the GPU has it"
