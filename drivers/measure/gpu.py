"""Which GPUs are here: NVML's word, else torch's, else that of `nvidia-smi`; the first that knows of any is believed.

Each reader takes the thing it reads from as an argument: a module, a program that prints. What a source does not tell is None.
torch is asked in a process of its own (importing it takes seconds and starts threads), and only where its build could have a GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from drivers.contract.boot import boot_command, clean_environment

MAX_GPUS: Final = 8
TOOL_S: Final = 5.0
TORCH_S: Final = 30.0
MIB: Final = 1024 * 1024
SMI_FIELDS: Final = ("name", "memory.total", "driver_version", "uuid", "compute_cap", "power.limit")
_SMI: Final = ("nvidia-smi", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader,nounits")
_NO_TENSOR_CORES: Final = re.compile(r"\bGTX 16|\bMX\s?\d|\bQuadro T|\bT(400|500|550|600|1000|1200|2000)\b")
"""Turing without tensor cores: the same compute capability as those that have them."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. None or empty: not told."""

    name: str
    vram: int | None = None
    """Bytes."""
    driver: str = ""
    uuid: str = ""
    compute: tuple[int, int] | None = None
    """CUDA compute capability; other makers have none."""
    power_limit_w: float | None = None

    @property
    def tensor_cores(self) -> int | None:
        """Generation of its tensor cores; 0: it has none; None: not known."""
        return tensor_core_generation(self.compute, self.name)


@dataclass(frozen=True, slots=True)
class FoundGpus:
    """What the sources said."""

    gpus: tuple[Gpu, ...] = ()
    source: str = ""
    """`nvml`, `torch` or `nvidia-smi`; empty: none knows of a GPU."""
    notes: tuple[str, ...] = ()
    """Sources that are here and do not work, and why."""


class Unreadable(Exception):
    """A source is here and does not work; the message is for people."""


def tensor_core_generation(compute: tuple[int, int] | None, name: str = "") -> int | None:
    """Generation of the tensor cores behind a CUDA compute capability; 0 where there are none, None where we do not know."""
    if compute is None:
        return None
    major, minor = compute
    if major < 7:
        return 0
    if major == 7:
        if minor < 5:
            return 1
        return 0 if _NO_TENSOR_CORES.search(name) else 2
    if major == 8:
        return 4 if minor == 9 else 3
    return {9: 4, 10: 5, 11: 5, 12: 5}.get(major)


def find_gpus(sources: Sequence[tuple[str, Callable[[], tuple[Gpu, ...]]]] | None = None) -> FoundGpus:
    """Ask the sources in order until one knows of a GPU (blocking). `sources`: names and readers; None: the real ones."""
    notes: list[str] = []
    for source, read in sources if sources is not None else SOURCES:
        try:
            gpus = read()
        except Unreadable as why:
            notes.append(str(why))
            continue
        if gpus:
            return FoundGpus(gpus[:MAX_GPUS], source, tuple(notes))
    return FoundGpus(notes=tuple(notes))


# -- NVML ----------------------------------------------------------------------------------------------------------------


def from_nvml(library: Any = None) -> tuple[Gpu, ...]:
    """NVIDIA GPUs through their own library; nothing where it is not installed. `library`: pynvml, or a double of it."""
    nvml: Any = library or importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        return ()
    except nvml.NVMLError as exc:
        raise Unreadable(f"NVIDIA driver: {exc}") from exc
    try:
        driver = words(nvml.nvmlSystemGetDriverVersion())
        return tuple(
            _nvml_gpu(nvml, index, driver) for index in range(min(MAX_GPUS, nvml.nvmlDeviceGetCount()))
        )
    except nvml.NVMLError as exc:
        raise Unreadable(f"NVIDIA driver: {exc}") from exc
    finally:
        nvml.nvmlShutdown()


def _nvml_gpu(nvml: Any, index: int, driver: str) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = told(nvml, "nvmlDeviceGetMemoryInfo", handle)
    compute = told(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    limit = told(nvml, "nvmlDeviceGetPowerManagementLimit", handle)
    return Gpu(
        name=words(nvml.nvmlDeviceGetName(handle)),
        vram=int(memory.total) if memory is not None else None,
        driver=driver,
        uuid=words(told(nvml, "nvmlDeviceGetUUID", handle) or ""),
        compute=(int(compute[0]), int(compute[1])) if compute is not None else None,
        power_limit_w=limit / 1000 if limit is not None else None,
    )


def told(nvml: Any, question: str, *arguments: Any) -> Any:
    """The answer of one function of NVML; None where this library, driver or GPU does not give it."""
    ask = getattr(nvml, question, None)
    if ask is None:
        return None
    try:
        return ask(*arguments)
    except nvml.NVMLError:
        return None


def words(value: str | bytes) -> str:
    """Text of NVML, whose older bindings give bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


# -- torch ---------------------------------------------------------------------------------------------------------------


def torch_could(folder: Path | None = None) -> bool:
    """Whether an installed torch was built for some GPU, by the words of its `version.py`. `folder`: the package's; None: find it."""
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
    could: Callable[[], bool] = torch_could, run: Callable[[Sequence[str], float], str | None] | None = None
) -> tuple[Gpu, ...]:
    """GPUs that torch sees (AMD's too), asked in a process of its own. `run`: command and seconds → what it prints."""
    if not could():
        return ()
    said = (run or printed_by)(boot_command("measure.gpu"), TORCH_S)
    if said is None:
        return ()
    try:
        gpus = json.loads(said)
        return tuple(
            Gpu(**{**gpu, "compute": tuple(gpu["compute"]) if gpu["compute"] else None}) for gpu in gpus
        )
    except (ValueError, TypeError, KeyError) as exc:
        raise Unreadable("torch: its answer about GPUs cannot be read") from exc


def read_torch(torch: Any) -> tuple[Gpu, ...]:
    """In that process. `torch`: the module, or a double of it."""
    if not torch.cuda.is_available():
        return ()
    gpus = []
    for index in range(min(MAX_GPUS, torch.cuda.device_count())):
        seen = torch.cuda.get_device_properties(index)
        uuid = getattr(seen, "uuid", None)
        of_nvidia = torch.version.hip is None
        gpus.append(
            Gpu(
                name=str(seen.name),
                vram=int(seen.total_memory),
                uuid=f"GPU-{uuid}" if uuid is not None and of_nvidia else str(uuid or ""),
                compute=(int(seen.major), int(seen.minor)) if of_nvidia else None,
            )
        )
    return tuple(gpus)


def main(arguments: Sequence[str]) -> None:
    """Print what torch sees, for `from_torch`."""
    assert not arguments
    torch = importlib.import_module("torch")
    sys.stdout.write(json.dumps([asdict(gpu) for gpu in read_torch(torch)]))


# -- nvidia-smi ----------------------------------------------------------------------------------------------------------


def from_smi(run: Callable[[Sequence[str], float], str | None] | None = None) -> tuple[Gpu, ...]:
    """What the tool of NVIDIA's driver lists. `run`: command and seconds → what it prints."""
    said = (run or printed_by)(_SMI, TOOL_S)
    return tuple(_smi_gpu(row) for row in (said or "").splitlines() if row.count(",") >= len(SMI_FIELDS) - 1)


def _smi_gpu(row: str) -> Gpu:
    name, vram, driver, uuid, compute, limit = (
        "" if field.strip().startswith("[") else field.strip()
        for field in row.rsplit(",", len(SMI_FIELDS) - 1)
    )
    major, _, minor = compute.partition(".")
    return Gpu(
        name=name,
        vram=int(vram) * MIB if vram.isdigit() else None,
        driver=driver,
        uuid=uuid,
        compute=(int(major), int(minor)) if major.isdigit() and minor.isdigit() else None,
        power_limit_w=float(limit) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", limit) else None,
    )


def printed_by(command: Sequence[str], seconds: float) -> str | None:
    """What a program prints, started with nothing secret in its environment; None when it is not there, fails or takes too long."""
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=seconds, check=False, env=clean_environment(os.environ)
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


SOURCES: Final[tuple[tuple[str, Callable[[], tuple[Gpu, ...]]], ...]] = (
    ("nvml", from_nvml),
    ("torch", from_torch),
    ("nvidia-smi", from_smi),
)
