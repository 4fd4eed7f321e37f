"""The units of the ONNX driver and their execution providers. A node reads this module without the runtime."""

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
    """A unit and its execution providers; the first available provider is used."""

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
"""For each provider with a device of its own: the runtime's name for its memory (AMD's is called cuda too), and the variable that restricts
it to one GPU, which then becomes the first. Other providers use host memory."""


@dataclass(frozen=True, slots=True)
class ProviderPlacement:
    """Where a unit's session runs and where its inputs and outputs are stored."""

    provider: str
    options: Mapping[str, str] = field(default_factory=dict)
    memory: str = "cpu"
    index: int = 0
    """Index of the device, as its provider counts."""


def placement_for(unit: Provider, provider: str, gpu: str, threads: int = 0) -> ProviderPlacement:
    """`gpu`: index or UUID; empty: the first. If `DEVICES` has a variable for the provider, the variable selects the GPU. `threads`: for a
    provider on the processor with threads of its own; 0: the provider chooses."""
    options = dict(unit.options)
    if provider == DML and gpu.isdecimal():
        return ProviderPlacement(provider, {**options, "device_id": gpu}, DEVICES[DML][0], int(gpu))
    if options.get("device_type") == "CPU" and threads:
        options["num_of_threads"] = str(threads)
    return ProviderPlacement(provider, options, DEVICES.get(provider, ("cpu", ""))[0])


def visible_devices(provider: str, gpu: str) -> dict[str, str]:
    """The environment variable that shows a provider's libraries only one GPU; set it before they are loaded."""
    variable = DEVICES.get(provider, ("cpu", ""))[1]
    return {variable: gpu} if gpu and variable else {}


def precision_notes(place: ProviderPlacement, live: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """Notes on providers that compute float32 models with reduced precision. `live`: options of the session by provider. Where the options
    do not show it, the provider's documentation decides: https://onnxruntime.ai/docs/execution-providers/ (OpenVINO: precision, QNN:
    enable_htp_fp16_precision)."""
    options = live.get(place.provider, {})
    if options.get("use_tf32") == "1":
        return (
            "float32 products and convolutions may use TF32, with 10 bits of mantissa, where the GPU has it",
        )
    if place.provider == OPENVINO and place.options.get("device_type") != "CPU":
        return ("OpenVINO computes in float16 on a GPU or NPU, whatever the model's type",)
    if place.provider == QNN and options.get("enable_htp_fp16_precision") != "0":
        return ("QNN computes float32 models in float16",)
    return ()
