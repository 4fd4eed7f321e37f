"""Proofs of which scheduler leads a campaign.

A proof counts if it is signed with the campaign's own key or ours, or by a token that one of these issued or delegated; see
`protocol.values.lease`. Workers may lie: a worker's claim without a proof counts only as its own refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from protocol.errors import NotPermitted, RemoteProtocolError
from protocol.messages.work import Denied
from protocol.values.lease import make_proof, read_proof
from protocol.words import Reason, Right
from scheduler.conversation.claims import ADOPTION_EPOCH_STEP, Rival, RivalKind
from swarm.net.identity import Identity, verify
from swarm.pools.membership import Credential
from swarm.pools.tokens import prove

_NEVER_OVER: Final = 86_400.0
"""Wall seconds at which no token has expired: a scheduler that adopted a campaign rightfully leads it even after its token expired."""
FIRST: Final = 1
"""The epoch of a campaign's first scheduler, which needs no proof."""
MAX_EPOCH_STEP: Final = 2**16
"""Most that a new epoch may exceed the last."""

log = structlog.get_logger("sark.adopt")


def proven_epoch(proof: bytes | None, campaign: str, owners: Collection[str]) -> int | None:
    """The epoch under which another scheduler rightfully leads the campaign; None: not proven.

    `owners`: peer ids that may hand the campaign over: its scheduler, and this one. A token that names the campaign counts even if it has
    expired.
    """
    if proof is None:
        return None
    try:
        claim = read_proof(proof)
        if claim.campaign != campaign or not verify(claim.peer, claim.message, claim.signature):
            return None
        if claim.peer in owners:
            return claim.epoch
        if claim.issuer is None or claim.token is None:
            return None
        shown = prove(claim.token, claim.issuer, claim.peer, now=_NEVER_OVER)
    except (RemoteProtocolError, NotPermitted, ValueError) as exc:
        log.info("proof.bad", campaign=campaign, why=str(exc))
        return None
    named = shown.grant.campaigns
    covers = Right.SUBMIT in shown.grant.rights and named is not None and campaign in named
    own = any(owner == claim.issuer or owner in shown.holders for owner in owners)
    return claim.epoch if covers and own else None


def own_proof(
    identity: Identity,
    campaign: str,
    epoch: int,
    owner: str,
    credentials: Iterable[Credential],
) -> bytes | None:
    """Proof that this scheduler leads the campaign of `owner`. None under the first epoch, or without a matching credential."""
    me = identity.peer_id
    if epoch <= FIRST:
        return None
    if me == owner:
        return make_proof(me, campaign, epoch, identity.sign)
    for credential in credentials:
        if credential.campaign not in ("", campaign):
            continue
        proof = make_proof(
            me, campaign, epoch, identity.sign, issuer=credential.issuer, token=credential.token
        )
        if proven_epoch(proof, campaign, {owner}) is not None:
            return proof
    return None


class LeadershipClaims:
    """Proofs for this scheduler's campaigns, and checks of others' proofs.

    A higher epoch under a key of this home belongs to another home if it is `ADOPTION_EPOCH_STEP` higher. Otherwise it is this home's
    own: from after the backup that it was restored from, or from a running copy. Whichever process starts later leads: it learns of
    the epoch from a worker that has not accepted it yet. From a worker that has accepted it, the epoch counts as a
    copy's only the second time, since this process may itself come from a snapshot.
    """

    def __init__(
        self,
        identity: Identity,
        credentials: Callable[[], Sequence[Credential]],
        next_epoch: Callable[[str, int], int],
        home: Collection[str] = (),
    ) -> None:
        """`next_epoch`: stores and returns a campaign's new epoch, above the given one. `home`: peer ids of all seats of this home."""
        self._identity = identity
        self._home = {identity.peer_id, *home}
        self._credentials = credentials
        self._next_epoch = next_epoch
        self._claims: dict[str, _Claim] = {}

    def take_up(self, campaign: str, owner: str, epoch: int) -> None:
        """Lead the campaign under this epoch. `owner`: the scheduler that its tasks name."""
        proof = self.prove(campaign, epoch, owner)
        contested = campaign in self._claims and self._claims[campaign].contested
        self._claims[campaign] = _Claim(owner, epoch, proof, contested)

    def prove(self, campaign: str, epoch: int, owner: str) -> bytes | None:
        """Proof that this scheduler leads the campaign under this epoch."""
        return own_proof(self._identity, campaign, epoch, owner, self._credentials())

    def proven(self, proof: bytes, campaign: str, owner: str) -> tuple[str, int]:
        """The peer that leads the campaign by this proof, and its epoch; 0 if the proof is not valid."""
        epoch = proven_epoch(proof, campaign, {owner, *self._home})
        return ("", 0) if epoch is None else (read_proof(proof).peer, epoch)

    def forget(self, campaign: str) -> None:
        """The campaign has ended."""
        self._claims.pop(campaign, None)

    def proof(self, campaign: str) -> bytes | None:
        """Proof that this scheduler leads the campaign, if there is one."""
        claim = self._claims.get(campaign)
        return None if claim is None else claim.proof

    def accepted(self, campaign: str, peer: str, epoch: int) -> None:
        """A worker accepted this scheduler as the campaign's leader."""
        claim = self._claims.get(campaign)
        if claim is not None and claim.epoch == epoch:
            claim.accepted.add(peer)

    def rival(self, campaign: str, peer: str, denied: Denied) -> Rival | None:
        """Who leads the campaign under a higher epoch, if a worker's denial proves such an epoch."""
        claim = self._claims.get(campaign)
        if claim is None or denied.reason is not Reason.STALE_EPOCH or denied.proof is None:
            return None
        leader, epoch = self.proven(denied.proof, campaign, claim.owner)
        if epoch <= claim.epoch:
            return None
        if leader not in self._home or epoch - claim.epoch >= ADOPTION_EPOCH_STEP:
            return Rival(RivalKind.ADOPTER, epoch)
        if peer not in claim.accepted:
            return Rival(RivalKind.FORMER, epoch)
        kind = RivalKind.COPY if claim.contested else RivalKind.FORMER
        claim.contested = True
        return Rival(kind, epoch)

    def lead_above_rival(self, campaign: str, rival: Rival) -> int:
        """Lead the campaign under a new, stored epoch, above the rival's."""
        epoch = self._next_epoch(campaign, rival.epoch)
        self.take_up(campaign, self._claims[campaign].owner, epoch)
        return epoch


@dataclass(slots=True)
class _Claim:
    owner: str
    epoch: int
    proof: bytes | None
    contested: bool
    """Whether a worker that had accepted this process, under this or an earlier epoch, knew a higher epoch of the same home."""
    accepted: set[str] = field(default_factory=set)
    """Workers that accepted this epoch."""
