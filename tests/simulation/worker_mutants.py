"""Mistakes of the worker, built in on purpose: its ledger and its side of the conversation."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from node.capacity.allocations import (
    DEVICE_OCCUPYING_STATES,
    MAX_REMEMBERED,
    Allocation,
    KillCommand,
    SlotRequest,
)
from node.capacity.epochs import CampaignLeaders
from node.capacity.ledger import Ledger
from node.capacity.queue import QueueRank
from node.capacity.slots import Slots
from node.conversation.commands import Flow, SchedulerLink, WriteRecord
from node.conversation.conversation import WorkerConversation
from node.conversation.outbox import CLOCK_JUMP_S, RETENTION_S, Outbox, OutboxItem
from node.conversation.requests import RequestHandlers, WorkerContext
from protocol.messages.permission import CallPermission
from protocol.messages.work import (
    Accepted,
    Conflict,
    Denied,
    Granted,
    HeldLease,
    Queued,
    Renew,
    Renewed,
    Stopped,
)
from protocol.values.lease import LeaseState
from protocol.values.record import Record
from protocol.wire.base import Message
from protocol.words import Reason

# -- the worker's ledger --------------------------------------------------------------------------------------------------------


class OneTooMany(Slots):
    """Grants one slot more than there are."""

    @property
    def free(self) -> int:
        return self.count + 1 - self.number_in({LeaseState.GRANTED, LeaseState.RUNNING, LeaseState.OFFERED})

    def _stop_lapsed(self) -> None:
        """Never stops a run."""


class OfferedIsFree(Slots):
    """Counts an offered slot as free until it is taken."""

    @property
    def free(self) -> int:
        return self.count - self.number_in({LeaseState.GRANTED, LeaseState.RUNNING})

    def _stop_lapsed(self) -> None:
        """Never stops a run."""


class DeviceIsFree(Slots):
    """Begins the next run while the last run's processes are still dying."""

    def number_in(self, states: Collection[LeaseState]) -> int:
        return 0 if states == DEVICE_OCCUPYING_STATES else super().number_in(states)


def with_slots(slots: type[Slots]) -> type[Ledger]:
    class Changed(Ledger):
        def __init__(self, incarnation: int, *, slots: int = 1, **rest: Any) -> None:
            super().__init__(incarnation, slots=slots, **rest)
            self._slots = made(slots, self.condition, owner_first=False)

    made = slots
    return Changed


class ForgetsKeys(Ledger):
    """Takes a repeated commit for a new one."""

    def commit(self, wanted: SlotRequest, now: float) -> Granted | Queued | Conflict | Denied:
        self._keys = type(self._keys)(1)
        return super().commit(wanted, now)


class NeverExpires(Ledger):
    """Keeps slots after their scheduler is gone."""

    def expire(self, now: float) -> None:
        """Nothing ever expires."""

    def next_deadline(self) -> float | None:
        return None


class IgnoresCancel(Ledger):
    """Confirms a stop, and lets the run continue."""

    def stop(self, peer: str, held: Iterable[HeldLease], reason: Reason, now: float) -> tuple[str, ...]:
        return ()


class NeverTimed(Ledger):
    """Does not know that a run is being timed."""

    def timing(self, lease: str, timed: bool, now: float) -> None:
        place = self.allocation(lease)
        if place is not None:
            place.timed = False


class FencesRepeat(Ledger):
    """Restarts the numbers of its leases now and then."""

    def _enter(self, wanted: SlotRequest, state: LeaseState, now: float) -> Allocation:
        if self._number > 2 and not self.allocations():
            self._number = 0
        return super()._enter(wanted, state, now)


class HearsEverybody(CampaignLeaders):
    """Takes any peer for the leader."""

    def refuse(self, peer: str, principal: str, campaign: str, epoch: int) -> Denied | None:
        return None


class NoEpochCheck(Ledger):
    """Accepts lower epochs like higher ones."""

    def __init__(self, incarnation: int, **rest: Any) -> None:
        super().__init__(incarnation, **rest)
        self.leaders = HearsEverybody(MAX_REMEMBERED)

    def refusals(self, *asked: Any, **rest: Any) -> dict[str, Reason]:
        return {}


class NoQuota(Ledger):
    """Ignores quotas: grants and queues every lease."""

    def commit(self, wanted: SlotRequest, now: float) -> Granted | Queued | Conflict | Denied:
        place = super().commit(replace(wanted, permission=replace(wanted.permission, slots=None)), now)
        for one in self.allocations():
            if one.request.permission.slots is None and one.request.commit.key == wanted.commit.key:
                one.request = wanted
        return place


class OwnerLast(Ledger):
    """Gives the owner no precedence."""

    def commit(self, wanted: SlotRequest, now: float) -> Granted | Queued | Conflict | Denied:
        self._slots.queue.order = self._last  # type: ignore[method-assign]
        return super().commit(wanted, now)

    def _last(self, ranks: Iterable[QueueRank]) -> list[QueueRank]:
        return sorted(ranks, key=lambda rank: (rank.owner, rank.number))


# -- the worker's conversation --------------------------------------------------------------------------------------------------


class SendsToAnyLink(WorkerConversation):
    """Ignores under which epoch a link has spoken."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.links.speaks_for = lambda link, about: True  # type: ignore[method-assign]


class StoppedTooSoon(WorkerConversation):
    """Confirms that runs are stopped while their processes are still dying."""

    def _stop(self, *given: Any) -> Message | None:
        reply = super()._stop(*given)
        return reply if reply is not None else self._stopped_now()

    def _stopped_now(self) -> Message:
        message = self._stops.pop().message
        return Stopped(leases=tuple(item.lease for item in message.held))


class KillsNothing(WorkerConversation):
    """Does not carry out an order to end a run."""

    def carry_out(self) -> None:
        super().carry_out()
        commands = self.commands.take()
        for command in commands:
            if not isinstance(command, KillCommand):
                self.commands.emit(command)


class FreesTheSlotAtOnce(WorkerConversation):
    """Counts a stopped run as over while its processes are still dying."""

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
    """Sends a result from memory, and stores it later."""

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
    """Takes a lost acknowledgement for an answer, and settles the result."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        answered = self.delivery._answered
        self.delivery._answered = (  # type: ignore[method-assign]
            lambda link, item, reply: answered(link, item, reply or Accepted())
        )


class RenewsStaleEpochs(WorkerConversation):
    """Renews leases under any epoch."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.requests = _RenewsAnything(
            self._context, self.ledger, self.links, self.outbox, self.requests.phase
        )


class _RenewsAnything(RequestHandlers):
    def renew(self, link: SchedulerLink, permission: CallPermission, request: Renew) -> Renewed:
        return self.ledger.renew(link.peer, request.held, self.context.now())


class ForgetsResults(WorkerConversation):
    """Starts every life with an empty outbox."""

    def __init__(self, ledger: Ledger, outbox: Outbox, context: WorkerContext) -> None:
        super().__init__(ledger, Outbox(context.wall, context.now), context)


class _OldByTheClock(Outbox):
    def _is_young(self, item: OutboxItem) -> bool:
        return not RETENTION_S < self._wall() - item.stored < CLOCK_JUMP_S


class BelievesAnyClock(WorkerConversation):
    """Drops results as soon as the wall clock says that they are old."""

    def __init__(self, ledger: Ledger, outbox: Outbox, context: WorkerContext) -> None:
        settled = outbox._settled.values()
        super().__init__(
            ledger, _OldByTheClock(context.wall, context.now, outbox._waiting.values(), settled), context
        )


class _Forgetful(Outbox):
    def settle(self, sha256: str, *, keep: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return super().settle(sha256, keep=keep and self.in_memory(sha256) is None)


class DropsWhatNoDiskTook(WorkerConversation):
    """Drops a result in memory after the first answer, from any scheduler."""

    def __init__(self, ledger: Ledger, outbox: Outbox, context: WorkerContext) -> None:
        parts = (outbox._waiting.values(), outbox._settled.values())
        super().__init__(ledger, _Forgetful(context.wall, context.now, *parts), context)


class KeepsResultsFromAdopters(WorkerConversation):
    """Answers an adopter without sending it the results."""

    def _redirect(self, item: OutboxItem) -> Flow[str]:
        yield from ()
        return ""

    def _stored(self, allocation: Allocation, item: OutboxItem, body: bytes) -> Flow[None]:
        return super()._stored(replace(allocation, peer=item.peer), item, body)
