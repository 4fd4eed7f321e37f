"""Queries: read random shards, in pages filtered at the holder, until there are enough devices.

A query begins in the shards of everybody. Their holders say how many devices there have each attribute that the requirement implies. If one
attribute is rare, the query continues in that attribute's own shards. Otherwise all matching devices are in the shards of everybody, and
the query reads on there (`covered.py`).

At a split shard, the query descends one path to a shard that is not split, and takes further paths only if that one has too few devices.
While descending it believes the holders asked first; if that leads to too few devices, it asks the others too. The path begins at the depth
expected for the number of devices; the shards above are read if there are too few devices below.

Holders are not trusted: the query checks each advert's signature, age and attribute, and the requirement again.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Final

import trio

from protocol.messages import index as index_messages
from protocol.values.advert import Advert, SignedAdvert
from protocol.values.index_keys import (
    EVERYBODY,
    MAX_SHARD_DEPTH,
    Alternatives,
    index_alternatives,
    may_claim,
    named_peers,
    shard_key,
)
from protocol.values.match import Predicate, compile_requirement
from protocol.values.requirement import Requirement
from swarm.index.client import IndexClient, fingerprints
from swarm.index.covered import COMMON, RARE, UNSURE, seen_covered
from swarm.index.depths import EMPTY, MOST_DEVICES, depth_below, depth_of
from swarm.index.lookup import Lookups
from swarm.index.region import HOLDERS
from swarm.index.requests import children, trim_to_frame
from swarm.index.shard_store import NETWORK_QUOTA, SPLIT_THRESHOLD, ForgedAdvert, read_signed
from swarm.index.sweep import FRESH_S
from swarm.index.walk import READERS, Leaf, Walk
from swarm.net.addresses import Contact, PeerId, public_network

ENOUGH_COUNTS: Final = 6
"""How many holders of a part must say how common an attribute is before a reader settles for the few devices of its own shards."""
GRACE_S: Final = 0.5
"""How much longer than the hedging delay to wait for all holders, once two did not have enough."""
LEAST_PAGE: Final = 8
"""Adverts requested of a holder at least; otherwise twice as many as wanted, since some may be useless. If a fifth of them are, 32 adverts
contain sixteen good ones in all but one of 30,000 draws; 24 adverts, in 96 of 100."""
COUNTS_S: Final = 600.0
SHARES_S: Final = 120.0
"""How long the number of devices that have an attribute in a shard of everybody stays valid."""
YOUNG: Final = 2
"""Levels of a split that may be so recent that some devices are still above it."""
BUDGET: Final = 128
"""Most shards read in one descent."""
LARGEST_WAVE: Final = 32
MAX_WIDENED: Final = 4
"""Most regions learned for one query."""
MAX_COUNTS: Final = 8_192
MOST_OF_SHARD: Final = 2 * SPLIT_THRESHOLD
"""Most adverts requested from one holder for one shard."""
FIRST_HAND_S: Final = 900.0
"""How long a device that was seen at first hand counts as known that way."""
MAX_FIRST_HAND: Final = 16_384


@dataclass(frozen=True, slots=True)
class Sighting:
    """A device: its verified advert, and the advert's age."""

    advert: Advert
    signed: SignedAdvert
    age_s: float


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The devices of a query, and how much of the index was read."""

    devices: tuple[Sighting, ...]
    attributes: Alternatives
    """The attributes that were read."""
    total: int
    """Devices under these attributes, matching or not; an estimate if they are in several shards."""
    complete: bool
    """Every shard was read to its end."""
    counts: Mapping[str, int]
    """Devices under each attribute that was counted."""


@dataclass
class _Merged:
    """The adverts of one query: of each peer the newest counts; a tombstone is the newest of all."""

    requirement: Requirement
    want: int
    newest: dict[PeerId, Sighting] = field(default_factory=dict)
    fits: dict[PeerId, Sighting] = field(default_factory=dict)
    sure: set[PeerId] = field(default_factory=set)
    """Devices that the requirement names, or whose adverts came from a holder that the owner chose: exempt from the network quota."""

    widened: int = 0
    """Regions learned or attempted."""
    counted: Alternatives = ()
    """Attributes that holders of the shards of everybody count."""
    _meets: Predicate = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._meets = compile_requirement(self.requirement)

    def may_widen(self) -> bool:
        """Whether to learn one more region for this query. The limit stops a liar that claims splits from causing many."""
        if self.enough:
            return False
        self.widened += 1
        return self.widened <= MAX_WIDENED

    @property
    def enough(self) -> bool:
        return len(self.fits) >= self.want

    @property
    def named(self) -> frozenset[PeerId]:
        """The peers that the requirement asks for by their ids."""
        return named_peers(self.requirement)

    def add(self, attribute: str, listed: Iterable[index_messages.ListedAdvert], *, sure: bool) -> None:
        """Add a page read under `attribute`, except adverts that are forged, expired or of another attribute."""
        for item in listed:
            try:
                advert = read_signed(item.advert)
            except ForgedAdvert:
                continue
            if item.age_s > advert.ttl_s or not (advert.gone or may_claim(advert, attribute)):
                continue
            if sure:
                self.sure.add(advert.peer)
            before = self.newest.get(advert.peer)
            if before is not None and before.advert.seq >= advert.seq:
                continue
            self.newest[advert.peer] = sighting = Sighting(advert, item.advert, item.age_s)
            self.fits.pop(advert.peer, None)
            if not advert.gone and self._meets(advert):
                self.fits[advert.peer] = sighting

    def results(self) -> tuple[Sighting, ...]:
        """Matching devices: at most eight of each public network, plus those from a chosen holder."""
        of_network: Counter[str] = Counter()
        results = []
        for sighting in self.fits.values():
            network = public_network(sighting.advert.addresses)
            of_network[network] += 1
            if not network or of_network[network] <= NETWORK_QUOTA or sighting.advert.peer in self.sure:
                results.append(sighting)
        return tuple(results)


def _countable(ways: Sequence[Alternatives]) -> Alternatives:
    """The attributes of as many complete ways to read the index as fit into one question."""
    counted: Alternatives = ()
    for way in ways:
        more = tuple(dict.fromkeys((*counted, *way)))
        counted = more if len(more) <= index_messages.MAX_COUNTED else counted
    return counted


@dataclass(frozen=True, slots=True)
class _Share:
    """How many devices in one part of the shard of everybody have an attribute."""

    depth: int
    having: float
    """Scaled to a part at its limit."""
    at: float
    sure: bool
    """Enough holders reported it."""


@dataclass
class Query:
    """Reads the index for this node."""

    client: IndexClient
    lookups: Lookups
    rng: random.Random
    split_threshold: int = SPLIT_THRESHOLD
    """Adverts in a shard before it splits."""
    _totals: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Attribute → the number of its devices, and when they were counted."""
    _shares: dict[str, _Share] = field(default_factory=dict)
    _part: tuple[int, int, float] | None = None
    """Depth and prefix of a part of the shard of everybody that was read for counts, and when: its holders are known."""
    _present: OrderedDict[PeerId, float] = field(default_factory=OrderedDict)
    """Devices that were connected with this node, or with a holder that its owner chose, and when that was read."""

    def hearsay(self, peer: PeerId) -> bool:
        """Whether this device is known only from nodes that the owner did not choose."""
        if self.client.network.path(peer) is not None:
            return False
        return trio.current_time() - self._present.get(peer, -math.inf) > FIRST_HAND_S

    async def query(self, requirement: Requirement, want: int) -> QueryResult:
        """About `want` devices that meet all clauses; more if a page had more. Never raises network errors."""
        *own, everybody = index_alternatives(requirement)
        merged = _Merged(requirement, want, sure=set(named_peers(requirement)), counted=_countable(own))
        top = self._begin(everybody, merged)
        if not own:
            await self._go(top, merged)
            return self._result(merged, top)
        rare = self._rare(own, COMMON)
        if rare is None:
            await self._go(top, merged, scout=True)
            rare = self._rare(own, COMMON)
        if rare and not merged.enough:
            below = self._begin(rare, merged)
            if await self._go(below, merged):
                return self._result(merged, below)
            # holders that called it rare may lie, and answers from some time ago may be outdated
            await self._go(top, merged, scout=True)
            await self._read_all([leaf for leaf in top.skimmed if leaf.counts], merged, scout=True)
            if await self._read_young_root(top, merged) or self._rare([rare], RARE, sure=True):
                return self._result(merged, below)
        if await self._go(top, merged) or rare or (top.all_there and not self._rare(own, COMMON)):
            return self._result(merged, top)
        rest = self._begin(self._rare(own, COMMON) or self._rarest(own), merged)
        await self._go(rest, merged)
        return self._result(merged, top, rest)

    async def find_by_attribute(self, attribute: str, limit: int) -> QueryResult:
        """Up to `limit` devices under one attribute that is never covered, or under `EVERYBODY`."""
        merged = _Merged(Requirement(), limit)
        walk = self._begin((attribute,), merged)
        await self._go(walk, merged)
        return self._result(merged, walk)

    async def survey(self, requirement: Requirement, limit: int) -> QueryResult:
        """Devices from which to explain why nothing matches: all devices if there are up to `limit`. Otherwise the devices that meet one
        clause: of the clauses that name one attribute, the one that fewest devices meet, but at least one."""
        everybody = await self.find_by_attribute(EVERYBODY, limit)
        if everybody.complete:
            return everybody
        single = [Requirement(clauses=(clause,)) for clause in requirement.clauses]
        met: list[QueryResult] = []

        async def ask(clause: Requirement) -> None:
            met.append(await self.query(clause, limit))

        async with trio.open_nursery() as nursery:
            for each in single:
                if len(index_alternatives(each)[0]) == 1 < len(index_alternatives(each)):
                    nursery.start_soon(ask, each)
        some = [each for each in met if each.devices]
        return min(some, key=lambda each: len(each.devices), default=everybody)

    async def _read_young_root(self, top: Walk, merged: _Merged) -> bool:
        """Read the root of everybody's shards, if it was not read and may have split just now: devices that do not know about the split yet
        are only there. Returns whether there are enough devices now."""
        if self._deepest() <= YOUNG:
            fresh = [leaf for leaf in top.todo if not leaf.depth]
            top.todo = [leaf for leaf in top.todo if leaf.depth]
            top.read += fresh
            await self._read_all(fresh, merged)
            await self._read_all([leaf for leaf in top.read if not leaf.depth and leaf.skimmed], merged)
        return merged.enough

    # -- planning --------------------------------------------------------------------------------------------------------

    def _cached_count(self, attribute: str) -> int | None:
        count, counted_at = self._totals.get(attribute, (0, -math.inf))
        return count if trio.current_time() - counted_at <= COUNTS_S else None

    def _rare(self, ways: Sequence[Alternatives], least: int, *, sure: bool = False) -> Alternatives | None:
        """Of the ways to read the index whose attributes are all rare, the one with the fewest devices. Empty if there is none; None if it
        is unknown how common some attribute is. `least`: see `seen_covered`. `sure`: only believe enough holders."""
        now = trio.current_time()
        known = {
            attribute: share
            for way in ways
            for attribute in way
            if (share := self._shares.get(attribute)) is not None and now - share.at <= SHARES_S
        }

        def is_rare(attribute: str) -> bool:
            share = known.get(attribute)
            if share is None or (sure and not share.sure):
                return False
            return not seen_covered(share.depth, share.having, least)

        rare = [way for way in ways if all(is_rare(each) for each in way)]
        if rare:
            return self._rarest(rare)
        return () if all(attribute in known for way in ways for attribute in way) else None

    def _rarest(self, ways: Sequence[Alternatives]) -> Alternatives:
        """The way with the fewest known devices."""

        def devices(way: Alternatives) -> float:
            return sum(share.having for each in way if (share := self._shares.get(each)) is not None)

        return min(ways, key=lambda way: (devices(way), len(way)))

    def _note_shares(self, leaf: Leaf, counted: Alternatives) -> None:
        """Record what the holders say about a part of the shard of everybody, scaled to a part at its limit. For each attribute the third
        highest number counts: a search that finds nothing costs calls, but a reader that wrongly takes an attribute for rare misses
        devices."""
        sure = len(leaf.counts) >= ENOUGH_COUNTS
        columns = itertools.zip_longest(*leaf.counts, fillvalue=0.0)
        for attribute, numbers in zip(counted, columns, strict=False):
            self._shares.pop(attribute, None)
            if len(self._shares) >= MAX_COUNTS:
                del self._shares[next(iter(self._shares))]
            number = sorted(numbers, reverse=True)[: UNSURE + 1][-1]
            self._shares[attribute] = _Share(leaf.depth, number, trio.current_time(), sure)

    def _note_present(self, adverts: Iterable[index_messages.ListedAdvert]) -> None:
        for listed in adverts:
            if not listed.present:
                continue
            try:
                peer = read_signed(listed.advert).peer
            except ForgedAdvert:
                continue
            self._present[peer] = trio.current_time()
            self._present.move_to_end(peer)
            if len(self._present) > MAX_FIRST_HAND:
                self._present.popitem(last=False)

    def _note(self, attribute: str, count: int) -> None:
        self._totals.pop(attribute, None)
        if len(self._totals) >= MAX_COUNTS:
            del self._totals[next(iter(self._totals))]
        self._totals[attribute] = count, trio.current_time()

    # -- reading ---------------------------------------------------------------------------------------------------------

    def _begin(self, choice: Alternatives, merged: _Merged) -> Walk:
        """Begin at the depth expected for the shards, or at the root if devices are requested by name."""
        named = merged.named
        if (
            choice == (EVERYBODY,)
            and merged.counted
            and not named
            and (part := self._known_part()) is not None
        ):
            paths = [self._path(Leaf(EVERYBODY), part[0], prefix=part[1])]
        else:
            paths = [
                self._path(Leaf(attribute), 0 if named else self._guess(attribute)) for attribute in choice
            ]
        todo = [path[0] for path in paths] + [leaf for path in paths for leaf in path[1:]]
        return Walk(choice, todo + [Leaf(path[0].attribute) for path in paths if path[0].depth])

    async def _go(self, walk: Walk, merged: _Merged, *, scout: bool = False) -> bool:
        """Read until there are enough devices or nothing is left to read; returns whether there are enough. `scout`: stop at the first
        shard that is not split and is counted."""
        while not merged.enough and not (scout and any(leaf.is_counted for leaf in walk.read)):
            if walk.todo and len(walk.read) < BUDGET:
                now, walk.todo = walk.todo[: walk.wave], walk.todo[walk.wave :]
                walk.read += now
            elif walk.skimmed and not scout:
                now, walk.skimmed = walk.skimmed[:LARGEST_WAVE], walk.skimmed[LARGEST_WAVE:]
            else:
                break
            followed = {leaf.place for leaf in now if leaf.split}
            again = {leaf.place for leaf in now if leaf.skimmed}
            await self._read_all(now, merged, scout=scout)
            for leaf in now:
                if leaf.split and leaf.place not in followed and leaf.depth < MAX_SHARD_DEPTH:
                    if merged.named:
                        below = children(leaf.depth, leaf.prefix, merged.named)
                        new = [Leaf(leaf.attribute, leaf.depth + 1, child) for child in below]
                    else:
                        new = self._path(leaf, self._down(leaf), split=True)
                    walk.todo += [child for child in new if child.place not in walk.seen]
                    walk.seen |= {child.place for child in new}
            walk.skimmed += [leaf for leaf in now if leaf.skimmed and leaf.place not in again]
            if any(leaf.count and not leaf.split for leaf in now):
                walk.wave = min(walk.wave * 2, LARGEST_WAVE)
            too_deep = {leaf.above for leaf in now if not leaf.count and not leaf.split}
            self.rng.shuffle(walk.todo)
            walk.todo.sort(key=lambda leaf: (leaf.place in too_deep, leaf.depth), reverse=True)
        self._note_totals(walk)
        return merged.enough

    def _note_totals(self, walk: Walk) -> None:
        for attribute in walk.choice:
            ends = [leaf for leaf in walk.read if leaf.attribute == attribute and not leaf.split]
            whole = {leaf.place for leaf in ends}
            ends = [leaf for leaf in ends if leaf.above not in whole]
            if ends:
                mean = sum(leaf.count * 2**leaf.depth for leaf in ends) / len(ends)
                self._note(attribute, max(round(mean), sum(leaf.count for leaf in ends)))

    def _result(self, merged: _Merged, *walks: Walk) -> QueryResult:
        """`walks`: together they lead to all matching devices, or each of them does."""
        counts = {
            attribute: count
            for attribute in self._totals
            if (count := self._cached_count(attribute)) is not None
        }
        choice = walks[0].choice
        return QueryResult(
            devices=merged.results(),
            attributes=choice,
            total=sum(counts.get(attribute, 0) for attribute in choice),
            complete=all(walk.complete for walk in walks),
            counts=counts,
        )

    def _guess(self, attribute: str) -> int:
        """The expected depth of the shards of `attribute`, from what is known about its devices."""
        known = self._cached_count(attribute)
        if known is None:
            return self._deepest() if attribute == EVERYBODY else 0
        return min(depth_of(known, self.split_threshold), self._deepest(MOST_DEVICES))

    def _known_part(self) -> tuple[int, int] | None:
        """Depth and prefix of the part of the shard of everybody to begin with, while its holders are fresh."""
        if self._part is None or trio.current_time() - self._part[2] > FRESH_S:
            return None
        return self._part[:2]

    def _deepest(self, devices: int = 1) -> int:
        """The depth of the shards if each holder has `devices` devices. Limits how deep a liar's count can lead."""
        return depth_of(self.lookups.sweeps.nodes * devices, self.split_threshold)

    def _down(self, leaf: Leaf) -> int:
        """The depth to read next below the split shard `leaf`: where its publishers say its adverts are, else halfway to the depth expected
        if everybody had the attribute."""
        if leaf.below:
            return depth_below(leaf.depth, leaf.below, self.split_threshold, self.lookups.sweeps.nodes)
        return max(leaf.depth + 1, (leaf.depth + self._deepest() + 1) // 2)

    def _path(self, top: Leaf, depth: int, *, split: bool = False, prefix: int | None = None) -> list[Leaf]:
        """A random shard at `depth` below `top`, or the one with `prefix`, then the shards above and beside it; `top` itself if it is at
        `depth`. `split`: `top` is known to be split."""
        if depth == top.depth:
            return [top]
        if prefix is None:
            prefix = (top.prefix << depth - top.depth) + self.rng.randrange(2 ** (depth - top.depth))
        known = top.depth + 1 if split else top.depth
        path = [
            Leaf(top.attribute, level, prefix >> depth - level, guessed=level > known)
            for level in range(depth, top.depth, -1)
        ]
        return [*path, *(Leaf(top.attribute, leaf.depth, leaf.prefix ^ 1) for leaf in path)]

    async def _read_all(self, leaves: Sequence[Leaf], merged: _Merged, *, scout: bool = False) -> None:
        async with trio.open_nursery() as nursery:
            for leaf in leaves:
                nursery.start_soon(self._read, leaf, merged, scout)

    async def _read(self, leaf: Leaf, merged: _Merged, scout: bool) -> None:
        """Read one shard: from two holders first, from all if these do not have enough, then the further pages. If the shard is split, or
        is read for its counts (`scout`), the other holders are asked when it is read again."""
        counted = merged.counted if leaf.attribute == EVERYBODY else ()
        scout = scout and leaf.depth > 0
        page = index_messages.QueryShard(
            attribute=leaf.attribute,
            depth=leaf.depth,
            prefix=leaf.prefix,
            requirement=trim_to_frame(merged.requirement),
            seed=self.rng.getrandbits(32),
            limit=min(max(2 * merged.want, LEAST_PAGE), index_messages.PAGE_LIMIT),
            counted=counted,
        )
        sure = {contact.peer for contact in self.client.anchors()}

        def add(contact: Contact, answer: index_messages.ShardPage) -> None:
            chosen = contact.peer in sure
            merged.add(leaf.attribute, answer.adverts, sure=chosen)
            if chosen or contact.peer == self.client.own_peer:
                self._note_present(answer.adverts)

        key = shard_key("", leaf.attribute, leaf.depth, leaf.prefix)
        answers: list[tuple[Contact, index_messages.ShardPage]] = []

        async def ask(need: int | None) -> None:
            more = await self._ask(page, need, leave_out=leaf.asked)
            for contact, answer in more:
                add(contact, answer)
            leaf.asked.update(contact.peer for contact, _ in more)
            answers.extend(more)
            leaf.count = max([leaf.count, *(answer.count for _, answer in more)])
            leaf.split = leaf.split or any(answer.split for _, answer in more)
            leaf.below = median_low([answer.below or 0 for _, answer in answers if answer.split] or [0])
            leaf.crowded = leaf.crowded or any(answer.crowded for _, answer in more)
            # a new part, into which few adverts have moved yet, says nothing
            least = EMPTY * self.split_threshold if leaf.depth else 1
            for _, answer in more:
                if counted and answer.count >= least and not answer.split:
                    scale = self.split_threshold / answer.count
                    leaf.counts.append(tuple(number * scale for number in answer.having))
            if leaf.counts and not leaf.split:
                self._note_shares(leaf, counted)
                if self._known_part() != (leaf.depth, leaf.prefix):
                    self._part = leaf.depth, leaf.prefix, trio.current_time()

        if not leaf.skimmed:
            await ask(READERS)
            split = all(answer.split for _, answer in answers)
            empty = leaf.guessed and not any(answer.count or answer.split for _, answer in answers)
            shown = any(answer.cursor for _, answer in answers)
            for_counts = scout and leaf.is_counted
            leaf.skimmed = len(answers) >= READERS and (split or empty or for_counts) and not shown
            if leaf.skimmed:
                leaf.whole = True
                return
        if not merged.enough and not any(answer.cursor for _, answer in answers):
            await ask(None)
            settled = scout and len(leaf.counts) >= ENOUGH_COUNTS
            if not settled and merged.may_widen() and await self.lookups.widen(key):
                await ask(None)
        ended = 0  # one holder may show only what it likes, and claim that it showed everything
        for contact, answer in sorted(answers, key=lambda item: item[1].matches, reverse=True):
            ended += await self._read_on(contact, page, answer, merged, add)
            leaf.whole = ended >= min(READERS, len(answers))
            if leaf.whole or merged.enough:
                return
        if answers and not merged.enough and any(answer.cursor for _, answer in answers):
            await ask(None)  # a holder that announced more did not show it

    async def _read_on(
        self,
        contact: Contact,
        page: index_messages.QueryShard,
        answer: index_messages.ShardPage,
        merged: _Merged,
        add: Callable[[Contact, index_messages.ShardPage], None],
    ) -> bool:
        """Read the further pages of one holder until there is enough. Returns whether they were read to the end.

        Gives up on a holder whose cursors are inconsistent, or whose pages hold more than a shard can: it might never end.
        """
        end = page.limit
        while answer.cursor is not None and not merged.enough:
            if answer.cursor != end or end > MOST_OF_SHARD:
                return False
            further = page.model_copy(update={"cursor": answer.cursor})
            replies, _ = await self.client.race([contact], further, index_messages.ShardPage, 1)
            if not replies:
                return False
            ((_, answer),) = replies
            add(contact, answer)
            end += page.limit
        return answer.cursor is None

    async def _ask(
        self, page: index_messages.QueryShard, need: int | None, leave_out: Iterable[PeerId] = ()
    ) -> list[tuple[Contact, index_messages.ShardPage]]:
        """The page from `need` holders (None: all), random ones of the nearest eight first, plus ourselves and one anchor. Repeats the
        lookup if some holders do not answer."""
        client, key = self.client, shard_key(page.pool, page.attribute, page.depth, page.prefix)
        done = set(leave_out)
        answers: list[tuple[Contact, index_messages.ShardPage]] = []
        for _ in range(2):
            holders = (await self.lookups.holders(key)).contacts
            page = page.model_copy(update={"have": fingerprints([contact.peer for contact in holders])})
            for contact in holders:
                if contact.peer == client.own_peer and contact.peer not in done:
                    done.add(contact.peer)
                    answers.append((contact, await client.ask(contact, page, index_messages.ShardPage)))
            others = [c for c in holders if c.peer not in done and client.usable(c.peer)]
            nearest, rest = others[:HOLDERS], others[HOLDERS:]  # not every holder in `rest` has each advert
            self.rng.shuffle(nearest)
            self.rng.shuffle(rest)
            others = [*nearest, *rest]
            count = len(others) if need is None else min(need, len(others))
            out = {contact.peer for contact in holders} | done | {client.own_peer}
            anchors = [c for c in client.anchors() if c.peer not in out and client.usable(c.peer)]
            if anchors:
                others, count = [self.rng.choice(anchors), *others], count + 1
            grace_s = GRACE_S if need is None else 0.0
            more, failed = await client.race(others, page, index_messages.ShardPage, count, grace_s=grace_s)
            answers += more
            done |= {contact.peer for contact, _ in more}
            for contact in failed:
                self.lookups.failed(key, contact.peer)
            known = any(answer.count or answer.split for _, answer in more)
            nearer = [self.lookups.named(key, answer.closer, add=not known) for _, answer in more]
            if any(nearer):
                continue  # these are not the holders: the lookup did not wait for the real ones
            if not failed or (need is not None and len(more) >= need):
                break
        return answers
