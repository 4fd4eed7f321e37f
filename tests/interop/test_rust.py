"""A gate and nodes of ours with peers of rust-libp2p, real processes on loopback. `make interop` fetches rust-libp2p and runs this."""

from __future__ import annotations

import platform
import random
import secrets
import sys

import pytest
import trio
from libp2p.identity.identify import identify

from swarm.join.host import HostNetwork, open_host
from swarm.net.identity import Identity
from swarm.net.reservations import DeclineReason, RelayReservations
from tests.interop.ours import ECHO, HOP, LOOPBACK, PING, PING_SIZE, full_address
from tests.interop.rust_peer import ANSWER_S, CALL, INSTALLED, SPOKEN, echoed, rust_peer

NODE = Identity.from_seed("node")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.patient,
    pytest.mark.skipif(
        (sys.platform, platform.machine()) != ("linux", "x86_64"),
        reason="what is fetched of it is built for Linux on x86-64",
    ),
    pytest.mark.skipif(not INSTALLED.exists(), reason="rust-libp2p is not installed: make interop"),
]


async def test_a_rust_peer_learns_who_a_gate_is_and_what_it_speaks(
    gate: HostNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identify, "PROTOCOL_VERSION", SPOKEN)  # it leaves peers of another version
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
            assert await stream.receive_some(PING_SIZE) == sent
        await stream.aclose()


async def test_a_rust_peer_and_a_node_exchange_megabytes() -> None:
    async with (
        open_host(NODE, listen=[LOOPBACK]) as node,
        rust_peer(bootstrap_nodes=[full_address(node)], friends=(NODE.peer_id,)) as peer,
    ):
        with trio.fail_after(ANSWER_S):
            while peer.id not in node.connected():
                await trio.sleep(0.05)
        assert await echoed(await node.open(peer.id, CALL), random.Random(1).randbytes(4_000_000))


async def test_a_rust_peer_is_reached_through_a_gate(gate: HostNetwork, relay: RelayReservations) -> None:
    async with rust_peer(relay_servers=[full_address(gate)], friends=(NODE.peer_id,)) as peer:
        circuit = f"{full_address(gate)}/p2p-circuit"
        visible = await peer.until_asked("get_visible_maddrs")
        assert f"{circuit}/p2p/{peer.id}" in visible
        async with open_host(NODE) as node:
            stream = await node.open(peer.id, CALL, [circuit])
            assert stream.relayed
            assert await echoed(stream, random.Random(1).randbytes(100_000))
    assert relay.connected == 1


async def test_a_rust_peer_reaches_a_node_behind_a_gate(gate: HostNetwork, relay: RelayReservations) -> None:
    async with open_host(NODE) as node:
        reservation = await node.reserve(gate.peer_id, gate.addresses)
        way = f"{reservation.address}/p2p/{NODE.peer_id}"
        async with rust_peer(
            bootstrap_nodes=[way], relay_servers=[full_address(gate)], friends=(NODE.peer_id,)
        ) as peer:
            assert await peer.until_asked("get_peer_rtt", NODE.peer_id) < ANSWER_S
            stream = await node.open(peer.id, CALL)
            assert stream.relayed
            assert await echoed(stream, random.Random(1).randbytes(100_000))
    assert relay.connected == 1


async def test_a_rust_peer_that_speaks_nothing_of_ours_gets_no_reservation(
    gate: HostNetwork, relay: RelayReservations
) -> None:
    async with rust_peer(relay_servers=[full_address(gate)], protocol="/other/1"):
        with trio.fail_after(ANSWER_S):
            while not relay.declined[DeclineReason.NOT_ALLOWED]:
                await trio.sleep(0.05)
    assert not relay.reservations(trio.current_time())


@pytest.mark.parametrize("called", ["rust", "node"])
async def test_a_direct_connection_replaces_a_circuit_with_a_rust_peer(
    gate: HostNetwork, called: str
) -> None:
    async with open_host(NODE, listen=[LOOPBACK]) as node:
        reservation = await node.reserve(gate.peer_id, gate.addresses)
        way = [f"{reservation.address}/p2p/{NODE.peer_id}"] if called == "node" else []
        async with rust_peer(
            bootstrap_nodes=way, relay_servers=[full_address(gate)], friends=(NODE.peer_id,), with_dcutr=True
        ) as peer:
            if called == "rust":
                await peer.until_asked("get_visible_maddrs")
                await node.open(peer.id, PING, [f"{full_address(gate)}/p2p-circuit"])
            with trio.fail_after(ANSWER_S):
                while (path := node.path(peer.id)) is None or not path.direct:
                    await trio.sleep(0.05)
