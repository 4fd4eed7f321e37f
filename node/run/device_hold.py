"""Holds the device for one run. No other run measures during a launch; in the gaps between launches others may.

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
    """One run's hold on the device. Call its methods from the trio task of the run."""

    def __init__(
        self,
        exclusive: trio.Lock,
        lock: DeviceLock,
        wait_idle: Callable[[], Awaitable[None]],
        on_wait: Callable[[], None],
        on_change: Callable[[bool], None] = lambda held: None,
    ) -> None:
        """`exclusive`: this node's lock. `lock`: the host's lock. `wait_idle`: waits for this node's own work. `on_wait`: called when
        another run has the device. `on_change`: called when the run has taken the device (True), and when it has given it up (False)."""
        self._exclusive, self._lock = exclusive, lock
        self._wait_idle, self._on_wait, self._on_change = wait_idle, on_wait, on_change
        self._locks = AsyncExitStack()
        self.held = False

    async def take(self) -> None:
        """Wait until the device is free, and take it. Raises `ResourceError` if its lock cannot be used."""
        await self._locks.enter_async_context(hold(self._exclusive, self._on_wait))
        await self._locks.enter_async_context(self._lock.hold(self._on_wait))
        await self._wait_idle()
        self.held = True
        self._on_change(True)

    async def give(self) -> None:
        """Give up the device."""
        self.held = False
        self._on_change(False)
        await self._locks.aclose()

    async def between_launches(self, gap_s: float) -> None:
        """Give up or take the device between launches. The next launch begins in `gap_s` seconds; 0: as soon as this returns. Raises
        `ResourceError`.
        """
        if self.held and gap_s >= SHORTEST_GAP_S:
            await self.give()
        elif not (self.held or gap_s):
            await self.take()


@contextlib.asynccontextmanager
async def hold(lock: trio.Lock, on_wait: Callable[[], None]) -> AsyncIterator[None]:
    """Hold `lock` for the block. `on_wait` is called first if another run has it."""
    if lock.locked():
        on_wait()
    async with lock:
        yield
