"""What a child process gives up before it touches a model, and the environment it starts in.

Here are the limits that hold on every tier: resource limits, an empty environment, a private folder, first in line for the
out-of-memory killer; and the door to what each system adds to them (`drivers.sandbox.linux`, `drivers.sandbox.mac`,
`drivers.sandbox.windows`). Which tier a device reaches is found out by `drivers.launch.tier`.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from drivers.contract.base import MIB, Limits
from drivers.sandbox.mounts import MountPlan

if sys.platform != "win32":
    import resource


class Tier(StrEnum):
    """How far a child is shut in, as the device's profile says it."""

    FULL = "full"
    """It reaches nothing but its model, its own folder and the libraries: no network, no file, no process of this device."""
    PARTIAL = "partial"
    """Some of that. What is open stands in the probe's reasons."""
    NONE = "none"
    """What it uses is bounded, what it reaches is not."""


class SandboxError(Exception):
    """A launch could not be shut in as far as it was to be. Says at which step, and why."""


@dataclass(frozen=True, slots=True)
class Shelter:
    """How one launch is shut in."""

    tier: Tier
    plan: MountPlan


STACK_BYTES: Final = 80 * MIB
"""Address space that one more thread of the runtime reserves without using it: its stack and its malloc arena."""
OPEN_FILES: Final = 256
SPARE_THREADS: Final = 128
"""Threads a launch may have beside four for each that its runtime was told to take."""
SPARE_CPU_S: Final = 60
MAX_CPU_S: Final = 2**31 - 1
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36


def move_in(folder: str) -> None:
    """Make the private folder this process's home, its place for temporary files and its working directory."""
    os.chdir(folder)
    for name in ("HOME", "USERPROFILE", "APPDATA", "TMPDIR", "TEMP", "TMP", "XDG_CACHE_HOME"):
        os.environ[name] = folder


def prctl(option: int, value: int) -> bool:
    """Linux's prctl(2) with one argument; False where it is not to be had."""
    if sys.platform != "linux":
        return False
    import ctypes

    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)


def be_called(name: str) -> None:
    """What this process is called in `ps` and `top`, at most 15 characters; only on Linux."""
    if sys.platform == "linux":
        with suppress(OSError):
            Path("/proc/self/comm").write_text(name)


def die_with(parent: int) -> None:
    """Have the kernel end this process when `parent` does, also by SIGKILL; end it now if that has happened already."""
    if prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL)) and os.getppid() != parent:
        os._exit(1)


def mapped_bytes() -> int:
    """Address space in use by this process, or 0 where it cannot be told."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def have_files() -> None:
    """Whatever was left of the node's own limit of open files, a zygote has enough for its launches. Does nothing on Windows."""
    if sys.platform != "win32":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        enough = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, enough), hard))


def limit(limits: Limits, threads: int, address_space: bool, counted: bool = False) -> None:
    """Set this process's resource limits for good (the hard ones too).

    `threads` is how many the runtime will start; `address_space` False leaves memory alone, for GPU runtimes, which map many
    times what they use. `counted`: the system counts this launch's processes and threads apart from the user's others, so that
    they can be bounded.
    """
    if sys.platform == "win32":
        from drivers.sandbox import windows

        windows.enter_job(limits.memory_bytes if address_space else None)
        return
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: limits.output_bytes,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CPU: min(
            MAX_CPU_S, int((limits.load_s + limits.run_s) * (os.cpu_count() or 1)) + SPARE_CPU_S
        ),
    }
    if address_space and (mapped := mapped_bytes()):
        wanted[resource.RLIMIT_AS] = mapped + limits.memory_bytes + threads * STACK_BYTES
    if counted:
        wanted[resource.RLIMIT_NPROC] = 4 * threads + SPARE_THREADS
    for what, value in wanted.items():
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))
    if sys.platform == "linux":
        Path("/proc/self/oom_score_adj").write_text("1000")
