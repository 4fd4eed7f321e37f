"""One measuring run at a time for each device, whoever on this host runs it: nodes of other users and other homes too.

A file lock in the host's temporary folder, which ends with its process, however that ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import trio

from protocol.errors import ResourceError
from swarm.base.locks import try_lock

POLL_S: Final = 0.05


def shared_folder() -> Path:
    """A folder that all users of the host share."""
    return Path("/tmp") if os.name == "posix" else Path(tempfile.gettempdir())  # noqa: S108 - try_lock follows no link there


class DeviceLock:
    """The lock of one device. Each `hold` waits for all others, in this process or any other."""

    def __init__(self, device: str, folder: Path | None = None) -> None:
        name = hashlib.sha256(device.encode()).hexdigest()[:16]
        self.path = (folder or shared_folder()) / f"sark-device-{name}.lock"

    @contextlib.asynccontextmanager
    async def hold(self, on_wait: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        """Have the device for the block. Calls `on_wait` once if it is not free at once; waiting can be cancelled.

        Raises `ResourceError` where the file cannot be used.
        """
        with contextlib.ExitStack() as stack:
            waits = False
            while not self._try(stack):
                if not waits:
                    on_wait()
                waits = True
                await trio.sleep(POLL_S)  # another process has it: there is no event to wait for
            yield

    def _try(self, stack: contextlib.ExitStack) -> bool:
        try:  # 0666, whatever the umask says: other users are to open it
            return stack.enter_context(try_lock(self.path, mode=0o666))
        except OSError as exc:
            raise ResourceError(
                f"cannot use the device lock {self.path}: {exc.strerror or exc}",
                hint=f"remove {self.path} and start again",
            ) from exc
