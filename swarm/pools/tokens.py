"""Tokens: what a key lets somebody do, in bytes that prove it to whoever trusts the key. Biscuits, with one fixed content.

A pool, or an owner's scheduler, issues a token to a peer id; its holder may pass a smaller one on, which it signs itself, and so on:

    issuer ──issue──▶ holder ──delegate──▶ another ──delegate──▶ …            each arrow is one block, at most `MAX_CHAIN` after the first

`prove` is told the peer id that the channel proved: a stolen token is of no use to another. What the blocks say is written in one way
only (`render`); whatever reads otherwise is refused before any of it is run, so a block can never mean more than is understood here.
A `bearer` token travels in a join ticket: it is good for being let into a pool, and for nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
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
from protocol.words import Right, Role
from swarm.net.identity import Identity, peer_id_bytes

MAX_CHAIN: Final = 3
"""Delegations after the issuer's own block."""
LEEWAY_S: Final = 60.0
"""How much the clocks of two machines may differ: a token is taken for so long after its end."""
LONGEST_S: Final = 10 * 365 * 86_400.0
MAX_CAMPAIGNS: Final = 32
MAX_SLOTS: Final = 100_000
ID_BYTES: Final = 8
"""Of a block's revocation id, as many as manifests carry."""
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
    """What is allowed. ValueError, in words, for what no token can say."""

    rights: frozenset[Right]
    priority: int = 100
    """The highest that counts, 0 to 100."""
    slots: int | None = None
    """Places and tickets at a time at each worker; None: no limit of its own."""
    team: str = ""
    campaigns: frozenset[str] | None = None
    """The only ones it is good for; None: any."""
    lasts_s: float = 86_400.0
    """From now."""
    renews_s: float | None = None
    """A gate of the pool gives a token of this life for this one; None: it does not."""

    def __post_init__(self) -> None:
        if not self.rights:
            raise ValueError("a permission without any right")
        if not 0 <= self.priority <= 100:
            raise ValueError(f"priority is {self.priority}; it goes from 0 to 100")
        if self.slots is not None and not 1 <= self.slots <= MAX_SLOTS:
            raise ValueError(f"slots is {self.slots}; it goes from 1 to {MAX_SLOTS}")
        if self.team and not _TEAM.fullmatch(self.team):
            raise ValueError(
                f"the team's name {self.team!r}: letters, digits, space and . _ -, at most 64, beginning with a letter or digit"
            )
        if self.campaigns is not None and not 1 <= len(self.campaigns) <= MAX_CAMPAIGNS:
            raise ValueError(f"{len(self.campaigns)} campaigns; a permission names 1 to {MAX_CAMPAIGNS}")
        for campaign in self.campaigns or ():
            if not _CAMPAIGN.fullmatch(campaign):
                raise ValueError(f"{campaign!r} is no campaign's id")
        for life in (self.lasts_s, self.renews_s):
            if life is not None and not 0 <= life <= LONGEST_S:
                raise ValueError("a permission lasts at most 10 years")


@dataclass(frozen=True, slots=True)
class TokenProof:
    """What a token was found to allow."""

    principal: str
    """On whose behalf: the first holder, who may have delegated it."""
    grant: Grant
    """The least of all blocks; `lasts_s` from now."""
    expires: float
    """Wall seconds."""
    ids: tuple[bytes, ...]
    """The blocks' revocation ids: if one of them is taken back, the token is."""
    holders: tuple[str, ...]
    """The principal, then each who got it by delegation. If one of them is revoked, the token is no good."""


@dataclass(frozen=True, slots=True)
class BearerProof:
    """What the token of a join ticket was found to be good for."""

    role: Role
    grant: Grant
    expires: float
    ids: tuple[bytes, ...]


# -- giving -----------------------------------------------------------------------------------------------------------------------------


def issue(key: Identity, holder: str, grant: Grant, *, now: float) -> bytes:
    """A token under `key`, bound to the holder's peer id. `now` in wall seconds. ValueError for an id that makes no sense."""
    peer_id_bytes(holder)
    return _build(key, TokenBlock.of(key.peer_id, holder, None, grant, now))


def bearer(key: Identity, role: Role, grant: Grant, *, now: float) -> bytes:
    """A token for a join ticket: good for `lasts_s`; who shows it is given the rest of the grant, bound to its peer id."""
    return _build(key, TokenBlock.of(key.peer_id, None, role, grant, now))


def delegate(token: bytes, issuer: str, key: Identity, to: str, grant: Grant, *, now: float) -> bytes:
    """A token for `to`, made of the one `key` holds: at most what both it and `grant` allow.

    Raises `NotPermitted` when `key` is not its holder, nothing would be left, or the chain would be too long.
    """
    peer_id_bytes(to)
    biscuit, blocks = _read(token, issuer)
    proof = _proof(biscuit, blocks, issuer, key.peer_id, now)
    if len(blocks) > MAX_CHAIN:
        raise NotPermitted(
            f"this permission has been passed on {MAX_CHAIN} times, as often as it may be",
            hint="ask an earlier holder for one",
        )
    if to in proof.holders:
        raise NotPermitted(f"{to} holds this permission already")
    block = TokenBlock.of(key.peer_id, to, None, _least(proof.grant, grant), now)
    signed = biscuit.third_party_request().create_block(
        _private(key), BlockBuilder(block.render(first=False))
    )
    return _bounded(bytes(biscuit.append_third_party(_public(key.peer_id), signed).to_bytes()))


# -- proving ------------------------------------------------------------------------------------------------------------------------------


def prove(token: bytes, issuer: str, peer: str, *, now: float) -> TokenProof:
    """What `peer`, as the channel proved it, may do by this token of `issuer`. Raises `NotPermitted`, in words without the token."""
    biscuit, blocks = _read(token, issuer)
    return _proof(biscuit, blocks, issuer, peer, now)


def prove_bearer(token: bytes, issuer: str, *, now: float, leeway_s: float = LEEWAY_S) -> BearerProof:
    """What a ticket's token is good for. `leeway_s`: how far this clock may be from the one it was made by. Raises `NotPermitted`."""
    biscuit, blocks = _read(token, issuer)
    block = blocks[0]
    if block.role is None or len(blocks) > 1 or block.giver != issuer:
        raise NotPermitted("this token is not from a join ticket")
    _in_time(block.until, now, leeway_s)
    _authorize(biscuit, None, now)
    return BearerProof(block.role, block.grant(now), float(block.until), _ids(biscuit))


def _proof(biscuit: Biscuit, blocks: Sequence[TokenBlock], issuer: str, peer: str, now: float) -> TokenProof:
    giver, grant, until = issuer, blocks[0].grant(now), blocks[0].until
    holders: list[str] = []
    for number, block in enumerate(blocks):
        if block.holder is None:
            raise NotPermitted("this token is from a join ticket: it lets in, and nothing else")
        signer = biscuit.block_external_key(number)
        if (None if signer is None else str(signer)) != (_key_name(giver) if number else None):
            raise NotPermitted("a block of this token is not signed by the one who held it before")
        if block.giver != giver or block.holder in holders:
            raise NotPermitted("the blocks of this token do not follow one another")
        if number:
            grant = _least(grant, block.grant(now))
        until = min(until, block.until)
        giver = block.holder
        holders.append(giver)
    if giver != peer:
        raise NotPermitted(f"this token was given to {giver}, not to {peer}")
    _in_time(until, now)
    _authorize(biscuit, peer, now)
    return TokenProof(holders[0], grant, float(until), _ids(biscuit), tuple(holders))


def _least(one: Grant, other: Grant) -> Grant:
    """What both allow, `other` being the later. Raises `NotPermitted` when that is nothing."""
    rights = one.rights & other.rights
    if not rights:
        raise NotPermitted("nothing is left of this permission: its parts share no right")
    campaigns = one.campaigns
    if campaigns is None:
        campaigns = other.campaigns
    elif other.campaigns is not None:
        campaigns &= other.campaigns
        if not campaigns:
            raise NotPermitted("nothing is left of this permission: its parts share no campaign")
    if (
        other.team and one.team != other.team
    ):  # nobody gives itself a team: only who issued the token names one
        of = f"team {one.team}" if one.team else "no team"
        raise NotPermitted(f"this permission is for {of}, not for {other.team}")
    return Grant(
        rights=rights,
        priority=min(one.priority, other.priority),
        slots=min((s for s in (one.slots, other.slots) if s is not None), default=None),
        team=one.team,
        campaigns=campaigns,
        lasts_s=min(one.lasts_s, other.lasts_s),
    )


def utc(wall_s: float) -> str:
    """`2026-11-21 19:53:15 UTC`."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class TokenExpired(NotPermitted):
    """What was given ended before now."""


def _in_time(until: int, now: float, leeway_s: float = LEEWAY_S) -> None:
    if now > until + leeway_s:
        raise TokenExpired(
            f"this permission ended at {utc(until)}", hint="ask for a new one; or mend this clock"
        )


def _authorize(biscuit: Biscuit, peer: str | None, now: float) -> None:
    """Run the checks that the blocks carry, under limits."""
    facts = f"time({_date(int(now - LEEWAY_S))}); allow if true;"
    builder: Any = AuthorizerBuilder(f'peer("{peer}"); {facts}' if peer is not None else facts)
    limits = (
        builder.limits()
    )  # their own time limit is 1 ms, which a busy machine takes without doing anything
    limits.max_time, limits.max_facts, limits.max_iterations = _RUN_TIME, _MAX_FACTS, _MAX_ITERATIONS
    builder.set_limits(limits)
    try:
        builder.build(biscuit).authorize()
    except _BISCUIT_ERRORS:
        raise NotPermitted("a check of this token failed") from None


def _read(token: bytes, issuer: str) -> tuple[Biscuit, list[TokenBlock]]:
    """The token under the issuer's key and what its blocks say. Nothing of it has been run."""
    if len(token) > MAX_TOKEN:
        raise NotPermitted(f"a token of {len(token)} bytes; {MAX_TOKEN} is the most")
    try:
        biscuit = Biscuit.from_bytes(token, _public(issuer))
        count = biscuit.block_count()
        if count > MAX_CHAIN + 1:
            raise NotPermitted(f"this permission was passed on {count - 1} times; {MAX_CHAIN} is the most")
        blocks = [TokenBlock.read(biscuit.block_source(number), first=not number) for number in range(count)]
    except _BISCUIT_ERRORS:
        raise NotPermitted(f"this is no token of {issuer}, or it was changed on the way") from None
    if None in blocks:
        raise NotPermitted("this token says something that is not understood here")
    return biscuit, [block for block in blocks if block is not None]


def _ids(biscuit: Biscuit) -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(text)[:ID_BYTES] for text in biscuit.revocation_ids)


def _build(key: Identity, block: TokenBlock) -> bytes:
    return _bounded(bytes(BiscuitBuilder(block.render(first=True)).build(_private(key)).to_bytes()))


def _bounded(token: bytes) -> bytes:
    if len(token) > MAX_TOKEN:
        raise NotPermitted(
            f"the token would have {len(token)} bytes; {MAX_TOKEN} is the most", hint="name fewer campaigns"
        )
    return token


# -- what a block says ----------------------------------------------------------------------------------------------------------------

_FORM: Final = re.compile(
    r'(?:sark\(1\);\npool\("(?P<pool>\w+)"\);\n(?:holder\("(?P<holder>\w+)"\)|bearer\("(?P<role>\w+)"\))'
    r'|delegated\("(?P<by>\w+)", "(?P<to>\w+)"\));\n'
    r'(?P<rights>(?:right\("[a-z]+"\);\n)+)'
    r"priority\((?P<priority>[0-9]{1,3})\);\n"
    r"(?:slots\((?P<slots>[0-9]{1,6})\);\n)?"
    r'(?:team\("(?P<team>[A-Za-z0-9 ._-]+)"\);\n)?'
    r'(?P<campaigns>(?:campaign\("[A-Za-z0-9._:/-]+"\);\n)*)'
    r"(?:renews\((?P<renews>[0-9]{1,10})\);\n)?"
    r"check if time\(\$t\), \$t <= (?P<until>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z);\n"
    r'(?:check if peer\("\w+"\) or delegated\("\w+", \$p\) trusting ed25519/[0-9a-f]{64};\n)?',
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """The content of one block, in plain values. `holder` None: whoever bears it (`role` says as what it lets them in)."""

    giver: str
    holder: str | None
    role: Role | None
    rights: frozenset[Right]
    priority: int
    slots: int | None
    team: str
    campaigns: frozenset[str] | None
    renews_s: int | None
    until: int

    @classmethod
    def of(cls, giver: str, holder: str | None, role: Role | None, grant: Grant, now: float) -> TokenBlock:
        """What gives `grant` from now on."""
        renews = None if grant.renews_s is None else int(grant.renews_s)
        until = int(now + grant.lasts_s)
        return cls(
            giver,
            holder,
            role,
            grant.rights,
            grant.priority,
            grant.slots,
            grant.team,
            grant.campaigns,
            renews,
            until,
        )

    def grant(self, now: float) -> Grant:
        """As a permission from now on."""
        return Grant(
            rights=self.rights,
            priority=self.priority,
            slots=self.slots,
            team=self.team,
            campaigns=self.campaigns,
            lasts_s=min(max(0.0, self.until - now), LONGEST_S),
            renews_s=self.renews_s,
        )

    def render(self, *, first: bool) -> str:
        """The one way to write it, as the library writes it too. No value in it needs quoting: `Grant` and peer ids see to it."""
        if not first:
            lines = [f'delegated("{self.giver}", "{self.holder}")']
        elif self.holder is not None:
            lines = ["sark(1)", f'pool("{self.giver}")', f'holder("{self.holder}")']
        else:
            lines = ["sark(1)", f'pool("{self.giver}")', f'bearer("{self.role}")']
        lines += [f'right("{right}")' for right in sorted(self.rights)]
        lines += [f"priority({self.priority})"]
        lines += [f"slots({self.slots})"] if self.slots is not None else []
        lines += [f'team("{self.team}")'] if self.team else []
        lines += [f'campaign("{campaign}")' for campaign in sorted(self.campaigns or ())]
        lines += [f"renews({self.renews_s})"] if self.renews_s is not None else []
        lines += [f"check if time($t), $t <= {_date(self.until)}"]
        if self.holder is not None:
            key = _key_name(self.holder)
            lines += [f'check if peer("{self.holder}") or delegated("{self.holder}", $p) trusting {key}']
        return "".join(f"{line};\n" for line in lines)

    @classmethod
    def read(cls, source: str, *, first: bool) -> TokenBlock | None:
        """What a block says; None when it is not written in the one way. ValueError for values out of range."""
        form = _FORM.fullmatch(source)
        if form is None or first != (form["pool"] is not None):
            return None
        block = cls(
            giver=form["pool"] or form["by"],
            holder=form["holder"] or form["to"],
            role=Role(form["role"]) if form["role"] else None,
            rights=frozenset(Right(word) for word in _quoted(form["rights"])),
            priority=int(form["priority"]),
            slots=int(form["slots"]) if form["slots"] else None,
            team=form["team"] or "",
            campaigns=frozenset(_quoted(form["campaigns"])) or None,
            renews_s=int(form["renews"]) if form["renews"] else None,
            until=int(datetime.fromisoformat(form["until"]).timestamp()),
        )
        block.grant(0.0)  # ValueError for a value that no token of ours has
        return block if block.render(first=first) == source else None


def _quoted(lines: str) -> list[str]:
    return re.findall(r'"([^"]*)"', lines)


def _date(wall_s: int) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _key_name(peer: str) -> str:
    """A peer's public key as Biscuits write it. ValueError for an id that makes no sense."""
    return f"ed25519/{peer_id_bytes(peer)[-_KEY_BYTES:].hex()}"


def _public(peer: str) -> PublicKey:
    return PublicKey(_key_name(peer))


def _private(key: Identity) -> PrivateKey:
    return PrivateKey(f"ed25519-private/{key.seed.hex()}")
