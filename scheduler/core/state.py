"""The scheduler's state: all entries (`entries.py`) with their counts and indexes, and the workers.

`State` keeps every count and index up to date; it decides nothing.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from protocol.values.advert import Advert
from protocol.values.attempt import TASK, AttemptEvent, TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.values.task import Task
from protocol.values.trust import OWN, Trust
from protocol.wire.table import step
from protocol.words import Reason
from scheduler.core.commands import Command, EndCampaign, QueuePosition
from scheduler.core.entries import (
    LATER_SITTING_PRIORITY,
    LEASED_TASK_STATES,
    LIMIT_REASONS,
    POSSIBLY_ENDED_STATUSES,
    Attempt,
    CampaignRun,
    ModelEvidence,
    PendingOutcome,
    RequirementGroup,
    TaskEntry,
    TaskLimits,
    group_of,
)
from scheduler.core.ranking import WorkerView
from scheduler.core.retry import retry_delay_s
from scheduler.core.run_times import RunTimes, deadline
from scheduler.core.stops import OwedStops


class State:
    """Everything a scheduler knows. Sets are dictionaries where every run must see the same order."""

    def __init__(self, rng: random.Random, trust_of: Callable[[str], Trust] = lambda peer: OWN) -> None:
        self.rng = rng
        self.trust_of = trust_of
        self.clash: Callable[[str, str], str] = lambda device, peer: ""
        """Why this key's claim to a device id is not accepted, in words; empty: it is accepted."""
        self.device_key: Callable[[str, str], str] = lambda device, peer: peer
        """The key that represents a worker's device in results, by device id and worker's key."""
        self.hearsay: Callable[[str], bool] = lambda peer: False
        """Whether only nodes that the owner did not choose report this worker."""
        self.run_times = RunTimes()
        self.tasks: dict[str, TaskEntry] = {}
        self.groups: dict[str, RequirementGroup] = {}
        self.ranked: list[RequirementGroup] = []
        """All groups, sorted by descending priority, then oldest first."""
        self.groups_for: dict[str | None, dict[str, RequirementGroup]] = {None: {}}
        """Groups by the only device that can take them; None: any device. Each of a thousand devices may have one."""
        self.peers_at: dict[str, dict[str, None]] = {}
        """Workers by the device id in their adverts."""
        self.campaigns: dict[str, CampaignRun] = {}
        self.workers: dict[str, WorkerView] = {}
        self.replicas: dict[str, list[str]] = {}
        """Tasks by replica set."""
        self.queued: dict[str, None] = {}
        """Tasks with a queued lease at a worker, the newest last."""
        self.leased: dict[str, None] = {}
        """Tasks with a lease, in the order in which their deadlines are checked."""
        self.unquoted: dict[str, None] = {}
        """Workers that gave no quote over the current link."""
        self.idle: dict[str, None] = {}
        """Workers with a quote and, as far as known, without work."""
        self.changed: dict[str, None] = {}
        """Workers that changed since the last decision."""
        self.reopened: dict[str, None] = {}
        """Groups with a task that became pending since the last decision."""
        self.warming: dict[str, None] = {}
        """Groups with a task that waits for a quote from a device that already has its model."""
        self.unsettled = False
        """Whether the next decision looks at everything, not only at changes."""
        self.unfinished = False
        """Whether the last decision left tasks that the next one can hand out at once."""
        self.due: list[tuple[float, str]] = []
        """A heap of tasks by the time at which they may exceed a time limit; see `watch`."""
        self.withdrawn: dict[str, None] = {}
        """Pending tasks with an outcome: they are no longer handed out and have yet to end."""
        self.sittings: dict[str, None] = {}
        """Tasks whose sitting must be checked: they are new, or the sitting before them has ended."""
        self.stops = OwedStops()
        self.positions: dict[str, QueuePosition] = {}
        """Queue positions that changed since the shell last took them."""

    # -- workers ------------------------------------------------------------------------------------------------------------------------

    def worker(self, peer: str) -> WorkerView:
        """The view of a worker, made on first use."""
        view = self.workers.get(peer)
        if view is None:
            view = self.workers[peer] = WorkerView(peer)
            self.unquoted[peer] = None
        return view

    def device(self, peer: str) -> str:
        """The name of the worker's device, for people."""
        return self.worker(peer).device or peer

    def refresh(self, view: WorkerView) -> None:
        """Call this after any change that makes a worker more or less free."""
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
        """Live tasks at a worker, each with its attempt there; skips tasks that end during the iteration."""
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
        """The number of our leases and the number of our queued leases at a worker."""
        held = list(self.held_at(view.peer))
        leases = sum(entry.runs(each) for entry, each in held)
        return leases, sum(each.lease is not None and not entry.runs(each) for entry, each in held)

    def deadline(self, entry: TaskEntry, attempt: Attempt) -> float:
        """Until when the scheduler waits for this running attempt before it hedges. No message carries this value."""
        allowance_s = self.allowance_s(entry, attempt)
        return deadline(attempt.leased_at, attempt.since, attempt.advanced_at, allowance_s)

    def is_sitting_too_soon(self, entry: TaskEntry, now: float) -> bool:
        """Whether the task is a sitting that would begin too soon after the previous one. Such a sitting can be live only in an adopted
        campaign: it was found at a worker before the scheduler knew when the previous one ended.
        """
        sitting = entry.form.sitting
        before = None if sitting is None else self.tasks.get(sitting.task(entry.id, sitting.number - 1))
        if sitting is None or before is None or before.ended_at is None:
            return False
        return now < before.ended_at + sitting.apart_s

    def allowance_s(self, entry: TaskEntry, attempt: Attempt) -> float:
        """How long this running attempt may report nothing new."""
        warm = self.worker(attempt.worker).warm
        silent = attempt.started_at is not None and attempt.advanced_at is None
        return self.run_times.allowance_s(
            entry.form, attempt.worker, warm=warm, hedged=attempt.hedged, silent=silent
        )

    # -- tasks --------------------------------------------------------------------------------------------------------------------------

    def add(self, limits: TaskLimits, entries: list[TaskEntry], now: float) -> CampaignRun:
        """Add a campaign with its tasks, as submitted or as an earlier scheduler left them."""
        campaign = self.campaigns[limits.campaign] = CampaignRun(limits)
        for entry in entries:
            self.tasks[entry.id], entry.epoch = entry, limits.epoch
            campaign.tasks.append(entry.id)
            group = self.groups.get(entry.group) or self._new_group(entry, now)
            group.tasks[entry.id] = None
            if entry.replica_set:
                group.replicated = True
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
            if entry.live:  # when each attempt began, and when others could have had the task, is unknown
                entry.not_before = now
                for attempt in entry.attempts():
                    attempt.since = attempt.leased_at = now
                self.watch(entry)
            elif entry.tries:  # how much of the backoff has passed is unknown
                entry.not_before = now + self._delay_s(entry, now)
        return campaign

    def _new_group(self, entry: TaskEntry, now: float) -> RequirementGroup:
        group = RequirementGroup(
            entry.group,
            entry.form.campaign,
            entry.form.requirement,
            hope_at=now,
            moved_at=now,
            trust=self.campaign_of(entry).limits.trust,
            pin=entry.pin,
        )
        self.groups[group.id] = self.groups_for.setdefault(group.device, {})[group.id] = group
        insort(self.ranked, group, key=self._rank)
        group.fits = {advert.peer for advert in self.claimants(group.device) if self.may_use(group, advert)}
        return group

    def claimants(self, device: str | None) -> list[Advert]:
        """The adverts that name this device; None: all adverts."""
        peers = self.workers if device is None else self.peers_at.get(device, ())
        return [advert for peer in peers if (advert := self.workers[peer].advert) is not None]

    def set_advert(self, view: WorkerView, advert: Advert) -> None:
        """Store a worker's newest advert, and update which groups it fits."""
        before = None if view.advert is None else view.advert.device
        if before is not None and before != advert.device:
            del self.peers_at[before][view.peer]
        self.peers_at.setdefault(advert.device, {})[view.peer] = None
        view.advert, view.addresses, view.device = advert, advert.addresses, advert.name
        view.warm.update(advert.models)
        for device in dict.fromkeys((None, before, advert.device)):
            for group in self.groups_for.get(device, {}).values():
                if self.may_use(group, advert):
                    group.fits.add(advert.peer)
                else:
                    group.fits.discard(advert.peer)

    @staticmethod
    def pin(entry: TaskEntry, peer: str) -> None:
        """Restrict the task to this worker; call it before the task is in a group. Empty: no restriction."""
        if peer:
            entry.pin, entry.group = peer, f"{group_of(entry.form)}\npinned to {peer}"

    def release_sitting(self, entry: TaskEntry, now: float, peer: str = "") -> None:
        """Make a task that waited for its sitting pending, for this worker only; empty: for any that fits."""
        entry.opened = True
        entry.not_before = max(entry.not_before, now)
        self.pin_to(entry, now, peer)

    def pin_to(self, entry: TaskEntry, now: float, peer: str) -> None:
        """Restrict a task that is already in a group to this worker; empty: no change."""
        self._count(entry, entry.state, -1)
        del self.groups[entry.group].tasks[entry.id]
        self.pin(entry, peer)
        group = self.groups.get(entry.group) or self._new_group(entry, now)
        group.tasks[entry.id] = None
        group.replicated = group.replicated or bool(entry.replica_set)
        self._count(entry, entry.state, +1)

    def _rank(self, group: RequirementGroup) -> int:
        return -(LATER_SITTING_PRIORITY if group.pin else self.campaigns[group.campaign].limits.priority)

    def priority_of(self, task: Task) -> int:
        """The priority with which a task asks for a device. Sittings after the first only take devices that no other task needs."""
        later = task.sitting is not None and task.sitting.number > 1
        return LATER_SITTING_PRIORITY if later else self.campaigns[task.campaign].limits.priority

    # -- identity ---------------------------------------------------------------------------------------------------------------------

    def device_of(self, view: WorkerView) -> str:
        """Identity of a worker's device: the device id; the device id with the worker's key if the id belongs to another key; the peer id
        while there is no advert.
        """
        if view.advert is None:
            return view.peer
        device = view.advert.device
        return f"{device} {view.peer}" if self.clash(device, view.peer) else device

    def exclusive_keys(self, group: RequirementGroup, view: WorkerView) -> set[str]:
        """What two replicas may not share: the device and, in a campaign that admits strangers, the trust root, since workers with one root
        can agree on a lie.
        """
        marks = {self.device_of(view)}
        return marks | {self.root_of(group, view.peer)} if group.trust.anyone else marks

    def keys_of_replicas(
        self, entry: TaskEntry, *, for_good: bool = False, known_to_run: bool = False
    ) -> set[str]:
        """Devices where other replicas of the task are, or from which they have their results, and these devices' trust roots (see
        `exclusive_keys`). `for_good`: only replicas with a result. `known_to_run`: leaves out attempts that may be over.
        """
        taken = set[str]()
        group = self.groups[entry.group]
        for task in self.replicas.get(entry.replica_set, ()) if entry.replica_set else ():
            other = self.tasks[task]
            if other is entry:
                continue
            for each in () if for_good else other.attempts():
                if not known_to_run or each.status not in POSSIBLY_ENDED_STATUSES:
                    taken |= self.exclusive_keys(group, self.worker(each.worker))
            if other.state is TaskState.SUCCEEDED:
                taken.add(other.ran_on)
                if other.worker is not None:  # its device may have been unknown when the result came
                    taken |= self.exclusive_keys(group, self.worker(other.worker))
        return taken

    def could_run(self, group: RequirementGroup) -> bool:
        """Whether a worker could still run one of the group's pending tasks, now or when it returns."""
        views = [view for view in map(self.worker, group.fits) if view.could_run()]
        if not views or not group.replicated:
            return bool(views)
        marks = [self.exclusive_keys(group, view) for view in views]
        taken = (self.keys_of_replicas(self.tasks[task], for_good=True) for task in group.pending)
        return any(any(gone.isdisjoint(each) for each in marks) for gone in taken)

    def may_return(self, group: RequirementGroup) -> bool:
        """Whether the group is pinned to one worker that may still return, wherever it is now."""
        return bool(group.pin) and group.pin not in group.declined and self.worker(group.pin).could_run()

    def root_of(self, group: RequirementGroup, peer: str) -> str:
        """The trust root of a worker, in words."""
        trust = self.trust_in(group, peer)
        return f"root {trust.root or trust.text}"

    # -- trust --------------------------------------------------------------------------------------------------------------------------

    def trust_in(self, group: RequirementGroup, peer: str) -> Trust:
        """Why this group's campaign trusts a worker, now."""
        return group.trust.judge(peer, self.trust_of(peer))

    def trusted_may_try(self, entry: TaskEntry) -> bool:
        """Whether a trusted worker fits, has not tried the task, and could still run it."""
        group = self.groups[entry.group]
        return any(
            self.workers[peer].could_run() and not self.trust_in(group, peer).stranger
            for peer in group.fits - entry.tried
        )

    def another_worker_available(self, entry: TaskEntry, peer: str) -> bool:
        """Whether a worker other than this one can be expected to take the task soon."""
        return any(
            each != peer and self.workers[each].may_serve_soon() for each in self.groups[entry.group].fits
        )

    def admits(self, group: RequirementGroup, peer: str) -> bool:
        """Whether a worker may have the group's tasks and models, now. A worker that claims another key's device id gets no task that names
        its device.
        """
        view = self.workers.get(peer)
        advert = view.advert if view is not None and group.names_device else None
        if advert is not None and self.clash(advert.device, peer):
            return False
        return group.trust.admits(peer, self.trust_of(peer))

    def untrusted_in(self, group: RequirementGroup, adverts: Iterable[Advert]) -> list[Advert]:
        """The adverts of devices that fit but that the campaign does not admit."""
        return [advert for advert in adverts if group.met_by(advert) and not self.admits(group, advert.peer)]

    def may_use(self, group: RequirementGroup, advert: Advert) -> bool:
        """Whether a worker fits, has not refused these tasks, and is admitted."""
        return advert.peer not in group.declined and group.met_by(advert) and self.admits(group, advert.peer)

    def drop(self, campaign: CampaignRun) -> None:
        """Forget a campaign and all that belongs to it."""
        for task in campaign.tasks:
            entry = self.tasks.pop(task)
            group = self.groups.pop(entry.group, None)
            if group is not None:
                of_device = self.groups_for[group.device]
                del of_device[group.id]
                if not of_device and group.device is not None:
                    del self.groups_for[group.device]
            self.replicas.pop(entry.replica_set, None)
            self.positions.pop(task, None)
        del self.campaigns[campaign.limits.campaign]
        self.ranked = [group for group in self.ranked if group.id in self.groups]

    def campaign_of(self, entry: TaskEntry) -> CampaignRun:
        return self.campaigns[entry.form.campaign]

    def evidence(self, entry: TaskEntry) -> ModelEvidence:
        model = (entry.form.model.sha256, entry.form.unit, entry.form.measure.batch)
        return self.campaign_of(entry).evidence.setdefault(model, ModelEvidence())

    def move(self, entry: TaskEntry, event: TaskEvent) -> None:
        """Apply the event to the task's state table and update the counts."""
        before = entry.state
        entry.state = step(TASK, before, event, story=f"{entry.id} attempt {entry.attempt}")
        if before is not entry.state:
            self._count(entry, before, -1)
            self._count(entry, entry.state, +1)

    def _count(self, entry: TaskEntry, state: TaskState, by: int) -> None:
        group = self.groups[entry.group]
        if state in LEASED_TASK_STATES:
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
        elif state is TaskState.PENDING and by > 0 and entry.waits_for_sitting:
            self.sittings[entry.id] = None
        elif state is TaskState.PENDING and by > 0 and entry.model_missing:
            group.without_model[entry.id] = None
        elif state is TaskState.PENDING and by > 0:
            group.without_model.pop(entry.id, None)
            group.pending[entry.id] = None
            if (
                entry.last and not entry.yields
            ):  # it has waited longer than tasks that no worker was asked to take
                group.pending.move_to_end(entry.id, last=False)
            self.reopened[group.id] = None
        elif state is TaskState.PENDING:
            group.without_model.pop(entry.id, None)
            group.pending.pop(entry.id, None)

    def withdraw(self, entry: TaskEntry, outcome: PendingOutcome) -> None:
        """Stop handing out this pending task: it ends with `outcome`."""
        group = self.groups[entry.group]
        group.pending.pop(entry.id, None)
        group.without_model.pop(entry.id, None)
        entry.outcome = outcome
        self.withdrawn[entry.id] = None

    def take_withdrawn(self, most: int) -> list[str]:
        """Take up to `most` withdrawn tasks, those withdrawn first."""
        taken = list(islice(self.withdrawn, most))
        for task in taken:
            del self.withdrawn[task]
        return taken

    def watch(self, entry: TaskEntry) -> None:
        """Call this when the next time limit of `entry` may have become earlier."""
        at = entry.next_limit()
        if at < entry.check_at:
            entry.check_at = at
            heapq.heappush(self.due, (at, entry.id))

    def overdue(self, now: float) -> Iterator[TaskEntry]:
        """Tasks that exceed a time limit."""
        while self.due and self.due[0][0] <= now:
            at, task = heapq.heappop(self.due)
            entry = self.tasks.get(task)
            if entry is None or entry.check_at != at:
                continue  # forgotten, or watched for an earlier time since
            entry.check_at = math.inf
            if entry.next_limit() <= now:
                yield entry
            self.watch(entry)

    def start_lease(self, entry: TaskEntry, now: float, *, observed: bool = True) -> None:
        """The current attempt got a lease. `observed`: just now, rather than at an unknown time."""
        assert entry.current is not None, "a lease belongs to an attempt"
        self.move(entry, TaskEvent.GRANT)
        self.grant_lease(entry, entry.current, now, observed=observed)

    def grant_lease(self, entry: TaskEntry, attempt: Attempt, now: float, *, observed: bool = True) -> None:
        """One attempt of a leased task got a lease."""
        attempt.move(AttemptEvent.GRANT)
        attempt.started_at = now if observed else None
        attempt.since = attempt.leased_at = self.groups[entry.group].moved_at = now
        self.watch(entry)

    def end_attempt(self, entry: TaskEntry, event: TaskEvent, reason: Reason | None, now: float) -> None:
        """End the current attempt of a task without a hedge, or end a pending task."""
        before, peer = entry.state, entry.worker
        if before is not TaskState.PENDING and peer is not None:
            if event in (TaskEvent.RETRY, TaskEvent.LOSE):
                entry.tries += 1
                entry.tried |= {peer}
                entry.yields = event is TaskEvent.RETRY or entry.tries > 1
                if reason in LIMIT_REASONS:
                    entry.limits |= {peer}
                entry.not_before = now + self._delay_s(entry, now)
            elif event is TaskEvent.PREEMPT:
                entry.preempted += 1
            elif event is TaskEvent.DISCOUNT:
                entry.tried |= {peer}
                entry.yields = True
        self.move(entry, event)
        if before is not TaskState.PENDING and peer is not None:
            self.release(peer, entry.id)
            if before in LEASED_TASK_STATES:
                group = self.groups[entry.group]
                group.moved_at = max(group.moved_at, now)
        if not entry.over:
            entry.current = None
            return
        self.campaign_of(entry).open -= 1
        entry.ended_at = now
        sitting = entry.form.sitting
        if sitting is not None and (after := sitting.task(entry.id, sitting.number + 1)) in self.tasks:
            self.sittings[after] = None
        if event is TaskEvent.SUCCEED and peer is not None and not entry.ran_on:
            entry.ran_on = self.device_of(self.worker(peer))

    def _delay_s(self, entry: TaskEntry, now: float) -> float:
        limits = self.campaign_of(entry).limits
        left_s = math.inf if limits.ends_at is None else limits.ends_at - now
        return retry_delay_s(limits.backoff_s, entry.tries, left_s)

    @staticmethod
    def end_if_done(campaign: CampaignRun) -> list[Command]:
        if campaign.open or campaign.unscored or campaign.done:
            return []
        campaign.done = True
        return [EndCampaign(campaign.limits.campaign, campaign.detail)]

    def users_of(self, peer: str) -> tuple[str, ...]:
        """Running campaigns that would use this worker."""
        uses = {group.campaign for group in self.ranked if peer in group.fits}
        return tuple(name for name, run in self.campaigns.items() if name in uses and not run.done)
