"""The Transformers driver: folders with a config.json and safetensors, run by `transformers` with torch.

It never runs code from the folder or from the network.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from drivers.contract.base import UnitInfo, WorkOrder
from drivers.local.driver import LocalDriver
from drivers.torch.units import working_units
from drivers.transformers.units import UNITS

if TYPE_CHECKING:
    from drivers.transformers.model import TransformersModel


class TransformersDriver(LocalDriver):
    """See `drivers.contract.base.Driver`."""

    name = "transformers"
    formats = ("transformers",)

    def preload(self) -> tuple[str, ...]:
        """The modules, with `offline` before any module that reads the environment."""
        return ("drivers.transformers.offline", "drivers.transformers.causal", "numpy.random")

    def units(self) -> tuple[UnitInfo, ...]:
        """The units on which torch has just computed a tensor."""
        if find_spec("torch") is None or find_spec("transformers") is None:  # no units, and no error
            return ()
        from drivers.torch.models import runtime as torch
        from drivers.transformers.offline import runtime, title

        return tuple(working_units(torch(), UNITS, self.name, title(runtime())))

    def open(self, order: WorkOrder) -> TransformersModel:
        from drivers.transformers.model import open_model

        return open_model(order)
