"""Attacks on a running node over real sockets, by a peer that speaks the bytes itself."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.rsa import create_new_key_pair as rsa_keys
from libp2p.crypto.secp256k1 import create_new_key_pair as secp256k1_keys
from libp2p.exceptions import BaseLibp2pError
from libp2p.io.abc import Reader
from libp2p.io.trio import TrioTCPStream
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.protocol_muxer import multiselect_communicator
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
from libp2p.transport.upgrader import TransportUpgrader
from libp2p.utils.varint import encode_uvarint
from multiaddr import Multiaddr

from protocol.errors import LocalProtocolError, Unreachable
from swarm.join.host import HostNetwork, open_host
from swarm.net.addresses import Contact
from swarm.net.identity import Identity, peer_id_bytes
from swarm.net.limits import MAX_INBOUND
from swarm.net.network import Network, Stream
from swarm.p2p import hardening
from swarm.p2p.framing import read_exactly
from swarm.p2p.routing import KAD_PROTOCOL, SLOTS, SLOTS_PER_PEER
from tests.swarm.attacker import ATTACKER, MSS, RawLink, attack, ended, line, tcp

pytestmark = pytest.mark.patient

ECHO = "/test/echo/1"


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


@pytest.fixture
async def victim() -> AsyncIterator[HostNetwork]:
    async with open_host(Identity.from_seed(1), listen=["/ip4/127.0.0.1/tcp/0"], server=True) as node:
        node.handle(ECHO, echo)
        with trio.fail_after(8):
            yield node


async def still_serves(victim: Network) -> None:
    """An honest node is served as if nothing had happened."""
    async with open_host(Identity.from_seed("honest"), server=False) as honest:
        stream = await honest.open(victim.peer_id, ECHO, victim.addresses)
        await stream.send_all(b"hello")
        assert await stream.receive_some() == b"hello"


# -- (a) (b) nothing but Noise and yamux ----------------------------------------------------------------------------------


@pytest.mark.parametrize("security", ["/plaintext/2.0.0", "/secio/1.0.0", "/tls/1.0.0"])
async def test_no_other_security_than_noise_is_spoken(victim: HostNetwork, security: str) -> None:
    async with await tcp(victim) as stream:
        await stream.send_all(line(MSS[:-1]) + line(security.encode()))
        expected = line(MSS[:-1]) + line(b"na")
        received = b""
        while len(received) < len(expected):
            received += await stream.receive_some()
        assert received == expected


async def test_nobody_is_taken_for_another_by_showing_that_ones_public_key(victim: HostNetwork) -> None:
    """What libp2p's default host falls for: plaintext, with the boss's public key and the attacker's signature."""
    boss = create_new_key_pair(Identity.from_seed("boss").seed)
    client = MultiselectClient()
    stream = await tcp(victim)
    async with stream:
        raw = RawConnection(TrioTCPStream(stream), True)

        async def pose_as_the_boss() -> None:
            await client.select_one_of([PLAINTEXT_PROTOCOL_ID], MultiselectCommunicator(raw), 5)
            await InsecureTransport(boss).secure_outbound(raw, ID(peer_id_bytes(victim.peer_id)))

        with pytest.raises(BaseLibp2pError):
            await pose_as_the_boss()
    assert Identity.from_seed("boss").peer_id not in victim.connected()


async def test_no_other_muxer_than_yamux_is_spoken(victim: HostNetwork) -> None:
    with pytest.raises(BaseLibp2pError, match="not supported"):
        async with attack(victim, muxer="/mplex/6.7.0"):
            pass


def test_a_host_that_would_speak_more_does_not_start() -> None:
    keys = create_new_key_pair(ATTACKER.seed)
    more = TransportUpgrader({PLAINTEXT_PROTOCOL_ID: InsecureTransport(keys)}, {})
    with pytest.raises(LocalProtocolError, match="plaintext"):
        hardening.assert_closed(more)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["secp256k1", "rsa"])
async def test_a_peer_with_another_kind_of_key_is_not_let_in(victim: HostNetwork, kind: str) -> None:
    """Its id has another form than ours: a gate that counted its peers with one of those among them fell over it."""
    other = rsa_keys(2048) if kind == "rsa" else secp256k1_keys()
    with contextlib.suppress(BaseLibp2pError):
        async with attack(victim, keys=other) as link:
            while (await link.next())[0] != -1:
                pass
    assert victim.connected() == ()
    await still_serves(victim)


# -- (c) negotiation messages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "greeting",
    [
        encode_uvarint(4 << 30),
        encode_uvarint(1025),
        b"\xff" * 12,
        encode_uvarint(5) + b"\xff\xfe\xfd\xfc\n",
        encode_uvarint(3) + b"abc",
        b"\x00",
    ],
    ids=["4 GiB", "1025 bytes", "endless length", "no UTF-8", "no newline", "empty"],
)
async def test_a_stranger_with_a_senseless_greeting_is_dropped_at_once(
    victim: HostNetwork, greeting: bytes
) -> None:
    async with await tcp(victim) as stream:
        await stream.send_all(greeting)
        with trio.fail_after(
            3
        ):  # without the limit the victim waits 10 s for the 4 GiB, and holds what comes
            assert await ended(stream)
    await still_serves(victim)


@pytest.mark.parametrize(
    "name",
    [encode_uvarint(4 << 30), encode_uvarint(5) + b"\xff\xfe\xfd\xfc\n"],
    ids=["4 GiB", "no UTF-8"],
)
async def test_a_peer_with_a_senseless_protocol_name_loses_its_stream_only(
    victim: HostNetwork, name: bytes
) -> None:
    async with attack(victim) as link:
        bad = await link.open()
        await link.data(bad, line(MSS[:-1]) + name)
        with trio.fail_after(3):
            await link.reset_of(bad)
        good = await link.open()
        await link.data(good, line(MSS[:-1]) + line(ECHO.encode()) + b"hello")
        answer = line(MSS[:-1]) + line(ECHO.encode()) + b"hello"
        assert await link.body_of(good, len(answer)) == answer
    await still_serves(victim)


async def test_a_message_may_come_byte_by_byte(victim: HostNetwork) -> None:
    """libp2p gives a frame 101 reads; a slow link needs more."""
    async with attack(victim) as link:
        stream = await link.open()
        for byte in line(MSS[:-1]) + line(ECHO.encode()):
            await link.data(stream, bytes([byte]))
        answer = line(MSS[:-1]) + line(ECHO.encode())
        assert await link.body_of(stream, len(answer)) == answer


async def test_reading_a_frame_has_no_limit_of_pieces() -> None:
    class Trickle(Reader):
        def __init__(self) -> None:
            self.left = 1000

        async def read(self, n: int | None = None) -> bytes:
            self.left -= 1
            return b"x" if self.left >= 0 else b""

    assert await read_exactly(Trickle(), 1000) == b"x" * 1000
    with pytest.raises(BaseLibp2pError):
        await read_exactly(Trickle(), 1001)


# -- (d) (j) memory and places ---------------------------------------------------------------------------------------------


async def test_pushing_more_than_the_window_costs_the_attacker_its_connection(victim: HostNetwork) -> None:
    async def never_reads(stream: Stream) -> None:
        await trio.sleep_forever()

    victim.handle("/test/deaf/1", never_reads)
    async with attack(victim) as link:
        stream = await link.open()
        await link.data(stream, line(MSS[:-1]) + line(b"/test/deaf/1"))
        with trio.fail_after(5):
            for _ in range(40):
                try:
                    await link.data(stream, bytes(60_000))
                except (BaseLibp2pError, OSError):
                    break
            while (await link.next())[0] != -1:
                pass
    await still_serves(victim)


async def test_streams_that_never_say_what_they_want_count_too(victim: HostNetwork) -> None:
    async with attack(victim) as link:
        for _ in range(MAX_INBOUND):
            await link.open()
        one_more = await link.open()
        with trio.fail_after(3):
            await link.reset_of(one_more)
        await still_serves(victim)


async def test_an_inbound_connection_gives_its_place_back(victim: HostNetwork) -> None:
    """libp2p keeps the place until the node ends: after 1,024 visits nobody can come any more."""
    limiter = victim._swarm._inbound_limiter
    for _ in range(3):
        async with attack(victim) as link:
            await link.open()
    while limiter.borrowed_tokens:
        await trio.sleep(0.005)


async def test_a_handshake_that_never_ends_does_not_stop_others(victim: HostNetwork) -> None:
    streams = [await tcp(victim) for _ in range(20)]
    await still_serves(victim)
    for stream in streams:
        await stream.aclose()


# -- (e) (f) (g) the routing table ------------------------------------------------------------------------------------------


def query(kind: int, key: bytes = bytes(34)) -> bytes:
    message = Message()
    message.type = kind  # type: ignore[assignment]
    message.key = key
    body = message.SerializeToString()
    return encode_uvarint(len(body)) + body


async def kad_stream(link: RawLink, protocol: str = KAD_PROTOCOL) -> int:
    stream = await link.open()
    await link.data(stream, line(MSS[:-1]) + line(protocol.encode()))
    return stream


async def test_idle_kad_streams_of_one_peer_do_not_silence_the_table_for_others(victim: HostNetwork) -> None:
    known = Contact(Identity.from_seed("known").peer_id, ("/ip4/10.0.0.1/tcp/4001",))
    victim.learn(known)
    async with attack(victim) as link:
        held = [await kad_stream(link) for _ in range(12)]
        with trio.fail_after(3):
            await link.reset_of(held[SLOTS_PER_PEER])
        async with open_host(Identity.from_seed("honest"), server=False) as honest:
            await honest.connect(victim.peer_id, victim.addresses)
            honest.learn(Contact(victim.peer_id, victim.addresses))
            await honest.refresh()
            assert known.peer in {contact.peer for contact in honest.closest(bytes(32), 20)}


async def test_idle_kad_streams_of_many_peers_make_room_for_who_asks_something(victim: HostNetwork) -> None:
    """Keys cost nothing: as many as take all the places there are."""
    known = Contact(Identity.from_seed("known").peer_id, ("/ip4/10.0.0.1/tcp/4001",))
    victim.learn(known)
    async with contextlib.AsyncExitStack() as stack:
        for number in range(SLOTS // SLOTS_PER_PEER + 4):
            keys = create_new_key_pair(Identity.from_seed(f"idle {number}").seed)
            link = await stack.enter_async_context(attack(victim, keys=keys))
            for _ in range(SLOTS_PER_PEER):
                await kad_stream(link)
        while len(victim._kad._open) < SLOTS:
            await trio.sleep(0.01)
        async with open_host(Identity.from_seed("honest"), server=False) as honest:
            await honest.connect(victim.peer_id, victim.addresses)
            honest.learn(Contact(victim.peer_id, victim.addresses))
            await honest.refresh()
            assert known.peer in {contact.peer for contact in honest.closest(bytes(32), 20)}
        assert len(victim._kad._open) <= SLOTS


@pytest.mark.parametrize(
    "kind", [Message.PUT_VALUE, Message.GET_VALUE, Message.ADD_PROVIDER, Message.GET_PROVIDERS]
)
async def test_values_and_provider_records_are_refused(victim: HostNetwork, kind: int) -> None:
    async with attack(victim) as link:
        stream = await kad_stream(link)
        await link.data(stream, query(kind, b"/pk/anything"))
        with trio.fail_after(3):
            await link.reset_of(stream)
    assert victim._kad.get_value_store_size() == 0


async def test_a_kad_message_of_4_mib_is_refused_before_it_comes(victim: HostNetwork) -> None:
    async with attack(victim) as link:
        stream = await kad_stream(link)
        await link.data(stream, encode_uvarint(4 << 20))
        with trio.fail_after(3):
            await link.reset_of(stream)


async def test_the_public_ipfs_table_is_not_spoken(victim: HostNetwork) -> None:
    async with attack(victim) as link:
        stream = await kad_stream(link, "/ipfs/kad/1.0.0")
        answer = line(MSS[:-1]) + line(b"na")
        assert await link.body_of(stream, len(answer)) == answer


@pytest.mark.parametrize(
    ("protocols", "added"), [(["/ipfs/kad/1.0.0"], False), ([], False), ([KAD_PROTOCOL], True)]
)
async def test_only_peers_that_serve_our_own_table_are_added(
    victim: HostNetwork, protocols: list[str], added: bool
) -> None:
    peer = ID(peer_id_bytes(ATTACKER.peer_id))
    store = victim._host.get_peerstore()
    where = "/ip4/127.0.0.1/tcp/4001"
    async with attack(victim):
        while ATTACKER.peer_id not in victim.connected():
            await trio.sleep(0.01)
        store.add_protocols(peer, protocols)
        store.add_addrs(peer, [Multiaddr(text) for text in ("/ip4/8.8.8.8/tcp/53", where)], 60)
        assert await victim._kad.add_peer(peer, skip_server_mode_check=True) is added
    values = {contact.peer: contact.addresses for contact in victim.closest(bytes(32), 20)}
    assert values == ({ATTACKER.peer_id: (where,)} if added else {})  # and nowhere but where it is seen


async def test_asking_a_question_does_not_make_a_peer_a_server(victim: HostNetwork) -> None:
    async with attack(victim) as link:
        stream = await kad_stream(link)
        greeting = line(MSS[:-1]) + line(KAD_PROTOCOL.encode())
        await link.data(stream, query(Message.FIND_NODE))
        assert len(await link.body_of(stream, len(greeting) + 1)) > len(greeting)  # it is answered
    assert victim.closest(bytes(32), 20) == ()


# -- (i) dialling waits for no timer -----------------------------------------------------------------------------------------


def test_dialling_and_calling_wait_for_no_timer() -> None:
    """On a clock that stands still; libp2p's own dial would wait for its 250 ms for ever."""
    clock = trio.testing.MockClock()
    started = clock.current_time()
    finished = threading.Event()

    async def main() -> None:
        async with trio.open_nursery() as nursery:

            async def watchdog() -> None:
                # the one thread with a real clock: 10 s of it, then the still clock jumps and the call below fails
                gave_up = await trio.to_thread.run_sync(finished.wait, 10, abandon_on_cancel=True)
                if not gave_up:
                    clock.jump(1000)

            nursery.start_soon(watchdog)
            async with (
                open_host(Identity.from_seed(1), listen=["/ip4/127.0.0.1/tcp/0"], server=True) as server,
                open_host(Identity.from_seed(2), server=False) as client,
            ):
                server.handle(ECHO, echo)
                stream = await client.open(server.peer_id, ECHO, server.addresses)
                await stream.send_all(b"no timer")
                assert await stream.receive_some() == b"no timer"
                assert clock.current_time() == started
                finished.set()
                clock.rate = 1  # closing does wait a little
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


# -- (k) and the patches themselves -------------------------------------------------------------------------------------------


async def test_a_node_does_not_dial_everybody_it_has_heard_of(victim: HostNetwork) -> None:
    async with open_host(Identity.from_seed(2), server=False) as node:
        node.learn(Contact(victim.peer_id, victim.addresses))
        await node._swarm.auto_connector.maybe_connect()
        assert node.connected() == ()


def test_libp2p_logs_nothing_by_itself() -> None:
    hardening.harden()
    assert not logging.getLogger("libp2p.kad_dht.kad_dht").isEnabledFor(logging.ERROR)
    assert not logging.getLogger("libp2p.network.auto_connector").isEnabledFor(logging.INFO)


def test_hardening_twice_is_hardening_once() -> None:
    hardening.harden()
    hardening.harden()
    assert vars(multiselect_communicator)["read_delim"] is hardening.read_name


def test_another_libp2p_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardening, "LIBP2P", "0.8.2")
    with pytest.raises(LocalProtocolError, match="safety of this node was written and tested"):
        hardening.harden()


async def test_a_client_of_the_table_serves_nobody() -> None:
    async with (
        open_host(Identity.from_seed(1), listen=["/ip4/127.0.0.1/tcp/0"], server=False) as client,
        open_host(Identity.from_seed(2), server=False) as other,
    ):
        with pytest.raises(Unreachable):
            await other.open(client.peer_id, KAD_PROTOCOL, client.addresses)
