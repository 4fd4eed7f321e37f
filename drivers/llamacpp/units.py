"""The units of the llama.cpp driver, and the llama.cpp device of each. The library is an argument."""

from __future__ import annotations

import re
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from drivers.contract.base import WrongUnit

CPU: Final = "CPU (llama.cpp)"
GPU: Final = "GPU (llama.cpp)"
UNITS: Final = (CPU, GPU)

VISIBLE: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that show a runtime only one GPU, by UUID or index …"""
VULKAN: Final = "GGML_VK_VISIBLE_DEVICES"
"""… and by index."""
_ACCELERATORS: Final = (1, 2)
"""`ggml_backend_dev_type`: a GPU, and a GPU that shares the processor's memory."""
_OFFLOADED: Final = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")


@dataclass(frozen=True, slots=True)
class GgmlDevice:
    """A device that this build of llama.cpp computes on."""

    handle: int
    name: str
    """Name, such as `CUDA0`."""
    description: str
    """Description, such as `NVIDIA H200`."""

    @property
    def shown(self) -> str:
        return f"{self.name}: {self.description}"


def check_unit(unit: str) -> None:
    """Raises `WrongUnit` for an unknown unit."""
    if unit not in UNITS:
        raise WrongUnit(f"unknown unit {unit!r}: this driver has {', '.join(UNITS)}")


def show_only(gpu: str, environ: MutableMapping[str, str]) -> None:
    """Hide the other GPUs before the library looks for them. `gpu`: UUID or index; empty: hide none."""
    if gpu:
        environ.update(dict.fromkeys(VISIBLE, gpu))
        if gpu.isdecimal():
            environ[VULKAN] = gpu


def first_gpu(lib: Any, ggml: Any, gpu: str = "") -> GgmlDevice:
    """The first visible GPU. `ggml`: its functions (`library.Ggml`). Raises `WrongUnit`."""
    if not lib.llama_supports_gpu_offload():
        raise WrongUnit(
            f"asked for {GPU}, but this build of llama-cpp-python supports only the processor: "
            "CMAKE_ARGS=-DGGML_CUDA=on python -m pip install --force-reinstall --no-cache-dir llama-cpp-python"
        )
    found: GgmlDevice | None = next((one for kind, one in ggml.devices() if kind in _ACCELERATORS), None)
    if found is None:
        which = f"the GPU {gpu!r}" if gpu else "a GPU"
        raise WrongUnit(f"asked for {GPU}, but llama.cpp does not find {which}")
    return found


def verify_offload(unit: str, lines: Iterable[str]) -> None:
    """Raise `WrongUnit` unless llama.cpp reported that all layers are on the GPU. `lines`: its log of the load."""
    matches = [match for line in lines if (match := _OFFLOADED.search(line))]
    if not matches:
        raise WrongUnit(f"asked for {unit}, but llama.cpp does not say that any layer is on the GPU")
    there, layers = map(int, matches[-1].groups())
    if there < layers:
        raise WrongUnit(f"asked for {unit}, but {there} of {layers} layers are on the GPU")
