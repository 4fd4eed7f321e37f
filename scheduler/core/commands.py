"""What the book wants done. The service carries each out: first what goes to disk, then what goes over the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.formats.phase import Phase
from protocol.messages.work import HeldLease
from protocol.values.attempt import TaskEvent
from protocol.values.lease import Fence
from protocol.values.requirement import Requirement
from protocol.words import Reason


@dataclass(frozen=True, slots=True)
class Discover:
    """Look in the index for about `want` devices that fit; tell `Book.found`."""

    need: str
    requirement: Requirement
    want: int


@dataclass(frozen=True, slots=True)
class ProbeWorker:
    """Link up with it and ask how it stands; tell `quoted`, `refused` or `unreachable`."""

    peer: str


@dataclass(frozen=True, slots=True)
class CommitTo:
    """Put the intent on disk, then ask; tell `granted`, `denied`, `conflict` or `not_committed`."""

    peer: str
    device: str
    campaign: str
    task: str
    attempt: int
    key: str
    preempted: int = 0
    """How often the task gave way already."""
    left_s: float | None = None
    """Of the campaign's time; None: it has no limit."""
    second: bool = False
    """Another worker holds the task's ticket."""


@dataclass(frozen=True, slots=True)
class KeepGrant:
    """Put a grant or ticket on disk."""

    task: str
    attempt: int
    lease: str
    fence: Fence
    queued: bool
    position: int | None = None
    start_s: float | None = None


@dataclass(frozen=True, slots=True)
class Switch:
    """Put on disk that `attempt`, so far the second one, is the task's current one, and that the one before is over: nothing ran in it."""

    task: str
    attempt: int
    before: int
    reason: Reason | None
    detail: str


@dataclass(frozen=True, slots=True)
class EndSecond:
    """Put on disk that a second attempt is over: nothing ran in it."""

    task: str
    attempt: int
    reason: Reason | None
    detail: str


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """Put on disk that the current attempt is over without a record. `attempt` 0: none was begun."""

    task: str
    attempt: int
    event: TaskEvent
    reason: Reason | None
    detail: str


@dataclass(frozen=True, slots=True)
class EndPending:
    """Put on disk that these pending tasks are over."""

    tasks: tuple[str, ...]
    event: TaskEvent
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class RecordProgress:
    """Put on disk why pending tasks wait, in words."""

    tasks: tuple[str, ...]
    words: str


@dataclass(frozen=True, slots=True)
class CancelOn:
    """Have runs stopped; tell `stopped` when the worker confirms."""

    peer: str
    held: tuple[HeldLease, ...]
    reason: Reason


@dataclass(frozen=True, slots=True)
class ReleaseOn:
    """Give tickets back; tell `stopped` when the worker confirms."""

    peer: str
    held: tuple[HeldLease, ...]


@dataclass(frozen=True, slots=True)
class Explain:
    """Nothing that fits can be had within the time the campaign waits: find out why and tell `nothing_fits`."""

    need: str
    requirement: Requirement


@dataclass(frozen=True, slots=True)
class CampaignDone:
    """All tasks of it have ended."""

    campaign: str
    detail: str = ""
    """Why, where it ended as a whole."""


@dataclass(frozen=True, slots=True)
class TellUser:
    """Put into the events of these campaigns what happened outside their tasks."""

    campaigns: tuple[str, ...]
    name: str
    fields: Mapping[str, str | int | float]
    task: str | None = None


@dataclass(frozen=True, slots=True)
class SetAside:
    """A worker fails fast and often, or takes work and is silent: for the log, and for people."""

    peer: str
    device: str
    seconds: float
    why: str
    campaigns: tuple[str, ...] = ()
    """Those that would have used it."""


Order = (
    Discover
    | ProbeWorker
    | CommitTo
    | KeepGrant
    | Switch
    | EndSecond
    | EndAttempt
    | EndPending
    | RecordProgress
    | CancelOn
    | ReleaseOn
    | Explain
    | CampaignDone
    | SetAside
    | TellUser
)


@dataclass(frozen=True, slots=True)
class Intent:
    """An attempt that is about to be asked for."""

    task: str
    attempt: int
    key: str
    worker: str
    device: str
    epoch: int
    second: bool = False
    """Asked for while another worker holds the task's ticket."""


@dataclass(frozen=True, slots=True)
class LiveAttempt:
    """How a running attempt goes. Told often, kept only as the newest."""

    task: str
    attempt: int
    phase: Phase | None
    done: int = 0
    total: int | None = None
    median_ms: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where a ticket stands in its worker's queue. Told often, kept only as the newest."""

    task: str
    attempt: int
    position: int | None
    start_s: float | None = None
    note: str = ""
    """Why it waits, when there is more to say."""
