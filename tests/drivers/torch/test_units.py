"""The Torch units and the devices behind them, with a double of torch that only lists what it has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from drivers.contract.base import WrongUnit
from drivers.torch.units import CPU, GPU, backend, device_for, precision_note, provider, verify_device


def torch(cuda: int = 0, hip: str | None = None, mps: bool = False) -> Any:
    return SimpleNamespace(
        __version__="2",
        version=SimpleNamespace(hip=hip),
        backends=SimpleNamespace(
            mps=SimpleNamespace(is_available=lambda: mps),
            cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False)),
            cudnn=SimpleNamespace(allow_tf32=True),
        ),
        cuda=SimpleNamespace(
            is_available=lambda: cuda > 0,
            device_count=lambda: cuda,
            get_device_capability=lambda device: (8, 0) if device == "cuda:0" else (7, 5),
            get_device_name=lambda device: f"card {device}",
            get_device_properties=lambda index: SimpleNamespace(uuid=f"aaaa-{index}"),
        ),
    )


@pytest.mark.parametrize(
    ("has", "name", "device", "shown"),
    [
        (torch(cuda=2), "cuda", "cuda:0", "cuda: card cuda:0"),
        (torch(cuda=1, hip="6.0"), "rocm", "cuda:0", "rocm: card cuda:0"),
        (torch(mps=True), "mps", "mps", "mps"),
    ],
)
def test_the_gpu_unit_is_whatever_torch_has(has: Any, name: str, device: str, shown: str) -> None:
    assert backend(has) == name
    assert device_for(has, GPU) == device
    assert provider(has, device) == shown
    assert device_for(has, CPU) == "cpu"
    assert provider(has, "cpu") == "cpu"


def test_a_gpu_may_be_asked_for_by_index_or_uuid() -> None:
    assert device_for(torch(cuda=2), GPU, "1") == "cuda:1"
    assert device_for(torch(cuda=2), GPU, "GPU-aaaa-1") == "cuda:1"
    for other in ("2", "GPU-bbbb"):
        with pytest.raises(WrongUnit, match="but torch finds 2 others"):
            device_for(torch(cuda=2), GPU, other)


def test_a_unit_that_is_not_here_is_never_replaced_by_another() -> None:
    with pytest.raises(WrongUnit, match="finds no GPU"):
        device_for(torch(), GPU)
    with pytest.raises(WrongUnit, match="unknown unit"):
        device_for(torch(cuda=1), "GPU (ONNX)")


def test_a_model_of_which_something_was_elsewhere_ran_on_the_wrong_unit() -> None:
    verify_device(GPU, "cuda:0", {"w": "cuda:0", "output": "cuda:0"})
    verify_device(CPU, "cpu", {})
    verify_device(GPU, "mps", {"w": "mps:0"})
    with pytest.raises(WrongUnit, match="the weight w was on cuda:0"):
        verify_device(GPU, "cuda:1", {"the weight w": "cuda:0"})
    with pytest.raises(WrongUnit, match=r"asked for GPU \(Torch\), but output y was on cpu"):
        verify_device(GPU, "cuda:0", {"output y": "cpu"})


def test_where_a_gpu_computes_with_fewer_digits_than_float32_the_row_says_so() -> None:
    two = torch(cuda=2)
    assert precision_note(two, "cuda:0").startswith("float32 convolutions may use TF32")
    two.backends.cuda.matmul.allow_tf32 = True
    assert precision_note(two, "cuda:0").startswith("float32 products and convolutions may")
    for has, device in (
        (two, "cuda:1"),
        (two, "cpu"),
        (torch(cuda=1, hip="6"), "cuda:0"),
        (torch(mps=True), "mps"),
    ):
        assert precision_note(has, device) == ""
