"""What a gate passes from one half of a circuit to the other, over real sockets: whole, in order, and without any foreign bytes."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from swarm.relay import passing
from swarm.relay.passing import Passage, passage

Pair = tuple[trio.SocketStream, trio.SocketStream]
"""A node's end of a connection, and the gate's."""


@pytest.fixture
async def pair() -> AsyncIterator[Callable[[], Pair]]:
    async with AsyncExitStack() as stack:

        def make() -> Pair:
            one, other = (
                trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair()
            )
            for end in (one, other):
                stack.push_async_exit(end)
            return one, other

        yield make


@pytest.fixture(params=["spliced", "copied"])
def spliced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the kernel moves the bytes."""
    if request.param == "copied":
        monkeypatch.setattr(passing, "shared_pipe", lambda: None, raising=False)
    return bool(request.param == "spliced")


async def pump(way: Passage) -> None:
    while await way.take(5):
        await way.give(5)


async def receive(stream: trio.SocketStream, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        got += await stream.receive_some(size - len(got))
    return bytes(got)


async def test_two_circuits_keep_apart_whatever_their_readers_do(
    pair: Callable[[], Pair], spliced: bool
) -> None:
    bodies = [random.Random(number).randbytes(3_000_000) for number in range(2)]
    got: dict[int, bytes] = {}

    async def read(number: int, stream: trio.SocketStream, most: int) -> None:
        parts = bytearray()
        while len(parts) < len(bodies[number]):
            parts += await stream.receive_some(most)
            await trio.lowlevel.checkpoint()
        got[number] = bytes(parts)

    async with trio.open_nursery() as nursery:
        for number, most in enumerate((100_000, 7_000)):
            (caller, entry), (exit_, called) = pair(), pair()
            nursery.start_soon(pump, passage(entry, exit_, at_once=True))
            nursery.start_soon(read, number, called, most)
            nursery.start_soon(caller.send_all, bodies[number])
        while len(got) < 2:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert [got[number] == body for number, body in enumerate(bodies)] == [True, True]


async def test_what_a_circuit_may_not_carry_any_more_never_shows_in_another(
    pair: Callable[[], Pair], spliced: bool
) -> None:
    (one, entry), (exit_, _) = pair(), pair()
    await one.send_all(b"of a circuit at its limit")
    assert await passage(entry, exit_, at_once=True).take(60) == 25

    (other, entry), (exit_, called) = pair(), pair()
    await other.send_all(b"mine")
    way = passage(entry, exit_, at_once=True)
    assert await way.take(60) == 4
    await way.give(60)
    assert await called.receive_some(100) == b"mine"


async def test_the_end_is_passed_on_by_whoever_asked(pair: Callable[[], Pair], spliced: bool) -> None:
    (one, entry), (exit_, called) = pair(), pair()
    way = passage(entry, exit_, at_once=True)
    await one.send_all(b"last")
    await one.send_eof()
    assert await way.take(60) == 4
    await way.give(60)
    assert await way.take(60) == 0
    await called.send_all(b"the other way goes on")
    assert await receive(exit_, 21) == b"the other way goes on"


@pytest.mark.parametrize("here", [False, True])
async def test_a_half_that_is_gone_breaks_the_way(
    pair: Callable[[], Pair], spliced: bool, here: bool
) -> None:
    (one, entry), (exit_, called) = pair(), pair()
    way = passage(entry, exit_, at_once=True)
    await one.send_all(b"to nobody")
    await way.take(60)
    await (exit_ if here else called).aclose()
    with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
        await way.give(60)
    await entry.aclose()
    with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
        await way.take(60)


async def test_a_source_that_is_closed_while_it_is_waited_for_breaks_the_way(
    pair: Callable[[], Pair], spliced: bool
) -> None:
    (_, entry), (exit_, _) = pair(), pair()
    broke = trio.Event()

    async def take() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await passage(entry, exit_, at_once=True).take(60)
        broke.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()
        await entry.aclose()
    assert broke.is_set()


async def test_who_says_nothing_and_who_takes_nothing_is_waited_for_so_long(
    autojump_clock: MockClock, pair: Callable[[], Pair], spliced: bool
) -> None:
    (one, entry), (exit_, _) = pair(), pair()
    way, began = passage(entry, exit_, at_once=True), trio.current_time()
    with pytest.raises(trio.TooSlowError):
        await way.take(90)
    assert trio.current_time() - began == pytest.approx(90)

    async def send_on() -> None:
        while True:
            await one.send_all(bytes(100_000))
            await way.take(90)
            await way.give(30)

    with pytest.raises(trio.TooSlowError):
        await send_on()
    assert trio.current_time() - began == pytest.approx(120)


@pytest.mark.parametrize(("size", "rounds"), [(50_000, 200), (1, 320)])
async def test_others_have_their_turn_however_much_comes_at_a_time(
    pair: Callable[[], Pair], spliced: bool, size: int, rounds: int
) -> None:
    (one, entry), (exit_, called) = pair(), pair()
    way, turns = passage(entry, exit_, at_once=True), 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(rounds):
            one.socket._sock.send(bytes(size))
            await way.take(60)
            await way.give(60)
            called.socket._sock.recv(size)
        nursery.cancel_scope.cancel()
    assert turns > 5


async def test_urgent_bytes_do_not_make_the_gate_spin(autojump_clock: MockClock) -> None:
    """`splice` stops at an urgent byte, and the socket stays readable."""
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    host, port = listener.socket.getsockname()[:2]
    one, other = await trio.open_tcp_stream(host, port), await trio.open_tcp_stream(host, port)
    entry, exit_ = await listener.accept(), await listener.accept()
    async with one, other, entry, exit_, listener:
        way = passage(entry, exit_, at_once=True)
        await one.socket.send(b"hello", socket.MSG_OOB)
        await one.socket.send(b"more")
        got = b""
        while len(got) < 8:
            await way.take(60)
            await way.give(60)
            got += await other.receive_some(100)
        assert got == b"hellmore"
        began = trio.current_time()
        with pytest.raises(trio.TooSlowError):
            await way.take(60)
        assert trio.current_time() - began == pytest.approx(60)
