"""Circuits in lists of addresses."""

from __future__ import annotations

import pytest

from swarm.net.addresses import MAX_CIRCUITS, Circuit, all_addresses, circuits, parse_circuit, usable
from swarm.net.identity import Identity

GATE = Identity.from_seed("gate").peer_id
NODE = Identity.from_seed("node").peer_id
DIRECT = "/ip4/10.0.0.7/tcp/4001"


@pytest.mark.parametrize(
    "where", ["/ip4/192.0.2.7/tcp/4101", "/ip6/2001:db8::7/tcp/4101", "/dns4/gate.example/tcp/4101"]
)
@pytest.mark.parametrize("behind", ["", f"/p2p/{NODE}"])
def test_a_circuit_names_its_gate_and_where_that_is_dialled(where: str, behind: str) -> None:
    assert parse_circuit(f"{where}/p2p/{GATE}/p2p-circuit{behind}") == Circuit(GATE, where)
    assert str(Circuit(GATE, where)) == f"{where}/p2p/{GATE}/p2p-circuit"


@pytest.mark.parametrize(
    "text",
    [
        "",
        DIRECT,
        f"{DIRECT}/p2p-circuit",
        f"{DIRECT}/p2p/{GATE}",
        f"{DIRECT}/p2p/nobody/p2p-circuit",
        f"/p2p/{GATE}/p2p-circuit",
        f"/ip4/0.0.0.0/tcp/4101/p2p/{GATE}/p2p-circuit",
        f"/ip4/192.0.2.7/tcp/0/p2p/{GATE}/p2p-circuit",
        f"/ip4/192.0.2.7/udp/4101/quic-v1/p2p/{GATE}/p2p-circuit",
        f"{DIRECT}/p2p/{GATE}/p2p-circuit/p2p/{GATE}/p2p-circuit",
        f"{DIRECT}/p2p/{GATE}/p2p-circuitous",
    ],
)
def test_what_is_no_circuit_through_one_gate_is_left_out(text: str) -> None:
    assert parse_circuit(text) is None


def test_direct_addresses_come_before_circuits_and_there_are_few_of_these() -> None:
    many = [f"/ip4/192.0.2.{number}/tcp/4101/p2p/{GATE}/p2p-circuit" for number in range(1, 20)]
    assert all_addresses([*many, DIRECT, many[0]]) == (DIRECT, *many[:MAX_CIRCUITS])
    assert usable([*many, DIRECT]) == (DIRECT,)
    assert len(circuits(many)) == MAX_CIRCUITS
