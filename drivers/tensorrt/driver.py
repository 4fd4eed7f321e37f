"""The TensorRT driver: ONNX models, built into an engine for this GPU in each launch, as `trtexec --onnx` does.

It takes no engine files: they run only on the kind of GPU and the version of TensorRT that they were built with, and they are programs.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from drivers.contract.base import DriverError, SampleModel, UnitInfo, WorkOrder, sample_model
from drivers.local.driver import LocalDriver
from drivers.tensorrt.runtime import GPU, TensorRtRuntime, runtime

if TYPE_CHECKING:
    from drivers.tensorrt.model import TensorRtModel


class TensorRtDriver(LocalDriver):
    """See `drivers.contract.base.Driver`. `given`: TensorRT and CUDA; None: imported when they are first needed."""

    name = "tensorrt"
    formats = ("onnx",)

    def __init__(self, given: TensorRtRuntime | None = None) -> None:
        self._given = given

    def preload(self) -> tuple[str, ...]:
        """No module of NVIDIA's: a GPU must not be touched before a fork."""
        return ("drivers.tensorrt.model", "numpy.random", "onnxruntime")

    def units(self) -> tuple[UnitInfo, ...]:
        """The GPU, if TensorRT has just built and run a tiny model on it."""
        if self._given is None and find_spec("tensorrt") is None:  # no units, and no error
            return ()
        import tempfile

        from drivers.native.library import TINY_MODEL
        from drivers.tensorrt.model import TensorRtModel

        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model.onnx"
            model.write_bytes(TINY_MODEL)
            try:
                found = self._given or runtime()
                tiny = TensorRtModel(WorkOrder(str(model), GPU, shapes={"x": (1,)}), found)
                tiny.load()
                doubled = tiny.outputs_for({"x": 21.0})["y"]
            except DriverError:
                return ()
        return (UnitInfo(GPU, self.name, found.title, tiny.gpu_name),) if doubled[0] == 42 else ()

    def samples(self) -> tuple[SampleModel, ...]:
        """Chains of matrix products."""
        from protocol.formats.reference_model import chain_of_products

        return (
            sample_model("tiny.onnx", chain_of_products(size=4, layers=1, rows=1)),
            sample_model("chain.onnx", chain_of_products()),
        )

    def open(self, order: WorkOrder) -> TensorRtModel:
        from drivers.tensorrt.model import TensorRtModel

        return TensorRtModel(order, self._given or runtime(order.gpu))
