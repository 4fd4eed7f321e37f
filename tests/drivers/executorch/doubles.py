"""Doubles for ExecuTorch's runtime and torch's tensors, as far as the driver uses them. Programs are real files; all double their input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from drivers.executorch.units import ExecuTorchRuntime


@dataclass
class DoubledTensor:
    """An array with the interface of a tensor."""

    values: Any

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def permute(self, axes: Sequence[int]) -> DoubledTensor:
        return DoubledTensor(self.values.transpose(axes))

    def view(self, dtype: str) -> DoubledTensor:
        assert dtype == "bfloat16"
        return self

    def numpy(self) -> Any:
        return self.values

    def __float__(self) -> float:
        return float(self.values.reshape(()))


@dataclass
class DoubledLibrary:
    """The runtime's bindings."""

    backends: tuple[str, ...] = ("XnnpackBackend", "OpenvinoBackend")
    fixed: int = 0
    """Elements that each inference reads. From a shorter input it reads on into stale memory."""
    gain: float = 2.0
    state: float = 0.0
    """Added to the output for each earlier inference."""
    fails: str = ""
    """Error message of a load that fails."""
    threads: list[int] = field(default_factory=lambda: [4])
    """Thread counts of the pool, newest last."""
    loaded: list[str] = field(default_factory=list)
    calls: list[tuple[list[Any], bool]] = field(default_factory=list)
    """Inputs of each call, and whether its outputs were copied."""
    memory: Any = None
    Verification = SimpleNamespace(InternalConsistency="consistency")

    def _get_registered_backend_names(self) -> list[str]:
        return list(self.backends)

    def _get_operator_names(self) -> list[str]:
        return ["aten::mm.out", "aten::copy_"]

    def _threadpool_get_thread_count(self) -> int:
        return self.threads[-1]

    def _unsafe_reset_threadpool(self, threads: int) -> None:
        self.threads.append(threads)

    def _load_program(self, path: str, program_verification: str) -> Any:
        assert program_verification == "consistency"
        self.loaded.append(path)
        return self._load_program_from_buffer(b"")

    def _load_program_from_buffer(self, content: bytes) -> Any:
        if self.fails:
            raise RuntimeError(self.fails)
        return SimpleNamespace(load_method=lambda name: SimpleNamespace(call=self.call))

    def call(self, inputs: list[Any], clone_outputs: bool = True) -> list[Any]:
        self.calls.append((list(inputs), clone_outputs))
        values = inputs[0].values
        whole = np.zeros(max(self.fixed, values.size, 0 if self.memory is None else self.memory.size))
        if self.memory is not None:
            whole[: self.memory.size] = self.memory
        whole[: values.size] = values.ravel()
        self.memory = whole
        beyond = whole[values.size : self.fixed].sum()
        made = (values * self.gain + self.state * len(self.calls) + beyond).astype(np.float32)
        return [DoubledTensor(made)]


def doubled(library: DoubledLibrary | None = None) -> ExecuTorchRuntime:
    torch = SimpleNamespace(
        Tensor=DoubledTensor,
        bfloat16="bfloat16",
        from_numpy=DoubledTensor,
        full=lambda shape, value: DoubledTensor(np.full(shape, value, np.float32)),
    )
    return ExecuTorchRuntime(library or DoubledLibrary(), torch, "ExecuTorch 1.4.1")
