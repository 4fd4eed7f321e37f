"""Manifests of pools: signed, checked and changed. Pure; `protocol/messages/pool.py` says what is in one.

The number only rises, and the highest counts. A manifest only takes away: a good token is enough to be let in, whether or not the
manifest at hand names its holder yet.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, TypeVar

from protocol.errors import LocalProtocolError, NotPermitted, RemoteProtocolError
from protocol.messages.pool import (
    MAX_MANIFEST,
    MAX_MEMBERS,
    MAX_REVOKED,
    ManifestMessage,
    PoolManifest,
    PoolMember,
    manifest_body,
    manifest_message,
    read_manifest,
)
from swarm.net.identity import Identity, verify

_T = TypeVar("_T")
ROOM: Final = 6 * 1024
"""Bytes that members leave free, so that something can always be taken back."""
_FULL: Final = "make a second pool for the others: sark-node pool create NAME"


def sign_manifest(key: Identity, manifest: PoolManifest) -> ManifestMessage:
    """Under the pool's key, as it travels. Raises `NotPermitted` when it is too large to travel."""
    if key.peer_id != manifest.pool:
        raise LocalProtocolError("a manifest is signed with its pool's own key")
    body = manifest_body(manifest)
    if len(body) > MAX_MANIFEST:
        raise NotPermitted(f"pool {manifest.name} is full", hint=_FULL)
    return ManifestMessage(body=body, signature=key.sign(manifest_message(body)))


def verified(body: bytes, signature: bytes) -> PoolManifest:
    """The manifest in `body`, signed by the pool it speaks of. Raises `RemoteProtocolError`."""
    manifest = read_manifest(body)
    if not verify(manifest.pool, manifest_message(body), signature):
        raise RemoteProtocolError(f"a manifest of {manifest.pool} that it did not sign")
    return manifest


def with_member(manifest: PoolManifest, member: PoolMember) -> PoolManifest:
    """With this member in the place of what stood there for its peer and role. The same again gives the same, number and all.

    Raises `NotPermitted` when the peer's permission was taken back, and when the pool is full.
    """
    if member.peer in manifest.revoked:
        raise NotPermitted(f"what pool {manifest.name} allowed {member.peer} was taken back")
    if member in manifest.members:
        return manifest
    others = tuple(m for m in manifest.members if (m.peer, m.role) != (member.peer, member.role))
    fuller = _next(manifest, members=(*others, member))
    if len(others) >= MAX_MEMBERS or len(manifest_body(fuller)) > MAX_MANIFEST - ROOM:
        raise NotPermitted(f"pool {manifest.name} has {len(others)} members and is full", hint=_FULL)
    return fuller


def without(
    manifest: PoolManifest, peers: Collection[str] = (), tokens: Collection[bytes] = ()
) -> PoolManifest:
    """With the permission of these peers, and these tokens, taken back. Raises `NotPermitted` when there is no room for more."""
    revoked = _added(manifest.revoked, peers)
    revoked_tokens = _added(manifest.revoked_tokens, tokens)
    if max(len(revoked), len(revoked_tokens)) > MAX_REVOKED:
        raise NotPermitted(
            f"pool {manifest.name} has taken back {MAX_REVOKED} permissions; there is no room for more",
            hint="make a new pool, and invite those who may stay: sark-node pool create NAME",
        )
    members = tuple(member for member in manifest.members if member.peer not in peers)
    if (revoked, revoked_tokens, members) == (manifest.revoked, manifest.revoked_tokens, manifest.members):
        return manifest
    return _next(manifest, members=members, revoked=revoked, revoked_tokens=revoked_tokens)


def forgiven(manifest: PoolManifest, peer: str) -> PoolManifest:
    """With this peer no longer among the revoked."""
    if peer not in manifest.revoked:
        return manifest
    return _next(manifest, revoked=tuple(other for other in manifest.revoked if other != peer))


def pruned(manifest: PoolManifest, peers: Collection[str], tokens: Collection[bytes]) -> PoolManifest:
    """With these no longer among the revoked: nothing that they were given can still be good."""
    revoked = tuple(peer for peer in manifest.revoked if peer not in peers)
    revoked_tokens = tuple(token for token in manifest.revoked_tokens if token not in tokens)
    if (revoked, revoked_tokens) == (manifest.revoked, manifest.revoked_tokens):
        return manifest
    return _next(manifest, revoked=revoked, revoked_tokens=revoked_tokens)


def caught_up(manifest: PoolManifest, newer: PoolManifest) -> PoolManifest:
    """Ours, after one of our own key with a higher number was met: its home was restored from a copy. What either took back stays so.

    Raises `NotPermitted` when the two together took back more than a manifest can say: nothing of it is dropped in silence.
    """
    if newer.number <= manifest.number:
        return manifest
    revoked = _added(newer.revoked, manifest.revoked)
    revoked_tokens = _added(newer.revoked_tokens, manifest.revoked_tokens)
    members = tuple(m for m in newer.members if m.peer not in manifest.revoked)
    if (revoked, revoked_tokens, members) == (newer.revoked, newer.revoked_tokens, newer.members):
        return newer
    merged = _next(newer, revoked=revoked, revoked_tokens=revoked_tokens, members=members)
    while members and len(manifest_body(merged)) > MAX_MANIFEST:  # it is more to be revoked than to be listed
        members = members[:-1]
        merged = _next(newer, revoked=revoked, revoked_tokens=revoked_tokens, members=members)
    if max(len(revoked), len(revoked_tokens)) > MAX_REVOKED or len(manifest_body(merged)) > MAX_MANIFEST:
        raise NotPermitted(
            f"pool {manifest.name} was restored from a copy, and took back more since than one manifest can say",
            hint="make a new pool, and invite those who may stay: sark-node pool create NAME",
        )
    return merged


def taken_back(manifest: PoolManifest, peers: Collection[str], tokens: Collection[bytes]) -> bool:
    """Whether one of the peers, or one of the token ids, is revoked."""
    return not (set(manifest.revoked).isdisjoint(peers) and set(manifest.revoked_tokens).isdisjoint(tokens))


def _added(had: tuple[_T, ...], more: Collection[_T]) -> tuple[_T, ...]:
    return (*had, *(item for item in dict.fromkeys(more) if item not in had))


def _next(manifest: PoolManifest, **changes: object) -> PoolManifest:
    return manifest.model_copy(update={**changes, "number": manifest.number + 1})
