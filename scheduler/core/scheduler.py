"""The pure core of the scheduler: events go in as calls with the time, commands come out.

    workers     adverts, quotes, refusals, status ─▶ ┌───────┐
    reconciler  grants, starts, progress, leases ──▶ │ state │ ─▶ decide ─▶ allocator   which worker gets a task
    failures    results, losses, stops, cancels ───▶ └───────┘           ─▶ hedging     second queued leases
    timeouts    time                                     │           ─▶ deadlines   the hedge beside a run that takes too long
                                                         ▼
                                  RecordGrant, EndAttempt, CancelOn … and what was decided: ProbeWorker, CommitTo …

Each event returns the commands that follow from it; `decide`, called after every event, returns the rest. Commands are carried out in
order, those for the disk before anything else happens. Tasks and attempts change state only by the tables of `protocol.values.attempt`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from protocol.messages.work import HeldLease
from protocol.values.attempt import AttemptStatus, TaskEvent
from protocol.values.task import Task
from protocol.values.trust import OWN, Trust
from protocol.words import Reason
from scheduler.core.allocator import Allocator
from scheduler.core.commands import Command
from scheduler.core.deadlines import Deadlines
from scheduler.core.entries import CampaignRun, PendingOutcome, TaskEntry, TaskLimits
from scheduler.core.failures import Failures
from scheduler.core.hedging import Hedging
from scheduler.core.reconciler import Reconciler
from scheduler.core.sittings import Sittings
from scheduler.core.state import State
from scheduler.core.timeouts import TimeLimits
from scheduler.core.workers import Workers

FORGET_S: Final = 60.0
"""Seconds for which an ended campaign is kept: by then no answer for it is outstanding."""
MAX_ASKED: Final = 16
"""Tasks of one group about which a probe asks."""
MOST_ASKED: Final = 16 * MAX_ASKED
"""Tasks of all groups in one probe: more kinds do not fit into it."""
CANCELLED: Final = PendingOutcome(TaskEvent.CANCEL, Reason.CANCELLED)


class SchedulerCore:
    """All campaigns of one scheduler, and all workers it knows."""

    state_type = State
    allocator_type = Allocator
    hedging_type = Hedging
    deadlines_type = Deadlines
    failures_type = Failures
    workers_type = Workers
    reconciler_type = Reconciler

    def __init__(self, rng: random.Random, trust_of: Callable[[str], Trust] = lambda peer: OWN) -> None:
        """`trust_of`: why this submitter trusts a worker, now; the answer may change between two calls."""
        self.state = self.state_type(rng, trust_of)
        self.allocator = self.allocator_type(self.state)
        self.hedging = self.hedging_type(self.state, self.allocator)
        self.failures = self.failures_type(self.state, self.hedging)
        self.deadlines = self.deadlines_type(self.state, self.allocator, self.hedging, self.failures)
        self.sittings = Sittings(self.state)
        self.timeouts = TimeLimits(self.state, self.failures)
        self.workers = self.workers_type(self.state, self.failures)
        self.reconciler = self.reconciler_type(self.state, self.workers, self.hedging, self.failures)

    def decide(self, now: float) -> list[Command]:
        """The commands that follow from the state. Call it after every event; most events change nothing that matters here."""
        commands = self.sittings.decide(now) if self.state.sittings else []
        commands += self.failures.end_portion(now) if self.state.withdrawn else []
        if not (self.state.unsettled or self.state.changed or self.state.reopened):
            return commands
        whole = self.state.unsettled
        commands += self.allocator.decide(now) + self.hedging.decide(now)
        return commands + self.deadlines.decide(now) if whole else commands

    # -- campaigns ----------------------------------------------------------------------------------------------------------------------

    def add(
        self, limits: TaskLimits, entries: Iterable[TaskEntry], now: float, unscored: Iterable[str] = ()
    ) -> list[Command]:
        """Add a campaign with its tasks, as submitted or as an earlier scheduler left them. `unscored`: tasks whose answers are not yet
        scored.
        """
        entries = list(entries)
        self.sittings.prepare(entries, now)
        run = self.state.add(limits, entries, now)
        run.unscored |= {*unscored}
        commands = self.state.end_if_done(run)
        workers = dict.fromkeys(attempt.worker for entry in entries for attempt in entry.attempts())
        for peer in workers:  # trust in these workers may have ended while no scheduler ran
            commands += self.failures.end_untrusted(peer, now)
        return commands

    def review_trust(self, now: float) -> list[Command]:
        """Call this whenever the answer of `trust_of` for a worker has changed."""
        return self.workers.review_trust(now)

    def await_scores(self, task: TaskEntry) -> None:
        """The task's answers are to be scored, and its campaign does not end before. Call this before the task ends."""
        self.state.campaign_of(task).unscored.add(task.id)

    def finish_scoring(self, task: TaskEntry) -> list[Command]:
        """The task's answers are scored, or will not be scored."""
        run = self.state.campaign_of(task)
        run.unscored.discard(task.id)
        return self.state.end_if_done(run)

    def add_models(self, entries: Iterable[TaskEntry]) -> None:
        """The models of these tasks are now on this disk."""
        for entry in entries:
            group = self.state.groups.get(entry.group)
            if group is not None and entry.id in group.without_model:
                del group.without_model[entry.id]
                group.pending[entry.id] = self.state.reopened[group.id] = None

    def cancel(self, tasks: Iterable[str], now: float) -> list[Command]:
        """A user wants these tasks cancelled."""
        return self.failures.end_tasks(tasks, CANCELLED, now)

    def end_unfit(self, campaign: str, units: Mapping[str, str], now: float) -> list[Command]:
        """Fail this campaign's tasks for these units before any worker is asked: the units cannot run them, for the reasons given."""
        run = self.state.campaigns.get(campaign)
        tasks_there = () if run is None else run.tasks
        commands: list[Command] = []
        for unit, why in units.items():
            tasks = [task for task in tasks_there if self.state.tasks[task].form.unit == unit]
            outcome = PendingOutcome(TaskEvent.FAIL, Reason.WRONG_UNIT, why)
            commands += self.failures.end_tasks(tasks, outcome, now)
        return commands

    def cancel_campaigns(self, campaigns: Iterable[str], now: float) -> list[Command]:
        """A user wants all tasks of these campaigns cancelled."""
        commands: list[Command] = []
        for name in campaigns:
            run = self.state.campaigns.get(name)
            if run is not None and not run.cancelled:
                run.cancelled = True
                commands += self.failures.end_tasks(run.tasks, CANCELLED, now)
        return commands

    def tick(self, now: float) -> list[Command]:
        """Time passed. Call it a few times each second."""
        self.state.unsettled = True
        return self.sittings.open(now) + self.timeouts.enforce(now) + self.state.stops.lapse(now)

    def forget(self, now: float) -> list[CampaignRun]:
        """Drop campaigns that ended a while ago, and return them."""
        ended: list[CampaignRun] = []
        for campaign in self.state.campaigns.values():
            if campaign.done and campaign.done_at is None:
                campaign.done_at = now
            elif campaign.done_at is not None and now - campaign.done_at >= FORGET_S:
                ended.append(campaign)
        for campaign in ended:
            self.state.drop(campaign)
        return ended

    def raise_epoch(self, campaign: str, epoch: int) -> tuple[str, ...]:
        """Lead a campaign under a higher epoch from now on. Returns the workers that hold something of it, to adopt it there again."""
        run = self.state.campaigns[campaign]
        run.limits = replace(run.limits, epoch=epoch)
        peers: dict[str, None] = {}
        for entry in (self.state.tasks[task] for task in run.tasks):
            entry.epoch = epoch
            peers |= dict.fromkeys(attempt.worker for attempt in entry.attempts())
        return tuple(peers)

    @property
    def idle(self) -> bool:
        """Whether every campaign has ended and no worker owes the confirmation of a stop."""
        return not self.state.stops and all(campaign.done for campaign in self.state.campaigns.values())

    # -- what a worker has --------------------------------------------------------------------------------------------------------------

    def held_on(self, peer: str) -> tuple[HeldLease, ...]:
        """Our leases and queued leases at this worker."""
        held = (attempt.held(entry.epoch) for entry, attempt in self.state.held_at(peer))
        return tuple(item for item in held if item is not None)

    def holds_lease(self, peer: str) -> bool:
        """Whether this scheduler has any lease at the worker `peer`."""
        return any(attempt.lease is not None for _, attempt in self.state.held_at(peer))

    def renewable_on(self, peer: str) -> tuple[HeldLease, ...]:
        """Leases and queued leases at a worker that are to be renewed: those neither being stopped nor reporting."""
        ending = (AttemptStatus.REPORTING, AttemptStatus.STOPPING)
        held = (
            attempt.held(entry.epoch)
            for entry, attempt in self.state.held_at(peer)
            if entry.outcome is None and attempt.status not in ending
        )
        return tuple(item for item in held if item is not None)

    def tasks_to_probe(self, peer: str) -> list[Task]:
        """Tasks to ask this worker about: pending ones, and ones queued at other workers."""
        tasks: list[Task] = []
        for group in self.state.ranked:
            if peer in group.fits:
                waiting = islice(group.pending or group.queued, MAX_ASKED)
                tasks += [self.state.tasks[task].task for task in waiting]
            if len(tasks) >= MOST_ASKED:
                break
        return tasks

    def campaigns_on(self, peer: str, leases: Collection[str] | None = None) -> tuple[str, ...]:
        """Campaigns with a live task at this worker; if `leases` is given, only those with a task under one of these leases."""
        held = self.state.held_at(peer)
        names = [entry.form.campaign for entry, each in held if leases is None or each.lease in leases]
        return tuple(dict.fromkeys(names))

    def may_fetch(self, peer: str, sha256: str) -> bool:
        """Whether a worker holds a live task that needs this model, of a campaign that admits the worker."""
        return any(entry.form.needs(sha256) for entry in self._entrusted(peer))

    def may_share(self, peer: str, taker: str, sha256: str) -> bool:
        """Whether a worker may learn that `taker` fetches this model: a campaign for which the taker needs the model admits both."""
        return any(
            self.state.admits(self.state.groups[entry.group], peer)
            for entry in self._entrusted(taker)
            if entry.form.needs(sha256)
        )

    def entrusted_to(self, peer: str) -> tuple[str, ...]:
        """Campaigns that admit a worker and have a live task there; the worker may have their manifests."""
        return tuple(dict.fromkeys(entry.form.campaign for entry in self._entrusted(peer)))

    def _entrusted(self, peer: str) -> list[TaskEntry]:
        state = self.state
        held = (entry for entry, _ in state.held_at(peer))
        return [entry for entry in held if state.admits(state.groups[entry.group], peer)]
