"""Floods over real sockets: many keys from one network, which here is the /24 of an address of this machine.

Each test asserts that an honest peer from elsewhere is served while the flood goes on, and that the flood leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import OK, RESOURCE_LIMIT_EXCEEDED, HopMessage, Reservation
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as PeerMessage

from protocol.errors import Unreachable
from protocol.messages.reach import REACH, DialBack, DialBackReply
from protocol.words import ProtocolId
from swarm.join.host import HostNetwork, open_host
from swarm.net.addresses import network_of
from swarm.net.identity import Identity, peer_id_bytes
from swarm.net.limits import ConnectionLimits
from swarm.net.links import Links
from swarm.net.network import Stream
from swarm.net.reservations import RelayLimits, RelayReservations
from swarm.p2p.connection_gater import ConnectionGater
from swarm.p2p.handshakes import MOST_WAITING_OF_ONE
from swarm.p2p.yamux import BoundedYamux
from swarm.reach.autonat import AutoNatServer
from swarm.relay.wire import OWN_HOP, read_message, write_message
from tests.swarm.attacker import LOOPBACK, MSS, attack, line, tcp

ECHO = "/sark/echo/1"
SHARE = 6
FLOOD = 18
FROM = "127.0.1.7"
"""The source address of the flood: in another /24 than 127.0.0.1."""


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


async def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    with trio.fail_after(within_s):
        while not condition():
            await trio.sleep(0.02)


def connections_alive() -> int:
    gc.collect()
    return sum(isinstance(thing, BoundedYamux) for thing in gc.get_objects())


@asynccontextmanager
async def victim_with(arrivals: ConnectionGater, listen: str = LOOPBACK) -> AsyncIterator[HostNetwork]:
    async with open_host(Identity.from_seed("victim"), listen=[listen], gater=arrivals) as one:
        one.handle(ECHO, echo)
        yield one


async def is_served(victim: HostNetwork) -> bool:
    """Within less than the ten seconds after which half-open connections end by themselves."""
    async with open_host(Identity.fresh()) as honest:
        with trio.fail_after(8):
            while True:
                with contextlib.suppress(Unreachable):
                    stream = await honest.open(victim.peer_id, ECHO, victim.addresses)
                    await stream.send_all(b"hello")
                    return await stream.receive_some() == b"hello"


async def test_many_keys_from_one_network_get_its_share_of_connections_and_leave_nothing_behind() -> None:
    arrivals = ConnectionGater(ConnectionLimits(per_network=SHARE), sharing=network_of)
    async with victim_with(arrivals) as victim:
        assert await is_served(victim)
        await until(lambda: not arrivals._held)
        tasks, alive = trio.lowlevel.current_statistics().tasks_living, connections_alive()
        async with AsyncExitStack() as stack:
            for number in range(FLOOD):
                keys = create_new_key_pair(Identity.from_seed(f"flood {number}").seed)
                with contextlib.suppress(Exception):  # whatever error a closed port causes
                    link = await stack.enter_async_context(attack(victim, keys=keys, source=FROM))
                    await link.speak(ECHO, b"x" * 10_000)
            assert len(victim.connected()) == SHARE
            assert arrivals.refused["network-share"] == FLOOD - SHARE
            assert await is_served(victim)
        await until(lambda: not victim.connected() and not arrivals._held and not arrivals._unauthenticated)
        await until(lambda: trio.lowlevel.current_statistics().tasks_living <= tasks)
        await until(lambda: connections_alive() <= alive)


@pytest.mark.parametrize("source", [FROM, "127.0.0.1"], ids=["from elsewhere", "from the same address"])
async def test_connections_that_prove_nothing_keep_nobody_out_and_leave_nothing_behind(source: str) -> None:
    limits = ConnectionLimits(pending=SHARE, pending_per_ip=SHARE)
    arrivals = ConnectionGater(limits, sharing=network_of)
    lines = [b"", b"\x13/multi", line(MSS[:-1]), line(MSS[:-1]) + line(b"/noise"), b"\x00"]
    lines.append(lines[3] + b"\x00\x20" + bytes(16))  # half of a handshake's first message
    async with victim_with(arrivals) as victim:
        assert await is_served(victim)
        await until(lambda: not arrivals._held)
        tasks = trio.lowlevel.current_statistics().tasks_living
        async with AsyncExitStack() as stack:
            for number in range(4 * FLOOD):
                stream = await stack.enter_async_context(await tcp(victim, source))
                with contextlib.suppress(trio.BrokenResourceError):
                    await stream.send_all(lines[number % len(lines)])
            await until(lambda: arrivals._held.total() <= SHARE, within_s=8.0)
            assert await is_served(victim)
        await until(lambda: not arrivals._held and not arrivals._unauthenticated)
        await until(lambda: trio.lowlevel.current_statistics().tasks_living <= tasks)
    assert arrivals.refused["pending"] > FLOOD


async def test_connections_that_send_no_first_message_take_no_turn_from_their_address() -> None:
    arrivals = ConnectionGater()
    async with victim_with(arrivals) as victim, AsyncExitStack() as stack:
        for _ in range(3 * MOST_WAITING_OF_ONE):
            stream = await stack.enter_async_context(await tcp(victim, "127.0.0.1"))
            await stream.send_all(line(MSS[:-1]) + line(b"/noise") + b"\x00\x20" + bytes(31))
        await until(lambda: arrivals._held.total() == 3 * MOST_WAITING_OF_ONE)
        assert await is_served(victim)
    assert not arrivals.refused["crowded"]


async def reserve_from(gate: HostNetwork, node: HostNetwork, source: str, times: int = 1) -> list[int]:
    """The statuses that a node gets which comes from that address, and claims in its message to be another peer."""
    await node.swarm.punch(
        ID(peer_id_bytes(gate.peer_id)), gate.addresses[0], (source, 0), as_responder=False
    )
    named = PeerMessage(id=peer_id_bytes(Identity.from_seed("honest").peer_id))
    forged = Reservation(expire=2**62, voucher=b"signed by nobody", addrs=[b"\xff" * 30])
    statuses = []
    for _ in range(times):
        stream = await node.open(gate.peer_id, OWN_HOP)
        await write_message(stream, HopMessage(type=HopMessage.RESERVE, peer=named, reservation=forged))
        statuses.append((await read_message(stream, HopMessage())).status)
        await stream.aclose()
    return statuses


async def test_a_flood_of_reservations_leaves_room_for_others_and_ends_with_its_connections() -> None:
    relay_reservations = RelayReservations(
        RelayLimits(reservations=2 * SHARE, reservations_per_network=SHARE, reserve_burst=3)
    )
    honest_id = Identity.from_seed("honest")
    async with victim_with(ConnectionGater()) as gate:
        gate.serve_relay(relay_reservations)
        async with AsyncExitStack() as stack:
            got: list[int] = []
            for number in range(SHARE + 4):
                node = await stack.enter_async_context(open_host(Identity.from_seed(f"r {number}")))
                got += await reserve_from(gate, node, f"127.0.1.{number + 1}")
            assert got == [OK] * SHARE + [RESOURCE_LIMIT_EXCEEDED] * 4
            flood = await reserve_from(gate, node, "127.0.1.200", times=8)
            assert flood == [RESOURCE_LIMIT_EXCEEDED] * 8
            held = {each.peer for each in relay_reservations.reservations(trio.current_time())}
            assert held == {Identity.from_seed(f"r {number}").peer_id for number in range(SHARE)}
            async with open_host(honest_id) as honest:
                with pytest.raises(
                    Unreachable
                ):  # the name in their messages neither gave it anything nor took anything from it
                    await node.connect(
                        honest.peer_id, [f"{gate.addresses[0]}/p2p/{gate.peer_id}/p2p-circuit"]
                    )
                assert (await honest.reserve(gate.peer_id, gate.addresses)).ttl_s > 0
        await until(lambda: not relay_reservations.reservations(trio.current_time()))
    assert not relay_reservations._per_network


async def test_a_node_that_is_asked_to_dial_back_calls_nobody_but_who_asks() -> None:
    """Whatever ports and gates the message names, a listener on another address of this machine is not called."""
    calls: list[str] = []

    async def bystander(stream: trio.SocketStream) -> None:
        calls.append(stream.socket.getsockname()[0])
        await stream.aclose()

    async with victim_with(ConnectionGater()) as gate, trio.open_nursery() as nursery:
        AutoNatServer(gate.remote_address, gate.knock, serving=lambda: True, wall=lambda: 0.0).serve(gate)
        with socket.socket() as probe:
            probe.bind(("127.0.0.9", 0))
            port = probe.getsockname()[1]
        for host in ("127.0.0.9", "127.0.0.1"):
            (listener,) = await trio.open_tcp_listeners(port, host=host)
            nursery.start_soon(trio.serve_listeners, bystander, [listener])
        async with open_host(Identity.fresh()) as asker:
            links = Links(asker, ProtocolId.REACH, REACH, nursery)
            answer = await links.call(gate.peer_id, gate.addresses, DialBack(ports=(port,)), max_wait_s=8)
            assert isinstance(answer, DialBackReply)
            assert answer.observed.startswith("/ip4/127.0.0.1/")
            assert answer.reached == ()  # a node answers there, but not with the asker's key
        nursery.cancel_scope.cancel()
    assert calls == ["127.0.0.1"]
