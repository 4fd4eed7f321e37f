"""The gate's side of circuits, with streams of the simulated network on a clock that jumps: attacks, limits, silence."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Sequence

import pytest
import trio
from libp2p.relay.circuit_v2.pb.circuit_pb2 import (
    CONNECTION_FAILED,
    MALFORMED_MESSAGE,
    NO_RESERVATION,
    OK,
    PERMISSION_DENIED,
    RESERVATION_REFUSED,
    RESOURCE_LIMIT_EXCEEDED,
    HopMessage,
    StopMessage,
)
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as PeerMessage
from multiaddr import Multiaddr
from structlog.testing import capture_logs
from trio.testing import MockClock, memory_stream_pair

from protocol.errors import RemoteProtocolError, Unreachable
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.net.addresses import Address, PeerId
from swarm.net.identity import Identity, peer_id_bytes
from swarm.net.network import Stream
from swarm.net.reservations import CircuitEnd, DeclineReason, RelayLimits, RelayReservations
from swarm.relay.data_connections import (
    BOUND,
    MASK_SIZE,
    STAYS,
    Binding,
    DataConnections,
    Half,
    UnexpectedDataConnection,
    bind,
)
from swarm.relay.hop import ASK_WITHIN_S, CHOOSE_WITHIN_S, QUIET_S, RelayHop
from swarm.relay.wire import (
    HOP,
    MAX_MESSAGE,
    OWN_HOP,
    OWN_STOP,
    STOP,
    read_binding,
    read_message,
    write_message,
)

STRANGER = Identity.from_seed("stranger").peer_id


class Gate:
    """A gate in a simulated network, and requests to it."""

    def __init__(self, swarm: MemorySwarm, limits: RelayLimits) -> None:
        self.swarm = swarm
        self.network = swarm.node(Identity.from_seed("gate"))
        self.banned: set[PeerId] = set()
        self.halves = DataConnections()
        self.room = True
        """Whether it accepts data connections."""
        self.desk = RelayReservations(limits, lambda peer: peer not in self.banned)
        hop = RelayHop(
            self.network.peer_id,
            self.desk,
            self.halves,
            seen_at=self._seen_at,
            call=self._call,
            belongs=self._belongs,
            addresses=lambda: self.network.addresses,
            wall=lambda: 1_000_000.0,
        )
        self.network.handle(HOP, hop.serve)
        self.network.handle(OWN_HOP, hop.serve)

    def _seen_at(self, peer: PeerId) -> Address | None:
        return None if self.swarm.direct(self.network.peer_id, peer) is None else "/ip4/192.0.2.7/tcp/50000"

    async def _call(self, peer: PeerId, protocols: Sequence[str]) -> Stream:
        for protocol in protocols[:-1]:
            with contextlib.suppress(Unreachable):
                return await self.network.open(peer, protocol)
        return await self.network.open(peer, protocols[-1])

    async def _belongs(self, peer: PeerId) -> bool:
        return peer != STRANGER

    async def data_connection(self, binding: Binding) -> trio.abc.HalfCloseableStream | None:
        """The node's end of a data connection; None if the gate does not accept it."""
        ours, gates = memory_stream_pair()

        async def take() -> None:
            try:
                await self.halves.take(gates, lambda: self.room)
            except UnexpectedDataConnection:
                await gates.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            with contextlib.suppress(trio.BrokenResourceError):
                await bind(ours, binding)
                return ours
        return None

    async def open(self, node: MemoryNetwork, protocol: str = HOP) -> Stream:
        return await node.open(self.network.peer_id, protocol, self.network.addresses)

    async def ask(
        self, node: MemoryNetwork, message: HopMessage, protocol: str = HOP
    ) -> tuple[Stream, HopMessage]:
        stream = await self.open(node, protocol)
        await write_message(stream, message)
        return stream, await read_message(stream, HopMessage())

    async def reserve(self, node: MemoryNetwork, named: PeerId | None = None) -> HopMessage:
        peer = None if named is None else PeerMessage(id=peer_id_bytes(named))
        stream, answer = await self.ask(node, HopMessage(type=HopMessage.RESERVE, peer=peer))
        await stream.aclose()
        return answer

    async def connect(
        self, node: MemoryNetwork, target: PeerId, protocol: str = HOP
    ) -> tuple[Stream, HopMessage]:
        peer = PeerMessage(id=peer_id_bytes(target))
        return await self.ask(node, HopMessage(type=HopMessage.CONNECT, peer=peer), protocol)


class Called:
    """A node that accepts every call and echoes what arrives."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.callers: list[PeerMessage] = []
        self.silent = False
        self.bindings: list[Binding] = []
        self.over = trio.Event()
        """Set when a circuit on our own protocol has ended."""
        network.handle(STOP, self._answer)

    def binds(self, gate: Gate, *, lies: bool = False) -> None:
        """Open a data connection, if the gate accepts it. `lies`: the node only claims to."""

        async def answer(stream: Stream) -> None:
            await read_message(stream, StopMessage())
            binding = await read_binding(stream)
            assert binding is not None
            self.bindings.append(binding)
            half = None if lies else await gate.data_connection(binding)
            await write_message(stream, StopMessage(type=StopMessage.STATUS, status=OK))
            await stream.send_all(BOUND if half or lies else STAYS)
            half = half or stream
            try:
                while data := await half.receive_some():
                    await half.send_all(data)
            finally:
                self.over.set()

        self.network.handle(OWN_STOP, answer)

    async def _answer(self, stream: Stream) -> None:
        request = await read_message(stream, StopMessage())
        self.callers.append(request.peer)
        if self.silent:
            await trio.sleep_forever()
        await write_message(stream, StopMessage(type=StopMessage.STATUS, status=OK))
        while data := await stream.receive_some():
            await stream.send_all(data)


LIMITS = RelayLimits(circuit_bytes=4_000_000, circuit_s=3600, reservations=3, ttl_s=1800)


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm:
        yield Gate(swarm, LIMITS)


def node(gate: Gate, name: str) -> MemoryNetwork:
    return gate.swarm.node(Identity.from_seed(name), behind=name)


async def circuit(gate: Gate) -> tuple[Called, MemoryNetwork, Stream]:
    """A called node, its caller, and the circuit between them."""
    called, caller = Called(node(gate, "called")), node(gate, "caller")
    await gate.reserve(called.network)
    stream, answer = await gate.connect(caller, called.network.peer_id)
    assert answer.status == OK
    return called, caller, stream


async def talk(stream: Stream, body: bytes, *, pause_s: float = 0.0, listen: bool = True) -> None:
    """Send the same bytes forever, reading the echo or not."""
    while True:
        await stream.send_all(body)
        if listen:
            await stream.receive_some()
        await trio.sleep(pause_s)


async def ended(gate: Gate) -> RelayReservations:
    """The gate's reservations, once no circuit is left."""
    with trio.fail_after(10_000):
        while gate.desk.circuits:
            await trio.sleep(0.05)
    return gate.desk


async def test_a_reservation_states_its_time_its_limits_and_the_observed_address(
    autojump_clock: MockClock, gate: Gate
) -> None:
    answer = await gate.reserve(node(gate, "a"))
    assert (answer.status, answer.reservation.expire) == (OK, 1_001_800)
    assert (answer.limit.data, answer.limit.duration) == (4_000_000, 3600)
    assert [str(Multiaddr(raw)) for raw in answer.reservation.addrs] == [
        f"{gate.network.addresses[0]}/p2p/{gate.network.peer_id}"
    ]
    assert [str(Multiaddr(raw)) for raw in answer.peer.addrs] == ["/ip4/192.0.2.7/tcp/50000"]


async def test_a_reservation_in_the_name_of_another_is_a_reservation_of_ones_own(
    autojump_clock: MockClock, gate: Gate
) -> None:
    attacker, victim = node(gate, "attacker"), Identity.from_seed("victim").peer_id
    for number in range(5):
        await gate.reserve(attacker, Identity.from_seed(number).peer_id)
    await gate.reserve(attacker, victim)
    assert [slot.peer for slot in gate.desk.reservations(trio.current_time())] == [attacker.peer_id]
    assert not gate.desk.holds(victim, trio.current_time())


async def test_a_flood_of_reservations_takes_what_its_peer_may_and_no_more(
    autojump_clock: MockClock, gate: Gate
) -> None:
    attacker = node(gate, "attacker")
    answers = [(await gate.reserve(attacker)).status for _ in range(40)]
    assert answers.count(OK) < 15
    assert set(answers) == {OK, RESOURCE_LIMIT_EXCEEDED}
    assert len(gate.desk.reservations(trio.current_time())) == 1
    assert (await gate.reserve(node(gate, "honest"))).status == OK


async def test_a_full_gate_and_one_that_drains_say_so(autojump_clock: MockClock, gate: Gate) -> None:
    answers = [(await gate.reserve(node(gate, f"node {number}"))).status for number in range(4)]
    assert answers == [OK, OK, OK, RESOURCE_LIMIT_EXCEEDED]
    gate.desk.draining = True
    assert (await gate.reserve(node(gate, "late"))).status == RESERVATION_REFUSED


async def test_who_does_not_speak_our_protocols_gets_nothing(autojump_clock: MockClock, gate: Gate) -> None:
    stranger = node(gate, "stranger")
    assert (await gate.reserve(stranger)).status == PERMISSION_DENIED
    called = Called(node(gate, "called"))
    await gate.reserve(called.network)
    assert (await gate.connect(stranger, called.network.peer_id))[1].status == PERMISSION_DENIED
    assert called.callers == []


async def test_bytes_pass_both_ways_and_the_called_node_hears_who_calls_from_where(
    autojump_clock: MockClock, gate: Gate
) -> None:
    called, caller, stream = await circuit(gate)
    body = random.Random(1).randbytes(400_000)
    got = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, body)
        while len(got) < len(body):
            got += await stream.receive_some()
    assert got == body
    (result,) = called.callers
    assert result.id == peer_id_bytes(caller.peer_id)
    assert [str(Multiaddr(raw)) for raw in result.addrs] == ["/ip4/192.0.2.7/tcp/50000"]
    await stream.send_eof()
    assert await stream.receive_some() == b""
    after = await ended(gate)
    assert (after.bytes, after.ended) == (800_000, {CircuitEnd.CLOSED: 1})


async def test_a_circuit_ends_when_its_bytes_are_used_up(autojump_clock: MockClock, gate: Gate) -> None:
    _, _, stream = await circuit(gate)
    with pytest.raises(trio.BrokenResourceError):
        await talk(stream, bytes(50_000))
    after = await ended(gate)
    assert after.ended == {CircuitEnd.BYTES: 1}
    assert after.bytes <= LIMITS.circuit_bytes


async def test_all_circuits_together_keep_to_the_gates_bytes_a_second(autojump_clock: MockClock) -> None:
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm:
        gate = Gate(swarm, RelayLimits(bytes_per_s=100_000))
        _, _, stream = await circuit(gate)
        began = trio.current_time()
        await stream.send_all(bytes(500_000))
        got = 0
        while got < 500_000:
            got += len(await stream.receive_some())
        assert trio.current_time() - began == pytest.approx(
            10, abs=1.2
        )  # there and back; a second's worth passes at once


async def test_a_circuit_ends_when_its_time_is_up(autojump_clock: MockClock, gate: Gate) -> None:
    _, _, stream = await circuit(gate)
    began = trio.current_time()
    with pytest.raises(trio.BrokenResourceError):
        await talk(stream, b"x", pause_s=30)
    assert trio.current_time() - began == pytest.approx(LIMITS.circuit_s, abs=31)
    assert (await ended(gate)).ended == {CircuitEnd.TIME: 1}


async def test_an_idle_circuit_ends(autojump_clock: MockClock, gate: Gate) -> None:
    _, _, stream = await circuit(gate)
    began = trio.current_time()
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some()
    assert trio.current_time() - began == pytest.approx(QUIET_S, abs=1)
    assert (await ended(gate)).ended == {CircuitEnd.IDLE: 1}


@pytest.mark.parametrize("who", ["caller", "called"])
async def test_the_circuit_of_a_peer_that_is_served_no_longer_ends_with_its_next_byte(
    autojump_clock: MockClock, gate: Gate, who: str
) -> None:
    _, _, stream = await circuit(gate)
    await stream.send_all(b"x")
    assert await stream.receive_some() == b"x"
    gate.banned.add(Identity.from_seed(who).peer_id)
    await stream.send_all(b"y")
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some()
    assert (await ended(gate)).ended == {CircuitEnd.NOT_ALLOWED: 1}


async def test_a_peer_that_takes_nothing_loses_its_circuit(autojump_clock: MockClock, gate: Gate) -> None:
    _, _, stream = await circuit(gate)
    with pytest.raises(trio.BrokenResourceError):
        await talk(stream, bytes(60_000), listen=False)
    assert (await ended(gate)).ended == {CircuitEnd.IDLE: 1}


async def test_a_caller_that_vanishes_takes_its_circuit_along(autojump_clock: MockClock, gate: Gate) -> None:
    _, caller, _ = await circuit(gate)
    gate.swarm.kill(caller.peer_id)
    assert (await ended(gate)).ended == {CircuitEnd.CLOSED: 1}


async def own_circuit(
    gate: Gate, called: Called, *, binds: bool = True
) -> tuple[Stream, Binding | None, Half]:
    """A circuit requested on our own protocol: the stream, the binding, the caller's half."""
    caller = node(gate, "caller")
    await gate.reserve(called.network)
    stream, answer = await gate.connect(caller, called.network.peer_id, OWN_HOP)
    assert answer.status == OK
    binding = await read_binding(stream)
    if binding is None:
        return stream, None, stream
    half = await gate.data_connection(binding) if binds else None
    await stream.send_all(STAYS if half is None else BOUND)
    return stream, binding, half or stream


@pytest.mark.parametrize("caller_binds", [True, False])
@pytest.mark.parametrize("called_binds", [True, False])
async def test_each_half_is_a_data_connection_or_stays_on_its_stream_under_one_mask(
    autojump_clock: MockClock, gate: Gate, caller_binds: bool, called_binds: bool
) -> None:
    called = Called(node(gate, "called"))
    gate.room = called_binds
    called.binds(gate)
    await gate.reserve(called.network)
    caller = node(gate, "caller")
    stream, _ = await gate.connect(caller, called.network.peer_id, OWN_HOP)
    binding = await read_binding(stream)
    gate.room = caller_binds
    assert binding is not None
    assert binding.mask == called.bindings[0].mask != bytes(MASK_SIZE)
    assert binding.id != called.bindings[0].id
    bound = await gate.data_connection(binding)
    assert (bound is not None) == caller_binds
    half: Half = bound or stream
    await stream.send_all(BOUND if bound else STAYS)
    await half.send_all(b"hello")
    assert await half.receive_some() == b"hello"
    if bound:
        assert await stream.receive_some() == b"", "the stream is not needed any more"
    await half.send_eof()
    assert await half.receive_some() == b""
    after = await ended(gate)
    assert (after.bytes, after.ended, called.callers) == (10, {CircuitEnd.CLOSED: 1}, [])


async def test_an_id_is_good_until_its_circuit_is_established(autojump_clock: MockClock, gate: Gate) -> None:
    called = Called(node(gate, "called"))
    gate.room = False
    called.binds(gate)
    _, binding, half = await own_circuit(gate, called)
    await half.send_all(b"hello")
    assert await half.receive_some() == b"hello"
    gate.room = True
    for late in (binding, *called.bindings):
        assert late is not None
        assert await gate.data_connection(late) is None


async def test_limits_are_those_of_streams(autojump_clock: MockClock, gate: Gate) -> None:
    called = Called(node(gate, "called"))
    called.binds(gate)
    _, _, half = await own_circuit(gate, called)

    async def talk_for_ever() -> None:
        while True:
            await half.send_all(bytes(50_000))
            await half.receive_some()

    with pytest.raises(trio.BrokenResourceError):
        await talk_for_ever()
    after = await ended(gate)
    assert after.ended == {CircuitEnd.BYTES: 1}
    assert after.bytes <= LIMITS.circuit_bytes


async def test_a_called_node_of_another_implementation_knows_of_no_mask(
    autojump_clock: MockClock, gate: Gate
) -> None:
    called = Called(node(gate, "called"))
    stream, binding, _ = await own_circuit(gate, called)
    assert binding is None
    await stream.send_all(b"hello")
    assert await stream.receive_some() == b"hello"
    assert len(called.callers) == 1


async def test_a_caller_of_another_implementation_has_a_circuit_of_streams(
    autojump_clock: MockClock, gate: Gate
) -> None:
    called = Called(node(gate, "called"))
    called.binds(gate)
    caller = node(gate, "caller")
    await gate.reserve(called.network)
    stream, answer = await gate.connect(caller, called.network.peer_id)
    assert answer.status == OK
    await stream.send_all(b"hello")
    assert await stream.receive_some() == b"hello"
    assert called.bindings == []


@pytest.mark.parametrize("how", ["says nothing", "goes", "lies", "says nonsense", "binds and says nonsense"])
async def test_a_caller_without_its_half_has_no_circuit(
    autojump_clock: MockClock, gate: Gate, how: str
) -> None:
    called, caller = Called(node(gate, "called")), node(gate, "caller")
    called.binds(gate)
    await gate.reserve(called.network)
    began = trio.current_time()
    stream, _ = await gate.connect(caller, called.network.peer_id, OWN_HOP)
    binding = await read_binding(stream)
    assert binding is not None
    if how.startswith("binds"):
        assert await gate.data_connection(binding)
    if how == "goes":
        await stream.reset()
    elif how != "says nothing":
        await stream.send_all(BOUND if how == "lies" else b"?")
    with trio.move_on_after(CHOOSE_WITHIN_S - 1) as moved:
        await ended(gate)
    assert moved.cancelled_caught == (how == "says nothing")
    after = await ended(gate)
    assert trio.current_time() - began < CHOOSE_WITHIN_S + 1
    assert (after.connected, after.ended, after.bytes) == (0, {}, 0)
    assert await gate.data_connection(binding) is None


async def test_who_was_called_by_a_caller_without_its_half_learns_of_it(
    autojump_clock: MockClock, gate: Gate
) -> None:
    called, caller = Called(node(gate, "called")), node(gate, "caller")
    gate.room = False
    called.binds(gate)
    await gate.reserve(called.network)
    stream, _ = await gate.connect(caller, called.network.peer_id, OWN_HOP)
    await read_binding(stream)
    await stream.send_all(BOUND)
    with trio.fail_after(1):
        await called.over.wait()


async def test_a_called_node_without_its_half_has_not_accepted(autojump_clock: MockClock, gate: Gate) -> None:
    called, caller = Called(node(gate, "called")), node(gate, "caller")
    called.binds(gate, lies=True)
    await gate.reserve(called.network)
    _, answer = await gate.connect(caller, called.network.peer_id, OWN_HOP)
    assert answer.status == CONNECTION_FAILED
    after = await ended(gate)
    assert (after.connected, after.declined) == (0, {DeclineReason.TARGET_SILENT: 1})


async def test_who_is_not_there_is_not_called(autojump_clock: MockClock, gate: Gate) -> None:
    caller, gone = node(gate, "caller"), Called(node(gate, "gone"))
    assert (await gate.connect(caller, gone.network.peer_id))[1].status == NO_RESERVATION
    await gate.reserve(gone.network)
    gate.swarm.kill(gone.network.peer_id)
    assert (await gate.connect(caller, gone.network.peer_id))[1].status == NO_RESERVATION
    assert gate.desk.reservations(trio.current_time()) == ()


async def test_a_called_node_that_does_not_answer_costs_the_caller_a_few_seconds_and_nothing_else(
    autojump_clock: MockClock,
    gate: Gate,
) -> None:
    called, caller = Called(node(gate, "called")), node(gate, "caller")
    called.silent = True
    await gate.reserve(called.network)
    began = trio.current_time()
    _, answer = await gate.connect(caller, called.network.peer_id)
    assert answer.status == CONNECTION_FAILED
    assert trio.current_time() - began < 10
    after = await ended(gate)
    assert (after.connected, after.declined) == (0, {DeclineReason.TARGET_SILENT: 1})


async def test_who_says_its_question_too_slowly_is_dropped(autojump_clock: MockClock, gate: Gate) -> None:
    slow = node(gate, "slow")
    stream = await gate.open(slow)
    began = trio.current_time()
    with pytest.raises(trio.BrokenResourceError):
        await talk(stream, b"\xff", pause_s=ASK_WITHIN_S / 2, listen=False)
    assert trio.current_time() - began < 2 * ASK_WITHIN_S
    assert gate.desk.declined == {DeclineReason.MALFORMED: 1}


@pytest.mark.parametrize(
    "body",
    [
        (MAX_MESSAGE + 1).to_bytes(2, "big"),
        b"\x81\x80\x80\x80\x01",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x81\x20" + bytes(MAX_MESSAGE + 1),
        b"\x05\xff\xff\xff\xff\xff",
    ],
    ids=["too large by one", "a long length", "a huge length", "too large with its body", "no message"],
)
async def test_what_is_too_large_or_no_message_resets_the_stream_unread(
    autojump_clock: MockClock, gate: Gate, body: bytes
) -> None:
    stream = await gate.open(node(gate, "attacker"))
    if body[0] < 0x80 and len(body) == 2:
        body = bytes([0x81, 0x20])  # 4097 as a varint
    await stream.send_all(body)
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some()
    assert gate.desk.declined == {DeclineReason.MALFORMED: 1}


async def test_a_message_of_an_unknown_type_is_answered_and_is_no_error_of_ours(
    autojump_clock: MockClock, gate: Gate
) -> None:
    stream = await gate.open(node(gate, "attacker"))
    with capture_logs() as logs:
        await stream.send_all(b"\x02\x08\x4d")
        answer = await read_message(stream, HopMessage())
    assert (answer.type, answer.status) == (HopMessage.STATUS, MALFORMED_MESSAGE)
    assert gate.desk.declined == {DeclineReason.MALFORMED: 1}
    assert not [line for line in logs if line["log_level"] not in {"debug", "info"}]


async def test_a_call_for_somebody_whose_id_makes_no_sense_is_refused(
    autojump_clock: MockClock, gate: Gate
) -> None:
    asker = node(gate, "asker")
    for raw in (b"", b"\x12\x20" + bytes(32), bytes(4000)):
        _, answer = await gate.ask(asker, HopMessage(type=HopMessage.CONNECT, peer=PeerMessage(id=raw)))
        assert answer.status not in {OK, NO_RESERVATION}
    _, answer = await gate.ask(asker, HopMessage(type=HopMessage.STATUS, status=OK))
    assert answer.status != OK


async def test_an_answer_that_is_cut_off_is_no_answer(autojump_clock: MockClock, gate: Gate) -> None:
    """How the reader of messages treats an end in the middle of a message."""
    node_a, node_b = node(gate, "a"), gate.swarm.node(Identity.from_seed("b"))

    async def half(stream: Stream) -> None:
        await stream.send_all(b"\x10half")

    node_b.handle("/test/half/1", half)
    stream = await node_a.open(node_b.peer_id, "/test/half/1", node_b.addresses)
    with pytest.raises(RemoteProtocolError, match="Incomplete message"):
        await read_message(stream, HopMessage())
