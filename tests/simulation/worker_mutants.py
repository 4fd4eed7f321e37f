"""Mistakes of the worker, built in on purpose: its ledger and its side of the conversation."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from node.capacity.allocations import MAX_REMEMBERED, OCCUPIES, Allocation, KillCommand, SlotRequest
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


def with_slots(slots: type[Slots]) -> type[Ledger]:
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
        super().__init__(ledger, Outbox(context.wall, context.now), context)


class _OldByTheClock(Outbox):
    def _is_young(self, item: OutboxItem) -> bool:
        return not RETENTION_S < self._wall() - item.stored < CLOCK_JUMP_S


class BelievesAnyClock(WorkerConversation):
    """Gives results up as soon as the wall clock says that they are old."""

    def __init__(self, ledger: Ledger, outbox: Outbox, context: WorkerContext) -> None:
        settled = outbox._settled.values()
        super().__init__(
            ledger, _OldByTheClock(context.wall, context.now, outbox._waiting.values(), settled), context
        )


class _Forgetful(Outbox):
    def settle(self, sha256: str, *, keep: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return super().settle(sha256, keep=keep and self.in_memory(sha256) is None)


class DropsWhatNoDiskTook(WorkerConversation):
    """A result in memory is gone with the first answer, whoever gives it."""

    def __init__(self, ledger: Ledger, outbox: Outbox, context: WorkerContext) -> None:
        parts = (outbox._waiting.values(), outbox._settled.values())
        super().__init__(ledger, _Forgetful(context.wall, context.now, *parts), context)


class KeepsResultsFromAdopters(WorkerConversation):
    """Who adopts a campaign is answered without getting its results."""

    def _redirect(self, item: OutboxItem) -> Flow[str]:
        yield from ()
        return ""

    def _stored(self, allocation: Allocation, item: OutboxItem, body: bytes) -> Flow[None]:
        return super()._stored(replace(allocation, peer=item.peer), item, body)
