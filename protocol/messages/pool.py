"""The pool protocol, `/sark/pool/1`: who is in a pool, who was revoked, and how a newcomer joins.

    any peer                                    a holder, a member or a gate
        │ AskManifest ───────────────────────────▶ │   is there a newer manifest than mine?
        │ ◀──────────── ManifestMessage, NoManifest │
        │ ManifestMessage ───────────────────────▶ │   stored if its signature holds and its number is higher
        │ ◀────────────────────────── ManifestStored │
    a newcomer or a member                      a node that has the pool's key
        │ EnrolRequest ──────────────────────────▶ │   with a ticket's secret, or without one to renew
        │ ◀────────── ManifestMessage, RefusedMessage │   the manifest that lists the sender

A pool is identified by its Ed25519 key; its id is that key as a peer id. The manifest is the only list of its members. It carries the
pool's signature, so any peer may pass it on; a member shows it to a worker whose own copy is older.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.messages.index import RefusedMessage
from protocol.wire.base import Count, Line, Message, Name, PeerName, Priority, Signature
from protocol.wire.codec import Vocabulary, pack, read_value
from protocol.words import Role

MAX_MANIFEST: Final = 48 * 1024
"""Most bytes of a manifest's body, so that it fits into one frame."""
MAX_ELEMENTS: Final = 8_192
"""Most elements of a manifest; it is sent as bytes, so the limit of a frame does not apply."""
MAX_MEMBERS: Final = 256
MAX_REVOKED: Final = 256
SECRET_BYTES: Final = 16
_CONTEXT: Final = b"sark pool 1\n"

TicketSecret = Annotated[bytes, Field(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
"""Random bytes that admit anyone who shows them. The pool's owner stores their hash."""


class PoolMember(Message):
    """A member of a pool, in one role."""

    peer: PeerName
    role: Annotated[Role, Field(strict=False)]
    name: Name
    team: Line = ""
    priority: Priority = 100
    """The highest effective priority."""
    slots: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Runs and queued tasks at a time on each worker; None: no limit."""
    until: Count | None = None
    """When the membership ends, in wall seconds; None: never."""
    ttl_s: Count | None = None
    """How long a renewal extends it, from the time of the renewal; None: it needs no renewal."""
    device: Name | None = None
    """The id of the worker's device, according to the pool; None: unknown, or not a worker."""


class RevokedPeer(Message):
    """A peer that has no right in the pool, whoever delegates one to it."""

    peer: PeerName
    until: Count
    """In wall seconds: from then on, no token delegated before the revocation can still be valid."""


class PoolManifest(Message):
    """The members of a pool, as its key signs them. The highest number counts."""

    v: Literal[1] = 1
    pool: PeerName
    name: Name
    number: Count
    members: Annotated[tuple[PoolMember, ...], Field(max_length=MAX_MEMBERS)] = ()
    revoked: Annotated[tuple[RevokedPeer, ...], Field(max_length=MAX_REVOKED)] = ()


class AskManifest(Message, type="ask-manifest"):
    """Ask for the newest manifest of this pool if it is newer than `have`."""

    pool: PeerName
    have: Count = 0


class ManifestMessage(Message, type="manifest"):
    """Canonical bytes of a `PoolManifest`, signed with the pool's key. As a call: store it, and use it if you belong to the pool."""

    body: Annotated[bytes, Field(max_length=MAX_MANIFEST)]
    signature: Signature


class NoManifest(Message, type="no-manifest"):
    """There is no newer manifest here."""


class ManifestStored(Message, type="manifest-stored"):
    """The highest manifest number of that pool stored here."""

    number: Count


class EnrolRequest(Message, type="enrol-request"):
    """Ask to join by a ticket's secret or, without one, to renew the sender's membership. The answer is the manifest that lists it."""

    pool: PeerName
    role: Annotated[Role, Field(strict=False)]
    name: Name
    ticket: TicketSecret | None = None
    device: Name | None = None
    """The id of the sender's device, as in its advert; None: the sender is not a worker."""


POOL: Final = Vocabulary(
    AskManifest,
    ManifestMessage,
    NoManifest,
    ManifestStored,
    EnrolRequest,
    RefusedMessage,
    calls=(AskManifest, ManifestMessage, EnrolRequest),
)
"""All of the above, and the index's `RefusedMessage`."""


def manifest_body(manifest: PoolManifest) -> bytes:
    """Canonical bytes, without fields that have their default value, which leaves room for more members."""
    return pack(manifest.model_dump(mode="python", exclude_defaults=True))


def manifest_message(body: bytes) -> bytes:
    return _CONTEXT + body


def read_manifest(body: bytes) -> PoolManifest:
    """The manifest in `body`, not yet verified. Raises `RemoteProtocolError`."""
    return read_value(PoolManifest, body, max_bytes=MAX_MANIFEST, max_elements=MAX_ELEMENTS)
