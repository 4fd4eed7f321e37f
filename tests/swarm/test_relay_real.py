"""Circuits between real nodes on loopback: a gate with a port, and nodes without one that nobody can dial."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable

import pytest
import trio

from protocol.errors import Unreachable
from swarm.host import HostNetwork, open_host
from swarm.identity import Identity
from swarm.network import Stream
from swarm.relay_desk import RelayDesk, RelayLimits, RelaySnapshot

ECHO = "/sark/echo/1"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


async def round_trip(stream: Stream, body: bytes = b"hello") -> bool:
    """Does all of it come back?"""
    received = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, body)
        while len(received) < len(body):
            data = await stream.receive_some()
            if not data:
                return False
            received += data
    return received == body


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that comes about by itself; the test's own deadline bounds it."""
    while not condition():
        await trio.sleep(0.01)


class Field:
    """Nodes that can be started and stopped one by one."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._scopes: dict[str, tuple[trio.CancelScope, trio.Event]] = {}

    async def start(self, name: str, listen: str = "") -> HostNetwork:
        """A node; without `listen` it has no port, and nobody can dial it."""

        async def run(*, task_status: trio.TaskStatus[HostNetwork]) -> None:
            ended = trio.Event()
            with trio.CancelScope() as scope:
                self._scopes[name] = (scope, ended)
                listening = [listen] if listen else []
                async with open_host(
                    Identity.from_seed(name), listen=listening, server=bool(listen)
                ) as network:
                    network.handle(ECHO, echo)
                    task_status.started(network)
                    await trio.sleep_forever()
            ended.set()

        network: HostNetwork = await self._nursery.start(run)
        return network

    async def gate(
        self, name: str = "gate", limits: RelayLimits | None = None, listen: str = LOOPBACK
    ) -> tuple[HostNetwork, RelayDesk]:
        """A node that lends."""
        network, desk = await self.start(name, listen), RelayDesk(limits)
        network.serve_relay(desk)
        return network, desk

    async def stop(self, name: str) -> None:
        """Stop a node and wait until it is gone."""
        scope, ended = self._scopes.pop(name)
        scope.cancel()
        await ended.wait()


@pytest.fixture
async def field() -> AsyncIterator[Field]:
    async with trio.open_nursery() as nursery:
        with trio.fail_after(20):
            yield Field(nursery)
        nursery.cancel_scope.cancel()


def seen(desk: RelayDesk) -> RelaySnapshot:
    return desk.snapshot(trio.current_time())


async def test_a_node_without_a_port_is_reached_by_its_circuit_alone(field: Field) -> None:
    gate, desk = await field.gate()
    node, caller = await field.start("node"), await field.start("caller")
    assert node.addresses == ()
    with pytest.raises(Unreachable):
        await caller.connect(node.peer_id, node.addresses)
    place = await node.reserve(gate.peer_id, gate.addresses)
    assert place.address == f"{gate.addresses[0]}/p2p/{gate.peer_id}/p2p-circuit"
    assert (place.limit_bytes, place.limit_s) == (desk.limits.circuit_bytes, desk.limits.circuit_s)
    assert place.ttl_s == pytest.approx(desk.limits.ttl_s, abs=5)
    assert node.reservations() == (place,)
    stream = await caller.open(node.peer_id, ECHO, [place.address])
    assert stream.peer == node.peer_id
    assert await round_trip(stream, random.Random(1).randbytes(2_000_000))
    for one, other in ((caller, node), (node, caller)):
        path = one.path(other.peer_id)
        assert path is not None
        assert (path.direct, path.via) == (False, gate.peer_id)
        assert one.remote_address(other.peer_id) is None
    assert seen(desk).bytes > 4_000_000
    assert [slot.peer for slot in seen(desk).slots] == [node.peer_id]
