"""Links over the simulated network: calls, answers and notes, and everything that a bad or silent peer can do to them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
import structlog
import structlog.testing
import trio
import trio.testing

from protocol.errors import LocalProtocolError, RemoteProtocolError, Unreachable
from protocol.messages.blobs import BlobAbsent, FetchPiece
from protocol.messages.health import Ping, Pong
from protocol.wire.base import MAX_FRAME, Message
from protocol.wire.codec import Frame, FrameKind, Vocabulary
from protocol.words import ProtocolId
from swarm.memory.network import MemorySwarm
from swarm.memory.streams import WINDOW
from swarm.net.cost import PeerClass
from swarm.net.identity import Identity
from swarm.net.link import MAX_ANSWERING, MAX_UNSENT, Link
from swarm.net.links import Links, serve_links
from swarm.net.network import Network
from swarm.net.reservations import RelayReservations

PONG = Pong(role="worker", incarnation=1)
TALK = Vocabulary(Ping, Pong, calls=(Ping,), notes=(Pong,))


@dataclass
class Desk:
    """The far side, which answers pings on request."""

    messages: list[Message] = field(default_factory=list)
    gate: trio.Event = field(default_factory=trio.Event)
    waits: bool = False
    answering: int = 0
    most: int = 0
    links: list[Link] = field(default_factory=list)

    async def answer(self, link: Link, message: Message) -> Message | None:
        self.messages.append(message)
        if link not in self.links:
            self.links.append(link)
        if isinstance(message, Pong):
            return None  # received as a note
        self.answering += 1
        self.most = max(self.most, self.answering)
        if self.waits:
            await self.gate.wait()
        self.answering -= 1
        return PONG


@dataclass
class Pair:
    swarm: MemorySwarm
    here: Network
    there: Network
    desk: Desk
    links: Links
    nursery: trio.Nursery

    async def link(self) -> Link:
        return await self.links.get(self.there.peer_id, self.there.addresses)


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    async with MemorySwarm(random.Random(1), latency_s=0.001) as swarm, trio.open_nursery() as nursery:
        here, there = swarm.node(Identity.from_seed(1)), swarm.node(Identity.from_seed(2))
        server = Desk()
        serve_links(there, ProtocolId.HEALTH, TALK, server.answer)
        yield Pair(
            swarm,
            here,
            there,
            server,
            Links(here, ProtocolId.HEALTH, TALK, nursery, server.answer),
            nursery,
        )
        nursery.cancel_scope.cancel()


async def test_who_asks_and_takes_no_answers_is_not_asked_what_else_it_wants(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Answers may be large and requests are small, so answers would pile up here."""
    begun = 0

    async def answer(link: Link, message: Message) -> Message:
        nonlocal begun
        begun += 1
        return PONG

    async with MemorySwarm(random.Random(1), latency_s=0.001) as swarm:
        here, there = swarm.node(Identity.from_seed(1)), swarm.node(Identity.from_seed(2))
        there.governor.class_of = lambda peer: (
            PeerClass.OWN
        )  # calls of this class are answered whatever they cost
        serve_links(there, ProtocolId.HEALTH, TALK, answer)
        stream = await here.open(there.peer_id, ProtocolId.HEALTH, there.addresses)
        question = TALK.encode(Frame(FrameKind.CALL, 1, Ping()))
        answers = 1 + WINDOW // len(TALK.encode(Frame(FrameKind.ANSWER, 1, PONG)))
        await stream.send_all(question * (answers + MAX_ANSWERING))
        await trio.sleep(5)
        assert answers <= begun < answers + 2 * MAX_UNSENT


async def test_frames_that_wait_for_a_place_are_still_bytes(autojump_clock: trio.testing.MockClock) -> None:
    """64 KiB of tiny calls must not become thousands of objects while the link waits."""
    read: list[Frame] = []

    class Counted(Vocabulary):
        def decode(self, body: bytes) -> Frame:
            read.append(super().decode(body))
            return read[-1]

    async with MemorySwarm(random.Random(1), latency_s=0.001) as swarm:
        here, there = swarm.node(Identity.from_seed(1)), swarm.node(Identity.from_seed(2))
        desk = Desk(waits=True)
        serve_links(there, ProtocolId.HEALTH, Counted(Ping, Pong, calls=(Ping,)), desk.answer)
        stream = await here.open(there.peer_id, ProtocolId.HEALTH, there.addresses)
        await stream.send_all(TALK.encode(Frame(FrameKind.CALL, 1, Ping())) * 4_000)
        await trio.sleep(5)
        assert len(desk.messages) == MAX_ANSWERING
        assert len(read) == MAX_ANSWERING + 1


async def test_a_call_gets_its_answer_and_a_note_gets_none(autojump_clock: trio.testing.MockClock) -> None:
    async with pair() as two:
        link = await two.link()
        assert await link.call(Ping()) == PONG
        await link.tell(PONG)
        assert await link.ask(Ping(), Pong) == PONG
        assert two.desk.messages == [Ping(), PONG, Ping()]


async def test_a_call_that_comes_as_a_note_resets_the_link(autojump_clock: trio.testing.MockClock) -> None:
    """Otherwise it would be served outside the limit for calls, and without an answer that its sender has to read."""
    async with pair() as two:
        link = await two.link()
        await link.tell(Ping())
        with trio.fail_after(5):
            await link.closed.wait()
        assert two.desk.messages == []
        assert await (await two.link()).call(Ping()) == PONG


async def test_either_side_may_call(autojump_clock: trio.testing.MockClock) -> None:
    async with pair() as two:
        await (await two.link()).call(Ping())
        assert await two.desk.links[0].call(Ping()) == PONG


async def test_answers_may_overtake_each_other(autojump_clock: trio.testing.MockClock) -> None:
    async with pair() as two:
        link = await two.link()
        done: list[str] = []

        async def call(name: str) -> None:
            await link.call(Ping(), max_wait_s=60)
            done.append(name)

        two.desk.waits = True
        two.nursery.start_soon(call, "first")
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(0.1)
        two.desk.waits = False
        await call("second")
        two.desk.gate.set()
        await trio.sleep(0.1)
        assert done == ["second", "first"]


async def test_one_link_is_kept_for_a_peer_however_many_ask_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with pair() as two:
        links: list[Link] = []

        async def get() -> None:
            links.append(await two.link())

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(get)
        assert len(set(map(id, links))) == 1


async def test_silence_ends_in_unreachable_after_the_timeout(autojump_clock: trio.testing.MockClock) -> None:
    async with pair() as two:
        two.desk.waits = True
        link = await two.link()
        began = trio.current_time()
        with pytest.raises(Unreachable, match="did not answer within 3 s"):
            await link.call(Ping(), max_wait_s=3)
        assert trio.current_time() - began == pytest.approx(3, abs=0.1)
        two.desk.waits = False
        two.desk.gate.set()  # the late answer matches no call and does no harm
        assert await link.call(Ping()) == PONG


async def test_a_dead_peer_breaks_waiting_calls_and_the_next_link_is_new(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with pair() as two:
        two.desk.waits = True
        link = await two.link()

        async def call() -> None:
            with pytest.raises(Unreachable, match="broke before the answer"):
                await link.call(Ping(), max_wait_s=60)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.sleep(0.1)
            await two.here.disconnect(two.there.peer_id)
        assert two.links.peek(two.there.peer_id) is None
        with pytest.raises(Unreachable):
            await link.call(Ping())
        two.desk.waits = False
        assert await (await two.link()).call(Ping()) == PONG


async def test_a_peer_cannot_make_us_answer_more_than_so_many_calls_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with pair() as two:
        two.desk.waits = True
        link = await two.link()

        async def call() -> None:
            assert await link.call(Ping(), max_wait_s=60) == PONG

        async with trio.open_nursery() as nursery:
            for _ in range(3 * MAX_ANSWERING):
                nursery.start_soon(call)
            await trio.sleep(1)
            assert two.desk.most == MAX_ANSWERING
            two.desk.waits = False
            two.desk.gate.set()
        assert two.desk.most == MAX_ANSWERING


@pytest.mark.parametrize(
    "junk",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x01\xc0",
        (MAX_FRAME + 1).to_bytes(4, "big"),
        b"\x00\x00\x00\x09half",
    ],
    ids=["huge", "not a frame", "above the cap", "cut off"],
)
async def test_a_peer_that_breaks_the_rules_is_cut_off_and_others_are_not(
    junk: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    async with pair() as two:
        good = await two.link()
        stream = await two.here.open(two.there.peer_id, ProtocolId.HEALTH, two.there.addresses)
        await stream.send_all(junk)
        await stream.send_eof()
        with trio.fail_after(30):
            with suppress(trio.BrokenResourceError):
                assert await stream.receive_some() == b""
        assert await good.call(Ping()) == PONG


async def test_an_answer_of_another_type_breaks_the_link(autojump_clock: trio.testing.MockClock) -> None:
    async with pair() as two:
        link = await two.link()
        with pytest.raises(RemoteProtocolError, match="answered Ping with Pong"):
            await link.ask(Ping(), Ping)
        assert link.closed.is_set()


async def test_what_is_not_spoken_here_is_our_own_error_and_leaves_the_link_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with pair() as two:
        link = await two.link()
        with pytest.raises(LocalProtocolError, match="not a message of this protocol"):
            await link.call(FetchPiece(sha256="a" * 64, offset=0, length=1))
        with pytest.raises(LocalProtocolError, match="not a message of this protocol"):
            await link.tell(BlobAbsent(reason="busy"))  # type: ignore[arg-type]
        assert await link.call(Ping()) == PONG


async def test_a_caller_that_is_cancelled_while_it_waits_leaves_the_link_whole(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with pair() as two:
        two.desk.waits = True
        link = await two.link()
        with trio.move_on_after(1):
            await link.call(Ping(), max_wait_s=60)
        two.desk.waits = False
        two.desk.gate.set()
        assert await link.call(Ping()) == PONG


async def test_a_peer_that_takes_nothing_is_dropped_not_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with pair() as two:
        held = trio.Event()

        async def deaf(stream: object) -> None:
            await held.wait()

        two.there.handle("/deaf/1", deaf)
        stream = await two.here.open(two.there.peer_id, "/deaf/1", two.there.addresses)
        link = Link(stream, TALK)
        note = Pong(role="worker", incarnation=1, why="x" * 2000)
        began = trio.current_time()
        with pytest.raises(Unreachable, match="no longer reads"):  # noqa: PT012  (which of them is the one that waits is the network's affair)
            for _ in range(1000):
                await link.tell(note)
        assert 5 < trio.current_time() - began < 60
        assert link.closed.is_set()
        held.set()


async def test_a_peer_that_is_not_admitted_gets_no_answer(autojump_clock: trio.testing.MockClock) -> None:
    async with MemorySwarm(random.Random(1)) as swarm, trio.open_nursery() as nursery:
        here, there = swarm.node(Identity.from_seed(1)), swarm.node(Identity.from_seed(2))
        server = Desk()
        serve_links(there, ProtocolId.HEALTH, TALK, server.answer, admit=lambda peer: peer != here.peer_id)
        links = Links(here, ProtocolId.HEALTH, TALK, nursery)
        with pytest.raises(Unreachable):
            await links.call(there.peer_id, there.addresses, Ping())
        assert server.messages == []
        nursery.cancel_scope.cancel()


async def test_a_peer_that_begins_where_only_we_call_breaks_the_protocol(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with MemorySwarm(random.Random(1)) as swarm, trio.open_nursery() as nursery:
        here, there = swarm.node(Identity.from_seed(1)), swarm.node(Identity.from_seed(2))
        server = Desk()
        serve_links(there, ProtocolId.HEALTH, TALK, server.answer)
        link = await Links(here, ProtocolId.HEALTH, TALK, nursery).get(there.peer_id, there.addresses)
        await link.call(Ping())
        with pytest.raises(Unreachable):
            await server.links[0].call(Ping())
        assert link.closed.is_set()
        nursery.cancel_scope.cancel()


async def test_links_above_the_number_to_keep_let_the_longest_unused_go(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with MemorySwarm(random.Random(1)) as swarm, trio.open_nursery() as nursery:
        here = swarm.node(Identity.from_seed(0))
        others = [swarm.node(Identity.from_seed(number)) for number in range(1, 4)]
        for other in others:
            serve_links(other, ProtocolId.HEALTH, TALK, Desk().answer)
        links = Links(here, ProtocolId.HEALTH, TALK, nursery, keep=2)
        for other in (others[0], others[1], others[0], others[2]):
            await links.call(other.peer_id, other.addresses, Ping())
        assert [links.peek(other.peer_id) is not None for other in others] == [True, False, True]
        nursery.cancel_scope.cancel()


async def test_junk_on_a_link_that_something_runs_beside_stays_with_the_link(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with MemorySwarm(random.Random(1)) as swarm:
        here, there = swarm.node(Identity.from_seed(1)), swarm.node(Identity.from_seed(2))
        server, ended = Desk(), trio.Event()

        async def beside(link: Link) -> None:
            try:
                await trio.sleep_forever()
            finally:
                ended.set()

        serve_links(there, ProtocolId.HEALTH, TALK, server.answer, opened=beside)
        with structlog.testing.capture_logs() as logs:
            stream = await here.open(there.peer_id, ProtocolId.HEALTH, there.addresses)
            await stream.send_all(b"\xff\xff\xff\xff")
            with trio.fail_after(10):
                await ended.wait()
                with pytest.raises(trio.BrokenResourceError):
                    await stream.receive_some()
        assert [entry["event"] for entry in logs] == ["link.broken"]


async def test_a_link_through_a_gate_is_left_for_a_direct_one_after_what_is_being_said_on_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with pair() as two:
        gate = two.swarm.node(Identity.from_seed("gate"))
        gate.serve_relay(RelayReservations())
        two.swarm.translate(two.there.peer_id, "home")
        place = await two.there.reserve(gate.peer_id, gate.addresses)
        relayed = await two.links.get(two.there.peer_id, place.addresses)
        assert await two.links.get(two.there.peer_id) is relayed, "there is no better way yet"
        two.desk.waits = True
        answers: list[Message] = []

        async def ask() -> None:
            answers.append(await relayed.call(Ping(), max_wait_s=100))

        two.nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        two.swarm.punch(two.here.peer_id, two.there.peer_id)
        direct = await two.links.get(two.there.peer_id)
        assert (relayed.relayed, direct.relayed) == (True, False)
        assert two.links.peek(two.there.peer_id) is direct
        await direct.tell(PONG)  # a link on which nothing is ever sent would end
        await trio.sleep(60)
        assert not relayed.closed.is_set(), "an answer is still to come"
        two.desk.gate.set()
        await relayed.closed.wait()
        assert answers == [PONG]
        assert await two.links.get(two.there.peer_id) is direct


async def test_a_link_through_a_gate_stays_where_the_direct_way_leads_nowhere(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with pair() as two:
        gate = two.swarm.node(Identity.from_seed("gate"))
        gate.serve_relay(RelayReservations())
        two.swarm.translate(two.there.peer_id, "home")
        place = await two.there.reserve(gate.peer_id, gate.addresses)
        relayed = await two.links.get(two.there.peer_id, place.addresses)
        two.swarm.punch(two.here.peer_id, two.there.peer_id)
        two.swarm.cut_silently(two.here.peer_id, two.there.peer_id)
        assert await two.links.get(two.there.peer_id, max_wait_s=1.0) is relayed
        assert await relayed.call(Ping()) == PONG
