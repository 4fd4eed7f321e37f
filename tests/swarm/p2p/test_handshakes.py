"""Handshakes within a share of the processor, by network; keys that come back."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from swarm.net.cost import Share
from swarm.net.limits import ConnectionLimits
from swarm.p2p.connection_gater import AWAY_S, ConnectionGater
from swarm.p2p.connection_value import NEW_S
from swarm.p2p.handshakes import (
    HANDSHAKE_US,
    MOST_WAITING,
    MOST_WAITING_OF_ONE,
    WORKED_WEIGHT,
    CrowdedError,
    HandshakeTurns,
)

TEN_A_SECOND = Share(10 * HANDSHAKE_US, 2 * HANDSHAKE_US)


async def test_handshakes_keep_to_their_share(autojump_clock: trio.testing.MockClock) -> None:
    turns, began = HandshakeTurns(TEN_A_SECOND), trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(22):
            nursery.start_soon(turns.turn, "one")
    assert trio.current_time() - began == pytest.approx(2.0)


async def test_a_flood_of_one_network_delays_that_network(autojump_clock: trio.testing.MockClock) -> None:
    turns, order = HandshakeTurns(TEN_A_SECOND), list[str]()

    async def dial(network: str) -> None:
        await turns.turn(network)
        order.append(network)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(dial, "flood")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(dial, "newcomer")
    assert order.index("newcomer") <= 4


async def test_an_address_that_was_of_use_has_its_turn_sooner(autojump_clock: trio.testing.MockClock) -> None:
    turns, order = HandshakeTurns(TEN_A_SECOND), list[str]()

    async def dial(network: str, weight: float) -> None:
        await turns.turn(network, weight)
        order.append(network)

    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(dial, "new", 1.0)
            nursery.start_soon(dial, "known", WORKED_WEIGHT)
    assert order[4:14].count("known") >= 7


@pytest.mark.parametrize(("networks", "most"), [(1, MOST_WAITING_OF_ONE), (64, MOST_WAITING // 64)])
async def test_what_is_beyond_a_short_queue_is_closed(
    autojump_clock: trio.testing.MockClock, networks: int, most: int
) -> None:
    turns, refused = HandshakeTurns(TEN_A_SECOND), list[str]()

    async def dial(network: str) -> None:
        try:
            await turns.turn(network)
        except CrowdedError:
            refused.append(network)

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            await turns.turn("first")
        # all networks wait before any has its second dial: trio starts tasks in any order
        for more in (1, 39):
            for number in more * list(range(networks)):
                nursery.start_soon(dial, str(number))
            await trio.testing.wait_all_tasks_blocked()
        assert refused.count("0") == 40 - most


async def test_who_waits_no_more_takes_no_turn(autojump_clock: trio.testing.MockClock) -> None:
    turns = HandshakeTurns(TEN_A_SECOND)
    for _ in range(2):
        await turns.turn("one")
    with trio.move_on_after(0.01):
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(turns.turn, "one")
    began = trio.current_time()
    await turns.turn("one")
    assert trio.current_time() - began < 0.11
    assert not turns._left


def test_an_idle_key_does_not_displace_others_again_and_again() -> None:
    """Once evicted unused, it is refused while there is no room, and accepted while there is."""
    gater = ConnectionGater(ConnectionLimits(strangers=2), knows=lambda peer: peer == "known")
    arrivals = {}
    for place, peer in enumerate(("idle", "b", "c")):
        arrivals[peer] = arrival = gater.arrive("127.0.0.1", 0.0)
        assert arrival is not None
        assert gater.keep_authenticated(arrival, peer, 0, place * 2 * NEW_S)
    now = 4 * NEW_S
    assert gater.evicted == 1
    assert not gater.welcome("idle", now)
    assert gater.welcome("newcomer", now)
    assert gater.welcome("idle", now + AWAY_S[0])
    gater.leave(arrivals["c"])
    assert gater.welcome("idle", now)


def test_an_address_from_which_a_connection_was_used_is_remembered() -> None:
    gater = ConnectionGater()
    for ip, used in (("192.0.2.1", True), ("198.51.100.1", False)):
        arrival = gater.arrive(ip, 0.0)
        assert arrival is not None
        assert gater.keep_authenticated(arrival, ip, 0, 0.0)
        if used:
            arrival.use.note(1.0, answered=False)
        gater.leave(arrival)
        assert gater.weight(ip) == (WORKED_WEIGHT if used else 1.0)
