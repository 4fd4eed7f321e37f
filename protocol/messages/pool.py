"""The pool conversation, `/sark/pool/1`: who is in a pool, whose permission was taken back, and how one is let in.

    anybody                                     a holder, a member or a gate
        │ Latest ────────────────────────────────▶ │   have you a newer manifest than mine?
        │ ◀─────────────────────── Manifest, Nothing │
        │ Spread ────────────────────────────────▶ │   here is a newer one; kept if its signature holds and its number is higher
        │ ◀─────────────────────────────────── Kept │
    a newcomer                                  the gate that has the pool's key
        │ Enrol ─────────────────────────────────▶ │   this ticket lets me in; or: my credential nears its end
        │ ◀────────────────────── Enrolled, Refused │   a credential bound to my peer id, and the manifest with me in it

A pool is its Ed25519 key; its id is that key as a peer id. A manifest proves itself, so anybody may pass it on.
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
"""A manifest travels as bytes, so a frame's own cap does not bind it."""
MAX_MEMBERS: Final = 256
MAX_REVOKED: Final = 256
_CONTEXT: Final = b"sark pool 1\n"

TokenId = Annotated[bytes, Field(min_length=8, max_length=8)]
"""The first 8 bytes of a token block's revocation id."""


class PoolMember(Message):
    """One of a pool."""

    peer: PeerName
    role: Annotated[Role, Field(strict=False)]
    name: Name
    team: Line = ""
    priority: Priority = 100
    slots: Annotated[int, Field(ge=1, le=100_000)] | None = None


class PoolManifest(Message):
    """What a pool's key says of the pool. The highest number counts."""

    v: Literal[1] = 1
    pool: PeerName
    name: Name
    number: Count
    members: Annotated[tuple[PoolMember, ...], Field(max_length=MAX_MEMBERS)] = ()
    revoked: Annotated[tuple[PeerName, ...], Field(max_length=MAX_REVOKED)] = ()
    """Peers that are not let in any more, whatever token they show."""
    revoked_tokens: Annotated[tuple[TokenId, ...], Field(max_length=MAX_REVOKED)] = ()


class AskManifest(Message):
    """The newest manifest of this pool, if it is newer than `have`."""

    type: Literal["ask-manifest"] = "ask-manifest"
    pool: PeerName
    have: Count = 0


class ManifestMessage(Message):
    """Here it is: canonical bytes of a `PoolManifest` under the pool's key."""

    type: Literal["manifest"] = "manifest"
    body: Annotated[bytes, Field(max_length=MAX_MANIFEST)]
    signature: Signature


class NoManifest(Message):
    """None newer than yours here."""

    type: Literal["no-manifest"] = "no-manifest"


class SpreadManifest(Message):
    """Keep this manifest, and use it if you are of this pool."""

    type: Literal["spread-manifest"] = "spread-manifest"
    body: Annotated[bytes, Field(max_length=MAX_MANIFEST)]
    signature: Signature


class ManifestStored(Message):
    """The highest number of that pool here now."""

    type: Literal["manifest-stored"] = "manifest-stored"
    number: Count


class EnrolRequest(Message):
    """Let me in, by a ticket's token; or give me a fresh credential, by the one I have."""

    type: Literal["enrol-request"] = "enrol-request"
    pool: PeerName
    token: Token
    role: Annotated[Role, Field(strict=False)]
    name: Name


class Enrolled(Message):
    """You are in. `token` is bound to your peer id; with it comes the manifest that names you."""

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
