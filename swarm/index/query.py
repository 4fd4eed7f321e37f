"""Queries: read random shards of the rarest attribute, in pages filtered at the holder, until there are enough devices.

Holders are not trusted: each advert's signature, age and attribute are checked here, and the requirement again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from protocol.messages import index as say
from protocol.values.index_keys import (
    EVERYBODY,
    MAX_SHARD_DEPTH,
    Alternatives,
    implied,
    named_peer,
    shard_key,
    shard_prefix,
)
from protocol.values.requirement import Requirement
from protocol.wire.base import MAX_ELEMENTS, MAX_FRAME
from protocol.wire.codec import pack
from swarm.index.client import IndexClient, fingerprints, race
from swarm.index.lookup import Lookups
from swarm.index.merge import AdvertCache, MergedAdverts, Sighting
from swarm.net.addresses import Contact, PeerId
from swarm.net.identity import routing_key

READERS: Final = 2
"""Holders asked first; all of them when these do not have enough."""
SPARE: Final = 4
"""Adverts requested beyond those wanted, since some may be useless."""
LEAST_PAGE: Final = 8
COUNTS_S: Final = 600.0
BUDGET: Final = 128
"""Shards read for one requirement."""
LARGEST_WAVE: Final = 32
MANY: Final = 2_000
"""An attribute of fewer devices is read rather than split up by RAM."""
MAX_COUNTS: Final = 8_192

PageHere = Callable[[say.QueryShard], say.ShardPage]
"""A page of our own store, while we are a holder."""


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


@dataclass(slots=True)
class _Leaf:
    """One shard as read."""

    depth: int
    prefix: int
    count: int = 0
    split: bool = False
    whole: bool = False
    """Read to its end from a holder that answered."""


@dataclass(slots=True)
class _Total:
    count: int
    when: float
    splits: set[tuple[int, int]] = field(default_factory=set)
    """Shards known to be split and empty themselves."""


class Query:
    """Reads the index for this node."""

    def __init__(
        self,
        client: IndexClient,
        lookups: Lookups,
        nursery: trio.Nursery,
        own_peer: PeerId,
        page_here: PageHere,
        verified: AdvertCache,
        rng: random.Random,
        *,
        pool: str = "",
        anchors: Callable[[], Sequence[Contact]] = tuple,
    ) -> None:
        """`anchors`: holders that the owner chose; one of them is asked in any case."""
        self._anchors = anchors
        self._client = client
        self._lookups = lookups
        self._nursery = nursery
        self._own_peer = own_peer
        self._page_here = page_here
        self._verified = verified
        self._rng = rng
        self._pool = pool
        self._totals: dict[str, _Total] = {}

    async def query(self, requirement: Requirement, want: int) -> QueryResult:
        """About `want` devices that meet all clauses; more when a page had more. Never raises network errors."""
        merged = MergedAdverts(requirement, self._verified)
        choices = implied(requirement)
        rarest = await self._rarest(choices)
        return await self._walk(rarest, merged, requirement, want)

    async def everybody(self, limit: int) -> QueryResult:
        """Up to `limit` devices, whatever they are."""
        nothing = Requirement()
        return await self._walk((EVERYBODY,), MergedAdverts(nothing, self._verified), nothing, limit)

    async def under(self, attribute: str, limit: int) -> QueryResult:
        """Up to `limit` devices under one attribute."""
        nothing = Requirement()
        return await self._walk((attribute,), MergedAdverts(nothing, self._verified), nothing, limit)

    async def survey(self, requirement: Requirement, limit: int) -> QueryResult:
        """Devices to explain by why nothing matches: all of them up to `limit`, else those under the rarest attribute of the requirement
        that any device has."""
        all_of_them = await self.everybody(limit)
        if all_of_them.complete:
            return all_of_them
        single = [choice[0] for choice in implied(requirement) if len(choice) == 1 and choice[0] != EVERYBODY]
        await self._count(single)
        some = [attribute for attribute in single if self._cached_count(attribute)]
        if not some:
            return all_of_them
        return await self.under(min(some, key=lambda a: self._cached_count(a) or 0), limit)

    # -- planning --------------------------------------------------------------------------------------------------------

    def _cached_count(self, attribute: str) -> int | None:
        total = self._totals.get(attribute)
        if total is None or trio.current_time() - total.when > COUNTS_S:
            return None
        return total.count

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
        """Count the devices under attributes whose count is not cached."""
        async with trio.open_nursery() as nursery:
            for attribute in attributes:
                if self._cached_count(attribute) is None:
                    nursery.start_soon(self._count_one, attribute)

    async def _count_one(self, attribute: str) -> None:
        page = say.QueryShard(pool=self._pool, attribute=attribute, limit=0)
        answers = await self._ask(page, READERS)
        count = max((answer.count for _, answer in answers), default=0)
        if any(answer.split for _, answer in answers):
            # a split root says little: one random shard of the first level that is not split says the rest
            depth = 0
            while depth < MAX_SHARD_DEPTH and any(answer.split for _, answer in answers):
                depth += 1
                prefix = self._rng.randrange(2**depth)
                page = say.QueryShard(
                    pool=self._pool, attribute=attribute, depth=depth, prefix=prefix, limit=0
                )
                answers = await self._ask(page, READERS)
            count = max(count, max((answer.count for _, answer in answers), default=0) * 2**depth)
        if answers:
            self._note(attribute, count)

    def _note(self, attribute: str, count: int) -> None:
        before = self._totals.pop(attribute, None)
        if len(self._totals) >= MAX_COUNTS:
            del self._totals[next(iter(self._totals))]
        self._totals[attribute] = _Total(
            count, trio.current_time(), before.splits if before is not None else set()
        )

    # -- reading ---------------------------------------------------------------------------------------------------------

    async def _walk(
        self, choice: Alternatives, merged: MergedAdverts, requirement: Requirement, want: int
    ) -> QueryResult:
        peer = named_peer(requirement)
        todo: list[tuple[str, int, int]] = [(attribute, 0, 0) for attribute in choice]
        leaves: dict[str, list[_Leaf]] = {attribute: [] for attribute in choice}
        wave, read, complete = max(1, len(choice)), 0, True
        while todo and read < BUDGET and len(merged) < want:
            now, todo = todo[:wave], todo[wave:]
            wave = min(wave * 2, LARGEST_WAVE)
            read += len(now)
            async with trio.open_nursery() as nursery:
                for attribute, depth, prefix in now:
                    leaf = _Leaf(depth, prefix)
                    leaves[attribute].append(leaf)
                    nursery.start_soon(self._read, attribute, leaf, merged, requirement, want)
            for attribute, depth, prefix in now:
                leaf = next(
                    item for item in leaves[attribute] if (item.depth, item.prefix) == (depth, prefix)
                )
                complete = complete and leaf.whole
                if leaf.split and depth < MAX_SHARD_DEPTH:
                    todo += [(attribute, depth + 1, child) for child in _children(depth, prefix, peer)]
            self._rng.shuffle(todo)
        for attribute, read_leaves in leaves.items():
            ends = [leaf for leaf in read_leaves if not leaf.split]
            if ends:
                mean = sum(leaf.count * 2**leaf.depth for leaf in ends) / len(ends)
                self._note(attribute, max(round(mean), sum(leaf.count for leaf in ends)))
        counts = {
            attribute: known
            for attribute in self._totals
            if (known := self._cached_count(attribute)) is not None
        }
        return QueryResult(
            devices=merged.results(),
            attributes=choice,
            total=sum(counts.get(attribute, 0) for attribute in choice),
            complete=complete and not todo,
            counts=counts,
        )

    async def _read(
        self, attribute: str, leaf: _Leaf, merged: MergedAdverts, requirement: Requirement, want: int
    ) -> None:
        """Read one shard: from two holders first, from all when these do not have enough, then the further pages."""
        page = say.QueryShard(
            pool=self._pool,
            attribute=attribute,
            depth=leaf.depth,
            prefix=leaf.prefix,
            requirement=_sendable(requirement),
            seed=self._rng.getrandbits(32),
            limit=min(max(want + SPARE, LEAST_PAGE), say.PAGE_LIMIT),
        )
        sure = {contact.peer for contact in self._anchors()}
        answers = await self._ask(page, READERS)
        for contact, answer in answers:
            merged.add(attribute, answer.adverts, sure=contact.peer in sure)
        if len(merged) < want and not any(answer.cursor for _, answer in answers):
            request = {contact.peer for contact, _ in answers}
            more = await self._ask(page, None, leave_out=request)
            for contact, answer in more:
                merged.add(attribute, answer.adverts, sure=contact.peer in sure)
            answers += more
        leaf.count = max((answer.count for _, answer in answers), default=0)
        leaf.split = any(answer.split for _, answer in answers)
        fullest = sorted(answers, key=lambda item: item[1].matches, reverse=True)
        leaf.whole = bool(answers) and not fullest[0][1].cursor
        for contact, answer in fullest:
            cursor = answer.cursor
            while cursor and len(merged) < want:
                further = await self._page(contact, page.model_copy(update={"cursor": cursor}))
                if further is None:
                    break
                merged.add(attribute, further.adverts, sure=contact.peer in sure)
                cursor = further.cursor
                leaf.whole = cursor is None
            if leaf.whole or len(merged) >= want:
                break

    async def _ask(
        self, page: say.QueryShard, need: int | None, leave_out: set[PeerId] | None = None
    ) -> list[tuple[Contact, say.ShardPage]]:
        """The page from `need` random holders (None: all). Looks the holders up again when some do not answer."""
        key = shard_key(page.pool, page.attribute, page.depth, page.prefix)
        done = set(leave_out or ())
        answers: list[tuple[Contact, say.ShardPage]] = []
        for _ in range(2):
            known = await self._lookups.holders(key)
            page = page.model_copy(
                update={"have": fingerprints([contact.peer for contact in known.contacts])}
            )
            contacts = [contact for contact in known.contacts if contact.peer not in done]
            anchor = self._anchor({contact.peer for contact in known.contacts} | done)
            for contact in contacts:
                if contact.peer == self._own_peer:
                    done.add(contact.peer)
                    answers.append((contact, self._page_here(page)))
            others = [c for c in contacts if c.peer != self._own_peer and self._client.usable(c.peer)]
            self._rng.shuffle(others)
            still = len(others) if need is None else max(min(need, len(others)), 0)
            if anchor is not None:
                others, still = [anchor, *others], still + 1
            more, failed = await race(self._nursery, self._client, others, page, say.ShardPage, still)
            answers += more
            done |= {contact.peer for contact, _ in more}
            for contact in failed:
                self._lookups.failed(key, contact.peer)
            for _, answer in more:
                self._lookups.named(key, answer.closer)
            if not failed or (need is not None and len(more) >= need):
                break
        return answers

    def _anchor(self, others: Collection[PeerId]) -> Contact | None:
        """A usable anchor that is not among `others`."""
        matches = [
            contact
            for contact in self._anchors()
            if contact.peer != self._own_peer
            and contact.peer not in others
            and self._client.usable(contact.peer)
        ]
        return self._rng.choice(matches) if matches else None

    async def _page(self, contact: Contact, page: say.QueryShard) -> say.ShardPage | None:
        if contact.peer == self._own_peer:
            return self._page_here(page)
        answers, _ = await race(self._nursery, self._client, [contact], page, say.ShardPage, 1)
        return answers[0][1] if answers else None


def _sendable(requirement: Requirement) -> Requirement:
    """As many clauses as fit into a frame. All of them are checked here again in any case."""
    clauses = []
    room, elements = MAX_FRAME // 2, MAX_ELEMENTS // 2
    for clause in requirement.clauses:
        wire = clause.to_wire()
        room -= len(pack(wire))
        elements -= len(wire) + (len(clause.value) if isinstance(clause.value, tuple) else 0) + 1
        if room >= 0 and elements >= 0:
            clauses.append(clause)
    return requirement if len(clauses) == len(requirement.clauses) else Requirement(clauses=tuple(clauses))


def _children(depth: int, prefix: int, peer: PeerId | None) -> list[int]:
    """Prefixes one level deeper; only the one of `peer`, if one is named."""
    both = [2 * prefix, 2 * prefix + 1]
    if peer is None:
        return both
    try:
        own = shard_prefix(routing_key(peer), depth + 1)
    except ValueError:
        return both
    return [child for child in both if child == own]
