"""What strangers claim about themselves, and how much of it is stored."""

from __future__ import annotations

import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.identity.identify.identify import ID as IDENTIFY
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.identity.identify_push.identify_push import ID_PUSH
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStoreError, create_signed_peer_record
from libp2p.utils.varint import encode_uvarint
from multiaddr import Multiaddr

from protocol.words import ProtocolId
from swarm.join.host import open_host
from swarm.net.identity import Identity, peer_id_bytes
from swarm.net.network import Stream
from swarm.p2p.hardening import MAX_IDENTIFY
from swarm.p2p.peerstore import (
    MAX_ADDRESSES,
    MAX_PEERS,
    MAX_PROTOCOL_CHARS,
    MAX_PROTOCOLS,
    BoundedPeerStore,
)
from tests.swarm.attacker import ATTACKER, LOOPBACK, MSS, attack, line

ME = Identity.from_seed("me")
KEYS = create_new_key_pair(ME.seed)
MY_ID = ID(peer_id_bytes(ME.peer_id))
SOMEWHERE = Multiaddr("/ip4/192.0.2.1/tcp/4001")


def stranger(number: int) -> ID:
    """An id whose key nobody has."""
    return ID(b"\x00\x24\x08\x01\x12\x20" + number.to_bytes(32, "big"))


def test_no_number_of_strangers_drives_this_node_or_those_it_is_connected_with_out() -> None:
    friend = stranger(0)
    book = BoundedPeerStore(MY_ID, KEYS, connected=lambda peer: peer == friend)
    book.add_protocols(friend, ["/sark/kad/1"])
    for number in range(1, MAX_PEERS + 100):
        book.add_addrs(stranger(number), [SOMEWHERE], 7200)
        book.add_protocols(stranger(-number % 2**200), ["/x"])
    assert len(book.peer_data_map) == MAX_PEERS
    assert book.pubkey(MY_ID) == KEYS.public_key
    assert book.privkey(MY_ID) == KEYS.private_key
    assert book.get_protocols(friend) == ["/sark/kad/1"]
    assert not book.has_peer(stranger(1))
    assert book.has_peer(stranger(MAX_PEERS + 99))


def test_of_one_peer_a_few_addresses_and_names_are_kept() -> None:
    book, peer = BoundedPeerStore(MY_ID, KEYS), stranger(1)
    for number in range(100):
        book.add_addr(peer, Multiaddr(f"/ip4/192.0.2.{number}/tcp/1"), 7200)
    assert len(book.addrs(peer)) == MAX_ADDRESSES
    for add in (book.add_protocols, book.set_protocols):
        add(peer, ["/long" * MAX_PROTOCOL_CHARS, *(f"/{number}" for number in range(1000))])
        assert book.get_protocols(peer) == [f"/{number}" for number in range(MAX_PROTOCOLS)]
    for number in range(50):
        keys = create_new_key_pair(number.to_bytes(32, "big"))
        signed = create_signed_peer_record(
            ID.from_pubkey(keys.public_key),
            [Multiaddr(f"/ip4/192.0.2.1/tcp/{port}") for port in range(1, 100)],
            keys.private_key,
        )
        assert book.consume_peer_record(signed, 7200)
    assert all(len(book.addrs(peer)) <= MAX_ADDRESSES for peer in book.peer_ids() if peer != MY_ID)


def test_addresses_that_are_too_old_are_nothing_and_no_error() -> None:
    """libp2p raises an error, and a peer with only a circuit could then never be reached again."""
    book, peer = BoundedPeerStore(MY_ID, KEYS), stranger(1)
    book.add_addrs(peer, [SOMEWHERE], 7200)
    book.peer_data_map[peer].last_identified -= 7201  # type: ignore[attr-defined]
    assert book.addrs(peer) == []
    with pytest.raises(PeerStoreError):
        book.addrs(stranger(2))


async def test_an_unasked_identify_push_is_refused() -> None:
    async with open_host(ME, listen=[LOOPBACK]) as victim, attack(victim) as link:
        with trio.fail_after(5):
            stream = await link.speak(ID_PUSH)
            answer = line(MSS[:-1]) + line(b"na")
            assert await link.body_of(stream, len(answer)) == answer


@pytest.mark.parametrize(("names", "accepted"), [(3, True), (400_000, False)], ids=["few", "many"])
async def test_a_peer_that_says_too_much_of_itself_has_said_nothing(names: int, accepted: bool) -> None:
    message = Identify(protocols=["/a", "/b", "/c"][:names] + ["/d"] * (names - 3)).SerializeToString()
    assert (len(message) <= MAX_IDENTIFY) is accepted
    async with (
        open_host(ME, listen=[LOOPBACK]) as victim,
        open_host(ATTACKER) as liar,
    ):
        event = trio.Event()

        async def lie(stream: object) -> None:
            event.set()
            await stream.write(encode_uvarint(len(message)) + message)  # type: ignore[attr-defined]

        async def listen(stream: Stream) -> None:
            await stream.receive_some()

        liar.host.set_stream_handler(TProtocol(IDENTIFY), lie)
        victim.handle(ProtocolId.HEALTH, listen)
        with trio.fail_after(10):
            await liar.open(victim.peer_id, ProtocolId.HEALTH, victim.addresses)
            await event.wait()
            peer = ID(peer_id_bytes(ATTACKER.peer_id))
            while peer in victim.host._identify_inflight:
                await trio.sleep(0.01)
        book = victim.host.get_peerstore()
        assert (book.has_peer(peer) and book.get_protocols(peer) == ["/a", "/b", "/c"]) is accepted


async def test_who_dialled_and_says_nothing_is_not_asked_who_it_is() -> None:
    """The answer may never come, and the request costs a task and a stream for each idle key."""
    async with open_host(ME, listen=[LOOPBACK]) as victim, attack(victim):
        peer = ID(peer_id_bytes(ATTACKER.peer_id))
        with trio.fail_after(10):
            while (conn := victim.swarm.live(peer)) is None:
                await trio.sleep(0.01)
            await conn.event_started.wait()
            await victim.host._on_notifee_connected(conn)
        assert not victim.host._identify_inflight
