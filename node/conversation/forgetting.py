"""Whether a worker may forget a campaign at a peer's request. Pure."""

from __future__ import annotations

from node.capacity.ledger import Ledger
from node.conversation.outbox import Outbox
from protocol.messages.forget import Forget
from protocol.messages.work import Denied
from protocol.values.lease import LEASE_TTL_S
from protocol.words import Reason


def why_not_forgotten(
    ledger: Ledger, outbox: Outbox, peer: str, principal: str, message: Forget
) -> Denied | None:
    """The refusal; None: the worker may forget the campaign. Only the campaign's own scheduler may ask, not a delegate or an adopter, and
    only while none of its tasks runs.
    """
    if peer != principal:
        detail = f"only the scheduler that submitted {message.campaign} may ask this worker to forget it"
        return Denied(reason=Reason.NOT_ALLOWED, detail=detail)
    if stale := ledger.leaders.refuse(peer, principal, message.campaign, message.epoch):
        return stale
    records = outbox.of(message.campaign, principal)
    if any(item.peer != peer for item, settled in records if not settled):
        return Denied(reason=Reason.STALE_EPOCH, detail="its results wait here for another scheduler")
    reported = {item.lease for item, _ in records}
    if any(one.lease not in reported for one in ledger.of_campaign(principal, message.campaign)):
        return Denied(
            reason=Reason.BUSY,
            detail=f"a task of {message.campaign} is still running here",
            retry_s=LEASE_TTL_S,
        )
    return None
