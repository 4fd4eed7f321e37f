"""The promises of `swarm.net.network`, tested on both implementations of its interface: libp2p on loopback, and the simulated network."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from protocol.errors import LocalProtocolError, Unreachable
from swarm.join.host import open_host
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.memory.streams import MemoryStream
from swarm.net.identity import Identity, verify
from swarm.net.network import Network, Stream
from swarm.net.reservations import RelayReservations
from swarm.p2p.stream import NodeStream

ECHO = "/test/echo/1"
Start = Callable[[int], Awaitable[Network]]
"""Starts the node with this number; it can be dialled when the call returns."""


@asynccontextmanager
async def memory_nodes() -> AsyncIterator[Start]:
    async with MemorySwarm(random.Random(1), latency_s=0.001) as swarm:

        async def start(number: int) -> Network:
            return swarm.node(Identity.from_seed(number))

        yield start


@asynccontextmanager
async def libp2p_nodes() -> AsyncIterator[Start]:
    async with trio.open_nursery() as nursery:

        async def run(number: int, *, task_status: trio.TaskStatus[Network]) -> None:
            identity = Identity.from_seed(number)
            async with open_host(identity, listen=["/ip4/127.0.0.1/tcp/0"]) as network:
                task_status.started(network)
                await trio.sleep_forever()

        async def start(number: int) -> Network:
            network: Network = await nursery.start(run, number)
            return network

        yield start
        nursery.cancel_scope.cancel()


@pytest.fixture(params=[memory_nodes, libp2p_nodes], ids=["memory", "libp2p"])
async def start(request: pytest.FixtureRequest) -> AsyncIterator[Start]:
    async with request.param() as starter:
        with trio.fail_after(15):
            yield starter


async def echo(stream: Stream) -> None:
    """Send back what arrives until the other side has finished."""
    while data := await stream.receive_some():
        await stream.send_all(data)


async def read_all(stream: Stream) -> bytes:
    """Read everything until the end of the stream."""
    parts = bytearray()
    while data := await stream.receive_some():
        parts += data
    return bytes(parts)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that becomes true by itself; the test's own deadline limits the wait."""
    while not condition():
        await trio.sleep(0.005)


async def pair(start: Start) -> tuple[Network, Network]:
    """Two nodes, of which the second dials."""
    return await start(1), await start(2)


async def test_what_is_sent_comes_back_in_order_from_the_proved_peer(start: Start) -> None:
    server, client = await pair(start)
    callers: list[str] = []

    async def named_echo(stream: Stream) -> None:
        callers.append(stream.peer)
        await echo(stream)

    server.handle(ECHO, named_echo)
    stream = await client.open(server.peer_id, ECHO, server.addresses)
    body = random.Random(7).randbytes(3_000_000)
    received = bytearray()

    async def send() -> None:
        await stream.send_all(body)
        await stream.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        received += await read_all(stream)
    assert received == body
    assert callers == [client.peer_id]
    assert (stream.peer, stream.protocol) == (server.peer_id, ECHO)
    await stream.aclose()


async def test_a_half_closed_stream_can_still_be_read(start: Start) -> None:
    server, client = await pair(start)

    async def answer_at_the_end(stream: Stream) -> None:
        request = await read_all(stream)
        await stream.send_all(b"got " + request)

    server.handle(ECHO, answer_at_the_end)
    stream = await client.open(server.peer_id, ECHO, server.addresses)
    await stream.send_all(b"this")
    await stream.send_eof()
    with pytest.raises(trio.ClosedResourceError):
        await stream.send_all(b"more")
    assert await read_all(stream) == b"got this"
    assert await stream.receive_some() == b""


async def test_what_was_sent_before_closing_arrives(start: Start) -> None:
    server, client = await pair(start)
    sent = b"x" * 200_000

    async def give(stream: Stream) -> None:
        await stream.send_all(sent)

    server.handle(ECHO, give)
    stream = await client.open(server.peer_id, ECHO, server.addresses)
    assert await read_all(stream) == sent


async def test_a_reset_breaks_the_other_end(start: Start) -> None:
    server, client = await pair(start)

    async def reset(stream: Stream) -> None:
        await stream.receive_some()
        await stream.reset()

    server.handle(ECHO, reset)
    stream = await client.open(server.peer_id, ECHO, server.addresses)
    await stream.send_all(b"hello")
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some()
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"hello")
    await stream.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await stream.receive_some()


async def test_closing_wakes_our_own_reader(start: Start) -> None:
    server, client = await pair(start)
    server.handle(ECHO, echo)
    stream = await client.open(server.peer_id, ECHO, server.addresses)

    async def close_soon() -> None:
        await trio.testing.wait_all_tasks_blocked()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(close_soon)
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some()


async def test_a_peer_that_sends_to_a_closed_stream_gets_an_error(start: Start) -> None:
    server, client = await pair(start)
    event = trio.Event()

    async def send_for_ever(stream: Stream) -> None:
        try:
            while True:
                await stream.send_all(bytes(10_000))
        except trio.BrokenResourceError:
            event.set()
            raise

    server.handle(ECHO, send_for_ever)
    stream = await client.open(server.peer_id, ECHO, server.addresses)
    await stream.receive_some()
    await stream.aclose()
    await event.wait()


async def test_disconnecting_breaks_the_streams_of_both(start: Start) -> None:
    server, client = await pair(start)
    ended: list[str] = []

    async def wait(stream: Stream) -> None:
        try:
            await stream.receive_some()
        except trio.BrokenResourceError:
            ended.append(stream.peer)
            raise

    server.handle(ECHO, wait)
    stream = await client.open(server.peer_id, ECHO, server.addresses)
    assert client.connected() == (server.peer_id,)
    assert server.connected() == (client.peer_id,)
    await trio.testing.wait_all_tasks_blocked(0.05)
    await client.disconnect(server.peer_id)
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some()
    await until(lambda: ended == [client.peer_id])
    await until(lambda: (client.connected(), server.connected()) == ((), ()))


async def test_a_writer_waits_for_a_reader_that_does_not_read(start: Start) -> None:
    server, client = await pair(start)
    go = trio.Event()
    total = 20 * 65_507
    received = 0

    async def read_late(stream: Stream) -> None:
        nonlocal received
        await go.wait()
        received = len(await read_all(stream))

    server.handle(ECHO, read_late)
    stream = await client.open(server.peer_id, ECHO, server.addresses)
    sent = 0

    async def send() -> None:
        nonlocal sent
        for _ in range(20):
            await stream.send_all(bytes(65_507))
            sent += 65_507
        await stream.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert 0 < sent <= 5 * 65_507  # the window is 256 KiB
        go.set()
    await until(lambda: received == total)


async def test_a_cancelled_read_loses_nothing(start: Start) -> None:
    server, client = await pair(start)
    server.handle(ECHO, echo)
    stream = await client.open(server.peer_id, ECHO, server.addresses)
    body = random.Random(3).randbytes(400_000)
    received = bytearray()

    async def send() -> None:
        for at in range(0, len(body), 4_000):
            await stream.send_all(body[at : at + 4_000])
        await stream.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        ended = False
        while not ended:
            with trio.move_on_after(0.0005):
                data = await stream.receive_some(1_500)
                ended = not data
                received += data
    assert received == body


async def test_a_protocol_nobody_handles_is_unreachable(start: Start) -> None:
    server, client = await pair(start)
    with pytest.raises(Unreachable):
        await client.open(server.peer_id, "/test/nothing/1", server.addresses)
    assert client.connected() == (server.peer_id,)


async def test_a_peer_without_a_known_address_is_unreachable(start: Start) -> None:
    server, client = await pair(start)
    with pytest.raises(Unreachable, match="address"):
        await client.connect(server.peer_id, ())


async def test_another_peer_at_the_address_is_not_taken_for_the_one_that_was_asked_for(start: Start) -> None:
    server, client = await pair(start)
    stranger = Identity.from_seed("somebody else")
    with pytest.raises(Unreachable):
        await client.connect(stranger.peer_id, server.addresses)
    assert client.connected() == ()


async def test_a_dead_address_beside_a_live_one_does_no_harm(start: Start) -> None:
    server, client = await pair(start)
    dead = "/ip4/127.0.0.1/tcp/1"
    await client.connect(server.peer_id, [dead, *server.addresses])
    assert client.connected() == (server.peer_id,)


async def test_a_node_does_not_dial_itself(start: Start) -> None:
    node = await start(1)
    with pytest.raises(Unreachable, match="itself"):
        await node.connect(node.peer_id, node.addresses)


async def test_the_path_to_a_peer_is_direct_or_through_a_gate_or_none(start: Start) -> None:
    gate, node = await pair(start)
    caller = await start(3)
    gate.serve_relay(RelayReservations())
    with pytest.raises(LocalProtocolError):
        gate.serve_relay(RelayReservations())
    node.handle("/sark/echo/1", echo)
    assert node.path(gate.peer_id) is None
    assert node.reservations() == ()
    caller.handle("/sark/echo/1", echo)
    place = await node.reserve(gate.peer_id, gate.addresses)
    assert (place.gate, node.reservations()) == (gate.peer_id, (place,))
    assert place.address.startswith(gate.addresses[0])
    direct = node.path(gate.peer_id)
    assert direct is not None
    assert (direct.direct, direct.via) == (True, None)
    stream = await caller.open(node.peer_id, "/sark/echo/1", [place.address])
    await stream.send_all(b"ping")
    assert await stream.receive_some() == b"ping"
    relayed = caller.path(node.peer_id)
    assert relayed is not None
    assert (relayed.direct, relayed.via) == (False, gate.peer_id)
    assert caller.remote_address(node.peer_id) is None
    assert caller.remote_address(gate.peer_id) is not None
    await caller.disconnect(node.peer_id)
    assert caller.path(node.peer_id) is None


async def test_a_reservation_at_a_node_that_offers_none_is_unreachable(start: Start) -> None:
    plain, node = await pair(start)
    with pytest.raises(Unreachable):
        await node.reserve(plain.peer_id, plain.addresses)


async def test_many_callers_share_one_connection(start: Start) -> None:
    server, client = await pair(start)
    server.handle(ECHO, echo)

    async def call() -> None:
        stream = await client.open(server.peer_id, ECHO, server.addresses)
        await stream.send_all(b"ping")
        assert await stream.receive_some() == b"ping"
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(call)
    assert client.connected() == (server.peer_id,)
    assert server.connected() == (client.peer_id,)


async def test_the_peer_that_was_dialled_can_open_streams_too(start: Start) -> None:
    server, client = await pair(start)
    client.handle(ECHO, echo)
    await client.connect(server.peer_id, server.addresses)
    await until(lambda: server.connected() == (client.peer_id,))
    stream = await server.open(client.peer_id, ECHO)
    await stream.send_all(b"back")
    assert await stream.receive_some() == b"back"


async def test_a_handler_that_raises_costs_its_stream_and_nothing_else(start: Start) -> None:
    server, client = await pair(start)

    async def fail(stream: Stream) -> None:
        await stream.receive_some()
        raise ZeroDivisionError("a bug in a handler")

    server.handle("/test/fail/1", fail)
    server.handle(ECHO, echo)
    bad = await client.open(server.peer_id, "/test/fail/1", server.addresses)
    good = await client.open(server.peer_id, ECHO)
    await bad.send_all(b"x")
    with pytest.raises(trio.BrokenResourceError):
        await bad.receive_some()
    await good.send_all(b"still here")
    assert await good.receive_some() == b"still here"


async def test_one_protocol_has_one_handler(start: Start) -> None:
    node = await start(1)
    node.handle(ECHO, echo)
    with pytest.raises(LocalProtocolError):
        node.handle(ECHO, echo)


async def usable_streams(client: Network, server: Network, protocol: str, count: int) -> list[Stream]:
    """Open `count` streams and return those that carry a byte there and back."""
    results: list[Stream] = []
    for _ in range(count):
        try:
            stream = await client.open(server.peer_id, protocol, server.addresses)
            await stream.send_all(b"x")
            await stream.receive_some()
        except (Unreachable, trio.BrokenResourceError):
            continue
        results.append(stream)
    return results


async def test_a_peer_has_at_most_8_streams_of_a_protocol_and_32_in_all(start: Start) -> None:
    server, client = await pair(start)
    for number in range(5):
        server.handle(f"/test/{number}/1", echo)
    remaining: list[Stream] = []
    for number in range(4):
        streams = await usable_streams(client, server, f"/test/{number}/1", 9)
        assert len(streams) == 8
        remaining += streams
    assert await usable_streams(client, server, "/test/4/1", 2) == []
    other = await start(3)
    assert len(await usable_streams(other, server, "/test/0/1", 1)) == 1  # another peer has its own places
    await remaining[0].aclose()
    while not await usable_streams(
        client, server, "/test/0/1", 1
    ):  # its place is free again, once the server knows
        await trio.sleep(0.005)


async def test_signatures_are_of_this_node(start: Start) -> None:
    node = await start(1)
    signature = node.sign(b"body")
    assert verify(node.peer_id, b"body", signature)
    assert not verify(node.peer_id, b"other body", signature)


async def test_streams_behave_as_trios_own(start: Start) -> None:
    server, client = await pair(start)
    handed: list[Stream] = []
    free = trio.Event()

    async def make() -> tuple[_AsTrio, _AsTrio]:
        nonlocal free
        free.set()  # the previous pair is done, so the server need not keep its end
        free = mine = trio.Event()
        arrived = trio.Event()

        async def keep(stream: Stream) -> None:
            handed.append(stream)
            arrived.set()
            await mine.wait()

        protocol = f"/test/pair/{len(handed)}"
        server.handle(protocol, keep)
        own = await client.open(server.peer_id, protocol, server.addresses)
        await arrived.wait()
        return _AsTrio(own), _AsTrio(handed[-1])

    await trio.testing.check_half_closeable_stream(make, None)  # type: ignore[arg-type,unused-ignore]


class _AsTrio(trio.abc.HalfCloseableStream):
    """Our stream under trio's abstract class, for trio's own checks."""

    def __init__(self, inner: Stream) -> None:
        assert isinstance(inner, MemoryStream | NodeStream)
        self.inner = inner

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await (self.inner.receive_some() if max_bytes is None else self.inner.receive_some(max_bytes))

    async def send_eof(self) -> None:
        await self.inner.send_eof()

    async def aclose(self) -> None:
        await self.inner.aclose()


async def test_a_process_that_has_ended_is_distinguished_from_one_that_is_silent(start: Start) -> None:
    asker = await start(1)
    gone = Identity.from_seed(99).peer_id
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        closed = f"/ip4/127.0.0.1/tcp/{listener.getsockname()[1]}"
    with pytest.raises(Unreachable) as caught:
        await asker.connect(gone, [closed])
    assert caught.value.refused
    with socket.socket() as silent:  # accepts connections and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(Unreachable) as caught:
            await asker.connect(
                gone, [closed, f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}"], max_wait_s=0.5
            )
    assert isinstance(asker, MemoryNetwork) or not caught.value.refused
