"""Known mistakes, built in on purpose. The campaign of runs is worth something if it finds every one of them.

Each is a subclass or a switch that is handed to the model; nothing is patched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from node.capacity.allocations import MAX_REMEMBERED, OCCUPIES, Allocation, KillCommand, SlotRequest
from node.capacity.epochs import CampaignLeaders
from node.capacity.ledger import Ledger
from node.capacity.queue import QueueRank
from node.capacity.slots import Slots
from node.conversation.commands import Flow, SchedulerLink, WriteRecord
from node.conversation.conversation import WorkerConversation
from node.conversation.outbox import Outbox, OutboxItem
from node.conversation.requests import RequestHandlers, WorkerContext
from protocol.messages.permission import CallPermission
from protocol.messages.work import (
    Accepted,
    Commit,
    Conflict,
    Denied,
    Granted,
    HeldLease,
    LiveLease,
    Queued,
    Ready,
    Renew,
    Renewed,
    Result,
    Stopped,
)
from protocol.values.attempt import TASK, TaskEvent, TaskState
from protocol.values.lease import Fence, LeaseState
from protocol.values.record import Record
from protocol.wire.base import Message
from protocol.wire.table import final
from protocol.words import Reason
from scheduler.conversation.conversation import SchedulerConversation
from scheduler.conversation.effects import CheckedRecord, LinkHandle, WaitFor
from scheduler.conversation.links import WorkerLink, WorkerLinks
from scheduler.core.allocator import Allocator
from scheduler.core.commands import CancelOn, Command, ReleaseOn
from scheduler.core.failures import Failures
from scheduler.core.ranking import WorkerView
from scheduler.core.reconciler import Reconciler
from scheduler.core.scheduler import SchedulerCore
from scheduler.core.state import RequirementGroup, TaskEntry
from scheduler.core.workers import Workers
from scheduler.store.rows import ResultReceipt
from tests.simulation.model import Mutant
from tests.simulation.sim_scheduler import SimClaims
from tests.simulation.sim_store import Row, SimStore

# -- the worker's ledger --------------------------------------------------------------------------------------------------------


class OneTooMany(Slots):
    """Grants one place more than there are."""

    @property
    def free(self) -> int:
        return self.count + 1 - self.number_in({LeaseState.GRANTED, LeaseState.RUNNING, LeaseState.OFFERED})

    def _stop_lapsed(self) -> None:
        """Nobody has to go."""


class OfferedIsFree(Slots):
    """A place that was offered counts as free until it is taken."""

    @property
    def free(self) -> int:
        return self.count - self.number_in({LeaseState.GRANTED, LeaseState.RUNNING})

    def _stop_lapsed(self) -> None:
        """Nobody has to go."""


class DeviceIsFree(Slots):
    """Begins the next run while the last one's processes are still dying."""

    def number_in(self, states: Collection[LeaseState]) -> int:
        return 0 if states == OCCUPIES else super().number_in(states)


def _with(slots: type[Slots]) -> type[Ledger]:
    class Changed(Ledger):
        def __init__(self, incarnation: int, *, slots: int = 1, **rest: Any) -> None:
            super().__init__(incarnation, slots=slots, **rest)
            self._slots = made(slots, self.condition, owner_first=False)

    made = slots
    return Changed


class ForgetsKeys(Ledger):
    """The same commit again is another one."""

    def commit(self, wanted: SlotRequest, now: float) -> Granted | Queued | Conflict | Denied:
        self._keys = type(self._keys)(1)
        return super().commit(wanted, now)


class NeverExpires(Ledger):
    """Places are not released when their scheduler is gone."""

    def expire(self, now: float) -> None:
        """Nothing is ever over."""

    def next_deadline(self) -> float | None:
        return None


class IgnoresCancel(Ledger):
    """Says that it stopped what goes on."""

    def stop(self, peer: str, held: Iterable[HeldLease], reason: Reason, now: float) -> tuple[str, ...]:
        return ()


class NeverTimed(Ledger):
    """Does not know that a run is being measured."""

    def timing(self, lease: str, timed: bool, now: float) -> None:
        place = self.allocation(lease)
        if place is not None:
            place.timed = False


class FencesRepeat(Ledger):
    """Numbers its leases from the beginning now and then."""

    def _enter(self, wanted: SlotRequest, state: LeaseState, now: float) -> Allocation:
        if self._number > 2 and not self.allocations():
            self._number = 0
        return super()._enter(wanted, state, now)


class HearsEverybody(CampaignLeaders):
    """Whoever speaks is the one."""

    def refuse(self, peer: str, principal: str, campaign: str, epoch: int) -> Denied | None:
        return None


class NoEpochCheck(Ledger):
    """Lower epochs are as good as higher ones."""

    def __init__(self, incarnation: int, **rest: Any) -> None:
        super().__init__(incarnation, **rest)
        self.leaders = HearsEverybody(MAX_REMEMBERED)

    def refusals(self, *asked: Any, **rest: Any) -> dict[str, Reason]:
        return {}


class NoQuota(Ledger):
    """Grants and queues as many leases as are asked for."""

    def commit(self, wanted: SlotRequest, now: float) -> Granted | Queued | Conflict | Denied:
        place = super().commit(replace(wanted, permission=replace(wanted.permission, slots=None)), now)
        for one in self.allocations():
            if one.request.permission.slots is None and one.request.commit.key == wanted.commit.key:
                one.request = wanted
        return place


class OwnerLast(Ledger):
    """Does not know its owner."""

    def commit(self, wanted: SlotRequest, now: float) -> Granted | Queued | Conflict | Denied:
        self._slots.queue.order = self._last  # type: ignore[method-assign]
        return super().commit(wanted, now)

    def _last(self, ranks: Iterable[QueueRank]) -> list[QueueRank]:
        return sorted(ranks, key=lambda rank: (rank.owner, rank.number))


# -- the worker's conversation --------------------------------------------------------------------------------------------------


class SendsToAnyLink(WorkerConversation):
    """Does not mind under which epoch a link has spoken."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.links.speaks_for = lambda link, about: True  # type: ignore[method-assign]


class StoppedTooSoon(WorkerConversation):
    """Says that runs are stopped while their processes die."""

    def _stop(self, *given: Any) -> Message | None:
        reply = super()._stop(*given)
        return reply if reply is not None else self._stopped_now()

    def _stopped_now(self) -> Message:
        message = self._stops.pop().message
        return Stopped(leases=tuple(item.lease for item in message.held))


class KillsNothing(WorkerConversation):
    """Does not carry out that a run is to end."""

    def carry_out(self) -> None:
        super().carry_out()
        commands = self.commands.take()
        for command in commands:
            if not isinstance(command, KillCommand):
                self.commands.emit(command)


class FreesTheSlotAtOnce(WorkerConversation):
    """A stopped run counts as over while its processes die."""

    def carry_out(self) -> None:
        super().carry_out()
        commands = self.commands.take()
        for command in commands:
            self.commands.emit(command)
        for command in commands:
            if isinstance(command, KillCommand):
                self.ledger.finish(command.lease, self._now())
                super().carry_out()


class SendsBeforeStoring(WorkerConversation):
    """A result goes out from memory, and to the disk later."""

    def _store(self, allocation: Allocation, record: Record) -> None:
        super()._store(allocation, record)
        *rest, write = self.commands.take()
        for command in rest:
            self.commands.emit(command)
        assert isinstance(write, WriteRecord)
        self.outbox.put_in_memory(write.item, write.body)
        self.delivery.outbox_changed()
        self.commands.emit(write)


class TakesSilenceForAnAnswer(WorkerConversation):
    """A lost acknowledgement settles the result."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        answered = self.delivery._answered
        self.delivery._answered = (  # type: ignore[method-assign]
            lambda link, item, reply: answered(link, item, reply or Accepted())
        )


class RenewsStaleEpochs(WorkerConversation):
    """Does not look under which epoch leases are renewed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.requests = _RenewsAnything(
            self._context, self.ledger, self.links, self.outbox, self.requests.phase
        )


class _RenewsAnything(RequestHandlers):
    def renew(self, link: SchedulerLink, permission: CallPermission, request: Renew) -> Renewed:
        return self.ledger.renew(link.peer, request.held, self.context.now())


class ForgetsResults(WorkerConversation):
    """Begins every life with an empty outbox."""

    def __init__(self, ledger: Ledger, outbox: Outbox, context: WorkerContext) -> None:
        super().__init__(ledger, Outbox(context.wall), context)


class KeepsResultsFromAdopters(WorkerConversation):
    """Who adopts a campaign is answered without getting its results."""

    def _redirect(self, item: OutboxItem) -> Flow[str]:
        yield from ()
        return ""

    def _stored(self, allocation: Allocation, item: OutboxItem, body: bytes) -> Flow[None]:
        return super()._stored(replace(allocation, peer=item.peer), item, body)


# -- the scheduler's core -------------------------------------------------------------------------------------------------------


class EndlessRetries(Failures):
    def after_failure(
        self, entry: TaskEntry, peer: str, reason: Reason, detail: str
    ) -> tuple[TaskEvent, Reason, str]:
        entry.tries = 0
        return TaskEvent.RETRY, reason, detail


class RetriesForEver(SchedulerCore):
    """Another attempt is always worth it."""

    failures_type = EndlessRetries


class SameWorkers(Allocator):
    def candidates(
        self, entry: TaskEntry, group: RequirementGroup, serving: list[WorkerView], now: float
    ) -> list[WorkerView]:
        return [view for view in serving if view.peer in entry.tried] or serving


class GoesBack(SchedulerCore):
    """A task goes back to where it failed, whoever else there is."""

    allocator_type = SameWorkers


class EitherTicket(Reconciler):
    def start(self, peer: str, lease: str, fence: Fence, now: float) -> tuple[str | None, list[Command]]:
        return next((e.id for e, attempt in self._state.held_at(peer) if attempt.lease == lease), None), []


class StartsTwice(SchedulerCore):
    """Both leases of a hedged task are started."""

    reconciler_type = EitherTicket


class NothingLost(Failures):
    def lose_all(self, peer: str, detail: str, now: float, *, silent: bool = False) -> list[Command]:
        return []


class ForgetsTheLost(SchedulerCore):
    """What a silent worker had is waited for."""

    failures_type = NothingLost


class NothingMissed(Reconciler):
    def misses_results(self, peer: str, leases: Iterable[LiveLease]) -> bool:
        return False


class ForgetsSettled(SchedulerCore):
    """Who adopts does not ask for the results that another one took."""

    reconciler_type = NothingMissed


class TogetherAllocator(Allocator):
    def taken(self, entry: TaskEntry) -> set[str]:
        return set()


class ForgetsSiblings(SchedulerCore):
    """Replicas go wherever there is space."""

    allocator_type = TogetherAllocator


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
        self, entry: TaskEntry, peer: str, result: Result, body: bytes, checked: CheckedRecord
    ) -> Message:
        self._shell.start(self._settle(entry, peer, result, body, checked))
        return Accepted()

    async def _settle(self, entry: TaskEntry, peer: str, *rest: Any) -> None:
        await WaitFor(lambda: False, self._shell.now() + 0.2)
        super().settle(entry, peer, *rest)


class AnyFenceIsCurrent(SchedulerConversation):
    """Looks at the attempt of a result, and not at its fence or at whether the task has ended."""

    @staticmethod
    def is_current(entry: TaskEntry, peer: str, result: Result) -> bool:
        return (entry.worker, entry.attempt) == (peer, result.attempt)


class NeverReconcilesLinks(WorkerLinks):
    async def adopt(self, handle: LinkHandle, link: WorkerLink) -> bool:
        return await self.renew(handle, link)


class NeverReconciles(SchedulerConversation):
    """A link that came up again is renewed, and nobody is asked what it holds."""

    links_type = NeverReconcilesLinks


class UnadoptedLinks(WorkerLinks):
    def adopt_on(self, peer: str) -> None:
        self._keep_up(peer)


class RenewsUnadopted(SchedulerConversation):
    """Renews what another machine may have led, over a link that was there before, without adopting it."""

    links_type = UnadoptedLinks


class PatientLinks(WorkerLinks):
    def give_up(self, peer: str, link: WorkerLink, now: float, what: str, *, silent: bool = False) -> None:
        link.heard_at = now


class NeverGivesUp(SchedulerConversation):
    """A silent worker is waited for."""

    links_type = PatientLinks


class NewKeys(WorkerLinks):
    asked = 0

    async def ask_commit(self, handle: LinkHandle, message: Commit) -> Granted | Queued | Conflict | Denied:
        self.asked += 1
        return await super().ask_commit(
            handle, message.model_copy(update={"key": f"{message.key} {self.asked}"})
        )


class AsksUnderNewKeys(SchedulerConversation):
    """A commit without an answer is sent again under another key."""

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
    """Says Start, and stores a moment later that the other lease is over."""

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
    """A worker that does not answer counts as heard."""

    links_type = HearingLinks


class HastyLinks(WorkerLinks):
    async def stop(self, command: CancelOn | ReleaseOn) -> None:
        await super().stop(command)
        leases = tuple(held.lease for held in command.held)
        now = self._shell.now()
        self._carry_out(self._core.failures.confirm_stop(command.peer, leases, now))


class ConfirmsStops(SchedulerConversation):
    """What a worker was asked to stop counts as stopped, answered or not."""

    links_type = HastyLinks


class HopefulWorkers(Workers):
    def mark_unreachable(self, peer: str, why: str, now: float) -> list[Command]:
        return []


class ForgetsFailedProbes(SchedulerCore):
    """A probe that fails is waited for."""

    workers_type = HopefulWorkers


class Disbelief(SimClaims):
    def superseded(self, campaign: str, denied: Denied) -> bool:
        return False


class DisbelievesProofs(SchedulerConversation):
    """Does not believe the proof that another scheduler leads a campaign."""

    def __init__(
        self, core: SchedulerCore, shell: Any, store: Any, source: Any, claims: Any, *rest: Any, **named: Any
    ) -> None:
        super().__init__(core, shell, store, source, Disbelief(claims.epochs), *rest, **named)


class AcceptsOld(SchedulerConversation):
    """Accepts a result that is not of the current attempt, stored or not."""

    def answer_old(self, peer: str, result: Result) -> Message:
        return Accepted()


# -- the scheduler's store ------------------------------------------------------------------------------------------------------


class AnyFence(SimStore):
    """Takes a record of the current attempt's task under whatever fence."""

    def current(self, row: Row, attempt: int, worker: str, fence: Fence) -> bool:
        return not final(TASK, row.state) and row.state is not TaskState.PENDING


class TakesAgain(SimStore):
    """Does not look whether the task has ended."""

    def record_result(self, *, task: str, **rest: Any) -> ResultReceipt:
        row = self.tasks[task]
        if final(TASK, row.state):
            row.state = TaskState.RUNNING
        return super().record_result(task=task, **rest)

    def current(self, row: Row, attempt: int, worker: str, fence: Fence) -> bool:
        return row.state is not TaskState.PENDING


class NoFlush(SimStore):
    """What was written last is gone after a crash."""

    def crashed(self) -> None:
        for one in reversed(self.attempts.values()):
            if one.sha256:
                one.sha256 = ""
                self.tasks[one.task].state = TaskState.RUNNING
                self.campaigns[self.tasks[one.task].campaign].ended = None
                return


class AcceptsInMemory(SimStore):
    """A campaign is on disk only once it is taken up."""

    def crashed(self) -> None:
        for folder in [folder for folder in self.campaigns.values() if not folder.epoch]:
            del self.campaigns[folder.id]
            for task in folder.tasks:
                del self.tasks[task]


# -- all of them ----------------------------------------------------------------------------------------------------------------

MUTANTS: Final = (
    Mutant("grants one place too many", make_ledger=_with(OneTooMany)),
    Mutant("an offered place is free", shows=2, make_ledger=_with(OfferedIsFree)),
    Mutant("begins before the device is free", shows=9, make_ledger=_with(DeviceIsFree)),
    Mutant("forgets idempotency keys", shows=3, make_ledger=ForgetsKeys),
    Mutant("leases never expire", shows=41, make_ledger=NeverExpires),
    Mutant("ignores cancels", shows=1, make_ledger=IgnoresCancel),
    Mutant("stops what is being timed", shows=1, make_ledger=NeverTimed),
    Mutant("fences repeat", shows=9, make_ledger=FencesRepeat),
    Mutant("the incarnation does not rise", shows=29, switches=frozenset({"same-incarnation"})),
    Mutant("checks no epoch", shows=2, make_ledger=NoEpochCheck),
    Mutant("knows no quota", shows=24, make_ledger=NoQuota),
    Mutant("serves its owner last", shows=19, make_ledger=OwnerLast),
    Mutant("sends results to whichever machine has the key", shows=4, make_conversation=SendsToAnyLink),
    Mutant("does not kill", shows=5, make_conversation=KillsNothing),
    Mutant("says stopped too soon", shows=49, make_conversation=StoppedTooSoon),
    Mutant("frees the slot of a stopped run at once", shows=3, make_conversation=FreesTheSlotAtOnce),
    Mutant("sends a result before it is on disk", make_conversation=SendsBeforeStoring),
    Mutant("takes a lost acknowledgement for one", make_conversation=TakesSilenceForAnAnswer),
    Mutant("renews under a stale epoch", shows=33, make_conversation=RenewsStaleEpochs),
    Mutant("forgets results when it restarts", shows=1, make_conversation=ForgetsResults),
    Mutant("keeps results from adopters", shows=5, make_conversation=KeepsResultsFromAdopters),
    Mutant("checks no permission", shows=5, switches=frozenset({"no-permission"})),
    Mutant("runs another model", switches=frozenset({"wrong-model"})),
    Mutant("retries for ever", shows=27, make_core=RetriesForEver),
    Mutant("goes back to where it failed", make_core=GoesBack),
    Mutant("starts both tickets", shows=2, make_core=StartsTwice),
    Mutant("waits for lost workers", shows=1, make_core=ForgetsTheLost, make_scheduler=NeverGivesUp),
    Mutant("adopts without the settled results", shows=5, make_core=ForgetsSettled),
    Mutant("ignores results when it adopts", shows=2, switches=frozenset({"ignores-settled"})),
    Mutant("renews what it has not adopted", shows=64, make_scheduler=RenewsUnadopted),
    Mutant("puts replicas together", make_core=ForgetsSiblings, switches=frozenset({"unchecked"})),
    Mutant("takes any fence", shows=83, store=AnyFence, make_scheduler=AnyFenceIsCurrent),
    Mutant("takes results again", shows=2, store=TakesAgain, make_scheduler=AnyFenceIsCurrent),
    Mutant("accepts a result before it is on disk", shows=12, make_scheduler=AcceptsEarly),
    Mutant("does not flush", store=NoFlush),
    Mutant("accepts a campaign in memory", shows=3, store=AcceptsInMemory),
    Mutant("stores what it decided after it was sent", make_scheduler=StoresLater),
    Mutant("does not reconcile after a break", make_scheduler=NeverReconciles),
    Mutant("asks again under another key", shows=13, make_scheduler=AsksUnderNewKeys),
    Mutant("accepts old results", shows=4, make_scheduler=AcceptsOld),
    Mutant("starts before it is stored", shows=2, make_core=OwingCore, make_scheduler=StartsFirst),
    Mutant("renews no lease", make_scheduler=NeverRenews),
    Mutant("takes silence for an answer to a renewal", shows=10, make_scheduler=HearsTheSilent),
    Mutant("takes a stop for confirmed", shows=78, make_scheduler=ConfirmsStops),
    Mutant("forgets failed probes", shows=1, make_core=ForgetsFailedProbes),
    Mutant("disbelieves proofs", shows=2, make_scheduler=DisbelievesProofs),
    Mutant("waits for silent workers", shows=1, make_scheduler=NeverGivesUp),
    Mutant("does not take up campaigns after a restart", switches=frozenset({"forgets-campaigns"})),
)
