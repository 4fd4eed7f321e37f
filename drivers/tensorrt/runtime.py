"""TensorRT and CUDA's runtime, imported when they are first needed; memory on the GPU; errors of both as errors of the contract.

https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/python-api/, https://nvidia.github.io/cuda-python/
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from drivers.contract.base import DriverError, OutOfMemory, Unfit, WrongUnit
from drivers.contract.registry import BROKEN_DRIVER_ERRORS

GPU: Final = "GPU (TensorRT)"
EXTRA: Final = "python -m pip install 'sark-node[tensorrt]'"
NO_MEMORY: Final = 2
"""`cudaErrorMemoryAllocation`."""
_MEMORY: Final = re.compile(r"out of memory|outofmemory|insufficient memory", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TensorRtRuntime:
    trt: Any
    cuda: Any
    """`cuda.bindings.runtime`, whose functions return an error and their result."""

    @property
    def title(self) -> str:
        return f"TensorRT {self.trt.__version__}"

    def call(self, name: str, *arguments: Any) -> Any:
        """The result of a CUDA function. Raises `OutOfMemory`, or `WrongUnit` if the GPU is busy, broken or gone."""
        error, *given = getattr(self.cuda, name)(*arguments)
        if int(error) == NO_MEMORY:
            raise OutOfMemory(f"out of memory: {name}")
        if int(error):
            raise WrongUnit(f"{name}: CUDA error {int(error)} ({error})")
        return given[0] if given else None

    def upload(self, values: Any) -> int:
        """Address of a copy on the GPU, which stays until the process ends."""
        whole = np.ascontiguousarray(values)
        address = int(self.call("cudaMalloc", max(1, whole.nbytes)))
        kind = self.cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self.call("cudaMemcpy", address, whole.ctypes.data, whole.nbytes, kind)
        return address

    def download(self, address: int, shape: tuple[int, ...], dtype: Any) -> Any:
        values = np.empty(shape, dtype)
        kind = self.cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self.call("cudaMemcpy", values.ctypes.data, address, values.nbytes, kind)
        return values


def runtime(gpu: str = "") -> TensorRtRuntime:
    """TensorRT and CUDA. `gpu`: UUID or index of the only visible GPU; empty: all are visible. Raises `Unfit` if they are not installed."""
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    try:
        return TensorRtRuntime(
            importlib.import_module("tensorrt"), importlib.import_module("cuda.bindings.runtime")
        )
    except ImportError as why:
        raise Unfit(f"TensorRT cannot be imported: {why}; {EXTRA}") from why


@contextmanager
def tensorrt_errors() -> Iterator[None]:
    """Turn TensorRT's errors into errors of the contract."""
    try:
        yield
    except DriverError:
        raise
    except BROKEN_DRIVER_ERRORS as why:
        raise refused(str(why) or type(why).__name__) from why


def refused(text: str) -> DriverError:
    """An error with TensorRT's message in one line."""
    shown = f"TensorRT: {' '.join(text.split())[:400]}"
    return OutOfMemory(shown) if _MEMORY.search(text) else Unfit(shown)
