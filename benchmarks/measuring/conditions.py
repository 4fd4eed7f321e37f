"""Disturbs a host on purpose. Each condition ends by killing its own processes by their ids.

    with condition("memory"):
        …

quiet    nothing
cpu      for each processor a process that spins for 0.2 to 3 s, then sleeps for a time from the same range
memory   for every two processors a process that copies arrays of four times the last-level cache
pauses   processes below this one that measure are stopped for 5 to 50 ms, at random, for a fifth of the time: as if a hypervisor stole time
         from a machine that cannot account for it

    python benchmarks/measuring/conditions.py memory 10        # holds the condition for 10 s, to look at its effects
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

import psutil

from drivers.launch.child import NAME

CONDITIONS: Final = ("quiet", "cpu", "memory", "pauses")
SPIN_S: Final = (0.2, 3.0)
PAUSE_S: Final = (0.005, 0.05)
PAUSED: Final = 0.2
"""Share of the time for which processes are stopped."""
CACHES: Final = 4

ALONE: Final = "parent = os.getppid()\nalone = lambda: os.getppid() != parent\n"
"""A neighbour ends by itself when the process that started it is gone."""
BURNER: Final = f"""
import os, random, sys, time
{ALONE}
chance, (low, high) = random.Random(int(sys.argv[1])), map(float, sys.argv[2:])
while not alone():
    until = time.monotonic() + chance.uniform(low, high)
    while time.monotonic() < until:
        pass
    time.sleep(chance.uniform(low, high))
"""
STREAM: Final = f"""
import os, sys
import numpy as np
{ALONE}
source = np.ones(int(sys.argv[1]) // 16)
target = np.empty_like(source)
while not alone():
    np.copyto(target, source)
    np.copyto(source, target)
"""


def condition(name: str, seed: int = 0) -> AbstractContextManager[object]:
    """Hold the condition for the duration of the block. Raises KeyError for an unknown name."""
    cores = os.cpu_count() or 1
    if name == "cpu":
        return neighbours(
            BURNER, [(str(seed * cores + number), *map(str, SPIN_S)) for number in range(cores)]
        )
    if name == "memory":
        return neighbours(STREAM, [(str(CACHES * last_level_cache()),)] * max(1, cores // 2))
    return {"quiet": nullcontext(), "pauses": pauses(seed)}[name]


def last_level_cache(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Size in bytes; 32 MiB if the system does not report it."""
    sizes = [int(path.read_text().strip().removesuffix("K")) << 10 for path in folder.glob("index*/size")]
    return max(sizes, default=32 << 20)


@contextlib.contextmanager
def neighbours(program: str, each: list[tuple[str, ...]]) -> Iterator[None]:
    """Run Python programs beside the block, one for each list of arguments."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.extend(subprocess.Popen([sys.executable, "-c", program, *arguments]) for arguments in each)
        time.sleep(0.3)  # for importing numpy and filling arrays
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


@contextlib.contextmanager
def pauses(seed: int) -> Iterator[None]:
    """Repeatedly stop and continue the measuring processes below this one."""
    ended = threading.Event()
    thread = threading.Thread(target=_pause, args=(random.Random(seed), ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _pause(chance: random.Random, ended: threading.Event) -> None:
    mean = sum(PAUSE_S) / 2
    while not ended.wait(chance.expovariate(1 / (mean / PAUSED - mean))):
        stopped = [pid for pid in measuring() if send(pid, signal.SIGSTOP)]
        time.sleep(chance.uniform(*PAUSE_S))
        for pid in stopped:
            send(pid, signal.SIGCONT)


def measuring() -> list[int]:
    """The processes below this one that load and time models."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.name() == NAME:
                found.append(process.pid)
    return found


def send(pid: int, number: int) -> bool:
    """Send a signal; False if the process has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    with condition(sys.argv[1]):
        time.sleep(float(sys.argv[2]))
