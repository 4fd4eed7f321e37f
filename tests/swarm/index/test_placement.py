"""Where a publisher stores its adverts."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import trio

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
    async with field(40) as grown:
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
    """Of known nodes."""

    def contacts(self) -> list[Contact]:
        return list(self)


class Found:
    """What a lookup found: the nearest of `world`."""

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
