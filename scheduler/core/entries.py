"""What the scheduler keeps of a task, its attempts, a requirement group and a campaign."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from sys import intern
from types import MappingProxyType
from typing import Final

from protocol.formats.model_files import has_program_suffix
from protocol.formats.phase import Phase
from protocol.messages.work import Denied, HeldLease
from protocol.values.advert import Advert
from protocol.values.attempt import ATTEMPT, TASK, AttemptEvent, AttemptStatus, TaskEvent, TaskState
from protocol.values.index_keys import named_peers
from protocol.values.lease import Fence
from protocol.values.match import Predicate, compile_requirement
from protocol.values.requirement import Clause, Op, Requirement
from protocol.values.task import Task, with_id
from protocol.values.trust import MINE, TrustScope
from protocol.wire.codec import pack
from protocol.wire.table import final, step
from protocol.words import Reason
from scheduler.core.ranking import ModelKey
from scheduler.core.run_times import longest_run_s

LIVE_TASK_STATES: Final = frozenset(
    {TaskState.COMMITTING, TaskState.QUEUED, TaskState.LEASED, TaskState.RUNNING}
)
LEASED_TASK_STATES: Final = frozenset({TaskState.LEASED, TaskState.RUNNING})
_UNHEARD: Final = (AttemptStatus.GRANTED, AttemptStatus.RESTORED)
POSSIBLY_ENDED_STATUSES: Final = (AttemptStatus.RESTORED, AttemptStatus.REPORTING)
"""Statuses of an attempt whose run may have ended."""
LIMIT_REASONS: Final = (Reason.TIMED_OUT, Reason.OUT_OF_MEMORY)
LATER_SITTING_PRIORITY: Final = 0
"""Priority of the sittings after the first."""
SLACK_S: Final = 60.0
"""Seconds beyond the limits that the worker itself enforces, after which the scheduler stops the run."""
BEGIN_S: Final = 120.0
"""Seconds after which a leased run that has reported nothing is considered not to begin."""
STOP_AGAIN_S: Final = 12.0
"""Seconds after which an unconfirmed stop is sent again."""
STOP_S: Final = 30.0
"""Seconds after a stop until the task goes on without the worker, whose lease is left to lapse."""


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
    """The epoch under which this scheduler leads the campaign."""
    trust: TrustScope = MINE


NOBODY: Final = frozenset[str]()
"""The empty set that all tasks share, since a campaign has very many tasks."""
NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PendingOutcome:
    """How a live task ends once its worker has let go of it."""

    event: TaskEvent
    reason: Reason
    detail: str = ""


@dataclass(slots=True)
class Attempt:
    """One attempt of a task at one worker. Instants are the scheduler's monotonic seconds."""

    number: int
    worker: str
    lease: str | None = None
    fence: Fence | None = None
    status: AttemptStatus = AttemptStatus.ASKED
    inherited: bool = False
    """Whether its worker reported it when the campaign was adopted: this scheduler never requested it, so losing it costs no try."""
    found: bool = False
    """Whether its lease is known from what its worker holds, not from an answer: another scheduler may have requested it under the same
    number.
    """
    stranger: bool = False
    """Whether its worker was a stranger when the attempt was inherited: it is not stopped for that, and its row says so."""
    position: int | None = None
    """Seconds of expected wait, as of `updated_at`."""
    start_s: float | None = None
    """Expected wait as of `updated_at`."""
    updated_at: float = 0.0
    since: float = 0.0
    """Instant at which its lease was queued, then granted, then got the device; or at which this scheduler took it up."""
    leased_at: float = 0.0
    """Instant at which the attempt got its lease, or at which this scheduler took it up."""
    started_at: float | None = None
    """Instant at which its lease began, or its wait for the device ended; None: this scheduler did not see it."""
    waits_since: float | None = None
    """Instant since which it waits for the device after a gap between launches; None: it does not wait."""
    waited_s: float = 0.0
    """Seconds for which it waited for the device after earlier gaps."""
    progress: dict[Phase, int] = field(default_factory=dict)
    """The phases reported so far, and how far each came."""
    beside: bool = False
    """Whether it was requested as the hedge beside a run past its deadline."""
    hedged: int = 0
    """How often the task had been hedged because of a deadline when this attempt was requested."""
    advanced_at: float | None = None
    """Instant at which its run last reported a phase, or a step in a phase, that it had not reported before."""
    due: float | None = None
    """Instant by which the result of a `REPORTING` attempt has to arrive."""
    stop_at: float | None = None
    """Instant at which a stop was first sent."""
    stop_sent_at: float = 0.0
    """Instant at which a stop was last sent."""
    yields_to: int | None = None
    """The priority to which its worker announced that it will yield."""
    yields_at: float = 0.0
    warnings: int = 0
    """Number of preemption warnings recorded."""

    def move(self, event: AttemptEvent) -> None:
        """Apply an event to the state table. Raises `LocalProtocolError` on an event that the status does not allow."""
        self.status = step(ATTEMPT, self.status, event, story=f"attempt {self.number} at {self.worker}")

    def advance(self, phase: Phase, done: int, now: float) -> None:
        """Its run reported that it is at `done` of a phase. Only progress that it has not reported before counts as an advance."""
        if done > self.progress.get(phase, -1):
            self.progress[phase], self.advanced_at = done, now

    def held(self, epoch: int | None) -> HeldLease | None:
        """Its lease and fence, if known."""
        if self.lease is None or self.fence is None:
            return None
        return HeldLease(lease=self.lease, fence=self.fence, epoch=epoch)

    def wait_s(self, now: float) -> float | None:
        """Seconds until its expected start; None: unknown."""
        return None if self.start_s is None else max(0.0, self.start_s - (now - self.updated_at))


@dataclass(slots=True)
class TaskEntry:
    """One task with its attempts."""

    form: Task
    """The task, or one that differs from it in its id alone. A campaign has very many tasks, which share this object."""
    state: TaskState = TaskState.PENDING
    current: Attempt | None = None
    """The attempt to which `state` refers; for an ended task, its last one."""
    hedge: Attempt | None = None
    """A second attempt at another worker. While the current attempt is queued, whichever is ready first is started; beside a run past its
    deadline, whichever result is accepted first counts.
    """
    hedged: int = 0
    """How often the task was hedged because of a deadline."""
    tries: int = 0
    """Number of attempts that failed or were lost."""
    tried: frozenset[str] = NOBODY
    """Workers where the task failed or was lost."""
    returned: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    """How often each worker queued the task and soon dropped it."""
    limits: frozenset[str] = NOBODY
    """Workers where the task hit the time or the memory limit."""
    doubted: frozenset[str] = NOBODY
    """Workers where the task failed in a way that another try there would not change."""
    yields: bool = False
    """Whether it failed, or was lost more than once: tasks that nobody has tried go first."""
    preempted: int = 0
    last: int = 0
    """Highest attempt number so far."""
    not_before: float = 0.0
    """Instant before which the task goes only to workers that have not tried it."""
    outcome: PendingOutcome | None = None
    model_missing: bool = False
    """Whether its model is missing on this disk, so that the task is not handed out."""
    group: str = ""
    """Id of its requirement group."""
    replica_set: str = ""
    """Id of the replica set of the task; empty: it has no replicas."""
    ran_on: str = ""
    """Id of the device that produced its result."""
    epoch: int | None = None
    """Epoch of its campaign."""
    check_at: float = math.inf
    """The instant under which `State.due` lists the task."""
    over_s: float = 0.0
    """If the task ended before this process began: seconds since its end, by the wall clock."""
    ended_at: float | None = None
    pin: str = ""
    """The only worker that may have the task; empty: any that fits."""
    opened: bool = False
    """For a sitting after the first: whether it may begin (`scheduler.core.sittings`)."""
    id: str = ""
    """Id of the task; empty: the id in `form`."""

    def __post_init__(self) -> None:
        self.id = self.id or self.form.task
        self.group = self.group or group_of(self.form)
        self.replica_set = self.replica_set or replica_set_of(self.form)
        numbers = [each.number for each in (self.current, self.hedge) if each is not None]
        self.last = max(self.last, *numbers, 0)

    @property
    def task(self) -> Task:
        """The task itself."""
        return with_id(self.form, self.id)

    @property
    def model_key(self) -> ModelKey:
        return self.form.model.sha256, self.form.unit

    @property
    def waits_for_sitting(self) -> bool:
        """Whether the task waits for its sitting: no worker may have it yet."""
        sitting = self.form.sitting
        return (
            self.state is TaskState.PENDING and not self.opened and sitting is not None and sitting.number > 1
        )

    @property
    def live(self) -> bool:
        """Whether a worker has the task, or has been asked to take it."""
        return self.state in LIVE_TASK_STATES

    @property
    def over(self) -> bool:
        return final(TASK, self.state)

    @property
    def attempt(self) -> int:
        """Number of the current attempt; 0: none."""
        return 0 if self.current is None else self.current.number

    @property
    def worker(self) -> str | None:
        return None if self.current is None else self.current.worker

    @property
    def lease(self) -> str | None:
        return None if self.current is None else self.current.lease

    @property
    def fence(self) -> Fence | None:
        return None if self.current is None else self.current.fence

    @property
    def stopping(self) -> bool:
        """Whether the task's run is no longer wanted."""
        stopped = self.current is not None and self.current.status is AttemptStatus.STOPPING
        return self.outcome is not None or stopped

    def attempts(self) -> tuple[Attempt, ...]:
        """The current attempt and the hedge, if live."""
        if not self.live:
            return ()
        return tuple(each for each in (self.current, self.hedge) if each is not None)

    def at(self, peer: str) -> Attempt | None:
        """The attempt at this worker."""
        if self.live:
            for attempt in (self.current, self.hedge):
                if attempt is not None and attempt.worker == peer:
                    return attempt
        return None

    def runs(self, attempt: Attempt) -> bool:
        """Whether this attempt has a lease and may run."""
        return (
            self.state in LEASED_TASK_STATES
            and attempt.lease is not None
            and attempt.status is not AttemptStatus.QUEUED
        )

    def counts(self, attempt: Attempt) -> bool:
        """Whether a result of this attempt is accepted. For a queued task that holds for the current attempt, and for one restored from an
        earlier process: the database may be a backup from before the attempt was started.
        """
        return attempt is self.current or self.runs(attempt) or attempt.status is AttemptStatus.RESTORED

    def max_run_s(self, attempt: Attempt | None) -> float:
        """Longest time from lease to result, or from the end of its wait if it then waited for the device. A spread run may wait for the
        device again after its gaps; these waits are added, up to the time that a task may wait in a queue.
        """
        queue_s = 0.0 if attempt is None else self.form.timeouts.queue_s
        if (
            attempt is not None
            and attempt.status is not AttemptStatus.WAITING
            and attempt.waits_since is None
        ):
            queue_s = min(queue_s, attempt.waited_s)
        return queue_s + longest_run_s(self.form) + SLACK_S

    def note_wait(self, attempt: Attempt, *, waits: bool, now: float) -> None:
        """Record whether a run that has begun waits for its device again. Only a spread run does: it gives the device to others in its
        gaps.
        """
        if attempt.waits_since is not None and not waits:
            attempt.waited_s += now - attempt.waits_since
            attempt.waits_since = None
        elif waits and attempt.waits_since is None and self.form.measure.over_s is not None:
            attempt.waits_since = now

    def begins_by(self, attempt: Attempt) -> float:
        """Instant by which the run must have reported something; infinite once it has."""
        unheard = attempt.status in _UNHEARD and (attempt is self.hedge or self.state is TaskState.LEASED)
        return attempt.since + BEGIN_S if unheard else math.inf

    def limit_of(self, attempt: Attempt) -> float:
        """Instant at which this attempt exceeds a time limit if nothing changes before; infinite if it has no limit."""
        if attempt is self.current and self.stopping:
            sent_at = attempt.stop_at  # None: its lease is not known yet
            return math.inf if sent_at is None else min(sent_at + STOP_S, attempt.stop_sent_at + STOP_AGAIN_S)
        ends_at = attempt.since + self.max_run_s(attempt)
        if attempt.status is AttemptStatus.REPORTING:
            return min(ends_at, attempt.due or 0.0)
        return min(ends_at, self.begins_by(attempt)) if self.runs(attempt) else math.inf

    def next_limit(self) -> float:
        """Instant at which the first of its attempts exceeds a time limit."""
        return min((self.limit_of(attempt) for attempt in self.attempts()), default=math.inf)


@dataclass(slots=True)
class ModelEvidence:
    """What devices have shown of one model on one unit."""

    good: bool = False
    """Whether the model ran on at least one device."""
    broken: set[str] = field(default_factory=set)
    """Devices that report that the model can run nowhere."""
    agreed: set[str] = field(default_factory=set)
    """Trusted devices whose outputs agree with the reference."""
    mismatched: dict[str, str] = field(default_factory=dict)
    """By device, workers whose outputs differ from the reference, until another device's outputs agree with it."""


@dataclass(slots=True)
class RequirementGroup:
    """Tasks of one campaign with the same `group_of` and the same pin, and the workers that fit."""

    id: str
    campaign: str
    requirement: Requirement
    fits: set[str] = field(default_factory=set)
    declined: dict[str, Denied] = field(default_factory=dict)
    """Workers that refused tasks of this group."""
    without_model: dict[str, None] = field(default_factory=dict)
    """Tasks that would be pending if their model were on this disk."""
    pending: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Tasks that a worker was asked to take without success come first, tasks that failed last."""
    queued: dict[str, None] = field(default_factory=dict)
    leased: int = 0
    tasks: dict[str, None] = field(default_factory=dict)
    replicated: bool = False
    """Whether some of its tasks have replicas."""
    searched_at: float | None = None
    searches: int = 0
    searching: bool = False
    hope_at: float = 0.0
    """Last instant at which some worker could be expected to take a task."""
    moved_at: float = 0.0
    """Instant at which a task of the group last got a lease or ended."""
    explaining: bool = False
    wait_reason: str = ""
    untrusted: int = 0
    """Number of devices that fit but that the campaign does not admit, when last counted."""
    surveyed_at: float = -math.inf
    device: str | None = None
    """Id of the only device that can have the tasks, if the requirement names one."""
    names_device: bool = False
    """Whether the requirement names devices, in whatever form."""
    trust: TrustScope = MINE
    """The trust scope of the campaign, with the peers that the requirement names."""
    pin: str = ""
    """The only worker that may have these tasks, which are then sittings after the first; empty: any that fits."""
    _meets: Predicate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._meets = compile_requirement(self.requirement)
        self.trust = self.trust.naming(named_peers(self.requirement))
        for clause in self.requirement.clauses:
            self.names_device = self.names_device or clause.attribute == "device"
            if clause.attribute == "device" and clause.op is Op.EQ:
                self.device = str(clause.value)

    @property
    def searched(self) -> bool:
        """Whether a search has finished."""
        return self.searches > self.searching

    @property
    def sought(self) -> Requirement:
        """What to search the index for."""
        if not self.pin:
            return self.requirement
        return Requirement(clauses=(Clause(attribute="peer", op=Op.EQ, value=self.pin),))

    def met_by(self, advert: Advert) -> bool:
        """Whether the device fits. Quick if another device is named: a campaign may have a group for each of a thousand devices."""
        if self.pin not in ("", advert.peer):
            return False
        return self.device in (None, advert.device) and self._meets(advert)


@dataclass(slots=True)
class CampaignRun:
    """One campaign that this scheduler leads."""

    limits: TaskLimits
    tasks: list[str] = field(default_factory=list)
    open: int = 0
    done: bool = False
    done_at: float | None = None
    """Instant at which `forget` noticed that the campaign was done."""
    timed_out: bool = False
    cancelled: bool = False
    detail: str = ""
    """Why the campaign ends as a whole."""
    unscored: set[str] = field(default_factory=set)
    """Number of ended tasks whose answers are still to be scored."""
    evidence: dict[tuple[str, str, int | None], ModelEvidence] = field(default_factory=dict)
    """What devices have shown, by model, unit and batch."""


def group_of(task: Task) -> str:
    """Id of a task's requirement group. Models that can execute code have groups of their own: devices that run such models only for known
    peers refuse them, and take the others.
    """
    program = any(has_program_suffix(model.name) for model in task.models())
    return intern(
        task.campaign + "\n" + pack(task.requirement.to_wire()).hex() + ("\nprogram" if program else "")
    )


def replica_set_of(task: Task) -> str:
    """A key shared by the tasks of one campaign that differ only in their replica number; empty: the task has no replicas."""
    if task.replica is None:
        return ""
    alike = task.model_copy(update={"task": task.campaign, "replica": None})
    return intern(task.campaign + "\n" + hashlib.sha256(pack(alike.to_wire())).hexdigest())
