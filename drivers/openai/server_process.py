"""The gray box: what the server's own processes and counters show, if it runs on this host and its owner allows it.

Processes are found by the port they listen on; memory and processor time are read between levels, never during a measured request. Figures
that cannot be read (another user's processes, no NVML, no `/metrics`) are left out.
"""

from __future__ import annotations

import importlib
import ipaddress
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

from drivers.measure.nvml import initialised

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
"""Prometheus counters of servers, and the names of the figures computed from their differences."""
_SAMPLE: Final = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(\{.*\})? +([^ ]+)( +-?[0-9]+)?")


def is_here(addresses: Sequence[str]) -> bool:
    """Whether all addresses are loopback."""
    return bool(addresses) and all(
        ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in addresses
    )


def server_processes(port: int) -> tuple[psutil.Process, ...]:
    """The processes that listen on the port, with their descendants; empty if they cannot be determined."""
    try:
        listening = {
            connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        } - {None}
    except (psutil.Error, OSError):
        return ()
    processes: dict[int, psutil.Process] = {}
    for pid in sorted(pid for pid in listening if pid is not None):
        with suppress(psutil.Error):
            root = psutil.Process(pid)
            processes |= {process.pid: process for process in (root, *root.children(recursive=True))}
    return tuple(processes.values())[:MAX_PROCESSES]


def read_processes(processes: Sequence[psutil.Process]) -> dict[str, float]:
    """`rss` and its `peak` in bytes, and `cpu_s`, of all processes that still run. Leaves out what cannot be read."""
    reading: dict[str, float] = {}
    peaks: list[int | None] = []
    for process in processes:
        with suppress(psutil.Error):
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
            reading["rss"] = reading.get("rss", 0) + memory.rss
            reading["cpu_s"] = reading.get("cpu_s", 0.0) + times.user + times.system
            try:
                peaks.append(peak_of(Path(f"/proc/{process.pid}/status").read_text(errors="replace")))
            except OSError:
                peaks.append(None)
    marks = [peak for peak in peaks if peak is not None]
    return reading | ({"peak": sum(marks)} if marks and len(marks) == len(peaks) else {})


def peak_of(status: str) -> int | None:
    """`VmHWM` in a process's status file, in bytes."""
    match = re.search(r"^VmHWM:\s+([0-9]+) kB$", status, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def gpu_bytes(pids: Sequence[int]) -> int | None:
    """GPU memory of these processes, from NVML; None if it cannot be read."""
    nvml: Any = importlib.import_module("pynvml")
    try:
        with initialised(nvml):
            handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
            running = [one for handle in handles for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    except nvml.NVMLError:
        return None
    sizes = [one.usedGpuMemory for one in running if one.pid in pids and one.usedGpuMemory is not None]
    return sum(sizes) if sizes else None


def read_counters(page: bytes) -> dict[str, float]:
    """The `COUNTERS` on a page in Prometheus' text format, each summed over its labels."""
    counters: dict[str, float] = {}
    for line in page.decode(errors="replace").splitlines()[:MAX_LINES]:
        sample = _SAMPLE.fullmatch(line.strip())
        if sample is None or sample[1] not in COUNTERS:
            continue
        try:
            value = float(sample[3])
        except ValueError:
            continue
        if math.isfinite(value):
            counters[sample[1]] = counters.get(sample[1], 0.0) + value
    return counters


def differences(
    before: Mapping[str, float], after: Mapping[str, float], wall_s: float, most_rss: float
) -> dict[str, float]:
    """The figures of the window between two readings. `most_rss`: the largest reading at the ends of levels.

    The peak is the processes' own, if it rose in the window (for several processes: the sum, though not necessarily of one moment);
    otherwise it is the largest reading.
    """
    figures: dict[str, float] = {}
    rose = {
        name: value - before[name] for name, value in after.items() if value >= before.get(name, math.inf)
    }
    if "rss" in before and "rss" in after:
        largest = after["peak"] if rose.get("peak") else max(before["rss"], after["rss"], most_rss)
        figures["server_rss_before_bytes"] = before["rss"]
        figures["server_rss_after_bytes"] = after["rss"]
        figures["server_rss_peak_bytes"] = largest
    if "cpu_s" in rose:
        figures["server_cpu_s"] = rose["cpu_s"]
        if wall_s > 0:
            figures["server_cpu_percent"] = 100 * rose["cpu_s"] / wall_s
    if "gpu" in after:
        figures["server_gpu_bytes"] = after["gpu"]
    # a counter that fell is left out: the server was restarted
    return figures | {COUNTERS[name]: value for name, value in rose.items() if name in COUNTERS}


class ServerWatch:
    """What can be seen of the server besides its responses: nothing (`black`), or its processes and counters (`gray`)."""

    def __init__(
        self,
        port: int,
        addresses: Sequence[str],
        document: Callable[[str], bytes],
        clock: Callable[[], int],
        *,
        watch: bool,
    ) -> None:
        """Takes the first reading, if the owner wants it and the server is on this host. `document`: gets a page of the server by its
        path."""
        self._document, self._clock = document, clock
        self._processes = server_processes(port) if watch and is_here(addresses) else ()
        self.access = "gray" if self._processes else "black"
        self.notes: list[str] = []
        if watch and not self._processes:
            self.notes.append("the server's processes cannot be seen from this device")
        names = set()
        for process in self._processes:
            with suppress(psutil.Error):
                names.add(str(process.name()))
        if names:
            self.notes.append(f"server: {', '.join(sorted(names))[:80]}, {len(self._processes)} processes")
        self._most_rss = 0.0
        self._began_ns = clock()
        self._before = self._read()

    def look(self) -> None:
        """Read the memory, between two levels."""
        if self._processes:
            self._most_rss = max(self._most_rss, read_processes(self._processes).get("rss", 0.0))

    def figures(self) -> dict[str, float]:
        """Figures of the window from the first reading to now; empty for a black box."""
        if not self._processes:
            return {}
        wall_s = (self._clock() - self._began_ns) / 1e9
        return differences(self._before, self._read(), wall_s, self._most_rss)

    def _read(self) -> dict[str, float]:
        if not self._processes:
            return {}
        gpu = gpu_bytes([process.pid for process in self._processes])
        reading = read_processes(self._processes) | ({} if gpu is None else {"gpu": gpu})
        return reading | read_counters(self._document("/metrics"))
