"""Identities placed around a key by an active adversary hide nobody: adverts lie all over the key's region."""

from __future__ import annotations

import pytest

from benchmarks.network.sybil import fleet
from swarm.index.region import EXPECTED, OF_SLICE, SLICES, SPACE, members, nodes_of, radius_of
from swarm.net.addresses import Contact
from swarm.net.identity import Identity, distance, routing_key
from swarm.net.routing_table import BUCKET_SIZE, RoutingTable
from tests.swarm.index.test_swarm import Jumping

CONTACTS = [
    Contact(Identity.from_seed(f"region {number}").peer_id, (f"/ip4/10.0.0.1/tcp/{number + 1}",))
    for number in range(300)
]
KEY = bytes(range(32))


@pytest.mark.parametrize("layout", ["packed", "region"])
async def test_a_fifth_of_all_nodes_around_a_key_hide_no_device(layout: str, autojump_clock: Jumping) -> None:
    outcome = await fleet(24, 0.2, layout, seed=1)
    assert outcome.found >= 0.99


def test_the_size_of_a_network_shows_in_a_routing_table_and_a_crowd_around_a_key_changes_it_little() -> None:
    own = Identity.from_seed("own").peer_id
    table = RoutingTable(own)
    for contact in CONTACTS:
        table.learn(contact)
    quiet = nodes_of(routing_key(own), table.contacts(), BUCKET_SIZE)
    assert 150 < quiet < 600
    crowd = sorted(
        (Contact(Identity.from_seed(f"crowd {n}").peer_id, ("/ip4/10.0.0.2/tcp/1",)) for n in range(3000)),
        key=lambda each: distance(each.peer, KEY),
    )[:75]
    for contact in crowd:
        table.learn(contact)
    assert quiet / 2 < nodes_of(routing_key(own), table.contacts(), BUCKET_SIZE) < 2 * quiet


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
