"""Doubles of TensorRT and CUDA's runtime in numpy, as far as the driver uses them: every engine multiplies its one input by `gain`.
For machines without a GPU, the only ones on which the driver has run so far."""

from __future__ import annotations

import ctypes
import json
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np

from drivers.tensorrt.runtime import TensorRtRuntime


class CudaError(int):
    """Like CUDA's errors: integers with a name."""


class CudaDouble:
    """The GPU's memory is on the host. `fails`: the function that fails, and its error."""

    def __init__(self, fails: tuple[str, int] = ("", 0)) -> None:
        self.cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)
        self.fails = fails
        self.kept: dict[int, Any] = {}
        self.synchronised = 0

    def _given(self, name: str, *values: Any) -> tuple[Any, ...]:
        failed, error = self.fails
        return (CudaError(error),) if name == failed else (CudaError(0), *values)

    def cudaMalloc(self, size: int) -> tuple[Any, ...]:  # noqa: N802
        memory = np.zeros(size, np.uint8)
        self.kept[memory.ctypes.data] = memory
        return self._given("cudaMalloc", memory.ctypes.data)

    def cudaMemcpy(self, to: int, source: int, size: int, kind: int) -> tuple[Any, ...]:  # noqa: N802
        assert (to if kind == 1 else source) in self.kept, "the GPU's side has to be its memory"
        ctypes.memmove(to, source, size)
        return self._given("cudaMemcpy")

    def cudaStreamCreate(self) -> tuple[Any, ...]:  # noqa: N802
        return self._given("cudaStreamCreate", 7)

    def cudaStreamSynchronize(self, stream: int) -> tuple[Any, ...]:  # noqa: N802
        assert stream == 7
        self.synchronised += 1
        return self._given("cudaStreamSynchronize")

    def cudaGetDeviceProperties(self, device: int) -> tuple[Any, ...]:  # noqa: N802
        return self._given("cudaGetDeviceProperties", SimpleNamespace(name=b"NVIDIA Double"))


class DataType(Enum):
    FLOAT = 0
    BF16 = 1


class TensorRtDouble:
    """The module `tensorrt`. `shape`: of the input `x`; `refuses`: the parser's error; `builds`: whether building an engine succeeds."""

    __version__ = "0.1"
    DataType = DataType
    ProfilingVerbosity = SimpleNamespace(DETAILED=1)
    LayerInformationFormat = SimpleNamespace(JSON=1)
    TensorIOMode = SimpleNamespace(INPUT=1, OUTPUT=2)

    class ILogger:
        INTERNAL_ERROR, ERROR, WARNING = range(3)

        def log(self, severity: int, text: str) -> None: ...

    def __init__(
        self, shape: tuple[int, ...] = (1,), gain: float = 2.0, refuses: str = "", builds: bool = True
    ) -> None:
        self.shape, self.gain, self.refuses, self.builds = shape, gain, refuses, builds
        self.dtype = DataType.FLOAT
        self.profile: dict[str, Any] = {}
        self.addresses: dict[str, int] = {}
        self.runs = True
        self.output_shape: tuple[int, ...] | None = None

    def nptype(self, dtype: DataType) -> Any:
        return np.float32

    def Builder(self, logger: Any) -> Any:  # noqa: N802
        self.logger = logger

        def build(network: Any, config: Any) -> bytes | None:
            if self.builds:
                return b"plan"
            logger.log(1, "[shapeContext] x has\nno valid size")
            logger.log(2, "this was a warning")
            return None

        def set_shape(name: str, *shapes: Any) -> None:
            self.profile[name] = shapes

        return SimpleNamespace(
            create_network=lambda flags: SimpleNamespace(
                num_inputs=1,
                get_input=lambda at: SimpleNamespace(
                    name="x", dtype=self.dtype, shape=self.shape, is_shape_tensor=False
                ),
            ),
            create_builder_config=lambda: SimpleNamespace(add_optimization_profile=lambda profile: 0),
            create_optimization_profile=lambda: SimpleNamespace(set_shape=set_shape),
            build_serialized_network=build,
        )

    def OnnxParser(self, network: Any, logger: Any) -> Any:  # noqa: N802
        errors = [self.refuses] if self.refuses else []
        return SimpleNamespace(
            parse_from_file=lambda path: not errors,
            num_errors=len(errors),
            get_error=lambda at: SimpleNamespace(desc=lambda: errors[at]),
        )

    def Runtime(self, logger: Any) -> Any:  # noqa: N802
        modes = {"x": self.TensorIOMode.INPUT, "y": self.TensorIOMode.OUTPUT}
        layers = json.dumps({"Layers": [{"LayerType": "kgen"}, {"LayerType": "kgen"}, {"LayerType": "gemm"}]})
        return SimpleNamespace(
            deserialize_cuda_engine=lambda plan: SimpleNamespace(
                num_io_tensors=2,
                get_tensor_name=lambda at: "xy"[at],
                get_tensor_mode=modes.__getitem__,
                get_tensor_dtype=lambda name: DataType.FLOAT,
                create_execution_context=lambda: self,
                create_engine_inspector=lambda: SimpleNamespace(get_engine_information=lambda form: layers),
            )
        )

    # the context

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        low, _, high = self.profile[name]
        self.live = shape
        return bool(low == shape == high)

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.output_shape or self.live

    def set_tensor_address(self, name: str, address: int) -> None:
        self.addresses[name] = address

    def execute_async_v3(self, stream: int) -> bool:
        count = int(np.prod(self.live))

        def at(name: str) -> Any:
            place = ctypes.cast(self.addresses[name], ctypes.POINTER(ctypes.c_float))
            return np.ctypeslib.as_array(place, (count,))

        at("y")[:] = at("x") * self.gain
        return self.runs


def double(trt: TensorRtDouble | None = None, cuda: CudaDouble | None = None) -> TensorRtRuntime:
    return TensorRtRuntime(trt or TensorRtDouble(), cuda or CudaDouble())
