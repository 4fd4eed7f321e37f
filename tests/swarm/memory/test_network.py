"""What the simulated network can do to its nodes, on a clock that jumps."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from protocol.errors import Unreachable
from swarm.memory.network import NOTICE_S, MemoryNetwork, MemorySwarm
from swarm.net.identity import Identity
from swarm.net.network import Stream

ECHO = "/test/echo/1"


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


def nodes(swarm: MemorySwarm, count: int) -> list[MemoryNetwork]:
    made = [swarm.node(Identity.from_seed(number)) for number in range(count)]
    for node in made:
        node.handle(ECHO, echo)
    return made


async def round_trip(stream: Stream) -> float:
    begun = trio.current_time()
    await stream.send_all(b"x")
    assert await stream.receive_some() == b"x"
    return trio.current_time() - begun


async def test_latency_is_what_was_asked_for_link_by_link(autojump_clock: trio.testing.MockClock) -> None:
    far = Identity.from_seed(2).peer_id
    async with MemorySwarm(random.Random(1), latency_s=lambda a, b: 0.2 if far in (a, b) else 0.01) as swarm:
        a, b, c = nodes(swarm, 3)
        near_stream = await a.open(b.peer_id, ECHO, b.addresses)
        far_stream = await a.open(c.peer_id, ECHO, c.addresses)
        assert await round_trip(near_stream) == pytest.approx(0.02)
        assert await round_trip(far_stream) == pytest.approx(0.4)


async def test_bandwidth_is_shared_by_the_streams_of_a_link(autojump_clock: trio.testing.MockClock) -> None:
    async with MemorySwarm(random.Random(1), bytes_per_s=1_000_000) as swarm:
        a, b = nodes(swarm, 2)
        got = trio.Event()

        async def sink(stream: Stream) -> None:
            while await stream.receive_some():
                pass
            got.set()

        b.handle("/test/sink/1", sink)
        stream = await a.open(b.peer_id, "/test/sink/1", b.addresses)
        begun = trio.current_time()
        await stream.send_all(bytes(2_000_000))
        await stream.send_eof()
        await got.wait()
        assert trio.current_time() - begun == pytest.approx(2, rel=0.01)


async def test_a_lost_packet_comes_late_and_in_order(autojump_clock: trio.testing.MockClock) -> None:
    async with MemorySwarm(random.Random(1), latency_s=0.01, loss=0.3) as swarm:
        a, b = nodes(swarm, 2)
        stream = await a.open(b.peer_id, ECHO, b.addresses)
        times = [await round_trip(stream) for _ in range(50)]
        assert min(times) == pytest.approx(0.02)
        assert max(times) > 0.2


async def test_a_killed_node_breaks_its_streams_and_refuses_dials(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm:
        a, b, c = nodes(swarm, 3)
        stream = await a.open(b.peer_id, ECHO, b.addresses)
        swarm.kill(b.peer_id)
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        assert a.connected() == ()
        with pytest.raises(Unreachable, match="refused"):
            await c.connect(b.peer_id, b.addresses)
        again = swarm.node(Identity.from_seed(1))
        again.handle(ECHO, echo)
        await round_trip(await a.open(again.peer_id, ECHO, again.addresses))


async def test_a_silent_cut_is_noticed_after_a_while_by_both(autojump_clock: trio.testing.MockClock) -> None:
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm:
        a, b = nodes(swarm, 2)
        stream = await a.open(b.peer_id, ECHO, b.addresses)
        swarm.cut_silently(a.peer_id, b.peer_id)
        begun = trio.current_time()
        await stream.send_all(b"into the void")
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        assert trio.current_time() - begun == pytest.approx(NOTICE_S)
        assert (a.connected(), b.connected()) == ((), ())
        with pytest.raises(Unreachable, match="within 3 s"):
            await a.connect(b.peer_id, b.addresses, max_wait_s=3)
        swarm.heal()
        await round_trip(await a.open(b.peer_id, ECHO))


async def test_a_short_cut_delays_and_loses_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm:
        a, b = nodes(swarm, 2)
        stream = await a.open(b.peer_id, ECHO, b.addresses)
        swarm.cut_silently(a.peer_id, b.peer_id)
        await stream.send_all(b"late")
        await trio.sleep(NOTICE_S / 2)
        swarm.heal()
        assert await stream.receive_some() == b"late"


async def test_a_partition_parts_groups_and_leaves_them_whole(autojump_clock: trio.testing.MockClock) -> None:
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm:
        a, b, c, d = nodes(swarm, 4)
        swarm.partition([a.peer_id, b.peer_id], [c.peer_id, d.peer_id])
        await a.connect(b.peer_id, b.addresses)
        await c.connect(d.peer_id, d.addresses)
        for one in (a, b):
            for other in (c, d):
                with pytest.raises(Unreachable):
                    await one.connect(other.peer_id, other.addresses, max_wait_s=1)


async def test_a_node_without_an_address_dials_and_is_not_dialled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with MemorySwarm(random.Random(1)) as swarm:
        (gate,) = nodes(swarm, 1)
        hidden = swarm.node(Identity.from_seed("hidden"), holder=False)
        hidden.handle(ECHO, echo)
        with pytest.raises(Unreachable):
            await gate.connect(hidden.peer_id, ["/ip4/10.0.0.77/tcp/4001"])
        await hidden.connect(gate.peer_id, gate.addresses)
        await round_trip(await gate.open(hidden.peer_id, ECHO))


async def test_two_runs_from_one_seed_are_the_same(autojump_clock: trio.testing.MockClock) -> None:
    async def run() -> list[float]:
        async with MemorySwarm(random.Random(7), latency_s=0.01, loss=0.2) as swarm:
            a, b = nodes(swarm, 2)
            stream = await a.open(b.peer_id, ECHO, b.addresses)
            return [round(await round_trip(stream), 9) for _ in range(30)]

    assert await run() == await run()
