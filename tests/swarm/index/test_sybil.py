"""Identities that an active adversary places around a key hide nobody, because adverts are stored all over the key's region."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from benchmarks.network.sybil import measure
from protocol.values.index_keys import EVERYBODY, shard_key
from protocol.wire.base import Message
from swarm.index.lookup import _Shortlist, _State
from swarm.index.region import (
    EXPECTED,
    NEAR,
    OF_SLICE,
    PARTS,
    SLICES,
    SPACE,
    dense,
    members,
    nodes_by,
    points,
    radius_of,
    thin,
)
from swarm.net.addresses import Contact
from swarm.net.identity import Identity, distance
from tests.swarm.index.field import Jumping, field, publish_all

CONTACTS = [
    Contact(Identity.from_seed(f"region {number}").peer_id, (f"/ip4/10.0.0.1/tcp/{number + 1}",))
    for number in range(300)
]
KEY = bytes(range(32))


def test_a_fifth_of_all_nodes_packed_around_a_key_hide_no_device() -> None:
    """Without sweeps 56 % are found, and nodes that have just joined find 30 %."""
    outcome = measure(60, 0.2, "packed", seed=1)
    assert outcome.found >= 0.99
    assert outcome.fresh_found >= 0.99


def test_the_size_of_a_network_shows_in_the_nodes_near_random_points() -> None:
    rng = random.Random(1)

    def near(point: bytes) -> list[int]:
        return sorted(distance(contact.peer, point) for contact in CONTACTS)[:8]

    sizes = sorted(nodes_by(near(rng.randbytes(32))) for _ in range(5))
    assert 200 < sizes[2] < 450


def test_nodes_around_few_keys_are_suspect_without_an_attack() -> None:
    rng = random.Random(1)
    keys = [rng.randbytes(32) for _ in range(300)]
    apart = [[distance(contact.peer, key) for contact in CONTACTS] for key in keys]
    nodes = float(len(CONTACTS))
    assert sum(dense(each, nodes) for each in apart) <= 3
    assert sum(thin(each, nodes) for each in apart) <= 9
    assert sum(thin(each, 1.3 * nodes) for each in apart) <= 45


def test_sixteen_that_sit_nearer_to_a_key_than_others_are_suspect_and_so_are_few_where_many_are_hidden() -> (
    None
):
    nodes, rng = float(len(CONTACTS)), random.Random(1)
    for key in [rng.randbytes(32) for _ in range(50)]:
        honest = [distance(contact.peer, key) for contact in CONTACTS]
        within = radius_of(nodes, 4)
        assert dense([*honest, *(rng.randrange(within) for _ in range(NEAR))], nodes)
    fifth = [[distance(contact.peer, rng.randbytes(32)) for contact in CONTACTS[:60]] for _ in range(100)]
    assert sum(thin(each, nodes) for each in fifth) >= 90


def test_a_publisher_asks_nobody_in_reach_of_the_key() -> None:
    near = sorted(CONTACTS, key=lambda contact: distance(contact.peer, KEY))[:20]
    reach = distance(near[8].peer, KEY)
    shortlist = _Shortlist(KEY, width=4, reach=reach)
    for contact in near[6:]:
        shortlist.add(contact)
    asked = [shortlist.next(0.0), shortlist.next(0.0), shortlist.next(0.0)]
    assert asked == [near[8], near[9], None]  # of the nearest four, two are in reach
    for contact in near[:6]:
        shortlist.add(contact)
    assert shortlist.done
    assert shortlist.named() == near


def test_a_lookup_that_did_not_wait_is_resumed_with_those_that_have_not_answered() -> None:
    first, slow, failed, asked, new, *far = sorted(CONTACTS, key=lambda contact: distance(contact.peer, KEY))
    shortlist = _Shortlist(KEY)
    for contact, state in zip(
        (first, slow, failed, asked, new),
        (_State.ANSWERED, _State.SLOW, _State.FAILED, _State.ASKED, _State.NEW),
        strict=True,
    ):
        shortlist.add(contact, state)
    for contact in far:
        shortlist.add(contact)
    again = shortlist.resumed()
    assert not again.waiting, "the answers to what was asked go to the lookup that asked"
    assert [again.next(0.0) for _ in range(3)] == [slow, asked, new]
    assert len(again.candidates) == 2 * NEAR
    assert shortlist.slow, "another reader may resume it, too"
    while again.next(0.0):
        pass
    assert len(again.waiting) == NEAR - 1, "as many of the nearest as before, of whom the first has answered"


async def test_a_reader_that_looks_further_asks_only_who_was_slow(
    autojump_clock: Jumping, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with field(20, frames=False) as grown:
        await publish_all(grown.members)
        reader = grown.members[4]
        lookups, client = reader.index._lookups, reader.index._client
        key = shard_key("", EVERYBODY, 0, 0)
        nearest = [each.peer for each in client.nearest(key, 2) if each.peer != reader.peer]
        for peer in nearest:
            grown.swarm.cut_silently(reader.peer, peer)
        assert (await lookups.holders(key)).hurried is not None
        grown.swarm.heal()
        await trio.sleep(5)
        asked: list[str] = []
        honest = client.ask_into

        async def noted(send: Any, contact: Contact, question: Message, expected: type[Message]) -> None:
            asked.extend([contact.peer] if getattr(question, "key", None) == key else [])
            await honest(send, contact, question, expected)

        monkeypatch.setattr(client, "ask_into", noted)
        await lookups.widen(key)
        assert {*asked} == {*nearest}
        assert {*nearest} <= {each.peer for each in lookups._sets[key].contacts}


def test_a_sweep_goes_to_points_in_all_parts_of_a_region_which_nobody_foresees() -> None:
    radius = radius_of(len(CONTACTS))
    some = points(KEY, radius, random.Random(1))
    offsets = [int.from_bytes(KEY, "big") ^ int.from_bytes(point, "big") for point in some]
    shares = [offset / radius for offset in offsets]
    assert all(low <= share <= high for share, (low, high) in zip(shares, PARTS, strict=True))
    assert not set(some) & set(points(KEY, radius, random.Random(2)))


def test_a_region_has_about_so_many_nodes_and_those_packed_next_to_its_key_share_few_slices() -> None:
    radius = radius_of(len(CONTACTS))
    honest = members(KEY, radius, CONTACTS, b"salt")
    assert EXPECTED / 3 < len(honest) <= 3 * EXPECTED
    packed = [
        Contact(Identity.from_seed(f"packed {n}").peer_id, ("/ip4/10.0.0.2/tcp/1",)) for n in range(3000)
    ]
    packed = sorted(packed, key=lambda each: distance(each.peer, KEY))[:60]
    both = members(KEY, radius, CONTACTS + packed, b"salt")
    assert sum(contact in both for contact in honest) >= len(honest) - OF_SLICE
    assert sum(contact in both for contact in packed) <= len(packed) / 2
    assert len(members(KEY, SPACE, CONTACTS, b"salt")) == OF_SLICE * SLICES
    assert members(KEY, SPACE, CONTACTS, b"salt") != members(KEY, SPACE, CONTACTS, b"other")
    assert radius_of(4) == SPACE  # a small swarm is one region
