"""Which of NVML's GPUs CUDA shows to a run: by its environment variable, and on a partitioned GPU (MIG)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from drivers.contract.boot import clean_environment
from drivers.measure.gpu import Unreadable, from_nvml
from drivers.measure.nvml import NvmlDevice, devices, visible

WHOLE = tuple(NvmlDevice(index, f"GPU-{letter}b{index}", index) for index, letter in enumerate("aac"))
DIVIDED = (
    NvmlDevice(0, "GPU-0", "0"),
    NvmlDevice(1, "MIG-10", "1.0", "1"),
    NvmlDevice(1, "MIG-11", "1.1", "1"),
)


class Error(Exception):
    """Named as in NVML."""


class Host:
    """A double of pynvml: for each GPU its number of MIG instances, or None without MIG. A handle is `GPU` or `GPU.instance`."""

    NVMLError = Error

    class NVMLError_LibraryNotFound(Error): ...  # noqa: N801

    def __init__(self, *gpus: int | None) -> None:
        self.gpus = gpus

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self, "_" + name.removeprefix("nvmlDevice").removeprefix("nvml"))  # type: ignore[no-any-return]

    def _Init(self) -> None: ...  # noqa: N802

    def _Shutdown(self) -> None: ...  # noqa: N802

    def _SystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580"

    def _GetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def _GetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return str(index)

    def _GetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        if self.gpus[int(handle)] is None:
            raise Error("Not Supported")
        return [1, 1]

    def _GetMaxMigDeviceCount(self, handle: str) -> int:  # noqa: N802
        return 7

    def _GetMigDeviceHandleByIndex(self, handle: str, place: int) -> str:  # noqa: N802
        if place >= (self.gpus[int(handle)] or 0):
            raise Error("Not Found")
        return f"{handle}.{place}"

    def _GetUUID(self, handle: str) -> str:  # noqa: N802
        return ("MIG-" if "." in handle else "GPU-") + handle

    def _GetName(self, handle: str) -> str:  # noqa: N802
        return f"H200 MIG {handle}" if "." in handle else "H200"

    def _GetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(total=(18 if "." in handle else 141) << 30)

    def _GetCudaComputeCapability(self, handle: str) -> tuple[int, int]:  # noqa: N802
        if "." in handle:
            raise Error("Not Supported")
        return 9, 0

    def _GetPowerManagementLimit(self, handle: str) -> int:  # noqa: N802
        if "." in handle:
            raise Error("Not Supported")
        return 700_000


@pytest.mark.parametrize(
    ("variable", "shown"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        ("0, 2,-1,1", [0, 2]),
        ("9,0", []),
        ("GPU-cb", [2]),
        ("GPU-a", []),
        ("GPU-ab1,0", [1, 0]),
        ("0,0", [0]),
    ],
)
def test_the_variable_shows_gpus_in_its_order_up_to_the_first_unknown_name(
    variable: str | None, shown: list[int]
) -> None:
    environ = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert [one.index for one in visible(WHOLE, environ)] == shown


@pytest.mark.parametrize(
    ("variable", "uuids"),
    [
        (None, ["MIG-10"]),
        ("0", ["GPU-0"]),
        ("1", ["MIG-10"]),
        ("MIG-11", ["MIG-11"]),
        ("0,1", ["MIG-10"]),
    ],
)
def test_of_divided_gpus_a_process_sees_one_instance(variable: str | None, uuids: list[str]) -> None:
    environ = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert [one.uuid for one in visible(DIVIDED, environ)] == uuids


def test_a_divided_gpu_is_listed_by_its_instances() -> None:
    assert [one.uuid for one in devices(Host(None, 2, 0))] == ["GPU-0", "MIG-1.0", "MIG-1.1"]


def test_an_instance_has_its_own_name_and_memory_and_the_whole_gpus_compute_capability() -> None:
    (gpu,) = from_nvml(Host(2), {})
    assert (gpu.name, gpu.vram, gpu.uuid) == ("H200 MIG 0.0", 18 << 30, "MIG-0.0")
    assert (gpu.compute, gpu.tensor_cores, gpu.power_limit_w) == ((9, 0), 4, None)


def test_the_owners_variable_decides_which_gpus_this_device_has() -> None:
    assert [gpu.uuid for gpu in from_nvml(Host(None, None), {"CUDA_VISIBLE_DEVICES": "1"})] == ["GPU-1"]
    with pytest.raises(Unreadable, match="CUDA_VISIBLE_DEVICES='' shows none of this host's 2 GPUs"):
        from_nvml(Host(None, None), {"CUDA_VISIBLE_DEVICES": ""})
    assert from_nvml(Host(), {"CUDA_VISIBLE_DEVICES": ""}) == ()


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
def test_which_gpus_the_owner_gives_reaches_the_runs_also_if_it_is_none(name: str) -> None:
    assert clean_environment({name: ""})[name] == ""
    assert name not in clean_environment({})
    assert clean_environment({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
