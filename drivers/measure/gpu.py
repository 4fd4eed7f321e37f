"""The GPUs that runs on this device may use, found by NVML or else torch: the first source that finds any.

torch runs in a process of its own (importing it takes seconds and starts threads), and only if its build supports a GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from drivers.contract.boot import boot_command, clean_environment
from drivers.measure.nvml import VARIABLE, NvmlDevice, decoded, devices, initialised, query, visible

MAX_GPUS: Final = 8
TORCH_S: Final = 30.0
_NO_TENSOR_CORES: Final = re.compile(r"\bGTX 16|\bMX\s?\d|\bQuadro T|\bT(400|500|550|600|1000|1200|2000)\b")
"""Turing GPUs without tensor cores: they have the same compute capability as those with tensor cores."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. None or empty: not reported."""

    name: str
    vram: int | None = None
    """Bytes."""
    driver: str = ""
    uuid: str = ""
    compute: tuple[int, int] | None = None
    """CUDA compute capability; GPUs of other makers have none."""
    power_limit_w: float | None = None

    @property
    def tensor_cores(self) -> int | None:
        """Generation of the GPU's tensor cores; 0: none; None: unknown."""
        if self.compute is None:
            return None
        major, minor = self.compute
        if major < 7:
            return 0
        if major == 7:
            if minor < 5:
                return 1
            return 0 if _NO_TENSOR_CORES.search(self.name) else 2
        if major == 8:
            return 4 if minor == 9 else 3
        return {9: 4, 10: 5, 11: 5, 12: 5}.get(major)


@dataclass(frozen=True, slots=True)
class GpuReport:
    gpus: tuple[Gpu, ...] = ()
    source: str = ""
    """`nvml` or `torch`; empty: no GPU."""
    notes: tuple[str, ...] = ()
    """Sources that are installed but do not work, and why."""


class Unreadable(Exception):
    """A source is installed but does not work; the message is for people."""


def find_gpus(sources: Sequence[tuple[str, Callable[[], tuple[Gpu, ...]]]] | None = None) -> GpuReport:
    """Try the sources in order until one finds a GPU (blocking). `sources`: names and readers; None: the real ones."""
    notes: list[str] = []
    for source, read in sources if sources is not None else SOURCES:
        try:
            gpus = read()
        except Unreadable as why:
            notes.append(str(why))
            continue
        if gpus:
            return GpuReport(gpus[:MAX_GPUS], source, tuple(notes))
    return GpuReport(notes=tuple(notes))


# -- NVML ----------------------------------------------------------------------------------------------------------------


def from_nvml(library: Any = None, environ: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """NVIDIA GPUs that CUDA shows; empty if NVML is not installed. `library`: pynvml, or a test double."""
    nvml: Any = library or importlib.import_module("pynvml")
    try:
        with initialised(nvml):
            driver = decoded(nvml.nvmlSystemGetDriverVersion())
            present = devices(nvml)
            shown = visible(present, environ)
            gpus = tuple(_nvml_gpu(nvml, one, driver) for one in shown[:MAX_GPUS])
    except nvml.NVMLError_LibraryNotFound:
        return ()
    except nvml.NVMLError as exc:
        raise Unreadable(f"NVIDIA driver: {exc}") from exc
    if present and not gpus:
        raise Unreadable(
            f"{VARIABLE}={environ[VARIABLE][:60]!r} shows none of this host's {len(present)} GPUs"
        )
    return gpus


def _nvml_gpu(nvml: Any, device: NvmlDevice, driver: str) -> Gpu:
    whole = device.whole or device.handle
    memory = query(nvml, "nvmlDeviceGetMemoryInfo", device.handle)
    compute = query(nvml, "nvmlDeviceGetCudaComputeCapability", whole)
    limit = query(nvml, "nvmlDeviceGetPowerManagementLimit", device.handle)
    return Gpu(
        name=decoded(nvml.nvmlDeviceGetName(device.handle)),
        vram=int(memory.total) if memory is not None else None,
        driver=driver,
        uuid=device.uuid,
        compute=(int(compute[0]), int(compute[1])) if compute is not None else None,
        power_limit_w=limit / 1000 if limit is not None else None,
    )


# -- torch ---------------------------------------------------------------------------------------------------------------


def torch_could(folder: Path | None = None) -> bool:
    """Whether an installed torch was built for some GPU, according to its `version.py`. `folder`: the package's; None: find it."""
    if folder is None:
        spec = importlib.util.find_spec("torch")
        if spec is None or not spec.origin:
            return False
        folder = Path(spec.origin).parent
    try:
        text = (folder / "version.py").read_text("utf-8", "replace")
    except OSError:
        return True
    return re.search(r"^(cuda|hip|xpu)\b[^=\n]*=\s*['\"]", text, re.MULTILINE) is not None


def from_torch(
    could: Callable[[], bool] = torch_could, run: Callable[[Sequence[str]], str | None] | None = None
) -> tuple[Gpu, ...]:
    """GPUs that torch finds (AMD's too), in a process of its own. `run`: runs a command and returns its output."""
    if not could():
        return ()
    output = (run or _output_of)(boot_command("measure.gpu"))
    if output is None:
        return ()
    try:
        gpus = json.loads(output)
        return tuple(
            Gpu(**{**gpu, "compute": tuple(gpu["compute"]) if gpu["compute"] else None}) for gpu in gpus
        )
    except (ValueError, TypeError, KeyError) as exc:
        raise Unreadable("torch: its list of GPUs cannot be read") from exc


def read_torch(torch: Any) -> tuple[Gpu, ...]:
    """The GPUs, read in that process. `torch`: the module, or a test double."""
    if not torch.cuda.is_available():
        return ()
    gpus = []
    for index in range(min(MAX_GPUS, torch.cuda.device_count())):
        device = torch.cuda.get_device_properties(index)
        uuid = getattr(device, "uuid", None)
        of_nvidia = torch.version.hip is None
        gpus.append(
            Gpu(
                name=str(device.name),
                vram=int(device.total_memory),
                uuid=f"GPU-{uuid}" if uuid is not None and of_nvidia else str(uuid or ""),
                compute=(int(device.major), int(device.minor)) if of_nvidia else None,
            )
        )
    return tuple(gpus)


def main(arguments: Sequence[str]) -> None:
    """Print the GPUs for `from_torch`."""
    assert not arguments
    torch = importlib.import_module("torch")
    sys.stdout.write(json.dumps([asdict(gpu) for gpu in read_torch(torch)]))


def _output_of(command: Sequence[str]) -> str | None:
    """The output of a program that runs without secrets in its environment; None if it fails or takes too long."""
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=TORCH_S, check=False, env=clean_environment(os.environ)
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


SOURCES: Final = (("nvml", from_nvml), ("torch", from_torch))
