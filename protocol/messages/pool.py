"""The pool protocol, `/sark/pool/1`: who is in a pool, who was revoked, and how a peer joins.

    anybody                                     a holder, a member or a gate
        │ AskManifest ───────────────────────────▶ │   is there a newer manifest than mine?
        │ ◀──────────── ManifestMessage, NoManifest │
        │ SpreadManifest ────────────────────────▶ │   stored if its signature holds and its number is higher
        │ ◀────────────────────────── ManifestStored │
    a newcomer                                  the gate that has the pool's key
        │ EnrolRequest ──────────────────────────▶ │   with a ticket's token, or with a credential to renew
        │ ◀──────────────── Enrolled, RefusedMessage │   a credential bound to the peer id, and the manifest that names it

A pool is an Ed25519 key; its id is that key as a peer id. A manifest is signed, so anybody may pass it on.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.messages.index import RefusedMessage
from protocol.wire.base import Count, Detail, Line, Message, Name, PeerName, Priority, Signature, Token
from protocol.wire.codec import Vocabulary, pack, read_value
from protocol.words import Role

MAX_MANIFEST: Final = 48 * 1024
"""Bytes of a manifest's body: it fits into one frame."""
MAX_ELEMENTS: Final = 8_192
"""Elements of a manifest; it travels as bytes, so the limit of a frame does not apply."""
MAX_MEMBERS: Final = 256
MAX_REVOKED: Final = 256
_CONTEXT: Final = b"sark pool 1\n"

TokenId = Annotated[bytes, Field(min_length=8, max_length=8)]
"""The first 8 bytes of a token block's revocation id."""


class PoolMember(Message):
    """One member of a pool."""

    peer: PeerName
    role: Annotated[Role, Field(strict=False)]
    name: Name
    team: Line = ""
    priority: Priority = 100
    slots: Annotated[int, Field(ge=1, le=100_000)] | None = None


class PoolManifest(Message):
    """The signed member list of a pool. The highest number counts."""

    v: Literal[1] = 1
    pool: PeerName
    name: Name
    number: Count
    members: Annotated[tuple[PoolMember, ...], Field(max_length=MAX_MEMBERS)] = ()
    revoked: Annotated[tuple[PeerName, ...], Field(max_length=MAX_REVOKED)] = ()
    """Peers that are refused, whatever token they show."""
    revoked_tokens: Annotated[tuple[TokenId, ...], Field(max_length=MAX_REVOKED)] = ()


class AskManifest(Message):
    """Ask for the newest manifest of this pool if it is newer than `have`."""

    type: Literal["ask-manifest"] = "ask-manifest"
    pool: PeerName
    have: Count = 0


class ManifestMessage(Message):
    """Canonical bytes of a `PoolManifest`, signed with the pool's key."""

    type: Literal["manifest"] = "manifest"
    body: Annotated[bytes, Field(max_length=MAX_MANIFEST)]
    signature: Signature


class NoManifest(Message):
    """There is no newer manifest here."""

    type: Literal["no-manifest"] = "no-manifest"


class SpreadManifest(Message):
    """Offer this manifest: store it, and use it if you belong to the pool."""

    type: Literal["spread-manifest"] = "spread-manifest"
    body: Annotated[bytes, Field(max_length=MAX_MANIFEST)]
    signature: Signature


class ManifestStored(Message):
    """The highest manifest number of that pool stored here."""

    type: Literal["manifest-stored"] = "manifest-stored"
    number: Count


class EnrolRequest(Message):
    """Ask to join with a ticket's token, or to renew the credential that is shown."""

    type: Literal["enrol-request"] = "enrol-request"
    pool: PeerName
    token: Token
    role: Annotated[Role, Field(strict=False)]
    name: Name


class Enrolled(Message):
    """Joined: a credential bound to the peer id, and the manifest that names it."""

    type: Literal["enrolled"] = "enrolled"
    token: Token
    body: Annotated[bytes, Field(max_length=MAX_MANIFEST)]
    signature: Signature
    detail: Detail = ""


POOL: Final = Vocabulary(
    AskManifest,
    ManifestMessage,
    NoManifest,
    SpreadManifest,
    ManifestStored,
    EnrolRequest,
    Enrolled,
    RefusedMessage,
)
"""All of the above, and the index's `RefusedMessage`."""


def manifest_body(manifest: PoolManifest) -> bytes:
    """Canonical bytes."""
    return pack(manifest.to_wire())


def manifest_message(body: bytes) -> bytes:
    """What the signature is made over."""
    return _CONTEXT + body


def read_manifest(body: bytes) -> PoolManifest:
    """The manifest in `body`, not yet verified. Raises `RemoteProtocolError`."""
    return read_value(PoolManifest, body, max_bytes=MAX_MANIFEST, max_elements=MAX_ELEMENTS)
