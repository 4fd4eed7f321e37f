"""How many streams a peer may open to us, and how circuits count."""

from __future__ import annotations

import contextlib

from swarm.net.limits import MAX_INBOUND, MAX_INBOUND_OF_PROTOCOL, SEPARATE_LIMITS, InboundLimits, Pauses
from swarm.relay.wire import HOP, OWN_HOP, OWN_STOP, STOP


def open_streams(limits: InboundLimits, stack: contextlib.ExitStack, protocol: str, count: int) -> int:
    """Open `count` streams; returns how many are served."""
    served = 0
    for _ in range(count):
        if stack.enter_context(limits.arriving("gate")):
            served += stack.enter_context(limits.speaking("gate", protocol))
    return served


def test_circuits_take_no_place_of_other_streams_and_have_a_limit_of_their_own() -> None:
    limits = InboundLimits()
    with contextlib.ExitStack() as stack:
        assert open_streams(limits, stack, STOP, 50) == 50
        assert open_streams(limits, stack, STOP, 50) == SEPARATE_LIMITS[STOP] - 50
    with contextlib.ExitStack() as stack:
        assert open_streams(limits, stack, HOP, SEPARATE_LIMITS[HOP]) == SEPARATE_LIMITS[HOP]
        assert open_streams(limits, stack, "/sark/task/1", 50) == MAX_INBOUND_OF_PROTOCOL


def test_every_place_comes_back() -> None:
    limits = InboundLimits()
    for _ in range(3):
        with contextlib.ExitStack() as stack:
            open_streams(limits, stack, STOP, 100)
            for number in range(4):
                served = open_streams(limits, stack, f"/sark/{number}/1", 9)
                assert served <= MAX_INBOUND_OF_PROTOCOL
    with contextlib.ExitStack() as stack:
        assert all(stack.enter_context(limits.arriving("gate")) for _ in range(MAX_INBOUND))
        assert not stack.enter_context(limits.arriving("gate"))


def test_the_names_are_those_that_are_spoken() -> None:
    assert set(SEPARATE_LIMITS) == {HOP, OWN_HOP, STOP, OWN_STOP}


def test_what_failed_pauses_twice_as_long_each_time_until_it_works() -> None:
    pauses = Pauses(30.0, 900.0, most=2)
    for times, pause_s in ((0, 30.0), (1, 60.0), (2, 120.0), (16, 900.0)):
        while pauses._failed.get("a", (0, 0))[0] < times:
            pauses.failed("a", 0.0)
        pauses.failed("a", 1_000.0)
        assert pauses.pauses("a", 1_000.0 + pause_s - 0.1)
        assert not pauses.pauses("a", 1_000.0 + pause_s)
    pauses.worked("a")
    assert not pauses.pauses("a", 1_000.0)
    for key in "abc":
        pauses.failed(key, 0.0)
    assert [pauses.pauses(key, 1.0) for key in "abc"] == [False, True, True], "the oldest is forgotten"
