"""The gray box: what can be seen of the server beside its answers, where it runs on this host and its owner allows it.

Its processes are found by the port they listen on; memory and processor time are read between levels and never beside a
measured request. What cannot be seen (another user's processes, no NVML, no `/metrics`) is left out.
"""

from __future__ import annotations

import importlib
import ipaddress
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

MAX_PROCESSES: Final = 256
MAX_LINES: Final = 50_000
COUNTERS: Final = {
    "vllm:prompt_tokens_total": "server_prompt_tokens",
    "vllm:generation_tokens_total": "server_output_tokens",
    "vllm:num_preemptions_total": "server_preemptions",
    "vllm:prefix_cache_queries_total": "server_prefix_cache_queries",
    "vllm:prefix_cache_hits_total": "server_prefix_cache_hits",
    "vllm:time_to_first_token_seconds_sum": "server_ttft_s_sum",
    "vllm:time_to_first_token_seconds_count": "server_ttft_count",
    "vllm:request_queue_time_seconds_sum": "server_queue_s_sum",
    "llamacpp:prompt_tokens_total": "server_prompt_tokens",
    "llamacpp:tokens_predicted_total": "server_output_tokens",
    "llamacpp:prompt_seconds_total": "server_prompt_s",
    "llamacpp:tokens_predicted_seconds_total": "server_output_s",
    "llamacpp:n_decode_total": "server_decodes",
}
"""Counters of servers that are known, and the figures that their differences make."""
_SAMPLE: Final = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(\{.*\})? +([^ ]+)( +-?[0-9]+)?")


def is_here(addresses: Sequence[str]) -> bool:
    """Whether all of them are this host's own loopback."""
    return bool(addresses) and all(
        ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in addresses
    )


def server_processes(port: int) -> tuple[psutil.Process, ...]:
    """The processes that listen on the port, and those below them; empty where that is not to be seen."""
    try:
        listening = {
            connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        } - {None}
    except (psutil.Error, OSError):
        return ()
    found: dict[int, psutil.Process] = {}
    for pid in sorted(pid for pid in listening if pid is not None):
        with suppress(psutil.Error):
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                found[process.pid] = process
    return tuple(found.values())[:MAX_PROCESSES]


def name_of(process: psutil.Process) -> str:
    """A process's name, such as `llama-server`."""
    try:
        return str(process.name())
    except psutil.Error:
        return "gone"


@dataclass(frozen=True, slots=True)
class ServerReading:
    """The server's processes at one moment. Sizes in bytes; None: not to be seen."""

    rss: int | None = None
    highest: int | None = None
    """Sum of the most that each has ever held."""
    cpu_s: float | None = None
    gpu: int | None = None
    counters: Mapping[str, float] | None = None


def read_processes(
    processes: Sequence[psutil.Process], root: Path = Path("/proc")
) -> tuple[int | None, int | None, float | None]:
    """Resident bytes, the most that they ever were, processor seconds; of all that still run."""
    rss, high, cpu, seen = 0, 0, 0.0, 0
    high_known = True
    for process in processes:
        with suppress(psutil.Error):
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
            rss, cpu, seen = rss + memory.rss, cpu + times.user + times.system, seen + 1
            mark = highest_of(_text(root / str(process.pid) / "status"))
            high_known = high_known and mark is not None
            high += mark or 0
    if not seen:
        return None, None, None
    return rss, high if high_known else None, cpu


def highest_of(status: str) -> int | None:
    """`VmHWM` of a process's status page, in bytes."""
    found = re.search(r"^VmHWM:\s+([0-9]+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def gpu_bytes(pids: frozenset[int], library: Any = None) -> int | None:
    """GPU memory that these processes hold, by NVIDIA's library; None where it does not tell. `library`: pynvml, or a double."""
    nvml: Any = library or importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        held: int | None = None
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid in pids and process.usedGpuMemory is not None:
                    held = (held or 0) + int(process.usedGpuMemory)
    except nvml.NVMLError:
        return None
    else:
        return held
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def read_counters(page: bytes) -> dict[str, float]:
    """The known counters of a page in Prometheus' text form, each summed over its labels."""
    found: dict[str, float] = {}
    for line in page.decode(errors="replace").splitlines()[:MAX_LINES]:
        sample = _SAMPLE.fullmatch(line.strip())
        if sample is None or sample[1] not in COUNTERS:
            continue
        try:
            value = float(sample[3])
        except ValueError:
            continue
        if math.isfinite(value):
            found[sample[1]] = found.get(sample[1], 0.0) + value
    return found


def differences(
    before: ServerReading, after: ServerReading, wall_s: float, most_rss: int | None
) -> dict[str, float]:
    """The figures of the window between two readings. `most_rss`: the largest that was seen at levels' ends.

    The peak is what the processes themselves say, where it rose meanwhile (of several processes: the sum, though they need not have had
    it at one time); where it did not rise, the largest reading.
    """
    figures: dict[str, float] = {}
    if before.rss is not None and after.rss is not None:
        figures |= {"server_rss_before_bytes": before.rss, "server_rss_after_bytes": after.rss}
        if before.highest is not None and after.highest is not None and after.highest > before.highest:
            figures["server_rss_peak_bytes"] = after.highest
        else:
            figures["server_rss_peak_bytes"] = max(before.rss, after.rss, most_rss or 0)
    if before.cpu_s is not None and after.cpu_s is not None and after.cpu_s >= before.cpu_s:
        figures["server_cpu_s"] = after.cpu_s - before.cpu_s
        if wall_s > 0:
            figures["server_cpu_percent"] = 100 * (after.cpu_s - before.cpu_s) / wall_s
    if after.gpu is not None:
        figures["server_gpu_bytes"] = after.gpu
    for name, value in (after.counters or {}).items():
        earlier = (before.counters or {}).get(name)
        if earlier is not None and value >= earlier:  # less: it was started anew meanwhile
            figures[COUNTERS[name]] = value - earlier
    return figures
