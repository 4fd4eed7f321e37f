"""Shared parts for tests of the ledger: schedulers, their requests, and a ledger that has links to them."""

from __future__ import annotations

import math
from typing import Any

from node.capacity.allocations import SlotRequest, WarnCommand
from node.capacity.ledger import Ledger
from protocol.messages.permission import ALL, CallPermission
from protocol.messages.work import Commit, Granted, HeldLease, Preempt, Queued
from protocol.values.lease import LeaseState
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts

ANN = "12D3KooWAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAn"
BOB = "12D3KooWBobBobBobBobBobBobBobBobBobBobBobBobBobBobBo"
CAT = "12D3KooWCatCatCatCatCatCatCatCatCatCatCatCatCatCatCa"
DEE = "12D3KooWDeeDeeDeeDeeDeeDeeDeeDeeDeeDeeDeeDeeDeeDeeDe"


def campaign_of(peer: str, principal: str = "") -> str:
    """Each principal has one campaign."""
    return f"c-{(principal or peer)[8:11]}"


def want(
    number: int,
    peer: str = ANN,
    *,
    queue: bool = False,
    ledger: int | None = None,
    epoch: int = 1,
    principal: str = "",
    queue_s: float = 1e6,
    key_of: int = 1,
    priority: int = 50,
    max_priority: int = 100,
    preempted: int = 0,
    left_s: float | None = None,
    max_queue_s: float = math.inf,
    **permitted: Any,
) -> SlotRequest:
    """The request of a scheduler's first attempt at one of its tasks."""
    campaign = campaign_of(peer, principal)
    task = Task(
        campaign=campaign,
        task=f"{campaign}/{number}",
        scheduler=peer,
        model=Model(name="m.onnx", sha256="0" * 64, size=1),
        unit="CPU (ONNX)",
        requirement=Requirement(),
        measure=Measure(),
        timeouts=Timeouts(queue_s=queue_s),
    )
    commit = Commit(
        key=f"{task.task}/{key_of}",
        attempt=1,
        epoch=epoch,
        task=b"",
        signature=bytes(64),
        priority=priority,
        ledger=ledger,
        queue=queue,
        preempted=preempted,
        left_s=left_s,
    )
    permission = CallPermission(principal or peer, ALL, priority=max_priority, **permitted)
    return SlotRequest(peer, permission, commit, task, f"{number:064x}", max_queue_s)


def held(answer: object) -> HeldLease:
    """The reference by which a granted or queued lease is renewed."""
    assert isinstance(answer, (Granted, Queued))
    return HeldLease(lease=answer.lease, fence=answer.fence)


def linked(*peers: str, **settings: Any) -> Ledger:
    """A ledger with links to these peers, by default to all four."""
    ledger = Ledger(7, **settings)
    for peer in peers or (ANN, BOB, CAT, DEE):
        ledger.link_up(peer, 0.0)
    return ledger


def warning_of(run: HeldLease, grace_s: float, priority: int) -> WarnCommand:
    note = Preempt(lease=run.lease, fence=run.fence, grace_s=grace_s, priority=priority)
    return WarnCommand(ANN, (ANN, campaign_of(ANN)), note)


def run_of(ledger: Ledger, wanted: SlotRequest, now: float = 0.0) -> HeldLease:
    """Commit a request that is granted and runs."""
    answer = ledger.commit(wanted, now)
    assert isinstance(answer, Granted)
    ledger.take_commands()
    place = ledger.allocation(answer.lease)
    assert place is not None
    assert place.state is LeaseState.RUNNING
    place.began_at = now
    return held(answer)


def ticket_of(ledger: Ledger, wanted: SlotRequest, now: float = 0.0) -> HeldLease:
    """Commit a request that has to queue."""
    answer = ledger.commit(wanted, now)
    assert isinstance(answer, Queued)
    return held(answer)


def warned(ledger: Ledger) -> list[str]:
    """The leases whose schedulers get a warning of preemption. Takes all pending commands."""
    return [order.note.lease for order in ledger.take_commands() if isinstance(order, WarnCommand)]
