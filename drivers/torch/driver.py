"""The Torch driver: TorchScript, `torch.export` programs and declared safetensors, on the CPU and on the GPU that torch finds."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from drivers.contract.base import SampleModel, UnitInfo, WorkOrder, sample_model
from drivers.local.driver import LocalDriver
from drivers.torch.units import UNITS, working_units

if TYPE_CHECKING:
    from drivers.torch.model import TorchModel


class TorchDriver(LocalDriver):
    """See `drivers.contract.base.Driver`."""

    name = "torch"
    formats = ("pt2", "torchscript", "safetensors")

    def preload(self) -> tuple[str, ...]:
        """Torch, and the modules for exported programs only if launches are forked."""
        modules = ("drivers.torch.model", "numpy.random", "torch")
        return (*modules, "drivers.torch.exporting") if sys.platform == "linux" else modules

    def units(self) -> tuple[UnitInfo, ...]:
        """The units on which a tensor has just been computed."""
        if find_spec("torch") is None:  # no units, and no error
            return ()
        from drivers.torch.models import runtime

        torch = runtime()
        return tuple(working_units(torch, UNITS, self.name, f"torch {torch.__version__}"))

    def samples(self) -> tuple[SampleModel, ...]:
        """Declared perceptrons, as safetensors."""
        from drivers.torch.samples import perceptron

        return (
            sample_model("tiny.safetensors", perceptron(1, 1)),
            sample_model("chain.safetensors", perceptron(192, 4)),
        )

    def open(self, order: WorkOrder) -> TorchModel:
        from drivers.torch.model import TorchModel

        return TorchModel(order)
