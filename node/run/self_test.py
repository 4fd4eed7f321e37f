"""Whether the device still works: it is examined after what no good device does, and, once it failed, until it works again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
import trio

from node.capacity.worker_state import WorkerCondition
from node.device.lock import DeviceLock
from protocol.errors import ResourceError
from protocol.words import WorkerState

log = structlog.get_logger("sark.worker")

AGAIN_S: Final = 60.0


class Examiner:
    """Runs what is known to work, while nothing is measured on this device.

    examine    does it and says what is wrong; empty: nothing. Blocks
    moved      the condition may be another now
    again_s    how long a faulty device is left alone before it is examined again
    """

    def __init__(
        self,
        condition: WorkerCondition,
        lock: DeviceLock,
        examine: Callable[[], str],
        moved: Callable[[], None],
        again_s: float = AGAIN_S,
    ) -> None:
        self._condition = condition
        self._lock = lock
        self._examine = examine
        self._moved = moved
        self._again_s = again_s
        self._broke = trio.Event()

    async def examine(self) -> None:
        """Once, now; waits for a measurement on this device to end. What it found stands in the condition."""
        try:
            async with self._lock.hold():
                trouble = await trio.to_thread.run_sync(self._examine, abandon_on_cancel=True)
        except ResourceError as exc:
            trouble = exc.what
        was = self._condition.state
        self._condition.record_examination(trouble)
        log.warning("device.examined", trouble=trouble or "none", was=was, now=self._condition.state)
        if self._condition.state is WorkerState.FAULTY:
            self._broke.set()

    async def keep(self) -> None:
        """A device that did not work is examined again and again, and serves as soon as it works."""
        while True:
            await self._broke.wait()
            self._broke = trio.Event()
            while self._condition.state is WorkerState.FAULTY:
                await trio.sleep(self._again_s)
                await self.examine()
                self._moved()
