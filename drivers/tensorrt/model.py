"""One order's ONNX model: built, run and checked by TensorRT, which is an argument."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import numpy as np

from drivers.contract import memory
from drivers.contract.base import MAX_OPERATORS, DriverError, OperatorReport, Unfit, WorkOrder, WrongUnit
from drivers.contract.formats import broken_is_unfit
from drivers.inputs.feeds import Shapes, blame_sizes, make_feeds, shapes_of
from drivers.inputs.synthetic import Input
from drivers.local.model import ExecutionPlace, LocalModel, Prepared
from drivers.measure.timing import TimedCalls
from drivers.onnx.session import private_copy
from drivers.openvino.reference import by_onnxruntime
from drivers.tensorrt.runtime import GPU, TensorRtRuntime, refused, tensorrt_errors
from protocol.formats.model_files import FormatError, ModelFormat, read_format
from protocol.formats.onnx import read_graph, read_table_rows

TYPES: Final[Mapping[str, str]] = {
    "FLOAT": "float",
    "HALF": "float16",
    "INT32": "int32",
    "INT64": "int64",
    "INT8": "int8",
    "UINT8": "uint8",
    "BOOL": "bool",
}
"""Element types of inputs, as onnxruntime calls them. numpy does not carry the others."""


def listening(trt: Any, said: list[str]) -> Any:
    """A logger that keeps TensorRT's errors in `said`."""

    class ErrorsOnly(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                said.append(text)

    return ErrorsOnly()


class TensorRtModel(LocalModel):
    def __init__(self, order: WorkOrder, found: TensorRtRuntime) -> None:
        if order.unit != GPU:
            raise WrongUnit(f"unknown unit {order.unit!r}: this driver has {GPU}")
        super().__init__(order, found.title)
        self._found, self._trt = found, found.trt
        self._said: list[str] = []
        """TensorRT's errors."""
        with broken_is_unfit():
            kind = read_format(Path(order.model))
        if kind not in (ModelFormat.OTHER, ModelFormat.FOLDER):
            raise Unfit(f"TensorRT runs .onnx models; this is not one ({kind})")
        self._path = private_copy(order.model, Path(f"tensorrt{order.slot or ''}"))
        try:
            self._ports = {port.name: port.shape for port in read_graph(self._path).inputs}
        except FormatError as why:
            raise Unfit(f"the model {why}") from why
        properties = found.call("cudaGetDeviceProperties", 0)
        name = properties.name
        self.gpu_name = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
        self._stream = found.call("cudaStreamCreate")

    def running(self) -> AbstractContextManager[object]:
        return tensorrt_errors()

    def load(self) -> int:
        """Read the model, build the engine for the order's shapes, and make a context of it."""
        trt = self._trt
        with tensorrt_errors():
            began = time.perf_counter_ns()
            logger = self._logger = listening(trt, self._said)
            builder = trt.Builder(logger)
            network = builder.create_network(0)
            parser = trt.OnnxParser(network, logger)
            if not parser.parse_from_file(str(self._path)):
                raise refused(
                    "; ".join(str(parser.get_error(at).desc()) for at in range(parser.num_errors))
                    or "the model cannot be read"
                )
            self.inputs = tuple(self._input(network.get_input(at)) for at in range(network.num_inputs))
            shapes = shapes_of(self.order, self.inputs)
            config, profile = builder.create_builder_config(), builder.create_optimization_profile()
            config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
            for name, shape in shapes.items():
                profile.set_shape(name, shape, shape, shape)
            config.add_optimization_profile(profile)
            plan = builder.build_serialized_network(network, config)
            if plan is None:
                raise self._failed("no engine can be built from the model for this GPU", shapes)
            self._runtime = trt.Runtime(logger)
            self._engine = self._runtime.deserialize_cuda_engine(plan)
            self._context = self._engine.create_execution_context()
            took_ns = time.perf_counter_ns() - began
        names = [self._engine.get_tensor_name(at) for at in range(self._engine.num_io_tensors)]
        self._outputs = [
            name for name in names if self._engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT
        ]
        if not self._outputs:
            raise Unfit("the model has no outputs: there is nothing to run")
        return took_ns

    def _input(self, tensor: Any) -> Input:
        """An input, with the file's symbols for sizes that TensorRT reports as dynamic."""
        kind = TYPES.get(tensor.dtype.name)
        if kind is None or tensor.is_shape_tensor:
            what = "a shape" if kind is not None else tensor.dtype.name
            raise Unfit(f"input {tensor.name!r} is {what}, which cannot be generated for TensorRT")
        sizes, known = tuple(tensor.shape), self._ports.get(tensor.name, ())
        symbols = known if len(known) == len(sizes) else (None,) * len(sizes)
        shape = tuple(symbol if size < 0 else int(size) for size, symbol in zip(sizes, symbols, strict=True))
        rows = read_table_rows(self._path, (tensor.name,)) if kind in ("int32", "int64") else {}
        return Input(tensor.name, kind, shape, rows.get(tensor.name))

    def _failed(self, what: str, shapes: Shapes | None = None) -> DriverError:
        """An error with TensorRT's latest message. `shapes`: shapes that may be wrong."""
        why = refused(f"{what}: {self._said[-1]}" if self._said else what)
        return blame_sizes(self.order, self.inputs, shapes, why) if shapes and isinstance(why, Unfit) else why

    def verify(self) -> None:
        """Do nothing: an engine is for the GPU that it was built on, and nothing else runs it."""

    def _bind(self, feeds: Mapping[str, Any]) -> dict[str, tuple[int, tuple[int, ...], Any]]:
        """Copy the inputs to the GPU; returns address, shape and type of each output there."""
        context, found = self._context, self._found
        for name, values in feeds.items():
            if not context.set_input_shape(name, values.shape):
                raise Unfit(f"TensorRT: input {name!r} cannot be {values.shape}")
            context.set_tensor_address(name, found.upload(values))
        bound = {}
        for name in self._outputs:
            shape = tuple(int(size) for size in context.get_tensor_shape(name))
            if any(size < 0 for size in shape):
                raise Unfit(f"output {name!r} has a shape that depends on values, which is not measured")
            dtype = np.dtype(self._trt.nptype(self._engine.get_tensor_dtype(name)))
            address = found.upload(np.zeros(shape, dtype))
            context.set_tensor_address(name, address)
            bound[name] = (address, shape, dtype)
        return bound

    def _infer(self, stream: Any) -> None:
        if not self._context.execute_async_v3(int(stream)):
            raise self._failed("the inference failed")
        self._found.call("cudaStreamSynchronize", stream)

    def attempt(self, shapes: Shapes, bound: int) -> Prepared:
        feeds, pre_ns = make_feeds(self.order, self.inputs, shapes, bound)
        places, stream = self._bind(feeds), self._stream
        was_reset = memory.reset_peak()
        began = time.perf_counter_ns()
        self._infer(stream)
        first_ns = time.perf_counter_ns() - began

        def outputs() -> Mapping[str, Any]:
            return {name: self._found.download(*place) for name, place in places.items()}

        def repeat() -> Mapping[str, Any]:
            self._infer(stream)
            return outputs()

        return Prepared(
            lambda: TimedCalls(self._infer, stream),
            outputs,
            repeat,
            feeds,
            shapes,
            bound,
            pre_ns,
            first_ns,
            was_reset,
        )

    def outputs_for(self, values: Mapping[str, float]) -> Mapping[str, Any]:
        """Outputs for inputs that are each filled with one value."""
        shapes = shapes_of(self.order, self.inputs)
        with tensorrt_errors():
            places = self._bind(
                {name: np.full(shapes[name], one, np.float32) for name, one in values.items()}
            )
            self._infer(self._stream)
            return {name: self._found.download(*place) for name, place in places.items()}

    def ran_on(self, prepared: Prepared) -> ExecutionPlace:
        """Where the model ran: everything is in the engine. Its layers are TensorRT's own, each made of one or more of the model's
        operators."""
        inspector, form = (
            self._engine.create_engine_inspector(),
            self._trt.LayerInformationFormat.JSON,
        )
        try:
            layers = json.loads(inspector.get_engine_information(form)).get("Layers", [])
        except ValueError:
            layers = []
        kinds = Counter(str(one.get("LayerType", "")) for one in layers if isinstance(one, dict))
        operators = tuple(
            OperatorReport(op=kind[:200], provider="TensorRT", ran=number)
            for kind, number in kinds.most_common(MAX_OPERATORS)
        )
        note = f"an engine of {len(layers)} layers, built in this launch: the load includes the build"
        return ExecutionPlace(self.order.unit, (f"TensorRT: {self.gpu_name}",), (note,), operators)

    def notes(self, prepared: Prepared) -> list[str]:
        return [
            "inputs and outputs in the GPU's memory, each inference waited for",
            "float32 products and convolutions may use TF32, with 10 bits of mantissa, where the GPU has it",
        ]

    def reference(self, prepared: Prepared) -> Mapping[str, Any]:
        """Outputs of onnxruntime on the CPU without graph optimisation."""
        made, self.compared_with = by_onnxruntime(
            self._path, self.inputs, prepared.feeds, self._outputs, self.threads
        )
        return made
