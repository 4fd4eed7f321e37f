"""Enters the sandbox on every tier: resource limits, a private folder, and first place for the out-of-memory killer.

What each system adds: `drivers.sandbox.linux`, `mac` and `windows`. Which tier a device reaches: `drivers.launch.probe_tier`.
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
    """How well a child is sandboxed, as in the device's profile."""

    FULL = "full"
    """The child reaches only its model, its own folder and the libraries: no network, no other file, no other process."""
    PARTIAL = "partial"
    """Some of these restrictions hold; the probe's reasons say what is open."""
    NONE = "none"
    """The child's resources are bounded, its reach is not."""


class SandboxError(Exception):
    """A launch could not enter its sandbox. The message says at which step, and why."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    tier: Tier
    plan: MountPlan


STACK_BYTES: Final = 80 * MIB
"""Address space that a thread reserves but does not use: its stack and its malloc arena."""
OPEN_FILES: Final = 256
PENDING_SIGNALS: Final = 1024
"""Limits timers too, each of which takes 600 bytes in the kernel."""
SPARE_THREADS: Final = 128
"""Threads of a launch, in addition to four per runtime thread."""
SPARE_CPU_S: Final = 60
MAX_CPU_S: Final = 2**31 - 1
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36


def move_in(folder: str) -> None:
    """Make the private folder this process's home, temporary and working directory."""
    os.chdir(folder)
    for name in ("HOME", "USERPROFILE", "APPDATA", "TMPDIR", "TEMP", "TMP", "XDG_CACHE_HOME"):
        os.environ[name] = folder


def prctl(option: int, value: int) -> bool:
    """Linux's prctl(2) with one argument; False if it fails."""
    if sys.platform != "linux":
        return False
    import ctypes

    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)


def set_process_name(name: str) -> None:
    """Set the name shown in `ps` and `top`, at most 15 characters; Linux only."""
    if sys.platform == "linux":
        with suppress(OSError):
            Path("/proc/self/comm").write_text(name)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends; exit now if `parent` has already ended."""
    if prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL)) and os.getppid() != parent:
        os._exit(1)


def mapped_bytes() -> int:
    """Address space in use by this process; 0 if unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def allow_open_files() -> None:
    """Raise the soft limit of open files to what a launch needs, whatever limit the node left. Does nothing on Windows."""
    if sys.platform != "win32":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        enough = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, enough), hard))


def limit(limits: Limits, threads: int, address_space: bool, counted: bool = False) -> None:
    """Set this process's resource limits for good (the hard ones too).

    `threads`: threads of the runtime. `address_space`: False for GPU runtimes, which map many times what they use. `counted`: the system
    counts this launch's processes and threads separately from the user's others, so that they can be bounded.
    """
    if sys.platform == "win32":
        from drivers.sandbox import windows

        windows.enter_job(limits.memory_bytes if address_space else None)
        return
    values = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: limits.output_bytes,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CPU: min(
            MAX_CPU_S, int((limits.load_s + limits.run_s) * (os.cpu_count() or 1)) + SPARE_CPU_S
        ),
    }
    if address_space and (mapped := mapped_bytes()):
        values[resource.RLIMIT_AS] = mapped + limits.memory_bytes + threads * STACK_BYTES
    if counted:
        values[resource.RLIMIT_NPROC] = 4 * threads + SPARE_THREADS
    for what, value in values.items():
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_SIGPENDING, (PENDING_SIGNALS, PENDING_SIGNALS))
        Path("/proc/self/oom_score_adj").write_text("1000")


def enter(sandbox: Sandbox) -> None:
    """Give up, for good, the rights that the sandbox's tier removes; the last step before the model is touched. Raises `SandboxError`."""
    if sandbox.tier is Tier.NONE:
        return
    try:
        if sys.platform == "linux":
            from drivers.sandbox import linux

            linux.restrict(sandbox.plan, full=sandbox.tier is Tier.FULL)
        elif sys.platform == "darwin":
            from drivers.sandbox import mac

            mac.enter(mac.system_library(), sandbox.plan)
        else:
            raise SandboxError(f"this system has no sandbox of tier {sandbox.tier}")
    except OSError as why:
        raise SandboxError(str(why)) from why
