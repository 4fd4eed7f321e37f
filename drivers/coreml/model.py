"""One order's model: loaded, run and checked by CoreML. coremltools is an argument."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from drivers.contract import memory
from drivers.contract.base import Unfit, WorkOrder
from drivers.contract.formats import broken_is_unfit
from drivers.contract.registry import BROKEN_DRIVER_ERRORS
from drivers.coreml.spec import check_kind, images_of, inputs_of, refuse_custom
from drivers.coreml.units import CPU, compute_unit, count_places, verdict
from drivers.inputs.feeds import Shapes
from drivers.local.model import ExecutionPlace, LocalModel, Prepared
from drivers.measure.timing import TimedCalls
from protocol.formats.model_files import read_format

HALF: Final = 2e-2
"""Tolerance on the GPU and the Neural Engine, which compute with 16 bits, relative to the largest magnitude."""
FOLDER: Final = "model"


class CoreMLModel(LocalModel):
    _model: Any

    def __init__(self, order: WorkOrder, ct: Any) -> None:
        super().__init__(order, f"coremltools {ct.__version__}")
        self._ct = ct
        self._unit = compute_unit(ct, order.unit)
        self._path = str(private_name(Path(order.model), Path(f"{FOLDER}{order.slot or ''}")))
        spec = translated(lambda: ct.utils.load_spec(self._path))
        refuse_custom(spec)
        self.inputs = inputs_of(spec)
        self._images = images_of(spec)
        """Channels of the inputs that are images."""
        self.tolerance = None if order.unit == CPU else HALF

    def load(self) -> int:
        began = time.perf_counter_ns()
        self._model = self._open(self._unit)
        return time.perf_counter_ns() - began

    def _open(self, unit: Any) -> Any:
        return translated(lambda: self._ct.models.MLModel(self._path, compute_units=unit))

    def verify(self) -> None:
        """Do nothing: only the plan shows where the model runs, see `ran_on`."""

    def attempt(self, shapes: Shapes, bound: int) -> Prepared:
        feeds, pre_ns = self.feeds(shapes, bound)
        fed = {name: _picture(value) if name in self._images else value for name, value in feeds.items()}
        predict = self._model.predict
        was_reset = memory.reset_peak()
        began = time.perf_counter_ns()
        translated(lambda: predict(fed))
        first_ns = time.perf_counter_ns() - began

        def outputs() -> dict[str, Any]:
            return as_arrays(translated(lambda: predict(fed)))

        return Prepared(
            lambda: TimedCalls(predict, fed),
            outputs,
            outputs,
            fed,
            shapes,
            bound,
            pre_ns,
            first_ns,
            was_reset,
        )

    def ran_on(self, prepared: Prepared) -> ExecutionPlace:
        unit = self.order.unit
        return ExecutionPlace(
            unit, (self._unit.name,), (verdict(unit, plan_of(self._ct, self._model, unit)),)
        )

    def notes(self, prepared: Prepared) -> list[str]:
        notes = ["each load includes CoreML's compilation"]
        if self.order.threads is not None:
            notes.append("threads: CoreML chooses their number; the setting has no effect")
        return notes

    def reference(self, prepared: Prepared) -> dict[str, Any]:
        """Outputs of the same model on the CPU only."""
        plain = self._open(compute_unit(self._ct, CPU))
        return as_arrays(translated(lambda: plain.predict(prepared.feeds)))


def plan_of(ct: Any, model: Any, unit: str) -> Counter[str]:
    """Number of operators by place, according to CoreML's plan for the compiled model; empty without a plan (before macOS 14.4)."""
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
    except BROKEN_DRIVER_ERRORS:
        return Counter()
    return Counter()


def private_name(model: Path, folder: Path) -> Path:
    """A link to the model in a private folder, with the suffix that CoreML needs. Raises `Unfit`."""
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
    """Exceptions that coremltools, its parser and Objective-C raise for an unsuitable model."""
    try:
        return (*BROKEN_DRIVER_ERRORS, importlib.import_module("google.protobuf.message").DecodeError)
    except ImportError:
        return BROKEN_DRIVER_ERRORS


def as_arrays(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs as arrays; a value that is neither a number nor an array stays as it is."""
    return {
        name: np.array(value) if isinstance(value, np.ndarray | np.generic | int | float) else value
        for name, value in outputs.items()
    }


def _picture(values: Any) -> Any:
    """Bytes as a Pillow image, which coremltools needs. Raises `Unfit` without Pillow."""
    try:
        image = importlib.import_module("PIL.Image")
    except ImportError as why:
        raise Unfit("the model takes a picture, which needs Pillow: python -m pip install pillow") from why
    return image.fromarray(values[:, :, 0] if values.shape[2] == 1 else values)
