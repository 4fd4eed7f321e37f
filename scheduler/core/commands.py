"""Commands of the core. The conversation carries them out, those for the disk first, then those for the network, and passes each answer to
the collaborator of the core that is named here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol.formats.phase import Phase
from protocol.values.attempt import TaskEvent
from protocol.values.lease import Fence
from protocol.values.trust import MINE, OWN, Trust, TrustScope
from protocol.words import Reason

if TYPE_CHECKING:
    from protocol.messages.work import HeldLease
    from protocol.values.requirement import Requirement


@dataclass(frozen=True, slots=True)
class Discover:
    """Search the index for about `want` devices that fit. Answer: `workers.add_adverts`."""

    group: str
    requirement: Requirement
    want: int
    trust: TrustScope = MINE


@dataclass(frozen=True, slots=True)
class ProbeWorker:
    """Connect and request a quote. Answer: `workers.add_quote`, `refuse` or `mark_unreachable`."""

    peer: str


@dataclass(frozen=True, slots=True)
class CommitTo:
    """Store the intent, then send the commit. Answer: `reconciler.grant`, `deny`, `conflict` or `fail_commit`."""

    task: str
    attempt: int
    key: str
    peer: str
    device: str
    epoch: int
    hedge: bool = False
    """Another worker has the task's current attempt."""
    preempted: int = 0
    """How often the task was preempted."""
    left_s: float | None = None
    """Seconds left of the campaign's time; None: no limit."""
    trust: Trust = OWN
    """Why the campaign trusts the worker."""


@dataclass(frozen=True, slots=True)
class RecordGrant:
    """Store a lease, granted or queued."""

    task: str
    attempt: int
    lease: str
    fence: Fence
    queued: bool
    position: int | None = None
    start_s: float | None = None
    beside: bool = False
    """Whether the lease belongs to the hedge beside a run, and may run too."""


@dataclass(frozen=True, slots=True)
class SwitchAttempt:
    """Store that the hedge `attempt` is now the task's current attempt, and that attempt `before` ended by `event`; the task lost no
    try.
    """

    task: str
    attempt: int
    before: int
    reason: Reason | None
    detail: str
    event: TaskEvent = TaskEvent.REFUSE


@dataclass(frozen=True, slots=True)
class EndHedge:
    """Store that a hedge ended by `event`; the task keeps its state and lost no try."""

    task: str
    attempt: int
    reason: Reason | None
    detail: str
    event: TaskEvent = TaskEvent.REFUSE


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """A worker was asked to stop a run `since_s` seconds ago and has not confirmed. The run is over in `left_s` seconds at the latest."""

    since_s: float
    left_s: float


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """Store that the current attempt ended without a record."""

    task: str
    attempt: int
    event: TaskEvent
    reason: Reason | None = None
    detail: str = ""
    stop: Unconfirmed | None = None
    """The stop that its worker has not confirmed; set if the attempt's run may go on for a while."""


@dataclass(frozen=True, slots=True)
class EndStop:
    """Store that a run that was asked to stop is over: its worker confirmed it, or its time is up."""

    task: str
    attempt: int
    confirmed: bool


@dataclass(frozen=True, slots=True)
class EndPending:
    """Store that these pending tasks ended."""

    tasks: Sequence[str]
    event: TaskEvent
    reason: Reason | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RecordWaitReason:
    """Store why pending tasks wait, in words."""

    tasks: tuple[str, ...]
    words: str
    until: float | None = None
    """When the reason ceases to apply, on the scheduler's monotonic clock; None: unknown."""


@dataclass(frozen=True, slots=True)
class CancelOn:
    """Stop runs. Answer: `failures.confirm_stop`."""

    peer: str
    held: tuple[HeldLease, ...]
    reason: Reason


@dataclass(frozen=True, slots=True)
class ReleaseOn:
    """Return queued leases. Answer: `failures.confirm_stop`."""

    peer: str
    held: tuple[HeldLease, ...]


@dataclass(frozen=True, slots=True)
class Explain:
    """Nothing that fits can be found within the campaign's waiting time: find out why. Answer: `timeouts.end_unplaceable`."""

    group: str
    requirement: Requirement


@dataclass(frozen=True, slots=True)
class EndCampaign:
    """Store that all tasks of a campaign have ended."""

    campaign: str
    detail: str = ""
    """Why the campaign ended, if it ended as a whole."""


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Add an event to the logs of these campaigns."""

    campaigns: tuple[str, ...]
    name: str
    fields: Mapping[str, str | int | float]
    task: str | None = None


@dataclass(frozen=True, slots=True)
class SetAside:
    """Set aside a worker that fails fast and often, or takes work and falls silent: tell the log and the users."""

    peer: str
    device: str
    seconds: float
    why: str
    campaigns: tuple[str, ...] = ()
    """Campaigns that would have used the worker."""


Command = (
    Discover
    | ProbeWorker
    | CommitTo
    | RecordGrant
    | SwitchAttempt
    | EndHedge
    | EndAttempt
    | EndStop
    | EndPending
    | RecordWaitReason
    | CancelOn
    | ReleaseOn
    | Explain
    | EndCampaign
    | SetAside
    | RecordEvent
)


@dataclass(frozen=True, slots=True)
class LiveAttempt:
    """Progress of a running attempt; only the newest is kept."""

    task: str
    attempt: int
    phase: Phase | None
    done: int = 0
    total: int | None = None
    median_ms: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """Position of a queued lease in its worker's queue; only the newest is kept."""

    task: str
    attempt: int
    position: int | None
    start_s: float | None = None
    note: str = ""
    """Why the task waits, if there is more to say."""
