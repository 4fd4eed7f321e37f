"""What the book keeps of each task, of each distinct need, and of each campaign. Values that only `scheduler.core.scheduler` changes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from protocol.formats.model_files import has_program_suffix
from protocol.messages.work import Denied, HeldLease
from protocol.values.advert import Advert
from protocol.values.attempt import TASK, TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.values.match import match
from protocol.values.requirement import Op, Requirement
from protocol.values.task import Task
from protocol.wire.codec import pack
from protocol.wire.table import final
from protocol.words import Reason
from results.row.stats import MAX_LAUNCHES

LIVE: Final = frozenset({TaskState.COMMITTING, TaskState.QUEUED, TaskState.LEASED, TaskState.RUNNING})
HAS_PLACE: Final = frozenset({TaskState.LEASED, TaskState.RUNNING})
OWED_S: Final = 60.0
"""A worker that said it has a result, and does not send it within this time of being linked, has it no more."""
STOP_AGAIN_S: Final = 12.0
"""A worker that has not confirmed a stop by then is told again."""
STOP_S: Final = 30.0
"""After so long it is not waited for any more: the task goes on without it, and its lease is left to lapse."""
FORGET_S: Final = 60.0
"""An ended campaign is kept for so long: by then nothing that was asked for it is still unanswered."""
SLACK_S: Final = 60.0
"""Beyond the limits that the worker itself enforces: after it the scheduler has the run stopped."""


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """What a campaign allows. `ends_at` is on the scheduler's monotonic clock."""

    campaign: str
    attempts: int = 3
    backoff_s: float = 5.0
    wait_s: float = 60.0
    ends_at: float | None = None
    priority: int = 50
    epoch: int | None = None
    """Under which this scheduler speaks of it."""


@dataclass(frozen=True, slots=True)
class PendingOutcome:
    """How a live task ends as soon as its worker has let go of it."""

    event: TaskEvent
    reason: Reason
    detail: str = ""


@dataclass(slots=True)
class CommitTicket:
    """An attempt that a worker was asked to take, and its place there once known. Instants are the scheduler's monotonic seconds."""

    attempt: int
    worker: str
    lease: str | None = None
    fence: Fence | None = None
    restored: bool = False
    """In the store when the scheduler started, not yet confirmed by its worker."""
    position: int | None = None
    """In the worker's queue, from 1, when it last told."""
    start_s: float | None = None
    """Expected wait then."""
    told_at: float = 0.0
    """When it was asked for, or when its worker last told where it stands."""

    def held(self, epoch: int | None) -> HeldLease | None:
        """Its lease and fence, once known, to be spoken of under `epoch`."""
        if self.lease is None or self.fence is None:
            return None
        return HeldLease(lease=self.lease, fence=self.fence, epoch=epoch)

    def wait_s(self, now: float) -> float | None:
        """Seconds until it is expected to start; None: nobody knows."""
        return None if self.start_s is None else max(0.0, self.start_s - (now - self.told_at))


@dataclass(slots=True)
class TaskEntry:
    """One task. Its state, attempt, worker, lease and fence are those of its current ticket."""

    task: Task
    state: TaskState = TaskState.PENDING
    attempt: int = 0
    tries: int = 0
    """Attempts that failed or were lost."""
    worker: str | None = None
    lease: str | None = None
    fence: Fence | None = None
    tried: set[str] = field(default_factory=set)
    """Workers where it failed or was lost."""
    returned: dict[str, int] = field(default_factory=dict)
    """How often each worker took it into its queue and soon had it no more."""
    limits: set[str] = field(default_factory=set)
    """Workers where it ran into the time or the memory limit."""
    doubted: set[str] = field(default_factory=set)
    """Workers where it failed in a way that another try there would not change."""
    preempted: int = 0
    """How often it gave way to a higher priority."""
    yields_to: int | None = None
    """The priority that its worker said it gives way to now."""
    yields_at: float = 0.0
    """When it said so; a warning that nothing follows was taken back."""
    warned: int = 0
    """How many such warnings there were in this attempt."""
    last: int = 0
    """Highest number of an attempt, be it the current one or not."""
    spare: CommitTicket | None = None
    """A second ticket at another worker, while the current one waits too: whichever comes up first is started."""
    position: int | None = None
    start_s: float | None = None
    told_at: float = 0.0
    """As in `CommitTicket`, of the current one."""
    not_before: float = 0.0
    """Before this it only goes to workers that have not tried it."""
    since: float = 0.0
    """When it got its ticket, then when it got its place."""
    seen: bool = False
    """It got its place under our eyes: the time from there to its result says how long a task takes there."""
    begun: bool = False
    """Its run was heard of since it got its place."""
    waits_there: bool = False
    """It has a place, and by its worker's last word waits for the device, which another run has."""
    at_work: bool = False
    """It was told since it got its place that it does not wait."""
    overtime: bool = False
    """It is being stopped because it ran far beyond its limits, or never began."""
    doom: PendingOutcome | None = None
    stop_at: float | None = None
    """When its worker was first told to stop it."""
    stop_told_at: float = 0.0
    """When it was last told so."""
    restored: bool = False
    """Live in the store when the scheduler started, not yet confirmed by its worker."""
    claimed: bool = False
    """Its worker said that it has it when the campaign was adopted: we never asked it to. No try is lost when nothing comes of that."""
    lacks_model: bool = False
    """Its model is not on this disk: it is given to nobody."""
    owed_until: float | None = None
    """Its run is over and its worker sends the result: until then there is nothing to renew. None: it is not so."""
    need: str = ""
    """Id of its need; worked out when it is made."""
    cell: str = ""
    """What it has in common with its replicas; empty: there are none."""
    ran_on: str = ""
    """Id of the device that its result comes from."""
    epoch: int | None = None
    """Its campaign's."""

    def __post_init__(self) -> None:
        self.need = self.need or need_of(self.task)
        self.cell = self.cell or cell_of(self.task)
        self.last = max(self.last, self.attempt, self.spare.attempt if self.spare is not None else 0)

    @property
    def id(self) -> str:
        return self.task.task

    @property
    def live(self) -> bool:
        """A worker has it, or has been asked."""
        return self.state in LIVE

    @property
    def over(self) -> bool:
        return final(TASK, self.state)

    @property
    def stopping(self) -> bool:
        """Its run is not wanted any more."""
        return self.doom is not None or self.overtime

    def ticket(self) -> CommitTicket | None:
        """The current one as a value; None: no worker has it or was asked."""
        if self.worker is None or not self.live:
            return None
        return CommitTicket(
            self.attempt,
            self.worker,
            self.lease,
            self.fence,
            self.restored,
            self.position,
            self.start_s,
            self.told_at,
        )

    def tickets(self) -> tuple[CommitTicket, ...]:
        """The current one and the second one, as far as there are any."""
        return tuple(ticket for ticket in (self.ticket(), self.spare) if ticket is not None)

    def at(self, peer: str) -> CommitTicket | None:
        """What this worker has of it."""
        if self.spare is not None and self.spare.worker == peer:
            return self.spare
        return self.ticket() if self.worker == peer else None

    def is_spare(self, attempt: int) -> bool:
        """Whether that is the attempt of its second ticket."""
        return self.spare is not None and self.spare.attempt == attempt

    def held(self) -> HeldLease | None:
        """Lease and fence of the current ticket, once known."""
        if self.lease is None or self.fence is None:
            return None
        return HeldLease(lease=self.lease, fence=self.fence, epoch=self.epoch)

    def take(self, ticket: CommitTicket) -> None:
        """From now on this is the current one."""
        self.attempt, self.worker = ticket.attempt, ticket.worker
        self.lease, self.fence, self.restored = ticket.lease, ticket.fence, ticket.restored
        self.position, self.start_s, self.told_at = ticket.position, ticket.start_s, ticket.told_at

    def patience_s(self) -> float:
        """The longest a run may take from place to result, or, where it waited for the device then, from the end of that wait."""
        limits, measure = self.task.timeouts, self.task.measure
        wait_s = limits.queue_s if self.waits_there else 0.0
        loads = measure.loads if measure.precision is None else MAX_LAUNCHES
        return wait_s + limits.fetch_s + loads * limits.load_s + limits.load_s + limits.run_s + SLACK_S


@dataclass(slots=True)
class ModelEvidence:
    """What devices have shown of one model on one unit."""

    good: bool = False
    """It ran on one of them."""
    broken: set[str] = field(default_factory=set)
    """Those that say that it can run on none."""


@dataclass(slots=True)
class RequirementGroup:
    """All tasks of one campaign with the same requirement and alike in trust (`need_of`): what is looked for, and who was found."""

    id: str
    campaign: str
    requirement: Requirement
    fits: set[str] = field(default_factory=set)
    declined: dict[str, Denied] = field(default_factory=dict)
    """Workers that said no to these very tasks."""
    lacking: dict[str, None] = field(default_factory=dict)
    """Those that would be pending if their model were here."""
    pending: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Those that were tried before first: they have waited longest."""
    queued: dict[str, None] = field(default_factory=dict)
    """Those that wait at a worker."""
    placed: int = 0
    """How many have a place at a worker."""
    tasks: list[str] = field(default_factory=list)
    """All of them."""
    asked_at: float | None = None
    """When the index was last asked; None: never."""
    asks: int = 0
    asking: bool = False
    hope_at: float = 0.0
    """When there last was a worker that might take it."""
    moved_at: float = 0.0
    """When a task of it last got a place or ended."""
    explaining: bool = False
    noted: str = ""
    device: str | None = None
    """The only device that it can be, where the requirement names one; worked out when it is made."""

    def __post_init__(self) -> None:
        for clause in self.requirement.clauses:
            if clause.attribute == "device" and clause.op is Op.EQ:
                self.device = str(clause.value)

    def met_by(self, advert: Advert) -> bool:
        """Whether that device fits. Quick where another one is named: a campaign may have a need for each of a thousand devices."""
        return self.device in (None, advert.device) and match(self.requirement, advert).fits


@dataclass(slots=True)
class CampaignRun:
    """One campaign under way."""

    terms: TaskLimits
    tasks: list[str] = field(default_factory=list)
    open: int = 0
    done: bool = False
    done_at: float | None = None
    """When that was noticed."""
    timed_out: bool = False
    said: dict[tuple[str, str, int | None], ModelEvidence] = field(default_factory=dict)
    """By model, unit and batch."""


def need_of(task: Task) -> str:
    """Names the need of a task: the same for tasks of one campaign that look for the same devices. Models that carry programs have one of
    their own: devices that run those for people they know alone refuse them, and take the others.
    """
    program = has_program_suffix(task.model.name)
    return task.campaign + "\n" + pack(task.requirement.to_wire()).hex() + ("\nprogram" if program else "")


def cell_of(task: Task) -> str:
    """Names what replicas have in common: tasks of one campaign that are alike in all but their number. Empty: it has none."""
    if task.replica is None:
        return ""
    alike = task.model_copy(update={"task": task.campaign, "replica": None})
    return task.campaign + "\n" + pack(alike.to_wire()).hex()
