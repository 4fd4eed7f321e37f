"""Values that go into the store and come out of it: plain, without a connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from protocol.formats.phase import Phase
from protocol.values.attempt import TASK, TaskState
from protocol.values.lease import Fence
from protocol.wire.table import final
from protocol.words import Reason

FINAL_TASK_STATES: Final = tuple(state for state in TaskState if final(TASK, state))
"""The final task states."""
UNOBSERVED_EPOCH: Final = 0
"""The epoch of attempts that another scheduler made and a worker reported. The epochs of this store begin at 1."""
UNKNOWN_WORKER: Final = "unknown"
"""The worker of attempts that no worker reports any more."""


class AttemptState(StrEnum):
    """The state of one attempt."""

    INTENDED = "intended"
    """On disk and perhaps sent, no answer recorded."""
    QUEUED = "queued"
    GRANTED = "granted"
    REFUSED = "refused"
    """The worker refused, or the queued lease was returned: nothing ran."""
    LOST = "lost"
    FAILED = "failed"
    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    """It gave way to a higher priority."""
    UNCONFIRMED = "unconfirmed"
    """Its task is over, and its worker has not confirmed that the run stopped."""


FAULTLESS_ATTEMPT_STATES: Final = (
    AttemptState.SUCCEEDED,
    AttemptState.GRANTED,
    AttemptState.QUEUED,
    AttemptState.INTENDED,
)
"""States of an attempt of which nothing went wrong so far."""


class CampaignStatus(StrEnum):
    """The state of a campaign, or how it ended."""

    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    """Every task has a result."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    ADOPTED = "adopted"
    """Another scheduler carries it on: it continues, but not here."""


@dataclass(frozen=True, slots=True)
class NewModel:
    """A file that a campaign needs, identified by content: a model, or the examples of one. `facts`: the name that tasks give it."""

    name: str
    sha256: str
    size: int
    facts: str = ""
    evaluation: str = ""
    """For examples: how the answers are scored (`EvaluationAccount`), as JSON."""


@dataclass(frozen=True, slots=True)
class NewCampaign:
    """What `submit` stores. `spec` is the campaign as JSON; durations are in seconds."""

    id: str
    name: str
    scheduler: str
    """Peer id that signs its tasks."""
    spec: str
    attempts: int = 3
    backoff_s: float = 5.0
    wait_s: float = 60.0
    """How long to look for a device that fits before giving up."""
    limit_s: float | None = None
    """Limit of the whole campaign; None: no limit."""
    priority: int = 50
    folder: str = ""
    """Folder of the campaign file; empty: unknown."""


@dataclass(frozen=True, slots=True)
class CampaignRow(NewCampaign):
    """A campaign as stored. Instants are wall seconds since 1970, for people."""

    epoch: int = 0
    planned: bool = False
    """Whether its tasks exist. A campaign spread over devices waits until the scheduler has seen them."""
    cancel: bool = False
    created: float = 0.0
    ended: float | None = None
    outcome: CampaignStatus | None = None
    detail: str = ""

    @property
    def status(self) -> CampaignStatus:
        """The campaign's status."""
        if self.ended is not None:
            return self.outcome or CampaignStatus.FAILED
        return CampaignStatus.CANCELLING if self.cancel else CampaignStatus.RUNNING


class _Fenced:
    """A row with the fence of a lease."""

    __slots__ = ()
    incarnation: int | None
    number: int | None

    @property
    def fence(self) -> Fence | None:
        """The fence of the lease; None: there is no lease."""
        if self.incarnation is None or self.number is None:
            return None
        return Fence(incarnation=self.incarnation, number=self.number)


@dataclass(frozen=True, slots=True)
class TaskRow(_Fenced):
    """A task as stored, with its current state."""

    id: str
    campaign: str
    n: int
    model: str
    sha256: str
    unit: str
    state: TaskState = TaskState.PENDING
    attempt: int = 0
    """Number of the newest attempt; 0 before the first."""
    tries: int = 0
    """Attempts that failed or were lost."""
    worker: str | None = None
    device: str = ""
    lease: str | None = None
    incarnation: int | None = None
    number: int | None = None
    reason: Reason | None = None
    detail: str = ""
    cancel: bool = False
    phase: Phase | None = None
    done: int = 0
    total: int | None = None
    median_ms: float | None = None
    note: str = ""
    begun: float | None = None
    ended: float | None = None
    position: int | None = None
    """Position of its lease in its worker's queue, from 1; None: unknown, or it has no queued lease."""
    start_s: float | None = None
    """Expected wait in seconds at that position."""
    preempted: int = 0
    """How often it gave way to a higher priority."""
    replica: int | None = None
    """Number of the replica, from 1; None: the task has no replicas."""
    trust: str = ""
    """Why the worker of its newest attempt was trusted when it was asked; see `protocol.values.trust`."""


@dataclass(frozen=True, slots=True)
class AttemptRow(_Fenced):
    """One attempt as stored."""

    task: str
    attempt: int
    key: str
    worker: str
    device: str
    epoch: int
    state: AttemptState
    begun: float
    ended: float | None = None
    """For an unconfirmed stop: when its run is over at the latest."""
    lease: str | None = None
    incarnation: int | None = None
    number: int | None = None
    reason: Reason | None = None
    detail: str = ""
    trust: str = ""
    """Why its worker was trusted when it was asked or, for an adopted attempt, when it was taken over."""


@dataclass(frozen=True, slots=True)
class ResultReceipt:
    """The outcome of a delivered result."""

    stale: Reason | None = None
    """Why it was not stored; None: it is stored."""
    duplicate: bool = False
    """Whether an earlier delivery stored it."""


def stale_reason(state: str, reason: str | None) -> Reason:
    """Why a result of an attempt that is not open is not stored, by the state of its task. The worker keeps a result for a task that
    another scheduler adopted.
    """
    if state != TaskState.CANCELLED:
        return Reason.FENCED
    return Reason.ADOPTED if reason == Reason.ADOPTED else Reason.CANCELLED


@dataclass(frozen=True, slots=True)
class ResultRow:
    """A task with the signed record that decided it, if one did."""

    task: TaskRow
    body: bytes
    """The task's canonical bytes."""
    worker: str | None = None
    attempt: int | None = None
    record: bytes | None = None
    signature: bytes | None = None
    accepted: float | None = None
    account: str | None = None
    """What was witnessed of a stranger's run, as JSON."""
    device_key: str = ""
    """Peer id of the key to which the device id belonged when the result came; empty: the worker's own."""
    scores: str | None = None
    """Scores of its answers (`Scores`), as JSON; None: the model was not evaluated."""
    url: str | None = None
    """URL below which the campaign's results are also written; None: nowhere."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event, in the order of storage: `seq` counts from 1 without gaps in each campaign."""

    campaign: str
    seq: int
    at: float
    name: str
    task: str | None
    fields: Mapping[str, Any] = field(default_factory=dict)
    hash: str = ""
    """Hash over this event and the previous event's hash; see `scheduler.store.events`."""


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """A task of an adopted campaign as a worker reports it: waiting, running or ended."""

    task: str
    attempt: int
    worker: str
    device: str
    lease: str
    fence: Fence
    queued: bool = False
    ended: bool = False
    """Whether it has run; its result is on the worker."""
    trust: str = ""
    """Why the scheduler that adopts the campaign trusts the worker."""
    highest: int = 0
    """The highest attempt of the task that any worker reported."""


@dataclass(frozen=True, slots=True)
class CampaignSummary:
    """A campaign in one line: how many tasks are in each state."""

    campaign: CampaignRow
    counts: Mapping[TaskState, int]
    experiment: str = ""
    """The version of an experiment whose run it is, such as nightly@3; empty: none."""
    finding: str = ""
    """The run's finding, compared with earlier runs; empty: not known yet."""

    @property
    def tasks(self) -> int:
        """The number of all tasks."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class WaitingTasks:
    """Tasks that wait for the same unit and worker."""

    unit: str
    worker: str | None
    """The worker that queues them; None: none yet."""
    device: str
    """That worker's name."""
    tasks: int


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """Where a worker was last reached, and its device."""

    peer: str
    device: str
    addresses: tuple[str, ...]
    seen: float
    advert: bytes = b""
    """Canonical bytes of its advert; empty: unknown."""


@dataclass(frozen=True, slots=True)
class VersionModel:
    """A file that a version of an experiment needs, identified by content: a model, or the examples of one."""

    name: str
    sha256: str
    size: int
    references_sha256: str = ""
    """For examples: the hash of their references (`EvaluationAccount.references_sha256`); empty: for a model, or for examples saved by an
    older version of this program.
    """


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One version of an experiment. `spec`: the campaign as JSON; `folder`: the base of its models' relative paths."""

    experiment: str
    version: int
    digest: str
    spec: str
    models: tuple[VersionModel, ...]
    folder: str
    created: float

    @property
    def title(self) -> str:
        """`nightly@3`"""
        return f"{self.experiment}@{self.version}"


@dataclass(frozen=True, slots=True)
class ExperimentRow:
    """An experiment, with its schedule if it has one. Instants are wall seconds since 1970."""

    name: str
    created: float
    every_s: float | None
    at_s: float | None
    """Seconds after midnight (UTC)."""
    alarm: float
    """Share by which a result must surely be worse before it counts as a regression."""
    webhook: str = ""
    secret_file: str = ""
    due: float | None = None
    """When it is next due; None: it has no schedule."""


@dataclass(frozen=True, slots=True)
class RunClaim:
    """States that a campaign is a run of this version. `due`, `then`: for a scheduled run, when it was due and when the next one is."""

    experiment: str
    version: int
    due: float | None = None
    then: float | None = None


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run, and its finding once its campaign has ended."""

    campaign: str
    experiment: str
    version: int
    scheduled: bool
    begun: float
    judged: float | None = None
    finding: str = ""
    cells: tuple[dict[str, Any], ...] = ()
    accepted: bool = False
    hook: str = ""
    """State of the webhook: empty (nothing to send), due, sending, sent, or why it could not be sent."""
    hook_at: float | None = None


@dataclass(frozen=True, slots=True)
class SendingRow:
    """Results to be written to a URL once their campaign has ended."""

    campaign: str
    url: str
    sent: float | None = None
    tries: int = 0
    why: str = ""
    """Why the last try failed; empty: it did not fail."""


@dataclass(frozen=True, slots=True)
class ForgetRow:
    """A worker that has yet to forget a deleted campaign."""

    campaign: str
    worker: str
    device: str
    epoch: int
    """The epoch under which the campaign was led."""
    since: float
