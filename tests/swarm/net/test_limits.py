"""How many streams a peer may have open to us, and what circuits count."""

from __future__ import annotations

import contextlib

from swarm.net.limits import MAX_INBOUND, MAX_INBOUND_OF_PROTOCOL, SEPARATE_LIMITS, InboundLimits
from swarm.relay.wire import HOP, OWN_HOP, OWN_STOP, STOP


def open_streams(limits: InboundLimits, stack: contextlib.ExitStack, protocol: str, count: int) -> int:
    """Open `count` streams; gives how many are served."""
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
