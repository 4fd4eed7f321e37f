"""Data connections: which connections a gate accepts as half of a circuit, and what an eavesdropper sees of their first bytes."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from trio.testing import memory_stream_pair

from swarm.relay.data_connections import (
    ID_SIZE,
    MARK,
    MASK_SIZE,
    Binding,
    DataConnections,
    ExpectedConnection,
    Mask,
    UnexpectedDataConnection,
    bind,
)


def room() -> bool:
    return True


def no_room() -> bool:
    return False


def binding(expected: ExpectedConnection) -> Binding:
    return Binding(expected.id, bytes(MASK_SIZE))


@pytest.fixture
def halves() -> DataConnections:
    return DataConnections()


@pytest.fixture
async def sockets() -> AsyncIterator[tuple[trio.SocketStream, trio.SocketStream]]:
    """The node's end, and the gate's."""
    one, other = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair())
    async with one, other:
        yield one, other


async def bound(halves: DataConnections, name: Binding, admit: object = room) -> bool:
    """Whether the gate accepts a connection with this name."""
    node, gate = memory_stream_pair()

    async def serve() -> None:
        assert callable(admit)
        try:
            await halves.take(gate, admit)
        except UnexpectedDataConnection:
            await gate.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        try:
            await bind(node, name)
        except trio.BrokenResourceError:
            return False
    return True


async def test_an_expected_connection_carries_bytes_both_ways(halves: DataConnections) -> None:
    node, gate = memory_stream_pair()
    with halves.expect() as expected:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(halves.take, gate, room)
            await bind(node, binding(expected))
            half = expected.stream
        assert half is gate
        await node.send_all(b"hello")
        assert await half.receive_some(100) == b"hello"
        await half.send_all(b"hi")
        assert await node.receive_some(100) == b"hi"


async def test_an_id_is_good_for_one_connection_and_until_its_circuit_is_given_up(
    halves: DataConnections,
) -> None:
    with halves.expect() as expected, halves.expect() as other, halves.expect() as late:
        assert not await bound(halves, Binding(bytes(ID_SIZE), bytes(MASK_SIZE))), "nobody's"
        assert await bound(halves, binding(expected))
        assert not await bound(halves, binding(expected)), "used"
        assert other.id != expected.id
        halves.drop(late)
        assert not await bound(halves, binding(late)), "its circuit goes on without it"
    assert not await bound(halves, binding(other)), "over"
    assert expected.over.is_set()
    assert other.over.is_set()


async def test_a_gate_without_room_takes_none(halves: DataConnections) -> None:
    with halves.expect() as expected:
        assert not await bound(halves, binding(expected), no_room)
        assert await bound(halves, binding(expected)), "it is still expected"


async def test_an_id_may_come_byte_by_byte_and_must_come_whole(halves: DataConnections) -> None:
    with halves.expect() as expected:
        for whole in (False, True):
            node, gate = memory_stream_pair()
            taken: list[bool] = []

            async def take(stream: trio.abc.HalfCloseableStream, taken: list[bool]) -> None:
                try:
                    taken.append(await halves.take(stream, room) is expected)
                except UnexpectedDataConnection:
                    taken.append(False)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(take, gate, taken)
                for byte in MARK + expected.id[:-1] + expected.id[-1:] * whole:
                    await node.send_all(bytes([byte]))
                    await trio.testing.wait_all_tasks_blocked()
                await node.send_eof()
            assert taken == [whole]


async def test_nothing_is_read_of_a_connection_of_another_kind(
    halves: DataConnections, sockets: tuple[trio.SocketStream, trio.SocketStream]
) -> None:
    node, gate = sockets
    await node.send_all(b"\x13/multistream/1.0.0\n")
    assert await halves.recognise(gate, room) is None
    assert await gate.receive_some(100) == b"\x13/multistream/1.0.0\n"


async def test_a_connection_that_ends_before_it_said_anything_is_of_another_kind(
    halves: DataConnections, sockets: tuple[trio.SocketStream, trio.SocketStream]
) -> None:
    node, gate = sockets
    await node.aclose()
    assert await halves.recognise(gate, room) is None


async def test_a_data_connection_is_over_when_its_circuit_ends(
    halves: DataConnections, sockets: tuple[trio.SocketStream, trio.SocketStream]
) -> None:
    node, gate = sockets
    over: list[trio.Event | None] = []

    async def recognise() -> None:
        over.append(await halves.recognise(gate, room))

    with halves.expect() as expected:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recognise)
            await bind(node, binding(expected))
        assert expected.stream is gate
        assert over[0] is not None
        assert not over[0].is_set()
    assert over[0].is_set()


@pytest.mark.parametrize("size", [1, ID_SIZE, ID_SIZE + MASK_SIZE - 1, ID_SIZE + MASK_SIZE + 1])
def test_a_binding_has_one_length(size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} bytes"):
        Binding.parse(bytes(size))


def test_a_binding_is_read_as_it_was_written() -> None:
    written = Binding(b"i" * ID_SIZE, b"m" * MASK_SIZE)
    assert Binding.parse(written.to_bytes()) == written
    assert Binding.parse(b"") is None


def test_a_mask_hides_what_each_says_and_the_other_reads_it_in_any_pieces() -> None:
    key, said = random.Random(1).randbytes(MASK_SIZE), b"/multistream/1.0.0" * 9
    caller, called = Mask(key, initiator=True), Mask(key, initiator=False)
    for one, other in ((caller, called), (called, caller)):
        hidden = one.send(said[:50]) + one.send(said[50:])
        assert not {hidden[at : at + 4] for at in range(len(hidden))} & {
            said[at : at + 4] for at in range(18)
        }
        assert other.receive(hidden[:7]) + other.receive(hidden[7:]) == said
    assert caller.send(bytes(32)) != called.send(bytes(32)), "what one says cannot be sent back to it"
