"""Our gate and nodes with peers of go-libp2p, real processes on loopback. `make interop` fetches go-libp2p and runs this."""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
import trio
from libp2p.identity.identify.pb.identify_pb2 import Identify

from protocol.wire.codec import PREFIX, pack, unpack
from swarm.index.index import Index
from swarm.join.host import HostNetwork, open_host
from swarm.net.addresses import Contact
from swarm.net.identity import Identity, routing_key
from swarm.net.network import Stream
from swarm.net.reservations import DeclineReason, RelayReservations
from swarm.relay.wire import read_message
from tests.interop.go_peer import PROGRAM, GoPeer, go_peer
from tests.interop.ours import (
    BUILT_FOR_LINUX,
    ECHO,
    HOP,
    LOOPBACK,
    PING,
    PING_SIZE,
    echo,
    echoed,
    full_address,
    read_exactly,
    until,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.patient,
    BUILT_FOR_LINUX,
    pytest.mark.skipif(not PROGRAM.exists(), reason="go-libp2p is not installed: make interop"),
]


async def echo_of_go(stream: trio.SocketStream) -> None:
    async for data in stream:
        await stream.send_all(data)


@asynccontextmanager
async def speaker() -> AsyncIterator[GoPeer]:
    """A peer of go-libp2p that speaks one of our protocols."""
    async with go_peer() as peer:
        await peer.handle(ECHO, echo_of_go)
        yield peer


@asynccontextmanager
async def door(gate: HostNetwork, opens: trio.Event) -> AsyncIterator[str]:
    """The gate's address behind a port that accepts connections at once and passes bytes on once `opens` is set."""
    inside = int(gate.addresses[0].rpartition("/")[2])

    async def copy(source: trio.SocketStream, target: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError):  # one side is gone
            async for data in source:
                await target.send_all(data)

    async def serve(stream: trio.SocketStream) -> None:
        await opens.wait()
        with trio.socket.socket() as other:
            await other.connect(("127.0.0.1", inside))
            gates = trio.SocketStream(other)
            async with trio.open_nursery() as both:
                both.start_soon(copy, stream, gates)
                await copy(gates, stream)
                both.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield f"/ip4/127.0.0.1/tcp/{listener.socket.getsockname()[1]}/p2p/{gate.peer_id}"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def reserving(gate: HostNetwork, *, speaks: bool) -> AsyncIterator[GoPeer]:
    """A peer of go-libp2p that considers itself unreachable and asks the gate for a reservation, as its AutoRelay does."""
    ready = trio.Event()
    async with (
        door(gate, ready) as address,
        go_peer(
            "-dhtClient",
            "-autoRelay",
            "-relayDiscovery=false",
            "-forceReachabilityPrivate",
            "-bootstrapPeers",
            address,
            "-trustedRelays",
            address,
        ) as peer,
    ):
        if speaks:
            await peer.handle(ECHO, echo_of_go)
        ready.set()
        yield peer


async def test_a_go_peer_learns_who_a_gate_is_and_what_it_speaks(gate: HostNetwork) -> None:
    async with go_peer() as peer:
        await peer.connect(gate.peer_id, *gate.addresses)
        async with await peer.open(gate.peer_id, "/ipfs/id/1.0.0") as stream:
            said = await read_message(cast("Stream", stream), Identify())
    assert "libp2p" in said.agent_version
    assert {ECHO, PING, HOP} <= set(said.protocols)
    assert said.observed_addr[:5] == bytes([4, 127, 0, 0, 1])


async def test_100_pings_back_to_back_are_answered(gate: HostNetwork) -> None:
    """First each ping on its own stream, then all on one, as in go-libp2p's own ping."""
    async with go_peer() as peer:
        await peer.connect(gate.peer_id, *gate.addresses)
        for _ in range(100):
            assert await echoed(await peer.open(gate.peer_id, PING), secrets.token_bytes(PING_SIZE))
        async with await peer.open(gate.peer_id, PING) as stream:
            for _ in range(100):
                sent = secrets.token_bytes(PING_SIZE)
                await stream.send_all(sent)
                assert await read_exactly(stream.receive_some, PING_SIZE) == sent


async def test_a_go_peer_and_a_node_exchange_megabytes_whoever_dials(gate: HostNetwork) -> None:
    data = random.Random(1).randbytes(4_000_000)
    async with speaker() as peer:
        await peer.connect(gate.peer_id, *gate.addresses)
        assert await echoed(await peer.open(gate.peer_id, ECHO), data)
        async with open_host(Identity.from_seed("caller")) as node:
            stream = await node.open(await peer.id(), ECHO, await peer.addresses())
            assert await echoed(stream, data)


async def test_a_go_peer_asks_a_gate_for_the_way_to_others(gate: HostNetwork) -> None:
    index = Index(gate, rng=random.Random(1))
    async with (
        open_host(Identity.from_seed("holder"), listen=[LOOPBACK]) as holder,
        trio.open_nursery() as nursery,
        go_peer() as peer,
    ):
        await nursery.start(index.run)
        gate.table.learn(Contact(holder.peer_id, holder.addresses))
        await peer.connect(gate.peer_id, *gate.addresses)
        body = pack(["c", 1, "find-peers", {"key": routing_key(holder.peer_id), "count": 8}])
        async with await peer.open(gate.peer_id, "/sark/index/1") as stream:
            await stream.send_all(len(body).to_bytes(PREFIX, "big") + body)
            size = int.from_bytes(await read_exactly(stream.receive_some, PREFIX), "big")
            *_, type, fields = unpack(await read_exactly(stream.receive_some, size))
        nursery.cancel_scope.cancel()
    assert (type, [contact["peer"] for contact in fields["contacts"]]) == ("found-peers", [holder.peer_id])


async def test_go_peers_and_nodes_reach_each_other_through_a_gate(
    gate: HostNetwork, relay: RelayReservations
) -> None:
    data = random.Random(1).randbytes(100_000)
    async with reserving(gate, speaks=True) as behind, speaker() as caller:
        await until(lambda: relay.reservations(trio.current_time()))
        go = await behind.id()
        circuit = f"{full_address(gate)}/p2p-circuit"
        await caller.connect(go, circuit)
        assert await echoed(await caller.open(go, ECHO), data)
        async with open_host(Identity.from_seed("caller")) as node:
            stream = await node.open(go, ECHO, [circuit])
            assert stream.relayed
            assert await echoed(stream, data)
    assert relay.connected == 2


async def test_a_go_peer_reaches_a_node_behind_a_gate(gate: HostNetwork) -> None:
    async with open_host(Identity.from_seed("behind")) as node, speaker() as caller:
        node.handle(ECHO, echo)
        reservation = await node.reserve(gate.peer_id, gate.addresses)
        await caller.connect(node.peer_id, reservation.address)
        assert await echoed(await caller.open(node.peer_id, ECHO), random.Random(1).randbytes(100_000))


async def test_a_go_peer_that_speaks_nothing_of_ours_gets_no_reservation(
    gate: HostNetwork, relay: RelayReservations
) -> None:
    async with reserving(gate, speaks=False):
        await until(lambda: relay.declined[DeclineReason.NOT_ALLOWED])
    assert not relay.reservations(trio.current_time())
