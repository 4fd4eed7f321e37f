"""Tokens: rights that one peer delegates to another, as Biscuits with one fixed form of content.

    issuer ──issue──▶ holder ──delegate──▶ another ──delegate──▶ …            each arrow is one block, at most `MAX_CHAIN` after the first

A verifier that trusts the issuer's key checks a token with `prove`, using the peer id that the channel proved, so a stolen token is
useless. A block can be written in only one way (`TokenBlock.render`). A token with any other content is refused before any of it runs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from biscuit_auth import (
    AuthorizationError,
    AuthorizerBuilder,
    Biscuit,
    BiscuitBlockError,
    BiscuitBuilder,
    BiscuitBuildError,
    BiscuitSerializationError,
    BiscuitValidationError,
    BlockBuilder,
    DataLogError,
    PrivateKey,
    PublicKey,
)

from protocol.errors import NotPermitted
from protocol.wire.base import MAX_TOKEN
from protocol.words import Right
from swarm.net.identity import Identity, peer_id_bytes

MAX_CHAIN: Final = 3
"""Delegations after the issuer's own block."""
LEEWAY_S: Final = 60.0
"""How far the clocks of two machines may differ: a token is accepted for this long after it expires."""
MAX_TTL_S: Final = 10 * 365 * 86_400.0
MAX_CAMPAIGNS: Final = 32
MAX_SLOTS: Final = 100_000
ID_BYTES: Final = 8
_RUN_TIME: Final = timedelta(milliseconds=200)
_MAX_FACTS: Final = 256
_MAX_ITERATIONS: Final = 16
_KEY_BYTES: Final = 32
_BISCUIT_ERRORS: Final = (
    AuthorizationError,
    BiscuitBlockError,
    BiscuitBuildError,
    BiscuitSerializationError,
    BiscuitValidationError,
    DataLogError,
    ValueError,
)

_TEAM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")
_CAMPAIGN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token allows. Raises ValueError for values that no token can have."""

    rights: frozenset[Right]
    priority: int = 100
    """The highest effective priority, 0 to 100."""
    slots: int | None = None
    """Runs and queued tasks at a time on each worker; None: no limit of its own."""
    team: str = ""
    campaigns: frozenset[str] | None = None
    """The only campaigns that the token covers; None: any."""
    ttl_s: float = 86_400.0
    """Lifetime from now."""

    def __post_init__(self) -> None:
        if not self.rights:
            raise ValueError("a permission needs at least one right")
        if not 0 <= self.priority <= 100:
            raise ValueError(f"priority is {self.priority}; it goes from 0 to 100")
        if self.slots is not None and not 1 <= self.slots <= MAX_SLOTS:
            raise ValueError(f"slots is {self.slots}; it goes from 1 to {MAX_SLOTS}")
        if self.team:
            check_team(self.team)
        if self.campaigns is not None and not 1 <= len(self.campaigns) <= MAX_CAMPAIGNS:
            raise ValueError(f"{len(self.campaigns)} campaigns; a permission can name 1 to {MAX_CAMPAIGNS}")
        for campaign in self.campaigns or ():
            if not _CAMPAIGN.fullmatch(campaign):
                raise ValueError(f"{campaign!r} is not a campaign's id")
        if not 0 <= self.ttl_s <= MAX_TTL_S:
            raise ValueError("a permission lasts at most 10 years")


def check_team(team: str) -> None:
    """Raise ValueError for a name that no team can have."""
    if not _TEAM.fullmatch(team):
        raise ValueError(
            f"the team's name {team!r}: letters, digits, space and . _ -, at most 64, beginning with a letter or digit"
        )


@dataclass(frozen=True, slots=True)
class TokenProof:
    """What a token allows, verified for one peer."""

    principal: str
    """The first holder, which may have delegated the token."""
    grant: Grant
    """What all blocks allow; its `ttl_s` counts from now."""
    expires: float
    """Wall seconds."""
    life_s: float
    """Seconds from the issue of the first block to `expires`."""
    ids: tuple[bytes, ...]
    """The blocks' revocation ids, which distinguish tokens."""
    holders: tuple[str, ...]
    """The principal, then each peer to which the token was delegated."""


# -- issuing ----------------------------------------------------------------------------------------------------------------------------


def issue(key: Identity, holder: str, grant: Grant, *, now: float) -> bytes:
    """A token under `key`, bound to the holder's peer id. `now`: wall seconds. Raises ValueError for a bad id."""
    peer_id_bytes(holder)
    source = TokenBlock.of(key.peer_id, holder, grant, now).render(first=True)
    return _bounded(bytes(BiscuitBuilder(source).build(_private(key)).to_bytes()))


def delegate(token: bytes, issuer: str, key: Identity, to: str, grant: Grant, *, now: float) -> bytes:
    """A token for `to`, made from the one that `key` holds. It allows at most what both that token and `grant` allow.

    Raises `NotPermitted` if `key` is not the holder, nothing would be left, or the chain would be too long.
    """
    peer_id_bytes(to)
    biscuit, blocks = _read(token, issuer)
    proof = _proof(biscuit, blocks, issuer, key.peer_id, now)
    if len(blocks) > MAX_CHAIN:
        raise NotPermitted(
            f"this permission was already delegated {MAX_CHAIN} times, which is the maximum",
            hint="ask an earlier holder for one",
        )
    if to in proof.holders:
        raise NotPermitted(f"{to} holds this permission already")
    block = TokenBlock.of(key.peer_id, to, intersect_grants(proof.grant, grant), now)
    signed = biscuit.third_party_request().create_block(
        _private(key), BlockBuilder(block.render(first=False))
    )
    return _bounded(bytes(biscuit.append_third_party(_public(key.peer_id), signed).to_bytes()))


# -- proving ------------------------------------------------------------------------------------------------------------------------------


def prove(token: bytes, issuer: str, peer: str, *, now: float) -> TokenProof:
    """What this token of `issuer` allows `peer`, whose id the channel proved. Raises `NotPermitted`; the error never quotes the token."""
    biscuit, blocks = _read(token, issuer)
    return _proof(biscuit, blocks, issuer, peer, now)


def _proof(biscuit: Biscuit, blocks: Sequence[TokenBlock], issuer: str, peer: str, now: float) -> TokenProof:
    giver, grant, until = issuer, blocks[0].grant(now), blocks[0].until
    holders: list[str] = []
    for number, block in enumerate(blocks):
        signer = biscuit.block_external_key(number)
        if (None if signer is None else str(signer)) != (_key_name(giver) if number else None):
            raise NotPermitted("a block of this token is not signed by its previous holder")
        if block.giver != giver or block.holder in holders:
            raise NotPermitted("the blocks of this token do not follow one another")
        if number:
            grant = intersect_grants(grant, block.grant(now))
        until = min(until, block.until)
        giver = block.holder
        holders.append(giver)
    if giver != peer:
        raise NotPermitted(f"this token is bound to {giver}, not to {peer}")
    if now > until + LEEWAY_S:
        raise NotPermitted(
            f"this permission expired at {utc(until)}", hint="ask for a new one, or set this clock"
        )
    _authorize(biscuit, peer, now)
    ids = tuple(bytes.fromhex(text)[:ID_BYTES] for text in biscuit.revocation_ids)
    return TokenProof(holders[0], grant, float(until), until - blocks[0].since, ids, tuple(holders))


def intersect_grants(one: Grant, other: Grant) -> Grant:
    """The grant that both allow; `other` is the later one. Raises `NotPermitted` if they share nothing."""
    rights = one.rights & other.rights
    if not rights:
        raise NotPermitted("this permission allows nothing: its blocks share no right")
    campaigns = one.campaigns
    if campaigns is None:
        campaigns = other.campaigns
    elif other.campaigns is not None:
        campaigns &= other.campaigns
        if not campaigns:
            raise NotPermitted("this permission allows nothing: its blocks share no campaign")
    if other.team and one.team != other.team:  # only the issuer can name a team
        of = f"team {one.team}" if one.team else "no team"
        raise NotPermitted(f"this permission is for {of}, not for {other.team}")
    return Grant(
        rights=rights,
        priority=min(one.priority, other.priority),
        slots=min((s for s in (one.slots, other.slots) if s is not None), default=None),
        team=one.team,
        campaigns=campaigns,
        ttl_s=min(one.ttl_s, other.ttl_s),
    )


def utc(wall_s: float) -> str:
    """`2026-11-21 19:53:15 UTC`."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _authorize(biscuit: Biscuit, peer: str, now: float) -> None:
    """Run the checks in the blocks, under limits."""
    builder: Any = AuthorizerBuilder(f'peer("{peer}"); time({_date(int(now - LEEWAY_S))}); allow if true;')
    limits = builder.limits()  # the library's own time limit of 1 ms is too short on a busy machine
    limits.max_time, limits.max_facts, limits.max_iterations = _RUN_TIME, _MAX_FACTS, _MAX_ITERATIONS
    builder.set_limits(limits)
    try:
        builder.build(biscuit).authorize()
    except _BISCUIT_ERRORS:
        raise NotPermitted("a check of this token failed") from None


def _read(token: bytes, issuer: str) -> tuple[Biscuit, list[TokenBlock]]:
    """The token under the issuer's key, and its blocks. Runs nothing of it."""
    if len(token) > MAX_TOKEN:
        raise NotPermitted(f"a token of {len(token)} bytes; at most {MAX_TOKEN} are allowed")
    try:
        biscuit = Biscuit.from_bytes(token, _public(issuer))
        count = biscuit.block_count()
        if count > MAX_CHAIN + 1:
            raise NotPermitted(
                f"this permission was delegated {count - 1} times; at most {MAX_CHAIN} are possible"
            )
        blocks = [TokenBlock.read(biscuit.block_source(number), first=not number) for number in range(count)]
    except _BISCUIT_ERRORS:
        raise NotPermitted(f"this is not a token of {issuer}, or it was altered") from None
    if None in blocks:
        raise NotPermitted("this token has a block that this sark-node does not understand")
    return biscuit, [block for block in blocks if block is not None]


def _bounded(token: bytes) -> bytes:
    if len(token) > MAX_TOKEN:
        raise NotPermitted(
            f"the token would have {len(token)} bytes; at most {MAX_TOKEN} are allowed",
            hint="name fewer campaigns",
        )
    return token


# -- blocks --------------------------------------------------------------------------------------------------------------------------

_FACT: Final = re.compile(r'^(\w+)\("?([^"\n]*?)"?(?:, "(\w+)")?\);$', re.ASCII | re.MULTILINE)
_UNTIL: Final = re.compile(r"^check if time\(\$t\), \$t <= ([0-9TZ:-]{20});$", re.ASCII | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """The content of one block, in plain values."""

    giver: str
    holder: str
    terms: Grant
    """The grant as of `since`."""
    since: int
    until: int

    @classmethod
    def of(cls, giver: str, holder: str, grant: Grant, now: float) -> TokenBlock:
        """The block that gives `grant` from now on."""
        return cls(giver, holder, grant, int(now), int(now + grant.ttl_s))

    def grant(self, now: float) -> Grant:
        """What the block grants from now on."""
        return replace(self.terms, ttl_s=min(max(0.0, self.until - now), MAX_TTL_S))

    def render(self, *, first: bool) -> str:
        """The only valid text of the block, which is also the library's. `Grant` and peer ids contain nothing that needs quoting."""
        lines = (
            ["sark(1)", f'issuer("{self.giver}")', f'holder("{self.holder}")']
            if first
            else [f'delegated("{self.giver}", "{self.holder}")']
        )
        terms = self.terms
        lines += [f'right("{right}")' for right in sorted(terms.rights)]
        lines += [f"priority({terms.priority})"]
        lines += [f"slots({terms.slots})"] if terms.slots is not None else []
        lines += [f'team("{terms.team}")'] if terms.team else []
        lines += [f'campaign("{campaign}")' for campaign in sorted(terms.campaigns or ())]
        lines += [f"since({self.since})", f"check if time($t), $t <= {_date(self.until)}"]
        key = _key_name(self.holder)
        lines += [f'check if peer("{self.holder}") or delegated("{self.holder}", $p) trusting {key}']
        return "".join(f"{line};\n" for line in lines)

    @classmethod
    def read(cls, source: str, *, first: bool) -> TokenBlock | None:
        """Parse a block; None unless it is the text that `render` gives. Raises ValueError for values out of range."""
        facts: dict[str, list[str]] = defaultdict(list)
        for name, *values in _FACT.findall(source):
            facts[name] += filter(None, values)
        giver, holder = (*facts["issuer"], *facts["holder"], *facts["delegated"], "", "")[:2]
        until = _UNTIL.search(source)
        if (
            until is None
            or not facts["priority"]
            or not re.fullmatch(r"[0-9]{1,12}", "".join(facts["since"]))
        ):
            return None
        terms = Grant(
            rights=frozenset(map(Right, facts["right"])),
            priority=int(facts["priority"][0]),
            slots=int(facts["slots"][0]) if facts["slots"] else None,
            team=facts["team"][0] if facts["team"] else "",
            campaigns=frozenset(facts["campaign"]) or None,
        )
        ends = int(datetime.fromisoformat(until[1]).timestamp())
        block = cls(giver, holder, terms, int(facts["since"][0]), ends)
        return block if block.render(first=first) == source else None  # only the text that `render` gives


def _date(wall_s: int) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _key_name(peer: str) -> str:
    """A peer's public key as Biscuits write it. Raises ValueError for a bad id."""
    return f"ed25519/{peer_id_bytes(peer)[-_KEY_BYTES:].hex()}"


def _public(peer: str) -> PublicKey:
    return PublicKey(_key_name(peer))


def _private(key: Identity) -> PrivateKey:
    return PrivateKey(f"ed25519-private/{key.seed.hex()}")
