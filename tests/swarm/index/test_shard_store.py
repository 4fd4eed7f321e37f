"""The store of a holder: whose adverts it takes, how many, for how long, and in which order it shows them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from protocol.messages import index as index_messages
from protocol.messages.index import StoreVerdict
from protocol.values.advert import Advert, SignedAdvert, UnitOffer, advert_body, advert_message, read_advert
from protocol.values.index_keys import attributes_of, campaign_attribute, shard_key, shard_prefix
from protocol.values.requirement import Clause, Op, Requirement, parse_clause
from swarm.index.shard_store import COUNT_US, ForgedAdvert, ShardStore, read_signed
from swarm.net.cost import SLICE_US
from swarm.net.identity import Identity, routing_key

IDS = [Identity.from_seed(number) for number in range(60)]
CPU = "unit:CPU (ONNX)"
NODE = (index_messages.StoreItem(attribute="node"),)


def sign(identity: Identity, seq: int = 1, **fields: object) -> SignedAdvert:
    plain: dict[str, object] = {
        "peer": identity.peer_id,
        "seq": seq,
        "device": "d1",
        "name": "n1",
        "ram": 16 * 2**30,
        "units": (UnitOffer(unit="CPU (ONNX)", runtime="r"),),
    }
    body = advert_body(Advert.model_validate(plain | fields))
    return SignedAdvert(body=body, signature=identity.sign(advert_message(body)))


def put(
    holder: ShardStore,
    identity: Identity,
    now: float = 0.0,
    *,
    signed: SignedAdvert | None = None,
    network: str = "",
    items: tuple[index_messages.StoreItem, ...] = NODE,
) -> StoreVerdict:
    """Store an advert and return the first verdict."""
    answers, _ = holder.store(now, identity.peer_id, network, signed or sign(identity), items)
    return answers[0].verdict


def page_of(holder: ShardStore, now: float, ask: index_messages.QueryShard) -> index_messages.ShardPage:
    """The page, made in all its slices."""
    slices = holder.page(now, ask)
    while True:
        try:
            next(slices)
        except StopIteration as end:
            page: index_messages.ShardPage = end.value
            return page


def peers(holder: ShardStore, now: float = 0.0, **fields: object) -> list[str]:
    page = page_of(holder, now, index_messages.QueryShard.model_validate({"attribute": "node"} | fields))
    return [read_advert(listed.advert.body).peer for listed in page.adverts]


def test_an_advert_is_shown_under_each_attribute_it_was_stored_under() -> None:
    holder = ShardStore()
    answers, reason = holder.store(
        0,
        IDS[0].peer_id,
        "",
        sign(IDS[0]),
        (index_messages.StoreItem(attribute="node"), index_messages.StoreItem(attribute=CPU)),
    )
    assert [(answer.verdict, answer.count) for answer in answers] == [("ok", 1), ("ok", 1)]
    assert reason == ""
    assert peers(holder) == peers(holder, attribute=CPU) == [IDS[0].peer_id]
    assert peers(holder, attribute="device:d1") == []


def test_nobody_publishes_for_another() -> None:
    holder = ShardStore()
    answers, reason = holder.store(0, IDS[1].peer_id, "", sign(IDS[0]), NODE)
    assert answers[0].verdict is StoreVerdict.REFUSED
    assert reason == "a node can publish only its own advert"
    assert peers(holder) == []


def test_a_forged_signature_is_refused() -> None:
    holder = ShardStore()
    forged = SignedAdvert(body=sign(IDS[0]).body, signature=sign(IDS[1]).signature)
    assert put(holder, IDS[0], signed=forged) is StoreVerdict.REFUSED
    assert holder.nodes == 0


def test_a_signature_over_the_bare_body_counts_for_nothing() -> None:
    body = sign(IDS[0]).body
    with pytest.raises(ForgedAdvert):
        read_signed(SignedAdvert(body=body, signature=IDS[0].sign(body)))


def test_bytes_that_are_no_advert_are_refused() -> None:
    body = b"\xc1 junk"
    signed = SignedAdvert(body=body, signature=IDS[0].sign(advert_message(body)))
    assert put(ShardStore(), IDS[0], signed=signed) is StoreVerdict.REFUSED


def test_a_changed_body_under_a_known_signature_is_refused() -> None:
    holder = ShardStore()
    good = sign(IDS[0])
    assert put(holder, IDS[0], signed=good) is StoreVerdict.OK
    bad = SignedAdvert(body=sign(IDS[0], 2).body, signature=good.signature)
    assert put(holder, IDS[0], signed=bad) is StoreVerdict.REFUSED


def test_an_attribute_the_advert_does_not_say_is_refused() -> None:
    answers, reason = ShardStore().store(
        0, IDS[0].peer_id, "", sign(IDS[0]), (index_messages.StoreItem(attribute="gpu:H100"),)
    )
    assert answers[0].verdict is StoreVerdict.REFUSED
    assert reason == "the advert does not contain 'gpu:H100'"


def test_a_node_is_found_under_eight_campaigns_and_no_more() -> None:
    items = tuple(
        index_messages.StoreItem(attribute=campaign_attribute(f"c-{number}")) for number in range(9)
    )
    answers, _ = ShardStore().store(0, IDS[0].peer_id, "", sign(IDS[0]), items)
    assert Counter(answer.verdict for answer in answers) == {"ok": 8, "refused": 1}


def test_an_older_advert_never_replaces_a_newer_one() -> None:
    holder = ShardStore()
    assert put(holder, IDS[0], signed=sign(IDS[0], 5, name="new")) is StoreVerdict.OK
    assert put(holder, IDS[0], signed=sign(IDS[0], 4, name="old")) is StoreVerdict.REFUSED
    assert put(holder, IDS[0], signed=sign(IDS[0], 5, name="other")) is StoreVerdict.REFUSED
    page = page_of(holder, 0, index_messages.QueryShard(attribute="node"))
    assert [read_advert(listed.advert.body).name for listed in page.adverts] == ["new"]


def test_an_advert_ends_with_its_lifetime_and_a_refresh_prolongs_it() -> None:
    holder = ShardStore()
    put(holder, IDS[0], 0.0)
    put(holder, IDS[1], 0.0)
    put(holder, IDS[0], 450.0)
    assert len(peers(holder, 899.0)) == 2
    assert peers(holder, 901.0) == [IDS[0].peer_id]
    assert holder.expire(901.0) == 1
    assert holder.expire(1351.0) == 1
    assert (holder.nodes, holder.shards, holder.size) == (0, 0, 0)


def test_the_age_of_an_advert_is_returned() -> None:
    holder = ShardStore()
    put(holder, IDS[0], 100.0)
    page = page_of(holder, 160.0, index_messages.QueryShard(attribute="node"))
    assert page.adverts[0].age_s == 60.0


def test_an_attribute_that_is_no_longer_published_is_dropped() -> None:
    holder = ShardStore()
    put(holder, IDS[0], items=(index_messages.StoreItem(attribute=CPU),))
    put(holder, IDS[0], signed=sign(IDS[0], 2, units=()))
    assert peers(holder, attribute=CPU) == []
    assert peers(holder) == [IDS[0].peer_id]


def test_a_tombstone_ends_an_advert_and_keeps_older_ones_out() -> None:
    holder = ShardStore()
    put(holder, IDS[0])
    answers, reason = holder.store(1, IDS[0].peer_id, "", sign(IDS[0], 2, gone=True), ())
    assert (answers, reason) == ((), "")
    page = page_of(holder, 1, index_messages.QueryShard(attribute="node"))
    assert (page.count, page.matches) == (0, 0)
    assert [read_advert(listed.advert.body).gone for listed in page.adverts] == [True]
    assert put(holder, IDS[0], 2.0) is StoreVerdict.REFUSED
    assert put(holder, IDS[0], 2.0, signed=sign(IDS[0], 3)) is StoreVerdict.OK


def test_a_public_network_has_eight_places_in_a_shard_and_private_ones_have_all() -> None:
    holder = ShardStore()
    verdicts = [put(holder, identity, network="192.0.2.0/24") for identity in IDS[:12]]
    assert verdicts == [StoreVerdict.OK] * 8 + [StoreVerdict.FULL] * 4
    assert [put(holder, identity) for identity in IDS[20:40]] == [StoreVerdict.OK] * 20
    assert put(holder, IDS[0], 1.0, network="192.0.2.0/24") is StoreVerdict.OK  # a refresh needs no new place


def test_a_shard_says_split_above_its_limit_and_takes_no_more_than_twice_as_many() -> None:
    holder = ShardStore(split_threshold=4)
    verdicts = [put(holder, identity) for identity in IDS[:10]]
    assert verdicts == [StoreVerdict.OK] * 4 + [StoreVerdict.SPLIT] * 6
    page = page_of(holder, 0, index_messages.QueryShard(attribute="node"))
    assert (page.count, page.split) == (8, True)
    assert put(holder, IDS[0], 1.0) is StoreVerdict.SPLIT
    assert holder.split(0.0, shard_key("", "node", 0, 0))
    assert not holder.split(0.0, shard_key("", "node", 1, 0))


def test_a_holder_without_room_says_so() -> None:
    holder = ShardStore(max_nodes=2)
    assert [put(holder, identity) for identity in IDS[:3]] == [
        StoreVerdict.OK,
        StoreVerdict.OK,
        StoreVerdict.FULL,
    ]
    assert put(ShardStore(max_bytes=100), IDS[0]) is StoreVerdict.FULL


def test_a_page_holds_what_fits_and_says_how_many_there_are() -> None:
    holder = ShardStore()
    for number, identity in enumerate(IDS[:40]):
        put(holder, identity, signed=sign(identity, ram=(8 if number % 2 else 64) * 2**30))
    needs = Requirement(clauses=(parse_clause("ram >= 32 GiB"),))
    page = page_of(holder, 0, index_messages.QueryShard(attribute="node", requirement=needs))
    assert (len(page.adverts), page.matches, page.count, page.cursor) == (20, 20, 40, None)
    assert {read_advert(listed.advert.body).ram for listed in page.adverts} == {64 * 2**30}


def test_pages_follow_each_other_without_gap_or_repeat() -> None:
    holder = ShardStore()
    for identity in IDS:
        put(holder, identity)
    first = page_of(holder, 0, index_messages.QueryShard(attribute="node", seed=7))
    assert first.cursor == 32
    second = page_of(holder, 0, index_messages.QueryShard(attribute="node", seed=7, cursor=32))
    assert second.cursor is None
    observed = [read_advert(listed.advert.body).peer for listed in (*first.adverts, *second.adverts)]
    assert sorted(observed) == sorted(identity.peer_id for identity in IDS)


def test_the_order_of_a_page_is_the_readers_own() -> None:
    holder = ShardStore()
    for identity in IDS:
        put(holder, identity)
    assert peers(holder, seed=1) == peers(holder, seed=1) != peers(holder, seed=2)


def test_no_network_crowds_out_the_others() -> None:
    holder = ShardStore(quota=100)
    for identity in IDS[:40]:
        put(holder, identity, network="198.51.100.0/24")
    for number, identity in enumerate(IDS[40:45]):
        put(holder, identity, network=f"203.0.{number}.0/24")
    assert {identity.peer_id for identity in IDS[40:45]} <= set(peers(holder, seed=3, limit=6))


def test_each_peer_lies_in_the_shard_of_its_own_prefix() -> None:
    holder = ShardStore()
    for identity in IDS[:20]:
        put(holder, identity, items=(index_messages.StoreItem(attribute="node", depth=2),))
    for prefix in range(4):
        shown = set(peers(holder, depth=2, prefix=prefix))
        own = {one.peer_id for one in IDS[:20] if shard_prefix(routing_key(one.peer_id), 2) == prefix}
        assert shown == own


class HolderMachine(RuleBasedStateMachine):
    """Any messages from anybody, in any order: the rules of the store hold after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.holder = ShardStore(split_threshold=6, quota=2)
        self.now = 0.0
        self.newest: dict[str, int] = {}

    @rule(
        who=st.integers(0, 14),
        sender=st.integers(0, 14),
        honest=st.booleans(),
        seq=st.integers(1, 4),
        gone=st.booleans(),
        depth=st.integers(0, 1),
        name=st.sampled_from(("a", "b")),
    )
    def store(self, who: int, sender: int, honest: bool, seq: int, gone: bool, depth: int, name: str) -> None:
        signed = sign(IDS[who], seq, gone=gone, name=name, ttl_s=60)
        items = tuple(
            index_messages.StoreItem(attribute=attribute, depth=depth) for attribute in ("node", CPU)
        )
        network = f"192.0.{who % 3}.0/24" if who % 4 else ""
        self.holder.store(self.now, IDS[who if honest else sender].peer_id, network, signed, items)

    @rule(seconds=st.floats(0, 40), expire=st.booleans())
    def wait(self, seconds: float, expire: bool) -> None:
        self.now += seconds
        if expire:
            self.holder.expire(self.now)  # a node that was forgotten may start again
            self.newest = {peer: seq for peer, seq in self.newest.items() if peer in self.holder._nodes}

    @invariant()
    def each_shard_is_in_order(self) -> None:
        for depth, prefix in ((0, 0), (1, 0), (1, 1)):
            for attribute in ("node", CPU):
                page = page_of(
                    self.holder,
                    self.now,
                    index_messages.QueryShard(attribute=attribute, depth=depth, prefix=prefix),
                )
                adverts = [read_advert(listed.advert.body) for listed in page.adverts]
                living = [advert for advert in adverts if not advert.gone]
                assert max(Counter(advert.peer for advert in adverts).values(), default=0) <= 1
                assert page.count == len(living) <= 12
                assert all(listed.age_s <= 60 for listed in page.adverts)
                for advert in living:
                    assert attribute in attributes_of(advert)
                    assert shard_prefix(routing_key(advert.peer), depth) == prefix
                for advert in adverts:
                    assert advert.seq >= self.newest.get(advert.peer, 0)
                    self.newest[advert.peer] = advert.seq

    @invariant()
    def no_network_has_more_than_its_share(self) -> None:
        page = page_of(self.holder, self.now, index_messages.QueryShard(attribute=CPU))
        adverts = [read_advert(listed.advert.body) for listed in page.adverts]
        living = {
            advert.peer for advert in adverts if not advert.gone
        }  # a tombstone has no place in the shard
        numbers = [number for number, one in enumerate(IDS[:15]) if one.peer_id in living and number % 4]
        assert max(Counter(number % 3 for number in numbers).values(), default=0) <= 2


TestHolderMachine = HolderMachine.TestCase
TestHolderMachine.settings = settings(max_examples=30, stateful_step_count=25)


@given(st.lists(st.integers(0, 59), max_size=40), st.integers(0, 2**32 - 1), st.integers(1, 32))
@settings(max_examples=25)
def test_paging_shows_each_advert_exactly_once(members: list[int], seed: int, limit: int) -> None:
    holder = ShardStore()
    for number in members:
        put(holder, IDS[number], network=f"192.0.{number}.0/24" if number % 2 else "")
    observed: list[str] = []
    cursor: int | None = 0
    while cursor is not None:
        page = page_of(
            holder, 0, index_messages.QueryShard(attribute="node", seed=seed, limit=limit, cursor=cursor)
        )
        observed += [read_advert(listed.advert.body).peer for listed in page.adverts]
        cursor = page.cursor
    assert sorted(observed) == sorted({IDS[number].peer_id for number in members})


def test_a_page_is_made_in_slices_and_shows_what_was_there_at_first() -> None:
    """Thirty-two patterns against a full shard are seconds of work: other tasks get their turn in between."""
    holder = ShardStore()
    for identity in IDS:
        put(holder, identity)
    pattern = Clause(attribute="name", op=Op.LIKE, value="[!x]*")
    ask = index_messages.QueryShard(attribute="node", requirement=Requirement(clauses=(pattern,) * 32))
    slices = holder.page(0, ask)
    costs = [next(slices)]
    put(holder, IDS[-1], signed=sign(IDS[-1], 2, gone=True))
    holder.expire(10_000.0)
    try:
        while True:
            costs.append(next(slices))
    except StopIteration as end:
        page: index_messages.ShardPage = end.value
    assert len(costs) > 2
    assert max(costs) <= SLICE_US
    assert page.matches == page.count == len(IDS)


def test_what_a_page_costs_follows_the_shard_and_the_clauses() -> None:
    holder = ShardStore()
    empty = index_messages.QueryShard(attribute="node")
    assert holder.page_cost_us(empty) == 0.0
    for identity in IDS:
        put(holder, identity)
    plain = index_messages.QueryShard(
        attribute="node", requirement=Requirement(clauses=(parse_clause("ram >= 1 GiB"),))
    )
    pattern = Clause(attribute="name", op=Op.LIKE, value="[!x]*")
    bomb = index_messages.QueryShard(attribute="node", requirement=Requirement(clauses=(pattern,) * 32))
    costs = [holder.page_cost_us(ask) for ask in (empty, plain, bomb)]
    assert costs == sorted(costs)
    assert costs[2] >= sum(slice_us for slice_us in holder.page(0, bomb))
    assert costs[2] > 10 * costs[1]


def test_a_holder_counts_attributes_for_readers_and_for_who_stores_in_the_shard_of_everybody() -> None:
    holder = ShardStore()
    for identity in IDS[:5]:
        put(holder, identity)
    labelled = sign(IDS[5], labels={"lab": "yes"})
    (stored,), _ = holder.store(0, IDS[5].peer_id, "", labelled, NODE)
    said = attributes_of(read_advert(labelled.body))
    assert dict(zip(said, stored.having, strict=True)) == {each: 1 if "lab" in each else 6 for each in said}
    (elsewhere,), _ = holder.store(
        0, IDS[5].peer_id, "", labelled, (index_messages.StoreItem(attribute=CPU),)
    )
    assert elsewhere.having == ()
    ask = index_messages.QueryShard(attribute="node", counted=("label:lab=no", CPU, "label:lab=yes"))
    assert page_of(holder, 0, ask).having == (0, 6, 1)
    assert page_of(holder, 0, index_messages.QueryShard(attribute="node")).having == ()
    assert holder.page_cost_us(ask) > holder.page_cost_us(index_messages.QueryShard(attribute="node"))
    assert holder.store_cost_us(NODE) == pytest.approx(6 * (COUNT_US[0] + 32 * COUNT_US[1]))
    assert holder.store_cost_us((index_messages.StoreItem(attribute=CPU),)) == 0


def test_a_shard_that_kept_somebody_out_says_so_for_as_long_as_his_advert_would_have_been_there() -> None:
    holder = ShardStore(quota=1)
    put(holder, IDS[0], network="203.0.113.0/24")
    ask = index_messages.QueryShard(attribute="node")
    assert not page_of(holder, 0, ask).crowded
    ttl_s = read_advert(sign(IDS[1]).body).ttl_s
    assert put(holder, IDS[1], 10.0, network="203.0.113.0/24") is StoreVerdict.FULL
    assert page_of(holder, 9.0 + ttl_s, ask).crowded
    assert not page_of(holder, 10.0 + ttl_s, ask).crowded
    holder.expire(10.0 + ttl_s)
    assert not holder._crowded


def test_a_holder_without_room_says_that_the_shard_of_everybody_kept_somebody_out() -> None:
    holder = ShardStore(max_nodes=1)
    put(holder, IDS[0])
    assert put(holder, IDS[1], items=(*NODE, index_messages.StoreItem(attribute=CPU))) is StoreVerdict.FULL
    assert page_of(holder, 0, index_messages.QueryShard(attribute="node")).crowded
    assert len(holder._crowded) == 1


def test_a_holder_counts_once_for_a_call_however_often_it_is_asked() -> None:
    holder = ShardStore()
    answers, _ = holder.store(0, IDS[0].peer_id, "", sign(IDS[0]), NODE * 64)
    assert [bool(each.having) for each in answers] == [True] + [False] * 63


def test_of_one_network_few_count_for_how_common_an_attribute_is() -> None:
    holder = ShardStore()
    for number in range(8):
        put(holder, IDS[number], network="203.0.113.0/24")
    put(holder, IDS[8], network="198.51.100.0/24")
    for number in range(9, 14):
        put(holder, IDS[number])
    ask = index_messages.QueryShard(attribute="node", counted=(CPU,))
    assert page_of(holder, 0, ask).having == (2 + 1 + 5,)
