"""The processor time of this process and of all that it has started: what the host does for Sark is not load by others."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")


def lists_children() -> bool:
    """Whether this system's kernel lists the children of each thread, as most Linux kernels do."""
    return (PROC / "thread-self/children").exists()


def process_tree_cpu_s(listed: bool | None = None) -> float:
    """Processor time of this process and its descendants, in seconds; ended ones count with their parents. `listed`: see `descendants`."""
    own = os.times()
    ended = own.children_user + own.children_system
    return time.process_time() + ended + sum(map(_cpu_s, descendants(os.getpid(), listed)))


def descendants(process: int, listed: bool | None = None) -> Iterator[int]:
    """All descendants of a process that are alive. `listed`: whether the kernel lists children; None: find out. If not, all processes are
    searched for descendants, which takes milliseconds."""
    if not (lists_children() if listed is None else listed):
        import psutil

        yield from (each.pid for each in psutil.Process(process).children(recursive=True))
        return
    below = children(process)
    while below:
        child = below.pop()
        yield child
        with suppress(OSError):  # it has ended
            below += children(child)


def children(process: int) -> list[int]:
    """Direct children of all threads of a process. Linux only. Raises OSError if the process has ended."""
    found: list[int] = []
    tasks = PROC / str(process) / "task"
    for thread in os.listdir(tasks):  # noqa: PTH208
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            found += map(int, (tasks / thread / "children").read_bytes().split())
    return found


def _cpu_s(process: int) -> float:
    """Processor time of one process and of the ended children that it has waited for; 0 if the process has ended."""
    if sys.platform == "linux":
        with suppress(OSError):
            fields = (PROC / str(process) / "stat").read_bytes().rpartition(b")")[2].split()
            return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    else:
        import psutil

        with suppress(psutil.Error):
            times = psutil.Process(process).cpu_times()
            return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0
