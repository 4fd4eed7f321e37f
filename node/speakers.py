"""Who speaks for a campaign at this worker, and under which epoch. Pure.

The scheduler that began it does, until one adopts it under a higher epoch: the same one after a restart, or another that its principal
delegated to. From then on who spoke before is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from node.places import Remembered
from protocol.messages import Denied
from protocol.words import Reason


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who was heard last."""

    peer: str
    epoch: int


class Speakers:
    """The highest epoch of each campaign of each principal."""

    def __init__(self, limit: int) -> None:
        self._known: Remembered[tuple[str, str], Speaker] = Remembered(limit)

    def epoch(self, principal: str, campaign: str) -> int | None:
        """The highest that was heard; None: it was never spoken of."""
        known = self._known.get((principal, campaign))
        return None if known is None else known.epoch

    def refuse(self, peer: str, principal: str, campaign: str, epoch: int) -> Denied | None:
        """None when `peer` may speak for it under this epoch. Another peer than before needs a higher one."""
        known = self._known.get((principal, campaign))
        if known is None or epoch > known.epoch or (epoch == known.epoch and peer == known.peer):
            return None
        return Denied(
            reason=Reason.STALE_EPOCH, detail=f"this campaign was adopted under epoch {known.epoch}"
        )

    def hear(self, peer: str, principal: str, campaign: str, epoch: int) -> bool:
        """It speaks. True when another peer did before."""
        known = self._known.get((principal, campaign))
        self._known.put((principal, campaign), Speaker(peer, epoch))
        return known is not None and known.peer != peer
