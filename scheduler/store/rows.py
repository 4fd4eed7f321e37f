"""What goes into the store and comes out of it: plain values, no connection behind them."""

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

ENDED: Final = tuple(state for state in TaskState if final(TASK, state))
"""The final task states."""
UNOBSERVED_EPOCH: Final = 0
"""The epoch of attempts that another scheduler made and a worker reported. The epochs of this store begin at 1."""
UNKNOWN_WORKER: Final = "unknown"
"""The worker of attempts that nobody reports any more."""


class AttemptState(StrEnum):
    """The state of one attempt."""

    INTENDED = "intended"
    """On disk, perhaps asked, no answer recorded."""
    QUEUED = "queued"
    GRANTED = "granted"
    REFUSED = "refused"
    """The worker said no, or the queued lease was given back: nothing ran."""
    LOST = "lost"
    FAILED = "failed"
    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    """It gave way to a higher priority."""
    UNCONFIRMED = "unconfirmed"
    """Its task is over, and its worker has not confirmed that the run was stopped."""


WENT_WELL: Final = (AttemptState.SUCCEEDED, AttemptState.GRANTED, AttemptState.QUEUED, AttemptState.INTENDED)
"""States of an attempt of which nothing went wrong so far."""


class CampaignStatus(StrEnum):
    """How a campaign stands, or how it ended."""

    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    """Every task has a result."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    ADOPTED = "adopted"
    """Another scheduler carries it on: it goes on, but not here."""


@dataclass(frozen=True, slots=True)
class NewModel:
    """A file that a campaign needs, by content: a model, or the examples of one. `facts`: what tasks call it."""

    name: str
    sha256: str
    size: int
    facts: str = ""
    evaluation: str = ""
    """Of examples: how the answers are scored (`EvaluationAccount`), as JSON."""


@dataclass(frozen=True, slots=True)
class NewCampaign:
    """What `submit` puts on disk. `spec` is the campaign as JSON; durations in seconds."""

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
    """The whole campaign; None: no limit."""
    priority: int = 50
    folder: str = ""
    """Where the campaign file lies; empty: unknown."""


@dataclass(frozen=True, slots=True)
class CampaignRow(NewCampaign):
    """A campaign as stored. Instants are wall seconds since 1970, for people."""

    epoch: int = 0
    planned: bool = False
    """Its tasks are there; a campaign spread over devices waits for the scheduler to see them."""
    cancel: bool = False
    created: float = 0.0
    ended: float | None = None
    outcome: CampaignStatus | None = None
    detail: str = ""

    @property
    def status(self) -> CampaignStatus:
        """How it stands."""
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
        """Of the lease; None: there is no lease."""
        if self.incarnation is None or self.number is None:
            return None
        return Fence(incarnation=self.incarnation, number=self.number)


@dataclass(frozen=True, slots=True)
class TaskRow(_Fenced):
    """A task as stored, with where it stands now."""

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
    """Of its lease in its worker's queue, from 1; None: unknown, or it has none."""
    start_s: float | None = None
    """Expected wait then, in seconds."""
    preempted: int = 0
    """How often it gave way to a higher priority."""
    replica: int | None = None
    """Which of several runs of the same on different devices it is, from 1; None: there is only one."""
    trust: str = ""
    """Why the worker of its newest attempt was believed when it was asked; see `protocol.values.trust`."""


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
    """Of an unconfirmed stop, when its run is over at the latest."""
    lease: str | None = None
    incarnation: int | None = None
    number: int | None = None
    reason: Reason | None = None
    detail: str = ""
    trust: str = ""
    """Why its worker was believed when it was asked; of an attempt that was adopted, when it was taken over."""


@dataclass(frozen=True, slots=True)
class ResultReceipt:
    """What became of a delivered result."""

    stale: Reason | None = None
    """Why it was not stored; None: it is stored."""
    duplicate: bool = False
    """It was stored by an earlier delivery."""


def stale_reason(state: str, reason: str | None) -> Reason:
    """Why a result of an attempt that is not open is not stored, by the state of its task. The worker keeps a result of a task that
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
    """Peer id of the key that the device id belonged to when the result came; empty: the worker's own."""
    scores: str | None = None
    """What its answers scored (`Scores`), as JSON; None: the model was not evaluated."""
    url: str | None = None
    """Below which the campaign's results are written as well; None: nowhere."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """Something that happened, in the order it was stored: `seq` counts from 1 without gaps in each campaign."""

    campaign: str
    seq: int
    at: float
    name: str
    task: str | None
    fields: Mapping[str, Any] = field(default_factory=dict)
    hash: str = ""
    """Over this event and the hash of the one before; see `scheduler.store.events`."""


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
    """It has run; its result is on the worker."""
    trust: str = ""
    """Why whoever adopts the campaign believes that worker."""
    highest: int = 0
    """The highest attempt of the task that any worker reported."""


@dataclass(frozen=True, slots=True)
class CampaignSummary:
    """A campaign in one line: how many tasks stand where."""

    campaign: CampaignRow
    counts: Mapping[TaskState, int]
    experiment: str = ""
    """Of which version of an experiment it is a run, such as nightly@3; empty: of none."""
    finding: str = ""
    """What that run was, compared with those before it; empty: not known yet."""

    @property
    def tasks(self) -> int:
        """All of them."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class WaitingTasks:
    """Tasks that wait for the same."""

    unit: str
    worker: str | None
    """The worker that queues them; None: none yet."""
    device: str
    """That worker's name."""
    tasks: int


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """Where a worker was last reached, and what it is."""

    peer: str
    device: str
    addresses: tuple[str, ...]
    seen: float
    advert: bytes = b""
    """Canonical bytes of its advert; empty: unknown."""


@dataclass(frozen=True, slots=True)
class VersionModel:
    """A file that a version of an experiment needs, by content: a model, or the examples of one."""

    name: str
    sha256: str
    size: int
    references_sha256: str = ""
    """Of what the answers to examples are held against, as `EvaluationAccount` has it; empty: of a model, or of examples that an older
    version of this program saved."""


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One version of an experiment. `spec`: the campaign as JSON; `folder`: where its models' relative paths begin."""

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
    """An experiment, with its schedule where it has one. Instants are wall seconds since 1970."""

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
    """When it is to run next; None: it has no schedule."""


@dataclass(frozen=True, slots=True)
class RunClaim:
    """That a campaign is a run of this version. `due`, `then`: of a scheduled one, the instant it was due at and the one after it."""

    experiment: str
    version: int
    due: float | None = None
    then: float | None = None


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run, and what was found when its campaign had ended."""

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
    """Of the webhook: empty (nothing to send), due, sending, sent, or why it could not be sent."""
    hook_at: float | None = None


@dataclass(frozen=True, slots=True)
class SendingRow:
    """Results that are to be written to a URL once their campaign has ended."""

    campaign: str
    url: str
    sent: float | None = None
    tries: int = 0
    why: str = ""
    """Why the last try failed; empty: it did not."""


@dataclass(frozen=True, slots=True)
class ForgetRow:
    """A worker that is still to forget a deleted campaign."""

    campaign: str
    worker: str
    device: str
    epoch: int
    """Under which the campaign was led."""
    since: float
