"""Whether a file lies in memory, and how to get it out of there: a cold load reads it from the disk.

Linux only: the pages are dropped with `posix_fadvise`, and whether they are gone is asked with `mincore`. Dropping hurts nobody:
whoever has the file open reads it again.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

PLATFORM: Final[str] = sys.platform
GONE: Final = 0.01
"""A file counts as dropped when at most this share of its pages is still there: read-ahead of others may bring back a few."""


def drop(model: Path, share_of: Callable[[int, int], float | None] | None = None) -> bool:
    """Drop the pages of a file, or of all files in a folder. True only if it was seen that they are gone.

    `share_of`: (file descriptor, bytes) → share of its pages in memory, None where that is not told.
    """
    if PLATFORM != "linux":
        return False
    try:
        return all(_drop(path, share_of or resident_share) for path in _files(model))
    except OSError:
        return False


def _files(model: Path) -> Iterator[Path]:
    if model.is_dir():
        yield from (path for path in sorted(model.rglob("*")) if path.is_file())
    else:
        yield model


def _drop(path: Path, share_of: Callable[[int, int], float | None]) -> bool:
    file = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(file).st_size
        if size == 0:
            return True
        os.fdatasync(file)  # pages that are not on the disk yet cannot be dropped
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        left = share_of(file, size)
        return left is not None and left <= GONE
    finally:
        os.close(file)


def resident_share(file: int, size: int) -> float | None:
    """Share of an open file's pages that are in memory, 0 to 1. None where the system does not tell.

    The kernel tells it only to those who own the file or may write it; to others it says that all are.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    pages = -(-size // mmap.PAGESIZE)
    flags = ctypes.create_string_buffer(pages)
    with mmap.mmap(file, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as view:
        start = ctypes.c_char.from_buffer(view)
        told = libc.mincore(ctypes.addressof(start), size, flags)
        del start  # the map cannot be closed while something points into it
    return None if told != 0 else 1 - flags.raw.count(0) / pages
