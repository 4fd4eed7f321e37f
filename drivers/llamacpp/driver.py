"""The llama.cpp driver: language models in GGUF on the processor and on the GPU that this build of llama-cpp-python supports."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from drivers.contract.base import DriverError, SampleModel, UnitInfo, WorkOrder, sample_model
from drivers.llamacpp.units import UNITS
from drivers.local.driver import LocalDriver

if TYPE_CHECKING:
    from drivers.llamacpp.model import LlamaModel


class LlamaCppDriver(LocalDriver):
    """See `drivers.contract.base.Driver`."""

    name = "llamacpp"
    formats = ("gguf",)

    def preload(self) -> tuple[str, ...]:
        """Modules only: a backend starts when the first model is opened."""
        return ("drivers.llamacpp.model", "numpy.random", "llama_cpp")

    def units(self) -> tuple[UnitInfo, ...]:
        """The units that have just generated a token."""
        if find_spec("llama_cpp") is None:  # no units, and no error
            return ()
        from drivers.llamacpp.model import try_unit
        from drivers.llamacpp.samples import transformer

        found = []
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "tiny.gguf"
            model.write_bytes(transformer(32, 1, 64))
            for unit in UNITS:
                try:
                    runtime, detail = try_unit(WorkOrder(str(model), unit))
                except DriverError:
                    continue
                found.append(UnitInfo(unit, self.name, runtime, detail))
        return tuple(found)

    def samples(self) -> tuple[SampleModel, ...]:
        """Transformers with meaningless weights, of 30 kB and 3 MB."""
        from drivers.llamacpp.samples import transformer

        return (
            sample_model("tiny.gguf", transformer(32, 1, 64)),
            sample_model("chain.gguf", transformer(192, 4, 256)),
        )

    def open(self, order: WorkOrder) -> LlamaModel:
        from drivers.llamacpp.model import LlamaModel

        return LlamaModel(order)
