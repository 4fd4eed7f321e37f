"""Queries: read random shards of the rarest attribute, in pages filtered at the holder, until there are enough devices.

Holders are not trusted: each advert's signature, age and attribute are checked here, and the requirement again.
"""

from __future__ import annotations

import math
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import trio

from protocol.messages import index as say
from protocol.values.advert import Advert, SignedAdvert
from protocol.values.index_keys import (
    EVERYBODY,
    MAX_SHARD_DEPTH,
    Alternatives,
    implied,
    may_claim,
    named_peers,
    shard_key,
)
from protocol.values.match import match
from protocol.values.requirement import Requirement
from swarm.index.client import IndexClient, fingerprints
from swarm.index.lookup import Lookups
from swarm.index.region import HOLDERS
from swarm.index.requests import children, sendable
from swarm.index.shard_store import NETWORK_QUOTA, SOFT_LIMIT, ForgedAdvert, read_signed
from swarm.net.addresses import Contact, PeerId, public_network

READERS: Final = 2
"""Holders asked first; all of them when these do not have enough."""
GRACE_S: Final = 0.5
"""How much longer than the hedging delay all holders are waited for, once two do not have enough."""
SPARE: Final = 4
"""Adverts requested beyond those wanted, since some may be useless: half as many again, and at least so many. Where a fifth is useless, 24
adverts hold sixteen good ones in 96 of 100 draws, and twenty in 63."""
LEAST_PAGE: Final = 8
COUNTS_S: Final = 600.0
BUDGET: Final = 128
"""Shards read for one requirement."""
LARGEST_WAVE: Final = 32
MANY: Final = 2_000
"""An attribute of fewer devices is read rather than split up by RAM."""
MAX_WIDENED: Final = 4
"""Regions learned for one query."""
MAX_COUNTS: Final = 8_192
MOST_OF_SHARD: Final = 2 * SOFT_LIMIT
"""Adverts that one holder is asked for of one shard."""
FIRST_HAND_S: Final = 900.0
"""How long a device counts as known at first hand after it was seen so."""
MAX_FIRST_HAND: Final = 16_384


@dataclass(frozen=True, slots=True)
class Sighting:
    """A device: its verified advert and the age of that."""

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
    """Devices under these attributes, matching or not; estimated when they lie in several shards."""
    complete: bool
    """Every shard was read to its end."""
    counts: Mapping[str, int]
    """Devices under each attribute that was counted."""


@dataclass
class _Merged:
    """The adverts of one query: of each peer the newest counts, and a tombstone is newest of all."""

    requirement: Requirement
    want: int
    newest: dict[PeerId, Sighting] = field(default_factory=dict)
    fits: dict[PeerId, Sighting] = field(default_factory=dict)
    sure: set[PeerId] = field(default_factory=set)
    """Devices by adverts from a holder that the owner chose, or that the requirement names: the network quota does not hold for them."""

    widened: int = 0
    """Regions learned, or looked for in vain."""

    def may_widen(self) -> bool:
        """Whether to learn one more region for this query: a liar that says that shards are split does not make it learn many."""
        if self.enough:
            return False
        self.widened += 1
        return self.widened <= MAX_WIDENED

    @property
    def enough(self) -> bool:
        return len(self.fits) >= self.want

    def add(self, attribute: str, listed: Iterable[say.ListedAdvert], *, sure: bool) -> None:
        """Add a page read under `attribute`, without what is forged, expired or of another attribute."""
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
            if not advert.gone and match(self.requirement, advert).fits:
                self.fits[advert.peer] = sighting

    def results(self) -> tuple[Sighting, ...]:
        """Matching devices, at most eight of each public network, and those from a chosen holder."""
        of_network: Counter[str] = Counter()
        results = []
        for sighting in self.fits.values():
            network = public_network(sighting.advert.addresses)
            of_network[network] += 1
            if not network or of_network[network] <= NETWORK_QUOTA or sighting.advert.peer in self.sure:
                results.append(sighting)
        return tuple(results)


@dataclass(slots=True)
class _Leaf:
    """One shard as read."""

    attribute: str
    depth: int = 0
    prefix: int = 0
    count: int = 0
    split: bool = False
    whole: bool = False
    """Read to its end from a holder that answered."""


@dataclass
class Query:
    """Reads the index for this node."""

    client: IndexClient
    lookups: Lookups
    rng: random.Random
    _totals: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Attribute → its devices, and when they were counted."""
    _present: OrderedDict[PeerId, float] = field(default_factory=OrderedDict)
    """Devices that were connected with this node, or with a holder that its owner chose, and when that was read."""

    def hearsay(self, peer: PeerId) -> bool:
        """Whether only nodes that the owner did not choose say that this device is there."""
        if self.client.network.path(peer) is not None:
            return False
        return trio.current_time() - self._present.get(peer, -math.inf) > FIRST_HAND_S

    async def query(self, requirement: Requirement, want: int) -> QueryResult:
        """About `want` devices that meet all clauses; more when a page had more. Never raises network errors."""
        return await self._walk(await self._rarest(implied(requirement)), requirement, want)

    async def under(self, attribute: str, limit: int) -> QueryResult:
        """Up to `limit` devices under one attribute."""
        return await self._walk((attribute,), Requirement(), limit)

    async def survey(self, requirement: Requirement, limit: int) -> QueryResult:
        """Devices to explain by why nothing matches: all of them up to `limit`, else those under the rarest attribute of the requirement
        that any device has."""
        everybody = await self.under(EVERYBODY, limit)
        if everybody.complete:
            return everybody
        single = [choice[0] for choice in implied(requirement) if len(choice) == 1 and choice[0] != EVERYBODY]
        await self._count(single)
        counts = {attribute: count for attribute in single if (count := self._cached_count(attribute))}
        return await self.under(min(counts, key=counts.__getitem__), limit) if counts else everybody

    # -- planning --------------------------------------------------------------------------------------------------------

    def _cached_count(self, attribute: str) -> int | None:
        count, counted_at = self._totals.get(attribute, (0, -math.inf))
        return count if trio.current_time() - counted_at <= COUNTS_S else None

    async def _rarest(self, choices: tuple[Alternatives, ...]) -> Alternatives:
        plain = [choice for choice in choices if choice != (EVERYBODY,) and not choice[0].startswith("ram:")]
        if len(plain) == 1 and len(choices) == 2:
            return plain[0]
        await self._count(attribute for choice in plain for attribute in choice)
        best = min(plain, key=self._cost, default=(EVERYBODY,))
        if self._cost(best) > MANY:
            by_ram = [choice for choice in choices if choice[0].startswith("ram:")]
            await self._count(attribute for choice in by_ram for attribute in choice)
            best = min([best, *by_ram], key=self._cost)
        return best

    def _cost(self, choice: Alternatives) -> float:
        return sum(self._cached_count(attribute) or 0 for attribute in choice)

    async def _count(self, attributes: Iterable[str]) -> None:
        """Count the devices under attributes that have no cached count."""
        async with trio.open_nursery() as nursery:
            for attribute in attributes:
                if self._cached_count(attribute) is None:
                    nursery.start_soon(self._count_one, attribute)

    async def _count_one(self, attribute: str) -> None:
        counts: list[int] = []
        answers: list[say.ShardPage] = []
        for depth in range(MAX_SHARD_DEPTH + 1):
            # a split root says little: one random shard of the first level that is not split says the rest
            prefix = self.rng.randrange(2**depth)
            page = say.QueryShard(attribute=attribute, depth=depth, prefix=prefix, limit=0)
            answers = [answer for _, answer in await self._ask(page, READERS)]
            counts.append(max((answer.count for answer in answers), default=0) * 2**depth)
            if not any(answer.split for answer in answers):
                break
        if answers:
            self._note(attribute, max(counts[0], counts[-1]))

    def _note_present(self, adverts: Iterable[say.ListedAdvert]) -> None:
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

    async def _walk(self, choice: Alternatives, requirement: Requirement, want: int) -> QueryResult:
        named = named_peers(requirement)
        merged = _Merged(requirement, want, sure=set(named))
        todo = [_Leaf(attribute) for attribute in choice]
        read: list[_Leaf] = []
        wave = max(1, len(choice))
        while todo and len(read) < BUDGET and not merged.enough:
            now, todo = todo[:wave], todo[wave:]
            wave = min(wave * 2, LARGEST_WAVE)
            read += now
            async with trio.open_nursery() as nursery:
                for leaf in now:
                    nursery.start_soon(self._read, leaf, merged)
            for leaf in now:
                if leaf.split and leaf.depth < MAX_SHARD_DEPTH:
                    below = children(leaf.depth, leaf.prefix, named)
                    todo += [_Leaf(leaf.attribute, leaf.depth + 1, child) for child in below]
            self.rng.shuffle(todo)
        for attribute in choice:
            ends = [leaf for leaf in read if leaf.attribute == attribute and not leaf.split]
            if ends:
                mean = sum(leaf.count * 2**leaf.depth for leaf in ends) / len(ends)
                self._note(attribute, max(round(mean), sum(leaf.count for leaf in ends)))
        counts = {
            attribute: count
            for attribute in self._totals
            if (count := self._cached_count(attribute)) is not None
        }
        return QueryResult(
            devices=merged.results(),
            attributes=choice,
            total=sum(counts.get(attribute, 0) for attribute in choice),
            complete=not todo and all(leaf.whole for leaf in read),
            counts=counts,
        )

    async def _read(self, leaf: _Leaf, merged: _Merged) -> None:
        """Read one shard: from two holders first, from all when these do not have enough, then the further pages."""
        page = say.QueryShard(
            attribute=leaf.attribute,
            depth=leaf.depth,
            prefix=leaf.prefix,
            requirement=sendable(merged.requirement),
            seed=self.rng.getrandbits(32),
            limit=min(max(merged.want + max(SPARE, merged.want // 2), LEAST_PAGE), say.PAGE_LIMIT),
        )
        sure = {contact.peer for contact in self.client.anchors()}

        def add(contact: Contact, answer: say.ShardPage) -> None:
            chosen = contact.peer in sure
            merged.add(leaf.attribute, answer.adverts, sure=chosen)
            if chosen or contact.peer == self.client.own_peer:
                self._note_present(answer.adverts)

        key = shard_key("", leaf.attribute, leaf.depth, leaf.prefix)
        answers: list[tuple[Contact, say.ShardPage]] = []

        async def ask(need: int | None) -> None:
            more = await self._ask(page, need, leave_out={contact.peer for contact, _ in answers})
            for contact, answer in more:
                add(contact, answer)
            answers.extend(more)

        await ask(READERS)
        if not merged.enough and not any(answer.cursor for _, answer in answers):
            await ask(None)
            if merged.may_widen() and await self.lookups.widen(key):
                await ask(None)
        leaf.count = max((answer.count for _, answer in answers), default=0)
        leaf.split = any(answer.split for _, answer in answers)
        for contact, answer in sorted(answers, key=lambda item: item[1].matches, reverse=True):
            leaf.whole = await self._read_on(contact, page, answer, merged, add)
            if leaf.whole or merged.enough:
                return
        if answers and not merged.enough and any(answer.cursor for _, answer in answers):
            await ask(None)  # whoever said that there is more did not show it

    async def _read_on(
        self,
        contact: Contact,
        page: say.QueryShard,
        answer: say.ShardPage,
        merged: _Merged,
        add: Callable[[Contact, say.ShardPage], None],
    ) -> bool:
        """The further pages of one holder, until there is enough. Whether it was read to its end.

        A holder whose pages do not follow on each other, or come to more than a shard holds, is left: it would be read for ever.
        """
        end = page.limit
        while answer.cursor is not None and not merged.enough:
            if answer.cursor != end or end > MOST_OF_SHARD:
                return False
            further = page.model_copy(update={"cursor": answer.cursor})
            replies, _ = await self.client.race([contact], further, say.ShardPage, 1)
            if not replies:
                return False
            ((_, answer),) = replies
            add(contact, answer)
            end += page.limit
        return answer.cursor is None

    async def _ask(
        self, page: say.QueryShard, need: int | None, leave_out: Iterable[PeerId] = ()
    ) -> list[tuple[Contact, say.ShardPage]]:
        """The page from `need` holders (None: all), random ones of the nearest eight first, ourselves and one anchor besides. Looks
        the holders up again when some do not answer."""
        client, key = self.client, shard_key(page.pool, page.attribute, page.depth, page.prefix)
        done = set(leave_out)
        answers: list[tuple[Contact, say.ShardPage]] = []
        for _ in range(2):
            holders = (await self.lookups.holders(key)).contacts
            page = page.model_copy(update={"have": fingerprints([contact.peer for contact in holders])})
            for contact in holders:
                if contact.peer == client.own_peer and contact.peer not in done:
                    done.add(contact.peer)
                    answers.append((contact, await client.ask(contact, page, say.ShardPage)))
            others = [c for c in holders if c.peer not in done and client.usable(c.peer)]
            nearest, rest = others[:HOLDERS], others[HOLDERS:]  # not all of the others have each advert
            self.rng.shuffle(nearest)
            self.rng.shuffle(rest)
            others = [*nearest, *rest]
            count = len(others) if need is None else min(need, len(others))
            out = {contact.peer for contact in holders} | done | {client.own_peer}
            anchors = [c for c in client.anchors() if c.peer not in out and client.usable(c.peer)]
            if anchors:
                others, count = [self.rng.choice(anchors), *others], count + 1
            grace_s = GRACE_S if need is None else 0.0
            more, failed = await client.race(others, page, say.ShardPage, count, grace_s=grace_s)
            answers += more
            done |= {contact.peer for contact, _ in more}
            for contact in failed:
                self.lookups.failed(key, contact.peer)
            for _, answer in more:
                self.lookups.named(key, answer.closer)
            if not failed or (need is not None and len(more) >= need):
                break
        return answers
