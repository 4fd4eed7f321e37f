"""The pure core of the scheduler: events go in as calls with the time, commands come out.

    on_adverts, on_quote, on_refusal, on_unreachable ─▶ ┌──────┐ ─▶ Discover, ProbeWorker, CommitTo
    on_grant, on_denial, on_ready, on_progress ───────▶ │ core │ ─▶ RecordGrant, SwitchAttempt, EndAttempt, EndPending
    judge + on_result, on_silence, on_stopped, tick ──▶ └──────┘ ─▶ CancelOn, ReleaseOn, Explain, EndCampaign

Commands are carried out in their order; those for the disk before anything else happens. Tasks and attempts move only by the tables of
`protocol.values.attempt`. `State` holds what is known; each collaborator decides one matter:

    allocator   which worker gets a task            hedging     second tickets        workers    what workers say of themselves
    failures    how attempts end                    timeouts    limits in time        reconciler what workers hold
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Final

from protocol.messages.work import Conflict, Denied, HeldLease, LiveLease, Progress, QueuedLease, Quote, Shape
from protocol.values.advert import Advert
from protocol.values.attempt import AttemptStatus, TaskEvent
from protocol.values.lease import Fence
from protocol.values.record import Record
from protocol.values.task import Task
from protocol.words import Reason, WorkerState
from scheduler.core.allocator import SEEK_S, Allocator
from scheduler.core.commands import Command, LiveAttempt
from scheduler.core.failures import Failures
from scheduler.core.hedging import Hedging
from scheduler.core.invariants import check
from scheduler.core.reconciler import Reconciler
from scheduler.core.state import CampaignRun, PendingOutcome, State, TaskEntry, TaskLimits
from scheduler.core.timeouts import TimeLimits
from scheduler.core.workers import Workers

FORGET_S: Final = 60.0
"""An ended campaign is kept for so long: by then no answer for it is outstanding."""
MAX_ASKED: Final = 16
"""Tasks of one group that a probe asks about."""
CANCELLED: Final = PendingOutcome(TaskEvent.CANCEL, Reason.CANCELLED)


class SchedulerCore:
    """All campaigns of one scheduler, and all workers it knows."""

    allocator_type = Allocator
    failures_type = Failures

    def __init__(self, rng: random.Random) -> None:
        self.state = State(rng)
        self._allocator = self.allocator_type(self.state)
        self._hedging = Hedging(self.state, self._allocator)
        self._failures = self.failures_type(self.state, self._hedging)
        self._timeouts = TimeLimits(self.state, self._failures)
        self._workers = Workers(self.state, self._failures)
        self._reconciler = Reconciler(self.state, self._workers, self._hedging, self._failures)

    def decide(self, now: float, *, whole: bool = False) -> list[Command]:
        """What follows from the state. `whole`: look at everything, not only at what changed since the last decision."""
        return self._allocator.decide(now, whole=whole) + self._hedging.decide(now, whole=whole)

    def check(self) -> None:
        """Raises `LocalProtocolError` with the first invariant that does not hold."""
        check(self.state)

    # -- campaigns ----------------------------------------------------------------------------------------------------------------------

    def add(self, limits: TaskLimits, entries: Iterable[TaskEntry], now: float) -> list[Command]:
        """A campaign with its tasks, as submitted or as left by an earlier scheduler."""
        campaign = self.state.add(limits, list(entries), now)
        return self.state.end_if_done(campaign) + self.decide(now, whole=True)

    def on_models(self, entries: Iterable[TaskEntry], now: float) -> list[Command]:
        """The models of these tasks are on this disk now."""
        for entry in entries:
            group = self.state.groups.get(entry.group)
            if group is not None and entry.id in group.without_model:
                del group.without_model[entry.id]
                group.pending[entry.id] = self.state.reopened[group.id] = None
        return self.decide(now) if self.state.reopened else []

    def cancel(self, tasks: Iterable[str], now: float) -> list[Command]:
        """A user wants these cancelled."""
        return self._failures.end_tasks(tasks, CANCELLED, now) + self.decide(now)

    def forget(self, now: float) -> list[CampaignRun]:
        """Drop campaigns that ended a while ago, and give them."""
        ended: list[CampaignRun] = []
        for campaign in self.state.campaigns.values():
            if campaign.done and campaign.done_at is None:
                campaign.done_at = now
            elif campaign.done_at is not None and now - campaign.done_at >= FORGET_S:
                ended.append(campaign)
        for campaign in ended:
            self.state.drop(campaign)
        return ended

    @property
    def idle(self) -> bool:
        """Every campaign has ended."""
        return all(campaign.done for campaign in self.state.campaigns.values())

    # -- what a worker has --------------------------------------------------------------------------------------------------------------

    def held_on(self, peer: str) -> tuple[HeldLease, ...]:
        """Leases and tickets that we have there."""
        held = (attempt.held(entry.epoch) for entry, attempt in self.state.held_at(peer))
        return tuple(item for item in held if item is not None)

    def renewable_on(self, peer: str) -> tuple[HeldLease, ...]:
        """Those of them that are to be renewed: neither being stopped nor already reporting."""
        over = (AttemptStatus.REPORTING, AttemptStatus.STOPPING)
        held = (
            attempt.held(entry.epoch)
            for entry, attempt in self.state.held_at(peer)
            if entry.outcome is None and attempt.status not in over
        )
        return tuple(item for item in held if item is not None)

    def tasks_to_probe(self, peer: str) -> list[Task]:
        """Tasks to ask this worker about: pending ones, or queued ones at other workers."""
        tasks: list[Task] = []
        for group in self.state.ranked:
            if peer in group.fits:
                waiting = islice(group.pending or group.queued, MAX_ASKED)
                tasks += [self.state.tasks[task].task for task in waiting]
        return tasks

    def campaigns_on(self, peer: str, leases: Collection[str] | None = None) -> tuple[str, ...]:
        """Campaigns with a live task there; of those under `leases`, if given."""
        held = self.state.held_at(peer)
        names = [entry.task.campaign for entry, each in held if leases is None or each.lease in leases]
        return tuple(dict.fromkeys(names))

    def may_fetch(self, peer: str, sha256: str) -> bool:
        """Whether a worker holds a live task that needs this model."""
        return any(entry.task.model.sha256 == sha256 for entry, _ in self.state.held_at(peer))

    def misses_results(self, peer: str, leases: Iterable[LiveLease]) -> bool:
        """Whether another scheduler took results that this one, which adopted the campaign, waits for."""
        return self._reconciler.misses_results(peer, leases)

    def rival_asked(self, peer: str, lease: str) -> bool:
        """Whether another worker may have granted this ticket's task already, and its answer is on its way."""
        return self._hedging.rival_asked(peer, lease)

    # -- the index and the workers ------------------------------------------------------------------------------------------------------

    def on_adverts(self, group: str, adverts: Sequence[Advert], now: float) -> list[Command]:
        """The index answered a search for this group."""
        self._workers.add_adverts(group, adverts, now)
        return self.decide(now, whole=True)

    def on_explanation(self, group: str, reason: Reason, text: str, now: float) -> list[Command]:
        """The answer to `Explain`. If a worker turned up meanwhile, the tasks go on."""
        return self._timeouts.end_hopeless(group, reason, text, now) + self.decide(now)

    def on_quote(self, peer: str, quote: Quote, now: float, shapes: Sequence[Shape] = ()) -> list[Command]:
        """A worker answered a probe about these shapes."""
        return self._workers.add_quote(peer, quote, shapes, now) + self.decide(now)

    def on_refusal(self, peer: str, denied: Denied, now: float) -> list[Command]:
        """A worker does not serve this scheduler, or not now."""
        self._workers.refuse(peer, denied, now)
        return self.decide(now)

    def on_unreachable(self, peer: str, why: str, now: float) -> list[Command]:
        """A probe or commit got no answer."""
        self._workers.mark_unreachable(peer, why, now)
        return self.decide(now)

    def on_link_closed(self, peer: str, now: float) -> list[Command]:
        """A link ended. What the worker holds is not lost by that."""
        self._workers.close_link(peer)
        return self.decide(now)

    def on_link_failed(self, peer: str, now: float) -> list[Command]:
        """A worker with tasks of ours cannot be reached where it was: the index may know where it is now."""
        groups = dict.fromkeys(entry.group for entry, _ in self.state.held_at(peer))
        return [
            command
            for group in groups
            for command in self._allocator.search(self.state.groups[group], now, SEEK_S)
        ]

    def on_status(
        self,
        peer: str,
        incarnation: int,
        state: WorkerState,
        now: float,
        *,
        why: str = "",
        waiting: Sequence[QueuedLease] = (),
    ) -> list[Command]:
        """A renewal was answered: how the worker and our tickets stand."""
        commands = self._workers.update_status(peer, incarnation, state, now, why=why, waiting=waiting)
        return [] if commands is None else commands + self.decide(now)

    # -- answers to a commit ------------------------------------------------------------------------------------------------------------

    def on_grant(
        self,
        peer: str,
        task: str,
        number: int,
        lease: str,
        fence: Fence,
        now: float,
        *,
        queued: bool,
        position: int | None = None,
        start_s: float | None = None,
    ) -> list[Command]:
        """A worker gave a lease, or a ticket at this position of its queue."""
        return self._reconciler.grant(
            peer, task, number, lease, fence, now, queued=queued, position=position, start_s=start_s
        ) + self.decide(now)

    def on_conflict(self, task: str, number: int, conflict: Conflict, now: float) -> list[Command]:
        """Another scheduler was faster."""
        return self._reconciler.conflict(task, number, conflict, now) + self.decide(now)

    def on_denial(self, task: str, number: int, denied: Denied, now: float) -> list[Command]:
        """The worker does not take the attempt."""
        return self._reconciler.deny(task, number, denied, now) + self.decide(now)

    def on_commit_failure(self, task: str, number: int, why: str, now: float, *, sent: bool) -> list[Command]:
        """A commit got no answer. `sent`: it may have arrived."""
        return self._reconciler.fail_commit(task, number, why, now, sent=sent) + self.decide(now)

    # -- runs ---------------------------------------------------------------------------------------------------------------------------

    def on_ready(self, peer: str, lease: str, fence: Fence, now: float) -> tuple[str | None, list[Command]]:
        """A ticket is up: the task to start, None to skip it. The commands are carried out before that is answered."""
        return self._reconciler.start(peer, lease, fence, now)

    def on_progress(self, peer: str, report: Progress, now: float) -> LiveAttempt | None:
        """A run moved on. None: it is not ours any more."""
        return self._reconciler.progress(peer, report, now)

    def on_preempt(self, peer: str, lease: str, fence: Fence, priority: int, now: float) -> list[Command]:
        """A worker announces that a run will be preempted by a task of this priority."""
        return self._reconciler.warn(peer, lease, fence, priority, now)

    def judge(
        self, record: Record, rejection: tuple[Reason, str] | None = None
    ) -> tuple[TaskEvent, Reason | None, str]:
        """What a verified record does to its task, which `on_result` does once the record is stored.

        `rejection`: why a complete record is no measurement of what was asked for.
        """
        return self._failures.judge(record, rejection)

    def on_result(
        self, task: str, event: TaskEvent, reason: Reason | None, now: float, *, permanent: bool = False
    ) -> list[Command]:
        """The record is stored: move the task by the event that was judged. `permanent`: the worker says that it is the model's fault."""
        return self._failures.settle(task, event, reason, now, permanent=permanent) + self.decide(now)

    # -- ends ---------------------------------------------------------------------------------------------------------------------------

    def on_lost(
        self, peer: str, leases: Iterable[str], reason: Reason, now: float, detail: str = ""
    ) -> list[Command]:
        """These leases or tickets ended without a result."""
        return self._failures.lose_leases(peer, leases, reason, now, detail) + self.decide(now)

    def on_silence(self, peer: str, detail: str, now: float, *, silent: bool = False) -> list[Command]:
        """The worker was not heard of for a lease's time: all it has is lost. `silent`: it accepts links and does not answer."""
        return self._failures.lose_all(peer, Reason.LOST, detail, now, silent=silent) + self.decide(now)

    def on_stopped(self, peer: str, leases: Iterable[str], now: float) -> list[Command]:
        """The worker confirms that nothing runs under these leases any more."""
        return self._failures.confirm_stop(peer, leases, now) + self.decide(now)

    def on_leases(
        self,
        peer: str,
        campaign: str,
        incarnation: int,
        leases: Sequence[LiveLease],
        now: float,
        *,
        expected: frozenset[str],
    ) -> list[Command]:
        """What a worker holds of a campaign. `expected`: the leases known when the question was sent."""
        return self._reconciler.reconcile(
            peer, campaign, incarnation, leases, now, expected=expected
        ) + self.decide(now)

    def on_superseded(self, campaign: str, now: float) -> list[Command]:
        """It is proven that another scheduler leads this campaign: it ends here."""
        return self._failures.end_superseded(campaign, now) + self.decide(now)

    def on_disowned(self, peer: str, campaign: str, now: float) -> list[Command]:
        """A worker says without a proof that another scheduler leads this campaign: the worker gets no more of it."""
        return self._failures.exclude(peer, campaign, now) + self.decide(now)

    def tick(self, now: float) -> list[Command]:
        """Time passed; to be called a few times each second."""
        return self._timeouts.enforce(now) + self.decide(now, whole=True)
