"""One order's model on a device: read, compiled, run and checked by OpenVINO. Imported late, in the child or its zygote."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from drivers.contract import memory
from drivers.contract.base import DriverError, Unfit, WorkOrder
from drivers.contract.hardware import threads_notes
from drivers.inputs.feeds import Shapes, blame_sizes, shapes_of
from drivers.local.examples import shapes_in
from drivers.local.model import ExecutionPlace, LocalModel, Prepared
from drivers.measure.check import check
from drivers.measure.timing import TimedCalls
from drivers.openvino import graph
from drivers.openvino.files import source_of
from drivers.openvino.operators import kernels_of, operators_of, types_note
from drivers.openvino.reference import by_onnxruntime, by_plain_openvino
from drivers.openvino.runtime import OpenVinoRuntime, openvino_errors, translated
from drivers.openvino.units import CPU, HALF, device_for, precision_note, settings, verify_devices
from protocol.formats.onnx import read_table_rows

FEW_DIGITS: Final = 2e-2
"""Tolerance if the device computes with 16 bits, relative to the largest magnitude."""
MAX_PROFILED_NS: Final = 5_000_000_000
"""Longest load plus first inference on the CPU for which operators are profiled."""
NOTHING: Final[dict[int, Any]] = {}
"""Inputs other than those already bound: none."""


class OpenVinoModel(LocalModel):
    _compiled: Any
    _load_ns: int
    _shapes: Shapes

    def __init__(self, order: WorkOrder, runtime: OpenVinoRuntime) -> None:
        super().__init__(order, runtime.title)
        self._runtime = runtime
        self._device = device_for(runtime.core, order.unit, order.gpu)
        self._source = source_of(Path(order.model), order.slot)

    def load(self) -> int:
        """Load the model; includes what OpenVINO compiles for the order's shapes."""
        began = time.perf_counter_ns()
        model = self._read(self.order)
        self._compiled = self._compile(model, {})
        self._load_ns = time.perf_counter_ns() - began
        self._stateful = bool(model.get_variables())
        self._names = graph.output_names(model)
        if self.order.check and not self.order.brief:
            self.depth = graph.depth_of(model) or self.depth
        return self._load_ns

    def _read(self, order: WorkOrder) -> Any:
        """The model with the order's shapes."""
        source = self._source
        model = translated(lambda: self._runtime.core.read_model(str(source.path)))
        ports = source.graph.inputs if source.graph is not None else ()
        with openvino_errors():
            inputs = graph.inputs_of(model, ports, {}, order.shapes)
            indices = tuple(one.name for one in inputs if one.dtype in ("int32", "int64"))
            rows = read_table_rows(source.path, indices) if indices and source.graph is not None else {}
            self.inputs = graph.inputs_of(model, ports, rows, order.shapes)
        if not model.outputs:
            raise Unfit("the model has no outputs: there is nothing to run")
        self._shapes = shapes = shapes_of(order, self.inputs)
        try:
            translated(lambda: graph.keep_shapes(model, self.inputs, shapes))
        except Unfit as why:
            raise blame_sizes(order, self.inputs, shapes, why) from why
        return model

    def outputs_of(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """The outputs for an example; compiles the model again if the example has other sizes than the previous one."""
        if (shapes := shapes_in(feeds)) != self._shapes:
            order = replace(self.order, dims={}, own_dims=(), batch=None, shapes=shapes)
            self._compiled = self._compile(self._read(order), {})
        return super().outputs_of(feeds)

    def _compile(self, model: Any, more: Mapping[str, object]) -> Any:
        asked = {**settings(self._device, self.threads, self.order.compute_type), **more}
        return translated(lambda: self._runtime.core.compile_model(model, self._device, asked))

    def verify(self) -> None:
        verify_devices(self.order.unit, self._device, self._compiled.get_property("EXECUTION_DEVICES"))
        self._precision = self._property("INFERENCE_PRECISION_HINT") or "dynamic"
        if (asked := self.order.compute_type) and self._precision != asked:
            raise Unfit(f"compute_type {asked}: {self._device} still computes in {self._precision}")
        self.compute_type = "" if self._precision == "dynamic" else self._precision
        self._asked_threads = self.threads
        if self.order.unit == CPU:
            self.threads = int(self._property("INFERENCE_NUM_THREADS") or self.threads)
        if self._precision in HALF:
            self.tolerance = FEW_DIGITS

    def _property(self, name: str) -> str:
        """A property of the compiled model; empty: its device has no such property."""
        try:
            value = translated(lambda: self._compiled.get_property(name))
        except DriverError:
            return ""
        return str(value.get_type_name() if hasattr(value, "get_type_name") else value)

    def running(self) -> AbstractContextManager[object]:
        return openvino_errors()

    def attempt(self, shapes: Shapes, bound: int) -> Prepared:
        feeds, pre_ns = self.feeds(shapes, bound)
        request = self._request(self._compiled, feeds)
        call = self._caller(request)
        was_reset = memory.reset_peak()
        began = time.perf_counter_ns()
        translated(lambda: call(NOTHING))
        first_ns = time.perf_counter_ns() - began

        def outputs() -> Mapping[str, Any]:
            return self._outputs(request)

        def repeat() -> Mapping[str, Any]:
            translated(lambda: call(NOTHING))
            return outputs()

        return Prepared(
            lambda: TimedCalls(call, NOTHING),
            outputs,
            repeat,
            feeds,
            shapes,
            bound,
            pre_ns,
            first_ns,
            was_reset,
        )

    def _request(self, compiled: Any, feeds: Mapping[str, Any]) -> Any:
        """A request with its inputs bound."""
        with openvino_errors():
            request = compiled.create_infer_request()
            for index, one in enumerate(self.inputs):
                request.set_input_tensor(index, graph.to_tensor(self._runtime.ov, feeds[one.name], one.dtype))
        return request

    def _outputs(self, request: Any) -> dict[str, Any]:
        """Outputs of the request's last inference."""
        with openvino_errors():
            return {
                name: graph.to_array(request.get_output_tensor(index))
                for index, name in enumerate(self._names)
            }

    def _caller(self, request: Any) -> Callable[[object], object]:
        """A function for one inference of the bound inputs; the outputs stay in place."""
        kinds: list[Any] = type(request).mro()
        plain: Any = next((kind.infer for kind in kinds if kind.__module__.endswith("_pyopenvino")), None)

        def infer(_: object) -> object:
            return request.infer(None, share_outputs=True)

        def infer_plainly(nothing: object) -> object:
            return plain(request, nothing, True, False)

        call = infer if plain is None else infer_plainly
        if not self._stateful:
            return call

        def from_the_beginning(nothing: object) -> object:
            request.reset_state()
            return call(nothing)

        return from_the_beginning

    def ran_on(self, prepared: Prepared) -> ExecutionPlace:
        """Where the model ran, from the profile of a second compiled model; the first one has no clocks between its operators."""
        unit, device = self.order.unit, self._device
        where = f"{device}: {self._full_name()}"
        if unit == CPU and self._load_ns + prepared.first_ns > MAX_PROFILED_NS:
            return ExecutionPlace(
                unit,
                (where,),
                ("operators are not inspected, because the model takes long to load and to run",),
            )
        with openvino_errors():
            model = self._read(self.order)
            request = self._request(self._compile(model, {"PERF_COUNT": True}), prepared.feeds)
            for _ in range(2):
                self._caller(request)(NOTHING)
            kernels = kernels_of(request.get_profiling_info())
            operators = operators_of(kernels, graph.operator_types(model), where)
        note = types_note(kernels)
        return ExecutionPlace(unit, (where,), (note,) if note else (), operators)

    def _full_name(self) -> str:
        return " ".join(
            str(translated(lambda: self._runtime.core.get_property(self._device, "FULL_DEVICE_NAME"))).split()
        )

    def notes(self, prepared: Prepared) -> list[str]:
        notes = [*threads_notes(self.order.threads), f"format: {self._source.title}"]
        if self.order.unit != CPU:
            notes.append("threads: the device's plug-in has no such setting")
        elif self.threads != self._asked_threads:
            notes.append(f"threads: {self._asked_threads} requested; OpenVINO uses {self.threads}")
        notes += [precision_note(self._precision), "OpenVINO's hint LATENCY, one stream, nothing cached"]
        if self._property("ENABLE_CPU_PINNING") == "True":
            notes.append("OpenVINO binds its threads to processors")
        if self._stateful:
            notes.append("the model keeps a state, which is reset before each inference")
        if any("int" in one.dtype and not one.rows for one in self.inputs):
            notes.append(f"generated integers are below {prepared.bound}")
        tables = [one for one in self.inputs if one.rows]
        return [
            *notes,
            *(
                f"ids of {one.name!r} are below {one.rows}, the number of rows of their table"
                for one in tables
            ),
        ]

    def reference(self, prepared: Prepared) -> Mapping[str, Any]:
        """Outputs of onnxruntime, if it runs the model, which must be ONNX; otherwise of OpenVINO."""
        feeds, names, threads = prepared.feeds, self._names, self.threads
        failed = ""
        if self._source.graph is not None:
            try:
                made, self.compared_with = by_onnxruntime(
                    self._source.path, self.inputs, feeds, names, threads
                )
            except Unfit as why:
                failed = f" ({why})"
            else:
                return made
        made, note = by_plain_openvino(
            self._runtime, self._read(self.order), self.inputs, feeds, names, threads
        )
        self.compared_with = note + failed
        return made

    def explain(self, prepared: Prepared, reference: Mapping[str, Any]) -> str:
        """Whether the same device agrees with the reference when it computes in float32."""
        if self._precision not in HALF:
            return ""
        try:
            with openvino_errors():
                compiled = self._compile(self._read(self.order), {"INFERENCE_PRECISION_HINT": "f32"})
                request = self._request(compiled, prepared.feeds)
                self._caller(request)(NOTHING)
                wide = self._outputs(request)
        except DriverError:
            return ""
        if not check(wide, reference, depth=self.depth).agrees:
            return "it differs in float32 too"
        return f"it agrees in float32: {self._precision}, which OpenVINO chose, is too imprecise for this model and these inputs"
