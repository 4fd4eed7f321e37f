"""That another scheduler carries a campaign on: whom we believe it, and how we prove it of ourselves.

Believed is who signed it with the campaign's own key or ours, or by a token that one of these gave or passed on; see `protocol.adoption`.
Any worker may say it, and any may be a liar: without such a proof it is that worker's refusal, and nothing more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import structlog

from protocol.adoption import make_proof, read_proof
from protocol.errors import NotPermitted, RemoteProtocolError
from protocol.words import Right
from swarm.identity import Identity, verify
from swarm.membership import Credential
from swarm.tokens import prove

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
