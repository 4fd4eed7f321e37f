"""The records that wait for their schedulers, and settled records for an adopter of the campaign. Pure; `node.store` has the files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final

from pydantic import Field

from node.capacity.allocations import gives_way
from protocol.messages.work import Attempt, Result
from protocol.values.lease import Fence
from protocol.wire.base import MAX_INLINE, Count, Id, Message, PeerName, Sha256, Signature

RETENTION_S: Final = 24 * 3600.0
"""Seconds after which a scheduler that has not returned is assumed never to return."""
CLOCK_JUMP_S: Final = 30 * 24 * 3600.0
"""A record that looks older than this was stored by a clock that was not set yet, as on boards that start in 1970. Its age is ignored."""
CLOCK_STEP_S: Final = 60.0
CLOCK_STEADY_S: Final = 3600.0
"""Seconds without a jump by CLOCK_STEP_S after which the wall clock is trusted for times before this process started."""
MAX_ITEMS: Final = 2_000
MAX_BYTES: Final = 512 * 1024**2
MAX_SETTLED_BYTES: Final = 64 * 1024**2
"""Most bytes of all settled records together; the oldest are removed first. All are removed after `RETENTION_S`."""
MAX_IN_MEMORY: Final = 64
"""Most records that are kept in memory because the disk could not take them, each of at most MAX_INLINE bytes."""


class OutboxItem(Message):
    """The head of a record: its scheduler, campaign, task and attempt."""

    peer: PeerName
    """The scheduler that must get the record."""
    owner: PeerName | None = None
    """The owner of the campaign, if another scheduler acts for the owner."""
    campaign: Id
    task: Id
    attempt: Attempt
    lease: Id
    fence: Fence
    sha256: Sha256
    size: Count
    signature: Signature
    stored: float = Field(ge=0)
    """Wall clock, in seconds since the epoch, because retention continues while no process runs."""

    @property
    def principal(self) -> str:
        """The owner of the record's campaign."""
        return self.owner or self.peer

    def result(self, body: bytes | None) -> Result:
        """The message that delivers the record. A large record is only named; the scheduler pulls it."""
        return Result(**self.model_dump(include=set(Result.model_fields)), body=body)


class Outbox:
    """Records by sha256. All methods are instantaneous."""

    def __init__(
        self,
        wall: Callable[[], float],
        now: Callable[[], float],
        waiting: Iterable[OutboxItem] = (),
        settled: Iterable[OutboxItem] = (),
    ) -> None:
        """`now`: monotonic seconds. `waiting`, `settled`: records that an earlier process left on disk."""
        self._wall, self._now = wall, now
        self._ahead, self._steady_since = -math.inf, 0.0
        """Seconds that the wall clock is ahead of the monotonic clock, and since when."""
        self._put_at: dict[str, float] = {}
        """sha256 → when the record was stored, on the monotonic clock. Only records stored since this process started."""
        self._waiting = {item.sha256: item for item in waiting}
        self._settled = {item.sha256: item for item in settled}
        self._in_memory: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def waiting(self, peer: str) -> list[OutboxItem]:
        """The records that wait for one scheduler, oldest first."""
        return _oldest_first(item for item in self._waiting.values() if item.peer == peer)

    def is_for(self, peer: str, sha256: str) -> bool:
        item = self._waiting.get(sha256)
        return item is not None and item.peer == peer

    def in_memory(self, sha256: str) -> bytes | None:
        return self._in_memory.get(sha256)

    def of(self, campaign: str, principal: str) -> list[tuple[OutboxItem, bool]]:
        """All records of a campaign, oldest first, each with a flag that says whether it is settled."""
        items = (*self._waiting.values(), *filter(self._is_young, self._settled.values()))
        matches = (item for item in items if (item.campaign, item.principal) == (campaign, principal))
        return [(item, item.sha256 in self._settled) for item in _oldest_first(matches)]

    def campaigns(self) -> tuple[str, ...]:
        """Campaigns with records here, the campaign with the newest record first."""
        items = _oldest_first((*self._waiting.values(), *self._settled.values()))
        return tuple(dict.fromkeys(item.campaign for item in reversed(items) if self._is_young(item)))

    def make_room(self, incoming: OutboxItem) -> list[OutboxItem]:
        """The records to give up for `incoming`: those that are too old, and the oldest of the principal that takes the most room."""
        items = [*_oldest_first(self._waiting.values()), incoming]
        return [item for item in self._excess(items, MAX_BYTES) if item is not incoming]

    def put(self, item: OutboxItem) -> None:
        """A record on disk now waits for `item.peer`, whichever peer it waited for before."""
        self._settled.pop(item.sha256, None)
        self._waiting[item.sha256] = item
        self._put_at[item.sha256] = self._now()

    def put_in_memory(self, item: OutboxItem, body: bytes) -> bool:
        """Keep a record that the disk could not take. Returns False if it is too large, or too many are kept already."""
        spare = [sha256 for sha256 in self._in_memory if sha256 in self._settled]
        if len(body) > MAX_INLINE or len(self._in_memory) - len(spare) >= MAX_IN_MEMORY:
            return False
        if len(self._in_memory) >= MAX_IN_MEMORY:
            self._forget(spare[0])
        self._in_memory[item.sha256] = body
        self.put(item)
        return True

    def settle(self, sha256: str, *, keep: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The scheduler has the record, or never will. `keep`: keep it for a while, in case the scheduler is lost and another one adopts
        the campaign.

        Returns the hashes of the records (to keep on disk as settled, to remove from disk).
        """
        item = self._waiting.pop(sha256, None)
        if item is None:
            return (), ()
        if keep:
            self._settled[sha256] = item
        settled = _oldest_first(self._settled.values())
        excess = [item.sha256 for item in self._excess(settled, MAX_SETTLED_BYTES)]
        if not keep:
            excess.append(sha256)
        kept = () if sha256 in self._in_memory or sha256 in excess else (sha256,)
        return kept, tuple(old for old in excess if not self._forget(old))

    def drop(self, campaign: str, principal: str) -> tuple[tuple[OutboxItem, ...], tuple[str, ...]]:
        """Forget all records of a campaign. Returns the records, and the hashes of those to remove from disk."""
        items = (*self._waiting.values(), *self._settled.values())  # including records that are too old
        dropped = tuple(item for item in items if (item.campaign, item.principal) == (campaign, principal))
        for item in dropped:
            self._waiting.pop(item.sha256, None)
        on_disk = tuple(item.sha256 for item in dropped if not self._forget(item.sha256))
        return dropped, on_disk

    def _forget(self, sha256: str) -> bool:
        """Forget one record. Returns whether it was in memory only."""
        self._settled.pop(sha256, None)
        self._put_at.pop(sha256, None)
        return self._in_memory.pop(sha256, None) is not None

    def _excess(self, items: list[OutboxItem], room: int) -> list[OutboxItem]:
        old = [item for item in items if not self._is_young(item)]
        rest = [item for item in items if self._is_young(item)]
        return old + gives_way(rest, attrgetter("principal"), attrgetter("size"), number=MAX_ITEMS, room=room)

    def _is_young(self, item: OutboxItem) -> bool:
        now, wall = self._now(), self._wall()
        if abs(wall - now - self._ahead) > CLOCK_STEP_S:
            self._ahead, self._steady_since = wall - now, now
        put_at = self._put_at.get(item.sha256)
        if put_at is not None:
            return now - put_at <= RETENTION_S
        steady = now - self._steady_since >= CLOCK_STEADY_S
        return not (steady and RETENTION_S < wall - item.stored < CLOCK_JUMP_S)


def _oldest_first(items: Iterable[OutboxItem]) -> list[OutboxItem]:
    return sorted(items, key=lambda item: item.stored)
