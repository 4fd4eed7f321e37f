"""One holder's store: signed adverts by shard, with limits. Pure: time, peers and randomness are arguments.

Each node's newest advert is stored once, however many shards list it. A shard that outgrows `split_threshold` is marked as split. It
accepts up to twice as many adverts, so that nothing is lost while publishers move one level deeper.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median_low
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.messages.index import (
    MAX_COUNTED,
    ListedAdvert,
    QueryShard,
    ShardPage,
    StoredItem,
    StoreItem,
    StoreVerdict,
)
from protocol.values.advert import Advert, SignedAdvert, advert_message, read_advert
from protocol.values.index_keys import (
    EVERYBODY,
    MAX_CAMPAIGNS,
    MAX_SHARD_DEPTH,
    attributes_of,
    shard_key,
    shard_prefix,
)
from protocol.values.match import compile_requirement, requirement_cost_us
from swarm.net.addresses import PeerId
from swarm.net.cost import SLICE_US
from swarm.net.identity import routing_key, verify
from swarm.net.limits import decrement

SPLIT_THRESHOLD: Final = 1_000
"""Adverts in a shard before it splits."""
NETWORK_QUOTA: Final = 8
"""Most adverts of one public network (/24, IPv6 /48) in a shard."""
COUNTED_OF_NETWORK: Final = 2
"""Most adverts of one public network in a shard that count towards how common an attribute is."""
MAX_NODES: Final = 65_536
MAX_OF_NETWORK: Final = 256
"""Most nodes of one public network in the store, so that no network can fill it."""
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_SHARDS: Final = 65_536
MAX_MARKS: Final = 4_096
CLAIMANTS: Final = 1 / 64
"""How many publishers from different networks, as a share of `split_threshold`, must say that a shard is split before this holder
believes the split without having seen the shard outgrow `split_threshold`, or believes the number of adverts below."""
CLAIM_S: Final = 1_800.0
"""How long a publisher's claim counts: four of its cycles."""
WORTH: Final = 1 / 2
"""Adverts below a split shard, as a share of `split_threshold`, that justify the split."""
KEEP_S: Final = 4 * CLAIM_S
"""How long a mark lasts after it was last needed; then publishers may store in the shard again. Readers still look below it for another
`CLAIM_S`, until all publishers have moved."""
MAX_CLAIMS: Final = 4_096
"""Most shards for which split claims are kept."""
MAX_CLAIMS_BY: Final = 256
"""Most shards that one network may claim to be split at a time."""
MAX_GONE: Final = 8_192
"""Most shards whose tombstones are shown."""
TOMBSTONES_SHOWN: Final = 4
"""Newest tombstones of a shard that are added to its first page."""
LOOK_US: Final = 3.0
"""Processor time to look at one advert of a shard and place it in the reader's order, in µs (an estimate)."""
SHOW_US: Final = 40.0
"""Processor time to show one advert, in µs (an estimate)."""
COUNT_US: Final = 0.1, 0.13
"""Processor time to check which of some attributes one advert has: the base, and for each attribute, in µs (an estimate)."""
READ_KEPT: Final = 1_024
"""Decoded adverts that are cached, in addition to those in the store: as objects they take ten times their size."""
_NO_ROOM: Final = "this holder is full"


@dataclass(slots=True)
class _Posting:
    """One node in one shard."""

    published: float
    expires: float
    network: str


@dataclass(slots=True)
class _NodeEntry:
    """The newest advert of one node, and its shards."""

    advert: Advert
    signed: SignedAdvert
    until: float
    attributes: frozenset[str]
    network: str
    """The network that the advert came from; empty if no quota applies."""
    shards: dict[bytes, str] = field(default_factory=dict)
    """Key → attribute."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """A publisher's claim that a shard is split."""

    at: float
    below: int
    """Adverts below the shard."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A node that meets a reader's requirement."""

    draw: bytes
    posting: _Posting
    signed: SignedAdvert


@dataclass(slots=True)
class _Tally:
    """Counts how many adverts have each of some attributes. Only a few adverts of each public network count: somebody with addresses in a
    few networks must not make a rare attribute look common."""

    wanted: frozenset[str]
    _seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Adverts by attribute and network."""

    def add(self, adverts: Iterable[tuple[frozenset[str], str]]) -> None:
        """`adverts`: the attributes of each advert, and the public network that it came from."""
        wanted = self.wanted
        self._seen.update((each, network) for attributes, network in adverts for each in attributes & wanted)

    def counts(self, attributes: Sequence[str]) -> tuple[int, ...]:
        """The counts, in the order of `attributes`."""
        counts: Counter[str] = Counter()
        for (attribute, network), number in self._seen.items():
            counts[attribute] += min(number, COUNTED_OF_NETWORK) if network else number
        return tuple(counts[attribute] for attribute in attributes)


class ForgedAdvert(RemoteProtocolError):
    """An advert that its node did not sign, or that is malformed."""


def read_signed(signed: SignedAdvert) -> Advert:
    """The advert, with its signature checked. Raises `ForgedAdvert`. Cached: verifying costs far more than decoding."""
    return _read(signed.body, signed.signature)


@lru_cache(maxsize=READ_KEPT)
def _read(body: bytes, signature: bytes) -> Advert:
    try:
        advert = read_advert(body)
    except RemoteProtocolError as exc:
        raise ForgedAdvert(exc.what) from exc
    if not verify(advert.peer, advert_message(body), signature):
        raise ForgedAdvert("the advert is not signed by the node that it describes")
    return advert


@dataclass
class ShardStore:
    """The store of one node. Every method takes `now`, seconds of a monotonic clock."""

    split_threshold: int = SPLIT_THRESHOLD
    quota: int = NETWORK_QUOTA
    max_nodes: int = MAX_NODES
    max_bytes: int = MAX_BYTES
    size: int = 0
    """Bytes of the stored adverts."""
    _nodes: dict[PeerId, _NodeEntry] = field(default_factory=dict)
    _shards: dict[bytes, dict[PeerId, _Posting]] = field(default_factory=dict)
    _gone: OrderedDict[bytes, OrderedDict[PeerId, float]] = field(default_factory=OrderedDict)
    _marks: OrderedDict[bytes, float] = field(default_factory=OrderedDict)
    """Split shard → when it was last seen to hold too many adverts."""
    _crowded: OrderedDict[bytes, float] = field(default_factory=OrderedDict)
    """Shard of everybody that kept adverts out → until when the last of those adverts would have been valid."""
    _sources: Counter[str] = field(default_factory=Counter)
    """Nodes by network."""
    _claims: OrderedDict[bytes, OrderedDict[str, _Claim]] = field(default_factory=OrderedDict)
    """Shard → the networks whose publishers say that it is split, the latest ones."""
    _claims_by: Counter[str] = field(default_factory=Counter)
    """How many shards each network claims to be split."""

    @property
    def nodes(self) -> int:
        """Nodes with an advert (or tombstone) here."""
        return len(self._nodes)

    @property
    def shards(self) -> int:
        """Shards with at least one advert."""
        return len(self._shards)

    # -- storing ---------------------------------------------------------------------------------------------------------

    def store(
        self, now: float, sender: PeerId, network: str, signed: SignedAdvert, items: Iterable[StoreItem]
    ) -> tuple[tuple[StoredItem, ...], str]:
        """Store the sender's own advert under `items`. Returns a verdict for each item, and why something was refused.

        `network`: the public network of the sender; empty if no quota applies.
        """
        items, verdict = tuple(items), StoreVerdict.REFUSED
        try:
            advert = read_signed(signed)
        except ForgedAdvert as exc:
            return (StoredItem(verdict=verdict),) * len(items), exc.what
        why = "" if advert.peer == sender else "a node can publish only its own advert"
        if not why:
            why = self._admit(now, advert, signed, network)
            verdict = StoreVerdict.FULL if why == _NO_ROOM else StoreVerdict.REFUSED
        if why:
            if verdict is StoreVerdict.FULL:
                for item in items:
                    prefix = shard_prefix(routing_key(sender), item.depth)
                    key = shard_key(advert.pool, item.attribute, item.depth, prefix)
                    self._note_kept_out(now + advert.ttl_s, item, key)
            return (StoredItem(verdict=verdict),) * len(items), why
        if advert.gone:
            return (StoredItem(verdict=StoreVerdict.OK),) * len(items), ""
        verdicts = []
        counted = False
        for item in items:
            prefix = shard_prefix(routing_key(sender), item.depth)
            key = shard_key(advert.pool, item.attribute, item.depth, prefix)
            verdict, why_not = self._post(now, sender, network, item, key)
            why = why or why_not
            count, below = len(self._shards.get(key, ())), self.below(now, key)
            if verdict is StoreVerdict.FULL:
                self._note_kept_out(now + advert.ttl_s, item, key)
            having: tuple[int, ...] = ()
            if item.attribute == EVERYBODY and not counted and verdict is not StoreVerdict.REFUSED:
                counted = True
                own = attributes_of(advert)[:MAX_COUNTED]
                tally = _Tally(frozenset(own))
                tally.add(
                    (self._nodes[peer].attributes, posting.network)
                    for peer, posting in self._shards.get(key, {}).items()
                )
                having = tally.counts(own)
            verdicts.append(StoredItem(verdict=verdict, count=count, below=below, having=having))
        return tuple(verdicts), why

    def store_cost_us(self, items: Iterable[StoreItem]) -> float:
        """The most that counting in the shards of everybody can take when `items` are stored, in µs of processor time."""
        most = min(len(self._nodes), 2 * self.split_threshold)
        counts = any(item.attribute == EVERYBODY for item in items)
        return most * _count_us(MAX_COUNTED) if counts else 0.0

    def _note_kept_out(self, until: float, item: StoreItem, key: bytes) -> None:
        """Record that an advert valid until `until` was kept out of the shard of everybody with this `key`."""
        if item.attribute == EVERYBODY:
            self._crowded[key] = until
            self._crowded.move_to_end(key)
            while len(self._crowded) > MAX_MARKS:
                self._crowded.popitem(last=False)

    def _admit(self, now: float, advert: Advert, signed: SignedAdvert, network: str) -> str:
        """Make the advert its node's newest; return why not, or an empty text."""
        entry = self._nodes.get(advert.peer)
        grown = _size(signed) - (_size(entry.signed) if entry is not None else 0)
        until = now + advert.ttl_s
        if entry is None:
            crowded = network and self._sources[network] >= MAX_OF_NETWORK
            if crowded or len(self._nodes) >= self.max_nodes or self.size + grown > self.max_bytes:
                return _NO_ROOM
            attributes = frozenset(attributes_of(advert))
            self._nodes[advert.peer] = _NodeEntry(advert, signed, until, attributes, network)
            self._sources[network] += 1
            self.size += grown
            return ""
        if advert.seq < entry.advert.seq:
            return f"sequence number {advert.seq} is older than {entry.advert.seq}"
        if advert.seq == entry.advert.seq:
            if signed.body != entry.signed.body:
                return f"another advert with sequence number {advert.seq} is stored already"
            entry.until = max(entry.until, until)
            return ""
        if self.size + grown > self.max_bytes:
            return _NO_ROOM
        self.size += grown
        entry.advert, entry.signed, entry.until = advert, signed, max(entry.until, until)
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
                # campaigns too: the node's current ones come again with this very advert
                self._unpost(key, advert.peer)
        return ""

    def _post(
        self, now: float, peer: PeerId, network: str, item: StoreItem, key: bytes
    ) -> tuple[StoreVerdict, str]:
        entry = self._nodes[peer]
        if item.attribute.startswith("campaign:"):
            others = sum(a.startswith("campaign:") for k, a in entry.shards.items() if k != key)
            if others >= MAX_CAMPAIGNS:
                return StoreVerdict.REFUSED, f"at most {MAX_CAMPAIGNS} campaigns per node"
        elif item.attribute not in entry.attributes:
            return StoreVerdict.REFUSED, f"the advert does not contain {item.attribute!r}"
        shard = self._shards.get(key)
        if shard is None:
            if len(self._shards) >= MAX_SHARDS:
                return StoreVerdict.FULL, _NO_ROOM
            shard = {}
        if peer not in shard:
            if len(shard) >= 2 * self.split_threshold:
                return (StoreVerdict.SPLIT if self._keeps_out(now, key) else StoreVerdict.FULL), ""
            if network and sum(p.network == network for p in shard.values()) >= self.quota:
                why = f"{self.quota} adverts of network {network} are in this shard already"
                return StoreVerdict.FULL, why
        self._shards[key] = shard
        shard[peer] = _Posting(now, now + entry.advert.ttl_s, network)
        entry.shards[key] = item.attribute
        if len(shard) > self.split_threshold and item.depth < MAX_SHARD_DEPTH:
            self._mark(now, key)
        return (StoreVerdict.SPLIT if self._keeps_out(now, key) else StoreVerdict.OK), ""

    # -- split marks -----------------------------------------------------------------------------------------------------

    def claim_split(self, now: float, key: bytes, publisher: PeerId, network: str, below: int) -> bool:
        """A publisher below a shard claims that the shard is split; returns whether publishers should stay below it.

        A mark is set or renewed when enough publishers claim a split and report too many adverts below for one shard. The claims must come
        from different networks, except those of known peers (`network` is empty), since a mark sends publishers and readers deeper.
        `below`: the number of adverts there.
        """
        self._add_claim(key, network or publisher, _Claim(now, below))
        if (self._counted(now, key) or 0) >= self.split_threshold * WORTH:
            self._mark(now, key)
        return self._keeps_out(now, key)

    def _add_claim(self, key: bytes, source: str, claim: _Claim) -> None:
        claims = self._claims.get(key, OrderedDict())
        if source not in claims:
            if self._claims_by[source] >= MAX_CLAIMS_BY:
                return
            self._claims_by[source] += 1
        claims[source] = claim
        claims.move_to_end(source)
        if len(claims) > 2 * self._enough_claims:
            oldest, _ = claims.popitem(last=False)
            decrement(self._claims_by, oldest)
        self._claims[key] = claims
        self._claims.move_to_end(key)
        if len(self._claims) > MAX_CLAIMS:
            for each in self._claims.popitem(last=False)[1]:
                decrement(self._claims_by, each)

    @property
    def _enough_claims(self) -> int:
        return max(2, round(self.split_threshold * CLAIMANTS))

    def _fresh_claims(self, now: float, key: bytes) -> list[_Claim]:
        return [claim for claim in self._claims.get(key, {}).values() if claim.at > now - CLAIM_S]

    def below(self, now: float, key: bytes) -> int | None:
        """About how many adverts are below a split shard, if enough publishers reported it."""
        return self._counted(now, key) if self.split(now, key) else None

    def _counted(self, now: float, key: bytes) -> int | None:
        fresh = self._fresh_claims(now, key)
        return median_low(claim.below for claim in fresh) if len(fresh) >= self._enough_claims else None

    def split(self, now: float, key: bytes) -> bool:
        """Whether readers have to descend below the shard: while it is marked, and while publishers claim to be below it. Without a mark,
        this takes as many claims as setting one."""
        least = 1 if key in self._marks else self._enough_claims
        return self._marked_within(now, key, KEEP_S + CLAIM_S) or len(self._fresh_claims(now, key)) >= least

    def _keeps_out(self, now: float, key: bytes) -> bool:
        """Whether publishers have to store below the shard."""
        return self._marked_within(now, key, KEEP_S)

    def _marked_within(self, now: float, key: bytes, seconds: float) -> bool:
        needed = self._marks.get(key)
        return needed is not None and now - needed < seconds

    def _mark(self, now: float, key: bytes) -> None:
        self._marks[key] = now
        self._marks.move_to_end(key)
        while len(self._marks) > MAX_MARKS:
            self._marks.popitem(last=False)

    # -- reading ---------------------------------------------------------------------------------------------------------

    def page_cost_us(self, ask: QueryShard) -> float:
        """The most that `page` can take, in µs of processor time."""
        size = len(self._shards.get(shard_key(ask.pool, ask.attribute, ask.depth, ask.prefix), ()))
        each_us = LOOK_US + requirement_cost_us(ask.requirement) + _count_us(len(ask.counted))
        return size * each_us + min(size, ask.limit) * SHOW_US

    def page(self, now: float, ask: QueryShard) -> Generator[float, None, ShardPage]:
        """Up to `ask.limit` valid matching adverts, in the order that `ask.seed` gives, round robin over networks.

        Works in slices: yields the cost of the next slice in µs. The store may change in between; the page reflects the state at the start.
        """
        key = shard_key(ask.pool, ask.attribute, ask.depth, ask.prefix)
        shard = self._shards.get(key, {})
        alive = [
            (peer, posting, self._nodes[peer]) for peer, posting in shard.items() if posting.expires > now
        ]
        each_us = LOOK_US + requirement_cost_us(ask.requirement) + _count_us(len(ask.counted))
        step = max(1, int(SLICE_US / each_us))
        predicate = compile_requirement(ask.requirement)
        salt = ask.seed.to_bytes(4, "big")
        fits: list[_Candidate] = []
        tally = _Tally(frozenset(ask.counted))
        for start in range(0, len(alive), step):
            part = alive[start : start + step]
            yield len(part) * each_us
            fits += [
                _Candidate(_draw(peer, salt), posting, entry.signed)
                for peer, posting, entry in part
                if predicate(entry.advert)
            ]
            if ask.counted:
                tally.add((entry.attributes, posting.network) for _, posting, entry in part)
        order = _round_robin(fits)
        end = ask.cursor + ask.limit
        shown = [
            ListedAdvert(advert=each.signed, age_s=max(now - each.posting.published, 0.0))
            for each in order[ask.cursor : end]
        ]
        if ask.cursor == 0:
            shown = (shown + self._tombstones(now, key))[: max(ask.limit, len(shown))]
        return ShardPage(
            adverts=tuple(shown),
            matches=len(fits),
            count=len(alive),
            split=self.split(now, key),
            below=self.below(now, key),
            having=tally.counts(ask.counted),
            crowded=self._crowded.get(key, 0.0) > now,
            cursor=end if ask.limit and end < len(order) else None,
        )

    def _tombstones(self, now: float, key: bytes) -> list[ListedAdvert]:
        shown = []
        for peer, until in self._gone.get(key, {}).items():
            entry = self._nodes.get(peer)
            if entry is not None and entry.advert.gone and until > now:
                age = max(entry.advert.ttl_s - (until - now), 0.0)
                shown.append(ListedAdvert(advert=entry.signed, age_s=age))
        return shown

    # -- expiring --------------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> int:
        """Drop expired adverts, marks and claims; returns the number of nodes dropped. Called about every minute."""
        for key, shard in list(self._shards.items()):
            for peer in [peer for peer, posting in shard.items() if posting.expires <= now]:
                self._unpost(key, peer)
        forgotten = [peer for peer, entry in self._nodes.items() if entry.until <= now]
        for peer in forgotten:
            entry = self._nodes.pop(peer)
            self.size -= _size(entry.signed)
            decrement(self._sources, entry.network)
        for key, gone in list(self._gone.items()):
            for peer in [peer for peer, until in gone.items() if until <= now]:
                del gone[peer]
            if not gone:
                del self._gone[key]
        for key in [key for key in self._marks if not self.split(now, key)]:
            del self._marks[key]
        for key in [key for key, until in self._crowded.items() if until <= now]:
            del self._crowded[key]
        for key, claims in list(self._claims.items()):
            for source in [source for source, claim in claims.items() if claim.at <= now - CLAIM_S]:
                del claims[source]
                decrement(self._claims_by, source)
            if not claims:
                del self._claims[key]
        return len(forgotten)

    def _unpost(self, key: bytes, peer: PeerId) -> None:
        self._nodes[peer].shards.pop(key, None)
        shard = self._shards[key]
        del shard[peer]
        if not shard:
            del self._shards[key]


def _count_us(attributes: int) -> float:
    """Processor time in µs to check which of `attributes` attributes one advert has."""
    return COUNT_US[0] + COUNT_US[1] * attributes if attributes else 0.0


def _size(signed: SignedAdvert) -> int:
    return len(signed.body) + len(signed.signature)


def _draw(peer: PeerId, salt: bytes) -> bytes:
    """A pseudo-random rank that the reader's seed determines."""
    return hashlib.blake2b(peer.encode(), digest_size=8, key=salt).digest()


def _round_robin(candidates: list[_Candidate]) -> list[_Candidate]:
    """A random order, round robin over public networks, so that no network crowds out the rest."""
    shuffled = sorted(candidates, key=lambda each: each.draw)
    before: Counter[str] = Counter()
    turns: list[int] = []
    for each in shuffled:
        network = each.posting.network
        turns.append(before[network] if network else 0)
        before[network] += 1
    order = sorted(range(len(shuffled)), key=turns.__getitem__)
    return [shuffled[place] for place in order]
