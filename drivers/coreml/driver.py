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
from drivers.contract.hardware import threads_for
from drivers.coreml.units import CPU, GPU, UNITS, compute_unit, count_places, only_here, present, verdict
from protocol.formats.phase import Phase

MAX_NOTES: Final = 64
HALF: Final = 2e-2
"""The GPU and the Neural Engine compute with 16 bits: tolerance relative to the largest magnitude."""
FOLDER: Final = "model"


class CoreMLDriver:
    """See `drivers.base.Driver`. `ct`: coremltools, imported when it is first needed if None."""

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
                words = "python -m pip install 'sark-node[coreml]'"
                raise Unfit(f"coremltools is not usable here: {why}; {words}") from why
        return self._given

    def preload(self) -> tuple[str, ...]:
        """Nothing: on macOS each launch imports for itself."""
        return ()

    def units(self) -> tuple[UnitInfo, ...]:
        """On a Mac, the units whose device the system lists and on which a small network has just run."""
        if self._platform != "darwin" or (self._given is None and find_spec("coremltools") is None):
            return ()
        ct = self._ct
        found = []
        for one in _listed(ct):
            try:
                model = ct.models.MLModel(tiny(ct), compute_units=compute_unit(ct, one.unit))
                told = model.predict({"x": _array(21.0)})
            except (RuntimeError, ValueError, TypeError, OSError):
                continue
            if float(next(iter(told.values())).reshape(-1)[0]) == 42:
                found.append(UnitInfo(one.unit, self.name, f"coremltools {ct.__version__}", one.asked))
        return tuple(found)

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        """One load in this process."""
        yield from self._load(order, [])

    def run(self, order: WorkOrder) -> Iterator[Event]:
        """Load, warm up, time, check. See `drivers.base.Driver`."""
        from drivers.measure import timing

        made: list[_Live] = []
        yield from self._load(order, made)
        live = made[0]
        ready = _ready(order, live)
        notes = [*ready.shapes.notes(), "a load includes what CoreML compiles", *_asked_threads(order)]
        loop = timing.TimedCalls(live.model.predict, ready.fed)
        story = timing.measure_calls(loop, order, ready.first_ns, ready.resetting)
        measured = yield from timing.gathered(story, notes)
        if order.brief:
            yield measured
            return
        yield from self._told(order, live, ready, notes, measured)

    def _load(self, order: WorkOrder, made: list[_Live]) -> Iterator[Event]:
        from drivers.contract import memory
        from drivers.coreml.spec import images_of, inputs_of, refuse_custom

        yield ProgressReport(Phase.PREPARE)
        only_here(self._platform, order.unit)
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
        made.append(_Live(model, str(path), inputs, images))
        yield LoadReport(took, baseline, memory.peak_bytes(resetting))

    def _told(
        self, order: WorkOrder, live: _Live, ready: _Ready, notes: list[str], measured: MeasureReport
    ) -> Iterator[Event]:
        from drivers.inputs.feeds import post_run
        from drivers.inputs.made import unused

        ct = self._ct
        notes += [verdict(order.unit, plan_of(ct, live.model, order.unit)), *unused(live.inputs, order.dims)]
        outputs = as_arrays(translated(lambda: live.model.predict(ready.fed)))
        figures = {"pre_ms": ready.pre_ns / 1e6} if order.pre else {}
        if order.post:
            took, said = post_run(order, outputs)
            figures["post_ms"] = took / 1e6
            notes += said
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
        yield self._checked(order, live, ready, outputs)
        if figures:
            yield RunFindings(figures)

    def _checked(self, order: WorkOrder, live: _Live, ready: _Ready, outputs: dict[str, Any]) -> CheckReport:
        """Against the same model on the CPU alone."""
        from drivers.onnx.check import check, digest, unstable

        if not order.check:
            return CheckReport(None, digest(outputs), None, None, "not asked for")
        again = as_arrays(translated(lambda: live.model.predict(ready.fed)))
        if unstable(outputs, again):
            words = "the model answers differently each time: nothing to compare with"
            return CheckReport(None, digest(outputs), None, None, words)
        try:
            plain = translated(
                lambda: self._ct.models.MLModel(live.path, compute_units=compute_unit(self._ct, CPU))
            )
            reference = as_arrays(translated(lambda: plain.predict(ready.fed)))
        except DriverError as why:
            return CheckReport(None, digest(outputs), None, None, f"no reference: {why}"[:1000])
        return check(outputs, reference, None if order.unit == CPU else HALF)


@dataclass(slots=True)
class _Live:
    """The model, loaded."""

    model: Any
    path: str
    inputs: tuple[Any, ...]
    images: Mapping[str, int]
    """Channels of the inputs that are images."""


@dataclass(slots=True)
class _Ready:
    """Inputs that run."""

    fed: Mapping[str, Any]
    shapes: Any
    pre_ns: int
    first_ns: int
    resetting: bool


def _ready(order: WorkOrder, live: _Live) -> _Ready:
    """The first inputs that run. Raises what the best guess failed with when nothing does."""
    from drivers.contract import memory, steps
    from drivers.inputs.batching import dims_of, failed_with
    from drivers.inputs.feeds import feeds
    from drivers.inputs.made import attempts
    from protocol.formats.steps import PRE

    steps.check(order.pre, PRE, [one.name for one in live.inputs])
    why: DriverError | None = None
    for shapes, bound in attempts(live.inputs, dims_of(order, live.inputs), {}):
        made, pre_ns = feeds(order, live.inputs, shapes, bound)
        fed = {name: _picture(value) if name in live.images else value for name, value in made.items()}
        resetting = memory.reset_peak()
        began = time.perf_counter_ns()
        try:
            _predict(live.model, fed)
        except Unfit as failed:
            why = why or failed
            continue
        return _Ready(fed, shapes, pre_ns, time.perf_counter_ns() - began, resetting)
    assert why is not None
    raise failed_with(order, why)


def _predict(model: Any, fed: Mapping[str, Any]) -> Any:
    return translated(lambda: model.predict(fed))


def _asked_threads(order: WorkOrder) -> tuple[str, ...]:
    return (
        ()
        if order.threads is None
        else ("threads: CoreML takes as many as it likes; what was asked for had no effect",)
    )


def _listed(ct: Any) -> Iterable[Any]:
    """The units whose device is here by the system's own list; where it has none (before macOS 14), the CPU and the GPU are tried."""
    try:
        return present(ct.models.compute_device.MLComputeDevice.get_all_compute_devices())
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return tuple(one for one in UNITS if one.unit in (CPU, GPU))


def plan_of(ct: Any, model: Any, unit: str) -> Counter[str]:
    """How many operators run where, by CoreML's plan for the compiled model; empty where it has none (before macOS 14.4)."""
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
    """The model under a name with the ending that CoreML wants, in a private folder. Raises `Unfit`."""
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
    """Do something in coremltools; its errors become ours."""
    try:
        return call()
    except broken() as why:
        lines = [line.strip() for line in str(why).splitlines() if line.strip()]
        raise Unfit(f"CoreML: {type(why).__name__}: {' '.join(lines[:3])[:500]}") from why


def broken() -> tuple[type[Exception], ...]:
    """What coremltools, its parser and Objective-C behind it raise for a model that does not fit."""
    known = (RuntimeError, ValueError, TypeError, KeyError, AttributeError, OSError)
    try:
        return (*known, importlib.import_module("google.protobuf.message").DecodeError)
    except ImportError:
        return known


def as_arrays(told: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs as arrays; what is neither a number nor an array as it is."""
    import numpy as np

    return {
        name: np.array(value) if isinstance(value, np.ndarray | np.generic | int | float) else value
        for name, value in told.items()
    }


def _array(value: float) -> Any:
    import numpy as np

    return np.full((1,), value, np.float32)


def _picture(values: Any) -> Any:
    """Bytes as the picture that coremltools takes for an image. Raises `Unfit` without Pillow."""
    try:
        image = importlib.import_module("PIL.Image")
    except ImportError as why:
        raise Unfit("the model takes a picture, which needs Pillow: python -m pip install pillow") from why
    return image.fromarray(values[:, :, 0] if values.shape[2] == 1 else values)


def tiny(ct: Any) -> Any:
    """y = 2 x on one float, as a specification: what a unit has to run before we say that it is here."""
    kind = ct.models.datatypes.Array(1)
    builder = ct.models.neural_network.NeuralNetworkBuilder([("x", kind)], [("y", kind)])
    builder.add_activation(
        name="double", non_linearity="LINEAR", input_name="x", output_name="y", params=[2.0, 0.0]
    )
    return builder.spec
