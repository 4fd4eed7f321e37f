"""`sark-node trust` and whose a device id is, as typed."""

from __future__ import annotations

import json

from scheduler.trust.pinned import read_pinned
from swarm.base.home import Home
from swarm.net.identity import Identity
from tests.cli.conftest import Typed

FIRST, SECOND = (Identity.from_seed(name).peer_id for name in ("first", "second"))


def test_a_second_worker_of_a_machine_is_bound_to_the_device_of_the_first(typed: Typed) -> None:
    unused = typed("trust", SECOND, "--same-device-as", FIRST)
    assert unused.code == 5
    assert f"no device of {FIRST} was used by this home yet" in unused.err
    assert f"sark-node trust {FIRST} --device DEVICE_ID" in unused.err
    assert typed("trust", FIRST, "--device", "board-7").code == 0
    bound = typed("trust", SECOND, "--same-device-as", FIRST)
    assert bound.out == f"{SECOND} is trusted from now on, as a worker of device board-7.\n"
    assert read_pinned(Home.at(typed.home)) == {"board-7": (FIRST, SECOND)}
    listed = json.loads(typed("trust", "--json").out)
    assert {each["peer"] for each in listed["trusted"]} == {FIRST, SECOND}


def test_a_key_is_not_bound_in_two_ways_at_once(typed: Typed) -> None:
    done = typed("trust", SECOND, "--same-device-as", FIRST, "--device", "board-7")
    assert done.code == 2
    assert f"sark-node trust {FIRST} --device board-7, then --same-device-as" in done.err
    assert read_pinned(Home.at(typed.home)) == {}
