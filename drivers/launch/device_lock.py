"""The lock of the device (`node.device.lock`), as a zygote takes it: never while somebody measures, whichever node of this host it is."""

from __future__ import annotations

import os
import sys

if sys.platform != "win32":
    import fcntl


class FreeDevice:
    """Held while a launch is prepared for. Who wants to measure waits meanwhile, and where somebody measures nothing is prepared."""

    def __init__(self, path: str) -> None:
        """`path`: the lock's file; empty: nobody else measures on this device."""
        self._path = path
        self._handle = -1

    def take(self) -> bool:
        """Have it, if nobody does. False too if its file cannot be used."""
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
        """Let others have it, whoever else has inherited it."""
        if self._handle >= 0:
            fcntl.flock(self._handle, fcntl.LOCK_UN)
            self.forget()

    def forget(self) -> None:
        """In a forked process: it stays with the parent."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
