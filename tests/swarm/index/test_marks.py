"""Split marks reach holders that did not see a shard exceed its limit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from protocol.messages import index as index_messages
from protocol.values.index_keys import EVERYBODY, MAX_SHARD_DEPTH, shard_key, shard_prefix
from swarm.index import publisher, shard_store
from swarm.index.depths import depth_below, sure_depth
from swarm.index.shard_store import CLAIM_S, KEEP_S, MAX_CLAIMS, MAX_CLAIMS_BY, ShardStore
from swarm.index.sweep import Sweeps
from swarm.net.identity import routing_key
from tests.swarm.index.field import EVERY_CPU, Field, Jumping, Member, field, names, publish_all

KEY = shard_key("", EVERYBODY, 1, 0)
ENOUGH = 16
"""A sixty-fourth of a thousand."""


def claim(
    store: ShardStore,
    *numbers: int,
    now: float = 0.0,
    key: bytes = KEY,
    network: str | None = None,
    below: int = 3000,
) -> list[bool]:
    """Publishers claim that the shard is split, each from its own network unless one is given."""
    return [
        store.claim_split(now, key, f"peer {n}", f"network {n}" if network is None else network, below)
        for n in numbers
    ]


@pytest.fixture
def store() -> ShardStore:
    return ShardStore(split_threshold=1000)


def test_enough_publishers_of_different_networks_make_a_mark(store: ShardStore) -> None:
    assert claim(store, *range(ENOUGH + 1)) == [False] * (ENOUGH - 1) + [True] * 2
    assert store.split(0.0, KEY)


def test_one_network_makes_no_mark_however_many_of_its_devices_say_so(store: ShardStore) -> None:
    assert not any(claim(store, *range(100), network="one network"))
    assert not store.split(0.0, KEY)


def test_devices_that_the_owner_knows_count_each(store: ShardStore) -> None:
    assert claim(store, *range(ENOUGH), network="")[-1]


def test_what_was_said_long_ago_does_not_count(store: ShardStore) -> None:
    assert not any(claim(store, n, now=n * CLAIM_S / (ENOUGH - 1))[0] for n in range(100))


def test_a_publisher_that_says_so_again_counts_on(store: ShardStore) -> None:
    claim(store, *range(ENOUGH - 1))
    claim(store, *range(ENOUGH - 1), now=CLAIM_S - 1)
    assert claim(store, ENOUGH, now=CLAIM_S + 1) == [True]


def test_a_network_may_say_so_of_so_many_shards_at_a_time(store: ShardStore) -> None:
    keys = [shard_key("", f"label:{n}", 0, 0) for n in range(MAX_CLAIMS_BY + 1)]
    for key in keys:
        claim(store, 0, key=key)
    for key, marked in ((keys[0], True), (keys[-1], False)):
        assert claim(store, *range(1, ENOUGH), key=key)[-1] == marked
    store.expire(CLAIM_S)
    assert not store._claims
    assert not store._claims_by


def test_only_so_many_shards_without_a_mark_are_remembered(store: ShardStore) -> None:
    for n in range(MAX_CLAIMS + 50):
        claim(store, n, key=shard_key("", f"label:{n}", 0, 0))
    assert len(store._claims) == len(store._claims_by) == MAX_CLAIMS


def test_how_many_adverts_lie_below_is_what_most_publishers_say(store: ShardStore) -> None:
    claim(store, *range(7), below=10**9)
    claim(store, *range(7, ENOUGH - 1), below=3000)
    assert store.below(0.0, KEY) is None
    claim(store, ENOUGH, below=3100)
    assert store.below(0.0, KEY) == 3000
    assert store.below(CLAIM_S, KEY) is None
    claim(store, *range(100, 200), now=1.0, below=5000)
    assert store.below(1.0, KEY) == 5000
    assert len(store._claims_by) == 2 * ENOUGH


@pytest.mark.parametrize(
    ("depth", "adverts", "holders", "expected"),
    [
        (0, 1_500, 10_000, 1),  # two of 750
        (0, 2_300, 10_000, 1),  # four of 575, or two: unsure
        (0, 2_500, 10_000, 2),  # four of 625
        (0, 10_000, 10_000, 4),  # sixteen of 625
        (3, 10_000, 100_000, 7),
        (3, 10, 100_000, 4),
        (0, 10**9, 10_000, 6),  # 40,000 devices at most
        (5, 10**9, 1_000, 6),
        (MAX_SHARD_DEPTH, 10**9, 10**9, MAX_SHARD_DEPTH),
    ],
)
def test_how_deep_the_shards_lie_that_hold_so_many(
    depth: int, adverts: int, holders: int, expected: int
) -> None:
    assert depth_below(depth, adverts, 1000, holders) == expected


@pytest.mark.parametrize(
    ("devices", "expected"),
    [(1, 0), (1_000, 0), (1_199, 0), (1_200, 1), (2_399, 1), (2_400, 2), (10_000, 4), (1_000_000, 10)],
)
def test_how_deep_a_newcomer_begins_by_the_size_of_the_network(devices: int, expected: int) -> None:
    assert sure_depth(devices, 1000) == expected


def mark(member: Member, depth: int, *, above: bool = True) -> index_messages.MarkSplit:
    """A mark that a shard above that member is split, or the one beside it."""
    prefix = shard_prefix(routing_key(member.peer), depth)
    return index_messages.MarkSplit(
        attribute=EVERYBODY, depth=depth, prefix=prefix if above else prefix ^ 1, below=100
    )


@pytest.mark.parametrize(
    ("depth", "above", "marked"),
    [(0, True, True), (1, True, True), (1, False, False), (MAX_SHARD_DEPTH, True, False)],
)
async def test_a_publisher_speaks_for_the_shards_above_its_own(
    autojump_clock: Jumping, depth: int, above: bool, marked: bool
) -> None:
    async with field(20, split_threshold=4, frames=False) as grown:
        server = grown.members[0].index._server
        server.exempt = lambda peer: True
        for other in grown.members[1:]:
            reply = await server.answer_as_holder(other.peer, mark(other, depth, above=above))
        asked = [mark(other, depth, above=above) for other in grown.members[1:]]
        keys = {shard_key("", EVERYBODY, message.depth, message.prefix) for message in asked}
        assert any(server.holder.split(trio.current_time(), key) for key in keys) == marked
        assert isinstance(reply, index_messages.MarkReply)


@asynccontextmanager
async def split_field() -> AsyncIterator[Field]:
    """24 devices whose adverts are three levels deep or more, with the claims of all of them about the shards above."""
    async with field(8, split_threshold=4, refresh_s=30.0, frames=False) as grown:
        await grown.grow(16, holder=False, split_threshold=4, refresh_s=30.0)
        await publish_all(grown.members)
        await trio.sleep(100)
        assert max(member.index._publisher.depth(EVERYBODY) for member in grown.members) >= 3
        yield grown


async def found(grown: Field) -> set[str]:
    (reader,) = await grown.grow(1, holder=False, split_threshold=4)
    return names((await reader.index.query(EVERY_CPU, 1000)).devices)


async def test_devices_below_stay_found_after_every_holder_of_the_shards_above_was_replaced(
    autojump_clock: Jumping,
) -> None:
    async with split_field() as grown:
        for member in grown.members:
            holder = member.index.holder
            (
                holder._marks.clear(),
                holder._claims.clear(),
                holder._claims_by.clear(),
            )  # like new holders, which have none
        await trio.sleep(150)
        assert await found(grown) == {f"node-{number}" for number in range(24)}


async def test_one_holder_that_counts_too_much_silences_nobody(autojump_clock: Jumping) -> None:
    async with split_field() as grown:
        liar = grown.members[0].index._server
        honest = liar._store

        def inflated(
            now: float, sender: str, message: index_messages.StoreAdverts
        ) -> index_messages.StoreReply:
            reply = honest(now, sender, message)
            items = (item.model_copy(update={"count": 10**6}) for item in reply.items)
            return reply.model_copy(update={"items": tuple(items)})

        liar._store = inflated  # type: ignore[method-assign]
        await trio.sleep(60)
        for member in grown.members:
            holder = member.index.holder
            holder._marks.clear(), holder._claims.clear(), holder._claims_by.clear()
        await trio.sleep(150)
        assert await found(grown) == {f"node-{number}" for number in range(24)}


@asynccontextmanager
async def field_of_known(others: int, split_threshold: int) -> AsyncIterator[Field]:
    """Eight holders that know all devices, and `others`, after five cycles of publishing."""
    async with field(8, split_threshold=split_threshold, refresh_s=30.0, frames=False) as grown:
        await grown.grow(others, holder=False, split_threshold=split_threshold, refresh_s=30.0)
        for member in grown.members[:8]:
            member.index._server.exempt = lambda peer: True
        await publish_all(grown.members)
        await trio.sleep(150)
        yield grown


def word_of(member: Member, members: list[Member]) -> int:
    """The number of adverts below the root according to this publisher, when its shard is complete: the devices of its shard, times the
    number of shards.
    """
    depth = member.index._publisher.depth(EVERYBODY)
    own = shard_prefix(routing_key(member.peer), depth)
    return 2**depth * sum(shard_prefix(routing_key(each.peer), depth) == own for each in members)


async def test_publishers_say_about_how_many_adverts_lie_below(autojump_clock: Jumping) -> None:
    """Shards of twelve are uneven, so a holder, which hears few of the publishers, knows the number only as precisely as they do."""
    async with field_of_known(56, split_threshold=12) as grown:
        root = shard_key("", EVERYBODY, 0, 0)
        counted = [member.index.holder.below(trio.current_time(), root) for member in grown.members[:8]]
        words = sorted(word_of(member, grown.members) for member in grown.members)
        assert 64 / 1.5 <= words[len(words) // 2] <= 64 * 1.5, words
        assert all(count is not None and words[0] <= count <= words[-1] for count in counted), (
            counted,
            words,
        )


def depths_stored(grown: Field, member: Member) -> set[int]:
    """The depths at which holders have this member's advert in the shards of everybody."""
    key = routing_key(member.peer)
    keys = {shard_key("", EVERYBODY, depth, shard_prefix(key, depth)): depth for depth in range(8)}
    stored = {
        key
        for each in grown.members
        for key, shard in each.index.holder._shards.items()
        if member.peer in shard
    }
    return {keys[key] for key in stored if key in keys}


async def test_a_newcomer_stores_where_the_shards_lie_and_not_at_each_level_above(
    autojump_clock: Jumping,
) -> None:
    async with split_field() as grown:
        (newcomer,) = await grown.grow(1, holder=False, split_threshold=4, refresh_s=30.0)
        await newcomer.publish()
        assert 1 not in depths_stored(grown, newcomer)
        assert newcomer.index._publisher.depth(EVERYBODY) >= 2
        assert newcomer.index._advert.name in await found(grown)  # type: ignore[union-attr]


@pytest.mark.parametrize("by", ["holders", "its own estimate"])
async def test_a_newcomer_that_was_sent_too_deep_moves_up_and_is_found(
    autojump_clock: Jumping, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    async with split_field() as grown:
        deepest = max(member.index._publisher.depth(EVERYBODY) for member in grown.members)
        monkeypatch.setattr(Sweeps, "nodes", 64 if by == "holders" else 1_000)
        if by == "holders":
            monkeypatch.setattr(publisher, "sure_depth", lambda nodes, split_threshold: 0)
            monkeypatch.setattr(
                ShardStore, "below", lambda store, now, key: 10**6 if store.split(now, key) else None
            )
        (newcomer,) = await grown.grow(1, holder=False, split_threshold=4, refresh_s=30.0)
        await newcomer.publish()
        assert max(depths_stored(grown, newcomer)) > deepest + (by != "holders")  # it was sent there
        assert newcomer.index._publisher.depth(EVERYBODY) <= deepest + 1
        assert newcomer.index._advert.name in await found(grown)  # type: ignore[union-attr]


async def test_a_newcomer_leaves_the_root_of_a_large_swarm_alone(
    autojump_clock: Jumping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every newcomer would ask its holders."""
    async with split_field() as grown:
        monkeypatch.setattr(Sweeps, "nodes", 24)
        (newcomer,) = await grown.grow(1, holder=False, split_threshold=4, refresh_s=30.0)
        asked: list[int] = []
        for member in grown.members[:-1]:
            honest = member.index._server._store

            def noted(
                now: float,
                sender: str,
                message: index_messages.StoreAdverts,
                honest: Callable[..., index_messages.StoreReply] = honest,
            ) -> index_messages.StoreReply:
                if sender == newcomer.peer:
                    asked.extend(item.depth for item in message.items if item.attribute == EVERYBODY)
                return honest(now, sender, message)

            member.index._server._store = noted  # type: ignore[method-assign]
        await newcomer.publish()
        assert asked
        assert min(asked) >= 2


@pytest.mark.parametrize("lie", [0, 10**6])
async def test_a_reader_that_was_told_a_wrong_number_finds_all(
    autojump_clock: Jumping, monkeypatch: pytest.MonkeyPatch, lie: int
) -> None:
    async with split_field() as grown:
        monkeypatch.setattr(
            ShardStore, "below", lambda store, now, key: lie if store.split(now, key) else None
        )
        assert await found(grown) == {f"node-{number}" for number in range(24)}


def test_many_who_say_that_little_lies_below_send_readers_there_and_keep_nobody_out(
    store: ShardStore,
) -> None:
    """The holders were replaced while the swarm shrank, and the devices that are still below have to be found."""
    assert not any(claim(store, *range(ENOUGH - 1), below=499))
    assert not store.split(0.0, KEY)
    assert not claim(store, ENOUGH, below=499)[0]
    assert store.split(0.0, KEY)
    assert not store.split(CLAIM_S, KEY)
    assert claim(store, *range(100), below=500)[-1]


def test_a_mark_that_is_not_needed_any_more_lets_publishers_in_first_and_keeps_readers_going_for_a_while(
    store: ShardStore,
) -> None:
    def stays_below(now: float, below: int) -> bool:
        """The answer for publishers that claim for half an hour how many adverts are below."""
        return claim(store, *range(ENOUGH), now=now, below=below)[-1]

    claim(store, *range(ENOUGH))
    shrank = 10 * KEEP_S
    for at in range(0, int(shrank) + 1, int(CLAIM_S) // 2):
        assert stays_below(at, 3000)
    for later in range(0, int(KEEP_S), int(CLAIM_S) // 2):
        assert stays_below(shrank + later + CLAIM_S / 4, 40)
    gone = shrank + KEEP_S + CLAIM_S / 4
    assert not stays_below(gone, 40)
    assert store.split(gone + CLAIM_S - 1, KEY), "somebody may still be there"
    store.expire(gone + CLAIM_S)
    assert not store.split(gone + CLAIM_S, KEY)
    assert not store._marks
    assert stays_below(gone + 2 * CLAIM_S, 3000), "it is made again when it is needed"


async def test_a_swarm_that_shrinks_gets_shards_of_its_size_and_nobody_is_hidden_meanwhile(
    autojump_clock: Jumping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_store, "CLAIM_S", 120.0)
    monkeypatch.setattr(shard_store, "KEEP_S", 480.0)
    async with field_of_known(40, split_threshold=16) as grown:
        stay = grown.members[:3]
        assert max(member.index._publisher.depth(EVERYBODY) for member in stay) >= 1
        for member in grown.members[3:]:
            await member.index.withdraw()
        names_left = {f"node-{number}" for number in range(3)}
        for _ in range(48):
            await trio.sleep(30)
            answer = await stay[2].index.query(EVERY_CPU, 1000)
            assert names_left <= names(answer.devices)
        assert max(member.index._publisher.depth(EVERYBODY) for member in stay) == 0
