"""Who leads a campaign at this worker, and under which epoch. Pure.

The scheduler that began a campaign leads it until a scheduler adopts the campaign under a higher epoch: the same scheduler after a restart,
or another to which the principal delegated. From then on this worker refuses the previous leader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from node.capacity.allocations import RecentDict
from protocol.messages.work import Denied
from protocol.values.lease import MAX_EPOCH
from protocol.words import Reason

MAX_PROOFS: Final = 256
"""Campaigns whose proofs are stored. A proof has at most 4 KiB."""
MAX_EACH: Final = 1_024
"""Campaigns remembered for one principal."""
MAX_DELEGATE_EPOCH: Final = MAX_EPOCH // 2
"""The highest epoch for a peer that acts for a principal, so that the principal can regain its campaign under a higher one."""


@dataclass(frozen=True, slots=True)
class CampaignLeader:
    """The peer that leads a campaign."""

    peer: str
    epoch: int


class CampaignLeaders:
    """The highest epoch of each campaign of each principal."""

    def __init__(self, limit: int) -> None:
        self._leaders: RecentDict[str, RecentDict[str, CampaignLeader]] = RecentDict(limit)
        """Principal → campaign → leader, so that no principal displaces another's campaigns."""
        self._proofs: RecentDict[tuple[str, str], tuple[int, bytes]] = RecentDict(MAX_PROOFS)

    def epoch(self, principal: str, campaign: str) -> int | None:
        """The highest epoch known; None: no scheduler has mentioned the campaign."""
        leader = self._leader(principal, campaign)
        return None if leader is None else leader.epoch

    def refuse(self, peer: str, principal: str, campaign: str, epoch: int) -> Denied | None:
        """None if `peer` may speak for the campaign under `epoch`; else the refusal. A new leader needs a higher epoch."""
        if peer != principal and epoch > MAX_DELEGATE_EPOCH:
            return Denied(
                reason=Reason.BAD_REQUEST,
                detail=f"epoch {epoch} is too high: no higher epoch would be left for the campaign's owner",
            )
        leader = self._leader(principal, campaign)
        if leader is None or epoch > leader.epoch or (epoch, peer) == (leader.epoch, leader.peer):
            return None
        return Denied(
            reason=Reason.STALE_EPOCH,
            detail=f"this campaign was adopted under epoch {leader.epoch}",
            proof=self.proof(principal, campaign),
        )

    def set_leader(self, peer: str, principal: str, campaign: str, epoch: int) -> bool:
        """Returns True if another peer led before."""
        before = self._leader(principal, campaign)
        campaigns = self._leaders.get(principal) or RecentDict(MAX_EACH)
        campaigns.put(campaign, CampaignLeader(peer, epoch))
        self._leaders.put(principal, campaigns)
        return before is not None and before.peer != peer

    def _leader(self, principal: str, campaign: str) -> CampaignLeader | None:
        campaigns = self._leaders.get(principal)
        return None if campaigns is None else campaigns.get(campaign)

    def set_proof(self, principal: str, campaign: str, epoch: int, proof: bytes | None) -> None:
        """Store the takeover proof from the leader of this epoch. The worker does not read the proof; a refused peer checks it."""
        if proof is not None and epoch == self.epoch(principal, campaign):
            self._proofs.put((principal, campaign), (epoch, proof))

    def proof(self, principal: str, campaign: str) -> bytes | None:
        """The takeover proof for the highest epoch; None: the leader sent none, or it was forgotten."""
        epoch, proof = self._proofs.get((principal, campaign)) or (-1, b"")
        return proof if epoch == self.epoch(principal, campaign) else None
