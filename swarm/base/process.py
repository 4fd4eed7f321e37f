"""This process: the command to start it again, processes that outlive it, objects that last, and how many files it may have open.

Each connection takes one of the few open files that a process has by default (256 on macOS, 1,024 on Linux). A node with none left could
not even read a key, so some are reserved for its own files.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

FROZEN: Final = bool(getattr(sys, "frozen", False))
"""Whether this is the stand-alone binary."""
OPEN_FILES: Final = 16_384
GC_THRESHOLDS: Final = (50_000, 20, 50)
"""For a node, whose objects are mostly short-lived."""
SPARE: Final = 128
"""Open files that connections may not use; at most half of all."""


def for_others(files: int) -> int:
    """How many of `files` open files peers' connections may use."""
    return files - min(SPARE, files // 2)


def allow_open_files(limit: int = OPEN_FILES) -> int:
    """Raise the limit of open files to `limit`, or as high as the system allows; returns the limit."""
    if sys.platform == "win32":
        return limit  # sockets are not files there
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return limit
    most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):  # macOS has a second limit
        return soft
    return most


@contextlib.contextmanager
def freeze_gc() -> Iterator[None]:
    """Exclude all objects made so far from garbage collection until the block ends. With all that a node imports, each full collection
    would stop the event loop for 0.1 s. A collection now would take as long, and free a few KiB.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def own_command(*python: str, frozen: bool = FROZEN) -> list[str]:
    """The command that precedes `--home …`, `join` and the like. `python`: options for the interpreter."""
    return [sys.executable] if frozen else [sys.executable, "-P", *python, "-m", "sark"]


def detached(
    command: Sequence[str],
    *,
    stdin: int = subprocess.DEVNULL,
    out: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that survives a closed terminal and Ctrl-C. `out`: a file; None: inherit this process's. Raises `OSError`."""
    windows = sys.platform == "win32"
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=out,
        stderr=out,
        cwd=os.sep,
        env=environment,
        start_new_session=not windows,
        creationflags=0x00000008 | 0x00000200
        if windows
        else 0,  # DETACHED_PROCESS | CREATE_NEW_PROCESS_GROUP
    )
