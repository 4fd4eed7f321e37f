"""The greeting of a gate that is up: its identity, how others join, and for whom it works."""

from __future__ import annotations

import pytest

from gate.cli.main import greeting
from gate.settings import Admit, GateSettings
from swarm.net.identity import Identity

PEER = Identity.from_seed("gate").peer_id
ADDRESS = f"/ip4/192.0.2.7/tcp/4101/p2p/{PEER}"


def test_an_open_gate_says_who_it_is_and_what_others_type() -> None:
    assert greeting(PEER, [ADDRESS], GateSettings()) == [
        f"Gate {PEER} is up.",
        "Others join with:",
        f"  sark-node join --gate {ADDRESS}",
    ]


def test_no_line_but_an_address_is_wider_than_a_terminal() -> None:
    for admit in Admit:
        for line in greeting(PEER, [ADDRESS, ADDRESS], GateSettings(admit=admit)):
            assert len(line) <= 80 or ADDRESS in line


def test_a_gate_without_an_address_says_that_nobody_can_dial_it() -> None:
    assert any(
        "Nobody can dial this gate" in line and "--announce" in line
        for line in greeting(PEER, [], GateSettings())
    )


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (GateSettings(admit=Admit.TICKET), "sark-node pool invite NAME"),
        (GateSettings(admit=Admit.LIST), "nobody else yet: --allow PEER"),
        (GateSettings(admit=Admit.LIST, allow=(PEER,)), "1 peer named by --allow"),
    ],
    ids=["ticket", "empty list", "list"],
)
def test_a_gate_that_is_not_open_says_for_whom_it_works(settings: GateSettings, line: str) -> None:
    assert line in "\n".join(greeting(PEER, [ADDRESS], settings))
