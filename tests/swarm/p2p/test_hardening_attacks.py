"""Attacks on a running node over real sockets, by a peer that writes the bytes itself."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import AsyncIterator
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

import libp2p.crypto
import pytest
import trio
import trio.testing
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.exceptions import BaseLibp2pError
from libp2p.io.abc import Reader
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.protocol_muxer import multiselect_communicator
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
from libp2p.transport.upgrader import TransportUpgrader
from libp2p.utils.varint import encode_uvarint

from protocol.errors import LocalProtocolError
from swarm.join.host import HostNetwork, open_host
from swarm.net.addresses import Contact
from swarm.net.identity import Identity, peer_id_bytes
from swarm.net.limits import MAX_INBOUND
from swarm.net.network import Network, Stream
from swarm.p2p import hardening
from tests.swarm.attacker import ATTACKER, MSS, attack, ended, line, tcp

pytestmark = pytest.mark.patient

ECHO = "/test/echo/1"


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


@pytest.fixture
async def victim() -> AsyncIterator[HostNetwork]:
    async with open_host(Identity.from_seed(1), listen=["/ip4/127.0.0.1/tcp/0"]) as node:
        node.handle(ECHO, echo)
        with trio.fail_after(8):
            yield node


async def still_serves(victim: Network) -> None:
    """Check that an honest node is still served."""
    async with open_host(Identity.from_seed("honest")) as honest:
        stream = await honest.open(victim.peer_id, ECHO, victim.addresses)
        await stream.send_all(b"hello")
        assert await stream.receive_some() == b"hello"


# -- (a) (b) only Noise and yamux -----------------------------------------------------------------------------------------


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
    """libp2p's default host accepts it: plaintext, with the boss's public key and the attacker's signature."""
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
    """Its id has another form than ours. A gate that counted its peers with such an id among them crashed."""
    other = keys_of_kind(kind)
    with contextlib.suppress(BaseLibp2pError):
        async with attack(victim, keys=other) as link:
            while (await link.next())[0] != -1:
                pass
    assert victim.connected() == ()
    await still_serves(victim)


def keys_of_kind(kind: str) -> KeyPair:
    """Made with libp2p's own module, which nodes leave out."""
    spec = PathFinder.find_spec(f"libp2p.crypto.{kind}", list(libp2p.crypto.__path__))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    keys: KeyPair = module.create_new_key_pair(*([2048] if kind == "rsa" else []))
    return keys


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
        ):  # without the limit the victim waits 10 s for the 4 GiB, and stores what arrives
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
    """libp2p allows 101 reads for a frame; a slow link needs more."""
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

    assert await hardening.read_exactly(Trickle(), 1000) == b"x" * 1000
    with pytest.raises(BaseLibp2pError):
        await hardening.read_exactly(Trickle(), 1001)


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


async def test_an_inbound_connection_frees_its_slot(victim: HostNetwork) -> None:
    """libp2p keeps the slot until the node ends, so after 1,024 visits nobody could connect."""
    limiter = victim.swarm._inbound_limiter
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


@pytest.mark.parametrize("protocol", ["/ipfs/kad/1.0.0", "/ipfs/id/push/1.0.0"])
async def test_the_public_ipfs_table_is_not_spoken_and_nothing_is_pushed(
    victim: HostNetwork, protocol: str
) -> None:
    async with attack(victim) as link:
        stream = await link.open()
        await link.data(stream, line(MSS[:-1]) + line(protocol.encode()))
        answer = line(MSS[:-1]) + line(b"na")
        assert await link.body_of(stream, len(answer)) == answer
    assert victim.table.closest(bytes(32), 20) == []


# -- (i) dialling waits for no timer -----------------------------------------------------------------------------------------


def test_dialling_and_calling_wait_for_no_timer() -> None:
    """On a clock that stands still: libp2p's own dial would wait forever for its 250 ms."""
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
                open_host(Identity.from_seed(1), listen=["/ip4/127.0.0.1/tcp/0"]) as server,
                open_host(Identity.from_seed(2)) as client,
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
    async with open_host(Identity.from_seed(2)) as node:
        node.table.learn(Contact(victim.peer_id, victim.addresses))
        await node.swarm.auto_connector.maybe_connect()
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
    with pytest.raises(LocalProtocolError, match="security code was written for and tested"):
        hardening.harden()
