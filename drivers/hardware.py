"""How many cores a measuring process may use: physical ones, of those it is allowed on, within the container's quota."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_CPUS: Final = Path("/sys/devices/system/cpu")
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


def physical_cores(allowed: set[int], cpus: Path) -> int:
    """Different cores behind the logical CPUs `allowed`, by sysfs's word; each CPU counts where it says nothing."""
    cores: set[str] = set()
    for cpu in allowed:
        try:
            cores.add((cpus / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return len(cores)


def quota_cores(text: str) -> int | None:
    """Whole cores that a cgroup v2 `cpu.max` line grants, at least one; None for no limit."""
    quota, _, period = text.strip().partition(" ")
    if not (quota.isdigit() and period.isdigit() and int(period)):
        return None
    return max(1, int(quota) // int(period))


def usable_cores() -> int:
    """The default number of threads: at least 1."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = physical_cores(os.sched_getaffinity(0), _CPUS)
    try:
        quota = quota_cores(_QUOTA.read_text())
    except OSError:
        quota = None
    return max(1, min(cores, quota or cores))
