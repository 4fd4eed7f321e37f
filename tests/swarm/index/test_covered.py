"""Attributes that are not published on their own, because readers find their devices in the shards of everybody."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from protocol.messages import index as index_messages
from protocol.messages.index import MAX_COUNTED, StoreVerdict
from protocol.values.advert import ADVERT_TTL_S, Advert, SignedAdvert, UnitOffer, advert_body, advert_message
from protocol.values.index_keys import EVERYBODY, index_alternatives, shard_key, shard_prefix
from protocol.values.match import compile_requirement
from protocol.values.requirement import Requirement
from swarm.index import covered, publisher, query
from swarm.index.covered import COMMON, COMMON_STILL, RARE, is_covered, seen_covered
from swarm.index.shard_store import SPLIT_THRESHOLD, read_signed
from swarm.index.sweep import FRESH_S
from swarm.net.addresses import Contact
from swarm.net.identity import Identity, routing_key
from tests.swarm.index.field import CPU, EVERY_CPU, Field, Jumping, Member, field, names, needs, publish_all
from tests.swarm.index.test_split import HOLDERS, query_over

LABEL = "label:lab=yes"
LABELLED = needs("label.lab == yes")


@pytest.mark.parametrize(
    ("attribute", "having", "whole", "before", "expected"),
    [
        ("label:a=b", 0, True, False, True),
        ("device:d", 1, True, False, True),
        ("device:d", 1000, False, True, False),
        ("campaign:c-1", 1000, True, True, False),
        ("label:a=b", COMMON, False, False, True),
        ("label:a=b", COMMON - 1, False, False, False),
        ("label:a=b", COMMON_STILL, False, True, True),
        ("label:a=b", COMMON_STILL - 1, False, True, False),
    ],
)
def test_what_many_have_is_covered_and_all_is_where_one_shard_has_everybody(
    attribute: str, having: int, *, whole: bool, before: bool, expected: bool
) -> None:
    assert is_covered(attribute, having, whole=whole, before=before) == expected


def test_readers_look_where_publishers_of_another_part_may_have_stored() -> None:
    """The estimates of two parts may differ by half."""
    assert seen_covered(0, 0, COMMON)
    assert not seen_covered(1, COMMON - 1, COMMON)
    assert seen_covered(1, COMMON_STILL // 2, RARE)
    assert RARE < COMMON_STILL < COMMON


def stored(grown: Field, member: Member, attribute: str) -> int:
    """How many holders have the member's advert under that attribute now, in any shard."""
    own = routing_key(member.peer)
    keys = {shard_key("", attribute, depth, shard_prefix(own, depth)) for depth in range(8)}
    now = trio.current_time()
    return sum(
        any(
            posting.expires > now
            for key, shard in each.index.holder._shards.items()
            if key in keys and (posting := shard.get(member.peer)) is not None
        )
        for each in grown.members
    )


async def test_in_a_small_swarm_an_advert_lies_in_one_shard_and_is_found_by_all_it_says(
    autojump_clock: Jumping,
) -> None:
    async with field(14, frames=False) as grown:
        await publish_all(grown.members, lab=3)
        worker, reader = grown.members[2], grown.members[9].index
        await worker.publish(labels={"lab": "yes"})
        await worker.publish(labels={"lab": "yes"}, models=("a" * 64,))
        assert stored(grown, worker, EVERYBODY) >= 8
        for attribute in (LABEL, "device:device-2", f"unit:{CPU}", f"model:{'a' * 64}"):
            assert stored(grown, worker, attribute) == 0, attribute
            assert not worker.index._publisher._shards[attribute].holders, "nobody there has anything of ours"
        assert names((await reader.query(LABELLED, 16)).devices) == {"node-0", "node-1", "node-2"}
        assert names((await reader.query(needs("device == device-2"), 1)).devices) == {"node-2"}
        assert names((await reader.model("a" * 64)).devices) == {"node-2"}


async def test_a_campaign_has_a_shard_of_its_own_in_any_swarm(autojump_clock: Jumping) -> None:
    async with field(14, frames=False) as grown:
        await publish_all(grown.members)
        worker = grown.members[4]
        await worker.index.publish(worker.advert(), campaigns=["c-1"])
        assert stored(grown, worker, "campaign:c-1") >= 8


async def test_a_swarm_that_outgrows_one_shard_publishes_what_is_rare_and_hides_nobody_meanwhile(
    autojump_clock: Jumping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(covered, "COMMON", 4)
    monkeypatch.setattr(covered, "COMMON_STILL", 3)
    monkeypatch.setattr(query, "COMMON", 4)
    monkeypatch.setattr(query, "RARE", 3)
    split_threshold, labelled = 12, {"node-0", "node-1", "node-2"}
    async with field(10, split_threshold=split_threshold, refresh_s=60.0, frames=False) as grown:
        await publish_all(grown.members, lab=3)
        assert stored(grown, grown.members[0], LABEL) == 0
        reader, many = grown.members[9].index, grown.members[8].index
        await grown.grow(14, holder=False, split_threshold=split_threshold, refresh_s=60.0)
        async with trio.open_nursery() as publishing:
            for member in grown.members[10:]:
                publishing.start_soon(member.publish)
            for _ in range(30):
                await trio.sleep(5)
                assert names((await reader.query(LABELLED, 16)).devices) == labelled
        for member in grown.members[:3]:
            assert member.index._publisher.depth(EVERYBODY) == 1
            assert stored(grown, member, LABEL) >= 8
        everybody = {f"node-{number}" for number in range(24)}
        assert names((await many.query(EVERY_CPU, 1000)).devices) == everybody
        assert not all(stored(grown, member, f"unit:{CPU}") for member in grown.members)


async def test_an_advert_that_holders_of_everybody_keep_out_is_published_under_all_it_says(
    autojump_clock: Jumping,
) -> None:
    """Nine devices behind one public address: the shard of everybody takes eight of them."""
    async with field(10, frames=False) as grown:
        for member in grown.members:
            member.index._server._network_of = lambda sender: "203.0.113.0/24"  # type: ignore[method-assign]
        *first, last = grown.members
        await publish_all(first)
        await trio.sleep(60)
        await last.publish(labels={"lab": "yes"})
        assert stored(grown, last, EVERYBODY) < 8
        assert stored(grown, last, LABEL) >= 8
        reader = grown.members[3].index
        assert names((await reader.query(LABELLED, 16)).devices) == {"node-9"}


def inflated(store: Callable[..., Any]) -> Callable[..., Any]:
    """Make a holder claim that a thousand devices have each attribute."""

    def stored_by_liar(*args: Any) -> tuple[tuple[index_messages.StoredItem, ...], str]:
        items, why = store(*args)
        more = [each.model_copy(update={"having": (1000,) * len(each.having)}) for each in items]
        return tuple(more), why

    return stored_by_liar


async def test_an_attribute_is_covered_by_the_word_of_all_holders_but_two(autojump_clock: Jumping) -> None:
    """Five of eight claim that a thousand devices have every attribute of a device."""
    async with field(8, split_threshold=4, refresh_s=30.0, frames=False) as grown:
        await grown.grow(16, holder=False, split_threshold=4, refresh_s=30.0)
        for liar in grown.members[:5]:
            liar.index.holder.store = inflated(liar.index.holder.store)  # type: ignore[method-assign]
        await publish_all(grown.members, lab=3)
        await trio.sleep(200)
        for member in grown.members[:3]:
            assert member.index._publisher.depth(EVERYBODY) >= 1
            assert stored(grown, member, LABEL) >= 5


async def test_an_attribute_that_few_have_any_more_gets_its_own_shard_again(
    autojump_clock: Jumping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(covered, "COMMON", 1)
    monkeypatch.setattr(covered, "COMMON_STILL", 1)
    async with field(8, split_threshold=4, refresh_s=30.0, frames=False) as grown:
        await grown.grow(16, holder=False, split_threshold=4, refresh_s=30.0)
        await publish_all(grown.members, lab=1)
        await trio.sleep(200)
        member = grown.members[0]
        assert stored(grown, member, LABEL) == 0
        monkeypatch.setattr(covered, "COMMON_STILL", 2)
        monkeypatch.setattr(covered, "COMMON", 2)
        await trio.sleep(100)
        assert stored(grown, member, LABEL) >= 5


@asynccontextmanager
async def published_under_all(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Field]:
    """A small swarm whose adverts are stored under all their attributes, before the attributes are covered at the next refresh."""
    async with field(14, frames=False) as grown:
        with monkeypatch.context() as before:
            before.setattr(publisher, "is_covered", lambda *_, whole, before: False)
            await publish_all(grown.members, lab=1)
        yield grown


async def test_who_leaves_is_gone_also_where_an_attribute_was_published_before_it_was_covered(
    autojump_clock: Jumping, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with published_under_all(monkeypatch) as grown:
        member = grown.members[0]
        assert stored(grown, member, LABEL) >= 8
        await member.index._publisher.refresh()
        assert all(
            shard.covered for name, shard in member.index._publisher._shards.items() if name != EVERYBODY
        )
        await member.publish(labels={"lab": "yes"}, ram=2**40)
        for each in grown.members:
            entry = each.index.holder._nodes.get(member.peer)
            assert entry is None or entry.advert.ram == 2**40, "newer versions reach them"
        await member.index.withdraw()
        assert stored(grown, member, LABEL) == 0


# -- readers ---------------------------------------------------------------------------------------------------------------

DEPTH = 3
SEEDS = range(24)
EVERYBODY_THERE = {f"node-{number}" for number in range(100, 100 + 3 * 2**DEPTH)}


def listed(number: int, **fields: object) -> index_messages.ListedAdvert:
    identity = Identity.from_seed(f"device {number}")
    units = (UnitOffer(unit=CPU, runtime="r"),)
    plain: dict[str, object] = {
        "peer": identity.peer_id,
        "seq": 1,
        "device": "d",
        "name": f"node-{number}",
        "units": units,
    }
    body = advert_body(Advert.model_validate(plain | fields))
    return index_messages.ListedAdvert(
        advert=SignedAdvert(body=body, signature=identity.sign(advert_message(body))), age_s=1.0
    )


class Swarm:
    """Eight holders of all shards. The shard of everybody has eight parts, each with `having` devices that have an attribute, of which the
    page shows three. The attribute's own shard has `own`. The liars claim that `lie` have it.
    """

    def __init__(
        self,
        having: int,
        own: Sequence[index_messages.ListedAdvert],
        lie: int,
        liars: int,
        root: Sequence[index_messages.ListedAdvert] = (),
        holders: int = 8,
        strangers: int = 0,
        young: int | None = None,
    ) -> None:
        self.having, self.own, self.lie, self.liars, self.root = having, own, lie, liars, root
        self.asked: list[tuple[str, int]] = []
        self.parts: list[int] = []
        self.holders, self.strangers, self.young = holders, strangers, young
        self.units: tuple[str, ...] = (CPU,)

    async def race(
        self,
        contacts: list[Contact],
        page: index_messages.QueryShard,
        expected: object,
        need: int,
        **_: object,
    ) -> tuple[list[tuple[Contact, index_messages.ShardPage]], list[Contact]]:
        """See `IndexClient.race`."""
        contacts = [each for each in contacts if each in HOLDERS[: self.holders]]
        self.asked += [(page.attribute, page.depth)] * min(need, len(contacts))
        if page.attribute == EVERYBODY and page.depth == DEPTH:
            self.parts.append(page.prefix)
        return [(contact, self._answer(contact, page)) for contact in contacts[:need]], []

    def _answer(self, contact: Contact, page: index_messages.QueryShard) -> index_messages.ShardPage:
        shown: Sequence[index_messages.ListedAdvert] = ()
        split, having, count = False, self.having, 700
        if page.attribute != EVERYBODY:
            shown = self.own if page.depth == 0 else ()
        elif contact in HOLDERS[8 - self.strangers :]:
            return index_messages.ShardPage(having=(0,) * len(page.counted))
        elif page.depth < DEPTH:
            shown, split = self.root if page.depth == 0 else (), True
        else:
            first = 100 + 3 * page.prefix
            shown = [
                listed(
                    number, ram=2**34, units=tuple(UnitOffer(unit=unit, runtime="r") for unit in self.units)
                )
                for number in range(first, first + 3)
            ]
            if page.prefix == self.young:
                having, count = 0, 20
        meets = compile_requirement(page.requirement)
        fits = tuple(each for each in shown if meets(read_signed(each.advert)))
        having = self.lie if contact in HOLDERS[: self.liars] else having
        return index_messages.ShardPage(
            adverts=fits,
            matches=len(fits),
            count=count if shown else 0,
            split=split,
            having=(having,) * len(page.counted),
        )

    async def query(self, seed: int, requirement: Requirement, depth: int = DEPTH) -> set[str]:
        reader = query_over(self.race, SPLIT_THRESHOLD * 2**depth, seed)
        return names((await reader.query(requirement, 1000)).devices)


@pytest.mark.parametrize("seed", SEEDS)
async def test_holders_that_call_a_common_attribute_rare_hide_nobody(
    autojump_clock: Jumping, seed: int
) -> None:
    swarm = Swarm(having=500, own=(), lie=0, liars=5)
    assert await swarm.query(seed, EVERY_CPU) == EVERYBODY_THERE


async def test_holders_that_call_a_rare_attribute_common_hardly_make_readers_go_through_all_parts(
    autojump_clock: Jumping,
) -> None:
    """Two of eight lie: a reader goes through all parts only if it asks both of them first, once in 28 times."""
    own = [listed(number, labels={"lab": "yes"}) for number in range(3)]
    through_all = 0
    for seed in range(100):
        swarm = Swarm(having=0, own=own, lie=10**6, liars=2)
        assert await swarm.query(seed, LABELLED) == {"node-0", "node-1", "node-2"}
        through_all += len(set(swarm.parts)) == 2**DEPTH
    assert through_all <= 10


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("holders", [1, 2, 3, 4])
async def test_few_holders_of_which_one_lies_hide_nobody(
    autojump_clock: Jumping, seed: int, holders: int
) -> None:
    swarm = Swarm(having=500, own=(), lie=0, liars=1, holders=holders)
    assert await swarm.query(seed, EVERY_CPU) == EVERYBODY_THERE


async def test_holders_that_have_nothing_of_a_part_say_nothing_of_it(autojump_clock: Jumping) -> None:
    """A hurried lookup ends at such holders."""
    for seed in SEEDS:
        swarm = Swarm(having=500, own=(), lie=0, liars=0, strangers=6)
        assert await swarm.query(seed, EVERY_CPU) == EVERYBODY_THERE


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_part_into_which_few_have_moved_yet_calls_nothing_rare(
    autojump_clock: Jumping, seed: int
) -> None:
    swarm = Swarm(having=500, own=(), lie=0, liars=0, young=0)
    assert await swarm.query(seed, EVERY_CPU) == EVERYBODY_THERE


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_is_not_counted_is_not_taken_for_rare(autojump_clock: Jumping, seed: int) -> None:
    """Such a low memory limit implies more attributes than fit into one request."""
    swarm = Swarm(having=500, own=(), lie=0, liars=0)
    many = needs(*(f'units has "{unit}"' for unit in (CPU, "GPU (ONNX)", "NPU (ONNX)")), "ram >= 1 KiB")
    assert len(index_alternatives(many)[-2]) > MAX_COUNTED
    swarm.units = (CPU, "GPU (ONNX)", "NPU (ONNX)")
    assert await swarm.query(seed, many) == EVERYBODY_THERE


async def test_who_asks_for_less_than_a_moment_ago_looks_first_how_many_have_it(
    autojump_clock: Jumping,
) -> None:
    swarm = Swarm(having=0, own=(listed(0, ram=2**40),), lie=0, liars=0)
    query = query_over(swarm.race, SPLIT_THRESHOLD * 2**DEPTH)
    for limit in ("1 TiB", "512 GiB"):
        swarm.parts.clear()
        result = await query.query(needs(f"ram >= {limit}"), 16)
        assert [each.advert.name for each in result.devices] == ["node-0"]
        assert len(set(swarm.parts)) == 1, "one part tells that few have so much"


async def test_who_was_covered_when_the_swarm_outgrew_one_shard_is_found_before_he_knows(
    autojump_clock: Jumping,
) -> None:
    late, early = listed(0, labels={"lab": "yes"}), listed(1, labels={"lab": "yes"})
    swarm = Swarm(having=0, own=(early,), lie=0, liars=0, root=(late,))
    assert await swarm.query(1, LABELLED, depth=2) == {"node-0", "node-1"}


async def test_who_asks_again_soon_begins_in_the_part_whose_holders_he_knows(autojump_clock: Jumping) -> None:
    swarm = Swarm(having=0, own=(), lie=0, liars=0)
    query = query_over(swarm.race, SPLIT_THRESHOLD * 2**DEPTH)
    seen = set()
    for _ in range(8):
        swarm.parts.clear()
        for label in ("one", "two"):
            await query.query(needs(f"label.lab == {label}"), 16)
        assert len(set(swarm.parts)) == 1
        seen |= set(swarm.parts)
        await trio.sleep(FRESH_S + 1)
    assert len(seen) > 2


async def test_holders_of_a_covered_attribute_are_forgotten_once_what_they_have_has_expired(
    autojump_clock: Jumping, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with published_under_all(monkeypatch) as grown:
        member = grown.members[0]
        await trio.sleep(500)
        shard = member.index._publisher._shards[LABEL]
        assert shard.covered
        assert shard.holders
        await trio.sleep(ADVERT_TTL_S + 500)
        assert not shard.holders
        assert stored(grown, member, LABEL) == 0


async def test_who_asks_again_and_again_goes_on_to_other_parts(autojump_clock: Jumping) -> None:
    swarm = Swarm(having=500, own=(), lie=0, liars=0)
    query = query_over(swarm.race, SPLIT_THRESHOLD * 2**DEPTH)
    for _ in range(60):
        await query.query(EVERY_CPU, 1)
        await trio.sleep(FRESH_S / 3)
    assert len(set(swarm.parts)) > 4


@pytest.mark.parametrize(("split", "covered"), [(0, True), (2, True), (3, False), (4, False)])
async def test_a_root_that_three_holders_call_split_covers_nothing(
    autojump_clock: Jumping, *, split: int, covered: bool
) -> None:
    """Four more that deny the split would keep a device in the root, where nobody looks any more."""
    nobody: Any = None
    publishing = publisher.Publisher(nobody, nobody, random.Random(1), 450.0, trio.current_time)
    everybody, label = (publisher._Shard("", each, bytes(32)) for each in (EVERYBODY, LABEL))
    publishing._shards = {EVERYBODY: everybody, LABEL: label}
    verdicts = [StoreVerdict.SPLIT] * split + [StoreVerdict.OK] * (8 - split)
    everybody.replies = {str(number): (0, verdict) for number, verdict in enumerate(verdicts)}
    everybody.having = dict.fromkeys(everybody.replies, (900, 3))
    publishing._find_covered(everybody)
    assert label.covered == covered
