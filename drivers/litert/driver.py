"""The LiteRT driver: `.tflite` models on the CPU, by the interpreter of ai-edge-litert and its XNNPACK delegate."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from drivers.contract.base import SampleModel, UnitInfo, WorkOrder, sample_model
from drivers.litert.units import CPU, MODULE, XNNPACK, check_unit, runtime, version
from drivers.local.driver import LocalDriver

if TYPE_CHECKING:
    from drivers.litert.model import LiteRtModel


class LiteRtDriver(LocalDriver):
    """See `drivers.contract.base.Driver`. `runtime`: the module of the interpreter; None: imported when it is first needed."""

    name = "litert"
    formats = ("tflite",)

    def __init__(self, runtime: Any = None) -> None:
        self._given = runtime

    @property
    def _runtime(self) -> Any:
        if self._given is None:
            self._given = runtime()
        return self._given

    def preload(self) -> tuple[str, ...]:
        """The interpreter and numpy."""
        return ("drivers.litert.model", "numpy.random", f"{MODULE}.interpreter")

    def units(self) -> tuple[UnitInfo, ...]:
        """The CPU, if a tiny model has just run on it."""
        if self._given is None and find_spec(MODULE) is None:  # no units, and no error
            return ()
        from drivers.contract.registry import BROKEN_DRIVER_ERRORS
        from drivers.litert.samples import double

        try:
            interpreter = self._runtime.Interpreter(model_content=double(), num_threads=1)
            interpreter.allocate_tensors()
            interpreter.set_tensor(0, _array(21.0))
            interpreter.invoke()
            doubled = float(interpreter.get_tensor(interpreter.get_output_details()[0]["index"])[0, 0])
        except BROKEN_DRIVER_ERRORS:
            return ()
        return (UnitInfo(CPU, self.name, version(), XNNPACK),) if doubled == 42 else ()

    def samples(self) -> tuple[SampleModel, ...]:
        """Chains of fully connected layers."""
        from drivers.litert.samples import double, perceptron

        return sample_model("tiny.tflite", double()), sample_model("chain.tflite", perceptron(192, 4))

    def open(self, order: WorkOrder) -> LiteRtModel:
        check_unit(order.unit)
        from drivers.litert.model import LiteRtModel

        return LiteRtModel(order, self._runtime)


def _array(value: float) -> Any:
    import numpy as np

    return np.full((1, 1), value, np.float32)
