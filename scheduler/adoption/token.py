"""The string that `delegate` prints and `adopt --token` takes: the campaign, its owner, the gates, and the tokens. Pure.

    sarkd1 + base58( checksum of 4 bytes + msgpack of: campaign, owner, gates, tokens )

Every token in it is bound to the peer id of the scheduler for which it was made: nobody else can use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.errors import BadTicket, NotPermitted, RemoteProtocolError
from protocol.values.campaign_manifest import CampaignId
from protocol.wire.base import AddressText, Message, PeerName, Token
from protocol.wire.codec import read_value
from protocol.words import Right
from swarm.net.identity import Identity
from swarm.pools.manifests import DELEGATION_S
from swarm.pools.membership import Credential
from swarm.pools.tickets import read_text, write_text
from swarm.pools.tokens import Grant, delegate, issue, prove

MARK: Final = "sarkd1"
MAX_TEXT: Final = 32 * 1024
MAX_TOKENS: Final = 8
RIGHTS: Final = frozenset({Right.SUBMIT, Right.STATUS})
_MAX_BODY: Final = 22 * 1024
_CONTEXT: Final = b"sark handover 1\n"


class HandoverToken(Message):
    """A token, and the key that issued it."""

    issuer: PeerName
    token: Token


class Handover(Message):
    """What is in the string."""

    v: Literal[1] = 1
    campaign: CampaignId
    owner: PeerName
    gates: Annotated[tuple[AddressText, ...], Field(max_length=8)] = ()
    tokens: Annotated[tuple[HandoverToken, ...], Field(min_length=1, max_length=MAX_TOKENS)]


def passed_on(
    key: Identity,
    held: Iterable[Credential],
    to: str,
    campaign: str,
    *,
    own: bool,
    lasts_s: float,
    now: float,
) -> tuple[HandoverToken, ...]:
    """Tokens that delegate one campaign to `to`: those of `held` and, with `own`, what `key` itself may do.

    Raises `ValueError` when `to` is not a peer id.
    """
    grant = Grant(RIGHTS, campaigns=frozenset({campaign}), ttl_s=lasts_s)
    tokens: list[HandoverToken] = []
    lifetimes = (
        {min(lasts_s, DELEGATION_S), lasts_s} if own else set()
    )  # a pool's workers accept only the short one
    for ttl_s in sorted(lifetimes):
        token = issue(key, to, replace(grant, ttl_s=ttl_s), now=now)
        tokens.append(HandoverToken(issuer=key.peer_id, token=token))
    for credential in held:
        if credential.campaign not in ("", campaign):
            continue
        try:
            token = delegate(credential.token, credential.issuer, key, to, grant, now=now)
        except NotPermitted:  # expired, or passed on as often as allowed
            continue
        tokens.append(HandoverToken(issuer=credential.issuer, token=token))
    return tuple(tokens[:MAX_TOKENS])


def write_handover(handover: Handover) -> str:
    """`handover` as the string."""
    return write_text(MARK, _CONTEXT, handover)


def read_handover(text: str, peer: str, *, now: float) -> tuple[Handover, tuple[Credential, ...]]:
    """The content of the string, and the credentials in it that `peer` can present. Raises `BadTicket` with advice."""
    text = "".join(text.split())
    if not text.startswith(MARK):
        raise BadTicket(
            f"this is not a campaign's token: it begins with {MARK}",
            hint="the campaign's owner makes one: sark-node delegate CAMPAIGN --to SCHEDULER_ID",
        )
    body = read_text(text, MARK, _CONTEXT, "token", MAX_TEXT)
    try:
        handover = read_value(Handover, body, max_bytes=_MAX_BODY)
    except RemoteProtocolError:
        raise BadTicket("this sark-node does not understand this token", hint="update sark-node") from None
    return handover, tuple(_credential(handover, handed, peer, now) for handed in handover.tokens)


def _credential(handover: Handover, handed: HandoverToken, peer: str, now: float) -> Credential:
    """The passed-on token as a credential. Raises `NotPermitted` for another peer's, campaign's or owner's token, and for an expired
    one.
    """
    proof = prove(handed.token, handed.issuer, peer, now=now)
    if proof.grant.campaigns is None or handover.campaign not in proof.grant.campaigns:
        raise NotPermitted("this token is not for the campaign that it names")
    if handover.owner not in (handed.issuer, proof.principal):
        raise NotPermitted("this token is not from the campaign's owner")
    return Credential(
        issuer=handed.issuer, token=handed.token, expires=proof.expires, campaign=handover.campaign
    )
