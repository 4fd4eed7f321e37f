"""Pools on disk: those made on this home, with their keys, and those it joined, with what they gave it.

    data/pools/NAME/          pool.key, pool (its gates), manifest (signed), tickets (given and not yet over): `own_pools`
    data/pools/joined/        POOLID.worker, POOLID.submit (what the ticket said, and the credential), POOLID.manifest (newest heard of)
    data/scheduler/tokens/    credentials for single campaigns that others handed over

All of it is written durably, mode 0600, and read again where another process of the home may have changed it.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import structlog
from pydantic import Field

from protocol.errors import NotPermitted, RemoteProtocolError, ResourceError
from protocol.messages.pool import ManifestMessage, PoolManifest, read_manifest
from protocol.wire.base import AddressText, Count, Id, Message, Name, PeerName, Token
from protocol.wire.codec import pack
from protocol.words import Right, Role
from swarm.base.durable import UNFINISHED, write_durably
from swarm.base.home import Home
from swarm.pools.files import JOINED, locked, pools_folder, read_file
from swarm.pools.manifests import verified
from swarm.pools.owner import own_pools
from swarm.pools.tickets import MAX_GATES, Ticket
from swarm.pools.tokens import Grant, TokenExpired, issue, prove, prove_bearer, utc

OWN_LASTS_S: Final = 86_400.0
"""The credential that a pool's owner gives itself, anew whenever it is asked for."""

log = structlog.get_logger("sark.pools")


def _told(exc: ResourceError) -> None:
    log.warning("pool.unusable", why=exc.what)


@dataclass(frozen=True, slots=True)
class Credential:
    """What to present to a worker."""

    issuer: str
    """Pool id, or an owner's scheduler id."""
    token: bytes
    pool_name: str
    """As workers advertise it; empty for an owner's."""
    expires: float
    """Wall seconds."""
    campaign: str = ""
    """The only campaign it is for; empty: any."""


class Membership(Message):
    """A pool this home is in, in one role: what the ticket said, and what the pool gave for it."""

    pool: PeerName
    name: Name
    gates: Annotated[tuple[AddressText, ...], Field(max_length=MAX_GATES)] = ()
    role: Annotated[Role, Field(strict=False)]
    ticket: Token | None = None
    """The bearer's token: shown to the ticket's gates until one gives a credential for it."""
    spent: bool = False
    """One did, or said no: what is shown from now on is the credential."""
    credential: Token | None = None
    """Bound to this role's key."""
    since: Count = 0
    """Wall seconds at which the credential was given."""
    until: Count = 0
    """And at which it, or the ticket, is over."""

    def to_show(self, now: float) -> tuple[bytes, ...]:
        """The tokens to show a gate, in turn: a ticket that was not used yet, then the credential; a used ticket when that is over."""
        fresh = (self.ticket,) if self.ticket is not None and not self.spent else ()
        held = (self.credential,) if self.credential is not None and self.until > now else ()
        last = (self.ticket,) if self.ticket is not None and self.spent and not held else ()
        return (*fresh, *held, *last)


def join_pool(home: Home, ticket: Ticket, role: Role, peer: str, *, now: float) -> Membership:
    """Keep what a ticket gives to `peer`, this home's key for `role`. The same ticket again changes nothing.

    Raises `NotPermitted` when it is for another role or peer, is over, or its token is not of the pool.
    """
    if ticket.role is not role:
        how = "sark-node join TICKET" if ticket.role is Role.WORKER else "sark-node pool join TICKET"
        what = "devices that work for it" if ticket.role is Role.WORKER else "those who submit to it"
        raise NotPermitted(f"this ticket of pool {ticket.name} is for {what}", hint=f"use it with: {how}")
    before = _joined(home, ticket.pool, role)
    try:
        fresh = _given(ticket, role, peer, now)
    except TokenExpired as exc:
        raise NotPermitted(
            f"this ticket of pool {ticket.name} is over: {exc.what}, and this device's clock says {utc(now)}",
            hint="ask the pool's owner for a new one; if this clock is wrong, set it and try again",
        ) from None
    if ticket.to is None and before is not None and before.credential is not None and before.until > now:
        # until a gate answers
        held = {"credential": before.credential, "since": before.since, "until": before.until}
        fresh = fresh.model_copy(update=held)
    if before is not None and ticket.token in (before.ticket, before.credential):
        return before
    keep_joined(home, fresh)
    return fresh


def _given(ticket: Ticket, role: Role, peer: str, now: float) -> Membership:
    """What a ticket gives. Raises `NotPermitted`."""
    if ticket.to is not None:
        proof = prove(ticket.token, ticket.pool, peer, now=now)
        return Membership(
            pool=ticket.pool,
            name=ticket.name,
            gates=ticket.gates,
            role=role,
            credential=ticket.token,
            since=int(now),
            until=int(proof.expires),
        )
    bearer = prove_bearer(ticket.token, ticket.pool, now=now)
    if bearer.role is not role:
        raise NotPermitted(f"the token of this ticket is for another role than {role}")
    return Membership(
        pool=ticket.pool,
        name=ticket.name,
        gates=ticket.gates,
        role=role,
        ticket=ticket.token,
        until=int(bearer.expires),
    )


def joined_pools(
    home: Home, role: Role, damaged: Callable[[ResourceError], object] | None = None
) -> tuple[Membership, ...]:
    """The pools this home is in as `role`. `damaged` is told of each file that cannot be read, and the others are given; without it
    the first such raises `ResourceError`."""
    folder = pools_folder(home) / JOINED
    if not folder.is_dir():
        return ()
    found: list[Membership] = []
    for path in sorted(path for path in folder.glob(f"*.{role}") if not UNFINISHED.fullmatch(path.name)):
        try:
            found.append(read_file(path, Membership))
        except ResourceError as exc:
            if damaged is None:
                raise
            damaged(exc)
    return tuple(found)


def keep_joined(home: Home, joined: Membership) -> None:
    """Write what is known of a joined pool."""
    write_durably(pools_folder(home) / JOINED / f"{joined.pool}.{joined.role}", pack(joined.to_wire()))


def leave_pool(home: Home, pool: str, role: Role) -> None:
    """Forget a joined pool in one role."""
    (pools_folder(home) / JOINED / f"{pool}.{role}").unlink(missing_ok=True)


def _joined(home: Home, pool: str, role: Role) -> Membership | None:
    path = pools_folder(home) / JOINED / f"{pool}.{role}"
    return read_file(path, Membership) if path.exists() else None


def kept_manifest(home: Home, pool: str) -> ManifestMessage | None:
    """The newest manifest of a joined pool that was written here; None: none yet, or it is damaged (a gate has it)."""
    try:
        signed = read_file(pools_folder(home) / JOINED / f"{pool}.manifest", ManifestMessage)
        return signed if verified(signed.body, signed.signature).pool == pool else None
    except (ResourceError, RemoteProtocolError):
        return None


def known_manifests(home: Home, role: Role) -> dict[str, tuple[PoolManifest | None, ...]]:
    """The newest manifests on disk of the pools that this home is in as `role`, or made, by name; None: none was heard of yet."""
    found: dict[str, tuple[PoolManifest | None, ...]] = {}
    for joined in joined_pools(home, role, _told):
        kept = kept_manifest(home, joined.pool)
        manifest = read_manifest(kept.body) if kept is not None else None
        found[joined.name] = (*found.get(joined.name, ()), manifest)
    for pool in own_pools(home, _told):
        try:
            found[pool.name] = (*found.get(pool.name, ()), pool.manifest())
        except ResourceError as exc:
            _told(exc)
    return found


def keep_manifest(home: Home, signed: ManifestMessage) -> None:
    """Write a manifest of a joined pool, unless a newer one lies there. It must have been verified."""
    manifest = verified(signed.body, signed.signature)
    folder = pools_folder(home) / JOINED
    with locked(folder):
        kept = kept_manifest(home, manifest.pool)
        if kept is None or verified(kept.body, kept.signature).number < manifest.number:
            write_durably(folder / f"{manifest.pool}.manifest", pack(signed.to_wire()))


def host_name() -> str:
    """What a pool's owner sees this machine called by, unless it says otherwise."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", platform.node().split(".")[0]).lstrip("._-")
    return name[:64] or "unnamed"


# -- to be presented ----------------------------------------------------------------------------------------------------------


class _Handed(Message):
    """A token for one campaign, or for any, as somebody handed it over."""

    issuer: PeerName
    token: Token
    until: Count
    campaign: Id | None = None


def credentials(
    home: Home, role: Role, holder: str, *, now: float, damaged: Callable[[ResourceError], object] = _told
) -> tuple[Credential, ...]:
    """All that `holder`, this home's key for `role`, can present now: of joined pools, of its own, and what was handed over.

    `damaged` is told of each file that cannot be read; the others count.
    """
    found = [
        Credential(joined.pool, joined.credential, joined.name, float(joined.until))
        for joined in joined_pools(home, role, damaged)
        if joined.credential is not None and joined.until > now
    ]
    if role is not Role.SUBMIT:
        return tuple(found)
    grant = Grant(frozenset({Right.SUBMIT, Right.STATUS}), lasts_s=OWN_LASTS_S)
    for pool in own_pools(home, damaged):
        token = issue(pool.key, holder, grant, now=now)
        found.append(Credential(pool.id, token, pool.name, now + OWN_LASTS_S))
    folder = _tokens(home)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if UNFINISHED.fullmatch(path.name):
            continue
        try:
            handed = read_file(path, _Handed)
        except ResourceError as exc:
            damaged(exc)
            continue
        if handed.until > now:
            found.append(
                Credential(handed.issuer, handed.token, "", float(handed.until), handed.campaign or "")
            )
        else:
            path.unlink(missing_ok=True)
    return tuple(found)


def keep_token(home: Home, credential: Credential) -> None:
    """Keep a token that was handed over, for the scheduler of this home to present."""
    handed = _Handed(
        issuer=credential.issuer,
        token=credential.token,
        until=int(credential.expires),
        campaign=credential.campaign or None,
    )
    name = hashlib.sha256(credential.token).hexdigest()[:24]
    write_durably(_tokens(home) / name, pack(handed.to_wire()))


def keep_tokens(home: Home, held: Collection[Credential]) -> None:
    """Keep all of them, and then none that the same issuers gave for the same campaigns before."""
    for credential in held:
        keep_token(home, credential)
    given = {(credential.issuer, credential.campaign) for credential in held}
    fresh = {credential.token for credential in held}
    for path in _tokens(home).iterdir() if held else ():
        if UNFINISHED.fullmatch(path.name):
            continue
        try:
            handed = read_file(path, _Handed)
        except ResourceError:  # it is told of where it would be presented
            continue
        if handed.token not in fresh and (handed.issuer, handed.campaign or "") in given:
            path.unlink(missing_ok=True)


def _tokens(home: Home) -> Path:
    return home.folder("scheduler") / "tokens"
