"""The scheduler's state: tasks and their attempts, groups of tasks with one requirement, campaigns, workers.

`State` keeps every count and index in step with what it counts; it decides nothing.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from protocol.formats.model_files import has_program_suffix
from protocol.formats.phase import Phase
from protocol.messages.work import Denied, HeldLease
from protocol.values.advert import Advert
from protocol.values.attempt import ATTEMPT, TASK, AttemptEvent, AttemptStatus, TaskEvent, TaskState
from protocol.values.index_keys import named_peers
from protocol.values.lease import Fence
from protocol.values.match import match
from protocol.values.requirement import Op, Requirement
from protocol.values.task import Task
from protocol.values.trust import MINE, OWN, Trust, TrustScope
from protocol.wire.codec import pack
from protocol.wire.table import final, step
from protocol.words import Reason
from results.row.stats import MAX_LAUNCHES
from scheduler.core.commands import Command, EndCampaign, QueuePosition
from scheduler.core.ranking import ModelKey, WorkerView
from scheduler.core.retry import retry_delay_s
from scheduler.core.run_times import RunTimes, deadline
from scheduler.core.stops import OwedStops

LIVE: Final = frozenset({TaskState.COMMITTING, TaskState.QUEUED, TaskState.LEASED, TaskState.RUNNING})
LEASED: Final = frozenset({TaskState.LEASED, TaskState.RUNNING})
_UNHEARD: Final = (AttemptStatus.GRANTED, AttemptStatus.RESTORED)
ROOT: Final = "root "
LIMITS: Final = (Reason.TIMED_OUT, Reason.OUT_OF_MEMORY)
SLACK_S: Final = 60.0
"""Beyond the limits that the worker itself enforces; after it the scheduler stops the run."""
BEGIN_S: Final = 120.0
"""A run that was granted a lease and has reported nothing for so long is considered not to begin."""
STOP_AGAIN_S: Final = 12.0
"""A stop that has not been confirmed by then is sent again."""
STOP_S: Final = 30.0
"""After so long the task goes on without the worker, and its lease is left to lapse."""


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


@dataclass(frozen=True, slots=True)
class PendingOutcome:
    """How a live task ends as soon as its worker has let go of it."""

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
    """Reported by its worker when the campaign was adopted: this scheduler never asked for it, so losing it costs no try."""
    stranger: bool = False
    """Its worker was a stranger when the attempt was inherited: it is not stopped for that, and its row says so."""
    position: int | None = None
    """In the worker's queue, from 1, as of `updated_at`."""
    start_s: float | None = None
    """Expected wait as of `updated_at`."""
    updated_at: float = 0.0
    since: float = 0.0
    """When it got its ticket, then its lease, then the device; or when this scheduler took it up."""
    leased_at: float = 0.0
    """When it got its lease, or when this scheduler took it up."""
    started_at: float | None = None
    """When its lease began, or its wait for the device ended; None: this scheduler did not see it."""
    progress: dict[Phase, int] = field(default_factory=dict)
    """The phases that were reported, and how far each came."""
    beside: bool = False
    """It was asked for beside a run past its deadline."""
    hedged: int = 0
    """How often the task had been hedged because of a deadline when it was asked for."""
    advanced_at: float | None = None
    """When its run last reported a phase, or a step in one, that it had not reported before."""
    due: float | None = None
    """When the result of a `REPORTING` attempt has to be here."""
    stop_at: float | None = None
    """When a stop was first sent."""
    stop_sent_at: float = 0.0
    """When a stop was last sent."""
    yields_to: int | None = None
    """The priority that its worker announced to yield to."""
    yields_at: float = 0.0
    warnings: int = 0
    """Preemption warnings recorded."""

    def move(self, event: AttemptEvent) -> None:
        """Follow the table. Raises `LocalProtocolError` on an event that the status does not allow."""
        self.status = step(ATTEMPT, self.status, event, story=f"attempt {self.number} at {self.worker}")

    def advance(self, phase: Phase, done: int, now: float) -> None:
        """Its run reported that it is at `done` of a phase. Only what it has not reported before is an advance."""
        if done > self.progress.get(phase, -1):
            self.progress[phase], self.advanced_at = done, now

    def held(self, epoch: int | None) -> HeldLease | None:
        """Its lease and fence, if known."""
        if self.lease is None or self.fence is None:
            return None
        return HeldLease(lease=self.lease, fence=self.fence, epoch=epoch)

    def wait_s(self, now: float) -> float | None:
        """Seconds until it is expected to start; None: unknown."""
        return None if self.start_s is None else max(0.0, self.start_s - (now - self.updated_at))


@dataclass(slots=True)
class TaskEntry:
    """One task with its attempts."""

    task: Task
    state: TaskState = TaskState.PENDING
    current: Attempt | None = None
    """The attempt that `state` is about; of an ended task, its last one."""
    hedge: Attempt | None = None
    """A second attempt at another worker: while the current one is queued, then whichever is ready first is started; or beside a run
    that is past its deadline, then whichever result is accepted first counts."""
    hedged: int = 0
    """How often it was hedged because of a deadline."""
    tries: int = 0
    """Attempts that failed or were lost."""
    tried: set[str] = field(default_factory=set)
    """Workers where it failed or was lost."""
    returned: dict[str, int] = field(default_factory=dict)
    """How often each worker queued it and soon dropped it."""
    limits: set[str] = field(default_factory=set)
    """Workers where it hit the time or the memory limit."""
    doubted: set[str] = field(default_factory=set)
    """Workers where it failed in a way that another try there would not change."""
    yields: bool = False
    """It failed, or was lost more than once: tasks that nobody has tried go first."""
    preempted: int = 0
    last: int = 0
    """Highest attempt number so far."""
    not_before: float = 0.0
    """Before this it only goes to workers that have not tried it."""
    outcome: PendingOutcome | None = None
    model_missing: bool = False
    """Its model is not on this disk, so it is not handed out."""
    group: str = ""
    """Id of its requirement group."""
    replica_set: str = ""
    """What it shares with its replicas; empty: it has none."""
    ran_on: str = ""
    """Id of the device that its result comes from."""
    epoch: int | None = None
    """Its campaign's."""
    check_at: float = math.inf
    """When `State.due` has it."""

    def __post_init__(self) -> None:
        self.group = self.group or group_of(self.task)
        self.replica_set = self.replica_set or replica_set_of(self.task)
        numbers = [each.number for each in (self.current, self.hedge) if each is not None]
        self.last = max(self.last, *numbers, 0)

    @property
    def id(self) -> str:
        return self.task.task

    @property
    def model_key(self) -> ModelKey:
        return self.task.model.sha256, self.task.unit

    @property
    def live(self) -> bool:
        """A worker has it, or has been asked."""
        return self.state in LIVE

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
        """Its run is not wanted any more."""
        stopped = self.current is not None and self.current.status is AttemptStatus.STOPPING
        return self.outcome is not None or stopped

    def attempts(self) -> tuple[Attempt, ...]:
        """The current attempt and the hedge, as far as they are live."""
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
            self.state in LEASED and attempt.lease is not None and attempt.status is not AttemptStatus.QUEUED
        )

    def counts(self, attempt: Attempt) -> bool:
        """Whether a result of this attempt is taken: of a queued task only the current one's."""
        return attempt is self.current or self.runs(attempt)

    def max_run_s(self, attempt: Attempt | None) -> float:
        """Longest time from lease to result, or, if it waited for the device then, from the end of that wait."""
        limits, measure = self.task.timeouts, self.task.measure
        loads = measure.loads if measure.precision is None else MAX_LAUNCHES
        waits = attempt is not None and attempt.status is AttemptStatus.WAITING
        queue_s = limits.queue_s if waits else 0.0
        return queue_s + limits.fetch_s + (loads + 1) * limits.load_s + limits.run_s + SLACK_S

    def begins_by(self, attempt: Attempt) -> float:
        """When its run has to be heard of; infinite once it was."""
        unheard = attempt.status in _UNHEARD and (attempt is self.hedge or self.state is TaskState.LEASED)
        return attempt.since + BEGIN_S if unheard else math.inf

    def limit_of(self, attempt: Attempt) -> float:
        """When this attempt exceeds a limit in time, as things stand; infinite if it has none."""
        if attempt is self.current and self.stopping:
            sent_at = attempt.stop_at  # None: its lease is not known yet
            return math.inf if sent_at is None else min(sent_at + STOP_S, attempt.stop_sent_at + STOP_AGAIN_S)
        ends_at = attempt.since + self.max_run_s(attempt)
        if attempt.status is AttemptStatus.REPORTING:
            return min(ends_at, attempt.due or 0.0)
        return min(ends_at, self.begins_by(attempt)) if self.runs(attempt) else math.inf

    def next_limit(self) -> float:
        """When one of its attempts exceeds a limit in time."""
        return min((self.limit_of(attempt) for attempt in self.attempts()), default=math.inf)


@dataclass(slots=True)
class ModelEvidence:
    """What devices have shown of one model on one unit."""

    good: bool = False
    """It ran on one of them."""
    broken: set[str] = field(default_factory=set)
    """Devices that say it can run nowhere."""


@dataclass(slots=True)
class RequirementGroup:
    """The tasks of one campaign with the same requirement and alike in trust (`group_of`), and the workers that fit."""

    id: str
    campaign: str
    requirement: Requirement
    fits: set[str] = field(default_factory=set)
    declined: dict[str, Denied] = field(default_factory=dict)
    """Workers that refused these very tasks."""
    without_model: dict[str, None] = field(default_factory=dict)
    """Tasks that would be pending if their model were here."""
    pending: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Tasks that were asked for in vain come first, those that failed come last."""
    queued: dict[str, None] = field(default_factory=dict)
    leased: int = 0
    tasks: list[str] = field(default_factory=list)
    searched_at: float | None = None
    searches: int = 0
    searching: bool = False
    hope_at: float = 0.0
    """When some worker could last be expected to take a task."""
    moved_at: float = 0.0
    """When a task last got a lease or ended."""
    explaining: bool = False
    wait_reason: str = ""
    untrusted: int = 0
    """Devices that fit and that the campaign does not admit, when that was last looked at."""
    surveyed_at: float = -math.inf
    device: str | None = None
    """The only device that it can be, if the requirement names one."""
    names_device: bool = False
    """The requirement names devices, whichever way."""
    trust: TrustScope = MINE
    """The campaign's, with the peers that the requirement names."""

    def __post_init__(self) -> None:
        self.trust = self.trust.naming(named_peers(self.requirement))
        for clause in self.requirement.clauses:
            self.names_device = self.names_device or clause.attribute == "device"
            if clause.attribute == "device" and clause.op is Op.EQ:
                self.device = str(clause.value)

    def met_by(self, advert: Advert) -> bool:
        """Quick if another device is named: a campaign may have a group for each of a thousand devices."""
        return self.device in (None, advert.device) and match(self.requirement, advert).fits


@dataclass(slots=True)
class CampaignRun:
    """One campaign under way."""

    limits: TaskLimits
    tasks: list[str] = field(default_factory=list)
    open: int = 0
    done: bool = False
    done_at: float | None = None
    """When `forget` noticed that."""
    timed_out: bool = False
    cancelled: bool = False
    detail: str = ""
    """Why it ends as a whole."""
    evidence: dict[tuple[str, str, int | None], ModelEvidence] = field(default_factory=dict)
    """By model, unit and batch."""


def group_of(task: Task) -> str:
    """Id of a task's requirement group. Models that can execute code have groups of their own: devices that run those only for people
    they know refuse them, and take the others.
    """
    program = has_program_suffix(task.model.name)
    return task.campaign + "\n" + pack(task.requirement.to_wire()).hex() + ("\nprogram" if program else "")


def replica_set_of(task: Task) -> str:
    """Names the tasks of one campaign that are alike in all but their number; empty: the task has no replicas."""
    if task.replica is None:
        return ""
    alike = task.model_copy(update={"task": task.campaign, "replica": None})
    return task.campaign + "\n" + pack(alike.to_wire()).hex()


class State:
    """All that a scheduler knows. Sets are dictionaries where their order must be the same in every run."""

    def __init__(self, rng: random.Random, trust_of: Callable[[str], Trust] = lambda peer: OWN) -> None:
        self.rng = rng
        self.trust_of = trust_of
        self.clash: Callable[[str, str], str] = lambda device, peer: ""
        """Why this key's claim to a device id does not count, in words; empty: the device is its own."""
        self.device_key: Callable[[str, str], str] = lambda device, peer: peer
        """The one key that stands for a worker's device in results, by the device id and the worker's key."""
        self.hearsay: Callable[[str], bool] = lambda peer: False
        """Whether only nodes that the owner did not choose say that a worker is there."""
        self.run_times = RunTimes(MAX_LAUNCHES)
        self.tasks: dict[str, TaskEntry] = {}
        self.groups: dict[str, RequirementGroup] = {}
        self.ranked: list[RequirementGroup] = []
        """All groups, those of the highest priority first, then the oldest."""
        self.campaigns: dict[str, CampaignRun] = {}
        self.workers: dict[str, WorkerView] = {}
        self.replicas: dict[str, list[str]] = {}
        """Tasks by replica set."""
        self.queued: dict[str, None] = {}
        """Tasks that wait at a worker, the newest last."""
        self.leased: dict[str, None] = {}
        """Tasks with a lease, in the order in which their deadlines are to be looked at."""
        self.unquoted: dict[str, None] = {}
        """Workers without a quote over the present link."""
        self.idle: dict[str, None] = {}
        """Workers with a quote and, as far as known, without work."""
        self.changed: dict[str, None] = {}
        """Workers that changed since the last decision."""
        self.reopened: dict[str, None] = {}
        """Groups with a task that became pending since then."""
        self.warming: dict[str, None] = {}
        """Groups with a task that waits for the quote of a device that has its model."""
        self.unsettled = False
        """The next decision looks at everything, not only at what changed."""
        self.due: list[tuple[float, str]] = []
        """A heap of tasks by when they may exceed a limit in time; see `watch`."""
        self.withdrawn: dict[str, None] = {}
        """Pending tasks with an outcome, that nobody gets any more and that are still to end."""
        self.stops = OwedStops()
        self.positions: dict[str, QueuePosition] = {}
        """Queue positions since the shell last took them."""

    # -- workers ------------------------------------------------------------------------------------------------------------------------

    def worker(self, peer: str) -> WorkerView:
        """The view of a worker, made on first use."""
        view = self.workers.get(peer)
        if view is None:
            view = self.workers[peer] = WorkerView(peer)
            self.unquoted[peer] = None
        return view

    def device(self, peer: str) -> str:
        """Its name, for people."""
        return self.worker(peer).device or peer

    def refresh(self, view: WorkerView) -> None:
        """To be called after whatever makes a worker more or less free."""
        peer = view.peer
        self.changed[peer] = None
        if view.quoted:
            self.unquoted.pop(peer, None)
        else:
            self.unquoted[peer] = None
        if view.quoted and view.idle():
            self.idle[peer] = None
        else:
            self.idle.pop(peer, None)

    def hold(self, peer: str, task: str) -> None:
        view = self.worker(peer)
        view.held[task] = None
        self.refresh(view)

    def release(self, peer: str, task: str) -> None:
        view = self.worker(peer)
        view.held.pop(task, None)
        self.refresh(view)

    def held_at(self, peer: str) -> Iterator[tuple[TaskEntry, Attempt]]:
        """Live tasks at a worker, each with its attempt there; without those that end while the caller goes through them."""
        view = self.workers.get(peer)
        for task in tuple(view.held) if view is not None else ():
            entry = self.tasks[task]
            attempt = entry.at(peer)
            if attempt is not None:
                yield entry, attempt

    def by_lease(self, peer: str, lease: str, fence: Fence) -> tuple[TaskEntry, Attempt] | None:
        for entry, attempt in self.held_at(peer):
            if attempt.lease == lease and attempt.fence == fence:
                return entry, attempt
        return None

    def leases_at(self, view: WorkerView) -> tuple[int, int]:
        """Number of our leases and of our tickets at a worker."""
        held = list(self.held_at(view.peer))
        leases = sum(entry.runs(each) for entry, each in held)
        return leases, sum(each.lease is not None and not entry.runs(each) for entry, each in held)

    def deadline(self, entry: TaskEntry, attempt: Attempt) -> float:
        """Until when a result of this attempt, which runs, is waited for alone: this scheduler's own value, which no message carries."""
        warm = entry.task.model.sha256 in self.worker(attempt.worker).warm
        allowance_s = self.run_times.allowance_s(entry.task, attempt.worker, warm=warm, hedged=attempt.hedged)
        return deadline(attempt.leased_at, attempt.since, attempt.advanced_at, allowance_s)

    # -- tasks --------------------------------------------------------------------------------------------------------------------------

    def add(self, limits: TaskLimits, entries: list[TaskEntry], now: float) -> CampaignRun:
        """A campaign with its tasks, as submitted or as left by an earlier scheduler."""
        campaign = self.campaigns[limits.campaign] = CampaignRun(limits)
        for entry in entries:
            self.tasks[entry.id], entry.epoch = entry, limits.epoch
            campaign.tasks.append(entry.id)
            group = self.groups.get(entry.group) or self._new_group(entry, now)
            group.tasks.append(entry.id)
            if entry.replica_set:
                self.replicas.setdefault(entry.replica_set, []).append(entry.id)
            if entry.state is TaskState.SUCCEEDED and entry.worker is not None:
                entry.ran_on = entry.ran_on or self.device_of(self.worker(entry.worker))
                self.evidence(entry).good = True
            if entry.over:
                continue
            campaign.open += 1
            self._count(entry, entry.state, +1)
            for attempt in entry.attempts():
                self.hold(attempt.worker, entry.id)
            if entry.live:  # since when is unknown, and since when others could have had it
                entry.not_before = now
                for attempt in entry.attempts():
                    attempt.since = attempt.leased_at = now
                self.watch(entry)
            elif entry.tries:  # how much of its backoff has passed is unknown
                entry.not_before = now + self._delay_s(entry, now)
        return campaign

    def _new_group(self, entry: TaskEntry, now: float) -> RequirementGroup:
        group = RequirementGroup(
            entry.group,
            entry.task.campaign,
            entry.task.requirement,
            hope_at=now,
            moved_at=now,
            trust=self.campaign_of(entry).limits.trust,
        )
        self.groups[group.id] = group
        insort(self.ranked, group, key=lambda each: -self.campaigns[each.campaign].limits.priority)
        adverts = [view.advert for view in self.workers.values() if view.advert is not None]
        group.fits = {advert.peer for advert in adverts if self.may_use(group, advert)}
        return group

    # -- identity ---------------------------------------------------------------------------------------------------------------------

    def device_of(self, view: WorkerView) -> str:
        """Identity of a worker's device: the device id, or that with the worker's key if the id belongs to another key; its peer id while
        unknown.
        """
        if view.advert is None:
            return view.peer
        device = view.advert.device
        return f"{device} {view.peer}" if self.clash(device, view.peer) else device

    def apart(self, group: RequirementGroup, view: WorkerView) -> set[str]:
        """What no two replicas may share: the device; in a campaign that admits strangers also who answers for it, since workers of one
        root can agree on a lie.
        """
        marks = {self.device_of(view)}
        return marks | {self.root_of(group, view.peer)} if group.trust.anyone else marks

    def taken(self, entry: TaskEntry, *, for_good: bool = False) -> set[str]:
        """Devices that other replicas of the task are at, or have their result from; and who answers for these (`apart`). `for_good`: only
        those with a result.
        """
        taken = set[str]()
        group = self.groups[entry.group]
        for task in self.replicas.get(entry.replica_set, ()) if entry.replica_set else ():
            other = self.tasks[task]
            if other is entry:
                continue
            for each in () if for_good else other.attempts():
                taken |= self.apart(group, self.worker(each.worker))
            if other.state is TaskState.SUCCEEDED:
                taken.add(other.ran_on)
                if other.worker is not None:  # its device was perhaps not known when the result came
                    taken |= self.apart(group, self.worker(other.worker))
        return taken

    def could_run(self, group: RequirementGroup) -> bool:
        """Whether a worker could still run one of the group's pending tasks, now or when it is back."""
        views = [view for view in map(self.worker, group.fits) if view.could_run()]
        if not views or not any(self.tasks[task].replica_set for task in group.pending):
            return bool(views)
        marks = [self.apart(group, view) for view in views]
        taken = (self.taken(self.tasks[task], for_good=True) for task in group.pending)
        return any(any(gone.isdisjoint(each) for each in marks) for gone in taken)

    def root_of(self, group: RequirementGroup, peer: str) -> str:
        """Who answers for a worker."""
        trust = self.trust_in(group, peer)
        return f"{ROOT}{trust.root or trust.text}"

    # -- trust --------------------------------------------------------------------------------------------------------------------------

    def trust_in(self, group: RequirementGroup, peer: str) -> Trust:
        """Why this group's campaign believes a worker, now."""
        return group.trust.judge(peer, self.trust_of(peer))

    def trusted_may_try(self, entry: TaskEntry) -> bool:
        """Whether a worker that is no stranger fits, has not tried the task and could still run it."""
        group = self.groups[entry.group]
        return any(
            self.workers[peer].could_run() and not self.trust_in(group, peer).stranger
            for peer in group.fits - entry.tried
        )

    def others_serve(self, entry: TaskEntry, peer: str) -> bool:
        """Whether a worker beside this one can be expected to take the task soon."""
        return any(each != peer and self.workers[each].hopeful() for each in self.groups[entry.group].fits)

    def admits(self, group: RequirementGroup, peer: str) -> bool:
        """Whether a worker may have the group's tasks and models, now. One that claims the device id of another key has no task for which
        the device is named.
        """
        view = self.workers.get(peer)
        advert = view.advert if view is not None and group.names_device else None
        if advert is not None and self.clash(advert.device, peer):
            return False
        return group.trust.admits(peer, self.trust_of(peer))

    def untrusted_in(self, group: RequirementGroup, adverts: Iterable[Advert]) -> list[Advert]:
        """Those of devices that fit, and that the campaign does not admit."""
        return [advert for advert in adverts if group.met_by(advert) and not self.admits(group, advert.peer)]

    def may_use(self, group: RequirementGroup, advert: Advert) -> bool:
        """Whether a worker fits, has not refused these tasks, and is admitted."""
        return advert.peer not in group.declined and group.met_by(advert) and self.admits(group, advert.peer)

    def drop(self, campaign: CampaignRun) -> None:
        """Forget a campaign and all that belongs to it."""
        for task in campaign.tasks:
            entry = self.tasks.pop(task)
            self.groups.pop(entry.group, None)
            self.replicas.pop(entry.replica_set, None)
            self.positions.pop(task, None)
        del self.campaigns[campaign.limits.campaign]
        self.ranked = [group for group in self.ranked if group.id in self.groups]

    def campaign_of(self, entry: TaskEntry) -> CampaignRun:
        return self.campaigns[entry.task.campaign]

    def evidence(self, entry: TaskEntry) -> ModelEvidence:
        model = (entry.task.model.sha256, entry.task.unit, entry.task.measure.batch)
        return self.campaign_of(entry).evidence.setdefault(model, ModelEvidence())

    def move(self, entry: TaskEntry, event: TaskEvent) -> None:
        """Follow the task table and keep the counts."""
        before = entry.state
        entry.state = step(TASK, before, event, story=f"{entry.id} attempt {entry.attempt}")
        if before is not entry.state:
            self._count(entry, before, -1)
            self._count(entry, entry.state, +1)

    def _count(self, entry: TaskEntry, state: TaskState, by: int) -> None:
        group = self.groups[entry.group]
        if state in LEASED:
            group.leased += by
            if by > 0:
                self.leased[entry.id] = None
            else:
                self.leased.pop(entry.id, None)
        elif state is TaskState.QUEUED:
            for tasks in (group.queued, self.queued):
                if by > 0:
                    tasks[entry.id] = None
                else:
                    tasks.pop(entry.id, None)
        elif state is TaskState.PENDING and by > 0 and entry.model_missing:
            group.without_model[entry.id] = None
        elif state is TaskState.PENDING and by > 0:
            group.without_model.pop(entry.id, None)
            group.pending[entry.id] = None
            if (
                entry.last and not entry.yields
            ):  # it has waited longer than those that nobody was asked to take
                group.pending.move_to_end(entry.id, last=False)
            self.reopened[group.id] = None
        elif state is TaskState.PENDING:
            group.without_model.pop(entry.id, None)
            group.pending.pop(entry.id, None)

    def withdraw(self, entry: TaskEntry, outcome: PendingOutcome) -> None:
        """Nobody is to have this pending task any more: it ends like this."""
        group = self.groups[entry.group]
        group.pending.pop(entry.id, None)
        group.without_model.pop(entry.id, None)
        entry.outcome = outcome
        self.withdrawn[entry.id] = None

    def take_withdrawn(self, most: int) -> list[str]:
        """At most so many of them, the longest first."""
        taken = list(islice(self.withdrawn, most))
        for task in taken:
            del self.withdrawn[task]
        return taken

    def watch(self, entry: TaskEntry) -> None:
        """To be called when its next limit may have become an earlier one."""
        at = entry.next_limit()
        if at < entry.check_at:
            entry.check_at = at
            heapq.heappush(self.due, (at, entry.id))

    def overdue(self, now: float) -> Iterator[TaskEntry]:
        """Tasks that exceed a limit in time."""
        while self.due and self.due[0][0] <= now:
            at, task = heapq.heappop(self.due)
            entry = self.tasks.get(task)
            if entry is None or entry.check_at != at:
                continue  # forgotten, or watched for something earlier since
            entry.check_at = math.inf
            if entry.next_limit() <= now:
                yield entry
            self.watch(entry)

    def start_lease(self, entry: TaskEntry, now: float, *, observed: bool = True) -> None:
        """The current attempt got a lease. `observed`: just now, and not at an unknown time."""
        assert entry.current is not None, "a lease belongs to an attempt"
        self.move(entry, TaskEvent.GRANT)
        self.grant_lease(entry, entry.current, now, observed=observed)

    def grant_lease(self, entry: TaskEntry, attempt: Attempt, now: float, *, observed: bool = True) -> None:
        """One of the attempts of a leased task got a lease."""
        attempt.move(AttemptEvent.GRANT)
        attempt.started_at = now if observed else None
        attempt.since = attempt.leased_at = self.groups[entry.group].moved_at = now
        self.watch(entry)

    def end_attempt(self, entry: TaskEntry, event: TaskEvent, reason: Reason | None, now: float) -> None:
        """Move a task without a hedge out of its attempt, or end a pending one."""
        before, peer = entry.state, entry.worker
        if before is not TaskState.PENDING and peer is not None:
            if event in (TaskEvent.RETRY, TaskEvent.LOSE):
                entry.tries += 1
                entry.tried.add(peer)
                entry.yields = event is TaskEvent.RETRY or entry.tries > 1
                if reason in LIMITS:
                    entry.limits.add(peer)
                entry.not_before = now + self._delay_s(entry, now)
            elif event is TaskEvent.PREEMPT:
                entry.preempted += 1
            elif event is TaskEvent.DISCOUNT:
                entry.tried.add(peer)
                entry.yields = True
        self.move(entry, event)
        if before is not TaskState.PENDING and peer is not None:
            self.release(peer, entry.id)
            if before in LEASED:
                group = self.groups[entry.group]
                group.moved_at = max(group.moved_at, now)
        if not entry.over:
            entry.current = None
            return
        self.campaign_of(entry).open -= 1
        if event is TaskEvent.SUCCEED and peer is not None and not entry.ran_on:
            entry.ran_on = self.device_of(self.worker(peer))

    def _delay_s(self, entry: TaskEntry, now: float) -> float:
        limits = self.campaign_of(entry).limits
        left_s = math.inf if limits.ends_at is None else limits.ends_at - now
        return retry_delay_s(limits.backoff_s, entry.tries, left_s)

    @staticmethod
    def end_if_done(campaign: CampaignRun) -> list[Command]:
        if campaign.open or campaign.done:
            return []
        campaign.done = True
        return [EndCampaign(campaign.limits.campaign, campaign.detail)]

    def users_of(self, peer: str) -> tuple[str, ...]:
        """Running campaigns that would use this worker."""
        uses = {group.campaign for group in self.ranked if peer in group.fits}
        return tuple(name for name, run in self.campaigns.items() if name in uses and not run.done)
