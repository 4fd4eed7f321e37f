"""What a home stores about the pools it joined, and the tokens that others delegated to it.

    data/pools/NAME/          pool.key, pool (its gates), manifest (signed), tickets: a pool made here, see `swarm.pools.owner`
    data/pools/joined/        POOLID.worker, POOLID.submit (the ticket), POOLID.manifest (the newest received)
    data/scheduler/tokens/    tokens for single campaigns

Everything is written durably, mode 0600, and reread where another process of the home may have changed it.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import structlog
from pydantic import Field

from protocol.errors import NotPermitted, RemoteProtocolError, ResourceError
from protocol.messages.pool import ManifestMessage, PoolManifest, PoolMember, TicketSecret, read_manifest
from protocol.wire.base import AddressText, Count, Message, Name, PeerName, Token
from protocol.wire.codec import pack
from protocol.words import Role
from swarm.base.durable import remove_durably, write_durably
from swarm.base.home import Home
from swarm.base.locks import lock_folder
from swarm.pools.manifests import find_member, verified
from swarm.pools.owner import JOINED, LOCK_WAIT_S, Damaged, own_pools, pools_folder, read_each, read_file
from swarm.pools.tickets import MAX_GATES, Ticket
from swarm.pools.tokens import LEEWAY_S, utc

log = structlog.get_logger("sark.pools")


def warn_unusable(exc: ResourceError) -> None:
    """Log a file that cannot be used."""
    log.warning("pool.unusable", why=exc.what)


class Membership(Message):
    """A pool that this home joined in one role, as described by its ticket. The manifest says whether the home is a member."""

    pool: PeerName
    name: Name
    gates: Annotated[tuple[AddressText, ...], Field(max_length=MAX_GATES)] = ()
    admits: Annotated[tuple[AddressText, ...], Field(max_length=MAX_GATES)] = ()
    role: Annotated[Role, Field(strict=False)]
    ticket: TicketSecret | None = None
    """Shown to the admitting node until it is accepted or refused."""
    until: Count = 0
    """When the ticket ends, in wall seconds."""
    spent: bool = False
    """The ticket was accepted or refused."""

    @property
    def unused(self) -> bool:
        """Whether the ticket must still be shown."""
        return self.ticket is not None and not self.spent

    @property
    def admitters(self) -> tuple[str, ...]:
        """The only nodes to which the ticket is shown."""
        return self.admits or self.gates


def join_pool(home: Home, ticket: Ticket, role: Role, peer: str, *, now: float) -> Membership:
    """Store a ticket for `peer`, this home's key for `role`. Storing the same ticket again changes nothing.

    Raises `NotPermitted` if the ticket is for another role or peer, has expired, or its manifest does not list the peer.
    """
    if ticket.role is not role:
        how = "sark-node join TICKET" if ticket.role is Role.WORKER else "sark-node pool join TICKET"
        what = "devices" if ticket.role is Role.WORKER else "submitters"
        raise NotPermitted(f"this ticket of pool {ticket.name} is for {what}", hint=f"use it with: {how}")
    if now > ticket.until + LEEWAY_S:
        raise NotPermitted(
            f"this ticket of pool {ticket.name} expired at {utc(ticket.until)}, and this device's clock says {utc(now)}",
            hint="ask the pool's owner for a new one; if this clock is wrong, set it and try again",
        )
    shared = ticket.model_dump(include={"pool", "name", "gates", "admits", "role", "until"})
    fresh = Membership(ticket=ticket.secret, **shared)
    if ticket.to is not None:
        if ticket.to != peer:
            raise NotPermitted(f"this ticket is for {ticket.to}, not for {peer}")
        if ticket.manifest is not None:
            try:
                manifest = verified(ticket.manifest)
            except RemoteProtocolError as exc:
                raise NotPermitted("the manifest in this ticket does not have its pool's signature") from exc
            if manifest.pool != ticket.pool or find_member(manifest, peer, role, now) is None:
                raise NotPermitted(f"the manifest in this ticket does not list {peer} in pool {ticket.name}")
            store_manifest(home, ticket.manifest)
    path = pools_folder(home) / JOINED / f"{ticket.pool}.{role}"
    before = read_file(path, Membership) if path.exists() else None
    if before is not None and before.model_copy(update={"spent": False}) == fresh:
        return before
    store_membership(home, fresh)
    return fresh


def joined_pools(home: Home, role: Role, damaged: Damaged | None = None) -> tuple[Membership, ...]:
    """The pools that this home joined as `role`. `damaged`: see `read_each`."""
    folder = pools_folder(home) / JOINED
    return read_each(
        folder, lambda path: path.suffix == f".{role}", lambda path: read_file(path, Membership), damaged
    )


def store_membership(home: Home, joined: Membership) -> None:
    """Write the file of a joined pool."""
    write_durably(pools_folder(home) / JOINED / f"{joined.pool}.{joined.role}", pack(joined.to_wire()))


def leave_pool(home: Home, pool: str, role: Role) -> None:
    """Forget a pool joined in one role."""
    remove_durably(pools_folder(home) / JOINED / f"{pool}.{role}")


def host_name() -> str:
    """The default name of this machine in a pool."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", platform.node().split(".")[0]).lstrip("._-")
    return name[:64] or "unnamed"


# -- manifests ----------------------------------------------------------------------------------------------------------------


def stored_manifest(home: Home, pool: str) -> ManifestMessage | None:
    """The newest manifest of a joined pool on disk; None if there is none yet, or it is damaged (gates have it)."""
    try:
        signed = read_file(pools_folder(home) / JOINED / f"{pool}.manifest", ManifestMessage)
        return signed if verified(signed).pool == pool else None
    except (ResourceError, RemoteProtocolError):
        return None


def store_manifest(home: Home, signed: ManifestMessage) -> None:
    """Write a verified manifest of a joined pool, unless the one on disk is at least as new."""
    manifest = verified(signed)
    folder = pools_folder(home) / JOINED
    with lock_folder(folder, wait_s=LOCK_WAIT_S):
        stored = stored_manifest(home, manifest.pool)
        if stored is None or read_manifest(stored.body).number < manifest.number:
            write_durably(folder / f"{manifest.pool}.manifest", pack(signed.to_wire()))


def membership_of(home: Home, joined: Membership, peer: str, now: float) -> PoolMember | None:
    """The live line of `peer`, this home's key for the role, in the newest manifest on disk."""
    signed = stored_manifest(home, joined.pool)
    return find_member(read_manifest(signed.body), peer, joined.role, now) if signed is not None else None


def signed_manifests(home: Home, role: Role) -> tuple[tuple[str, ManifestMessage | None], ...]:
    """The pools that this home joined as `role` or made, each with its newest manifest (None: none yet)."""
    pools = [
        (joined.name, stored_manifest(home, joined.pool))
        for joined in joined_pools(home, role, warn_unusable)
    ]
    for own in own_pools(home, warn_unusable):
        try:
            pools.append((own.name, own.signed()))
        except ResourceError as exc:
            warn_unusable(exc)
    return tuple(pools)


def known_manifests(home: Home, role: Role) -> dict[str, tuple[PoolManifest | None, ...]]:
    """The content of `signed_manifests`, by pool name."""
    manifests: dict[str, tuple[PoolManifest | None, ...]] = {}
    for name, signed in signed_manifests(home, role):
        manifest = read_manifest(signed.body) if signed is not None else None
        manifests[name] = (*manifests.get(name, ()), manifest)
    return manifests


# -- tokens -------------------------------------------------------------------------------------------------------------------


class Credential(Message):
    """A token that somebody delegated to a key of this home."""

    issuer: PeerName
    """The scheduler that issued the token."""
    token: Token
    expires: Annotated[float, Field(ge=0)]
    """Wall seconds."""
    campaign: Annotated[str, Field(max_length=128)] = ""
    """The only campaign that the token covers; empty: any."""


def credentials(home: Home, *, now: float, damaged: Damaged = warn_unusable) -> tuple[Credential, ...]:
    """The tokens that this home's scheduler can show now. Unreadable files are left out and passed to `damaged`."""
    usable: list[Credential] = []
    for path, credential in _stored_tokens(home, damaged):
        if credential.expires > now:
            usable.append(credential)
        else:
            path.unlink(missing_ok=True)
    return tuple(usable)


def store_tokens(home: Home, fresh: Collection[Credential]) -> None:
    """Write these tokens, which replace older ones of the same issuers for the same campaigns."""
    for credential in fresh:
        name = hashlib.sha256(credential.token).hexdigest()[:24]
        write_durably(_tokens_folder(home) / name, pack(credential.to_wire()))
    replaced = {(credential.issuer, credential.campaign) for credential in fresh}
    tokens = {credential.token for credential in fresh}
    for path, stored in _stored_tokens(home, lambda exc: None):  # `credentials` reports damaged ones
        if stored.token not in tokens and (stored.issuer, stored.campaign) in replaced:
            path.unlink(missing_ok=True)


def _tokens_folder(home: Home) -> Path:
    return home.folder("scheduler") / "tokens"


def _stored_tokens(home: Home, damaged: Damaged) -> tuple[tuple[Path, Credential], ...]:
    return read_each(
        _tokens_folder(home), lambda path: True, lambda path: (path, read_file(path, Credential)), damaged
    )
