"""Who speaks for a campaign at this worker, and under which epoch. Pure.

The scheduler that began it does, until one adopts it under a higher epoch: the same one after a restart, or another that its principal
delegated to. From then on who spoke before is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from node.capacity.allocations import EndedLease
from protocol.messages.work import Denied
from protocol.values.lease import MAX_EPOCH
from protocol.words import Reason

MAX_PROOFS: Final = 256
"""Kept: so many campaigns' at a time, of at most 4 KiB each."""


MAX_EACH: Final = 1_024
"""Campaigns of one principal that are remembered."""
HIGHEST_OF_OTHERS: Final = MAX_EPOCH // 2
"""Who acts for a principal has no use for a higher epoch."""


@dataclass(frozen=True, slots=True)
class CampaignLeader:
    """Who was heard last."""

    peer: str
    epoch: int


class CampaignLeaders:
    """The highest epoch of each campaign of each principal."""

    def __init__(self, limit: int) -> None:
        self._known: EndedLease[str, EndedLease[str, CampaignLeader]] = EndedLease(limit)
        """Principal → campaign → who: nobody pushes out what was heard of another's."""
        self._proofs: EndedLease[tuple[str, str], tuple[int, bytes]] = EndedLease(MAX_PROOFS)

    def epoch(self, principal: str, campaign: str) -> int | None:
        """The highest that was heard; None: it was never spoken of."""
        known = self._of(principal, campaign)
        return None if known is None else known.epoch

    def refuse(self, peer: str, principal: str, campaign: str, epoch: int) -> Denied | None:
        """None when `peer` may speak for it under this epoch. Another peer than before needs a higher one.

        Who acts for the principal leaves it epochs to take its campaign back under.
        """
        if peer != principal and epoch > HIGHEST_OF_OTHERS:
            return Denied(
                reason=Reason.BAD_REQUEST, detail=f"epoch {epoch} leaves its owner none to go on with"
            )
        known = self._of(principal, campaign)
        if known is None or epoch > known.epoch or (epoch == known.epoch and peer == known.peer):
            return None
        return Denied(
            reason=Reason.STALE_EPOCH,
            detail=f"this campaign was adopted under epoch {known.epoch}",
            proof=self.proof(principal, campaign),
        )

    def hear(self, peer: str, principal: str, campaign: str, epoch: int) -> bool:
        """It speaks. True when another peer did before."""
        known = self._of(principal, campaign)
        campaigns = self._known.get(principal) or EndedLease(MAX_EACH)
        campaigns.put(campaign, CampaignLeader(peer, epoch))
        self._known.put(principal, campaigns)
        return known is not None and known.peer != peer

    def _of(self, principal: str, campaign: str) -> CampaignLeader | None:
        campaigns = self._known.get(principal)
        return None if campaigns is None else campaigns.get(campaign)

    def keep_proof(self, principal: str, campaign: str, epoch: int, proof: bytes | None) -> None:
        """What who speaks under this epoch gave for it. It is not read here: whoever is refused judges it."""
        if proof is not None and epoch == self.epoch(principal, campaign):
            self._proofs.put((principal, campaign), (epoch, proof))

    def proof(self, principal: str, campaign: str) -> bytes | None:
        """What was given for the highest epoch; None: nothing, or it was forgotten."""
        epoch, proof = self._proofs.get((principal, campaign)) or (-1, b"")
        return proof if epoch == self.epoch(principal, campaign) else None
