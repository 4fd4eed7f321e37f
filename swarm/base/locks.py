"""File locks between processes. The system holds them, so a process loses its locks however it ends.

`filelock` does the work. This module adds the errors that users see, and locks shared by several readers, which `filelock` lacks.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout, lock_descriptor

from protocol.errors import ResourceError
from swarm.base.durable import make_folder, unusable


@contextlib.contextmanager
def lock_folder(folder: Path, *, wait_s: float = 0.0) -> Iterator[None]:
    """Lock the data folder for this process alone until the context ends, waiting (blocking) at most `wait_s` for another holder.

    Makes the folder (mode 0700). Raises `ResourceError`, which names the process that holds the lock.
    """
    path = folder / "lock"
    try:
        make_folder(folder)
        lock = FileLock(path, mode=0o600, thread_local=False)
        lock.acquire(timeout=wait_s, poll_interval=0.02)
    except Timeout as error:
        raise ResourceError(
            f"the data folder {folder} is in use by {_holder(path)}",
            hint="stop that node, or give this one a folder of its own: --home FOLDER",
        ) from error
    except OSError as error:
        raise unusable(path, error) from error
    try:
        with contextlib.suppress(OSError):  # a full disk: the lock holds, without its holder's name
            path.write_text(f"{os.getpid()}\n")
        yield
    finally:
        lock.release()


def is_held(folder: Path) -> bool:
    """Whether a process holds the lock of this data folder."""
    try:
        with lock_folder(folder):
            return False
    except ResourceError:
        return True


def _holder(path: Path) -> str:
    try:
        owner = path.read_text("ascii", "replace")[:20].strip()
    except OSError:
        owner = ""
    return f"process {owner}" if owner.isdigit() else "another process"


@contextlib.contextmanager
def try_lock(path: Path, *, mode: int = 0o600) -> Iterator[bool]:
    """Hold the lock file `path` until the context ends; yields False if another process holds it. Raises `OSError`."""
    lock = FileLock(path, mode=mode, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def lock_open_file(file: BinaryIO, *, shared: bool) -> bool:
    """Lock an open file until it is closed, together with other readers (`shared`) or alone; False if another process holds it.

    If the system or the file system has no such locks, True: on Windows an open file cannot be removed, which is lock enough.
    """
    if sys.platform == "win32":
        return True
    if not shared:
        try:
            return lock_descriptor(file.fileno(), blocking=False)
        except OSError:
            return True
    import fcntl

    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
