"""Resident memory of this process and its peak since a reset, without sampling. Also drops files from memory, so that a cold load reads
them from the disk.

Linux: writing 5 to /proc/self/clear_refs resets VmHWM to VmRSS, so that each phase has a peak of its own. Windows keeps one peak for the
whole life of the process. Elsewhere the peak is not measured.

Files can be dropped on Linux only: `posix_fadvise` drops their pages, `mincore` confirms it. A process that has the file open simply reads
it again.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

PLATFORM: Final[str] = sys.platform  # as a plain str: type checkers would call the other branches unreachable
GONE: Final = 0.01
"""A file counts as dropped if at most this share of its pages is resident: read-ahead may bring back a few."""
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_SMAPS = Path("/proc/self/smaps")
_MAPPING: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) r-[x-]p \S+ \S+ [1-9][^\n]*((?:\n[A-Z][^\n]*)+)", re.MULTILINE
)
"""A private, read-only mapping of a file, with its figures."""


def _status_bytes(field: bytes) -> int | None:
    try:
        text = _STATUS.read_bytes()
    except OSError:
        return None
    _, separator, rest = text.partition(field + b":")
    return int(rest.split(maxsplit=1)[0]) * 1024 if separator else None


def resident_bytes() -> int | None:
    """Resident set now, in bytes."""
    if PLATFORM == "linux":
        return _status_bytes(b"VmRSS")
    import psutil

    return int(psutil.Process().memory_info().rss)


def reset_peak() -> bool:
    """Start a new peak. False if the platform does not support this."""
    try:
        # without O_TRUNC, which a sandbox would have to allow separately
        file = os.open(_CLEAR, os.O_WRONLY)
    except OSError:
        return False
    try:
        return os.write(file, b"5") == 1
    except OSError:
        return False
    finally:
        os.close(file)


def peak_bytes(was_reset: bool) -> int | None:
    """Highest resident set in bytes since `reset_peak`, which returned `was_reset`; None if it cannot be measured."""
    if PLATFORM == "linux":
        return _status_bytes(b"VmHWM") if was_reset else None
    if PLATFORM == "win32":
        import psutil

        peak = getattr(psutil.Process().memory_info(), "peak_wset", None)
        return None if peak is None else int(peak)
    return None


def leave_libraries() -> None:
    """Remove the unchanged pages of mapped files, mostly code of libraries, from this process. They stay in the system's cache and return
    one by one when they are used. For a process that has imported much and now waits. Linux only."""
    if PLATFORM != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, size in _unchanged(_SMAPS.read_text(errors="replace")):
        madvise(start, size, mmap.MADV_DONTNEED)


def _unchanged(smaps: str) -> Iterator[tuple[int, int]]:
    """Address and size in bytes of each private, read-only mapping of a file that has no pages of its own. Relocated tables are read-only
    too, but they have pages of their own, which would be lost."""
    for start, end, body in _MAPPING.findall(smaps):
        if "\nAnonymous:             0 kB" in body:
            yield int(start, 16), int(end, 16) - int(start, 16)


def drop_pages(model: Path, share_of: Callable[[int, int], float | None] | None = None) -> bool:
    """Drop the pages of a file, or of all files in a folder. True only if the drop is confirmed.

    `share_of`: (file descriptor, bytes) → resident share of its pages, None if unknown.
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
        os.fdatasync(file)  # dirty pages cannot be dropped
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        left = share_of(file, size)
        return left is not None and left <= GONE
    finally:
        os.close(file)


def resident_share(file: int, size: int) -> float | None:
    """Resident share of an open file's pages, 0 to 1; None if unknown.

    The kernel reports it only to processes that own the file or may write it; to others it reports all pages as resident.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    pages = -(-size // mmap.PAGESIZE)
    flags = ctypes.create_string_buffer(pages)
    with mmap.mmap(file, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as view:
        start = ctypes.c_char.from_buffer(view)
        failed = libc.mincore(ctypes.addressof(start), size, flags)
        del start  # the map cannot be closed while a pointer into it exists
    return None if failed else 1 - flags.raw.count(0) / pages
