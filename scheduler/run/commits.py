"""Group commit: everything written since the last transaction becomes one transaction, with one flush of the disk.

The first change after a quiet period is committed at the end of its turn of the loop. After that, the next commit and everything that waits
for it wait until `APART_S` have passed since the last commit: under load a transaction holds the changes of many tasks, which share its
cost, most of which does not depend on the number of changes. After a commit for which many messages waited, the next one waits until
`BUSY_APART_S` have passed. While the disk is being flushed, messages wait, and the next turn takes all of them: the slower the disk, the
larger the transactions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import trio

from scheduler.store.store import Store

APART_S: Final = 0.02
"""Least seconds between two commits: 50 per second, each about a millisecond of processor time, use 5 % of a core."""
BUSY_APART_S: Final = 0.08
"""Seconds between two commits while many messages wait for each: then processor time is scarce, beyond a single worker's."""
MANY: Final = 8
"""Number of messages waiting for a commit from which on there are many."""


@dataclass(eq=False)
class GroupCommit:
    """Commits what the store gathers, from its creation on."""

    store: Store
    nursery: trio.Nursery
    """Ends with `ResourceError` when the store cannot be written."""
    _committed: trio.Event = field(default_factory=trio.Event)
    _next_at: float = -math.inf
    """Earliest time of the next commit."""
    _coming: bool = False

    def __post_init__(self) -> None:
        self.store.gather(self._gathered)

    def _gathered(self) -> None:
        if not self._coming:  # else a read committed the changes, and the commit is still scheduled
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

    async def wait_until_stored(self) -> None:
        """Wait until everything written so far is on disk."""
        if self.store.uncommitted:
            await self._committed.wait()
