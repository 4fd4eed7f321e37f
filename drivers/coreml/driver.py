"""The CoreML driver: `.mlmodel` and `.mlpackage` on a Mac's CPU, GPU and Neural Engine, by coremltools.

On other systems its units are not offered, and a model is refused with that reason. coremltools and the system are arguments, so that
everything except CoreML itself can be tested anywhere.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from drivers.contract.base import SampleModel, Unfit, UnitInfo, WorkOrder, sample_model
from drivers.coreml.units import CPU, GPU, UNITS, compute_unit, present, require_macos
from drivers.local.driver import LocalDriver

if TYPE_CHECKING:
    from drivers.coreml.model import CoreMLModel


class CoreMLDriver(LocalDriver):
    """See `drivers.contract.base.Driver`. `ct`: coremltools; None: imported when it is first needed."""

    name = "coreml"
    formats = ("coreml",)

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
        """On a Mac, the units with a device that the system lists and that has just run a tiny network."""
        if self._platform != "darwin" or (self._given is None and find_spec("coremltools") is None):
            return ()
        import numpy as np

        ct = self._ct
        units = []
        for one in _listed(ct):
            try:
                model = ct.models.MLModel(tiny(ct), compute_units=compute_unit(ct, one.unit))
                outputs = model.predict({"x": np.full((1,), 21, np.float32)})
            except (RuntimeError, ValueError, TypeError, OSError):
                continue
            if float(next(iter(outputs.values())).reshape(-1)[0]) == 42:
                units.append(UnitInfo(one.unit, self.name, f"coremltools {ct.__version__}", one.compute_unit))
        return tuple(units)

    def samples(self) -> tuple[SampleModel, ...]:
        """The model that each unit has to run before it is offered; none on other systems than macOS."""
        if self._platform != "darwin":
            return ()
        return (sample_model("tiny.mlmodel", tiny(self._ct).SerializeToString()),)

    def open(self, order: WorkOrder) -> CoreMLModel:
        """The model under a private name, and its specification."""
        require_macos(self._platform, order.unit)
        from drivers.coreml.model import CoreMLModel

        return CoreMLModel(order, self._ct)


def _listed(ct: Any) -> Iterable[Any]:
    """The units with a device that the system lists; without such a list (before macOS 14) the CPU and the GPU."""
    try:
        return present(ct.models.compute_device.MLComputeDevice.get_all_compute_devices())
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return tuple(one for one in UNITS if one.unit in (CPU, GPU))


def tiny(ct: Any) -> Any:
    """y = 2 x on one float, as a specification: the model that a unit must run before it is offered."""
    kind = ct.models.datatypes.Array(1)
    builder = ct.models.neural_network.NeuralNetworkBuilder([("x", kind)], [("y", kind)])
    builder.add_activation(
        name="double", non_linearity="LINEAR", input_name="x", output_name="y", params=[2.0, 0.0]
    )
    return builder.spec
