"""Names that one task of one process has at a time, by a byte of a file that the system holds for it: a process that is killed has none."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from protocol.errors import ResourceError

PLACES: Final = 2**30
"""Bytes of the file, none of which is ever written. As many as each system's C library can lock: on Windows an offset is a `long`."""


class NamedLocks:
    """Those of one file, for one process: the system tells processes apart, this object its own tasks. Blocking, if never for long."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._handle: int | None = None
        self._mine: set[int] = set()

    @contextmanager
    def held(self, name: str) -> Iterator[bool]:
        """Have `name` for as long as the block lasts; False: somebody else has it. Raises `ResourceError`."""
        place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % PLACES
        if place in self._mine or not _lock(self._open(), place):
            yield False
            return
        self._mine.add(place)
        try:
            yield True
        finally:
            self._mine.discard(place)
            _unlock(self._open(), place)

    def _open(self) -> int:
        """Never closed while a name may be held: on POSIX that would give back all names of this process."""
        if self._handle is None:
            try:
                self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._handle = os.open(
                    self._file, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600
                )
            except OSError as exc:
                raise ResourceError(
                    f"cannot use {self._file}: {exc.strerror or exc}",
                    hint="free some space, or check its rights",
                ) from None
        return self._handle

    def close(self) -> None:
        """Give the file back: no name is held any more."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int, place: int) -> bool:
        os.lseek(handle, place, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(handle: int, place: int) -> None:
        os.lseek(handle, place, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(handle: int, place: int) -> bool:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError:
            return False
        return True

    def _unlock(handle: int, place: int) -> None:
        fcntl.lockf(handle, fcntl.LOCK_UN, 1, place)
