"""`sark-node trust`, and which workers a device id belongs to, as typed."""

from __future__ import annotations

import json

import pytest

from scheduler.trust.identities import DeviceClash
from scheduler.trust.pinned import read_pinned
from swarm.base.home import Home
from swarm.net.identity import Identity
from tests.cli.conftest import Typed

FIRST, SECOND = (Identity.from_seed(name).peer_id for name in ("first", "second"))


def test_a_second_worker_of_a_machine_is_bound_to_the_device_of_the_first(typed: Typed) -> None:
    unused = typed("trust", SECOND, "--same-device-as", FIRST)
    assert unused.code == 5
    assert f"this home has not used a device of {FIRST} yet" in unused.err
    assert "--device DEVICE_ID" in unused.err
    assert typed("trust", FIRST, "--device", "board-7").code == 0
    bound = typed("trust", SECOND, "--same-device-as", FIRST)
    assert bound.out == f"{SECOND} is trusted from now on, as a worker of device board-7.\n"
    assert read_pinned(Home.at(typed.home)) == {"board-7": (FIRST, SECOND)}
    listed = json.loads(typed("trust", "--json").out)
    assert {each["peer"] for each in listed["trusted"]} == {FIRST, SECOND}


def test_two_workers_of_a_machine_that_was_not_used_yet_are_bound_at_once(typed: Typed) -> None:
    """With the command that `peers` shows."""
    clash = DeviceClash("board-7", FIRST, SECOND)
    done = typed(*str(clash).partition("sark-node ")[2].split())
    assert done.out == f"{SECOND} is trusted from now on, as a worker of device board-7.\n"
    assert read_pinned(Home.at(typed.home)) == {"board-7": (FIRST, SECOND)}
    typed("trust", SECOND, "--same-device-as", FIRST, "--device", "board-8")  # the machine was reinstalled
    assert read_pinned(Home.at(typed.home)) == {"board-7": (FIRST, SECOND), "board-8": (FIRST, SECOND)}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--forget",), "--forget needs a peer id"),
        (("--device", "board-7"), "--device needs a peer id"),
        ((FIRST, "--forget", "--name", "lab"), "--forget and --name cannot be used together"),
        ((FIRST, "--forget", "--forgive"), "--forget and --forgive cannot be used together"),
        ((FIRST, "--forgive", "--device", "board-7"), "--forgive and --device cannot be used together"),
    ],
)
def test_options_that_do_not_go_together_change_nothing(
    typed: Typed, words: tuple[str, ...], message: str
) -> None:
    done = typed("trust", *words)
    assert done.code == 2
    assert message in done.err
    assert json.loads(typed("trust", "--json").out)["count"] == 0
