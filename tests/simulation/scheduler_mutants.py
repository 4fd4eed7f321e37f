"""Mistakes of the scheduler, built in on purpose: its core, its side of the conversation and its store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from protocol.messages.work import (
    Accepted,
    Commit,
    Conflict,
    Denied,
    Granted,
    LiveLease,
    Queued,
    Ready,
    Result,
)
from protocol.values.attempt import TASK, TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.wire.base import Message
from protocol.wire.table import final
from protocol.words import Reason
from results.row.witness import WitnessAccount
from scheduler.conversation.claims import Rival, RivalKind
from scheduler.conversation.conversation import SchedulerConversation
from scheduler.conversation.effects import CheckedRecord, LinkHandle, WaitFor
from scheduler.conversation.links import WorkerLink, WorkerLinks
from scheduler.conversation.witness import WitnessBook
from scheduler.core.allocator import Allocator
from scheduler.core.commands import CancelOn, Command, ReleaseOn
from scheduler.core.deadlines import Deadlines
from scheduler.core.entries import LEASED_TASK_STATES, Attempt, RequirementGroup, TaskEntry
from scheduler.core.failures import Failures
from scheduler.core.hedging import Hedging
from scheduler.core.ranking import WorkerView
from scheduler.core.reconciler import Reconciler
from scheduler.core.run_times import LEAST_S
from scheduler.core.scheduler import SchedulerCore
from scheduler.core.state import State
from scheduler.core.workers import Workers
from scheduler.store.rows import ResultReceipt
from tests.simulation.sim_scheduler import SimClaims
from tests.simulation.sim_store import Row, SimStore

# -- the scheduler's core -------------------------------------------------------------------------------------------------------


class EndlessRetries(Failures):
    def after_failure(
        self, entry: TaskEntry, peer: str, reason: Reason, detail: str
    ) -> tuple[TaskEvent, Reason, str]:
        entry.tries = 0
        return TaskEvent.RETRY, reason, detail


class RetriesForEver(SchedulerCore):
    """Always makes another attempt."""

    failures_type = EndlessRetries


class SameWorkers(Allocator):
    def candidates(
        self, entry: TaskEntry, group: RequirementGroup, serving: list[WorkerView], now: float
    ) -> list[WorkerView]:
        return [view for view in serving if view.peer in entry.tried] or serving


class GoesBack(SchedulerCore):
    """Sends a task back to the worker where it failed, even if other workers are free."""

    allocator_type = SameWorkers


class EitherTicket(Reconciler):
    def start(self, peer: str, lease: str, fence: Fence, now: float) -> tuple[str | None, list[Command]]:
        return next((e.id for e, attempt in self._state.held_at(peer) if attempt.lease == lease), None), []


class StartsTwice(SchedulerCore):
    """Starts both leases of a hedged task."""

    reconciler_type = EitherTicket


class SkippedIsStopped(Reconciler):
    def start(self, peer: str, lease: str, fence: Fence, now: float) -> tuple[str | None, list[Command]]:
        task, commands = super().start(peer, lease, fence, now)
        return task, commands if task else self._failures.confirm_stop(peer, (lease,), now)


class TakesASkipForAStop(SchedulerCore):
    """Takes a late or repeated request to start, which it skips, for a confirmed stop."""

    reconciler_type = SkippedIsStopped


class NothingLost(Failures):
    def lose_all_at_worker(
        self, peer: str, detail: str, now: float, *, silent: bool = False, gone: bool = False
    ) -> list[Command]:
        return []


class ForgetsTheLost(SchedulerCore):
    """Waits for the tasks of a silent worker."""

    failures_type = NothingLost


class NothingMissed(Reconciler):
    def misses_results(self, peer: str, leases: Iterable[LiveLease]) -> bool:
        return False


class ForgetsSettled(SchedulerCore):
    """Adopts without asking for the results that another scheduler took."""

    reconciler_type = NothingMissed


class ForgetsSiblings(SchedulerCore):
    """Places replicas wherever there is space."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.state.keys_of_replicas = lambda entry, **how: set()  # type: ignore[method-assign, misc]


class BlamingHedging(Hedging):
    def end(
        self, entry: TaskEntry, attempt: Attempt, event: TaskEvent, reason: Reason | None, detail: str
    ) -> list[Command]:
        entry.tries += event is not TaskEvent.REFUSE
        return super().end(entry, attempt, event, reason, detail)

    def prefer(self, entry: TaskEntry) -> list[Command]:
        entry.tries += entry.state in LEASED_TASK_STATES
        return super().prefer(entry)


class CountsTheOvertaken(SchedulerCore):
    """Counts a try although the attempt was only overtaken."""

    hedging_type = BlamingHedging


class LenientHedging(Hedging):
    @staticmethod
    def stop(entry: TaskEntry, attempt: Attempt) -> list[Command]:
        return []


class NeverStopsTheOvertaken(SchedulerCore):
    """Lets the losing attempt of two run on."""

    hedging_type = LenientHedging


class PatientState(State):
    def deadline(self, entry: TaskEntry, attempt: Attempt) -> float:
        since = super().deadline(entry, attempt)
        return since if attempt.advanced_at is None else max(since, attempt.advanced_at + LEAST_S)


class ExtendsForEver(SchedulerCore):
    """Lets a worker keep a task as long as it reports one step after the other."""

    state_type = PatientState


class NoDeadlines(Deadlines):
    def decide(self, now: float) -> list[Command]:
        return []


class NeverHedgesRuns(SchedulerCore):
    """Waits for a run until its limits have passed."""

    deadlines_type = NoDeadlines


class HastyState(State):
    def deadline(self, entry: TaskEntry, attempt: Attempt) -> float:
        return attempt.leased_at + 1.0


class HedgesAtOnce(SchedulerCore):
    """Hedges any run that takes longer than a moment."""

    state_type = HastyState


class Crowding(Deadlines):
    def _is_late(self, entry: TaskEntry, now: float) -> bool:
        current, asked = entry.current, any(attempt.lease is None for attempt in entry.attempts())
        if current is None or entry.stopping or asked or now < self._state.deadline(entry, current):
            return False
        entry.hedge = None  # and nobody has the hedge stopped
        return True


class ForgetsTheHedge(SchedulerCore):
    """Asks a third worker while two run the task."""

    deadlines_type = Crowding


# -- the scheduler's conversation -----------------------------------------------------------------------------------------------


class StoresLater(SchedulerConversation):
    """Sends first, and stores the intent, the grant or the end a moment later."""

    def carry_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self._send(command)
        self._shell.start(self._write(commands))

    async def _write(self, commands: Sequence[Command]) -> None:
        await WaitFor(lambda: False, self._shell.now() + 0.5)
        self._writer.write(commands)


class AcceptsEarly(SchedulerConversation):
    """Accepts a result before it is stored."""

    def settle(
        self,
        entry: TaskEntry,
        peer: str,
        result: Result,
        body: bytes,
        checked: CheckedRecord,
        account: WitnessAccount | None = None,
    ) -> Message:
        self._shell.start(self._settle(entry, peer, result, body, checked, account))
        return Accepted()

    async def _settle(self, entry: TaskEntry, peer: str, *rest: Any) -> None:
        await WaitFor(lambda: False, self._shell.now() + 0.2)
        super().settle(entry, peer, *rest)


class AnyFenceIsCurrent(SchedulerConversation):
    """Checks the attempt of a result, but neither its fence nor whether the task has ended."""

    @staticmethod
    def is_current(entry: TaskEntry, peer: str, result: Result) -> bool:
        return (entry.worker, entry.attempt) == (peer, result.attempt)


class AnyAttemptCounts(SchedulerConversation):
    """Also stores the result of an overtaken attempt."""

    def answer_old(self, peer: str, result: Result) -> Message:
        receipt = self._store.attempts.record_result(
            task=result.task,
            attempt=result.attempt,
            fence=result.fence,
            worker=peer,
            sha256=result.sha256,
            body=b"",
            signature=b"",
            event=TaskEvent.SUCCEED,
            reason=None,
            detail="",
            account=None,
            device_key=peer,
            figures={},
        )
        return Accepted() if receipt.stale is None else super().answer_old(peer, result)


class NeverReconcilesLinks(WorkerLinks):
    async def adopt(self, handle: LinkHandle, link: WorkerLink) -> bool:
        return await self.renew(handle, link)


class NeverReconciles(SchedulerConversation):
    """Renews over a link that came up again, without asking the worker what it holds."""

    links_type = NeverReconcilesLinks


class UnadoptedLinks(WorkerLinks):
    def adopt_at_worker(self, peer: str) -> None:
        self._keep_up(peer)


class RenewsUnadopted(SchedulerConversation):
    """Renews a campaign that another machine may have led, over an older link, without adopting it."""

    links_type = UnadoptedLinks


class PatientLinks(WorkerLinks):
    def give_up(
        self, peer: str, link: WorkerLink, now: float, what: str, *, silent: bool = False, gone: bool = False
    ) -> None:
        link.heard_at = now


class NeverGivesUp(SchedulerConversation):
    """Waits for a silent worker."""

    links_type = PatientLinks


class NewKeys(WorkerLinks):
    asked = 0

    async def ask_commit(self, handle: LinkHandle, message: Commit) -> Granted | Queued | Conflict | Denied:
        self.asked += 1
        return await super().ask_commit(
            handle, message.model_copy(update={"key": f"{message.key} {self.asked}"})
        )


class AsksUnderNewKeys(SchedulerConversation):
    """Repeats an unanswered commit under another key."""

    links_type = NewKeys


class OwesCommands(Reconciler):
    owed: tuple[Command, ...] = ()

    def start(self, peer: str, lease: str, fence: Fence, now: float) -> tuple[str | None, list[Command]]:
        task, commands = super().start(peer, lease, fence, now)
        self.owed = (*self.owed, *commands)
        return task, []


class OwingCore(SchedulerCore):
    reconciler_type = OwesCommands
    reconciler: OwesCommands


class StartsFirst(SchedulerConversation):
    """Sends Start, and stores a moment later that the other lease is over."""

    async def _ready(self, peer: str, message: Ready) -> Message:
        reply = await super()._ready(peer, message)
        self._shell.start(self._store_owed())
        return reply

    async def _store_owed(self) -> None:
        await WaitFor(lambda: False, self._shell.now() + 0.5)
        reconciler: Any = self.core.reconciler
        owed, reconciler.owed = reconciler.owed, ()
        self.carry_out(owed)


class NeverRenewing(WorkerLinks):
    async def renew(self, handle: LinkHandle, link: WorkerLink) -> bool:
        link.heard_at = self._shell.now()
        return True


class NeverRenews(SchedulerConversation):
    """Holds leases without renewing them."""

    links_type = NeverRenewing


class HearingLinks(WorkerLinks):
    async def renew(self, handle: LinkHandle, link: WorkerLink) -> bool:
        answered = await super().renew(handle, link)
        link.heard_at = self._shell.now()
        return answered


class HearsTheSilent(SchedulerConversation):
    """Counts a worker that does not answer as heard."""

    links_type = HearingLinks


class HastyLinks(WorkerLinks):
    async def stop(self, command: CancelOn | ReleaseOn) -> None:
        await super().stop(command)
        leases = tuple(held.lease for held in command.held)
        now = self._shell.now()
        self._carry_out(self._core.failures.confirm_stop(command.peer, leases, now))


class ConfirmsStops(SchedulerConversation):
    """Counts a stop as confirmed once it was asked for, answered or not."""

    links_type = HastyLinks


class HopefulWorkers(Workers):
    def mark_unreachable(self, peer: str, why: str, now: float) -> list[Command]:
        return []


class ForgetsFailedProbes(SchedulerCore):
    """Waits for a probe that has failed."""

    workers_type = HopefulWorkers


class Disbelief(SimClaims):
    def rival(self, campaign: str, peer: str, denied: Denied) -> Rival | None:
        return None


class Resignation(SimClaims):
    def rival(self, campaign: str, peer: str, denied: Denied) -> Rival | None:
        rival = super().rival(campaign, peer, denied)
        return None if rival is None else Rival(RivalKind.ADOPTER, rival.epoch)


class LeavesItsFormerSelfInCharge(SchedulerConversation):
    """After a restore, takes its own higher epochs for an adopter's."""

    def __init__(
        self, core: SchedulerCore, shell: Any, store: Any, source: Any, claims: Any, *rest: Any, **named: Any
    ) -> None:
        super().__init__(core, shell, store, source, claims.changed(Resignation), *rest, **named)


class StepsByOne(SchedulerConversation):
    """Two copies of a home lead under the same epoch."""

    def next_epoch(self, campaign: str, above: int) -> int:
        return self._store.campaigns.next_epoch(campaign, above=above, step=1)


class DisbelievesProofs(SchedulerConversation):
    """Does not believe the proof that another scheduler leads a campaign."""

    def __init__(
        self, core: SchedulerCore, shell: Any, store: Any, source: Any, claims: Any, *rest: Any, **named: Any
    ) -> None:
        super().__init__(
            core,
            shell,
            store,
            source,
            claims.changed(Disbelief),
            *rest,
            **named,
        )


class AcceptsOld(SchedulerConversation):
    """Accepts a result of an attempt that is not current, stored or not."""

    def answer_old(self, peer: str, result: Result) -> Message:
        return Accepted()


# -- the scheduler's store ------------------------------------------------------------------------------------------------------


class AnyFence(SimStore):
    """Accepts a record of the current attempt under any fence."""

    def current(self, row: Row, attempt: int, worker: str, fence: Fence) -> bool:
        return not final(TASK, row.state) and row.state is not TaskState.PENDING


class TakesAgain(SimStore):
    """Does not check whether the task has ended."""

    def record_result(self, *, task: str, **rest: Any) -> ResultReceipt:
        row = self.tasks[task]
        if final(TASK, row.state):
            row.state = TaskState.RUNNING
        return super().record_result(task=task, **rest)

    def current(self, row: Row, attempt: int, worker: str, fence: Fence) -> bool:
        return row.state is not TaskState.PENDING


class NoFlush(SimStore):
    """Loses the last writes in a crash."""

    def crashed(self) -> None:
        for one in reversed(self.attempts.values()):
            if one.sha256:
                one.sha256 = ""
                self.tasks[one.task].state = TaskState.RUNNING
                self.campaigns[self.tasks[one.task].campaign].ended = None
                return


class RecordsBoth(SimStore):
    """Stores the result of every granted attempt, current or not."""

    def current(self, row: Row, attempt: int, worker: str, fence: Fence) -> bool:
        known = self.attempts[row.id, attempt]
        return row.state is not TaskState.PENDING and (known.worker, known.fence) == (worker, fence)

    def record_result(self, *, task: str, **rest: Any) -> ResultReceipt:
        row = self.tasks[task]
        if row.state is TaskState.SUCCEEDED:
            row.state = TaskState.RUNNING
        return super().record_result(task=task, **rest)


class AcceptsInMemory(SimStore):
    """Puts a campaign on disk only when it is taken up."""

    def crashed(self) -> None:
        for folder in [folder for folder in self.campaigns.values() if not folder.epoch]:
            del self.campaigns[folder.id]
            for task in folder.tasks:
                del self.tasks[task]


# -- witnessed runs --------------------------------------------------------------------------------------------------------------


class RevealsAnew(WitnessBook):
    lives = 0

    def __init__(self, sign: Callable[[bytes], bytes]) -> None:
        RevealsAnew.lives += 1
        life = str(RevealsAnew.lives).encode()
        super().__init__(lambda message: sign(life + message))


class ForgetsWhatItRevealed(SchedulerConversation):
    """Reveals other inputs after a restart."""

    witness_type = RevealsAnew


class CountsFromTheRestart(WitnessBook):
    def account(self, task: str, attempt: int, *rest: Any, anothers: bool = False) -> WitnessAccount:
        run = self._run(task, attempt)
        run.begun_here = True
        run.since = run.result_at if run.since is None else run.since
        return super().account(task, attempt, *rest)


class WitnessesWhatItDidNotSee(SchedulerConversation):
    """Takes events from before a restart for witnessed."""

    witness_type = CountsFromTheRestart
