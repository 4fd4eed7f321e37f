"""The routing table: the nearest holders that answered, and no more than fit."""

from __future__ import annotations

import random

from swarm.net.addresses import Contact
from swarm.net.identity import Identity, distance, routing_key
from swarm.net.routing_table import BUCKET_SIZE, CHECK_AFTER_S, NETWORK_SHARE, RoutingTable

ME = Identity.from_seed("me").peer_id
PEERS = [Identity.from_seed(f"table {number}").peer_id for number in range(400)]


def prefix(peer: str) -> int:
    """The number of leading bits that the peer's key shares with ours."""
    return 256 - distance(peer, routing_key(ME)).bit_length()


def test_it_gives_the_nearest_and_forgets() -> None:
    table, peers = RoutingTable(ME), PEERS[:60]
    for number, peer in enumerate(peers):
        table.learn(Contact(peer, (f"/ip4/10.0.{number}.1/tcp/4001",)))
    for other in (
        Contact(PEERS[60], ("/ip4/10.1.0.1/tcp/4001",), holder=False),
        Contact(PEERS[61], ()),
        Contact(ME, ("/ip4/10.1.0.1/tcp/4001",)),
    ):
        table.learn(other)
    key = random.Random(5).randbytes(32)
    expected = sorted(peers, key=lambda peer: distance(peer, key))
    assert [contact.peer for contact in table.closest(key, 8)] == expected[:8]
    assert {contact.peer for contact in table.closest(key, 100)} == set(peers)
    table.forget(expected[0])
    assert table.get(expected[0]) is None
    assert [contact.peer for contact in table.closest(key, 8)] == expected[1:9]
    moved = Contact(expected[0], ("/ip4/10.9.9.9/tcp/4001",))
    table.learn(moved)
    assert table.get(expected[0]) == moved
    assert table.closest(key, 1) == [moved]


def test_a_bucket_has_room_for_so_many_and_who_is_in_it_stays() -> None:
    table = RoutingTable(ME)
    far = [peer for peer in PEERS if prefix(peer) == 0]
    near = [peer for peer in PEERS if prefix(peer) >= 2]
    for peer in (*far, *near):
        table.learn(Contact(peer, ("/ip4/10.0.0.1/tcp/4001",)))
    stored = {contact.peer for contact in table.closest(bytes(32), 1000)}
    assert len(far) > BUCKET_SIZE
    assert stored & set(far) == set(far[:BUCKET_SIZE])
    assert stored >= set(near)


def test_one_public_network_has_its_share_of_a_bucket_and_private_ones_have_all() -> None:
    table = RoutingTable(ME)
    far = [peer for peer in PEERS if prefix(peer) == 0]
    for number, peer in enumerate(far[:40]):
        table.learn(Contact(peer, (f"/ip4/9.9.9.{number}/tcp/4001",)))
    assert len(table.closest(bytes(32), 1000)) == NETWORK_SHARE
    for number, peer in enumerate(far[40:60]):
        table.learn(Contact(peer, (f"/ip4/192.168.1.{number}/tcp/4001",)))
    assert len(table.closest(bytes(32), 1000)) == NETWORK_SHARE + 20


def test_a_newcomer_takes_the_place_of_one_that_is_gone_and_of_nobody_who_answers() -> None:
    table = RoutingTable(ME)
    far = [Contact(peer, ("/ip4/10.0.0.1/tcp/4001",)) for peer in PEERS if prefix(peer) == 0]
    for number, contact in enumerate(far[:BUCKET_SIZE]):
        assert table.learn(contact, float(number)) is None
    here, late = far[:2]
    newcomer, newer = far[BUCKET_SIZE : BUCKET_SIZE + 2]
    assert table.learn(newcomer, CHECK_AFTER_S) is None  # all have answered recently
    now = CHECK_AFTER_S + 10
    assert table.learn(newcomer, now) == here
    table.answered(here.peer, now)
    assert table.learn(newcomer, now) == late
    assert table.learn(newer, now) == late
    assert (table.get(here.peer), table.get(newcomer.peer), table.get(newer.peer)) == (here, None, None)
    table.forget(late.peer)
    assert (table.get(here.peer), table.get(newer.peer), table.get(late.peer)) == (here, newer, None)
    assert len(table.closest(bytes(32), 1000)) == BUCKET_SIZE
    table.learn(newcomer, now)
    table.forget(newcomer.peer)  # it did not answer while it waited, and no other peer takes its place
    table.forget(here.peer)
    assert len(table.closest(bytes(32), 1000)) == BUCKET_SIZE - 1


def test_a_newcomer_waits_for_a_place_of_its_own_network_where_that_has_its_share() -> None:
    table, now = RoutingTable(ME), 1000.0
    far = [peer for peer in PEERS if prefix(peer) == 0]
    private = Contact(far[20], ("/ip4/10.0.0.1/tcp/4001",))
    table.learn(private)
    crowd = [Contact(peer, (f"/ip4/9.9.9.{n}/tcp/4001",)) for n, peer in enumerate(far[: NETWORK_SHARE + 1])]
    for number, contact in enumerate(crowd[:-1]):
        table.learn(contact, float(number))
    assert table.learn(crowd[-1], now) == crowd[0]
    table.forget(private.peer)
    assert table.get(crowd[-1].peer) is None
    table.forget(crowd[3].peer)
    assert table.get(crowd[-1].peer) == crowd[-1]


def test_it_names_those_that_have_not_answered_for_longest() -> None:
    table = RoutingTable(ME)
    contacts = [Contact(peer, ("/ip4/10.0.0.1/tcp/4001",)) for peer in PEERS[:4]]
    for number, contact in enumerate(contacts[:3]):
        table.learn(contact, float(number))
    table.learn(contacts[3])
    table.answered(contacts[0].peer, 5.0)
    table.learn(Contact(contacts[0].peer, ("/ip4/10.0.0.2/tcp/4001",)))
    table.answered(ME, 5.0)
    assert table.oldest(5.0, 2) == [contacts[3], contacts[1]]
    assert table.oldest(5.0, 8) == [contacts[3], *contacts[1:3]]


def test_it_counts_changes_of_its_contacts_and_nothing_else() -> None:
    table, contact = RoutingTable(ME), Contact(PEERS[0], ("/ip4/10.0.0.1/tcp/4001",))
    moved, versions = Contact(PEERS[0], ("/ip4/10.0.0.2/tcp/4001",)), [table.version]
    for now, there in enumerate((contact, moved, None, contact)):
        if there is not None:
            table.learn(there, float(now))
        else:
            table.forget(PEERS[0])
        versions.append(table.version)
    assert len(set(versions)) == 5
    table.learn(contact, 4.0)
    table.answered(PEERS[0], 5.0)
    table.forget(PEERS[1])
    assert table.version == versions[-1]
