"""Circuits between real nodes on loopback: a gate with a port, and nodes without one that nobody can dial."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from dataclasses import field as field_
from functools import partial

import pytest
import trio
from libp2p.custom_types import TProtocol
from libp2p.relay.circuit_v2.pb.circuit_pb2 import OK, PERMISSION_DENIED, HopMessage

from protocol.errors import Refused, Unreachable
from protocol.words import Reason
from swarm.join.host import HostNetwork, open_host
from swarm.net.addresses import parse_tcp
from swarm.net.identity import Identity
from swarm.net.limits import Pauses
from swarm.net.network import Stream
from swarm.net.reservations import CircuitEnd, RelayLimits, RelayReservations
from swarm.relay import client
from swarm.relay.client import UNBOUND_S
from swarm.relay.data_connections import ID_SIZE, MARK, MASK_SIZE, Binding
from swarm.relay.wire import HOP, OWN_STOP, read_message, write_message

ECHO = "/sark/echo/1"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


async def round_trip(stream: Stream, body: bytes = b"hello") -> bool:
    """Whether all bytes come back."""
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
    """Wait for a condition that becomes true by itself; the test's own deadline limits the wait."""
    while not condition():
        await trio.sleep(0.01)


class Field:
    """Nodes that can be started and stopped one by one."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._scopes: dict[str, tuple[trio.CancelScope, trio.Event]] = {}

    async def start(self, name: str, listen: str = "") -> HostNetwork:
        """Start a node; without `listen` it has no port, and nobody can dial it."""

        async def run(*, task_status: trio.TaskStatus[HostNetwork]) -> None:
            ended = trio.Event()
            with trio.CancelScope() as scope:
                self._scopes[name] = (scope, ended)
                listening = [listen] if listen else []
                async with open_host(Identity.from_seed(name), listen=listening) as network:
                    network.handle(ECHO, echo)
                    task_status.started(network)
                    await trio.sleep_forever()
            ended.set()

        network: HostNetwork = await self._nursery.start(run)
        return network

    async def gate(
        self, name: str = "gate", limits: RelayLimits | None = None, listen: str = LOOPBACK
    ) -> tuple[HostNetwork, RelayReservations]:
        """Start a node that relays."""
        network, server = await self.start(name, listen), RelayReservations(limits)
        network.serve_relay(server)
        return network, server

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


@pytest.mark.parametrize(("protocol", "status"), [(ECHO, OK), ("/others/echo/1", PERMISSION_DENIED)])
async def test_a_peer_of_another_implementation_is_asked_which_protocols_it_speaks(
    protocol: str, status: int
) -> None:
    """It has used none of our protocols, and identifies itself to nobody unless it is asked."""
    listening = open_host(Identity.from_seed("gate"), listen=[LOOPBACK])
    async with listening as gate, open_host(Identity.from_seed("other")) as other:
        gate.serve_relay(RelayReservations())
        other.handle(protocol, echo)
        stream = await other.open(gate.peer_id, HOP, gate.addresses)
        await write_message(stream, HopMessage(type=HopMessage.RESERVE))
        assert (await read_message(stream, HopMessage())).status == status


async def test_a_node_without_a_port_is_reached_by_its_circuit_alone(field: Field) -> None:
    gate, server = await field.gate()
    node, caller = await field.start("node"), await field.start("caller")
    assert node.addresses == ()
    with pytest.raises(Unreachable):
        await caller.connect(node.peer_id, node.addresses)
    place = await node.reserve(gate.peer_id, gate.addresses)
    assert place.address == f"{gate.addresses[0]}/p2p/{gate.peer_id}/p2p-circuit"
    assert place.ttl_s == pytest.approx(server.limits.ttl_s, abs=5)
    assert node.reservations() == (place,)
    stream = await caller.open(node.peer_id, ECHO, [place.address])
    assert stream.peer == node.peer_id
    assert await round_trip(stream, random.Random(1).randbytes(2_000_000))
    for one, other in ((caller, node), (node, caller)):
        path = one.path(other.peer_id)
        assert path is not None
        assert (path.direct, path.via) == (False, gate.peer_id)
        assert one.remote_address(other.peer_id) is None
    assert server.bytes > 4_000_000
    assert [slot.peer for slot in server.reservations(trio.current_time())] == [node.peer_id]


@dataclass
class Wire:
    """Records the data connections that nodes opened: the first bytes of each node, until the other end answered."""

    connections: int = 0
    said: bytearray = field_(default_factory=bytearray)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    seen, bind = Wire(), client.RelayClient.bind

    async def tapped(
        relays: client.RelayClient, stream: Stream, binding: Binding
    ) -> trio.SocketStream | None:
        half = await bind(relays, stream, binding)
        if half is not None:
            seen.connections += 1
            send = half.send_all

            async def heard(data: bytes | bytearray | memoryview) -> None:
                seen.said += data
                await send(data)

            monkeypatch.setattr(half, "send_all", heard)
        return half

    monkeypatch.setattr(client.RelayClient, "bind", tapped)
    return seen


@pytest.mark.parametrize(
    ("which", "connections"),
    [
        ("all are ours", 2),
        ("a caller of another implementation", 0),
        ("a called node of another implementation", 0),
        ("a gate without room for any", 0),
        ("a gate with room for one", 1),
        ("a called node that can open no other connection", 1),
        ("a caller that can open no other connection", 1),
    ],
)
async def test_a_circuit_has_data_connections_where_there_can_be_any_and_streams_elsewhere(
    field: Field, monkeypatch: pytest.MonkeyPatch, wire: Wire, which: str, connections: int
) -> None:
    gate, server = await field.gate(limits=RelayLimits(circuits=1, connect_burst=1, connect_every_s=1e9))
    node, caller = await field.start("node"), await field.start("caller")
    place = await node.reserve(gate.peer_id, gate.addresses)
    await caller.connect(gate.peer_id, gate.addresses)
    if which == "a caller of another implementation":
        monkeypatch.setattr("swarm.relay.client.OWN_HOP", HOP)

        async def none(stream: Stream) -> None:
            return None

        monkeypatch.setattr("swarm.relay.client.read_binding", none)
    elif which == "a called node of another implementation":
        node.host.multiselect.remove_handler(TProtocol(OWN_STOP))
    elif which.startswith("a gate with"):
        monkeypatch.setattr(gate.swarm.gater, "carry", lambda arrival: wire.connections < connections)
    elif connections == 1:
        mute = caller if which.startswith("a caller") else node
        mute._relays.client._unbound.failed(gate.peer_id, trio.current_time())
    stream = await caller.open(node.peer_id, ECHO, [place.address])
    assert await round_trip(stream, random.Random(1).randbytes(500_000))
    path = caller.path(node.peer_id)
    assert path is not None
    assert (path.direct, path.via) == (False, gate.peer_id)
    assert wire.connections == connections
    assert len(wire.said) >= 500_000 * connections
    assert b"/noise" not in wire.said, "who calls whom is masked"
    await caller.disconnect(node.peer_id)
    await until(lambda: not server.circuits)
    assert server.ended == {CircuitEnd.CLOSED: 1}


@pytest.mark.parametrize("patience", ["the node's", "the caller's"])
async def test_a_second_connection_that_goes_nowhere_is_tried_once_whoever_loses_patience(
    field: Field, monkeypatch: pytest.MonkeyPatch, patience: str
) -> None:
    """A firewall drops packets that do not belong to a connection it knows."""
    tried: list[str] = []

    async def dropped(host: str, port: int) -> trio.SocketStream:
        tried.append(host)
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(client, "BIND_S", 0.2 if patience == "the node's" else 60.0)
    monkeypatch.setattr(client, "MOST_BIND_S", 60.0)
    monkeypatch.setattr(client, "CANCELLED_S", 0.1)
    gate, _ = await field.gate()
    node, caller = await field.start("node"), await field.start("caller")
    place = await node.reserve(gate.peer_id, gate.addresses)
    await caller.connect(gate.peer_id, gate.addresses)
    node._relays.client._unbound.failed(gate.peer_id, trio.current_time())
    monkeypatch.setattr(trio, "open_tcp_stream", dropped)
    if patience == "the caller's":
        with pytest.raises(Unreachable):
            await caller.open(node.peer_id, ECHO, [place.address], max_wait_s=1.0)
    for _ in range(2):
        stream = await caller.open(node.peer_id, ECHO, [place.address])
        assert await round_trip(stream)
        await caller.disconnect(node.peer_id)
    assert tried == ["127.0.0.1"]


async def test_a_gate_that_takes_no_second_connection_is_left_alone_for_a_while(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, _ = await field.gate()
    caller = await field.start("caller")
    stream = await caller.open(gate.peer_id, ECHO, gate.addresses)
    relays, tried = caller._relays.client, 0
    nobodys = Binding(bytes(ID_SIZE), bytes(MASK_SIZE))
    bind, now = client.bind, trio.current_time()

    async def counted(stream: trio.abc.Stream, binding: Binding) -> None:
        nonlocal tried
        tried += 1
        await bind(stream, binding)

    monkeypatch.setattr(client, "bind", counted)
    for _ in range(3):
        assert await relays.bind(stream, nobodys) is None
    assert tried == 1
    assert relays._unbound.pauses(gate.peer_id, now + UNBOUND_S[0] - 1)
    assert not relays._unbound.pauses(gate.peer_id, now + UNBOUND_S[0] + 10)
    relays._unbound.worked(gate.peer_id)

    async def taken(stream: trio.abc.Stream, binding: Binding) -> None: ...

    monkeypatch.setattr(client, "bind", taken)
    half = await relays.bind(stream, nobodys)
    assert half is not None
    await half.aclose()
    relays._unbound.failed(gate.peer_id, now)
    assert await relays.bind(stream, nobodys) is None
    monkeypatch.setattr(relays, "_unbound", Pauses(0.0, 0.0, most=1))
    relays._unbound.failed(gate.peer_id, now)
    half = await relays.bind(stream, nobodys)
    assert half is not None
    await half.aclose()
    assert relays._unbound._failed == {}, "it works now"


async def test_who_is_at_work_on_a_circuit_is_at_work_for_its_gate(field: Field) -> None:
    """Otherwise it would leave for a newcomer before an idle peer does."""
    gate, _ = await field.gate()
    node, caller = await field.start("node"), await field.start("caller")
    place = await node.reserve(gate.peer_id, gate.addresses)
    stream = await caller.open(node.peer_id, ECHO, [place.address])
    uses = [arrival.use for arrival in gate.swarm.gater._staying]
    assert len(uses) == 2
    before = trio.current_time()
    assert await round_trip(stream)
    await until(lambda: all(use.used_at > before for use in uses))


async def test_a_data_connection_whose_end_stays_on_its_stream_ends(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate's answer came too late for the node."""
    bind, late = client.RelayClient.bind, list[trio.SocketStream | None]()

    async def too_late(relays: client.RelayClient, stream: Stream, binding: Binding) -> None:
        late.append(await bind(relays, stream, binding))

    monkeypatch.setattr(client.RelayClient, "bind", too_late)
    gate, _ = await field.gate()
    node, caller = await field.start("node"), await field.start("caller")
    place = await node.reserve(gate.peer_id, gate.addresses)
    assert await round_trip(await caller.open(node.peer_id, ECHO, [place.address]))
    for half in late:
        assert half is not None
        assert await half.receive_some() == b""
        await half.aclose()
    await until(lambda: gate.swarm.gater._held.total() == 2)


async def test_circuits_take_no_place_of_peers(field: Field) -> None:
    gate, _ = await field.gate()
    node, caller = await field.start("node"), await field.start("caller")
    place = await node.reserve(gate.peer_id, gate.addresses)
    await caller.connect(gate.peer_id, gate.addresses)
    free = gate.swarm._inbound_limiter.available_tokens
    assert await round_trip(await caller.open(node.peer_id, ECHO, [place.address]))
    assert gate.swarm._inbound_limiter.available_tokens == free
    await caller.disconnect(node.peer_id)
    await until(lambda: gate.swarm.gater._held.total() == 2)
    assert gate.swarm._inbound_limiter.available_tokens == free


async def test_who_says_nothing_to_a_gate_is_done_with_in_the_time_of_a_handshake(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, _ = await field.gate()
    gate.swarm.connection_config.inbound_upgrade_timeout = 0.2
    where = parse_tcp(gate.addresses[0])
    assert where is not None
    for said in (b"", MARK, MARK + bytes(ID_SIZE), MARK + bytes(ID_SIZE - 1)):
        async with await trio.open_tcp_stream(where.host, where.port) as stranger:
            if said:
                await stranger.send_all(said)
            assert await stranger.receive_some() == b""
    await until(lambda: gate.swarm.gater._held.total() == 0)
    assert gate.swarm._inbound_limiter.borrowed_tokens == 0


async def test_circuits_leave_no_connection_behind(field: Field) -> None:
    gate, server = await field.gate()
    node, caller = await field.start("node"), await field.start("caller")
    place = await node.reserve(gate.peer_id, gate.addresses)
    await caller.connect(gate.peer_id, gate.addresses)
    gater = gate.swarm.gater
    await until(lambda: gater._held.total() == 2)
    for _ in range(3):
        assert await round_trip(await caller.open(node.peer_id, ECHO, [place.address]))
        assert (gater._held.total(), gater._carrying.total()) == (4, 2)
        await caller.disconnect(node.peer_id)
        await until(lambda: gater._held.total() == 2)
    assert (gater._carrying.total(), server.circuits) == (0, {})


async def test_a_circuit_lives_on_when_its_nodes_connection_with_the_gate_ends(field: Field) -> None:
    gate, server = await field.gate()
    node, caller = await field.start("node"), await field.start("caller")
    place = await node.reserve(gate.peer_id, gate.addresses)
    stream = await caller.open(node.peer_id, ECHO, [place.address])
    await node.disconnect(gate.peer_id)
    await caller.disconnect(gate.peer_id)
    await until(lambda: server.reservations(trio.current_time()) == ())
    assert await round_trip(stream, random.Random(1).randbytes(100_000))


async def test_a_gate_neither_reads_nor_alters_what_it_carries(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, evil = bytearray(), trio.Event()

    class Tap:
        """Reads everything, and changes one byte."""

        def __init__(self, source: trio.SocketStream, sink: trio.SocketStream, *, at_once: bool) -> None:
            self.source, self.sink, self.data = source, sink, b""

        async def take(self, within_s: float) -> int:
            self.data = bytes(await self.source.receive_some(65_536))
            seen.extend(self.data)
            return len(self.data)

        async def give(self, within_s: float) -> None:
            changed = bytes([*self.data[:-1], self.data[-1] ^ 1])
            await self.sink.send_all(changed if evil.is_set() else self.data)

    monkeypatch.setattr("swarm.relay.hop.passage", Tap)
    gate, _ = await field.gate()
    node, caller = await field.start("node"), await field.start("caller")
    place = await node.reserve(gate.peer_id, gate.addresses)
    stream = await caller.open(node.peer_id, ECHO, [place.address])
    assert await round_trip(stream, 1000 * b"a model of ours")
    assert len(seen) > 2 * 15_000
    assert b"of ours" not in seen

    evil.set()
    try:
        came_back = await round_trip(stream, b"altered")
    except* trio.BrokenResourceError:
        came_back = False
    assert not came_back


async def test_several_nodes_are_called_and_call_each_other_at_once(field: Field) -> None:
    gate, server = await field.gate()
    nodes = [await field.start(f"node {number}") for number in range(3)]
    places = [await node.reserve(gate.peer_id, gate.addresses) for node in nodes]

    async def talk(caller: HostNetwork, called: HostNetwork, circuit: str) -> None:
        stream = await caller.open(called.peer_id, ECHO, [circuit])
        assert await round_trip(stream, random.Random(2).randbytes(100_000))
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        for caller in nodes:
            for called, place in zip(nodes, places, strict=True):
                if called is not caller:
                    nursery.start_soon(talk, caller, called, place.address)
    assert all(len(node.connected()) == 3 for node in nodes)
    assert not any(server.declined.values())


async def test_a_caller_reaches_forty_nodes_through_one_gate_at_once(field: Field) -> None:
    """As a scheduler does: more streams than one peer may open before they are read."""
    (gate, _), caller = await field.gate(), await field.start("caller")
    nodes = [await field.start(f"node {number}") for number in range(40)]
    addresses = [(await node.reserve(gate.peer_id, gate.addresses)).address for node in nodes]
    async with trio.open_nursery() as nursery:
        for node, address in zip(nodes, addresses, strict=True):
            nursery.start_soon(partial(caller.open, node.peer_id, ECHO, [address], max_wait_s=20.0))
    assert all(node.peer_id in caller.connected() for node in nodes)


async def test_a_pair_that_meets_again_and_again_leaves_no_dead_circuits(field: Field) -> None:
    gate, server = await field.gate()
    node = await field.start("node")
    place = await node.reserve(gate.peer_id, gate.addresses)
    for turn in range(4):
        caller = await field.start("caller")
        stream = await caller.open(node.peer_id, ECHO, [place.address])
        assert await round_trip(stream)
        if turn % 2:
            await caller.disconnect(node.peer_id)
            stream = await caller.open(node.peer_id, ECHO, [place.address])
            assert await round_trip(stream)
        await field.stop("caller")
    await until(lambda: not server.circuits)
    await until(lambda: node.connected() == (gate.peer_id,))
    assert server.ended == {CircuitEnd.CLOSED: 6}


async def test_a_circuit_that_has_carried_enough_breaks_and_the_next_one_works(field: Field) -> None:
    gate, server = await field.gate(limits=RelayLimits(circuit_bytes=200_000))
    node, caller = await field.start("node"), await field.start("caller")
    place = await node.reserve(gate.peer_id, gate.addresses)
    stream = await caller.open(node.peer_id, ECHO, [place.address])
    with pytest.raises((trio.BrokenResourceError, ExceptionGroup)):
        await round_trip(stream, bytes(1_000_000))
    await until(lambda: server.ended == {CircuitEnd.BYTES: 1})
    again = await caller.open(node.peer_id, ECHO, [place.address])
    assert await round_trip(again)


async def test_a_gate_that_is_restarted_has_forgotten_and_says_so(field: Field) -> None:
    gate, _ = await field.gate()
    (address,) = gate.addresses
    node, caller = await field.start("node"), await field.start("caller")
    place = await node.reserve(gate.peer_id, gate.addresses)
    await caller.open(node.peer_id, ECHO, [place.address])
    await field.stop("gate")
    await until(lambda: node.reservations() == ())
    await until(lambda: caller.connected() == ())
    with pytest.raises(Unreachable):
        await caller.connect(node.peer_id, [place.address])
    gate, server = await field.gate(listen=address)
    await node.connect(gate.peer_id, gate.addresses)
    assert node.reservations() == ()
    with pytest.raises(Unreachable, match="has no reservation"):
        await caller.connect(node.peer_id, [place.address])
    place = await node.reserve(gate.peer_id, gate.addresses)
    assert await round_trip(await caller.open(node.peer_id, ECHO, [place.address]))
    assert server.reserved == 1


async def test_a_reservation_ends_with_its_nodes_connection(field: Field) -> None:
    gate, server = await field.gate()
    node = await field.start("node")
    await node.reserve(gate.peer_id, gate.addresses)
    await node.disconnect(gate.peer_id)
    assert node.reservations() == ()
    await until(lambda: server.reservations(trio.current_time()) == ())


async def test_a_full_gate_refuses_and_the_other_gates_circuit_is_taken(field: Field) -> None:
    full, _ = await field.gate("full", RelayLimits(reservations=0))
    gate, _ = await field.gate()
    node, caller = await field.start("node"), await field.start("caller")
    with pytest.raises(Refused) as caught:
        await node.reserve(full.peer_id, full.addresses)
    assert caught.value.reason is Reason.OVERLOADED
    place = await node.reserve(gate.peer_id, gate.addresses)
    other = f"{full.addresses[0]}/p2p/{full.peer_id}/p2p-circuit"
    await caller.connect(node.peer_id, [other, place.address])
    path = caller.path(node.peer_id)
    assert path is not None
    assert path.via == gate.peer_id


async def test_a_node_that_lends_nothing_is_no_gate(field: Field) -> None:
    plain, node = await field.start("plain", LOOPBACK), await field.start("node")
    with pytest.raises(Unreachable):
        await node.reserve(plain.peer_id, plain.addresses)


async def test_a_direct_connection_is_preferred_to_a_circuit(field: Field) -> None:
    gate, server = await field.gate()
    node, caller = await field.start("node", LOOPBACK), await field.start("caller")
    place = await node.reserve(gate.peer_id, gate.addresses)
    await caller.connect(node.peer_id, [place.address, *node.addresses])
    path = caller.path(node.peer_id)
    assert path is not None
    assert path.direct
    assert server.connected == 0


async def test_calls_from_a_gate_without_a_reservation_are_refused(field: Field) -> None:
    gate, server = await field.gate()
    node, caller = await field.start("node"), await field.start("caller")
    await node.reserve(gate.peer_id, gate.addresses)
    evil, evil_desk = await field.gate("evil")
    await node.connect(evil.peer_id, evil.addresses)
    evil_desk.reserve(node.peer_id, "127.0.0.1", trio.current_time())  # only in the gate's own books
    with pytest.raises(Unreachable, match="did not accept the circuit"):
        await caller.connect(node.peer_id, [f"{evil.addresses[0]}/p2p/{evil.peer_id}/p2p-circuit"])
    assert server.connected == 0
