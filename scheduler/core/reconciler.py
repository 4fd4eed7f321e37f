"""Reconciles the state with what workers hold: answers to a commit, starts of queued leases, and all leases once a link comes up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from protocol.formats.phase import Phase
from protocol.messages.work import Conflict, Denied, HeldLease, LiveLease, Progress
from protocol.values.attempt import AttemptEvent, AttemptStatus, TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.words import Reason
from scheduler.core.commands import CancelOn, Command, LiveAttempt, RecordEvent, RecordGrant
from scheduler.core.entries import LEASED_TASK_STATES, Attempt, TaskEntry
from scheduler.core.failures import Failures
from scheduler.core.hedging import Hedging
from scheduler.core.state import State
from scheduler.core.workers import Workers

OWED_S: Final = 60.0
"""Seconds, from the link's start, for a worker to send a result that it says it has; then the result counts as lost."""
YIELD_S: Final = 10.0
"""Seconds for which a run may continue after a preemption warning before the warning is dropped."""
MAX_WARNINGS: Final = 8
"""Most preemption warnings recorded for one attempt."""


class Reconciler:
    def __init__(self, state: State, workers: Workers, hedging: Hedging, failures: Failures) -> None:
        self._state = state
        self._workers = workers
        self._hedging = hedging
        self._failures = failures

    # -- answers to a commit ------------------------------------------------------------------------------------------------------------

    def grant(self, peer: str, grant: RecordGrant, now: float, *, observed: bool = True) -> list[Command]:
        """A worker granted a lease, or queued it. If the worker should no longer have the task, the lease is cancelled. `observed`: the
        grant happened just now.
        """
        state, entry = self._state, self._state.tasks.get(grant.task)
        number, lease, fence, queued = grant.attempt, grant.lease, grant.fence, grant.queued
        attempt = entry.at(peer) if entry is not None else None
        if entry is None or attempt is None or attempt.number != number or attempt.lease is not None:
            if attempt is not None and (attempt.number, attempt.lease, attempt.fence) == (
                number,
                lease,
                fence,
            ):
                return []
            epoch = None if entry is None else entry.epoch
            return [CancelOn(peer, (HeldLease(lease=lease, fence=fence, epoch=epoch),), Reason.FENCED)]
        view = state.worker(peer)
        if any(lease == other.lease or fence == other.fence for _, other in state.held_at(peer)):
            # Otherwise the worker could settle one task in the other's name.
            no = Denied(reason=Reason.BAD_REQUEST, detail="it gave one lease to two tasks")
            commands = self._failures.attempt_refused(
                entry, attempt, TaskEvent.REFUSE, no.reason, no.detail, now
            )
            self._workers.refuse(peer, no, now)
            return commands
        commands = []
        hedge, beside = attempt is entry.hedge, entry.state in LEASED_TASK_STATES
        if hedge and not queued and not beside:
            commands += self._hedging.prefer(entry)
        attempt.lease, attempt.fence, attempt.since = lease, fence, now
        if queued:
            attempt.move(AttemptEvent.ENQUEUE)
        if queued and not hedge:
            state.move(entry, TaskEvent.ENQUEUE)
        if not queued and beside:
            state.grant_lease(entry, attempt, now, observed=observed)
        elif not queued:
            state.start_lease(entry, now, observed=observed)
        view.backoff_s = 0.0
        commands += [replace(grant, beside=hedge and beside), *self._failures.send_stop(entry, now)]
        if queued:
            position = grant.position
            self._workers.update_position(entry, attempt, position, grant.start_s, now)
            leases, queued_leases = state.leases_at(view)
            view.others = (0 if position is None else max(0, position - queued_leases)) + (0 if leases else 1)
        else:
            view.others = 0
        state.refresh(view)
        return commands + self._workers.update_incarnation(view, fence.incarnation, now)

    def _unanswered(self, task: str, number: int) -> tuple[TaskEntry, Attempt] | None:
        """The attempt, if it still waits for its worker's answer. An answer may also come after the attempt is over."""
        entry = self._state.tasks.get(task)
        for attempt in entry.attempts() if entry is not None else ():
            if entry is not None and attempt.number == number and attempt.lease is None:
                return entry, attempt
        return None

    def conflict(self, task: str, number: int, conflict: Conflict, now: float) -> list[Command]:
        """Another scheduler was faster. Its worker's quote, which came with the answer, is used at once, and the task goes elsewhere."""
        unanswered = self._unanswered(task, number)
        if unanswered is None:
            return []
        entry, attempt = unanswered
        view = self._state.worker(attempt.worker)
        view.back_off(now, 0.2 + 0.3 * self._state.rng.random())
        commands = self._failures.attempt_refused(entry, attempt, TaskEvent.REFUSE, conflict.reason, "", now)
        self._workers.update_load(view, conflict.quote, now)
        return commands

    def deny(self, task: str, number: int, denied: Denied, now: float) -> list[Command]:
        """The worker does not take attempt `number` of the task."""
        unanswered = self._unanswered(task, number)
        if unanswered is None:
            return []
        entry, attempt = unanswered
        peer, reason = attempt.worker, denied.reason
        commands = self._failures.attempt_refused(
            entry, attempt, TaskEvent.REFUSE, reason, denied.detail, now
        )
        this_task = reason in (Reason.DOES_NOT_FIT, Reason.BAD_REQUEST)
        if reason is Reason.STALE_EPOCH:
            commands += self._failures.exclude(peer, entry.form.campaign, now)
        elif this_task or (reason is Reason.NOT_ALLOWED and denied.unmet):
            group = self._state.groups[entry.group]
            group.fits.discard(peer)
            group.declined[peer] = denied
        else:
            self._workers.refuse(peer, denied, now)
        return commands

    def fail_commit(self, task: str, number: int, why: str, now: float, *, sent: bool) -> list[Command]:
        """A commit got no answer. `sent`: it may have arrived, so the attempt is lost; otherwise nothing has happened."""
        unanswered = self._unanswered(task, number)
        if unanswered is None:
            return []
        entry, attempt = unanswered
        view = self._state.worker(attempt.worker)
        commands: list[Command] = []
        if sent:
            commands = self._failures.count_failure(view, "not answering", now, silent=True)
        event = TaskEvent.LOSE if sent else TaskEvent.REFUSE
        return commands + self._failures.attempt_refused(
            entry, attempt, event, Reason.LOST, why, now, goes_on=sent
        )

    # -- runs ---------------------------------------------------------------------------------------------------------------------------

    def start(self, peer: str, lease: str, fence: Fence, now: float) -> tuple[str | None, list[Command]]:
        """A queued lease is ready to run: gives the task to start, or None to skip it. Carry out the commands before answering.

        A skipped queued lease is over. A late or repeated request says nothing about the run that it started.
        """
        held = self._state.by_lease(peer, lease, fence)
        if held is None:
            return None, []
        entry, attempt = held
        if entry.outcome is not None:
            return None, [] if entry.runs(attempt) else self._failures.confirm_stop(peer, (lease,), now)
        commands: list[Command] = []
        if entry.state is TaskState.QUEUED:
            if attempt is entry.hedge:
                commands += self._hedging.prefer(entry)
            else:
                commands += self._hedging.release(entry, "it starts on the other worker")
            self._state.start_lease(entry, now)
        elif attempt.status is AttemptStatus.QUEUED:  # the hedge beside a run
            self._state.grant_lease(entry, attempt, now)
        return entry.id, commands

    def progress(self, peer: str, report: Progress, now: float) -> LiveAttempt | None:
        """A run reported progress. Returns what to show of its task; None if the run is no longer ours, or is a hedge."""
        held = self._state.by_lease(peer, report.lease, report.fence)
        if held is None:
            return None
        entry, attempt = held
        if entry.state is TaskState.QUEUED and entry.hedge is not None:
            return None  # no start was sent for a hedged task: do not believe the report
        attempt.advance(report.phase, report.done, now)
        if attempt is entry.hedge:  # the task shows its current attempt only
            if entry.runs(attempt):
                self._move_on(entry, attempt, report.phase, now)
            return None
        if (
            entry.state is TaskState.QUEUED
        ):  # the start was sent, and the scheduler restarted before it was stored
            self._state.start_lease(entry, now, observed=False)
        self._state.move(entry, TaskEvent.PROGRESS)
        self._move_on(entry, attempt, report.phase, now)
        if now - attempt.yields_at > YIELD_S:
            attempt.yields_to = None
        yields = attempt.yields_to
        note = report.note or ("" if yields is None else f"gives way to a task of priority {yields}")
        return LiveAttempt(
            entry.id, attempt.number, report.phase, report.done, report.total, report.median_ms, note
        )

    def _move_on(self, entry: TaskEntry, attempt: Attempt, phase: Phase, now: float) -> None:
        waited = attempt.status is AttemptStatus.WAITING
        attempt.move(AttemptEvent.WAIT if phase is Phase.QUEUED else AttemptEvent.PROGRESS)
        if waited and attempt.status is AttemptStatus.RUNNING:
            attempt.since = now
            attempt.started_at = None if attempt.started_at is None else now
        waits = phase is Phase.QUEUED and attempt.status is AttemptStatus.RUNNING
        entry.note_wait(attempt, waits=waits, now=now)
        self._state.watch(entry)

    def warn(self, peer: str, lease: str, fence: Fence, priority: int, now: float) -> list[Command]:
        """A worker announces that a run will be preempted by a task of this priority."""
        held = self._state.by_lease(peer, lease, fence)
        if held is None or held[0].worker != peer:
            return []
        entry, attempt = held
        if attempt.yields_to == priority or attempt.warnings >= MAX_WARNINGS:
            return []
        attempt.yields_to, attempt.yields_at, attempt.warnings = priority, now, attempt.warnings + 1
        fields: dict[str, str | int | float] = {
            "attempt": entry.attempt,
            "device": self._state.device(peer),
            "priority": priority,
        }
        return [RecordEvent((entry.form.campaign,), "task.yields", fields, entry.id)]

    # -- after a link came up -----------------------------------------------------------------------------------------------------------

    def reconcile(
        self,
        peer: str,
        campaign: str,
        incarnation: int,
        leases: Sequence[LiveLease],
        now: float,
        *,
        expected: frozenset[str],
    ) -> list[Command]:
        """Compare what a worker holds of a campaign with the state: leases known to both go on, the rest are lost or cancelled.

        `expected`: the leases known when the question was sent. Leases granted since may be missing from the answer.
        """
        state, view = self._state, self._state.worker(peer)
        reported = {lease.lease: lease for lease in leases}
        by_attempt = {(lease.task, lease.attempt): lease for lease in leases}  # the last one wins
        commands: list[Command] = []
        for entry, attempt in state.held_at(peer):
            if entry.form.campaign != campaign:
                continue
            same = by_attempt.get((entry.id, attempt.number))  # another scheduler may have restarted it
            lease = same if attempt.lease is None else reported.get(attempt.lease)
            if lease is not None and (lease.task, lease.attempt) == (entry.id, attempt.number):
                reported.pop(lease.lease, None)
                commands += self._carry_on(entry, attempt, lease, now)
            elif attempt.lease in expected:
                words = f"{state.device(peer)} no longer has it"
                commands += self._failures.count_return(entry, attempt, now)
                commands += self._failures.lose_attempt(entry, attempt, Reason.LOST, words, now)
            elif attempt.status is AttemptStatus.RESTORED:  # the commit never reached the worker
                args = (TaskEvent.REFUSE, Reason.LOST, "never asked", now)
                commands += self._failures.attempt_refused(entry, attempt, *args)
        run = state.campaigns.get(campaign)
        epoch = None if run is None else run.limits.epoch
        orphans = tuple(
            HeldLease(lease=lease.lease, fence=lease.fence, epoch=epoch)
            for lease in reported.values()
            if not lease.reporting and not lease.settled
        )
        if orphans:
            commands.append(CancelOn(peer, orphans, Reason.FENCED))
        view.incarnation = max(incarnation, view.incarnation or 0)
        return commands

    def misses_results(self, peer: str, leases: Iterable[LiveLease]) -> bool:
        """Whether another scheduler took results that this one waits for. It adopted the campaign, so this one must request them again."""
        live = {(entry.id, attempt.number) for entry, attempt in self._state.held_at(peer)}
        return any(lease.settled and (lease.task, lease.attempt) in live for lease in leases)

    def _carry_on(self, entry: TaskEntry, attempt: Attempt, lease: LiveLease, now: float) -> list[Command]:
        if attempt.lease is None:
            attempt.found = True
            grant = RecordGrant(entry.id, attempt.number, lease.lease, lease.fence, lease.queued)
            return self.grant(attempt.worker, grant, now, observed=False)
        if lease.phase is not None and not lease.queued:
            attempt.advance(lease.phase, lease.done, now)  # the run's own reports may have been lost
        commands: list[Command] = []
        owes = (lease.settled or lease.reporting) and not lease.queued  # a worker may claim both
        if attempt.status is AttemptStatus.RESTORED and not owes and self._meets_replica(entry, attempt):
            held = HeldLease(lease=lease.lease, fence=lease.fence, epoch=entry.epoch)
            words = f"another replica is on {self._state.device(attempt.worker)}, or on a device of its owner"
            commands += self._failures.lose_attempt(entry, attempt, Reason.LOST, words, now)
            return [*commands, CancelOn(attempt.worker, (held,), Reason.CANCELLED)]
        if attempt is entry.hedge and entry.state in LEASED_TASK_STATES:
            return self._carry_on_beside(entry, attempt, lease, now, owes=owes)
        if attempt is entry.hedge:
            if lease.queued:
                attempt.move(AttemptEvent.ENQUEUE)
                return []
            commands += self._hedging.prefer(entry)  # it runs there
        if entry.state is TaskState.QUEUED and not lease.queued:
            commands += self._hedging.release(entry, "it is already running")
            self._state.start_lease(entry, now, observed=False)
            commands.append(self._found_running(entry, attempt, lease))
        if owes:
            attempt.move(AttemptEvent.REPORT)
        elif not lease.queued:
            attempt.move(AttemptEvent.CONFIRM)
        else:
            attempt.move(AttemptEvent.ENQUEUE if entry.state is TaskState.QUEUED else AttemptEvent.GRANT)
        self._set_due(attempt, now)
        if not lease.queued and (owes or lease.phase is not None):
            self._state.move(entry, TaskEvent.PROGRESS)
        self._state.watch(entry)
        return commands + self._failures.send_stop(entry, now)

    def _meets_replica(self, entry: TaskEntry, attempt: Attempt) -> bool:
        """Whether a run found at a worker is where another replica continues. The campaign's former scheduler had cancelled one of the two,
        and this scheduler could not know.
        """
        state = self._state
        taken, group = state.keys_of_replicas(entry, known_to_run=True), state.groups[entry.group]
        return not taken.isdisjoint(state.exclusive_keys(group, state.worker(attempt.worker)))

    def _carry_on_beside(
        self, entry: TaskEntry, attempt: Attempt, lease: LiveLease, now: float, *, owes: bool
    ) -> list[Command]:
        """The hedge beside a run goes on."""
        if lease.queued and attempt.status in (AttemptStatus.QUEUED, AttemptStatus.RESTORED):
            attempt.move(AttemptEvent.ENQUEUE)
            return []
        commands: list[Command] = []
        if attempt.status in (AttemptStatus.QUEUED, AttemptStatus.RESTORED):
            commands.append(self._found_running(entry, attempt, lease, beside=True))
        if attempt.status is AttemptStatus.QUEUED:
            self._state.grant_lease(entry, attempt, now, observed=False)
        attempt.move(AttemptEvent.REPORT if owes else AttemptEvent.CONFIRM)
        self._set_due(attempt, now)
        self._state.watch(entry)
        return commands

    @staticmethod
    def _found_running(
        entry: TaskEntry, attempt: Attempt, lease: LiveLease, *, beside: bool = False
    ) -> RecordGrant:
        """A grant for the store, which may have the lease as queued: a former process started this run. A later request is a hedge beside
        it.
        """
        return RecordGrant(entry.id, attempt.number, lease.lease, lease.fence, queued=False, beside=beside)

    @staticmethod
    def _set_due(attempt: Attempt, now: float) -> None:
        """Set, once for each attempt, when its result has to arrive if its worker says that it is sending one."""
        reporting = attempt.status is AttemptStatus.REPORTING
        attempt.due = (attempt.due or now + OWED_S) if reporting else None
