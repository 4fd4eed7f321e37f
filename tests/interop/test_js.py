"""Our gate and nodes with peers of js-libp2p, real processes on loopback. `make interop` installs js-libp2p and runs this."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from swarm.index.index import Index
from swarm.join.host import HostNetwork, open_host
from swarm.net.addresses import Contact
from swarm.net.identity import Identity, routing_key
from tests.interop.ours import ECHO, HOP, LOOPBACK, PING, echo, echoed, full_address, running

PROGRAM: Final = Path(__file__).parent / "js" / "peer.mjs"
NODE: Final = shutil.which("node")
ANSWER_S: Final = 60.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.patient,
    pytest.mark.skipif(NODE is None, reason="node is not installed"),
    pytest.mark.skipif(
        not (PROGRAM.parent / "node_modules").exists(), reason="js-libp2p is not installed: make interop"
    ),
]

Ask = Callable[..., Awaitable[Any]]
"""(command, …arguments) → the peer's answer."""


@asynccontextmanager
async def js_peer() -> AsyncIterator[Ask]:
    """A peer of js-libp2p that runs commands."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    async with running([str(NODE), str(PROGRAM)], **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told, rest = process.stdout, bytearray()

        async def ask(*command: object) -> Any:
            assert process.stdin is not None
            with trio.fail_after(ANSWER_S):
                await process.stdin.send_all(json.dumps(command).encode() + b"\n")
                while b"\n" not in rest:
                    more = await told.receive_some()
                    assert more, "the peer ended"
                    rest.extend(more)
            line, _, after = bytes(rest).partition(b"\n")
            rest[:] = after
            answer = json.loads(line)
            assert "ok" in answer, answer["error"]
            return answer["ok"]

        yield ask


async def test_a_js_peer_learns_who_a_gate_is_and_what_it_speaks(gate: HostNetwork) -> None:
    async with js_peer() as ask:
        said = await ask("identify", full_address(gate))
    assert "libp2p" in said["agent"]
    assert {ECHO, PING, HOP} <= set(said["protocols"])
    assert said["observed"].startswith("/ip4/127.0.0.1/tcp/")


async def test_100_pings_back_to_back_are_answered(gate: HostNetwork) -> None:
    async with js_peer() as ask:
        assert await ask("ping", full_address(gate), 100) == 100


async def test_a_js_peer_and_a_node_exchange_megabytes(gate: HostNetwork) -> None:
    async with js_peer() as ask:
        assert await ask("echo", full_address(gate), 4_000_000)


async def test_a_js_peer_asks_a_gate_for_the_way_to_others(gate: HostNetwork) -> None:
    index = Index(gate, rng=random.Random(1))
    async with (
        open_host(Identity.from_seed("holder"), listen=[LOOPBACK]) as holder,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(index.run)
        gate.table.learn(Contact(holder.peer_id, holder.addresses))
        async with js_peer() as ask:
            found = await ask("route", full_address(gate), routing_key(holder.peer_id).hex())
        nursery.cancel_scope.cancel()
    assert found == {"type": "found-peers", "peers": [holder.peer_id]}


async def test_js_peers_and_nodes_reach_each_other_through_a_gate(gate: HostNetwork) -> None:
    async with js_peer() as behind, js_peer() as caller:
        circuit = await behind("reserve", full_address(gate))
        assert gate.peer_id in circuit
        assert await caller("echo", circuit, 100_000)
        async with open_host(Identity.from_seed("caller")) as node:
            js = await behind("id")
            stream = await node.open(js, ECHO, [circuit.removesuffix(f"/p2p/{js}")])
            assert stream.relayed
            assert await echoed(stream, b"hello")


async def test_a_js_peer_reaches_a_node_behind_a_gate(gate: HostNetwork) -> None:
    async with open_host(Identity.from_seed("behind")) as node, js_peer() as ask:
        node.handle(ECHO, echo)
        reservation = await node.reserve(gate.peer_id, gate.addresses)
        assert await ask("echo", f"{reservation.address}/p2p/{node.peer_id}", 100_000)
