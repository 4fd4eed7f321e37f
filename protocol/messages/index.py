"""The index protocol, `/sark/index/1`: find the nodes near a key, store an advert there, query the adverts that match.

    publisher                                       holder
       │── FindPeers(key) ───────────────────────────▶│   repeated until nobody nearer is named
       │◀─────────────────────── FoundPeers(contacts) │
       │── StoreAdverts(advert, items) ──────────────▶│   one message for all attributes this holder stores
       │◀────────── StoreReply(items, closer contacts) │   for each attribute: ok, split, full or refused
       │── MarkSplit(shard) ─────────────────────────▶│   "I publish below this shard": many such make a split mark, and tell how deep
       │◀────────────────────────── MarkReply(split?) │
    reader
       │── QueryShard(shard, requirement, cursor) ───▶│   filtered at the holder
       │◀─────────────── ShardPage(adverts, counts …) │
    any of them
       │◀─────────────────── RefusedMessage(reason, …)│

Messages never carry keys: both sides compute them from pool, attribute, depth and prefix (`protocol.values.index_keys`), so nobody can
store an advert under a key it does not belong to.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from protocol.values.advert import SignedAdvert
from protocol.values.index_keys import MAX_SHARD_DEPTH, AttributeText
from protocol.values.requirement import Requirement
from protocol.wire.base import AddressText, Count, Detail, Key32, Line, Message, PeerName, Seconds
from protocol.wire.codec import Vocabulary
from protocol.words import Reason

FAMILY: Final = "/sark/index/1"
PAGE_LIMIT: Final = 32
"""Most adverts in one page: 32 of 1 KiB with their signatures stay well below the frame limit."""
MAX_ITEMS: Final = 64
"""Most attributes in one `StoreAdverts`."""
MAX_CONTACTS: Final = 16
MAX_COUNTED: Final = 32
"""Most attributes that a holder counts in a shard for one call."""
HAVE_BYTES: Final = 4
"""Bytes of a routing key that identify a peer in `have`."""

ShardDepth = Annotated[int, Field(ge=0, le=MAX_SHARD_DEPTH)]
ShardPrefix = Annotated[int, Field(ge=0, lt=2**MAX_SHARD_DEPTH)]
Have = Annotated[bytes, Field(max_length=HAVE_BYTES * MAX_CONTACTS)]
"""Holders that the sender knows for this shard, 4 bytes of routing key each; the reply names only others."""


class StoreVerdict(StrEnum):
    """What a holder did with an advert under one attribute."""

    OK = "ok"
    SPLIT = "split"
    """The shard is split: publish deeper. The advert is stored here too while there is room."""
    FULL = "full"
    """The shard, this holder, or the publisher's network has used its share."""
    REFUSED = "refused"
    """The advert breaks a rule; `reason` in the reply says which."""


class ContactInfo(Message):
    """How to reach a peer that stores adverts."""

    peer: PeerName
    addresses: Annotated[tuple[AddressText, ...], Field(max_length=8)]


Contacts = Annotated[tuple[ContactInfo, ...], Field(max_length=MAX_CONTACTS)]


class FindPeers(Message, type="find-peers"):
    """Ask for the peers nearest to `key`. Peers that store adverts themselves fill in `sender`."""

    key: Key32
    count: Annotated[int, Field(ge=1, le=MAX_CONTACTS)] = 8
    sender: ContactInfo | None = None


class FoundPeers(Message, type="found-peers"):
    """The nearest peers this one knows, nearest first, without itself and the sender."""

    contacts: Contacts = ()
    client: bool | None = None
    """True: the replying node stores no adverts; ask the peers that it names instead."""


class StoreItem(Message):
    """One attribute to store the advert under. The prefix is the signer's own."""

    attribute: AttributeText
    depth: ShardDepth = 0
    have: Have = b""


class StoreAdverts(Message, type="store-adverts"):
    """Store my advert under these attributes. A tombstone (`gone`) needs no items: it removes all of them."""

    advert: SignedAdvert
    items: Annotated[tuple[StoreItem, ...], Field(max_length=MAX_ITEMS)] = ()


class StoredItem(Message):
    """The verdict on one item, with the number of adverts in the shard here."""

    verdict: Annotated[StoreVerdict, Field(strict=False)]
    count: Count = 0
    below: Count | None = None
    """For a split shard: about how many adverts are below it, according to the publishers there."""
    having: Annotated[tuple[Count, ...], Field(max_length=MAX_COUNTED)] = ()
    """For a shard of everybody: how many adverts in it have each of the first 32 attributes that the sender's advert contains."""


class StoreReply(Message, type="store-reply"):
    """One verdict for each item, in order, and holders nearer to some keys than the publisher knew."""

    items: Annotated[tuple[StoredItem, ...], Field(max_length=MAX_ITEMS)] = ()
    reason: Detail = ""
    """Why something was refused; empty if nothing was."""
    closer: Contacts = ()


class ListedAdvert(Message):
    """A stored advert and the time since its node published it."""

    advert: SignedAdvert
    age_s: Seconds
    present: bool = False
    """Its node published it to this holder directly, and is connected with it now."""


class QueryShard(Message, type="query-shard"):
    """Ask for the adverts of one shard that meet all clauses, in the random order of `seed`, from `cursor` on."""

    pool: Line = ""
    attribute: AttributeText
    depth: ShardDepth = 0
    prefix: ShardPrefix = 0
    requirement: Requirement = Requirement()
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    cursor: Count = 0
    limit: Annotated[int, Field(ge=0, le=PAGE_LIMIT)] = PAGE_LIMIT
    have: Have = b""
    counted: Annotated[tuple[AttributeText, ...], Field(max_length=MAX_COUNTED)] = ()
    """Attributes to count: the reader wants to know how many adverts in the shard have each."""


class ShardPage(Message, type="shard-page"):
    """A page of adverts, tombstones included. `cursor` is None on the last page."""

    adverts: Annotated[tuple[ListedAdvert, ...], Field(max_length=PAGE_LIMIT)] = ()
    matches: Count = 0
    """Adverts in this shard that meet the requirement."""
    count: Count = 0
    """All adverts in this shard."""
    split: bool = False
    """The shard is split: most of its adverts are deeper."""
    below: Count | None = None
    """For a split shard: about how many adverts are below it, according to the publishers there."""
    having: Annotated[tuple[Count, ...], Field(max_length=MAX_COUNTED)] = ()
    """How many adverts in the shard have each of the `counted` attributes."""
    crowded: bool = False
    """Adverts were kept out of this shard of everybody for lack of room, or because their network had used its share."""
    cursor: Count | None = None
    closer: Contacts = ()


class MarkSplit(Message, type="mark-split"):
    """The sender publishes below this shard and considers it split."""

    pool: Line = ""
    attribute: AttributeText
    depth: ShardDepth
    prefix: ShardPrefix
    below: Count = 0
    """About how many adverts are below it, estimated from the sender's own shard."""


class MarkReply(Message, type="mark-reply"):
    """Whether the sender of the mark should stay below the shard."""

    split: bool


class RefusedMessage(Message, type="refused"):
    """Refused. `retry_after_s` is absent where a retry cannot help."""

    reason: Annotated[Reason, Field(strict=False)]
    detail: Detail = ""
    retry_after_s: Seconds | None = None


INDEX: Final = Vocabulary(
    FindPeers,
    FoundPeers,
    StoreAdverts,
    StoreReply,
    QueryShard,
    ShardPage,
    MarkSplit,
    MarkReply,
    RefusedMessage,
    calls=(FindPeers, StoreAdverts, QueryShard, MarkSplit),
)
