"""The values the ledger keeps: a place on the device for one attempt, and the orders that its changes give the worker's shell."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from protocol.values.lease import LEASE, Fence, LeaseEvent, LeaseState
from protocol.values.task import Task
from protocol.wire.table import step
from protocol.words import Reason

HOLDS: Final = frozenset({LeaseState.OFFERED, LeaseState.GRANTED, LeaseState.RUNNING, LeaseState.LAPSED})
"""A slot is this lease's: no other may be granted on it."""
OCCUPIES: Final = frozenset({LeaseState.RUNNING, LeaseState.LAPSED, LeaseState.STOPPING})
"""Processes of this run may be alive on the device."""
MAX_REMEMBERED: Final = 4_096
ENDED: Final = frozenset({LeaseState.STOPPING, LeaseState.REPORTING, LeaseState.CLOSED})


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """What a scheduler asks for, checked by the desk: signed by it, fitting, allowed."""

    peer: str
    """Who speaks."""
    principal: str
    """On whose behalf: the peer itself, or who delegated to it."""
    key: str
    task: Task
    task_sha256: str
    attempt: int
    epoch: int
    priority: int = 50
    """As asked for."""
    cap: int = 100
    """The highest that its permission lets count."""
    owner: bool = False
    """For the device's owner."""
    stranger: bool = False
    """For somebody whom nobody here knows: no model of theirs may carry a program."""
    slots: int | None = None
    """Places and tickets that the principal may have here; None: no limit of its own."""
    team: str = ""
    preempted: int = 0
    """How often the task gave way before."""
    left_s: float | None = None
    """Until the campaign's time is over."""
    queue: bool = False
    ledger: int | None = None
    max_duration_s: float = math.inf
    """The most that the worker's owner lets it wait in the queue, whatever its task says."""
    rests: str = ""
    """The shown permission that it rests on; empty: one that does not end while the worker runs."""

    @property
    def about(self) -> tuple[str, str]:
        """Principal and campaign."""
        return self.principal, self.task.campaign

    @property
    def own(self) -> int:
        """Its priority here, before any ageing."""
        return min(self.priority, self.cap)


@dataclass(slots=True)
class Allocation:
    """One attempt's way through the worker. Times are on the worker's monotonic clock."""

    lease: str
    fence: Fence
    wanted: SlotRequest
    peer: str
    """Who speaks for it now; another than at first once its campaign was adopted."""
    state: LeaseState
    since: float
    """When it was committed."""
    deadline: float | None
    """When its lease lapses; None where it cannot."""
    began: float | None = None
    rests: str = ""
    """The shown permission of who speaks for it that it rests on."""
    timed: bool = False
    """Its run is being timed: not to be disturbed, and not to be ended for another."""
    why: Reason = Reason.UNKNOWN
    """Why it was stopped, once it was."""

    def move(self, event: LeaseEvent) -> LeaseState:
        """Follow the table. Gives the new state."""
        self.state = step(LEASE, self.state, event, story=f"lease {self.lease}")
        return self.state

    @property
    def limit(self) -> float | None:
        """When it ends whoever renews it: its time in the queue is over, or its campaign's. Infinite: never; None: it has ended."""
        if self.state not in HOLDS and self.state is not LeaseState.QUEUED:
            return None
        left_s = math.inf if self.wanted.left_s is None else self.wanted.left_s
        if self.state is LeaseState.QUEUED:
            left_s = min(left_s, self.wanted.task.timeouts.queue_s, self.wanted.max_duration_s)
        return self.since + left_s


@dataclass(frozen=True, slots=True)
class SlotOffer:
    """Tell the scheduler that the place of this ticket is ready."""

    lease: str


@dataclass(frozen=True, slots=True)
class RunCommand:
    """The device is free for this lease: begin."""

    lease: str


@dataclass(frozen=True, slots=True)
class KillCommand:
    """End this run's processes, then report `finish`."""

    lease: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class WarnCommand:
    """Tell the scheduler that this place gives way to a higher priority after the grace."""

    peer: str
    lease: str
    fence: Fence
    grace_s: float
    priority: int
    """Of who needs it."""
    about: tuple[str, str]
    """The principal and campaign of what gives way."""


Order = SlotOffer | RunCommand | KillCommand | WarnCommand

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class EndedLease(Generic[K, V]):
    """The most recent `limit` entries; older ones are forgotten, but for those that must be kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """What was kept under `key`, if it still is."""
        return self._entries.get(key)

    def put(self, key: K, value: V, keep: Callable[[V], bool] = lambda value: False) -> None:
        """Keep it as the most recent one. An old one that `keep` says must stay takes a turn as a recent one."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        for _ in range(len(self._entries)):
            if len(self._entries) <= self._limit:
                break
            oldest, kept = self._entries.popitem(last=False)
            if keep(kept):
                self._entries[oldest] = kept
