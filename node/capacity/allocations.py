"""The values of the ledger: a lease's allocation on the device, the request for it, and the commands that changes produce."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from protocol.messages.permission import CallPermission
from protocol.messages.work import Commit, Preempt
from protocol.values.lease import LEASE, Fence, LeaseEvent, LeaseState
from protocol.values.task import Task
from protocol.wire.table import step
from protocol.words import Reason

SLOT_HOLDING_STATES: Final = frozenset(
    {LeaseState.OFFERED, LeaseState.GRANTED, LeaseState.RUNNING, LeaseState.LAPSED}
)
"""The lease holds a slot, on which no other lease may be granted."""
QUOTA_STATES: Final = SLOT_HOLDING_STATES | {LeaseState.QUEUED}
"""States that count towards a principal's quota."""
DEVICE_OCCUPYING_STATES: Final = frozenset({LeaseState.RUNNING, LeaseState.LAPSED, LeaseState.STOPPING})
"""Processes of this run may be alive on the device."""
ENDED: Final = frozenset({LeaseState.STOPPING, LeaseState.REPORTING, LeaseState.CLOSED})
MAX_REMEMBERED: Final = 4_096

CampaignKey = tuple[str, str]
"""Principal and campaign."""


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """A checked commit: its scheduler signed the task, the task fits the device, and the peer has permission."""

    peer: str
    permission: CallPermission
    commit: Commit
    task: Task
    task_sha256: str
    max_queue_s: float = math.inf
    """The longest wait in the queue that the worker's owner allows, whatever the task says."""

    @property
    def principal(self) -> str:
        return self.permission.principal

    @property
    def owner(self) -> bool:
        return self.permission.owner

    @property
    def campaign_key(self) -> CampaignKey:
        return self.principal, self.task.campaign

    @property
    def base_priority(self) -> int:
        """The request's own priority on this worker, before any ageing."""
        return min(self.commit.priority, self.permission.priority)


@dataclass(slots=True)
class Allocation:
    """One attempt on this worker, from a queued lease or a grant to its result. Times are on the worker's monotonic clock."""

    lease: str
    fence: Fence
    request: SlotRequest
    peer: str
    """The peer that speaks for the lease now; it changes when the campaign is adopted."""
    state: LeaseState
    committed_at: float
    deadline: float | None
    """When the lease lapses; None if it cannot."""
    began_at: float | None = None
    backing_token: str = ""
    """The token behind the permission of the peer that speaks for the lease."""
    timed: bool = False
    """The run is being timed and must not be disturbed or preempted."""
    stop_reason: Reason = Reason.UNKNOWN

    def move(self, event: LeaseEvent) -> LeaseState:
        """Move to the next state according to the lease table. Returns the new state."""
        self.state = step(LEASE, self.state, event, story=f"lease {self.lease}")
        return self.state

    @property
    def ends_at(self) -> float | None:
        """When the lease ends even if renewed: its time in the queue, or its campaign's, is over. Infinite: never; None: it has ended."""
        if self.state not in QUOTA_STATES:
            return None
        left_s = math.inf if self.request.commit.left_s is None else self.request.commit.left_s
        if self.state is LeaseState.QUEUED:
            left_s = min(left_s, self.request.task.timeouts.queue_s, self.request.max_queue_s)
        return self.committed_at + left_s


@dataclass(frozen=True, slots=True)
class OfferCommand:
    """Ask the scheduler whether this queued lease should start now."""

    lease: str


@dataclass(frozen=True, slots=True)
class RunCommand:
    """Begin the run of this lease: the device is free."""

    lease: str


@dataclass(frozen=True, slots=True)
class KillCommand:
    """Kill this run's processes, then report `finish`."""

    lease: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class WarnCommand:
    """Tell a run's scheduler that the run is preempted."""

    peer: str
    campaign_key: CampaignKey
    note: Preempt


LedgerCommand = OfferCommand | RunCommand | KillCommand | WarnCommand

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecentDict(Generic[K, V]):
    """The most recent `limit` entries; older ones are forgotten."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        return self._entries.get(key)

    def put(self, key: K, value: V, keep: Callable[[V], bool] = lambda value: False) -> None:
        """Store an entry as the most recent one. An old entry that must stay (`keep`) counts as recent again."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        for _ in range(len(self._entries) - 1):
            if len(self._entries) <= self._limit:
                break
            oldest, value = self._entries.popitem(last=False)
            if keep(value):
                self._entries[oldest] = value


T = TypeVar("T")


def gives_way(
    items: Iterable[T], owner: Callable[[T], Hashable], size: Callable[[T], int], *, number: int, room: int
) -> list[T]:
    """The items to remove so that at most `number` items of at most `room` bytes in total remain. `items`: the least valuable first."""
    left = list(items)
    counts, sizes = Counter[Hashable](), Counter[Hashable]()
    for item in left:
        counts[owner(item)] += 1
        sizes[owner(item)] += size(item)
    gone: list[T] = []
    while left and (len(left) > number or sizes.total() > room):
        most = sizes if sizes.total() > room else counts
        greatest = max(most.values())
        first = next(item for item in left if most[owner(item)] == greatest)
        left.remove(first)
        gone.append(first)
        counts[owner(first)] -= 1
        sizes[owner(first)] -= size(first)
    return gone
