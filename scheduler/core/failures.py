"""How attempts end: verdicts on records, lost leases, cancels and stops, campaigns that another scheduler leads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from protocol.messages.work import Denied, HeldLease
from protocol.values.attempt import AttemptStatus, TaskEvent, TaskState
from protocol.values.lease import MAX_PREEMPTIONS
from protocol.values.record import Record
from protocol.words import Reason, RunOutcome
from scheduler.core.commands import (
    CancelOn,
    Command,
    EndAttempt,
    EndPending,
    RecordEvent,
    SetAside,
    Unconfirmed,
)
from scheduler.core.entries import (
    LEASED_TASK_STATES,
    LIMIT_REASONS,
    Attempt,
    CampaignRun,
    PendingOutcome,
    TaskEntry,
)
from scheduler.core.hedging import Hedging
from scheduler.core.ranking import QUICK_S, WorkerView
from scheduler.core.run_times import LEAST_S
from scheduler.core.state import State
from scheduler.core.stops import OWED_S, OwedStop
from scheduler.core.words import ELSEWHERE

MAX_ATTEMPTS: Final = 990
"""Attempts are numbered up to 1,000 on the wire; refusals use up numbers, but no tries."""
_BLAMELESS: Final = (*LIMIT_REASONS, Reason.CANCELLED, Reason.PREEMPTED)
_DEVICES: Final = (Reason.WRONG_UNIT, Reason.CHECK_FAILED, Reason.NOT_WITNESSED, Reason.WRONG_OUTPUTS)
"""Reasons that lie with the device: another device may succeed."""
PORTION: Final = 200
"""Most pending tasks ended in one step and one transaction."""
MAX_RETURNED: Final = 3
"""A worker that queued and dropped a task this many times counts as one that has tried it."""
RETURNED_S: Final = 0.5
"""Least number of seconds for which such a worker is not asked."""
RETURNED: Final = "queueing tasks and dropping them"
MISMATCH: Final = "outputs that differ from the reference where another device's agree"
HELD: Final = "holding tasks past their deadline"


class Failures:
    def __init__(self, state: State, hedging: Hedging) -> None:
        self._state = state
        self._hedging = hedging

    # -- results ------------------------------------------------------------------------------------------------------------------------

    def judge(
        self, record: Record, rejection: tuple[Reason, str] | None = None
    ) -> tuple[TaskEvent, Reason | None, str]:
        """What a verified record does to its task; `settle` applies it, once the record is stored.

        `rejection`: why a complete record does not measure what was asked for.
        """
        entry = self._state.tasks[record.task]
        event, reason, detail = self._judge(entry, record, rejection)
        failed = event in (TaskEvent.FAIL, TaskEvent.RETRY) and entry.outcome is None
        if failed and self._costs_no_try(entry, record.worker):
            return TaskEvent.DISCOUNT, reason, detail
        return event, reason, detail

    def _costs_no_try(self, entry: TaskEntry, peer: str) -> bool:
        """Whether a stranger failed or lost the task while a trusted worker could still try. Otherwise a few liars could end a task that
        the submitter's own devices can run.
        """
        state = self._state
        stranger = state.trust_in(state.groups[entry.group], peer).stranger
        return stranger and state.trusted_may_try(entry)

    def _judge(
        self, entry: TaskEntry, record: Record, rejection: tuple[Reason, str] | None
    ) -> tuple[TaskEvent, Reason | None, str]:
        attempt = entry.at(record.worker)
        reason, detail = rejection or (record.reason or Reason.CRASHED, record.detail)
        if record.outcome is RunOutcome.COMPLETE and rejection is None:
            return TaskEvent.SUCCEED, None, ""
        if record.outcome is RunOutcome.CANCELLED:
            if entry.outcome is not None:
                return entry.outcome.event, entry.outcome.reason, entry.outcome.detail
            if record.reason is Reason.PREEMPTED and _may_yield(entry):
                return TaskEvent.PREEMPT, Reason.PREEMPTED, self._preempted(entry)
            reason = record.reason or Reason.LOST
            if attempt is not None and attempt.status is AttemptStatus.STOPPING:
                reason = Reason.TIMED_OUT if entry.state is TaskState.RUNNING else Reason.LOST
        elif reason in _DEVICES or record.permanent:
            agreed = reason not in _DEVICES and self._agreed(entry, record.worker)
            if agreed or not self._hope_elsewhere(entry, record.worker):
                return TaskEvent.FAIL, reason, detail
        if entry.outcome is not None and record.outcome is not RunOutcome.CANCELLED:
            return entry.outcome.event, entry.outcome.reason, entry.outcome.detail
        return self.after_failure(entry, record.worker, reason, detail)

    def _agreed(self, entry: TaskEntry, peer: str) -> bool:
        """Whether another device also reports that the model can run nowhere, and none has run it: a single device may itself be at
        fault.
        """
        evidence = self._state.evidence(entry)
        return not evidence.good and bool(evidence.broken - {self._state.device_of(self._state.worker(peer))})

    def _hope_elsewhere(self, entry: TaskEntry, peer: str) -> bool:
        """Whether another device may succeed."""
        doubted = {self._state.device_of(self._state.worker(other)) for other in entry.doubted | {peer}}
        views = (self._state.worker(other) for other in self._state.groups[entry.group].fits)
        return any(view.could_run() and self._state.device_of(view) not in doubted for view in views)

    def _preempted(self, entry: TaskEntry) -> str:
        priority = None if entry.current is None else entry.current.yields_to
        for_whom = "" if priority is None else f" of priority {priority}"
        return f"{self._state.device(entry.worker or '')} needed its slot for a task{for_whom}"

    def after_failure(
        self, entry: TaskEntry, peer: str, reason: Reason, detail: str
    ) -> tuple[TaskEvent, Reason, str]:
        """Whether a task that failed at `peer` is tried again."""
        tries = entry.tries + 1
        fits = self._state.groups[entry.group].fits
        others = any(each != peer and self._state.worker(each).could_run() for each in fits)
        if reason in LIMIT_REASONS and (len(entry.limits | {peer}) >= 2 or not others):
            return TaskEvent.FAIL, reason, detail
        if tries >= self._state.campaign_of(entry).limits.attempts or entry.last >= MAX_ATTEMPTS:
            return TaskEvent.FAIL, reason, detail if tries < 2 else f"attempt {tries} of {tries}: {detail}"
        return TaskEvent.RETRY, reason, detail

    def settle(
        self,
        task: str,
        event: TaskEvent,
        reason: Reason | None,
        now: float,
        *,
        permanent: bool = False,
        agrees: bool | None = None,
    ) -> list[Command]:
        """The current attempt's result is stored: apply the judged event to the task. `permanent`: the worker blames the model. `agrees`:
        whether the worker's outputs agree with the reference.
        """
        state = self._state
        entry = state.tasks[task]
        commands = self._hedging.release(entry, "its result is there")
        attempt = entry.current
        if attempt is not None:
            view = state.worker(attempt.worker)
            if event is TaskEvent.SUCCEED:
                if attempt.started_at is not None:
                    view.add_duration(now - attempt.started_at)
                    state.run_times.add(entry.form, view.peer, now - attempt.started_at)
                if agrees is not False:
                    view.forget_failures(entry.model_key)
                view.warm.update(model.sha256 for model in entry.form.files())
                state.evidence(entry).good = True
                commands += self._compare_outputs(entry, view, agrees, now)
            else:
                commands += self._hold_against(entry, attempt, event, reason, now, permanent=permanent)
        state.end_attempt(entry, event, reason, now)
        return commands + state.end_if_done(state.campaign_of(entry))

    def _compare_outputs(
        self, entry: TaskEntry, view: WorkerView, agrees: bool | None, now: float
    ) -> list[Command]:
        """Outputs that differ from the reference count against a worker only where another device's agree; otherwise the model may be the
        cause.
        """
        state = self._state
        if agrees is None or state.trust_in(state.groups[entry.group], view.peer).stranger:
            return []
        evidence, device = state.evidence(entry), state.device_of(view)
        if agrees:
            evidence.agreed.add(device)
            against = [peer for other, peer in evidence.mismatched.items() if other != device]
            evidence.mismatched.clear()
        elif evidence.agreed - {device}:
            against = [view.peer]
        else:
            evidence.mismatched[device] = view.peer
            return []
        return [each for peer in against for each in self.count_failure(state.worker(peer), MISMATCH, now)]

    def promote_decisive_attempt(self, entry: TaskEntry, attempt: Attempt, now: float) -> list[Command]:
        """One of two attempts has a decisive result: it becomes the current one, and the other is over."""
        other = entry.current if attempt is entry.hedge else entry.hedge
        if other is None:
            return []
        commands = self.count_hold(entry, other, now)
        if attempt is entry.hedge:
            return commands + self._hedging.prefer(entry)
        return commands + self._hedging.release(entry, "its result is there")

    def end_one_of_two(
        self,
        entry: TaskEntry,
        attempt: Attempt,
        event: TaskEvent,
        reason: Reason | None,
        detail: str,
        now: float,
        *,
        permanent: bool = False,
    ) -> list[Command]:
        """One of two attempts ended without a decisive result: the task goes on with the other and loses no try."""
        commands = self._hold_against(entry, attempt, event, reason, now, permanent=permanent)
        if reason in LIMIT_REASONS:
            entry.limits |= {attempt.worker}
        end = TaskEvent.RETRY if event is TaskEvent.FAIL else event
        return commands + self._hedging.end(entry, attempt, end, reason, detail)

    def give_up_one(self, entry: TaskEntry, attempt: Attempt, words: str, now: float) -> list[Command]:
        """One of two attempts takes too long: stop it, and let the task go on with the other."""
        commands = self.count_hold(entry, attempt, now)
        stop = self._hedging.stop(entry, attempt)
        return [*commands, *self._hedging.end(entry, attempt, TaskEvent.CANCEL, None, words), *stop]

    def count_hold(self, entry: TaskEntry, attempt: Attempt, now: float) -> list[Command]:
        """A worker held a task past its deadline and another attempt replaced it. This counts as a failure, and double if its run reported
        nothing for longer than it takes to notice a dead link.
        """
        if not entry.runs(attempt) or now < self._state.deadline(entry, attempt):
            return []
        entry.tried |= {attempt.worker}
        view = self._state.worker(attempt.worker)
        silent = attempt.advanced_at is None and now >= attempt.since + LEAST_S
        return self.count_failure(view, HELD, now, double=silent)

    def _hold_against(
        self,
        entry: TaskEntry,
        attempt: Attempt,
        event: TaskEvent,
        reason: Reason | None,
        now: float,
        *,
        permanent: bool,
    ) -> list[Command]:
        """Count a failed run against its worker."""
        view, commands = self._state.worker(attempt.worker), list[Command]()
        if event is TaskEvent.DISCOUNT:  # a stranger's word on the model is no evidence
            entry.doubted |= {view.peer}
            return self._blame(entry, attempt, reason, now)
        if event not in (TaskEvent.RETRY, TaskEvent.FAIL) or entry.outcome is not None:
            return []
        if self._is_its_fault(entry, view, reason, permanent=permanent):
            commands = self._blame(entry, attempt, reason, now, permanent=permanent)
        if permanent or reason in _DEVICES:
            entry.doubted |= {view.peer}
        return commands

    def _is_its_fault(
        self, entry: TaskEntry, view: WorkerView, reason: Reason | None, *, permanent: bool
    ) -> bool:
        """Whether a failure counts against the worker. A failure that blames the model counts once for each model, every time once another
        device has run the model, and not once another device reports the same. A failure that blames the model or lies with the device does
        not count if no other device could do better, since setting this worker aside would gain nothing.
        """
        if not permanent and reason not in _DEVICES:
            return True
        hope = self._hope_elsewhere(entry, view.peer)
        if reason in _DEVICES:
            return hope
        evidence = self._state.evidence(entry)
        first = self._state.device_of(view) not in evidence.broken
        evidence.broken.add(self._state.device_of(view))
        return hope and not self._agreed(entry, view.peer) and (first or evidence.good)

    def _blame(
        self,
        entry: TaskEntry,
        attempt: Attempt,
        reason: Reason | None,
        now: float,
        *,
        permanent: bool = False,
    ) -> list[Command]:
        """Count a quick failure: against the worker if the worker is to blame; otherwise against the model at this worker, and the first
        one of each model against the worker too.
        """
        if reason in _BLAMELESS or now - attempt.since > QUICK_S:
            return []
        state, view, model = self._state, self._state.worker(attempt.worker), entry.model_key
        words = f"quick failures, the last one {reason}"
        if reason is Reason.BAD_REQUEST:
            return self.count_failure(view, words, now)
        if reason in _DEVICES or permanent:
            return (
                self.count_failure(view, words, now)
                if state.another_worker_available(entry, view.peer)
                else []
            )
        first = view.add_model_failure(model, now)
        if not state.another_worker_available(entry, view.peer):
            return []
        if first and (commands := self.count_failure(view, words, now)):
            return commands
        seconds = view.set_model_aside(model, now)
        if seconds is None:
            return []
        fields: dict[str, str | int | float] = {
            "peer": view.peer,
            "device": view.device,
            "model": entry.form.model.name,
            "unit": entry.form.unit,
            "seconds": seconds,
            "why": words,
        }
        return [RecordEvent((entry.form.campaign,), "model.set-aside", fields)]

    def count_failure(
        self,
        view: WorkerView,
        what: str,
        now: float,
        *,
        silent: bool = False,
        once: bool = False,
        double: bool = False,
    ) -> list[Command]:
        """Count a failure against the worker; see `WorkerView.add_failure`."""
        seconds = view.add_failure(now, what, silent=silent, once=once, double=double)
        if seconds is None:
            return []
        return [SetAside(view.peer, view.device, seconds, view.why_aside, self._state.users_of(view.peer))]

    # -- losses -------------------------------------------------------------------------------------------------------------------------

    def lose_leases(
        self, peer: str, leases: Iterable[str], reason: Reason, now: float, detail: str = ""
    ) -> list[Command]:
        """These leases, granted or queued, ended without a result."""
        gone, detail = set(leases), detail or f"{self._state.device(peer)}: {reason}"
        commands: list[Command] = []
        for entry, attempt in self._state.held_at(peer):
            if attempt.lease in gone:
                commands += self.count_return(entry, attempt, now)
                commands += self.lose_attempt(entry, attempt, reason, detail, now)
        return commands

    def count_return(self, entry: TaskEntry, attempt: Attempt, now: float) -> list[Command]:
        """A worker queued a task and dropped it. This costs no try, so it is counted against the worker: otherwise the worker could keep
        the task indefinitely and drive up the attempt numbers.
        """
        if (
            entry.state is not TaskState.QUEUED
            or attempt.status is AttemptStatus.RESTORED
            or entry.outcome is not None
        ):
            return []
        peer = attempt.worker
        entry.returned = {**entry.returned, peer: entry.returned.get(peer, 0) + 1}
        if entry.returned[peer] >= MAX_RETURNED:
            entry.tried |= {peer}
            backoff_s = self._state.campaign_of(entry).limits.backoff_s
            entry.not_before = max(entry.not_before, now + backoff_s)
        view = self._state.worker(peer)
        if now >= view.retry_at:
            view.back_off(now, RETURNED_S)
        return [] if now - attempt.since > QUICK_S else self.count_failure(view, RETURNED, now, once=True)

    def lose_all_at_worker(
        self, peer: str, detail: str, now: float, *, silent: bool = False, gone: bool = False
    ) -> list[Command]:
        """The worker was silent for a lease's time: everything it holds of ours is lost. `silent`: it accepts links and does not answer.
        `gone`: its process has ended, and its runs with it.
        """
        commands: list[Command] = []
        if silent:
            view = self._state.worker(peer)
            commands = self.count_failure(
                view, "not reporting on tasks that it had accepted", now, silent=True
            )
        for entry, attempt in self._state.held_at(peer):
            if attempt.status is not AttemptStatus.ASKED:  # a commit in flight has its own deadline
                commands += self.lose_attempt(entry, attempt, Reason.LOST, detail, now, goes_on=not gone)
        return commands

    def lose_attempt(
        self,
        entry: TaskEntry,
        attempt: Attempt,
        reason: Reason,
        detail: str,
        now: float,
        *,
        goes_on: bool = False,
    ) -> list[Command]:
        """This attempt is lost. `goes_on`: its run may continue."""
        commands: list[Command] = []
        if reason is Reason.BAD_REQUEST and entry.counts(attempt):  # it sent something other than a result
            commands = self._blame(entry, attempt, reason, now)
        event = TaskEvent.LOSE
        if attempt is entry.hedge:
            end = event if entry.runs(attempt) else TaskEvent.REFUSE
            return commands + self._hedging.end(entry, attempt, end, reason, detail)
        blameless = reason in (Reason.STALE_EPOCH, Reason.NOT_TRUSTED)
        waited = entry.state is TaskState.QUEUED or attempt.status is AttemptStatus.WAITING
        if waited or attempt.inherited or blameless:
            event = TaskEvent.REFUSE  # nothing ran, it was never requested, or it is not requested again
        elif reason is Reason.PREEMPTED and entry.state in LEASED_TASK_STATES and _may_yield(entry):
            event, detail = TaskEvent.PREEMPT, self._preempted(entry)
        return commands + self._end_current(entry, event, reason, detail, now, goes_on=goes_on)

    def end_untrusted(self, peer: str, now: float) -> list[Command]:
        """End what a worker holds of campaigns that no longer admit it. A result that it still sends for them is stale."""
        state = self._state
        commands: list[Command] = []
        for entry, attempt in state.held_at(peer):
            if attempt.stranger or state.admits(state.groups[entry.group], peer):
                continue
            held = attempt.held(entry.epoch)
            words = f"{state.device(peer)} is not trusted any more"
            commands += self.lose_attempt(entry, attempt, Reason.NOT_TRUSTED, words, now)
            if held is not None:
                commands.append(CancelOn(peer, (held,), Reason.CANCELLED))
        return commands

    def attempt_refused(
        self,
        entry: TaskEntry,
        attempt: Attempt,
        event: TaskEvent,
        reason: Reason,
        detail: str,
        now: float,
        *,
        goes_on: bool = False,
    ) -> list[Command]:
        """The worker did not take this attempt, or did not answer (`goes_on`: it may run there)."""
        if attempt is entry.hedge:
            return self._hedging.drop(entry, reason, detail)
        return self._end_current(entry, event, reason, detail, now, goes_on=goes_on)

    def _end_current(
        self,
        entry: TaskEntry,
        event: TaskEvent,
        reason: Reason,
        detail: str,
        now: float,
        *,
        goes_on: bool = False,
    ) -> list[Command]:
        """The current attempt ended without a record. The hedge, if any, takes its place; otherwise a pending outcome is applied, and a
        task without tries left fails.
        """
        if entry.hedge is not None and entry.current is not None:
            end = TaskEvent.LOSE if event is TaskEvent.LOSE else TaskEvent.REFUSE
            return self._hedging.end(entry, entry.current, end, reason, detail)
        stop = None
        if entry.outcome is not None:
            stop = self._owe_stop(entry, now) if goes_on else None
            event, reason, detail = entry.outcome.event, entry.outcome.reason, entry.outcome.detail
        elif event is TaskEvent.LOSE and entry.worker is not None and self._costs_no_try(entry, entry.worker):
            event = TaskEvent.DISCOUNT
        elif event is TaskEvent.LOSE and entry.worker is not None:
            verdict, reason, detail = self.after_failure(entry, entry.worker, reason, detail)
            event = TaskEvent.FAIL if verdict is TaskEvent.FAIL else event
        elif entry.last >= MAX_ATTEMPTS:
            event, reason, detail = TaskEvent.FAIL, Reason.GAVE_UP, f"refused too often, last: {detail}"
        return self._end(entry, event, reason, detail, now, stop)

    def _owe_stop(self, entry: TaskEntry, now: float) -> Unconfirmed | None:
        """The stop owed when a task is over and its worker has not confirmed the end of the run. A queued lease runs nothing, except one
        known from an earlier process, which may have started it.
        """
        attempt = entry.current
        if attempt is None:
            return None
        queued_lease = attempt.lease is not None and not entry.runs(attempt)
        if queued_lease and attempt.status is not AttemptStatus.RESTORED:
            return None
        since = now if attempt.stop_at is None else attempt.stop_at
        held = attempt.held(entry.epoch)
        stop = OwedStop(entry.id, attempt.number, attempt.worker, held, since + OWED_S)
        return self._state.stops.add(stop, since, now)

    def _end(
        self,
        entry: TaskEntry,
        event: TaskEvent,
        reason: Reason,
        detail: str,
        now: float,
        stop: Unconfirmed | None = None,
    ) -> list[Command]:
        command = EndAttempt(entry.id, entry.attempt, event, reason, detail, stop)
        self._state.end_attempt(entry, event, reason, now)
        return [command, *self._state.end_if_done(self._state.campaign_of(entry))]

    # -- cancels and stops --------------------------------------------------------------------------------------------------------------

    def end_tasks(self, tasks: Iterable[str], outcome: PendingOutcome, now: float) -> list[Command]:
        """End these tasks: pending ones in portions (`end_portion`), the others once their workers have let go of them."""
        state = self._state
        stops: dict[str, list[HeldLease]] = {}
        commands: list[Command] = []
        for task in tasks:
            entry = state.tasks.get(task)
            if entry is None or entry.over or entry.outcome is not None:
                continue
            if entry.state is TaskState.PENDING:
                state.withdraw(entry, outcome)
                continue
            commands += self._hedging.release(entry, "the task is no longer needed")
            entry.outcome = outcome
            held = None if entry.current is None else entry.current.held(entry.epoch)
            if held is not None and entry.current is not None:
                entry.current.stop_at = entry.current.stop_sent_at = now
                state.watch(entry)
                stops.setdefault(entry.current.worker, []).append(held)
        return commands + [CancelOn(peer, tuple(held), outcome.reason) for peer, held in stops.items()]

    def end_portion(self, now: float) -> list[Command]:
        """End some of the withdrawn tasks. Working in portions lets everything else go on meanwhile, however many tasks there are."""
        state = self._state
        ends: dict[PendingOutcome, list[str]] = {}
        campaigns: dict[str, CampaignRun] = {}
        for task in state.take_withdrawn(PORTION):
            entry = state.tasks[task]
            assert entry.outcome is not None, "it was withdrawn with its outcome"
            ends.setdefault(entry.outcome, []).append(task)
            state.end_attempt(entry, entry.outcome.event, entry.outcome.reason, now)
            campaigns[entry.form.campaign] = state.campaign_of(entry)
        commands: list[Command] = [
            EndPending(tuple(tasks), outcome.event, outcome.reason, outcome.detail)
            for outcome, tasks in ends.items()
        ]
        for campaign in campaigns.values():
            commands += state.end_if_done(campaign)
        return commands

    def confirm_stop(self, peer: str, leases: Iterable[str], now: float) -> list[Command]:
        """The worker confirms that nothing runs under these leases any more."""
        gone, device = set(leases), self._state.device(peer)
        commands = self._state.stops.confirm(peer, gone)
        for entry, attempt in self._state.held_at(peer):
            if attempt.lease not in gone:
                continue
            if attempt is entry.hedge:
                commands += self._hedging.drop(entry, Reason.LOST, f"{device} gave back the queued task")
            else:
                commands += self.count_return(entry, attempt, now)
                commands += self.end_stopped(entry, attempt, f"{device} gave back the task", now)
        return commands

    def end_stopped(
        self, entry: TaskEntry, attempt: Attempt, detail: str, now: float, *, goes_on: bool = False
    ) -> list[Command]:
        """A run that was to be stopped is over, or the scheduler no longer waits for it (`goes_on`)."""
        stopping = attempt.status is AttemptStatus.STOPPING
        if not stopping or entry.outcome is not None or attempt.inherited:
            return self.lose_attempt(entry, attempt, Reason.LOST, detail, now, goes_on=goes_on)
        if entry.state is not TaskState.RUNNING:
            words = f"{self._state.device(attempt.worker)} took it and never started it"
            return self.lose_attempt(entry, attempt, Reason.LOST, words, now)
        words = f"it ran far beyond its limits and was {'asked to stop' if goes_on else 'stopped'}"
        words = f"{words}: {detail}" if goes_on else words
        return self._end(entry, *self.after_failure(entry, attempt.worker, Reason.TIMED_OUT, words), now)

    def send_stop(self, entry: TaskEntry, now: float) -> list[Command]:
        """Tell the worker to stop an unwanted run: once its lease is known, and again whenever a link comes up."""
        attempt = entry.current
        held = None if attempt is None else attempt.held(entry.epoch)
        if not entry.stopping or attempt is None or held is None:
            return []
        attempt.stop_at, attempt.stop_sent_at = now if attempt.stop_at is None else attempt.stop_at, now
        self._state.watch(entry)
        return [
            CancelOn(attempt.worker, (held,), entry.outcome.reason if entry.outcome else Reason.TIMED_OUT)
        ]

    # -- campaigns led elsewhere --------------------------------------------------------------------------------------------------------

    def end_superseded(self, campaign: str, now: float, words: str = ELSEWHERE) -> list[Command]:
        """Another scheduler provably leads this campaign. It ends here, and nothing is sent to any worker."""
        state = self._state
        run = state.campaigns.get(campaign)
        if run is None or run.done:
            return []
        commands: list[Command] = []
        run.detail = words
        for task in run.tasks:
            entry = state.tasks[task]
            if entry.over:
                continue
            commands += self._hedging.drop(entry, Reason.ADOPTED, words)
            if entry.state is TaskState.PENDING:
                state.withdraw(entry, PendingOutcome(TaskEvent.CANCEL, Reason.ADOPTED, words))
            else:
                commands.append(EndAttempt(task, entry.attempt, TaskEvent.CANCEL, Reason.ADOPTED, words))
                state.end_attempt(entry, TaskEvent.CANCEL, Reason.ADOPTED, now)
        return commands + state.end_if_done(run)

    def exclude(self, peer: str, campaign: str, now: float) -> list[Command]:
        """A worker claims without proof that another scheduler leads the campaign: the worker gets no more of it, and the campaign goes
        on.
        """
        state = self._state
        run = state.campaigns.get(campaign)
        if run is None or run.done:
            return []
        name = state.device(peer)
        words = f"{name} says that it is {ELSEWHERE}, without proof"
        fields: dict[str, str | int | float] = {"peer": peer, "device": name, "why": words}
        commands: list[Command] = [RecordEvent((campaign,), "worker.refused", fields)]
        for group in state.ranked:
            if group.campaign == campaign:
                group.fits.discard(peer)
                group.declined[peer] = Denied(reason=Reason.STALE_EPOCH, detail=words)
        for entry, attempt in state.held_at(peer):
            if entry.form.campaign == campaign:
                commands += self.lose_attempt(entry, attempt, Reason.STALE_EPOCH, words, now)
        return commands


def _may_yield(entry: TaskEntry) -> bool:
    """Whether a preemption costs no try. A worker that reports more of them than allowed has lost the task like any other."""
    return entry.preempted < MAX_PREEMPTIONS
