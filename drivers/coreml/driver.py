"""The CoreML driver: `.mlmodel` and `.mlpackage` on a Mac's CPU, GPU and Neural Engine, by coremltools.

Elsewhere its units are not offered, and a model is refused with that reason. coremltools and the system come as arguments, so that all
but CoreML itself can be checked anywhere.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from drivers.contract.base import (
    CheckReport,
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
from drivers.contract.hardware import threads_for
from drivers.coreml.units import CPU, GPU, UNITS, compute_unit, count_places, present, require_macos, verdict
from protocol.formats.phase import Phase

MAX_NOTES: Final = 64
HALF: Final = 2e-2
"""The GPU and the Neural Engine compute with 16 bits: tolerance relative to the largest magnitude."""
FOLDER: Final = "model"


class CoreMLDriver:
    """See `drivers.contract.base.Driver`. `ct`: coremltools, imported when it is first needed if None."""

    name = "coreml"

    def __init__(self, ct: Any = None, platform: str = sys.platform) -> None:
        self._given = ct
        self._platform = platform

    @property
    def _ct(self) -> Any:
        if self._given is None:
            try:
                self._given = importlib.import_module("coremltools")
            except ImportError as why:
                hint = "python -m pip install 'sark-node[coreml]'"
                raise Unfit(f"coremltools cannot be imported: {why}; {hint}") from why
        return self._given

    def preload(self) -> tuple[str, ...]:
        """Nothing: on macOS each launch does its own imports."""
        return ()

    def units(self) -> tuple[UnitInfo, ...]:
        """On a Mac, the units whose device the system lists and which have just run a tiny network."""
        if self._platform != "darwin" or (self._given is None and find_spec("coremltools") is None):
            return ()
        ct = self._ct
        units = []
        for one in _listed(ct):
            try:
                model = ct.models.MLModel(tiny(ct), compute_units=compute_unit(ct, one.unit))
                outputs = model.predict({"x": _array(21.0)})
            except (RuntimeError, ValueError, TypeError, OSError):
                continue
            if float(next(iter(outputs.values())).reshape(-1)[0]) == 42:
                units.append(UnitInfo(one.unit, self.name, f"coremltools {ct.__version__}", one.compute_unit))
        return tuple(units)

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        """One load in this process."""
        yield from self._load(order, [])

    def run(self, order: WorkOrder) -> Iterator[Event]:
        """Load, warm up, time, check."""
        from drivers.inputs.feeds import find_runnable
        from drivers.measure import timing

        loaded: list[_LiveModel] = []
        yield from self._load(order, loaded)
        live = loaded[0]
        ready = find_runnable(order, live.inputs, {}, lambda shapes, bound: _try(order, live, shapes, bound))
        notes = [*ready.shapes.notes(), "a load includes what CoreML compiles", *_asked_threads(order)]
        loop = timing.TimedCalls(live.model.predict, ready.fed)
        events = timing.measure_calls(loop, order, ready.first_ns, ready.peak_was_reset)
        measured = yield from timing.collect(events, notes)
        if order.brief:
            yield measured
            return
        yield from self._reports(order, live, ready, notes, measured)

    def _load(self, order: WorkOrder, loaded: list[_LiveModel]) -> Iterator[Event]:
        from drivers.contract import memory
        from drivers.coreml.spec import images_of, inputs_of, refuse_custom

        yield ProgressReport(Phase.PREPARE)
        require_macos(self._platform, order.unit)
        ct = self._ct
        path = private_name(Path(order.model), Path(FOLDER))
        spec = translated(lambda: ct.utils.load_spec(str(path)))
        refuse_custom(spec)
        inputs, images = inputs_of(spec), images_of(spec)
        yield ProgressReport(Phase.LOAD)
        baseline = memory.resident_bytes()
        resetting = memory.reset_peak()
        began = time.perf_counter_ns()
        model = translated(lambda: ct.models.MLModel(str(path), compute_units=compute_unit(ct, order.unit)))
        took = time.perf_counter_ns() - began
        loaded.append(_LiveModel(model, str(path), inputs, images))
        yield LoadReport(took, baseline, memory.peak_bytes(resetting))

    def _reports(
        self,
        order: WorkOrder,
        live: _LiveModel,
        ready: _ReadyModel,
        notes: list[str],
        measured: MeasureReport,
    ) -> Iterator[Event]:
        from drivers.inputs.feeds import post_run
        from drivers.inputs.made import unused

        ct = self._ct
        notes += [verdict(order.unit, plan_of(ct, live.model, order.unit)), *unused(live.inputs, order.dims)]
        outputs = as_arrays(translated(lambda: live.model.predict(ready.fed)))
        figures = {"pre_ms": ready.pre_ns / 1e6} if order.pre else {}
        if order.post:
            post_ns, changes = post_run(order, outputs)
            figures["post_ms"] = post_ns / 1e6
            notes += changes
        yield ModelDescription(
            unit=order.unit,
            driver=self.name,
            runtime=f"coremltools {ct.__version__}",
            providers=(compute_unit(ct, order.unit).name,),
            threads=threads_for(order.threads),
            shapes={one.name: ready.shapes.of(one) for one in live.inputs},
            dtypes={one.name: one.dtype for one in live.inputs},
            seed=order.seed,
            notes=tuple(note[:500] for note in notes[:MAX_NOTES]),
            batch=order.batch,
        )
        yield measured
        yield ProgressReport(Phase.CHECK)
        yield self._check(order, live, ready, outputs)
        if figures:
            yield RunFindings(figures)

    def _check(
        self, order: WorkOrder, live: _LiveModel, ready: _ReadyModel, outputs: dict[str, Any]
    ) -> CheckReport:
        """Against the same model on the CPU alone."""
        from drivers.measure.check import make_report

        def reference() -> dict[str, Any]:
            unit = compute_unit(self._ct, CPU)
            plain = translated(lambda: self._ct.models.MLModel(live.path, compute_units=unit))
            return as_arrays(_predict(plain, ready.fed))

        def repeat() -> dict[str, Any]:
            return as_arrays(_predict(live.model, ready.fed))

        return make_report(order, outputs, repeat, reference, None if order.unit == CPU else HALF)


@dataclass(slots=True)
class _LiveModel:
    """The model, loaded."""

    model: Any
    path: str
    inputs: tuple[Any, ...]
    images: Mapping[str, int]
    """Channels of the inputs that are images."""


@dataclass(slots=True)
class _ReadyModel:
    """Inputs that run."""

    fed: Mapping[str, Any]
    shapes: Any
    pre_ns: int
    first_ns: int
    peak_was_reset: bool


def _try(order: WorkOrder, live: _LiveModel, shapes: Any, bound: int) -> _ReadyModel:
    from drivers.contract import memory
    from drivers.inputs.feeds import make_feeds

    feeds, pre_ns = make_feeds(order, live.inputs, shapes, bound)
    fed = {name: _picture(value) if name in live.images else value for name, value in feeds.items()}
    peak_was_reset = memory.reset_peak()
    began = time.perf_counter_ns()
    _predict(live.model, fed)
    return _ReadyModel(fed, shapes, pre_ns, time.perf_counter_ns() - began, peak_was_reset)


def _predict(model: Any, fed: Mapping[str, Any]) -> Any:
    return translated(lambda: model.predict(fed))


def _asked_threads(order: WorkOrder) -> tuple[str, ...]:
    return (
        () if order.threads is None else ("threads: CoreML chooses their number; the setting has no effect",)
    )


def _listed(ct: Any) -> Iterable[Any]:
    """The units whose device the system lists; without a list (before macOS 14) the CPU and the GPU."""
    try:
        return present(ct.models.compute_device.MLComputeDevice.get_all_compute_devices())
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return tuple(one for one in UNITS if one.unit in (CPU, GPU))


def plan_of(ct: Any, model: Any, unit: str) -> Counter[str]:
    """How many operators run where, by CoreML's plan for the compiled model; empty without one (before macOS 14.4)."""
    try:
        plan = ct.models.compute_plan.MLComputePlan.load_from_path(
            path=model.get_compiled_model_path(), compute_units=compute_unit(ct, unit)
        )
        structure = plan.model_structure
        if structure.program is not None:
            functions = structure.program.functions.values()
            operations = [one for function in functions for one in function.block.operations]
            return count_places(map(plan.get_compute_device_usage_for_mlprogram_operation, operations))
        if structure.neuralnetwork is not None:
            layers = structure.neuralnetwork.layers
            return count_places(map(plan.get_compute_device_usage_for_neuralnetwork_layer, layers))
    except (AttributeError, RuntimeError, TypeError, ValueError, OSError):
        return Counter()
    return Counter()


def private_name(model: Path, folder: Path) -> Path:
    """A link to the model in a private folder, with the suffix that CoreML needs. Raises `Unfit`."""
    from drivers.contract.formats import broken_is_unfit
    from drivers.coreml.spec import check_kind
    from protocol.formats.model_files import read_format

    with broken_is_unfit():
        ending = check_kind(model, read_format(model))
    folder.mkdir(exist_ok=True)
    private = folder / f"model{ending}"
    private.unlink(missing_ok=True)
    private.symlink_to(model.resolve(), target_is_directory=model.is_dir())
    return private


def translated(call: Callable[[], Any]) -> Any:
    """`call()`, with coremltools' errors as `Unfit`."""
    try:
        return call()
    except broken() as why:
        lines = [line.strip() for line in str(why).splitlines() if line.strip()]
        raise Unfit(f"CoreML: {type(why).__name__}: {' '.join(lines[:3])[:500]}") from why


def broken() -> tuple[type[Exception], ...]:
    """What coremltools, its parser and Objective-C raise for a model that does not fit."""
    known = (RuntimeError, ValueError, TypeError, KeyError, AttributeError, OSError)
    try:
        return (*known, importlib.import_module("google.protobuf.message").DecodeError)
    except ImportError:
        return known


def as_arrays(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs as arrays; what is neither a number nor an array as it is."""
    import numpy as np

    return {
        name: np.array(value) if isinstance(value, np.ndarray | np.generic | int | float) else value
        for name, value in outputs.items()
    }


def _array(value: float) -> Any:
    import numpy as np

    return np.full((1,), value, np.float32)


def _picture(values: Any) -> Any:
    """Bytes as a Pillow image, which coremltools needs. Raises `Unfit` without Pillow."""
    try:
        image = importlib.import_module("PIL.Image")
    except ImportError as why:
        raise Unfit("the model takes a picture, which needs Pillow: python -m pip install pillow") from why
    return image.fromarray(values[:, :, 0] if values.shape[2] == 1 else values)


def tiny(ct: Any) -> Any:
    """y = 2 x on one float, as a specification: what a unit must run before it is offered."""
    kind = ct.models.datatypes.Array(1)
    builder = ct.models.neural_network.NeuralNetworkBuilder([("x", kind)], [("y", kind)])
    builder.add_activation(
        name="double", non_linearity="LINEAR", input_name="x", output_name="y", params=[2.0, 0.0]
    )
    return builder.spec
