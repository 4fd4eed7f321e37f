"""One measuring run at a time for each device, whoever on this host runs it: nodes of other users and other homes too.

A file lock in the host's temporary folder. It belongs to an open file, so it ends with its process, however that ends. Waiting
is done by the kernel in a thread of its own: the lock is handed over in its queue's order, at once, and nothing polls.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import trio

from protocol.errors import ResourceError

MAX_WAITS: Final = 64
"""Threads in the kernel's queue for one lock. A wait that was cancelled leaves its thread there until the device is free, so they
are apart from the threads that everything else of this process shares.
"""
POLL_S: Final = 0.02
"""Where the system cannot wait in a way that can be left (Windows)."""


def lock_folder() -> Path:
    """A folder that all users of the host share."""
    return Path("/tmp") if os.name == "posix" else Path(tempfile.gettempdir())  # noqa: S108 - shared on purpose; see _open


def _nobody() -> None:
    """Nobody wants to know."""


class DeviceLock:
    """The lock of one device. Each `hold` waits for all others, in this process or any other."""

    def __init__(self, device: str, folder: Path | None = None) -> None:
        name = hashlib.sha256(device.encode()).hexdigest()[:16]
        self.path = (folder or lock_folder()) / f"sark-device-{name}.lock"
        self._waits = trio.CapacityLimiter(MAX_WAITS)

    @contextlib.asynccontextmanager
    async def hold(self, waiting: Callable[[], None] = _nobody) -> AsyncIterator[None]:
        """Have the device for the block. `waiting` is told when it is not free at once; waiting can be cancelled.

        Raises `ResourceError` where the file cannot be used.
        """
        handle = _open(self.path)
        try:
            taken = _try_lock(handle)
        except OSError as exc:
            os.close(handle)
            raise _unusable(self.path, exc) from exc
        if not taken:
            waiting()
            handle = await self._wait(handle)
        try:
            yield
        finally:
            os.close(handle)

    async def _wait(self, handle: int) -> int:
        """The handle, locked. Closes it when the wait is cancelled or fails."""
        if sys.platform == "win32":
            return await _poll(handle)
        waiter = _Waiter(handle)
        try:
            await trio.to_thread.run_sync(waiter.wait, abandon_on_cancel=True, limiter=self._waits)
        except OSError as exc:
            raise _unusable(self.path, exc) from exc
        except trio.Cancelled:
            waiter.abandon()
            raise
        return handle


async def _poll(handle: int) -> int:
    """The handle, locked, where the system cannot wait. Closes it when the wait is cancelled or fails."""
    try:
        while not _try_lock(handle):  # noqa: ASYNC110 - another process has it: there is no event to wait for
            await trio.sleep(POLL_S)
    except BaseException:
        os.close(handle)
        raise
    return handle


class _Waiter:
    """A thread in flock(), and what becomes of the lock when nobody wants it any more."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._began = False
        self._locked = False
        self._abandoned = False

    def wait(self) -> None:
        """In the thread. After `abandon` the lock is let go as soon as it is had."""
        import fcntl

        with self._lock:
            if self._abandoned:  # while it waited for a thread: the handle is closed already
                return
            self._began = True
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX)
        except OSError:
            os.close(self._handle)
            raise
        with self._lock:
            self._locked = True
            if self._given_up():
                os.close(self._handle)

    def _given_up(self) -> bool:
        return self._abandoned

    def abandon(self) -> None:
        """In the loop, when the wait was cancelled."""
        with self._lock:
            self._abandoned = True
            if self._locked or not self._began:
                os.close(self._handle)


def _open(path: Path) -> int:
    """The lock file, made where there is none. Opened for reading only: that is enough for a lock, other users' files allow it,
    and nothing can be overwritten by a link that somebody put there. Made by O_EXCL: sticky folders refuse other users' files to O_CREAT.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    if os.name == "nt":
        flags = os.O_RDWR
    for _ in range(3):
        try:
            handle = os.open(path, flags)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
                try:
                    if os.name == "posix":
                        os.fchmod(made, 0o666)  # whatever the umask says: other users are to open it
                finally:
                    os.close(made)
            continue
        except OSError as exc:
            raise _unusable(path, exc) from exc
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
        break
    raise ResourceError(f"the device lock {path} is not a plain file", hint=f"remove {path} and start again")


def _try_lock(handle: int) -> bool:
    """Lock it now, or say that somebody has it."""
    if sys.platform == "win32":
        import msvcrt

        try:
            os.lseek(handle, 0, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unusable(path: Path, exc: OSError) -> ResourceError:
    return ResourceError(
        f"cannot use the device lock {path}: {exc.strerror or exc}", hint=f"remove {path} or its link"
    )
