"""The Torch driver: TorchScript, `torch.export` programs and declared safetensors, on the CPU and on the GPU that torch finds."""

from __future__ import annotations

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
from drivers.torch.units import CPU, UNITS, device_for, provider, verify_device
from protocol.formats.model_files import ModelFormat
from protocol.formats.phase import Phase

MAX_NOTES: Final = 64
"""As many as a record takes."""
HALF: Final = 2e-2
"""Tolerance of types with few digits, where the reference has more of them: relative to the largest magnitude."""


class TorchDriver:
    """See `drivers.base.Driver`."""

    name = "torch"

    def preload(self) -> tuple[str, ...]:
        """Torch and our own modules that need it; where each launch imports anew, not what exported programs alone need."""
        ours = (
            "drivers.torch.models",
            "drivers.onnx.check",
            "drivers.measure.timing",
            "numpy.random",
            "torch",
        )
        return (*ours, "drivers.torch.exporting") if sys.platform == "linux" else ours

    def units(self) -> tuple[UnitInfo, ...]:
        """The units on which something has just run."""
        from drivers.torch.models import runtime

        if find_spec("torch") is None:  # then these units are not here, and nothing is wrong
            return ()
        torch = runtime()
        found = []
        for unit in UNITS:
            try:
                device = device_for(torch, unit)
                doubled = (torch.full((1,), 21.0, device=device) * 2).item()
            except (DriverError, RuntimeError):
                continue
            if doubled == 42:
                found.append(UnitInfo(unit, self.name, f"torch {torch.__version__}", provider(torch, device)))
        return tuple(found)

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        """One load in this process."""
        yield from _load(order, [])

    def run(self, order: WorkOrder) -> Iterator[Event]:
        """Load, find shapes, warm up, time, check. See `drivers.base.Driver`."""
        from drivers.measure import timing
        from drivers.torch.models import plain_words, runtime

        made: list[_Live] = []
        yield from _load(order, made)
        live = made[0]
        with runtime().inference_mode():
            ready = _ready(order, live)
            notes = [*threads_notes(order.threads), *ready.shapes.notes(), *live.network.notes]
            if live.device != "cpu":
                notes.append("each inference includes waiting until the device has finished it")
            with plain_words():
                loop = timing.TimedCalls(ready.call, ready.fed)
                story = timing.measure_calls(loop, order, ready.first_ns, ready.resetting)
                measured = yield from timing.gathered(story, notes)
            if order.brief:
                yield measured
                return
            yield from _told(order, live, ready, notes, measured)


@dataclass(slots=True)
class _Live:
    """The model on its device."""

    kind: ModelFormat
    network: Any
    device: str


@dataclass(slots=True)
class _Ready:
    """Inputs that run."""

    call: Callable[[tuple[Any, ...]], object]
    """One inference, finished when it returns."""
    fed: tuple[Any, ...]
    feeds: Mapping[str, Any]
    shapes: Any
    bound: int
    pre_ns: int
    first_ns: int
    """The cold inference."""
    resetting: bool


def _load(order: WorkOrder, made: list[_Live]) -> Iterator[Event]:
    """Check the file, then load it on the device, timed alone; left in `made`."""
    from drivers.contract import memory
    from drivers.torch.archive import examine
    from drivers.torch.models import load, runtime

    yield ProgressReport(Phase.PREPARE)
    torch = runtime()
    device = device_for(torch, order.unit, order.gpu)
    kind = examine(Path(order.model), order.trusted)
    if kind is ModelFormat.EXPORTED:
        importlib.import_module("drivers.torch.exporting")
    torch.set_num_threads(threads_for(order.threads))
    wait = _waiter(torch, device)
    if device != "cpu":
        torch.zeros(1, device=device)  # the device's own start belongs to no model
        wait()
    yield ProgressReport(Phase.LOAD)
    baseline = memory.resident_bytes()
    resetting = memory.reset_peak()
    began = time.perf_counter_ns()
    network = load(kind, order, device)
    wait()
    took = time.perf_counter_ns() - began
    peak = memory.peak_bytes(resetting)
    verify_device(order.unit, device, _places(network.module))
    made.append(_Live(kind, network, device))
    yield LoadReport(took, baseline, peak)


def _waiter(torch: Any, device: str) -> Callable[[], object]:
    """Returns when the device has done all that it was told to."""
    if device == "mps":
        wait: Callable[[], object] = torch.mps.synchronize
        return wait
    return (lambda: None) if device == "cpu" else (lambda: torch.cuda.synchronize(device))


def _places(module: Any) -> dict[str, str]:
    """Where parameters and buffers are."""
    held = [*module.named_parameters(), *module.named_buffers()]
    return {f"the weight {name}": str(tensor.device) for name, tensor in held}


def _ready(order: WorkOrder, live: _Live) -> _Ready:
    """The first inputs that run. Raises what the best guess failed with when nothing does."""
    from drivers.contract import steps
    from drivers.inputs.batching import dims_of, failed_with
    from drivers.inputs.made import attempts
    from protocol.formats.steps import PRE

    inputs = live.network.inputs
    steps.check(order.pre, PRE, [one.name for one in inputs])
    why: DriverError | None = None
    for shapes, bound in attempts(inputs, dims_of(order, inputs), {}):
        try:
            return _try(order, live, shapes, bound)
        except Unfit as failed:
            why = why or failed
    assert why is not None
    raise failed_with(order, why)


def _try(order: WorkOrder, live: _Live, shapes: Any, bound: int) -> _Ready:
    from drivers.contract import memory
    from drivers.inputs.feeds import feeds
    from drivers.torch.models import plain_words, runtime, to_tensor

    torch = runtime()
    made, pre_ns = feeds(order, live.network.inputs, shapes, bound)
    fed = tuple(to_tensor(made[one.name], one, live.device) for one in live.network.inputs)
    call = _caller(torch, live)
    resetting = memory.reset_peak()
    if live.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(live.device)
    with plain_words():
        began = time.perf_counter_ns()
        call(fed)
        first_ns = time.perf_counter_ns() - began
    return _Ready(call, fed, made, shapes, bound, pre_ns, first_ns, resetting)


def _caller(torch: Any, live: _Live) -> Callable[[tuple[Any, ...]], object]:
    run, device = live.network.call, live.device
    if device == "cpu":
        return lambda fed: run(*fed)
    wait = _waiter(torch, device)

    def call(fed: tuple[Any, ...]) -> object:
        told = run(*fed)
        wait()
        return told

    return call


def _told(
    order: WorkOrder, live: _Live, ready: _Ready, notes: list[str], measured: MeasureReport
) -> Iterator[Event]:
    """What is told once for a task: what ran and where, whether it is right, what the device held."""
    from drivers.inputs.feeds import post_run
    from drivers.inputs.made import unused
    from drivers.torch.models import as_arrays, flat_outputs, plain_words, runtime

    torch, inputs = runtime(), live.network.inputs
    figures = {"pre_ms": ready.pre_ns / 1e6} if order.pre else {}
    if live.device.startswith("cuda"):
        figures["gpu_peak_bytes"] = float(torch.cuda.max_memory_allocated(live.device))
    with plain_words():
        tensors = flat_outputs(ready.call(ready.fed))
        verify_device(
            order.unit, live.device, {f"output {name}": str(held.device) for name, held in tensors.items()}
        )
        narrow = any(held.dtype in (torch.bfloat16, torch.float16) for held in tensors.values())
        outputs = as_arrays(tensors)
    if not outputs:
        raise Unfit("the model gives no tensors, so there is nothing to check it by")
    if order.post:
        took, said = post_run(order, outputs)
        figures["post_ms"] = took / 1e6
        notes += said
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
    yield _checked(order, live, ready, outputs, narrow)
    if figures:
        yield RunFindings(figures)


def _checked(
    order: WorkOrder, live: _Live, ready: _Ready, outputs: dict[str, Any], narrow: bool
) -> CheckReport:
    """Against the CPU with float32 weights where the model's have fewer digits; without fused kernels and optimised graphs."""
    from drivers.onnx.check import check, digest, unstable
    from drivers.torch.models import as_arrays, flat_outputs, load, plain_words, runtime, to_tensor

    torch = runtime()
    if not order.check:
        return CheckReport(None, digest(outputs), None, None, "not asked for")
    with plain_words():
        again = as_arrays(flat_outputs(ready.call(ready.fed)))
    if unstable(outputs, again):
        words = "the model answers differently each time: nothing to compare with"
        return CheckReport(None, digest(outputs), None, None, words)
    words = ""
    reference: dict[str, Any] | None = None
    for wide in (True, False) if narrow else (False,):
        try:
            plain = load(live.kind, order, "cpu", wide)
            with (
                plain_words(),
                torch.jit.optimized_execution(False),
                torch.backends.mkldnn.flags(enabled=False),
            ):
                held = [to_tensor(ready.feeds[one.name], one, "cpu") for one in live.network.inputs]
                fed = [one.float() if wide and one.is_floating_point() else one for one in held]
                reference = as_arrays(flat_outputs(plain.call(*fed)))
            break
        except DriverError as why:
            words = f"no reference: {why}"[:1000]
    if reference is None:
        return CheckReport(None, digest(outputs), None, None, words)
    return check(outputs, reference, HALF if narrow else None)


__all__ = ["CPU", "TorchDriver"]
