"""The ExecuTorch driver: `.pte` programs on the CPU, by ExecuTorch's runtime with XNNPACK and its own kernels."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from drivers.contract.base import SampleModel, UnitInfo, WorkOrder, sample_model
from drivers.executorch.units import CPU, PACKAGE, ExecuTorchRuntime, check_unit, preloaded, runtime
from drivers.local.driver import LocalDriver

if TYPE_CHECKING:
    from drivers.executorch.model import ExecuTorchModel


class ExecuTorchDriver(LocalDriver):
    """See `drivers.contract.base.Driver`. `given`: the runtime; None: imported when it is first needed."""

    name = "executorch"
    formats = ("pte",)

    def __init__(self, given: ExecuTorchRuntime | None = None) -> None:
        self._given = given

    def _runtime(self) -> ExecuTorchRuntime:
        if self._given is None:
            self._given = runtime()
        return self._given

    def preload(self) -> tuple[str, ...]:
        """The runtime, and torch, because the runtime takes its tensors."""
        return ("drivers.executorch.model", "numpy.random", *preloaded())

    def units(self) -> tuple[UnitInfo, ...]:
        """The CPU, if a tiny program has just run on it."""
        if self._given is None and find_spec(PACKAGE) is None:  # no units, and no error
            return ()
        from drivers.contract.registry import BROKEN_DRIVER_ERRORS
        from drivers.executorch.samples import double
        from drivers.executorch.units import KERNELS, XNNPACK, has_xnnpack

        found = self._runtime()
        content = double()
        try:
            program = found.lib._load_program_from_buffer(content)
            (made,) = program.load_method("forward").call([found.torch.full((1, 1), 21.0)])
            doubled = float(made)
            detail = ", ".join([*([XNNPACK] if has_xnnpack(found.lib) else []), KERNELS])
        except BROKEN_DRIVER_ERRORS:
            return ()
        return (UnitInfo(CPU, self.name, found.title, detail),) if doubled == 42 else ()

    def samples(self) -> tuple[SampleModel, ...]:
        """Chains of matrix products."""
        from drivers.executorch.samples import chain, double

        return sample_model("tiny.pte", double()), sample_model("chain.pte", chain(192, 4))

    def open(self, order: WorkOrder) -> ExecuTorchModel:
        check_unit(order.unit)
        from drivers.executorch.model import ExecuTorchModel

        return ExecuTorchModel(order, self._runtime())
