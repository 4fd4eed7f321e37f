"""Group commit: what the steps of one turn of the loop write is one transaction, with one flush of the disk.

While the disk is being flushed, messages wait; the next turn takes all of them. The slower the disk, the more goes into each transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from scheduler.store.store import Store


@dataclass(eq=False)
class GroupCommit:
    """From now on it commits what the store gathers."""

    store: Store
    nursery: trio.Nursery
    """Ends with `ResourceError` when the store cannot be written."""
    _committed: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.store.gather(lambda: self.nursery.start_soon(self._commit))

    async def _commit(self) -> None:
        await trio.lowlevel.checkpoint()
        self.store.commit()
        committed, self._committed = self._committed, trio.Event()
        committed.set()

    async def stored(self) -> None:
        """Until all that was written so far is on disk."""
        if self.store.uncommitted:
            await self._committed.wait()
