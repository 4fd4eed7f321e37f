"""How a gate ends: its circuits get a grace, and a second request ends it at once. The clock jumps."""

from __future__ import annotations

import trio
import trio.testing

from gate.service import DrainSignals, drain
from swarm.join.node import END_OF_INPUT
from swarm.net.reservations import CircuitEnd, DeclineReason, RelayReservations, ReservationDeclined

GRACE_S = 30.0
BEHIND, CALLER, LATE = "behind", "caller", "late"


def busy_relay() -> RelayReservations:
    """A gate that relays a circuit between `CALLER` and `BEHIND`."""
    relay = RelayReservations()
    relay.reserve(BEHIND, "192.0.2.1", trio.current_time())
    relay.begin(CALLER, "192.0.2.2", BEHIND, trio.current_time())
    return relay


async def test_a_gate_through_which_nothing_goes_ends_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    relay = RelayReservations()
    relay.reserve(
        BEHIND, "192.0.2.1", 0.0
    )  # a reservation alone delays nothing, because other gates grant one
    began = trio.current_time()
    assert await drain(relay, GRACE_S, trio.Event()) == "no circuit was left"
    assert trio.current_time() == began


async def test_what_runs_may_go_on_until_the_grace_is_over(autojump_clock: trio.testing.MockClock) -> None:
    relay, began = busy_relay(), trio.current_time()
    assert await drain(relay, GRACE_S, trio.Event()) == "the grace period ended"
    assert trio.current_time() - began == GRACE_S


async def test_it_ends_as_soon_as_the_last_circuit_has(autojump_clock: trio.testing.MockClock) -> None:
    relay = busy_relay()
    circuit = relay.begin(CALLER, "192.0.2.2", BEHIND, trio.current_time())
    other = next(iter(relay.circuits))
    began = trio.current_time()

    async def speak() -> None:
        await trio.sleep(3)
        relay.end(other, CircuitEnd.CLOSED)
        await trio.sleep(4)
        relay.end(circuit, CircuitEnd.CLOSED)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(speak)
        assert await drain(relay, GRACE_S, trio.Event()) == "no circuit was left"
    assert 7 <= trio.current_time() - began < 8


async def test_while_it_drains_it_lends_nothing_new(autojump_clock: trio.testing.MockClock) -> None:
    relay = busy_relay()
    refused: list[DeclineReason] = []

    async def come_late() -> None:
        await trio.sleep(1)
        for ask in (
            lambda: relay.reserve(LATE, "192.0.2.3", trio.current_time()),
            lambda: relay.begin(LATE, "192.0.2.3", BEHIND, trio.current_time()),
        ):
            try:
                ask()
            except ReservationDeclined as no:
                refused.append(DeclineReason(str(no)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come_late)
        await drain(relay, 5.0, trio.Event())
    assert refused == [DeclineReason.DRAINING, DeclineReason.DRAINING]


async def test_a_second_stop_ends_it_at_once(autojump_clock: trio.testing.MockClock) -> None:
    relay, stops, began = busy_relay(), DrainSignals(), trio.current_time()

    async def impatient() -> None:
        stops.request("SIGINT")
        await trio.sleep(2)
        stops.request("SIGTERM")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(impatient)
        await stops.first.wait()
        assert await drain(relay, GRACE_S, stops.again) == "another signal"
    assert trio.current_time() - began == 2
    assert stops.name == "SIGINT"


async def test_without_a_grace_nothing_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    relay = busy_relay()
    assert await drain(relay, 0.0, trio.Event()) == "the grace period ended"


def test_the_first_request_names_itself_and_the_second_is_another() -> None:
    stops = DrainSignals()
    stops.request("SIGTERM")
    assert (stops.name, stops.first.is_set(), stops.again.is_set()) == ("SIGTERM", True, False)
    stops.request("SIGTERM")
    assert stops.again.is_set()


def test_the_end_of_input_is_final() -> None:
    stops = DrainSignals()
    stops.request(END_OF_INPUT)
    assert stops.first.is_set()
    assert stops.again.is_set()
