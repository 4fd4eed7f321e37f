"""The cores that a measuring process may use: physical cores, within its affinity and the container's quota."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_CPUS: Final = Path("/sys/devices/system/cpu")
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


def physical_cores(allowed: set[int], cpus: Path) -> int:
    """Distinct cores of the logical CPUs `allowed`, from sysfs; without sysfs each CPU counts as a core."""
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


def logical_cpus() -> int:
    """CPUs that this process may run on, at least 1. A core with two hardware threads counts as two."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def threads_for(requested: int | None) -> int:
    """Threads of a runtime: as requested, but at most one per CPU; None: `usable_cores`.

    More threads would only take turns, and each reserves address space, which the memory limit would have to allow.
    """
    return min(requested, logical_cpus()) if requested else usable_cores()


def threads_notes(requested: int | None) -> tuple[str, ...]:
    """A note for the row, if fewer threads are used than requested."""
    used = threads_for(requested)
    if not requested or requested <= used:
        return ()
    return (f"threads: {requested} requested, this device runs {used} at once",)


def usable_cores() -> int:
    """The default number of threads: physical cores, at least 1."""
    if not hasattr(os, "sched_getaffinity"):
        import psutil  # there is no sysfs

        return psutil.cpu_count(logical=False) or os.cpu_count() or 1
    cores = physical_cores(os.sched_getaffinity(0), _CPUS)
    try:
        quota = quota_cores(_QUOTA.read_text())
    except OSError:
        quota = None
    return max(1, min(cores, quota or cores))
