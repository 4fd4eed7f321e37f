"""Holds the device for one run: nobody else measures while a launch runs; in the gaps between launches others may.

take ─▶ launch ─▶ gap: give … take ─▶ launch ─▶ … ─▶ give
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

import trio

from node.device.lock import DeviceLock

SHORTEST_GAP_S: Final = 1.0
"""In a shorter gap the run keeps the device."""


class DeviceHold:
    """The device, as one run has it. Call its methods from the task that runs the run."""

    def __init__(
        self,
        exclusive: trio.Lock,
        lock: DeviceLock,
        wait_idle: Callable[[], Awaitable[None]],
        on_wait: Callable[[], None],
        on_change: Callable[[bool], None] = lambda held: None,
    ) -> None:
        """`exclusive`: of this node. `lock`: of the host. `wait_idle`: waits for this node's own work. `on_wait`: called when another
        run has the device. `on_change`: called when the run has it, and when it has given it away."""
        self._exclusive, self._lock = exclusive, lock
        self._wait_idle, self._on_wait, self._on_change = wait_idle, on_wait, on_change
        self._locks = AsyncExitStack()
        self.held = False

    async def take(self) -> None:
        """Wait until the device is free, and have it. Raises `ResourceError` where its lock cannot be used."""
        await self._locks.enter_async_context(hold(self._exclusive, self._on_wait))
        await self._locks.enter_async_context(self._lock.hold(self._on_wait))
        await self._wait_idle()
        self.held = True
        self._on_change(True)

    async def give(self) -> None:
        """Let others have it."""
        self.held = False
        self._on_change(False)
        await self._locks.aclose()

    async def between_launches(self, gap_s: float) -> None:
        """The next launch begins in `gap_s` seconds; 0: as soon as this returns. Raises `ResourceError`."""
        if self.held and gap_s >= SHORTEST_GAP_S:
            await self.give()
        elif not (self.held or gap_s):
            await self.take()


@contextlib.asynccontextmanager
async def hold(lock: trio.Lock, on_wait: Callable[[], None]) -> AsyncIterator[None]:
    """The lock for the block; `on_wait` is called when another run has it."""
    if lock.locked():
        on_wait()
    async with lock:
        yield
