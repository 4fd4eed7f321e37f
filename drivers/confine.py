"""What a child process gives up before it touches a model, and the environment it starts in.

These are the portable limits: resource limits, an empty environment, a private folder, first in line for the out-of-memory
killer. Namespaces, seccomp and Landlock come on top of them for strangers' work and are no part of this module.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from drivers.base import MIB, Limits

if sys.platform != "win32":
    import resource

SANDBOX: Final = "none"
"""How far a child is shut in, as the device's profile says it: the limits here bound what it uses, not what it may reach."""

KEPT: Final = (
    *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
    *("SYSTEMROOT", "SYSTEMDRIVE", "HOME", "USERPROFILE", "APPDATA"),
)
"""Variables a runtime may need to find its libraries (HOME: packages installed for one user). No others reach a driver."""

FIXED: Final = {
    "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime ≥ 1.29 otherwise opens an uploader, a thread and a database when it is imported
    "OPENBLAS_NUM_THREADS": "1",  # numpy's pool would start threads in the zygote, and nobody may fork beside threads
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
STACK_BYTES: Final = 80 * MIB
"""Address space that one more thread of the runtime reserves without using it: its stack and its malloc arena."""
OPEN_FILES: Final = 256
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a zygote: what it needs of ours and nothing that could be a secret or bend an import."""
    return {name: environ[name] for name in KEPT if name in environ} | FIXED


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


def limit(limits: Limits, threads: int, address_space: bool) -> None:
    """Set this process's resource limits for good (the hard ones too).

    `threads` is how many the runtime will start; `address_space` False leaves memory alone, for GPU runtimes, which map many
    times what they use. Does nothing on Windows.
    """
    if sys.platform == "win32":
        return
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: limits.output_bytes,
        resource.RLIMIT_NOFILE: OPEN_FILES,
    }
    if address_space and (mapped := mapped_bytes()):
        wanted[resource.RLIMIT_AS] = mapped + limits.memory_bytes + threads * STACK_BYTES
    for what, value in wanted.items():
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))
    if sys.platform == "linux":
        Path("/proc/self/oom_score_adj").write_text("1000")
