"""Nodes behind NATs in the simulated network, and the gates through which they are called."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from protocol.errors import Refused, Unreachable
from protocol.words import Reason
from swarm.memory.network import NOTICE_S, MemoryNetwork, MemorySwarm
from swarm.net.identity import Identity
from swarm.net.network import Path, Stream
from swarm.net.reservations import RelayLimits, RelayReservations

ECHO = "/test/echo/1"


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


def field(
    swarm: MemorySwarm, limits: RelayLimits | None = None
) -> tuple[MemoryNetwork, MemoryNetwork, MemoryNetwork]:
    """A gate, a node at home, and one at the office."""
    gate = swarm.node(Identity.from_seed("gate"))
    home = swarm.node(Identity.from_seed("home"), behind="home")
    office = swarm.node(Identity.from_seed("office"), behind="office")
    gate.serve_relay(RelayReservations(limits))
    home.handle(ECHO, echo)
    return gate, home, office


async def test_a_node_behind_a_nat_is_reached_by_its_circuit_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm:
        gate, home, office = field(swarm)
        with pytest.raises(Unreachable):
            await office.open(home.peer_id, ECHO, home.addresses)
        place = await home.reserve(gate.peer_id, gate.addresses)
        assert home.reservations() == (place,)
        stream = await office.open(home.peer_id, ECHO, (*home.addresses, place.address))
        await stream.send_all(b"hello")
        assert await stream.receive_some() == b"hello"
        assert office.path(home.peer_id) == Path(False, gate.peer_id, 40.0)
        assert home.path(office.peer_id) == Path(False, gate.peer_id, 40.0)
        assert (office.remote_address(home.peer_id), home.remote_address(office.peer_id)) == (None, None)
        assert set(office.connected()) == {gate.peer_id, home.peer_id}


async def test_neighbours_behind_one_nat_dial_each_other(autojump_clock: trio.testing.MockClock) -> None:
    async with MemorySwarm(random.Random(1)) as swarm:
        _, home, _ = field(swarm)
        other = swarm.node(Identity.from_seed("other"), behind="home")
        await other.connect(home.peer_id, home.addresses)
        assert other.path(home.peer_id) == Path(True, None, 0.0)


async def test_new_streams_take_the_direct_link_once_there_is_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with MemorySwarm(random.Random(1)) as swarm:
        gate, home, office = field(swarm)
        place = await home.reserve(gate.peer_id, gate.addresses)
        old = await office.open(home.peer_id, ECHO, [place.address])
        swarm.punch(home.peer_id, office.peer_id)
        new = await office.open(home.peer_id, ECHO, [place.address])
        assert office.path(home.peer_id) == Path(True, None, 0.0)
        swarm.kill(gate.peer_id)
        await new.send_all(b"still here")
        assert await new.receive_some() == b"still here"
        with pytest.raises(trio.BrokenResourceError):
            await old.send_all(b"gone with the gate")


async def test_a_gate_that_comes_back_lends_nothing_until_it_is_asked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with MemorySwarm(random.Random(1)) as swarm:
        gate, home, office = field(swarm)
        place = await home.reserve(gate.peer_id, gate.addresses)
        swarm.kill(gate.peer_id)
        assert home.reservations() == ()
        back = swarm.node(Identity.from_seed("gate"))
        back.serve_relay(RelayReservations())
        circuit = place.address.replace(gate.addresses[0], back.addresses[0])
        with pytest.raises(Unreachable, match="no-reservation"):
            await office.open(home.peer_id, ECHO, [circuit])
        await home.reserve(back.peer_id, back.addresses)
        await office.open(home.peer_id, ECHO, [circuit])


async def test_a_silent_cut_ends_reservations_and_circuits(autojump_clock: trio.testing.MockClock) -> None:
    async with MemorySwarm(random.Random(1)) as swarm:
        gate, home, office = field(swarm)
        place = await home.reserve(gate.peer_id, gate.addresses)
        stream = await office.open(home.peer_id, ECHO, [place.address])
        swarm.cut_silently(home.peer_id, gate.peer_id)
        assert home.reservations() == (place,)
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        assert trio.current_time() == pytest.approx(NOTICE_S, abs=0.1)
        assert home.reservations() == ()
        assert office.path(home.peer_id) is None


async def test_a_full_gate_refuses_and_another_helps(autojump_clock: trio.testing.MockClock) -> None:
    async with MemorySwarm(random.Random(1)) as swarm:
        gate, home, office = field(swarm, RelayLimits(reservations=0))
        second = swarm.node(Identity.from_seed("second gate"))
        second.serve_relay(RelayReservations())
        with pytest.raises(Refused) as caught:
            await home.reserve(gate.peer_id, gate.addresses)
        assert caught.value.reason is Reason.OVERLOADED
        place = await home.reserve(second.peer_id, second.addresses)
        dead = f"{gate.addresses[0]}/p2p/{gate.peer_id}/p2p-circuit"
        await office.open(home.peer_id, ECHO, [dead, place.address])
        assert office.path(home.peer_id) == Path(False, second.peer_id, 0.0)


async def test_a_node_that_is_no_gate_lends_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with MemorySwarm(random.Random(1)) as swarm:
        _, home, _ = field(swarm)
        plain = swarm.node(Identity.from_seed("plain"))
        with pytest.raises(Unreachable):
            await home.reserve(plain.peer_id, plain.addresses)
