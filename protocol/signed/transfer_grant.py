"""A scheduler's signed word that one worker may be given one model, for the workers that hold it.

    scheduler ──Others with the grant──▶ taker ──Fetch with the grant──▶ holder, which knows whether the scheduler's principal has the model

Bound to the taker, whose id the channel proves, so nobody else can use it. It gives no more than the scheduler could give itself: the
model, to a worker that it trusts with a task that needs it. A holder believes it only where it would give the model to the scheduler.
"""

from __future__ import annotations

from typing import Final, Literal

from protocol.wire.base import Count, Message, PeerName, Sha256, Signature
from protocol.wire.codec import pack

_CONTEXT: Final = b"sark grant 1\n"


class TransferGrant(Message):
    """`giver` lets `taker` have the model `sha256`."""

    v: Literal[1] = 1
    giver: PeerName
    """The scheduler that signed it."""
    taker: PeerName
    sha256: Sha256
    until: Count
    """Wall seconds; holders allow for clocks that differ."""
    signature: Signature

    @property
    def message(self) -> bytes:
        return grant_message(self.giver, self.taker, self.sha256, self.until)


def grant_message(giver: str, taker: str, sha256: str, until: int) -> bytes:
    """What `giver` signs."""
    return _CONTEXT + pack([giver, taker, sha256, until])
