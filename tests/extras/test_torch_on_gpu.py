"""The Torch driver's GPU code with a real torch. Its device `meta`, which computes only shapes, stands in for a GPU: torch dispatches its
operators like those of any other device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from drivers.contract.base import Crashed, DriverError, OutOfMemory, Unfit, WorkOrder
from drivers.inputs.feeds import Shapes
from drivers.local.model import Prepared
from drivers.torch.model import TorchModel
from drivers.torch.models import torch_errors
from drivers.torch.placement import watch

GPU = torch.device("meta")
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


class Falls(torch.nn.Module):
    """A model that computes on the CPU. Its outputs are on the inputs' device, which proves nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.to("cpu")
        y = torch.relu(y @ y.t()) + 1.0
        return y.to(x.device)


class Mixed(torch.nn.Module):
    """One product on the device, and an offset computed on the CPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        offset = torch.arange(x.size(0), device=torch.device("cpu")).to(x.device)
        return torch.relu(x @ x.t()).sum() * 2.0 + offset


def ways(module: torch.nn.Module) -> dict[str, Callable[..., Any]]:
    """The module itself, scripted, and scripted and optimised by a few inferences."""
    scripted, warm = torch.jit.script(module.eval()), torch.jit.script(module.eval())
    for _ in range(4):
        warm(torch.ones(5, 5))
    return {"plain": module.eval(), "scripted": scripted, "optimised": warm}


@pytest.mark.parametrize("way", ["plain", "scripted", "optimised"])
def test_each_operator_is_seen_where_it_runs(way: str) -> None:
    mixed, x = ways(Mixed())[way], torch.ones(5, 5, device=GPU)
    with torch.inference_mode():
        assert watch(torch, lambda: mixed(x)) == {"meta": 5, "cpu": 1}
        assert watch(torch, lambda: mixed(torch.ones(5, 5))).keys() == {"cpu"}


@pytest.mark.parametrize("way", ["plain", "scripted", "optimised"])
def test_a_program_that_computes_on_the_cpu_is_seen_although_its_outputs_are_on_the_device(way: str) -> None:
    falls, x = ways(Falls())[way], torch.ones(5, 5)
    with torch.inference_mode():
        ran = watch(torch, lambda: falls(x))
    assert ran.keys() == {"cpu"}


def test_an_inference_that_fails_reports_nothing() -> None:
    def fails() -> None:
        raise Unfit("no")

    assert watch(torch, fails) == {}


class OnGpu(TorchModel):
    """A model whose device is named like a GPU. Records the attempts, and runs nothing."""

    def __init__(self, order: WorkOrder) -> None:
        super().__init__(order)
        self.tried: list[int] = []

    def prepare(self) -> Prepared:
        self._device = "cuda:0"
        return super().prepare()

    def attempt(self, shapes: Shapes, bound: int) -> Prepared:
        self.tried.append(bound)
        return None  # type: ignore[return-value]


class Embedding(torch.nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(rows, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids).sum(1)


@pytest.mark.parametrize(("rows", "bound"), [(50, 10), (5000, 100)])
def test_a_gpu_is_never_asked_for_a_row_that_a_table_does_not_have(
    tmp_path: Path, rows: int, bound: int
) -> None:
    torch.jit.save(torch.jit.script(Embedding(rows).eval()), str(tmp_path / "net.pt"))
    model = OnGpu(
        WorkOrder(str(tmp_path / "net.pt"), "CPU (Torch)", inputs={"ids": "int64[1, 32]"}, threads=1)
    )
    model.load()
    model.prepare()
    assert model.tried == [bound]


ADVICE = """
Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


@pytest.mark.parametrize(
    ("error", "what", "kind"),
    [
        (torch.AcceleratorError, "CUDA error: device-side assert triggered", Unfit),
        (torch.AcceleratorError, "CUDA error: CUDA-capable device(s) is/are busy or unavailable", Crashed),
        (torch.AcceleratorError, "CUDA error: uncorrectable ECC error encountered", Crashed),
        (torch.AcceleratorError, "CUDA error: out of memory", OutOfMemory),
        (
            RuntimeError,
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            OutOfMemory,
        ),
        (torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 200.00 GiB.", OutOfMemory),
        (RuntimeError, "Expected all tensors to be on the same device", Unfit),
    ],
)
def test_an_error_of_a_gpu_is_reported_without_torchs_advice_and_blames_the_model_only_for_its_own(
    error: type[Exception], what: str, kind: type[DriverError]
) -> None:
    with pytest.raises(DriverError) as caught, torch_errors():
        raise error(what + ADVICE)
    assert type(caught.value) is kind
    assert what in str(caught.value)
    assert "For debugging" not in str(caught.value)
