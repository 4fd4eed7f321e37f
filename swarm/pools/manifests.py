"""Pool manifests: signing, verifying, searching and changing them. Pure; `protocol/messages/pool.py` defines their fields.

A member may act while its line in the newest manifest has not ended. Numbers only rise, and the manifest with the highest counts.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from protocol.errors import LocalProtocolError, NotPermitted, RemoteProtocolError
from protocol.messages.pool import (
    MAX_MANIFEST,
    MAX_MEMBERS,
    MAX_REVOKED,
    ManifestMessage,
    PoolManifest,
    PoolMember,
    RevokedPeer,
    manifest_body,
    manifest_message,
    read_manifest,
)
from protocol.words import Role
from swarm.net.identity import Identity, verify
from swarm.pools.tokens import LEEWAY_S

RESERVED: Final = 8 * 1024
"""Bytes that members must leave free, so that there is room for a revocation."""
DELEGATION_S: Final = 30 * 86_400.0
"""A pool's workers accept a member's token only if it was issued for at most this long."""
MARGIN_S: Final = 86_400.0
"""How long ended lines stay in the manifest, since clocks differ."""
_FULL: Final = "make a second pool: sark-node pool create NAME"


def sign_manifest(key: Identity, manifest: PoolManifest) -> ManifestMessage:
    """The manifest signed with the pool's key, as it is sent. Raises `NotPermitted` if it is too large."""
    if key.peer_id != manifest.pool:
        raise LocalProtocolError("a manifest is signed with its pool's own key")
    body = manifest_body(manifest)
    if len(body) > MAX_MANIFEST:
        raise NotPermitted(f"pool {manifest.name} is full", hint=_FULL)
    return ManifestMessage(body=body, signature=key.sign(manifest_message(body)))


def verified(signed: ManifestMessage) -> PoolManifest:
    """The manifest in a message, verified to be signed by the pool that it names. Raises `RemoteProtocolError`."""
    manifest = read_manifest(signed.body)
    if not verify(manifest.pool, manifest_message(signed.body), signed.signature):
        raise RemoteProtocolError(f"a manifest of {manifest.pool} without its signature")
    return manifest


# -- searching ----------------------------------------------------------------------------------------------------------------


def is_live(member: PoolMember, now: float) -> bool:
    """Whether a membership has not ended. `now`: wall seconds; clocks may differ by `LEEWAY_S`."""
    return member.until is None or now <= member.until + LEEWAY_S


def find_member(manifest: PoolManifest | None, peer: str, role: Role, now: float) -> PoolMember | None:
    """A peer's live line for that role."""
    members = manifest.members if manifest is not None else ()
    return next((m for m in members if (m.peer, m.role) == (peer, role) and is_live(m, now)), None)


def live_members(manifest: PoolManifest, now: float) -> frozenset[str]:
    """The peers whose membership has not ended."""
    return frozenset(member.peer for member in manifest.members if is_live(member, now))


def revoked_peers(manifest: PoolManifest) -> frozenset[str]:
    """The peers that were revoked."""
    return frozenset(revoked.peer for revoked in manifest.revoked)


# -- changing -----------------------------------------------------------------------------------------------------------------


def with_member(
    manifest: PoolManifest, member: PoolMember, now: float, *, pardon: bool = False
) -> PoolManifest:
    """The manifest with this line in place of the one for its peer and role. An equal line returns the same manifest, with the same number.

    Raises `NotPermitted` if the pool is full or, without `pardon`, if the peer was revoked.
    """
    revoked = manifest.revoked
    if pardon:
        revoked = tuple(each for each in revoked if each.peer != member.peer)
    elif member.peer in revoked_peers(manifest):
        raise NotPermitted(f"pool {manifest.name} revoked {member.peer}")
    if member in manifest.members and revoked == manifest.revoked:
        return manifest
    others = tuple(m for m in manifest.members if (m.peer, m.role) != (member.peer, member.role))
    fuller = _next(manifest, now, (*others, member), revoked)
    count = len(fuller.members)
    if count > MAX_MEMBERS or len(manifest_body(fuller)) > MAX_MANIFEST - RESERVED:
        raise NotPermitted(f"pool {manifest.name} has {count - 1} members and is full", hint=_FULL)
    return fuller


def revoke_peers(manifest: PoolManifest, peers: Collection[str], now: float) -> PoolManifest:
    """The manifest with these peers revoked. Raises `NotPermitted` if there is no room for more."""
    until = int(now + DELEGATION_S + MARGIN_S)
    fresh = tuple(RevokedPeer(peer=p, until=until) for p in sorted(set(peers) - revoked_peers(manifest)))
    members = tuple(member for member in manifest.members if member.peer not in peers)
    if not fresh and members == manifest.members:
        return manifest
    after = _next(manifest, now, members, (*manifest.revoked, *fresh))
    if len(after.revoked) > MAX_REVOKED:
        raise NotPermitted(
            f"pool {manifest.name} has revoked {MAX_REVOKED} peers in the last month, which is the maximum",
            hint="create a new pool, and invite the members that may stay: sark-node pool create NAME",
        )
    return after


def merge_restored_manifest(manifest: PoolManifest, newer: PoolManifest, now: float) -> PoolManifest:
    """The newer of two manifests of our own pool, whose home was restored from a copy, with the peers of both revoked.

    Raises `NotPermitted` if there are more than a manifest can hold: none is dropped silently.
    """
    if newer.number <= manifest.number:
        return manifest
    merged = revoke_peers(newer, [revoked.peer for revoked in manifest.revoked], now)
    while merged.members and len(manifest_body(merged)) > MAX_MANIFEST:  # revocations come before members
        merged = merged.model_copy(update={"members": merged.members[:-1]})
    if len(manifest_body(merged)) > MAX_MANIFEST:
        raise NotPermitted(
            f"pool {manifest.name} was restored from a copy and has revoked more peers than one manifest can hold",
            hint="create a new pool, and invite the members that may stay: sark-node pool create NAME",
        )
    return merged


def _next(
    manifest: PoolManifest, now: float, members: tuple[PoolMember, ...], revoked: tuple[RevokedPeer, ...]
) -> PoolManifest:
    """The next manifest, without lines that ended long ago."""
    update = {
        "number": manifest.number + 1,
        "members": tuple(m for m in members if m.until is None or m.until + MARGIN_S > now),
        "revoked": tuple(each for each in revoked if each.until > now),
    }
    return manifest.model_copy(update=update)
