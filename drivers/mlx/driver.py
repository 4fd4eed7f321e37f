"""The MLX driver: language models in folders of config.json and safetensors, also quantised ones, by mlx-lm. Never runs code of the
folder."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from drivers.contract.base import UnitInfo, WorkOrder
from drivers.local.driver import LocalDriver
from drivers.mlx.units import working_units

if TYPE_CHECKING:
    from drivers.mlx.model import MlxModel


class MlxDriver(LocalDriver):
    """See `drivers.contract.base.Driver`. `given`: `mlx.core`; None: imported when it is first needed."""

    name = "mlx"
    formats = ("transformers",)

    def __init__(self, given: Any = None) -> None:
        self._given = given

    def preload(self) -> tuple[str, ...]:
        return ("drivers.mlx.preloaded", "drivers.mlx.model", "numpy.random")

    def units(self) -> tuple[UnitInfo, ...]:
        """The units that have just computed something."""
        if self._given is None and any(find_spec(name) is None for name in ("mlx", "mlx_lm")):
            return ()  # no units, and no error
        from drivers.mlx.runtime import runtime, title

        mx = self._given or runtime()
        return tuple(working_units(mx, self.name, title(mx)))

    def open(self, order: WorkOrder) -> MlxModel:
        from drivers.mlx.model import MlxModel

        return MlxModel(order)
