"""One order's model on a device: loaded, run and checked by torch. Imported late, in the child or its zygote."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from drivers.contract import memory
from drivers.contract.base import DriverError, MeasureReport, ProgressReport, Unfit, WorkOrder
from drivers.contract.hardware import threads_notes
from drivers.inputs.feeds import Shapes, find_runnable, make_feeds
from drivers.inputs.synthetic import id_bounds
from drivers.local.model import ExecutionPlace, LocalModel, Prepared
from drivers.measure.timing import TimedCalls
from drivers.torch.archive import check_model
from drivers.torch.models import ModelGraph, as_arrays, flat_outputs, load, runtime, to_tensor, torch_errors
from drivers.torch.placement import unit_that_ran, watch
from drivers.torch.units import UNITS, device_for, precision_note, provider, verify_device
from protocol.formats.model_files import ModelFormat

HALF: Final = 2e-2
"""Tolerance of 16-bit types against a more precise reference, relative to the largest magnitude."""


class TorchModel(LocalModel):
    """A model that torch runs. Drivers of runtimes based on torch define their models by `check_format`, `graph` and `reference_graph`."""

    units = UNITS
    _graph: ModelGraph
    _infer: Callable[[], object]
    """One inference with the inputs of the last attempt."""

    def __init__(self, order: WorkOrder) -> None:
        self._torch = torch = runtime()
        super().__init__(order, f"torch {torch.__version__}")
        self._device = device = device_for(torch, order.unit, order.gpu, self.units)
        self._kind = self.check_format(Path(order.model))
        torch.set_num_threads(self.threads)
        self.threads = torch.get_num_threads()
        self._wait: Callable[[], object] = lambda: None
        """Returns when the device has finished."""
        if device == "mps":
            self._wait = torch.mps.synchronize
        elif device != "cpu":
            self._wait = lambda: torch.cuda.synchronize(device)
        if device != "cpu":
            with torch_errors():
                torch.zeros(1, device=device)  # the start-up of the device is no part of a load
                self._wait()

    def check_format(self, model: Path) -> ModelFormat:
        """The model's format, determined without loading it. Raises `Unfit`."""
        kind = check_model(model, self.order.trusted)
        if kind is ModelFormat.EXPORTED:
            importlib.import_module("drivers.torch.exporting")
        return kind

    def graph(self, device: str) -> ModelGraph:
        return load(self._kind, self.order, device)

    def reference_graph(self, *, wide: bool) -> ModelGraph:
        """The model on the CPU. `wide`: with its floating parameters as float32."""
        return load(self._kind, self.order, "cpu", wide)

    def load(self) -> int:
        began = time.perf_counter_ns()
        self._graph = self.graph(self._device)
        with torch_errors():
            self._wait()
        took_ns = time.perf_counter_ns() - began
        self.inputs = self._graph.inputs
        return took_ns

    def verify(self) -> None:
        module = self._graph.module
        tensors = [*module.named_parameters(), *module.named_buffers()]
        devices = {f"the weight {name}": str(tensor.device) for name, tensor in tensors}
        verify_device(self.order.unit, self._device, devices)

    def running(self) -> AbstractContextManager[object]:
        mode: AbstractContextManager[object] = self._torch.inference_mode()
        return mode

    def prepare(self) -> Prepared:
        """The first inputs that run. Synthetic integers are first tried on the CPU: an index beyond a table destroys a GPU's context, and
        with it every further attempt in this process."""
        if self._device == "cpu" or len(id_bounds(self.inputs)) == 1:
            return super().prepare()
        plain = self.graph("cpu")

        def on_cpu(shapes: Shapes, bound: int) -> tuple[Shapes, int]:
            feeds, _ = make_feeds(self.order, self.inputs, shapes, bound)
            with torch_errors():
                plain.call(*(to_tensor(feeds[one.name], one, "cpu") for one in self.inputs))
            return shapes, bound

        try:
            runnable = find_runnable(self.order, self.inputs, on_cpu)
        except DriverError:  # such as types that only the GPU supports
            return super().prepare()
        return self.attempt(*runnable)

    def attempt(self, shapes: Shapes, bound: int) -> Prepared:
        feeds, pre_ns = self.feeds(shapes, bound)
        fed = tuple(to_tensor(feeds[one.name], one, self._device) for one in self.inputs)
        call = self._caller()
        self._infer = lambda: call(fed)
        was_reset = memory.reset_peak()
        if self._device.startswith("cuda"):
            self._torch.cuda.reset_peak_memory_stats(self._device)
        with torch_errors():
            began = time.perf_counter_ns()
            call(fed)
            first_ns = time.perf_counter_ns() - began

        def outputs() -> Mapping[str, Any]:
            return self._outputs(call, fed)

        return Prepared(
            lambda: TimedCalls(call, fed), outputs, outputs, feeds, shapes, bound, pre_ns, first_ns, was_reset
        )

    def _caller(self) -> Callable[[tuple[Any, ...]], object]:
        """A function for one inference, which has finished when the function returns."""
        run, wait = self._graph.call, self._wait
        if self._device == "cpu":
            return lambda fed: run(*fed)

        def call(fed: tuple[Any, ...]) -> object:
            outputs = run(*fed)
            wait()
            return outputs

        return call

    def _outputs(self, call: Callable[[tuple[Any, ...]], object], fed: tuple[Any, ...]) -> Mapping[str, Any]:
        torch = self._torch
        with torch_errors():
            tensors = flat_outputs(call(fed))
            devices = {f"output {name}": str(tensor.device) for name, tensor in tensors.items()}
            verify_device(self.order.unit, self._device, devices)
            if any(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in tensors.values()):
                self.tolerance = HALF
            outputs = as_arrays(tensors)
        if not outputs:
            raise Unfit("the model returns no tensors: nothing to check")
        return outputs

    def time(self, prepared: Prepared, notes: list[str]) -> Generator[ProgressReport, None, MeasureReport]:
        with torch_errors():
            return (yield from super().time(prepared, notes))

    def figures(self) -> dict[str, float]:
        if not self._device.startswith("cuda"):
            return {}
        return {"gpu_peak_bytes": float(self._torch.cuda.max_memory_allocated(self._device))}

    def ran_on(self, prepared: Prepared) -> ExecutionPlace:
        shown = provider(self._torch, self._device)
        if self._device == "cpu":
            return ExecutionPlace(self.order.unit, (shown,))
        return unit_that_ran(self.order.unit, self._device, shown, watch(self._torch, self._infer))

    def notes(self, prepared: Prepared) -> list[str]:
        notes = [*threads_notes(self.order.threads), *self._graph.notes, f"format: {self._kind}"]
        if self._device != "cpu":
            notes.append("each inference includes waiting until the device has finished it")
        if note := precision_note(self._torch, self._device):
            notes.append(note)
        return notes

    def reference(self, prepared: Prepared) -> Mapping[str, Any]:
        """Outputs of the CPU, without fused kernels and optimised graphs; with float32 weights if the model's types are less precise."""
        if self.tolerance is not None:
            with contextlib.suppress(DriverError):
                return self._on_cpu(prepared, wide=True)
        return self._on_cpu(prepared, wide=False)

    def _on_cpu(self, prepared: Prepared, *, wide: bool) -> Mapping[str, Any]:
        torch = self._torch
        plain = self.reference_graph(wide=wide)
        with torch_errors(), torch.jit.optimized_execution(False), torch.backends.mkldnn.flags(enabled=False):
            tensors = [to_tensor(prepared.feeds[one.name], one, "cpu") for one in self.inputs]
            fed = [one.float() if wide and one.is_floating_point() else one for one in tensors]
            return as_arrays(flat_outputs(plain.call(*fed)))
