"""CPU time of all threads of this process, to the nanosecond: the sum of the kernel's own account of each (Linux; elsewhere nothing tells).

`time.process_time` is not that: in a process with a limit of CPU time, as a run has, some kernels count it in ticks of up to 10 ms.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Final

CpuClock = Callable[[], int]
"""Nanoseconds so far. Raises OSError when a thread has ended."""

_THREAD_SCHED: Final = 6
"""CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED: the kernel's clock id of a thread is its complement, shifted by three bits, with these."""


def computes_on_cpu(unit: str) -> bool:
    """Whether CPU time is what a model costs on this unit: elsewhere it is only what waiting and feeding take."""
    return "CPU" in unit.partition(" (")[0].split()


def clock_of(thread: int) -> int:
    """The kernel's clock of a thread's CPU time, by its id."""
    return (~thread << 3) | _THREAD_SCHED


def cpu_clock(folder: str = "/proc/self/task") -> CpuClock | None:
    """A clock over the threads that there are now; make it when the runtimes have theirs. None where the system does not tell."""
    if sys.platform != "linux":
        return None
    try:
        clocks = [clock_of(int(name)) for name in os.listdir(folder)]  # noqa: PTH208
        sum(map(time.clock_gettime_ns, clocks))
    except (OSError, ValueError):
        return None
    return lambda: sum(map(time.clock_gettime_ns, clocks))


def read_cpu(clock: CpuClock | None) -> int | None:
    """None where there is no clock, or a thread of it has ended."""
    try:
        return None if clock is None else clock()
    except OSError:
        return None
