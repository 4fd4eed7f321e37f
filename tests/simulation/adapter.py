"""The few places where the model touches what the ledger and the book are called by: a change of theirs is followed here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from node.capacity.allocations import SlotRequest
from node.capacity.ledger import Ledger
from protocol.messages.permission import CallPermission
from protocol.messages.work import Commit, Denied, HeldLease, LeaseLost, Renew, Renewed
from protocol.values.attempt import TaskState
from protocol.values.task import Task, read_task
from protocol.words import Reason
from scheduler.core.state import TaskEntry
from scheduler.run.restore import restored
from tests.simulation.shelf import Row, Try


@lru_cache(maxsize=4096)
def _read(body: bytes) -> Task:
    return read_task(body)


def task_of(message: Commit) -> Task:
    """The task it speaks of."""
    return _read(message.task)


def restored_entry(row: Row, attempts: Sequence[Try]) -> TaskEntry:
    """What the book takes up after a restart."""
    stored: Any = row
    tried: Any = attempts
    entry = restored(stored, row.body, tried)
    if entry.cell and entry.state is TaskState.SUCCEEDED and row.worker is not None:
        entry.ran_on = device_of(row.worker)  # as its record says
    return entry


def device_of(worker: str) -> str:
    """Id of the device that a worker of the model has."""
    return f"d-{worker[-2:]}"


def new_ledger(
    make: Callable[..., Ledger], incarnation: int, name: str, slots: int, *, owner_first: bool
) -> Ledger:
    """The ledger of a new life."""
    return make(incarnation, name=name, slots=slots, owner_first=owner_first)


def wanted(peer: str, message: Commit, permit: CallPermission) -> SlotRequest:
    """What the desk makes of a commit."""
    return SlotRequest(
        peer=peer,
        principal=permit.principal,
        key=message.key,
        task=task_of(message),
        task_sha256=str(hash(message.task)),
        attempt=message.attempt,
        epoch=message.epoch,
        priority=message.priority,
        owner=permit.owner,
        slots=permit.slots,
        preempted=message.preempted,
        left_s=message.left_s,
        queue=message.queue,
        ledger=message.ledger,
    )


def renew(
    ledger: Ledger, peer: str, principal: str, message: Renew, epochs: Mapping[str, int], now: float
) -> Renewed:
    """What the desk answers to a renewal."""
    refused = ledger.refusals(peer, principal, message.held, epochs, lambda campaign: True)
    renewed = ledger.renew(peer, tuple(h for h in message.held if h.lease not in refused), now)
    lost = tuple(LeaseLost(lease=lease, reason=reason) for lease, reason in refused.items())
    return renewed.model_copy(update={"lost": renewed.lost + lost})


def refused(
    ledger: Ledger, peer: str, principal: str, held: Iterable[HeldLease], epochs: Mapping[str, int]
) -> Denied | None:
    """What the desk says to a stop of leases that the peer may not speak of (any more)."""
    reasons = ledger.refusals(peer, principal, held, epochs, lambda campaign: True)
    return next((Denied(reason=reason) for reason in reasons.values()), None)


def evict(ledger: Ledger, peer: str, now: float) -> None:
    """Its permission is gone."""
    ledger.evict(peer, Reason.NOT_ALLOWED, now)
