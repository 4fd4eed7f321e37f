"""Whether the device still works: it is examined after crashes of several models, and while it is faulty."""

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

RETRY_S: Final = 60.0


class Examiner:
    """Runs something that is known to work, while nothing is measured on this device."""

    def __init__(
        self,
        condition: WorkerCondition,
        lock: DeviceLock,
        examine: Callable[[], str],
        changed: Callable[[], None],
        retry_s: float = RETRY_S,
    ) -> None:
        """`examine` says what is wrong (empty: nothing) and blocks; `changed`: the condition may have changed; `retry_s`: the pause before
        a faulty device is examined again.
        """
        self._condition = condition
        self._lock = lock
        self._examine = examine
        self._on_change = changed
        self._retry_s = retry_s
        self._faulty = trio.Event()

    async def examine(self) -> None:
        """Once, now; waits for a measurement on this device to end. The condition has the outcome."""
        try:
            async with self._lock.hold():
                trouble = await trio.to_thread.run_sync(self._examine, abandon_on_cancel=True)
        except ResourceError as exc:
            trouble = exc.what
        was = self._condition.state
        self._condition.record_examination(trouble)
        log.warning("device.examined", trouble=trouble or "none", was=was, now=self._condition.state)
        if self._condition.state is WorkerState.FAULTY:
            self._faulty.set()

    async def keep(self) -> None:
        """Examine a faulty device from time to time, for ever; it serves as soon as it works."""
        while True:
            await self._faulty.wait()
            self._faulty = trio.Event()
            while self._condition.state is WorkerState.FAULTY:
                await trio.sleep(self._retry_s)
                await self.examine()
                self._on_change()
