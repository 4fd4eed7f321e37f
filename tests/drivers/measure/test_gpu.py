"""The GPUs of a device: the first source that knows of one is believed, and figures that it does not have are None."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drivers.measure.gpu import (
    Gpu,
    GpuReport,
    Unreadable,
    find_gpus,
    from_nvml,
    from_torch,
    read_torch,
    torch_could,
)

H100 = Gpu("NVIDIA H100 80GB HBM3", 80 << 30, "550.54", "GPU-1", (9, 0), 700.0)


class Nvml:
    """A double of pynvml with one GPU. The functions in `silent` are not supported; `absent` means that there is no library."""

    class NVMLError(Exception): ...

    class NVMLError_LibraryNotFound(NVMLError): ...  # noqa: N801

    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *, absent: bool = False, broken: bool = False, silent: Sequence[str] = ()) -> None:
        self.absent, self.broken, self.silent, self.open = absent, broken, silent, 0
        self.answers: dict[str, Any] = {
            "nvmlSystemGetDriverVersion": b"550.54",
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "h",
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 << 30),
            "nvmlDeviceGetUUID": b"GPU-1",
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetPowerManagementLimit": 700_000,
        }

    def nvmlInit(self) -> None:  # noqa: N802
        if self.absent:
            raise self.NVMLError_LibraryNotFound
        if self.broken:
            raise self.NVMLError("Driver/library version mismatch")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any) -> Any:
            if name in self.silent:
                raise self.NVMLError("Not Supported")
            result = self.answers[name]
            return result(*arguments) if callable(result) else result

        return answer


def test_nvml_tells_all_and_is_closed_again() -> None:
    library = Nvml()
    assert from_nvml(library) == (H100,)
    assert library.open == 0
    assert H100.tensor_cores == 4


def test_what_nvml_does_not_tell_is_none() -> None:
    silent = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUUID", "nvmlDeviceGetCudaComputeCapability")
    (observed,) = from_nvml(Nvml(silent=(*silent, "nvmlDeviceGetPowerManagementLimit")))
    assert observed == Gpu("NVIDIA H100 80GB HBM3", driver="550.54")
    assert observed.tensor_cores is None


def test_the_first_source_that_knows_of_a_gpu_is_believed() -> None:
    def broken() -> tuple[Gpu, ...]:
        return from_nvml(Nvml(broken=True))

    def never() -> tuple[Gpu, ...]:
        raise AssertionError("asked although somebody knew")

    other = Gpu("other")
    gpus = find_gpus((("nvml", broken), ("torch", lambda: (other,)), ("other", never)))
    assert gpus == GpuReport((other,), "torch", ("NVIDIA driver: Driver/library version mismatch",))
    none = find_gpus((("nvml", lambda: from_nvml(Nvml(absent=True))), ("torch", lambda: ())))
    assert none == GpuReport()


@pytest.mark.parametrize(
    ("compute", "name", "generation"),
    [
        ((6, 1), "GTX 1080", 0),
        ((7, 0), "V100", 1),
        ((7, 5), "Tesla T4", 2),
        ((7, 5), "NVIDIA GeForce GTX 1660 Ti", 0),
        ((7, 5), "NVIDIA T1000", 0),
        ((8, 0), "A100", 3),
        ((8, 6), "RTX A6000", 3),
        ((8, 9), "L4", 4),
        ((9, 0), "H200", 4),
        ((10, 0), "B200", 5),
        ((12, 0), "RTX 5090", 5),
        ((99, 0), "of the future", None),
        (None, "AMD Instinct", None),
    ],
)
def test_the_compute_capability_tells_the_generation_of_tensor_cores(
    compute: tuple[int, int] | None, name: str, generation: int | None
) -> None:
    assert Gpu(name, compute=compute).tensor_cores == generation


def double_of_torch(hip: str | None) -> Any:
    simple_namespace = SimpleNamespace(name="X", total_memory=1 << 34, major=8, minor=0, uuid="abc")
    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        get_device_properties=lambda index: simple_namespace,
    )
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=hip))


def test_torch_is_asked_in_a_process_of_its_own_and_other_makers_have_no_compute_capability() -> None:
    nvidia, amd = read_torch(double_of_torch(None)), read_torch(double_of_torch("6.2"))
    assert nvidia == (Gpu("X", 1 << 34, uuid="GPU-abc", compute=(8, 0)),)
    assert amd == (Gpu("X", 1 << 34, uuid="abc"),)
    shown = json.dumps([asdict(gpu) for gpu in nvidia])
    assert from_torch(lambda: True, lambda command: shown) == nvidia
    assert from_torch(lambda: True, lambda command: None) == ()
    with pytest.raises(Unreadable, match="cannot be read"):
        from_torch(lambda: True, lambda command: "warning: …")


@pytest.mark.parametrize(
    ("text", "could"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", False),
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", True),
        ("cuda = None\nhip = '6.2'\n", True),
        (None, True),
    ],
)
def test_a_torch_built_for_processors_alone_is_not_imported(
    tmp_path: Path, text: str | None, could: bool
) -> None:
    if text is not None:
        (tmp_path / "version.py").write_text(text)
    assert torch_could(tmp_path) is could
    if not could:

        def never(command: Sequence[str]) -> str:
            raise AssertionError("started")

        assert from_torch(lambda: torch_could(tmp_path), never) == ()
