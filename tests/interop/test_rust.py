"""Our gate and nodes with peers of rust-libp2p, real processes on loopback. `make interop` fetches rust-libp2p and runs this."""

from __future__ import annotations

import random
import secrets

import pytest
import trio
from libp2p.identity.identify import identify

from swarm.join.host import HostNetwork, open_host
from swarm.net.identity import Identity
from swarm.net.reservations import DeclineReason, RelayReservations
from tests.interop.ours import (
    ANSWER_S,
    BUILT_FOR_LINUX,
    ECHO,
    HOP,
    LOOPBACK,
    PING,
    PING_SIZE,
    full_address,
    read_exactly,
    until,
)
from tests.interop.rust_peer import CALL, INSTALLED, SPOKEN, called, rust_peer

NODE = Identity.from_seed("node")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.patient,
    BUILT_FOR_LINUX,
    pytest.mark.skipif(not INSTALLED.exists(), reason="rust-libp2p is not installed: make interop"),
]


async def test_a_rust_peer_learns_who_a_gate_is_and_what_it_speaks(
    gate: HostNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identify, "PROTOCOL_VERSION", SPOKEN)  # it disconnects from peers of another version
    async with rust_peer(bootstrap_nodes=[full_address(gate)]) as peer:
        said = await peer.until_asked("get_peer_info", gate.peer_id)
        assert await peer.until_asked("get_peer_rtt", gate.peer_id) < ANSWER_S
    assert "libp2p" in said["agent_version"]
    assert {ECHO, PING, HOP} <= set(said["protocols"])


async def test_100_pings_back_to_back_are_answered_by_a_rust_peer() -> None:
    async with (
        open_host(NODE, listen=[LOOPBACK]) as node,
        rust_peer(friends=(NODE.peer_id,)) as peer,
    ):
        stream = await node.open(peer.id, PING, [peer.addresses[0].rpartition("/p2p/")[0]])
        for _ in range(100):
            sent = secrets.token_bytes(PING_SIZE)
            await stream.send_all(sent)
            assert await read_exactly(stream.receive_some, PING_SIZE) == sent
        await stream.aclose()


async def test_a_rust_peer_and_a_node_exchange_megabytes() -> None:
    async with (
        open_host(NODE, listen=[LOOPBACK]) as node,
        rust_peer(bootstrap_nodes=[full_address(node)], friends=(NODE.peer_id,)) as peer,
    ):
        await until(lambda: peer.id in node.connected())
        assert await called(await node.open(peer.id, CALL), random.Random(1).randbytes(4_000_000))


async def test_a_rust_peer_is_reached_through_a_gate(gate: HostNetwork, relay: RelayReservations) -> None:
    async with rust_peer(gates=[full_address(gate)], friends=(NODE.peer_id,)) as peer:
        circuit = f"{full_address(gate)}/p2p-circuit"
        visible = await peer.until_asked("get_visible_maddrs")
        assert f"{circuit}/p2p/{peer.id}" in visible
        async with open_host(NODE) as node:
            stream = await node.open(peer.id, CALL, [circuit])
            assert stream.relayed
            assert await called(stream, random.Random(1).randbytes(100_000))
    assert relay.connected == 1


async def test_a_rust_peer_reaches_a_node_behind_a_gate(gate: HostNetwork, relay: RelayReservations) -> None:
    async with open_host(NODE) as node:
        reservation = await node.reserve(gate.peer_id, gate.addresses)
        way = f"{reservation.address}/p2p/{NODE.peer_id}"
        async with rust_peer(
            bootstrap_nodes=[way], gates=[full_address(gate)], friends=(NODE.peer_id,)
        ) as peer:
            assert await peer.until_asked("get_peer_rtt", NODE.peer_id) < ANSWER_S
            stream = await node.open(peer.id, CALL)
            assert stream.relayed
            assert await called(stream, random.Random(1).randbytes(100_000))
    assert relay.connected == 1


async def test_a_rust_peer_that_speaks_nothing_of_ours_gets_no_reservation(
    gate: HostNetwork, relay: RelayReservations
) -> None:
    async with rust_peer(gates=[full_address(gate)], protocol="/other/1"):
        await until(lambda: relay.declined[DeclineReason.NOT_ALLOWED])
    assert not relay.reservations(trio.current_time())


@pytest.mark.parametrize("target", ["rust", "node"])
async def test_a_direct_connection_replaces_a_circuit_with_a_rust_peer(
    gate: HostNetwork, target: str
) -> None:
    async with open_host(NODE, listen=[LOOPBACK]) as node:
        reservation = await node.reserve(gate.peer_id, gate.addresses)
        way = [f"{reservation.address}/p2p/{NODE.peer_id}"] if target == "node" else []
        async with rust_peer(
            bootstrap_nodes=way, gates=[full_address(gate)], friends=(NODE.peer_id,), with_dcutr=True
        ) as peer:
            if target == "rust":
                await peer.until_asked("get_visible_maddrs")
                await node.open(peer.id, PING, [f"{full_address(gate)}/p2p-circuit"])
            await until(lambda: (path := node.path(peer.id)) and path.direct)
