"""How many files and connections this process may have open: systems allow few at first (256 on macOS, 1,024 on Linux), more if asked.

Whoever connects takes one. A node that has none left could not even read a key, so some are kept from others.
"""

from __future__ import annotations

import sys
from typing import Final

WANTED: Final = 16_384
SPARE: Final = 128
"""Of them not for connections of others; half of them all, where there are very few."""


def for_others(files: int) -> int:
    """How many connections others may take of so many files."""
    return files - min(SPARE, files // 2)


def allow_open_files(wanted: int = WANTED) -> int:
    """Have the system allow `wanted` open files, or as many as it does; gives how many that are."""
    if sys.platform == "win32":
        return wanted  # sockets are no files there, and have no such limit
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):  # macOS has a limit beside the one that it tells
        return soft
    return most
