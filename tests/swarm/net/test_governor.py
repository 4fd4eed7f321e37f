"""Peers take turns on the processor, within their shares: links over the simulated network."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from protocol.errors import Overloaded
from protocol.messages.health import Ping, Pong
from protocol.wire.base import Message
from protocol.wire.busy import Busy
from protocol.wire.codec import Frame, FrameKind, Vocabulary
from protocol.words import ProtocolId
from swarm.memory.network import MemorySwarm
from swarm.net.cost import CALL_US, NOTE_US, REFUSALS, RESTS, SHARES, SLICE_US, STREAMS, PeerClass, Share
from swarm.net.governor import LIGHT, Governor, Payer
from swarm.net.identity import Identity
from swarm.net.link import MAX_ANSWERING, Link
from swarm.net.links import Links, serve_links
from swarm.net.network import Network

PONG = Pong(role="worker", incarnation=1)
TALK = Vocabulary(Ping, Pong, calls=(Ping,), notes=(Pong,))
COST_US = 10_000.0
SMALL = {**SHARES, PeerClass.STRANGER: Share(per_s=100_000, burst=50_000)}


class CountingGovernor(Governor):
    asked = 0

    def begins(self, cost_us: float, *, light: bool = False) -> bool:
        self.asked += 1
        return super().begins(cost_us, light=light)


@dataclass
class Stage:
    swarm: MemorySwarm
    server: Network
    nursery: trio.Nursery
    served: list[str] = field(default_factory=list)
    last: float = 0.0

    async def answer(self, link: Link, message: Message) -> Message | None:
        self.served.append(link.peer)
        self.last = trio.current_time()
        return PONG if isinstance(message, Ping) else None

    def links(self, seed: int) -> Links:
        return Links(self.swarm.node(Identity.from_seed(seed)), ProtocolId.HEALTH, TALK, self.nursery)


@asynccontextmanager
async def stage(governor: Governor, cost: Callable[[Message], float]) -> AsyncIterator[Stage]:
    async with MemorySwarm(random.Random(1), latency_s=0.001) as swarm, trio.open_nursery() as nursery:
        server = swarm.node(Identity.from_seed(0))
        server.governor = governor
        here = Stage(swarm, server, nursery)
        serve_links(server, ProtocolId.HEALTH, TALK, here.answer, cost=cost)
        yield here
        nursery.cancel_scope.cancel()


async def test_a_call_above_the_bucket_is_answered_busy_and_asked_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    governor = Governor(shares=SMALL)
    async with stage(governor, lambda message: COST_US) as here:
        link = await here.links(1).get(here.server.peer_id, here.server.addresses)
        began = trio.current_time()
        for _ in range(20):
            assert await link.call(Ping()) == PONG
        assert len(here.served) == 20
        assert governor.busy
        assert trio.current_time() - began >= (20 * (COST_US + CALL_US) - 50_000) / 100_000


async def test_a_caller_without_time_is_told_that_the_peer_is_busy(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with stage(Governor(shares=SMALL), lambda message: 1e6) as here:
        link = await here.links(1).get(here.server.peer_id, here.server.addresses)
        assert (
            await link.call(Ping()) == PONG
        )  # more than a bucket holds: a full one is enough, and is in debt afterwards
        with pytest.raises(Overloaded) as caught:
            await link.call(Ping(), max_wait_s=5)
        assert 9 < caught.value.retry_after_s < 11
        assert not link.closed.is_set()
        assert await link.call(Ping(), max_wait_s=30) == PONG


async def test_busy_is_an_answer_of_every_family_and_no_call(autojump_clock: trio.testing.MockClock) -> None:
    """A peer that sends it as a call breaks the protocol."""
    async with stage(Governor(), lambda message: 0.0) as here:
        client = here.swarm.node(Identity.from_seed(1))
        stream = await client.open(here.server.peer_id, ProtocolId.HEALTH, here.server.addresses)
        await stream.send_all(TALK.encode(Frame(FrameKind.CALL, 1, Busy(retry_after_s=1))))
        with pytest.raises(trio.BrokenResourceError), trio.fail_after(10):
            await stream.receive_some()


async def test_one_peers_backlog_is_not_anothers(autojump_clock: trio.testing.MockClock) -> None:
    """Thirty calls of one peer are waiting before the other peer's only call arrives, which gets the next turn but one."""
    async with stage(Governor(), lambda message: SLICE_US) as here:
        greedy, modest = here.links(1), here.links(2)
        where = here.server.peer_id, here.server.addresses
        for links in (greedy, modest):
            await links.call(*where, Ping())
        here.served.clear()
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(greedy.call, *where, Ping())
            nursery.start_soon(modest.call, *where, Ping())
        assert here.served.index(modest.network.peer_id) <= 3


async def test_a_known_peer_has_its_turn_more_often() -> None:
    governor, order = Governor(), list[str]()
    governor.class_of = PeerClass  # each peer is named after its class

    async def work(payer: Payer) -> None:
        await payer.turn(SLICE_US)
        order.append(payer.peer)

    async with trio.open_nursery() as nursery:
        for peer in ("stranger", "known"):
            payer = governor.payer(peer)
            payer.charge(0.0)
            payer.turns.charge(trio.current_time(), LIGHT, 1e6)
            for _ in range(20):
                nursery.start_soon(work, payer)
    assert order[:16].count("known") >= 10


async def test_who_takes_turn_after_turn_lets_everybody_else_run(mock_clock: trio.testing.MockClock) -> None:
    passes, payer = 0, Governor().payer("peer")

    async def others() -> None:
        nonlocal passes
        while True:
            passes += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        for _ in range(1_000):
            await payer.turn(CALL_US)
        nursery.cancel_scope.cancel()
    assert passes >= 0.8 * 1_000 * CALL_US / SLICE_US


@pytest.mark.parametrize(
    ("classes", "rests"),
    [
        ((PeerClass.STRANGER,) * 3, True),
        ((PeerClass.STRANGER,), False),
        ((PeerClass.STRANGER, PeerClass.OWN), False),
    ],
)
async def test_strangers_that_cause_much_leave_most_of_the_processor(
    autojump_clock: trio.testing.MockClock, classes: tuple[PeerClass, ...], rests: bool
) -> None:
    governor, turns = Governor(), 100
    governor.class_of = lambda peer: classes[int(peer)]

    async def work(payer: Payer) -> None:
        payer.charge(0.0)
        payer.turns.charge(trio.current_time(), LIGHT, 1e6)
        for _ in range(turns):
            await payer.turn(SLICE_US)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(len(classes)):
            nursery.start_soon(work, governor.payer(str(number)))
    took, work_s = trio.current_time() - began, turns * len(classes) * SLICE_US * 1e-6
    assert took >= 0.95 * RESTS * work_s if rests else took <= 0.1 * work_s


async def cause_much(payer: Payer) -> None:
    """Take turns without end."""
    payer.turns.charge(trio.current_time(), LIGHT, 1e6)
    while True:
        await payer.turn(SLICE_US)


async def test_who_has_caused_little_does_not_wait_behind_those_that_cause_much(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Three strangers take turns on the processor, and an occasional call is served at once."""
    governor = Governor()

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(cause_much, governor.payer(str(number)))
        modest = governor.payer("modest")
        for _ in range(50):
            await trio.sleep(0.1)
            began = trio.current_time()
            await modest.read_turn()
            assert trio.current_time() == began
            assert modest.admit(CALL_US) == 0.0
        began = trio.current_time()
        for _ in range(200):
            await modest.read_turn()
        assert trio.current_time() > began
        nursery.cancel_scope.cancel()


async def test_a_light_peer_waits_for_what_has_just_begun_and_not_among_those_that_cause_much(
    autojump_clock: trio.testing.MockClock,
) -> None:
    queued: list[str] = []

    class Watched(Governor):
        async def wait(self, payer: Payer, cost_us: float) -> None:
            queued.append(payer.peer)
            await super().wait(payer, cost_us)

    governor = Watched()

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(cause_much, governor.payer(str(number)))
        await trio.sleep(0.1)
        await governor.payer("other").turn(3 * SLICE_US)
        began = trio.current_time()
        await governor.payer("modest").read_turn()
        assert 0 < trio.current_time() - began <= 3 * SLICE_US * 1e-6
        nursery.cancel_scope.cancel()
    assert set(queued) == {"0", "1", "2"}


async def test_many_links_of_a_peer_have_no_more_turns_than_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Eight links full of calls wait one behind the other, beside another peer's long work."""
    governor, served, most = Governor(), 0, 0
    greedy, busy = governor.payer("greedy"), governor.payer("busy")
    for payer in (greedy, busy):
        payer.turns.charge(trio.current_time(), LIGHT, 1e6)

    async def work() -> None:
        while True:
            await busy.turn(SLICE_US)

    async def read() -> None:
        nonlocal served, most
        while True:
            await greedy.read_turn()
            served += 1
            most = max(most, governor._waiting._waiting["greedy"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        for _ in range(8):
            nursery.start_soon(read)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert served > 50
    assert most <= 1


async def test_a_peer_opens_so_many_streams_a_second_and_no_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    payer, began = Governor().payer("peer"), trio.current_time()
    for _ in range(int(STREAMS.burst + 10 * STREAMS.per_s)):
        await payer.stream_turn()
    assert trio.current_time() - began == pytest.approx(10, rel=0.05)


async def test_notes_are_charged_and_others_are_served_in_between(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Notes are handled in the reader's task. Without a turn for each, a read of 64 KiB was one long wait for everybody else."""
    governor = CountingGovernor(shares=SMALL)
    async with stage(governor, lambda message: 0.0) as here:
        flooding, honest = here.links(1), here.links(2)
        where = here.server.peer_id, here.server.addresses
        link = await flooding.get(*where)
        began = trio.current_time()
        note = TALK.encode(Frame(FrameKind.NOTE, 0, PONG))
        await link.stream.send_all(note * 2_000)
        assert await honest.call(*where, Ping()) == PONG
        assert trio.current_time() - began < 0.1
        await trio.sleep(5)
        assert len(here.served) == 2_001
        assert governor.asked >= 2_000
        assert here.last - began >= (2_000 * NOTE_US - 50_000) / 100_000


async def test_who_goes_on_when_asked_to_wait_is_not_read_any_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Saying `Busy` costs too."""
    governor = Governor(shares=SMALL)
    async with stage(governor, lambda message: 1e9) as here:
        client = here.swarm.node(Identity.from_seed(1))
        stream = await client.open(here.server.peer_id, ProtocolId.HEALTH, here.server.addresses)
        await stream.send_all(TALK.encode(Frame(FrameKind.CALL, 1, Ping())) * 10_000)
        await trio.sleep(10)
        assert REFUSALS.burst / CALL_US <= governor.busy <= REFUSALS.burst / CALL_US + MAX_ANSWERING


async def test_a_network_pays_together_and_loopback_does_not(autojump_clock: trio.testing.MockClock) -> None:
    """The peers of one /24 share the budget of four strangers."""
    for network, most in (("192.0.2.0/24", 4), ("", 10)):
        governor = Governor(lambda peer, name=network: name, shares=SMALL)  # type: ignore[misc]
        admitted = sum(governor.payer(f"peer-{n}").admit(50_000) == 0.0 for n in range(10))
        assert admitted == most
