"""What `doctor` reports about the network, each finding with its remedy; and a check of a real gate on loopback."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from gate.service import run_gate
from gate.settings import GateSettings
from node.doctor.host import Check, CheckState
from node.doctor.network import GateFacts, NetworkFacts, look, net_checks, pool_checks, usable_gates
from protocol.words import Role
from swarm.base.home import Home
from swarm.net.identity import Identity
from swarm.p2p.dial_rules import NOT_DIALLED
from swarm.pools.membership import Membership
from swarm.reach.reachability import Reach

GOOD = GateFacts("192.0.2.7:4101", ms=12.0, observed="8.8.4.4", ahead_s=0.1, reserved=True, relayed_ms=41.0)
DEAD = GateFacts("192.0.2.8:4101", why="no answer")
HERE = GateFacts("127.0.0.1:4101", why="no way", here=True)
FORBIDDEN = GateFacts(
    "127.0.0.1:4101", why=f"no way: /ip4: {NOT_DIALLED}it is an address of this machine itself"
)
TAKEN = GateFacts("192.0.2.9:4101", why="no way", expected="12D3ExpecteD", other="12D3FoundNow")
DIRECT = NetworkFacts(
    gates=(GOOD,),
    reach=Reach.DIRECT,
    reached=("/ip4/8.8.4.4/tcp/4102",),
    far=True,
    own_ip="192.168.1.7",
    port=4102,
    fixed=True,
    behind_router=True,
    neighbours=2,
)
BEHIND = replace(DIRECT, reach=Reach.BEHIND, reached=())


def of(facts: NetworkFacts, subject: str) -> list[Check]:
    return [check for check in net_checks(facts) if check.subject == subject]


def test_a_device_that_can_be_dialled_has_nothing_to_do() -> None:
    assert {(check.state, check.todo) for check in net_checks(DIRECT)} == {(CheckState.OK, "")}
    (reach,) = of(DIRECT, "reach")
    assert "/ip4/8.8.4.4/tcp/4102" in reach.what
    (gate,) = of(DIRECT, "gate")
    assert gate.what == "192.0.2.7:4101 answers in 12 ms"
    (lan,) = of(DIRECT, "LAN")
    assert lan.what == "2 neighbours found by mDNS"


def test_a_device_behind_a_router_shows_the_gate_that_reaches_it_and_what_to_type() -> None:
    (reach,) = of(BEHIND, "reach")
    assert reach.state is CheckState.NOTE
    assert "reached through gate 192.0.2.7:4101 in 41 ms" in reach.what
    assert "forward TCP port 4102 on the router to 192.168.1.7" in reach.todo
    assert "--upnp" in reach.todo
    assert "--announce /ip4/8.8.4.4/tcp/OUTER_PORT" in reach.todo
    assert "--listen" not in reach.todo
    (reach,) = of(replace(BEHIND, fixed=False, port=51034), "reach")
    assert "--listen /ip4/0.0.0.0/tcp/4102" in reach.todo


def test_a_device_without_a_router_in_between_has_a_firewall_to_open() -> None:
    (reach,) = of(replace(BEHIND, behind_router=False), "reach")
    assert "firewall" in reach.todo
    assert "open TCP port 4102" in reach.todo


def test_a_device_that_nobody_can_reach_at_all_is_bad_with_each_gates_reason() -> None:
    full = replace(GOOD, reserved=False, no_reservation="all reservations are taken", relayed_ms=None)
    (reach,) = of(replace(BEHIND, gates=(full,)), "reach")
    assert reach.state is CheckState.BAD
    assert "192.0.2.7:4101: all reservations are taken" in reach.what


@pytest.mark.parametrize(
    ("facts", "subject", "state", "text"),
    [
        (NetworkFacts(neighbours=0), "gates", CheckState.NOTE, "none is known"),
        (NetworkFacts(neighbours=0), "LAN", CheckState.OK, "no neighbour"),
        (NetworkFacts(), "LAN", CheckState.OK, "discovery is off"),
        (NetworkFacts(trouble="port 4102 is taken"), "network", CheckState.NOTE, "port 4102 is taken"),
        (replace(DIRECT, gates=(GOOD, DEAD)), "gate", CheckState.NOTE, "192.0.2.8:4101 does not answer"),
        (replace(DIRECT, gates=(DEAD,)), "gate", CheckState.BAD, "192.0.2.8:4101 does not answer"),
        (
            replace(DIRECT, gates=(HERE,)),
            "gate",
            CheckState.BAD,
            "127.0.0.1:4101 does not answer, and its address is one of this machine itself",
        ),
        (
            replace(DIRECT, gates=(GOOD, FORBIDDEN)),
            "gate",
            CheckState.NOTE,
            "127.0.0.1:4101 is not dialled: it is an address of this machine itself",
        ),
        (
            replace(DIRECT, gates=(DEAD,), connected=False),
            "network",
            CheckState.BAD,
            "only address is loopback",
        ),
        (
            replace(DIRECT, gates=(GOOD, TAKEN)),
            "gate",
            CheckState.NOTE,
            "is another gate: expected …ExpecteD, found …FoundNow",
        ),
        (replace(DIRECT, far=False), "reach", CheckState.OK, "on this LAN"),
        (replace(DIRECT, reach=Reach.UNKNOWN), "reach", CheckState.NOTE, "unknown"),
        (replace(DIRECT, gates=(replace(GOOD, dials_back=False),)), "gate", CheckState.OK, "cannot tell"),
        (
            replace(DIRECT, gates=(replace(GOOD, ahead_s=7.0),)),
            "clock",
            CheckState.NOTE,
            "7 s behind the gates'",
        ),
        (
            replace(DIRECT, gates=(replace(GOOD, ahead_s=-90.0),)),
            "clock",
            CheckState.NOTE,
            "90 s ahead of the gates'",
        ),
        (replace(DIRECT, gates=(replace(GOOD, ahead_s=4.9),)), "clock", CheckState.OK, "within 5 s"),
        (
            replace(DIRECT, worker="can be dialled from outside"),
            "worker",
            CheckState.OK,
            "running here can be dialled",
        ),
    ],
)
def test_each_fact_has_its_line(facts: NetworkFacts, subject: str, state: CheckState, text: str) -> None:
    assert any(check.state is state and text in check.what for check in of(facts, subject))


def test_one_gate_whose_clock_is_wrong_does_not_make_ours_wrong() -> None:
    facts = replace(DIRECT, gates=(GOOD, replace(GOOD, ahead_s=3600.0), GOOD))
    assert of(facts, "clock")[0].state is CheckState.OK


TICKET = Membership(
    pool=Identity.from_seed("pool").peer_id, name="lab", role=Role.WORKER, ticket=b"t" * 16, until=2000
)


@pytest.mark.parametrize(
    ("joined", "listed", "state", "what", "todo"),
    [
        (TICKET, True, CheckState.OK, "lab admitted this device", ""),
        (
            TICKET,
            False,
            CheckState.NOTE,
            "has not admitted this device yet",
            "sark-node join --leave-pool lab",
        ),
        (
            TICKET.model_copy(update={"spent": True}),
            False,
            CheckState.NOTE,
            "used up",
            "sark-node join TICKET",
        ),
        (
            TICKET.model_copy(update={"until": 900}),
            False,
            CheckState.NOTE,
            "expired",
            "sark-node join TICKET",
        ),
    ],
    ids=["in", "waits", "refused", "late"],
)
def test_it_says_whether_its_pools_admitted_this_device(
    joined: Membership, listed: bool, state: CheckState, what: str, todo: str
) -> None:
    (check,) = pool_checks([(joined, listed)], 1000.0)
    assert check.state is state
    assert what in check.what
    assert todo in check.todo


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def test_a_look_at_gates_on_loopback_tells_which_answer_and_how_this_device_is_reached(
    tmp_path: Path,
) -> None:
    port = free_port()
    settings = GateSettings(listen=(f"/ip4/127.0.0.1/tcp/{port}",), lan=False)
    with trio.fail_after(40):
        async with trio.open_nursery() as nursery:
            here = await nursery.start(run_gate, Home.at(tmp_path), settings)
            gate = f"/ip4/127.0.0.1/tcp/{port}/p2p/{here.identity.peer_id}"
            dead = f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/{Identity.from_seed('dead').peer_id}"
            wrong = Identity.from_seed("wrong").peer_id
            squatter = f"/ip4/127.0.0.1/tcp/{port}/p2p/{wrong}"
            facts = await look(
                usable_gates([gate, dead, "nonsense", squatter]),
                Identity.from_seed("me"),
                ["/ip4/127.0.0.1/tcp/0"],
            )
            nursery.cancel_scope.cancel()
    alive, other, taken = facts.gates
    assert (alive.why, alive.reserved, alive.observed) == ("", True, "127.0.0.1")
    # which round trip is shorter depends on the host's load
    assert (alive.ms or 0) > 0
    assert (alive.relayed_ms or 0) > 0
    assert abs(alive.ahead_s or 99) < 1
    assert other.why
    assert other.other == ""
    assert (taken.expected, taken.other) == (wrong, here.identity.peer_id)
    assert (facts.reach, facts.far, facts.behind_router) == (Reach.DIRECT, False, False)


async def test_a_gate_of_this_very_machine_is_dialled_if_its_owner_gave_it(tmp_path: Path) -> None:
    port = free_port()
    settings = GateSettings(listen=(f"/ip4/127.0.0.1/tcp/{port}",), lan=False)
    me = Identity.from_seed("me")
    everywhere = ["/ip4/0.0.0.0/tcp/0"]
    with trio.fail_after(40):
        async with trio.open_nursery() as nursery:
            here = await nursery.start(run_gate, Home.at(tmp_path), settings)
            gate = f"/ip4/127.0.0.1/tcp/{port}/p2p/{here.identity.peer_id}"
            dead = f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/{Identity.from_seed('dead').peer_id}"
            facts = await look([gate, dead], me, everywhere, given=[gate, dead])
            nursery.cancel_scope.cancel()
    alive, other = facts.gates
    assert alive.why == ""
    assert other.here
    assert NOT_DIALLED not in other.why


async def test_without_a_gate_no_node_is_started() -> None:
    facts = await look([], Identity.from_seed("me"), [])
    assert (facts.gates, facts.port) == ((), None)
