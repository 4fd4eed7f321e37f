"""The ONNX driver: models in one file or folder, on the CPU and on every other unit that this onnxruntime really runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivers.contract.base import DriverError, SampleModel, UnitInfo, WorkOrder, sample_model
from drivers.local.driver import LocalDriver
from drivers.onnx.units import UNITS, ProviderPlacement, placement_for

if TYPE_CHECKING:
    from drivers.onnx.runner import OnnxModel


class OnnxDriver(LocalDriver):
    """See `drivers.contract.base.Driver`."""

    name = "onnx"
    formats = ("onnx",)

    def preload(self) -> tuple[str, ...]:
        """onnxruntime with numpy, its C interface, and our own modules that need them."""
        return ("drivers.onnx.runner", "numpy.random", "onnxruntime")

    def units(self) -> tuple[UnitInfo, ...]:
        """The units with a provider that has just run a tiny model; a provider that the package only promises does not count."""
        from drivers.onnx.session import runtime

        return working(runtime())

    def samples(self) -> tuple[SampleModel, ...]:
        """A model with one operator on one float, and a chain of matrix products."""
        from drivers.native.library import TINY_MODEL
        from protocol.formats.reference_model import chain_of_products

        return sample_model("tiny.onnx", TINY_MODEL), sample_model("chain.onnx", chain_of_products())

    def open(self, order: WorkOrder) -> OnnxModel:
        from drivers.onnx.runner import OnnxModel

        return OnnxModel(order)


def working(ort: Any) -> tuple[UnitInfo, ...]:
    """The units that work. `ort`: the runtime's package, or a test double."""
    from drivers.onnx.plugins import PACKAGES, usable
    from drivers.onnx.session import runtime_errors

    available = usable(ort, PACKAGES, runtime_errors())
    units: list[UnitInfo] = []
    for unit in UNITS:
        for provider in unit.names:
            if provider in available and _runs(unit.unit, placement_for(unit, provider, ""), ort):
                units.append(UnitInfo(unit.unit, OnnxDriver.name, f"onnxruntime {ort.__version__}", provider))
                break
    return tuple(units)


def _runs(unit: str, place: ProviderPlacement, ort: Any) -> bool:
    import numpy as np

    from drivers.onnx import session as edge

    edge.load_libraries(place.provider, ort)
    try:
        session = edge.open_session(edge.TINY_MODEL, place, edge.options(1, optimise=True), ort)
        edge.verify_provider(unit, place.provider, session.get_providers())
        outputs = edge.translated(lambda: session.run(None, {"x": np.array([21], np.float32)}))
    except DriverError:
        return False
    return bool(outputs[0][0] == 42)
