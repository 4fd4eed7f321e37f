"""That another scheduler carries a campaign on: whom we believe it, and how we prove it of ourselves.

Believed is who signed it with the campaign's own key or ours, or by a token that one of these gave or passed on:
`protocol.signed.takeover_proof`.
Any worker may say it, and any may be a liar: without such a proof it is that worker's refusal, and nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from protocol.errors import NotPermitted, RemoteProtocolError
from protocol.messages.work import Denied
from protocol.signed.takeover_proof import make_proof, read_proof
from protocol.words import Reason, Right
from swarm.net.identity import Identity, verify
from swarm.pools.membership import Credential
from swarm.pools.tokens import prove

_NEVER_OVER: Final = 86_400.0
"""Wall seconds at which no token has ended: who once adopted a campaign rightly stays its scheduler when the token is over."""
FIRST: Final = 1
"""The epoch of a campaign's first life, which needs no proof: nobody is refused because of it."""

log = structlog.get_logger("sark.adopt")


def proven_epoch(proof: bytes | None, campaign: str, owners: Collection[str]) -> int | None:
    """The epoch under which somebody carries the campaign on who may; None when that is not proven.

    `owners`: peer ids whose word counts: the campaign's scheduler, and our own. A token counts if it names the campaign, be it over by now.
    """
    if proof is None:
        return None
    try:
        told = read_proof(proof)
        if told.campaign != campaign or not verify(told.peer, told.message, told.signature):
            return None
        if told.peer in owners:
            return told.epoch
        if told.issuer is None or told.token is None:
            return None
        shown = prove(told.token, told.issuer, told.peer, now=_NEVER_OVER)
    except (RemoteProtocolError, NotPermitted, ValueError) as exc:
        log.info("proof.bad", campaign=campaign, why=str(exc))
        return None
    named = shown.grant.campaigns
    covers = Right.SUBMIT in shown.grant.rights and named is not None and campaign in named
    ours = any(owner == told.issuer or owner in shown.holders for owner in owners)
    return told.epoch if covers and ours else None


def own_proof(
    identity: Identity,
    campaign: str,
    epoch: int,
    owner: str,
    credentials: Iterable[Credential],
) -> bytes | None:
    """What shows that the campaign of `owner` is ours to carry on. None in its first life, or when nothing that we hold shows it."""
    me = identity.peer_id
    if epoch <= FIRST:
        return None
    if me == owner:
        return make_proof(me, campaign, epoch, identity.sign)
    for held in credentials:
        if held.campaign not in ("", campaign):
            continue
        proof = make_proof(me, campaign, epoch, identity.sign, issuer=held.issuer, token=held.token)
        if proven_epoch(proof, campaign, {owner}) is not None:
            return proof
    return None


class LeadershipClaims:
    """What this scheduler can prove of its campaigns, and what it believes of others'."""

    def __init__(self, identity: Identity, credentials: Callable[[], Sequence[Credential]]) -> None:
        self._identity = identity
        self._credentials = credentials
        self._held: dict[str, _Claim] = {}

    def take_up(self, campaign: str, owner: str, epoch: int) -> None:
        """It is ours now, under this epoch. `owner`: the scheduler that its tasks name."""
        proof = own_proof(self._identity, campaign, epoch, owner, self._credentials())
        self._held[campaign] = _Claim(owner, epoch, proof)

    def forget(self, campaign: str) -> None:
        """It has ended."""
        self._held.pop(campaign, None)

    def proof(self, campaign: str) -> bytes | None:
        """What shows that it is ours; None in its first life, or when nothing does."""
        claim = self._held.get(campaign)
        return None if claim is None else claim.proof

    def superseded(self, campaign: str, denied: Denied) -> bool:
        """Whether a worker that refuses us shows that somebody carries the campaign on who may."""
        claim = self._held.get(campaign)
        if claim is None or denied.reason is not Reason.STALE_EPOCH:
            return False
        epoch = proven_epoch(denied.proof, campaign, {claim.owner, self._identity.peer_id})
        return epoch is not None and epoch > claim.epoch


@dataclass(frozen=True, slots=True)
class _Claim:
    owner: str
    epoch: int
    proof: bytes | None
