"""Where a publisher stores its adverts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import trio

from protocol.values.index_keys import EVERYBODY
from swarm.index.client import FIRST_S
from swarm.index.lookup import NARROW
from swarm.index.publisher import CHECK_S, SWEEP_PAUSE_S, SWEEP_S, _Shard
from swarm.index.sweep import Sweeps
from swarm.net.addresses import Contact
from swarm.net.identity import Identity, distance
from tests.swarm.index.field import Jumping, field, publish_all

CONTACTS = [
    Contact(Identity.from_seed(f"placed {number}").peer_id, (f"/ip4/10.0.0.1/tcp/{number + 1}",))
    for number in range(300)
]
KEY = bytes(range(32))
NEAR = sorted(CONTACTS, key=lambda contact: distance(contact.peer, KEY))


async def test_a_node_that_is_no_holder_any_more_looks_for_no_place_of_its_own(
    autojump_clock: Jumping,
) -> None:
    async with field(40, frames=False) as grown:
        await publish_all(grown.members)
        await trio.sleep(600)
        former = grown.members[5:11]
        for member in former:
            member.index.serve = False
        await trio.sleep(30)
        before = [member.index.calls for member in former]
        await trio.sleep(120)
        assert max(member.index.calls - calls for member, calls in zip(former, before, strict=True)) < 10


class Table(list[Contact]):
    """A table of known nodes."""

    def contacts(self) -> list[Contact]:
        return list(self)


class Found:
    """The result of a lookup: the nearest nodes of `world`."""

    def __init__(self, point: bytes, world: list[Contact]) -> None:
        self._near = sorted(world, key=lambda contact: distance(contact.peer, point))[:16]
        self.candidates = [contact.peer for contact in self._near]

    def answered(self, count: int = 16) -> list[Contact]:
        return self._near[:count]

    def nearest(self) -> list[Contact]:
        return self._near


async def test_a_key_whose_nodes_are_suspect_no_more_is_stored_at_the_nearest_again(
    autojump_clock: Jumping,
) -> None:
    client: Any = SimpleNamespace(
        network=SimpleNamespace(table=Table()),
        usable=lambda peer: True,
        own_peer=b"ours",
        nearest=lambda key, count: [],
    )

    async def search(key: bytes, patient: bool, **how: object) -> Found:
        return Found(key, CONTACTS)

    sweeps = Sweeps(client, random.Random(1), search)
    await sweeps.measured(5)
    hidden = NEAR[20:]
    await sweeps.sweep(KEY, hidden[:16])
    assert len(sweeps.stores(KEY, hidden)) > len(sweeps.stores(bytes(32), hidden))
    await trio.sleep(2_000)
    await sweeps.sweep(KEY, NEAR[:16])
    plain = Sweeps(client, random.Random(1), search, _sizes=sweeps._sizes)
    assert sweeps.stores(KEY, NEAR) == plain.stores(KEY, NEAR)


async def test_in_a_small_swarm_nothing_is_swept(autojump_clock: Jumping) -> None:
    asked: list[bytes] = []
    client: Any = SimpleNamespace(
        network=SimpleNamespace(table=Table()), usable=lambda peer: True, own_peer=b"ours"
    )

    async def search(key: bytes, patient: bool, **how: object) -> Found:
        asked.append(key)
        return Found(key, CONTACTS[:20])

    sweeps = Sweeps(client, random.Random(1), search)
    await sweeps.measured(5)
    del asked[:]
    await sweeps.sweep(KEY, CONTACTS[15:20])
    assert asked == []


async def test_the_place_is_looked_for_again_only_once_something_has_changed(
    autojump_clock: Jumping,
) -> None:
    async with field(10, frames=False) as grown:
        await publish_all(grown.members)
        await trio.sleep(120)
        member, other = grown.members[1:3]
        publisher, placed = member.index._publisher, list[float]()
        place = publisher._place

        def counted(shard: _Shard, more: Iterable[Contact]) -> list[Contact]:
            placed.append(trio.current_time())
            return place(shard, more)

        publisher._place = counted  # type: ignore[method-assign]
        await trio.sleep(60)
        assert placed == []
        assert other.peer in publisher._shards[EVERYBODY].replies
        grown.kill([other])
        await trio.sleep(CHECK_S[1] * 1.2)
        assert placed
        assert other.peer not in publisher._shards[EVERYBODY].replies


async def test_regions_are_looked_at_again_when_something_has_changed_and_while_one_is_suspect(
    autojump_clock: Jumping,
) -> None:
    async with field(10, frames=False) as grown:
        await publish_all(grown.members)
        await trio.sleep(135)
        publisher = grown.members[1].index._publisher
        sweeps, looks = publisher.lookups.sweeps, list[float]()
        due = sweeps.due

        def counted(key: bytes, near: Sequence[Contact], max_age_s: float) -> bool:
            looks.append(trio.current_time())
            return due(key, near, max_age_s)

        sweeps.due = counted  # type: ignore[method-assign]
        await trio.sleep(40)  # until the size of the swarm is measured again
        assert looks == []
        sweeps.version += 1
        await trio.sleep((CHECK_S[1] + SWEEP_PAUSE_S) * 1.2)
        assert looks
        sweeps._swept[publisher._shards[EVERYBODY].key()] = [], trio.current_time()
        sweeps.version += 1
        await trio.sleep((CHECK_S[1] + SWEEP_PAUSE_S) * 1.2)
        looks.clear()
        await trio.sleep(10 * SWEEP_PAUSE_S)
        assert len(set(looks)) >= 8


async def test_a_sweep_is_due_for_a_suspect_region_and_for_one_whose_sweep_is_old(
    autojump_clock: Jumping,
) -> None:
    client: Any = SimpleNamespace(
        network=SimpleNamespace(table=Table()),
        usable=lambda peer: True,
        own_peer=b"ours",
        nearest=lambda key, count: [],
    )

    async def search(key: bytes, patient: bool, **how: object) -> Found:
        return Found(key, CONTACTS)

    sweeps = Sweeps(client, random.Random(1), search)
    assert sweeps.due(KEY, NEAR[:16], SWEEP_S)  # no measurement of the network's size yet
    await sweeps.measured(5)
    assert not sweeps.due(KEY, NEAR[:16], SWEEP_S)
    assert sweeps.due(KEY, NEAR[20:36], SWEEP_S)
    version = sweeps.version
    await sweeps.sweep(KEY, NEAR[20:36])
    assert sweeps.version > version
    assert sweeps.swept(KEY)
    assert not sweeps.due(KEY, NEAR[20:36], SWEEP_S)
    await trio.sleep(SWEEP_S)
    assert sweeps.due(KEY, NEAR[:16], SWEEP_S)


async def test_silent_peers_hold_up_a_publishers_lookup_once_and_not_one_after_the_other(
    autojump_clock: Jumping,
) -> None:
    async with field(60, frames=False) as grown:
        await publish_all(grown.members)
        await trio.sleep(120)
        publisher = grown.members[1]
        nearest = publisher.network.table.closest(KEY, 5)
        reach = distance(nearest[1].peer, KEY) + 1
        for silent in nearest[2:]:
            grown.swarm.cut_silently(publisher.peer, silent.peer)
        since = trio.current_time()
        found = await publisher.index._lookups._find(KEY, True, width=NARROW, reach=reach)
        assert FIRST_S <= trio.current_time() - since < 1.5 * FIRST_S
        assert not {contact.peer for contact in nearest[2:]} & {each.peer for each in found.named()}
