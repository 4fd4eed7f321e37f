"""The Torch driver: TorchScript, `torch.export` programs and declared safetensors, on the CPU and on the GPU that torch finds."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from drivers.contract.base import (
    CheckReport,
    DriverError,
    Event,
    LoadReport,
    MeasureReport,
    ModelDescription,
    ProgressReport,
    RunFindings,
    Unfit,
    UnitInfo,
    WorkOrder,
)
from drivers.contract.hardware import threads_for, threads_notes
from drivers.torch.units import UNITS, device_for, provider, verify_device
from protocol.formats.model_files import ModelFormat
from protocol.formats.phase import Phase

MAX_NOTES: Final = 64
"""Limit of a record."""
HALF: Final = 2e-2
"""Tolerance of 16-bit types against a reference with more digits, relative to the largest magnitude."""


class TorchDriver:
    """See `drivers.contract.base.Driver`."""

    name = "torch"

    def preload(self) -> tuple[str, ...]:
        """Torch and our modules that need it; those for exported programs only if launches are forked."""
        modules = (
            "drivers.torch.models",
            "drivers.measure.check",
            "drivers.measure.timing",
            "numpy.random",
            "torch",
        )
        return (*modules, "drivers.torch.exporting") if sys.platform == "linux" else modules

    def units(self) -> tuple[UnitInfo, ...]:
        """The units on which a tensor has just been computed."""
        from drivers.torch.models import runtime

        if find_spec("torch") is None:  # no units, and no error
            return ()
        torch = runtime()
        units = []
        for unit in UNITS:
            try:
                device = device_for(torch, unit)
                doubled = (torch.full((1,), 21.0, device=device) * 2).item()
            except (DriverError, RuntimeError):
                continue
            if doubled == 42:
                units.append(UnitInfo(unit, self.name, f"torch {torch.__version__}", provider(torch, device)))
        return tuple(units)

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        """One load in this process."""
        yield from _load(order, [])

    def run(self, order: WorkOrder) -> Iterator[Event]:
        """Load, find shapes, warm up, time, check."""
        from drivers.inputs.feeds import find_runnable
        from drivers.measure import timing
        from drivers.torch.models import runtime, torch_errors

        loaded: list[_LiveModel] = []
        yield from _load(order, loaded)
        live = loaded[0]
        with runtime().inference_mode():
            ready = find_runnable(
                order, live.graph.inputs, {}, lambda shapes, bound: _try(order, live, shapes, bound)
            )
            notes = [*threads_notes(order.threads), *ready.shapes.notes(), *live.graph.notes]
            if live.device != "cpu":
                notes.append("each inference includes waiting until the device has finished it")
            with torch_errors():
                loop = timing.TimedCalls(ready.call, ready.fed)
                events = timing.measure_calls(loop, order, ready.first_ns, ready.peak_was_reset)
                measured = yield from timing.collect(events, notes)
            if order.brief:
                yield measured
                return
            yield from _reports(order, live, ready, notes, measured)


@dataclass(slots=True)
class _LiveModel:
    """The model on its device."""

    kind: ModelFormat
    graph: Any
    device: str


@dataclass(slots=True)
class _ReadyModel:
    """Inputs that run."""

    call: Callable[[tuple[Any, ...]], object]
    """One inference, finished when it returns."""
    fed: tuple[Any, ...]
    feeds: Mapping[str, Any]
    shapes: Any
    pre_ns: int
    first_ns: int
    """Of the cold inference."""
    peak_was_reset: bool


def _load(order: WorkOrder, loaded: list[_LiveModel]) -> Iterator[Event]:
    """Check the file, then load it on the device; appended to `loaded`."""
    from drivers.contract import memory
    from drivers.torch.archive import check_model
    from drivers.torch.models import load, runtime

    yield ProgressReport(Phase.PREPARE)
    torch = runtime()
    device = device_for(torch, order.unit, order.gpu)
    kind = check_model(Path(order.model), order.trusted)
    if kind is ModelFormat.EXPORTED:
        importlib.import_module("drivers.torch.exporting")
    torch.set_num_threads(threads_for(order.threads))
    wait = _waiter(torch, device)
    if device != "cpu":
        torch.zeros(1, device=device)  # the device's own start-up is no part of a load
        wait()
    yield ProgressReport(Phase.LOAD)
    baseline = memory.resident_bytes()
    resetting = memory.reset_peak()
    began = time.perf_counter_ns()
    graph = load(kind, order, device)
    wait()
    took = time.perf_counter_ns() - began
    peak = memory.peak_bytes(resetting)
    verify_device(order.unit, device, _devices(graph.module))
    loaded.append(_LiveModel(kind, graph, device))
    yield LoadReport(took, baseline, peak)


def _waiter(torch: Any, device: str) -> Callable[[], object]:
    """A function that returns when the device has finished."""
    if device == "mps":
        wait: Callable[[], object] = torch.mps.synchronize
        return wait
    return (lambda: None) if device == "cpu" else (lambda: torch.cuda.synchronize(device))


def _devices(module: Any) -> dict[str, str]:
    """The device of each parameter and buffer."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {f"the weight {name}": str(tensor.device) for name, tensor in tensors}


def _try(order: WorkOrder, live: _LiveModel, shapes: Any, bound: int) -> _ReadyModel:
    from drivers.contract import memory
    from drivers.inputs.feeds import make_feeds
    from drivers.torch.models import runtime, to_tensor, torch_errors

    torch = runtime()
    feeds, pre_ns = make_feeds(order, live.graph.inputs, shapes, bound)
    fed = tuple(to_tensor(feeds[one.name], one, live.device) for one in live.graph.inputs)
    call = _caller(torch, live)
    peak_was_reset = memory.reset_peak()
    if live.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(live.device)
    with torch_errors():
        began = time.perf_counter_ns()
        call(fed)
        first_ns = time.perf_counter_ns() - began
    return _ReadyModel(call, fed, feeds, shapes, pre_ns, first_ns, peak_was_reset)


def _caller(torch: Any, live: _LiveModel) -> Callable[[tuple[Any, ...]], object]:
    run, device = live.graph.call, live.device
    if device == "cpu":
        return lambda fed: run(*fed)
    wait = _waiter(torch, device)

    def call(fed: tuple[Any, ...]) -> object:
        outputs = run(*fed)
        wait()
        return outputs

    return call


def _reports(
    order: WorkOrder, live: _LiveModel, ready: _ReadyModel, notes: list[str], measured: MeasureReport
) -> Iterator[Event]:
    """What is reported once for a task: what ran and where, whether it is right, the device's memory."""
    from drivers.inputs.feeds import post_run
    from drivers.inputs.made import unused
    from drivers.torch.models import as_arrays, flat_outputs, runtime, torch_errors

    torch, inputs = runtime(), live.graph.inputs
    figures = {"pre_ms": ready.pre_ns / 1e6} if order.pre else {}
    if live.device.startswith("cuda"):
        figures["gpu_peak_bytes"] = float(torch.cuda.max_memory_allocated(live.device))
    with torch_errors():
        tensors = flat_outputs(ready.call(ready.fed))
        verify_device(
            order.unit,
            live.device,
            {f"output {name}": str(tensor.device) for name, tensor in tensors.items()},
        )
        narrow = any(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in tensors.values())
        outputs = as_arrays(tensors)
    if not outputs:
        raise Unfit("the model returns no tensors: nothing to check")
    if order.post:
        post_ns, changes = post_run(order, outputs)
        figures["post_ms"] = post_ns / 1e6
        notes += changes
    notes += [*unused(inputs, order.dims), f"format: {live.kind}"]
    yield ModelDescription(
        unit=order.unit,
        driver="torch",
        runtime=f"torch {torch.__version__}",
        providers=(provider(torch, live.device),),
        threads=torch.get_num_threads(),
        shapes={one.name: ready.shapes.of(one) for one in inputs},
        dtypes={one.name: one.dtype for one in inputs},
        seed=order.seed,
        notes=tuple(note[:500] for note in notes[:MAX_NOTES]),
        batch=order.batch,
    )
    yield measured
    yield ProgressReport(Phase.CHECK)
    yield _check(order, live, ready, outputs, narrow)
    if figures:
        yield RunFindings(figures)


def _check(
    order: WorkOrder, live: _LiveModel, ready: _ReadyModel, outputs: dict[str, Any], narrow: bool
) -> CheckReport:
    """Against the CPU, without fused kernels and optimised graphs; with float32 weights if the model's types have fewer digits."""
    from drivers.measure.check import make_report
    from drivers.torch.models import as_arrays, flat_outputs, load, runtime, to_tensor, torch_errors

    torch = runtime()

    def repeat() -> dict[str, Any]:
        with torch_errors():
            return as_arrays(flat_outputs(ready.call(ready.fed)))

    def reference(wide: bool) -> dict[str, Any]:
        plain = load(live.kind, order, "cpu", wide)
        with (
            torch_errors(),
            torch.jit.optimized_execution(False),
            torch.backends.mkldnn.flags(enabled=False),
        ):
            tensors = [to_tensor(ready.feeds[one.name], one, "cpu") for one in live.graph.inputs]
            fed = [one.float() if wide and one.is_floating_point() else one for one in tensors]
            return as_arrays(flat_outputs(plain.call(*fed)))

    def best_reference() -> dict[str, Any]:
        if narrow:
            with contextlib.suppress(DriverError):
                return reference(wide=True)
        return reference(wide=False)

    return make_report(order, outputs, repeat, best_reference, HALF if narrow else None)
