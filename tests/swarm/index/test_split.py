"""How a reader descends to the parts of a split shard, and how liars can affect it."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from protocol.messages import index as index_messages
from protocol.values.advert import Advert, SignedAdvert, advert_body, advert_message
from protocol.values.index_keys import EVERYBODY
from swarm.index.lookup import HolderSet, Lookups, _Shortlist
from swarm.index.query import Query, QueryResult
from swarm.index.shard_store import SPLIT_THRESHOLD
from swarm.index.walk import READERS
from swarm.net.addresses import Contact, PeerId
from swarm.net.identity import Identity, distance
from tests.swarm.index.field import EVERY_CPU, Jumping, field, names, needs

DEPTH = 3
OF_LEAF = 3
HOLDERS = [Contact(Identity.from_seed(f"holder {number}").peer_id, ()) for number in range(8)]
EVERYBODY_HERE = 2**DEPTH * OF_LEAF

Lie = Callable[[index_messages.QueryShard], index_messages.ShardPage]


def said_to_be_split(page: index_messages.QueryShard) -> index_messages.ShardPage:
    return index_messages.ShardPage(split=page.depth == 0)


def query_over(race: Callable[..., Any], nodes: float, seed: int = 1) -> Query:
    """A reader of eight holders that have all keys. `race`: like `IndexClient.race`; `nodes`: its estimate of the number of nodes."""
    client: Any = SimpleNamespace(own_peer="", anchors=list, usable=lambda peer: True, race=race)

    async def holders(key: bytes) -> SimpleNamespace:
        return SimpleNamespace(contacts=list(HOLDERS))

    async def widen(key: bytes) -> bool:
        return False

    lookups: Any = SimpleNamespace(
        holders=holders,
        widen=widen,
        named=lambda key, closer, add: False,
        sweeps=SimpleNamespace(nodes=nodes),
    )
    return Query(client, lookups, random.Random(seed))


class Tree:
    """A shard split into `depth` levels, with the same eight holders for all its parts, some of which lie."""

    def __init__(self, depth: int, liars: dict[PeerId, Lie] | None = None) -> None:
        self.depth, self.liars = depth, liars or {}
        self.asked: list[tuple[int, int]] = []
        self.devices = [self._device(number) for number in range(2**depth * OF_LEAF)]

    def _device(self, number: int) -> index_messages.ListedAdvert:
        identity = Identity.from_seed(f"device {number}")
        body = advert_body(Advert(peer=identity.peer_id, seq=1, device="d", name=f"node-{number}"))
        signed = SignedAdvert(body=body, signature=identity.sign(advert_message(body)))
        return index_messages.ListedAdvert(advert=signed, age_s=1.0)

    async def race(
        self,
        contacts: list[Contact],
        page: index_messages.QueryShard,
        expected: object,
        need: int,
        **_: object,
    ) -> tuple[list[tuple[Contact, index_messages.ShardPage]], list[Contact]]:
        self.asked += [(page.depth, page.prefix)] * min(need, len(contacts))
        return [(contact, self._answer(contact.peer, page)) for contact in contacts[:need]], []

    def _answer(self, peer: PeerId, page: index_messages.QueryShard) -> index_messages.ShardPage:
        if peer in self.liars:
            return self.liars[peer](page)
        if page.depth < self.depth:
            return index_messages.ShardPage(split=True)
        if page.depth > self.depth:
            return index_messages.ShardPage()
        first = page.prefix * OF_LEAF
        adverts = tuple(self.devices[first : first + OF_LEAF])
        return index_messages.ShardPage(adverts=adverts, matches=OF_LEAF, count=OF_LEAF)

    async def query(self, want: int, nodes: float = 1.0) -> QueryResult:
        """`nodes`: the reader's estimate of the number of nodes."""
        return await query_over(self.race, nodes).find_by_attribute(EVERYBODY, want)


async def test_who_wants_few_devices_follows_one_path_and_asks_two_holders_on_the_way(
    autojump_clock: Jumping,
) -> None:
    tree = Tree(DEPTH)
    result = await tree.query(OF_LEAF)
    assert len(result.devices) == OF_LEAF
    assert not result.complete
    assert [depth for depth, _ in tree.asked] == [depth for depth in range(DEPTH + 1) for _ in range(READERS)]
    assert result.total == EVERYBODY_HERE


@pytest.mark.parametrize(
    ("estimated", "depths"),
    [
        pytest.param(DEPTH, [DEPTH], id="right"),
        pytest.param(DEPTH - 1, [DEPTH - 1, DEPTH], id="not deep enough"),
        pytest.param(DEPTH + 2, [DEPTH + 2, DEPTH + 1, DEPTH], id="too deep"),
    ],
)
async def test_who_knows_the_size_of_the_swarm_begins_where_its_shards_lie(
    autojump_clock: Jumping, estimated: int, depths: list[int]
) -> None:
    tree = Tree(DEPTH)
    result = await tree.query(OF_LEAF, nodes=SPLIT_THRESHOLD * 2**estimated)
    assert len(result.devices) == OF_LEAF
    assert list(dict.fromkeys(depth for depth, _ in tree.asked)) == depths
    assert result.total == EVERYBODY_HERE


@pytest.mark.parametrize("depth", [0, 1, DEPTH])
async def test_what_was_passed_over_is_read_too(autojump_clock: Jumping, depth: int) -> None:
    tree = Tree(depth)
    result = await tree.query(EVERYBODY_HERE + 1, nodes=SPLIT_THRESHOLD * 2 ** (DEPTH - 1))
    assert len(result.devices) == 2**depth * OF_LEAF
    assert result.complete
    assert result.total == 2**depth * OF_LEAF


async def test_who_wants_all_devices_reads_all_parts_and_asks_every_holder(autojump_clock: Jumping) -> None:
    tree = Tree(DEPTH)
    result = await tree.query(EVERYBODY_HERE + 1)
    assert len(result.devices) == EVERYBODY_HERE
    assert result.complete
    assert {part: tree.asked.count(part) for part in tree.asked} == {
        (depth, prefix): len(HOLDERS) for depth in range(DEPTH + 1) for prefix in range(2**depth)
    }


@pytest.mark.parametrize("honest", [1, 4])
async def test_liars_who_say_that_a_shard_is_split_hide_nobody(autojump_clock: Jumping, honest: int) -> None:
    tree = Tree(0, {contact.peer: said_to_be_split for contact in HOLDERS[honest:]})
    assert len((await tree.query(OF_LEAF)).devices) == OF_LEAF


@pytest.mark.parametrize("honest", [1, 2, 4])
@pytest.mark.parametrize("estimated", [1, 2])
async def test_liars_who_say_that_a_passed_over_shard_is_empty_hide_nobody(
    autojump_clock: Jumping, honest: int, estimated: int
) -> None:
    tree = Tree(
        DEPTH, {contact.peer: lambda page: index_messages.ShardPage() for contact in HOLDERS[honest:]}
    )
    result = await tree.query(EVERYBODY_HERE + 1, nodes=SPLIT_THRESHOLD * 2**estimated)
    assert len(result.devices) == EVERYBODY_HERE


@pytest.mark.slow
async def test_a_hot_shard_splits_and_nobody_is_lost(autojump_clock: Jumping) -> None:
    async with field(12, split_threshold=4, refresh_s=60, frames=False) as grown:
        for member in grown.members:
            await member.publish()
        await trio.sleep(150)  # by now all nodes have refreshed and moved below the root
        everybody = {f"node-{number}" for number in range(12)}
        for reader in grown.members[::8]:
            result = await reader.index.query(EVERY_CPU, 1000)
            assert names(result.devices) == everybody
            few = await reader.index.query(EVERY_CPU, 5)
            assert len(few.devices) >= 5
        depths = [member.index._publisher.depth(EVERYBODY) for member in grown.members]
        assert min(depths) >= 1
        one = await grown.members[0].index.query(needs(f"peer == {grown.members[9].peer}"), 1)
        assert names(one.devices) == {"node-9"}


@pytest.mark.parametrize("seed", range(24))
async def test_one_holder_that_shows_its_own_and_calls_it_all_hides_nobody(
    autojump_clock: Jumping, seed: int
) -> None:
    tree = Tree(0)
    tree.devices = [tree._device(number) for number in range(160)]
    honest, own = tree.devices[:120], tree.devices[120:]

    def answer(peer: str, page: index_messages.QueryShard) -> index_messages.ShardPage:
        shown, matches = (own, 10**6) if peer == HOLDERS[0].peer else (honest, len(honest))
        end = page.cursor + page.limit
        cursor = end if end < len(shown) else None
        return index_messages.ShardPage(
            adverts=tuple(shown[page.cursor : end]), matches=matches, count=len(shown), cursor=cursor
        )

    tree._answer = answer  # type: ignore[method-assign]

    result = await query_over(tree.race, 1.0, seed).find_by_attribute(EVERYBODY, 1000)
    assert names(result.devices) >= {f"node-{number}" for number in range(120)}


async def test_holders_that_know_nothing_lead_to_nearer_ones_where_a_lookup_did_not_wait(
    autojump_clock: Jumping,
) -> None:
    tree = Tree(0)
    far = [Contact(Identity.from_seed(f"far {number}").peer_id, ()) for number in range(READERS)]
    tree.liars = {contact.peer: lambda page: index_messages.ShardPage() for contact in far}
    query = query_over(tree.race, 1.0)
    known = list(far)

    async def holders(key: bytes) -> SimpleNamespace:
        return SimpleNamespace(contacts=list(known))

    def named(key: bytes, closer: object, *, add: bool) -> bool:
        fresh = known == far
        known[:0] = HOLDERS if fresh else ()
        return fresh

    query.lookups.holders, query.lookups.named = holders, named  # type: ignore[method-assign, assignment]
    result = await query.find_by_attribute(EVERYBODY, OF_LEAF)
    assert len(result.devices) == OF_LEAF
    assert len(tree.asked) == 2 * READERS


@pytest.mark.parametrize("hurried", [True, False])
def test_nearer_holders_are_added_to_a_set_whose_lookup_did_not_wait(*, hurried: bool) -> None:
    key = bytes(32)
    near, far = sorted(HOLDERS, key=lambda contact: distance(contact.peer, key))[:: len(HOLDERS) - 1]
    client: Any = SimpleNamespace(own_peer="", usable=lambda peer: True)
    lookups = Lookups(client, random.Random(1))
    lookups._sets[key] = HolderSet([far], found_at=0.0, hurried=_Shortlist(key) if hurried else None)
    told = (index_messages.ContactInfo(peer=near.peer, addresses=("/ip4/10.0.0.1/tcp/1",)),)

    async def main() -> bool:
        return lookups.named(key, told, add=True)

    assert trio.run(main, clock=trio.testing.MockClock()) == hurried
    assert [each.peer for each in lookups._sets[key].contacts] == [near.peer, far.peer][not hurried :]
