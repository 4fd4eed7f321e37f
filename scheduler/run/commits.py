"""Group commit: what was written since the last transaction is one transaction, with one flush of the disk.

The first change after a quiet while is committed at the end of its turn of the loop. After that the next commit waits until `APART_S` have
passed since the last one, and so does whoever waits for it: under load a transaction holds the changes of many tasks, and its cost, of
which most is the same for one change and for a hundred, is shared by them. After one that many waited for, the next waits until
`BUSY_APART_S` have passed. While the disk is being flushed, messages wait, and the next
turn takes all of them: the slower the disk, the more goes into each transaction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import trio

from scheduler.store.store import Store

APART_S: Final = 0.02
"""Between two commits at least: 50 a second, each about a millisecond of processor time, are 5 % of a core."""
BUSY_APART_S: Final = 0.08
"""Seconds between two commits while many wait for each: then processor time is scarce, and not that of a single worker."""
MANY: Final = 8
"""Messages that wait for a commit."""


@dataclass(eq=False)
class GroupCommit:
    """From now on it commits what the store gathers."""

    store: Store
    nursery: trio.Nursery
    """Ends with `ResourceError` when the store cannot be written."""
    _committed: trio.Event = field(default_factory=trio.Event)
    _next_at: float = -math.inf
    """When the next commit may be made."""
    _coming: bool = False

    def __post_init__(self) -> None:
        self.store.gather(self._gathered)

    def _gathered(self) -> None:
        if not self._coming:  # else a read has committed what was gathered, and the commit is still to come
            self._coming = True
            self.nursery.start_soon(self._commit)

    async def _commit(self) -> None:
        await trio.sleep_until(self._next_at)
        many = self._committed.statistics().tasks_waiting >= MANY
        self.store.commit()
        self._next_at = trio.current_time() + (BUSY_APART_S if many else APART_S)
        self._coming = False
        committed, self._committed = self._committed, trio.Event()
        committed.set()

    async def stored(self) -> None:
        """Wait until all that was written so far is on disk."""
        if self.store.uncommitted:
            await self._committed.wait()
