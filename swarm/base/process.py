"""This process: how it is started again, what outlives it, what of it lasts, and how many files it may have open.

Each connection takes one file of the few that a process has by default (256 on macOS, 1,024 on Linux). A node without any left could
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
"""Of a node: much of what it makes is gone in a moment."""
SPARE: Final = 128
"""Files reserved from connections; at most half of all."""


def for_others(files: int) -> int:
    """How many of `files` open files the connections of peers may use."""
    return files - min(SPARE, files // 2)


def allow_open_files(limit: int = OPEN_FILES) -> int:
    """Raise the limit to `limit` open files, or as many as the system allows; returns the limit."""
    if sys.platform == "win32":
        return limit  # sockets are no files there
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return limit
    most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):  # macOS has another limit besides
        return soft
    return most


@contextlib.contextmanager
def lasting_objects() -> Iterator[None]:
    """What this process has made so far lasts: until the block ends, the garbage collector does not look at it again. With all that a
    node imports, each full collection would stop the event loop for 0.1 s; so would one now, for a few KiB.
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
    """The command before `--home …`, `join` and the like. `python`: options of the interpreter."""
    return [sys.executable] if frozen else [sys.executable, "-P", *python, "-m", "sark"]


def detached(
    command: Sequence[str],
    *,
    stdin: int = subprocess.DEVNULL,
    out: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """A process that survives a closed terminal and Ctrl-C. `out`: a file, None: as this process's. Raises `OSError`."""
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
