"""Lets one run at a time measure on a device, across all nodes on this host, including those of other users and homes.

There are two file locks in the host's temporary folder. They end with their process, however it ends, or some milliseconds later if a
zygote that shares the device's lock is preparing a launch. A waiter first takes the lock of the next in line, then the device's lock. The
previous holder queues behind it, so that no worker starves.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import trio
from filelock import lock_descriptor

from protocol.errors import ResourceError

POLL_S: Final = (0.001, 0.05)
"""Shortest and longest pause, in seconds, before the next try for a lock of another process. A preparing zygote holds it for some 10 ms."""
LATE: Final = 8
"""A pause lasts an eighth of the wait so far, so a wait ends at most an eighth too late."""


def shared_folder() -> Path:
    """A folder that all users of the host share."""
    return Path("/tmp") if os.name == "posix" else Path(tempfile.gettempdir())  # noqa: S108 - _open follows no link there


class DeviceLock:
    """The lock of one device. Each `hold` excludes all others, in this process or any other."""

    def __init__(self, device: str, folder: Path | None = None) -> None:
        name = hashlib.sha256(device.encode()).hexdigest()[:16]
        self.path = (folder or shared_folder()) / f"sark-device-{name}.lock"
        self._next = self.path.with_suffix(".next")
        self.handle = -1
        """The open, locked file while this process has the device. A process that inherits it shares the lock until both have closed it."""

    @contextlib.asynccontextmanager
    async def hold(self, on_wait: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        """Hold the device for the block. Calls `on_wait` once if the device is not free at once. Waiting can be cancelled.

        Raises `ResourceError` if a lock file cannot be used.
        """
        device, head = _open(self.path), _open(self._next)
        try:
            shortest_s, longest_s = POLL_S
            waited_s = 0.0
            for handle in (head, device):
                while not lock_descriptor(handle, blocking=False):
                    if not waited_s:
                        on_wait()
                    pause_s = min(max(shortest_s, waited_s / LATE), longest_s)
                    await trio.sleep(pause_s)  # poll: another process gives no event to wait for
                    waited_s += pause_s
            os.close(head)
            head, self.handle = -1, device
            yield
        finally:
            if self.handle == device:
                self.handle = -1
            if head >= 0:
                os.close(head)
            os.close(device)

    def make(self) -> None:
        """Ensure that the lock file exists, for processes that only check whether it is held. Raises `ResourceError` if it is unusable."""
        os.close(_open(self.path))

    def wanted(self) -> bool:
        """Whether another run waits for the device, which the caller holds. Raises `ResourceError`."""
        head = _open(self._next)
        try:
            return not lock_descriptor(head, blocking=False)
        finally:
            os.close(head)


def _open(path: Path) -> int:
    """The lock file, created for all users if there is none. Raises `ResourceError`. The file is opened for reading, which suffices for a
    lock: other users' files permit it, and a malicious link cannot make it overwrite anything."""
    flags = (
        (os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        | getattr(os, "O_NOFOLLOW", 0)
        | getattr(os, "O_CLOEXEC", 0)
    )
    try:
        with contextlib.suppress(
            FileExistsError
        ):  # O_EXCL: sticky folders refuse other users' files to O_CREAT alone
            made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                if os.name == "posix":
                    os.fchmod(made, 0o666)  # whatever the umask says
            finally:
                os.close(made)
        handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    except OSError as exc:
        raise ResourceError(
            f"cannot use the device lock {path}: {exc.strerror or exc}", hint=f"remove {path} and start again"
        ) from exc
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ResourceError(
            f"the device lock {path} is not a plain file", hint=f"remove {path} and start again"
        )
    return handle
