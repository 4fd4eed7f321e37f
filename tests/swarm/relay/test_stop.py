"""The called node's side of circuits: which calls it accepts."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest
import trio
from libp2p.relay.circuit_v2.pb.circuit_pb2 import (
    OK,
    PERMISSION_DENIED,
    RESOURCE_LIMIT_EXCEEDED,
    StopMessage,
)
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as PeerMessage
from trio.testing import MockClock, memory_stream_pair

from protocol.errors import RemoteProtocolError
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.net.addresses import PeerId
from swarm.net.identity import Identity, peer_id_bytes
from swarm.net.network import Stream
from swarm.relay.client import (
    ASK_WITHIN_S,
    MAX_PENDING,
    MAX_PENDING_OF_CALLER,
    MAX_PENDING_OF_GATE,
    CircuitConn,
    StopServer,
)
from swarm.relay.data_connections import BOUND, ID_SIZE, MASK_SIZE, STAYS, Binding, Mask
from swarm.relay.wire import OWN_STOP, STOP, read_message, write_binding, write_message

BINDING = Binding(b"i" * ID_SIZE, b"m" * MASK_SIZE)


class Called:
    """A node, and how it handles calls."""

    def __init__(self, swarm: MemorySwarm) -> None:
        self.swarm = swarm
        self.gate = swarm.node(Identity.from_seed("gate"))
        self.gates = {self.gate.peer_id}
        self.network: MemoryNetwork = swarm.node(Identity.from_seed("called"))
        self.taken: list[tuple[CircuitConn, PeerId]] = []
        self.answer = trio.Event()
        self.over = trio.Event()
        self.connection: tuple[trio.abc.HalfCloseableStream, trio.abc.HalfCloseableStream] | None = None
        """Both ends of the data connection that it can open."""
        for protocol in (STOP, OWN_STOP):
            self.network.handle(protocol, StopServer(self.gates.__contains__, self._take, self._bind).serve)

    async def _bind(self, stream: Stream, binding: Binding) -> trio.abc.HalfCloseableStream | None:
        return None if self.connection is None else self.connection[0]

    async def _take(self, raw: CircuitConn, caller: PeerId) -> trio.Event:
        self.taken.append((raw, caller))
        await self.answer.wait()
        return self.over

    async def ring(self, caller: str, through: MemoryNetwork | None = None) -> tuple[Stream, int]:
        """Call through the gate; returns the stream and the answer's status."""
        peer = PeerMessage(id=peer_id_bytes(Identity.from_seed(caller).peer_id))
        stream = await (through or self.gate).open(self.network.peer_id, STOP, self.network.addresses)
        await write_message(stream, StopMessage(type=StopMessage.CONNECT, peer=peer))
        return stream, (await read_message(stream, StopMessage())).status

    async def ring_own(self, binding: Binding | None) -> tuple[Stream, int]:
        """Like `ring`, on our own protocol."""
        peer = PeerMessage(id=peer_id_bytes(Identity.from_seed("caller").peer_id))
        stream = await self.gate.open(self.network.peer_id, OWN_STOP, self.network.addresses)
        await write_message(stream, StopMessage(type=StopMessage.CONNECT, peer=peer))
        await write_binding(stream, binding)
        return stream, (await read_message(stream, StopMessage())).status


@pytest.fixture
async def called() -> AsyncIterator[Called]:
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm:
        yield Called(swarm)


async def test_a_call_becomes_a_connection_that_bytes_pass_on(
    autojump_clock: MockClock, called: Called
) -> None:
    stream, status = await called.ring("caller")
    assert status == OK
    ((raw, caller),) = called.taken
    assert caller == Identity.from_seed("caller").peer_id
    assert raw.get_remote_address() is None
    assert [str(address) for address in raw.get_transport_addresses()] == [
        f"/p2p/{called.gate.peer_id}/p2p-circuit"
    ]
    await stream.send_all(b"hello")
    assert await raw.read(3) == b"hel"
    assert await raw.read() == b"lo"
    await raw.write(b"hi")
    assert await stream.receive_some() == b"hi"
    await raw.close()
    await raw.close()
    assert await stream.receive_some() == b""


async def test_a_call_with_a_binding_becomes_a_data_connection_that_is_masked_until_it_is_secured(
    autojump_clock: MockClock, called: Called
) -> None:
    called.connection = memory_stream_pair()
    gates = called.connection[1]
    caller = Mask(BINDING.mask, initiator=True)
    stream, status = await called.ring_own(BINDING)
    assert status == OK
    assert await stream.receive_some() == BOUND
    assert await stream.receive_some() == b"", "the stream is not needed any more"
    ((raw, _),) = called.taken
    await gates.send_all(caller.send(b"hello"))
    assert await raw.read(3) == b"hel"
    assert await raw.read() == b"lo"
    await raw.write(b"hi")
    hidden = bytes(await gates.receive_some())
    assert hidden != b"hi"
    assert caller.receive(hidden) == b"hi"
    raw.secured()
    await raw.write(b"sealed")
    assert await gates.receive_some() == b"sealed"
    await gates.send_all(b"sealed, too")
    assert await raw.read() == b"sealed, too"
    await raw.close()
    await raw.close()
    assert await gates.receive_some() == b""


async def test_a_node_that_cannot_open_a_data_connection_stays_on_the_stream_under_the_mask(
    autojump_clock: MockClock, called: Called
) -> None:
    caller = Mask(BINDING.mask, initiator=True)
    stream, status = await called.ring_own(BINDING)
    assert status == OK
    assert await stream.receive_some(1) == STAYS
    ((raw, _),) = called.taken
    await stream.send_all(caller.send(b"hello"))
    assert await raw.read() == b"hello"
    await raw.write(b"hi")
    assert caller.receive(await stream.receive_some()) == b"hi"


async def test_a_data_connection_whose_caller_proves_to_be_somebody_else_is_closed(
    autojump_clock: MockClock,
) -> None:
    ours, gates = memory_stream_pair()

    async def refuse(raw: CircuitConn, caller: PeerId) -> trio.Event:
        raise RemoteProtocolError("somebody else")

    async def connect(stream: Stream, binding: Binding) -> trio.abc.HalfCloseableStream:
        return ours

    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm:
        gate, node = swarm.node(Identity.from_seed("gate")), swarm.node(Identity.from_seed("called"))
        node.handle(OWN_STOP, StopServer(lambda gate: True, refuse, connect).serve)
        stream = await gate.open(node.peer_id, OWN_STOP, node.addresses)
        caller = PeerMessage(id=peer_id_bytes(Identity.from_seed("caller").peer_id))
        await write_message(stream, StopMessage(type=StopMessage.CONNECT, peer=caller))
        await write_binding(stream, BINDING)
        with trio.fail_after(10):
            assert await gates.receive_some() == b""


async def test_only_gates_with_a_reservation_are_listened_to(autojump_clock: MockClock) -> None:
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm:
        called = Called(swarm)
        other = swarm.node(Identity.from_seed("other"))
        assert (await called.ring("caller", other))[1] == PERMISSION_DENIED
        assert called.taken == []


async def test_few_calls_are_secured_at_a_time_and_fewer_of_one_caller(
    autojump_clock: MockClock, called: Called
) -> None:
    flood = [(await called.ring("attacker"))[1] for _ in range(MAX_PENDING_OF_CALLER + 2)]
    assert flood == [OK] * MAX_PENDING_OF_CALLER + [RESOURCE_LIMIT_EXCEEDED] * 2
    assert (await called.ring("honest"))[1] == OK
    called.answer.set()
    await trio.sleep(0.1)
    assert (await called.ring("attacker"))[1] == OK
    assert MAX_PENDING_OF_CALLER < MAX_PENDING


async def test_a_gate_that_makes_up_callers_leaves_room_for_those_of_other_gates(
    autojump_clock: MockClock, called: Called
) -> None:
    other = called.swarm.node(Identity.from_seed("other gate"))
    called.gates.add(other.peer_id)
    flood = [(await called.ring(f"nobody {number}"))[1] for number in range(MAX_PENDING)]
    assert flood.count(OK) == MAX_PENDING_OF_GATE
    assert (await called.ring("honest", other))[1] == OK
    called.answer.set()
    await trio.sleep(0.1)
    assert (await called.ring("somebody"))[1] == OK


async def test_a_gate_that_talks_nonsense_or_too_slowly_is_dropped(
    autojump_clock: MockClock, called: Called
) -> None:
    for message in (
        StopMessage(type=StopMessage.STATUS, status=OK),
        StopMessage(type=StopMessage.CONNECT, peer=PeerMessage(id=b"nobody")),
    ):
        stream = await called.gate.open(called.network.peer_id, STOP, called.network.addresses)
        await write_message(stream, message)
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
    stream = await called.gate.open(called.network.peer_id, STOP)
    began = trio.current_time()
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some()
    assert trio.current_time() - began == pytest.approx(ASK_WITHIN_S, abs=0.5)
    assert called.taken == []
