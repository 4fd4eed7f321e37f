"""The device lock (`node.device.lock`) as a zygote uses it: a zygote never takes it while any node of this host measures."""

from __future__ import annotations

import os
import sys

if sys.platform != "win32":
    import fcntl


class FreeDevice:
    """The device lock, held while a launch is prepared: measurements wait for it, and nothing is prepared during a measurement."""

    def __init__(self, path: str) -> None:
        """`path`: the lock file; empty: nothing else measures on this device."""
        self._path = path
        self._handle = -1

    def take(self) -> bool:
        """Take the lock if it is free. Returns False if it is held, or if the lock file cannot be used."""
        if not self._path:
            return True
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            handle = os.open(self._path, flags)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        self._handle = handle
        return True

    def give(self) -> None:
        """Release the lock, even if other processes have inherited its file descriptor."""
        if self._handle >= 0:
            fcntl.flock(self._handle, fcntl.LOCK_UN)
            self.forget()

    def forget(self) -> None:
        """Close the file in a forked process: the lock stays with the parent."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
