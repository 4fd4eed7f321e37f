"""The OpenVINO driver: OpenVINO IR, ONNX and LiteRT models on the CPU, and on the GPU and NPU that OpenVINO finds."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from drivers.contract.base import DriverError, SampleModel, UnitInfo, WorkOrder, sample_model
from drivers.local.driver import LocalDriver
from drivers.openvino.units import KINDS, devices_of, settings

if TYPE_CHECKING:
    from drivers.openvino.model import OpenVinoModel
    from drivers.openvino.runtime import OpenVinoRuntime


class OpenVinoDriver(LocalDriver):
    """See `drivers.contract.base.Driver`. `given`: OpenVINO; None: imported when it is first needed."""

    name = "openvino"
    formats = ("openvino", "onnx", "tflite")

    def __init__(self, given: OpenVinoRuntime | None = None) -> None:
        self._given = given

    def _runtime(self) -> OpenVinoRuntime:
        from drivers.openvino.runtime import runtime

        return self._given or runtime()

    def preload(self) -> tuple[str, ...]:
        """The driver's modules; OpenVINO with the CPU's plug-in, and onnxruntime for the reference, only if launches are forked."""
        modules = ("drivers.openvino.model", "numpy.random")
        return (*modules, "drivers.openvino.preloaded", "onnxruntime") if sys.platform == "linux" else modules

    def units(self) -> tuple[UnitInfo, ...]:
        """The units with a device that has just run a tiny model."""
        if self._given is None and find_spec("openvino") is None:  # no units, and no error
            return ()
        runtime = self._runtime()
        available = runtime.core.available_devices
        units = []
        for unit, kind in KINDS.items():
            names = [name for name in devices_of(kind, available) if _doubles(runtime, name)]
            if names:
                detail = "; ".join(
                    str(runtime.core.get_property(name, "FULL_DEVICE_NAME")).strip() for name in names
                )
                units.append(UnitInfo(unit, self.name, runtime.title, detail))
        return tuple(units)

    def samples(self) -> tuple[SampleModel, ...]:
        """Chains of matrix products, as ONNX."""
        from protocol.formats.reference_model import chain_of_products

        return (
            sample_model("tiny.onnx", chain_of_products(size=4, layers=1, rows=1)),
            sample_model("chain.onnx", chain_of_products()),
        )

    def open(self, order: WorkOrder) -> OpenVinoModel:
        from drivers.openvino.model import OpenVinoModel

        return OpenVinoModel(order, self._runtime())


def _doubles(runtime: OpenVinoRuntime, device: str) -> bool:
    """Whether the device computes 21 + 21."""
    import numpy as np

    from drivers.openvino.runtime import translated

    def compute() -> Any:
        ov, ops = runtime.ov, runtime.ov.opset13
        x = ops.parameter([1], ov.Type.f32)
        model = ov.Model([ops.add(x, x)], [x], "double")
        request = runtime.core.compile_model(model, device, settings(device, 1)).create_infer_request()
        request.infer([np.full(1, 21, np.float32)])
        return request.get_output_tensor(0).data[0]

    try:
        return bool(translated(compute) == 42)
    except DriverError:
        return False
