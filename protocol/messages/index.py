"""The words of `/sark/index/1`: who is near a key, keep my advert, show me those that fit.

    publisher                                 holder
       │── Find(key) ───────────────────────────▶│   the way to the holders, repeated until nobody nearer is named
       │◀─────────────────────── Found(contacts) │
       │── Store(advert, items) ────────────────▶│   one message for all attributes this holder keeps
       │◀──────── Stored(items, closer contacts) │   for each attribute: ok, split, up, full or refused
       │── Mark(shard) ─────────────────────────▶│   "I publish below this shard": keeps its split mark alive
       │◀──────────────────────── Marked(split?) │
    reader
       │── Page(shard, requirement, cursor) ────▶│   filtered at the holder
       │◀────────────── Paged(adverts, counts …) │
    holder of a shard that splits or merges
       │── Hand(shard, adverts) ────────────────▶│   to the holders of the new shard
       │◀──────────────────────────── Handed(n)  │
    any of them
       │◀──────────────────── Refused(reason, …) │

Keys never travel with a Store or a Page: both sides compute them from pool, attribute, depth and prefix (`protocol.values.index_keys`), so
nobody can file an advert under a key it does not belong to.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.signed.advert import SignedAdvert
from protocol.values.index_keys import MAX_SHARD_DEPTH, AttributeText
from protocol.values.requirement import Requirement
from protocol.wire.base import AddressText, Count, Detail, Key32, Line, Message, PeerName, Seconds
from protocol.wire.codec import Vocabulary
from protocol.words import Reason

FAMILY: Final = "/sark/index/1"
PAGE_LIMIT: Final = 32
"""Adverts in one answer: 32 of 1 KiB and their signatures stay well below the cap of a frame."""
MAX_ITEMS: Final = 64
"""Attributes in one Store."""
MAX_CONTACTS: Final = 16
HAVE_BYTES: Final = 4
"""How much of a peer's routing key stands for it in `have`."""

ShardDepth = Annotated[int, Field(ge=0, le=MAX_SHARD_DEPTH)]
ShardPrefix = Annotated[int, Field(ge=0, lt=2**MAX_SHARD_DEPTH)]
Have = Annotated[bytes, Field(max_length=HAVE_BYTES * MAX_CONTACTS)]
"""The holders the asker has for this shard, 4 bytes of routing key each, so that only others are named in the answer."""


class StoreVerdict(StrEnum):
    """What a holder did with an advert under one attribute."""

    OK = "ok"
    SPLIT = "split"
    """The shard is split: publish one level deeper. Kept here too while there is room."""
    UP = "up"
    """Nobody needs shards this deep: publish one level nearer to the root."""
    FULL = "full"
    """No room: the shard, this holder, or the publisher's own network has its share."""
    REFUSED = "refused"
    """The advert breaks a rule; `reason` in the answer says which."""


class ContactInfo(Message):
    """How to reach a peer that keeps adverts."""

    peer: PeerName
    addresses: Annotated[tuple[AddressText, ...], Field(max_length=8)]


Contacts = Annotated[tuple[ContactInfo, ...], Field(max_length=MAX_CONTACTS)]


class FindPeers(Message):
    """Who is nearest to `key`? `sender` is given by those who keep adverts themselves."""

    type: Literal["find-peers"] = "find-peers"
    key: Key32
    count: Annotated[int, Field(ge=1, le=MAX_CONTACTS)] = 8
    sender: ContactInfo | None = None


class FoundPeers(Message):
    """The nearest peers this one knows, nearest first, itself and the asker left out."""

    type: Literal["found-peers"] = "found-peers"
    contacts: Contacts = ()
    client: bool | None = None
    """True: who answers keeps no adverts and can be dialled by few; ask those it names."""


class StoreItem(Message):
    """One attribute to keep the advert under. The prefix is the signer's own."""

    attribute: AttributeText
    depth: ShardDepth = 0
    have: Have = b""


class StoreAdverts(Message):
    """Keep my advert under these attributes. A tombstone (`gone`) needs no items: it ends all of them."""

    type: Literal["store-adverts"] = "store-adverts"
    advert: SignedAdvert
    items: Annotated[tuple[StoreItem, ...], Field(max_length=MAX_ITEMS)] = ()


class StoredItem(Message):
    """The verdict on one item, with the number of adverts the shard has here."""

    verdict: Annotated[StoreVerdict, Field(strict=False)]
    count: Count = 0


class StoreReply(Message):
    """One answer for each item, in order, and holders nearer to some of the keys than the publisher knew."""

    type: Literal["store-reply"] = "store-reply"
    items: Annotated[tuple[StoredItem, ...], Field(max_length=MAX_ITEMS)] = ()
    reason: Detail = ""
    """Why something was refused or did not find room; empty when nothing was."""
    closer: Contacts = ()


class ListedAdvert(Message):
    """A kept advert and how long ago its node published it."""

    advert: SignedAdvert
    age_s: Seconds


class QueryShard(Message):
    """Adverts of one shard that meet all clauses, in the random order that `seed` gives, from `cursor` on."""

    type: Literal["query-shard"] = "query-shard"
    pool: Line = ""
    attribute: AttributeText
    depth: ShardDepth = 0
    prefix: ShardPrefix = 0
    requirement: Requirement = Requirement()
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    cursor: Count = 0
    limit: Annotated[int, Field(ge=0, le=PAGE_LIMIT)] = PAGE_LIMIT
    have: Have = b""


class ShardPage(Message):
    """A page; a tombstone may be among the adverts. `cursor` is None on the last page."""

    type: Literal["shard-page"] = "shard-page"
    adverts: Annotated[tuple[ListedAdvert, ...], Field(max_length=PAGE_LIMIT)] = ()
    matches: Count = 0
    """Adverts here that meet the requirement."""
    count: Count = 0
    """Adverts here in all."""
    split: bool = False
    """The shard is split: most of its adverts are one level deeper."""
    cursor: Count | None = None
    closer: Contacts = ()


class MarkSplit(Message):
    """I publish below this shard, which I take to be split."""

    type: Literal["mark-split"] = "mark-split"
    pool: Line = ""
    attribute: AttributeText
    depth: ShardDepth
    prefix: ShardPrefix
    below: Count = 0
    """Adverts the sender believes to be below it."""


class MarkReply(Message):
    """Whether it is split here."""

    type: Literal["mark-reply"] = "mark-reply"
    split: bool


class HandOver(Message):
    """Adverts of a shard that split or merged, for the holders of the shard they belong to now."""

    type: Literal["hand-over"] = "hand-over"
    attribute: AttributeText
    depth: ShardDepth
    adverts: Annotated[tuple[ListedAdvert, ...], Field(max_length=PAGE_LIMIT)]


class HandOverReply(Message):
    """How many of them are kept now."""

    type: Literal["hand-over-reply"] = "hand-over-reply"
    kept: Count


class RefusedMessage(Message):
    """No, and why. `retry_after_s` is absent where trying again is no use."""

    type: Literal["refused"] = "refused"
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
    HandOver,
    HandOverReply,
    RefusedMessage,
)
