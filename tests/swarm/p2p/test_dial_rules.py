"""Which addresses of strangers are dialled, and how many failed dials they get."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import Unreachable
from swarm.join.host import open_host
from swarm.net.addresses import parse_tcp
from swarm.net.identity import Identity
from swarm.p2p.dial_rules import DOOR, GOOD_FAILS, PUBLIC, DialBudget, DialRules, own_ip_networks

PEER = Identity.from_seed("peer").peer_id
HOME = (ipaddress.ip_network("192.168.1.0/24"), ipaddress.ip_network("fd00:1::/64"))
LAN = "/ip4/192.168.1.7/tcp/4001"
"""The address on which this node listens."""


def rules(*listening: str, given: str = "") -> DialRules:
    return DialRules(
        listening=lambda: listening, given=lambda address: address == given, networks=lambda: HOME
    )


def dialled(them: DialRules, address: str, now: float = 0.0, peer: str = PEER) -> bool:
    return not them.why_not(now, peer, address)


@pytest.mark.parametrize(
    ("address", "may"),
    [
        ("/ip4/8.8.8.8/tcp/4001", True),
        ("/ip6/2606:4700::1111/tcp/4001", True),
        ("/ip4/192.168.1.9/tcp/4001", True),
        ("/ip6/fd00:1::9/tcp/4001", True),
        ("/ip4/192.168.2.1/tcp/80", False),
        ("/ip4/10.0.0.1/tcp/80", False),
        ("/ip4/100.64.0.9/tcp/80", False),
        ("/ip6/fd00:2::9/tcp/4001", False),
        ("/ip4/127.0.0.1/tcp/22", False),
        ("/ip6/::1/tcp/22", False),
        ("/dns4/victim.example/tcp/80", False),
    ],
)
def test_a_node_at_home_is_sent_to_the_internet_and_its_own_lan_and_nowhere_else(
    address: str, may: bool
) -> None:
    assert dialled(rules(LAN), address) is may


def test_a_swarm_on_one_machine_dials_by_loopback() -> None:
    here = "/ip4/127.0.0.1/tcp/4001"
    assert dialled(rules("/ip4/127.0.0.1/tcp/1"), here)
    assert dialled(rules(), here)  # a node that listens nowhere and has met nobody yet
    scheduler = rules()
    scheduler.answered(0, PEER, "/ip4/8.8.8.8/tcp/1")
    assert not dialled(scheduler, here)
    worker = rules(LAN, given="/ip4/127.0.0.1/tcp/4101")
    assert not dialled(worker, here)
    assert dialled(worker, "/ip4/127.0.0.1/tcp/4101")
    worker.answered(0, PEER, "/ip4/127.0.0.1/tcp/4101")  # its gate is on this machine
    assert dialled(worker, here)


def test_who_has_a_gate_in_another_private_network_is_of_it() -> None:
    routed = rules(LAN, given="/ip4/10.1.0.1/tcp/4101")
    assert not dialled(routed, "/ip4/10.2.0.7/tcp/4001")
    routed.answered(0, PEER, "/ip4/192.168.1.9/tcp/4001")  # a neighbour proves nothing about other networks
    assert not dialled(routed, "/ip4/10.2.0.7/tcp/4001")
    routed.answered(0, PEER, "/ip4/10.1.0.1/tcp/4101")
    assert dialled(routed, "/ip4/10.2.0.7/tcp/4001")


@pytest.mark.slow
def test_a_victim_gets_a_few_dials_whatever_keys_and_ports_are_named() -> None:
    them = rules()
    tried = [
        now
        for now in range(3600)
        for port in range(4)
        if dialled(them, f"/ip4/8.8.8.8/tcp/{1 + port}", now, Identity.from_seed(now % 50).peer_id)
    ]
    assert sum(now < 60 for now in tried) <= 12
    assert len(tried) <= 20
    assert max(tried) > 2400  # but it is not given up
    ipv6 = [dialled(them, f"/ip6/2606:4700::{n:x}/tcp/1") for n in range(1, 100)]
    assert sum(ipv6) == PUBLIC[0]


@pytest.mark.parametrize("ip", ["8.8.8.8", "192.168.1.77", "127.0.0.1"])
def test_a_victims_port_gets_a_few_dials_for_any_number_of_invented_peers(ip: str) -> None:
    """Hundreds of adverts name the victim's port, each under its own key."""
    them = rules("/ip4/127.0.0.1/tcp/4001" if ip == "127.0.0.1" else LAN)
    address = f"/ip4/{ip}/tcp/4002"
    tried = [
        now
        for now in range(600)
        for n in range(10)
        if dialled(them, address, float(now), Identity.from_seed(10 * (now % 60) + n).peer_id)
    ]
    assert sum(not now for now in tried) == DOOR[0]
    assert len(tried) <= 32
    if not ipaddress.ip_address(ip).is_global:  # for such addresses the whole machine counts
        assert dialled(them, f"/ip4/{ip}/tcp/4003", 600.0)


def test_naming_a_nodes_address_does_not_have_it_shunned() -> None:
    them, node = rules(given="/ip4/8.8.8.8/tcp/4101"), "/ip4/8.8.8.8/tcp/4001"
    them.answered(0, PEER, node)
    assert (
        sum(dialled(them, "/ip4/8.8.8.8/tcp/1", 1.0, Identity.from_seed(n).peer_id) for n in range(99)) == 8
    )
    for _ in range(GOOD_FAILS):
        assert dialled(them, node, 2.0)
    assert not dialled(them, node, 2.0)
    assert dialled(them, "/ip4/8.8.8.8/tcp/4101", 2.0)  # an address from the owner is always dialled


def test_an_answer_gives_a_target_all_its_pace_again() -> None:
    budget = DialBudget(2, 10.0, 80.0)
    assert [budget.take(0.0, "a") for _ in range(3)] == [True, True, False]
    assert [budget.take(now, "a") for now in (10.0, 20.0, 21.0)] == [False, True, False]
    budget.answered("a")
    assert [budget.take(now, "a") for now in (21.0, 22.0)] == [True, False]


@settings(max_examples=50)
@given(gaps=st.lists(st.floats(0, 1000), max_size=80), burst=st.integers(1, 5))
def test_in_any_stretch_of_time_a_silent_target_gets_no_more_than_the_burst_and_the_pace(
    gaps: list[float], burst: int
) -> None:
    budget, now, taken = DialBudget(burst, 12.0, 600.0), 0.0, list[float]()
    for gap in gaps:
        now += gap
        if budget.take(now, "a"):
            taken.append(now)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + (taken[last] - taken[first]) / 12.0 + 1e-6


def test_the_memory_of_targets_is_bounded() -> None:
    budget = DialBudget(1, 10.0, 80.0, remembered=3)
    assert [budget.take(0.0, who) for who in "abcd"] == [True] * 4
    assert not budget.take(0.0, "d")
    assert budget.take(0.0, "a")  # forgotten


def test_this_machines_networks_are_known_without_loopback() -> None:
    assert not any(network.is_loopback or network.is_link_local for network in own_ip_networks())


async def test_only_names_of_the_owners_gates_are_resolved() -> None:
    looked_up: list[str] = []

    async def look_up(host: str, port: int, family: int) -> list[str]:
        looked_up.append(host)
        return ["127.0.0.1"]

    async with (
        open_host(Identity.from_seed("named"), listen=["/ip4/127.0.0.1/tcp/0"]) as gate,
        open_host(Identity.fresh(), listen=["/ip4/127.0.0.1/tcp/0"]) as node,
    ):
        node.swarm.look_up = look_up
        where = parse_tcp(gate.addresses[0])
        assert where is not None
        name = f"/dns4/gate.example/tcp/{where.port}"
        with pytest.raises(Unreachable, match="only names of this node's own gates"):
            await node.connect(gate.peer_id, [name])
        with pytest.raises(Unreachable, match="only names of this node's own gates"):
            await node.connect(PEER, [f"{name}/p2p/{gate.peer_id}/p2p-circuit"])
        assert looked_up == []
        node.swarm.rules.given = lambda address: address == name
        await node.connect(gate.peer_id, [name])
        assert looked_up == ["gate.example"]
