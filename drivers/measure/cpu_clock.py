"""CPU time of all threads of this process, to the nanosecond: the sum of the kernel's account of each thread (Linux only).

`time.process_time` is not as precise: in a process with a CPU time limit, which every run has, some kernels count it in ticks of up to 10
ms.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Final

CpuClock = Callable[[], int]
"""Nanoseconds so far. Raises OSError if a thread has ended."""

_THREAD_SCHED: Final = 6
"""CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED. The kernel's clock id of a thread is the complement of its thread id, shifted by three bits,
with these bits set."""


def computes_on_cpu(unit: str) -> bool:
    """Whether CPU time is the cost of a model on this unit. On other units it covers only waiting and feeding inputs."""
    return "CPU" in unit.partition(" (")[0].split()


def clock_of(thread: int) -> int:
    """The kernel's clock of a thread's CPU time."""
    return (~thread << 3) | _THREAD_SCHED


def cpu_clock(folder: str = "/proc/self/task") -> CpuClock | None:
    """A clock over the threads that exist now: make it once the runtimes have started theirs. None where the system does not report CPU
    time."""
    if sys.platform != "linux":
        return None
    try:
        clocks = [clock_of(int(name)) for name in os.listdir(folder)]  # noqa: PTH208
        sum(map(time.clock_gettime_ns, clocks))
    except (OSError, ValueError):
        return None
    return lambda: sum(map(time.clock_gettime_ns, clocks))


def read_cpu(clock: CpuClock | None) -> int | None:
    """The clock's CPU time; None if there is no clock, or one of its threads has ended."""
    try:
        return None if clock is None else clock()
    except OSError:
        return None
