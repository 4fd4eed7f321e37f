"""The store of one holder: signed adverts by shard, with their limits. Pure: time, peers and randomness are arguments.

Each node's newest advert is stored once, whatever the number of its shards. A shard that outgrows `soft` is marked split and accepts
adverts up to twice that, so that nothing is lost while publishers move one level deeper.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.messages.index import (
    HandOver,
    ListedAdvert,
    QueryShard,
    ShardPage,
    StoredItem,
    StoreItem,
    StoreVerdict,
)
from protocol.signed.advert import SignedAdvert, advert_message, read_advert
from protocol.values.advert import Advert
from protocol.values.index_keys import MAX_CAMPAIGNS, MAX_SHARD_DEPTH, attributes_of, shard_key, shard_prefix
from protocol.values.match import match
from swarm.net.addresses import PeerId
from swarm.net.identity import routing_key, verify

SOFT_LIMIT: Final = 1_000
"""Adverts in a shard before it splits."""
NETWORK_QUOTA: Final = 8
"""Adverts of one public network (/24, IPv6 /48) in a shard."""
HANDED_SHARE: Final = 10
"""One in so many adverts of a shard may be handed over by another holder and not yet renewed by its own node."""
MAX_NODES: Final = 65_536
MAX_OF_NETWORK: Final = 256
"""Nodes of one public network: none may fill the store."""
MAX_HANDED: Final = MAX_NODES // 16
"""Nodes whose adverts came from other holders only."""
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_SHARDS: Final = 65_536
MAX_MARKS: Final = 4_096
MAX_ENDED: Final = 65_536
"""Nodes whose expired adverts' sequence numbers are remembered, so that nobody else brings them back."""
MAX_GONE: Final = 8_192
"""Shards whose tombstones are shown."""
TOMBSTONES_SHOWN: Final = 4
"""Newest tombstones of a shard that go with each page."""


@dataclass(frozen=True, slots=True)
class ParsedAdvert:
    """A verified advert, parsed and as signed."""

    advert: Advert
    signed: SignedAdvert

    @property
    def size(self) -> int:
        return len(self.signed.body) + len(self.signed.signature)


@dataclass(slots=True)
class _Posting:
    """One node in one shard."""

    published: float
    expires: float
    network: str
    handed: bool


@dataclass(slots=True)
class _NodeEntry:
    """The newest advert of one node, and its shards."""

    known: ParsedAdvert
    until: float
    attributes: frozenset[str]
    source: str
    """The network it came from; `_HANDED` from another holder; empty where no quota holds."""
    shards: dict[bytes, str] = field(default_factory=dict)
    """Key → attribute."""


class ForgedAdvert(RemoteProtocolError):
    """An advert that its node did not sign, or that is malformed."""


def read_signed(signed: SignedAdvert) -> ParsedAdvert:
    """The advert, its signature checked. Raises `ForgedAdvert`."""
    try:
        advert = read_advert(signed.body)
    except RemoteProtocolError as exc:
        raise ForgedAdvert(exc.what) from exc
    if not verify(advert.peer, advert_message(signed.body), signed.signature):
        raise ForgedAdvert("the advert is not signed by the node it speaks of")
    return ParsedAdvert(advert, signed)


class ShardStore:
    """The store of one node. Every method takes `now`, seconds of a monotonic clock."""

    def __init__(
        self,
        *,
        soft: int = SOFT_LIMIT,
        quota: int = NETWORK_QUOTA,
        max_nodes: int = MAX_NODES,
        max_bytes: int = MAX_BYTES,
        read: Callable[[SignedAdvert], ParsedAdvert] = read_signed,
    ) -> None:
        self._soft = soft
        self._quota = quota
        self._max_nodes = max_nodes
        self._max_bytes = max_bytes
        self._read = read
        self._nodes: dict[PeerId, _NodeEntry] = {}
        self._shards: dict[bytes, dict[PeerId, _Posting]] = {}
        self._gone: OrderedDict[bytes, OrderedDict[PeerId, float]] = OrderedDict()
        self._ended: OrderedDict[PeerId, int] = OrderedDict()
        self._marks: OrderedDict[bytes, None] = OrderedDict()
        self._bytes = 0
        self._sources: Counter[str] = Counter()
        """Number of nodes by source."""

    # -- storing ---------------------------------------------------------------------------------------------------------

    def store(
        self, now: float, sender: PeerId, network: str, signed: SignedAdvert, items: Iterable[StoreItem]
    ) -> tuple[tuple[StoredItem, ...], str]:
        """Store the sender's own advert under `items`. Returns a verdict for each, and why something was refused.

        `network`: the public network the sender comes from; empty where no quota holds.
        """
        items = tuple(items)
        entry = self._nodes.get(sender)
        if entry is not None and entry.known.signed == signed:
            known = entry.known
        else:
            try:
                known = self._read(signed)
            except ForgedAdvert as exc:
                return _all(items, StoreVerdict.REFUSED), exc.what
        if known.advert.peer != sender:
            return _all(items, StoreVerdict.REFUSED), "nobody publishes for another node"
        why = self._admit(now, known, now, network)
        if why:
            verdict = StoreVerdict.FULL if why == _NO_ROOM else StoreVerdict.REFUSED
            return _all(items, verdict), why
        if known.advert.gone:
            return _all(items, StoreVerdict.OK), ""
        verdicts = []
        for item in items:
            verdict, why_not = self._post(now, now, sender, network, item.attribute, item.depth, handed=False)
            why = why or why_not
            key = self._key_of(known.advert, item.attribute, item.depth)
            verdicts.append(StoredItem(verdict=verdict, count=len(self._shards.get(key, ()))))
        return tuple(verdicts), why

    def take_over(self, now: float, hand: HandOver) -> int:
        """Store adverts that another holder hands over, except forged and expired ones; returns how many."""
        taken = 0
        for listed in hand.adverts:
            try:
                known = self._read(listed.advert)
            except ForgedAdvert:
                continue
            ended = self._ended.get(known.advert.peer, -1) >= known.advert.seq
            if (
                ended
                or listed.age_s >= known.advert.ttl_s
                or self._admit(now, known, now - listed.age_s, _HANDED)
            ):
                continue
            if known.advert.gone:
                taken += 1
                continue
            verdict, _ = self._post(
                now, now - listed.age_s, known.advert.peer, "", hand.attribute, hand.depth, handed=True
            )
            taken += verdict in (StoreVerdict.OK, StoreVerdict.SPLIT)
        return taken

    def _admit(self, now: float, known: ParsedAdvert, published: float, source: str) -> str:
        """Make `known` its node's newest advert; returns why not, or an empty text."""
        advert = known.advert
        entry = self._nodes.get(advert.peer)
        if entry is None:
            if len(self._nodes) >= self._max_nodes or self._bytes + known.size > self._max_bytes:
                return _NO_ROOM
            if source and self._sources[source] >= (MAX_HANDED if source == _HANDED else MAX_OF_NETWORK):
                return _NO_ROOM
            until = published + advert.ttl_s
            self._nodes[advert.peer] = _NodeEntry(known, until, frozenset(attributes_of(advert)), source)
            self._sources[source] += 1
            self._bytes += known.size
            return ""
        if entry.source == _HANDED and source != _HANDED:
            self._sources[_HANDED] -= 1
            self._sources[source] += 1
            entry.source = source
        before = entry.known.advert
        if advert.seq < before.seq:
            return f"sequence number {advert.seq} is older than {before.seq}"
        if advert.seq == before.seq:
            if known.signed.body != entry.known.signed.body:
                return f"another advert with sequence number {advert.seq} is stored already"
            entry.until = max(entry.until, published + advert.ttl_s)
            return ""
        if self._bytes + known.size - entry.known.size > self._max_bytes:
            return _NO_ROOM
        self._bytes += known.size - entry.known.size
        entry.known, entry.until = known, max(entry.until, published + advert.ttl_s)
        entry.attributes = frozenset(attributes_of(advert))
        for key, attribute in list(entry.shards.items()):
            if advert.gone:
                gone = self._gone.setdefault(key, OrderedDict())
                gone[advert.peer] = entry.until
                self._gone.move_to_end(key)
                while len(self._gone) > MAX_GONE:
                    self._gone.popitem(last=False)
                while len(gone) > TOMBSTONES_SHOWN:
                    gone.popitem(last=False)
            if advert.gone or attribute not in entry.attributes:
                # campaigns too: those that still hold come again with this very advert
                self._unpost(key, advert.peer)
        return ""

    def _key_of(self, advert: Advert, attribute: str, depth: int) -> bytes:
        return shard_key(advert.pool, attribute, depth, shard_prefix(routing_key(advert.peer), depth))

    def _post(
        self,
        now: float,
        published: float,
        peer: PeerId,
        network: str,
        attribute: str,
        depth: int,
        *,
        handed: bool,
    ) -> tuple[StoreVerdict, str]:
        entry = self._nodes[peer]
        advert = entry.known.advert
        key = self._key_of(advert, attribute, depth)
        if attribute.startswith("campaign:"):
            others = sum(a.startswith("campaign:") for k, a in entry.shards.items() if k != key)
            if others >= MAX_CAMPAIGNS:
                return StoreVerdict.REFUSED, f"at most {MAX_CAMPAIGNS} campaigns for each node"
        elif attribute not in entry.attributes:
            return StoreVerdict.REFUSED, f"the advert does not say {attribute!r}"
        shard = self._shards.get(key)
        if shard is None:
            if len(self._shards) >= MAX_SHARDS:
                return StoreVerdict.FULL, _NO_ROOM
            shard = {}
        if peer not in shard:
            if len(shard) >= 2 * self._soft:
                return (StoreVerdict.SPLIT if key in self._marks else StoreVerdict.FULL), ""
            if network and sum(p.network == network for p in shard.values()) >= self._quota:
                return (
                    StoreVerdict.FULL,
                    f"{self._quota} adverts of network {network} are in this shard already",
                )
            if handed and sum(p.handed for p in shard.values()) >= max(self._soft // HANDED_SHARE, 1):
                return StoreVerdict.FULL, "too many adverts here were not published by their own nodes"
        elif handed and shard[peer].published >= published:
            return StoreVerdict.OK, ""
        self._shards[key] = shard
        shard[peer] = _Posting(published, published + advert.ttl_s, network, handed)
        entry.shards[key] = attribute
        if len(shard) > self._soft and depth < MAX_SHARD_DEPTH:
            self._mark(key)
        return (StoreVerdict.SPLIT if key in self._marks else StoreVerdict.OK), ""

    def _mark(self, key: bytes) -> None:
        self._marks[key] = None
        self._marks.move_to_end(key)
        while len(self._marks) > MAX_MARKS:
            self._marks.popitem(last=False)

    # -- reading ---------------------------------------------------------------------------------------------------------

    def page(self, now: float, ask: QueryShard) -> ShardPage:
        """Up to `ask.limit` valid matching adverts, in the order of `ask.seed`, round robin over networks."""
        key = shard_key(ask.pool, ask.attribute, ask.depth, ask.prefix)
        shard = self._shards.get(key, {})
        alive = [(peer, posting) for peer, posting in shard.items() if posting.expires > now]
        fits = [
            (peer, posting)
            for peer, posting in alive
            if not ask.requirement.clauses or match(ask.requirement, self._nodes[peer].known.advert).fits
        ]
        order = _round_robin(fits, ask.seed)
        end = ask.cursor + ask.limit
        shown = [
            ListedAdvert(advert=self._nodes[peer].known.signed, age_s=max(now - posting.published, 0.0))
            for peer, posting in order[ask.cursor : end]
        ]
        if ask.cursor == 0:
            shown = (shown + self._tombstones(now, key))[: max(ask.limit, len(shown))]
        return ShardPage(
            adverts=tuple(shown),
            matches=len(fits),
            count=len(alive),
            split=key in self._marks,
            cursor=end if ask.limit and end < len(order) else None,
        )

    def split(self, key: bytes) -> bool:
        """Whether the shard is marked split; asking refreshes the mark."""
        if key not in self._marks:
            return False
        self._mark(key)
        return True

    def _tombstones(self, now: float, key: bytes) -> list[ListedAdvert]:
        shown = []
        for peer, until in self._gone.get(key, {}).items():
            entry = self._nodes.get(peer)
            if entry is not None and entry.known.advert.gone and until > now:
                age = max(entry.known.advert.ttl_s - (until - now), 0.0)
                shown.append(ListedAdvert(advert=entry.known.signed, age_s=age))
        return shown

    # -- expiring --------------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> int:
        """Drop what has expired; returns the number of nodes dropped. Called every minute or so."""
        for key, shard in list(self._shards.items()):
            for peer in [peer for peer, posting in shard.items() if posting.expires <= now]:
                self._unpost(key, peer)
        forgotten = [peer for peer, entry in self._nodes.items() if entry.until <= now]
        for peer in forgotten:
            entry = self._nodes.pop(peer)
            self._bytes -= entry.known.size
            self._sources[entry.source] -= 1
            if not self._sources[entry.source]:
                del self._sources[entry.source]
            self._ended.pop(peer, None)
            self._ended[peer] = entry.known.advert.seq
            while len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)
        for key, gone in list(self._gone.items()):
            for peer in [peer for peer, until in gone.items() if until <= now]:
                del gone[peer]
            if not gone:
                del self._gone[key]
        return len(forgotten)

    def _unpost(self, key: bytes, peer: PeerId) -> None:
        self._nodes[peer].shards.pop(key, None)
        shard = self._shards[key]
        del shard[peer]
        if not shard:
            del self._shards[key]

    # -- for the operator ------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> int:
        """Nodes whose adverts (or tombstones) are entry."""
        return len(self._nodes)

    @property
    def shards(self) -> int:
        """Shards with at least one advert."""
        return len(self._shards)

    @property
    def size(self) -> int:
        """Bytes of adverts entry."""
        return self._bytes


_HANDED: Final = "handed"
_NO_ROOM: Final = "this holder is full"


def _all(items: tuple[StoreItem, ...], verdict: StoreVerdict) -> tuple[StoredItem, ...]:
    return tuple(StoredItem(verdict=verdict) for _ in items)


def _round_robin(postings: list[tuple[PeerId, _Posting]], seed: int) -> list[tuple[PeerId, _Posting]]:
    """A random order fixed by the reader's seed, round robin over public networks so that none crowds out the rest."""
    salt = seed.to_bytes(4, "big")
    shuffled = sorted(
        postings, key=lambda item: hashlib.blake2b(item[0].encode(), digest_size=8, key=salt).digest()
    )
    turn: dict[str, int] = {}
    turns = []
    for place, (peer, posting) in enumerate(shuffled):
        own = turn.get(posting.network, 0) if posting.network else 0
        turn[posting.network] = own + 1
        turns.append((own, place, peer, posting))
    turns.sort(key=lambda item: item[:2])
    return [(peer, posting) for _, _, peer, posting in turns]
