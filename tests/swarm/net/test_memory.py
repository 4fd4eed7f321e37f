"""The account of the memory that peers occupy in a node."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages.health import Ping, Pong
from protocol.wire.base import Message
from protocol.wire.codec import Frame, FrameKind, Vocabulary
from protocol.words import ProtocolId
from swarm.memory.network import MemorySwarm
from swarm.net.identity import Identity
from swarm.net.link import MAX_ANSWERING, Link
from swarm.net.links import Links, serve_links
from swarm.net.memory import CALL_BYTES, MemoryAccount, MemoryLimits

TALK = Vocabulary(Ping, Pong, calls=(Ping,), notes=(Pong,))


@dataclass(eq=False)
class Held:
    owner: str
    size: int = 0

    def waiting(self) -> int:
        return self.size


@dataclass
class Account:
    """An account of 100 bytes, 40 of them for one peer's work, and the actions it took."""

    memory: MemoryAccount = field(default_factory=lambda: MemoryAccount(MemoryLimits(100, 40)))
    ended: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory.end = lambda peer, size: self.ended.append((peer, size))


@pytest.mark.parametrize(
    ("buffers", "work", "last", "ended"),
    [
        ({"a": 50}, {"b": 30}, 20, []),
        ({"a": 50}, {"b": 30}, 21, [("a", 50)]),
        ({"a": 30}, {"a": 30, "b": 35}, 10, [("a", 60)]),  # buffers and work of a peer count together
        ({"a": 10}, {"b": 30}, 70, [("c", 70)]),
        ({"a": 45, "b": 45}, {}, 60, [("c", 60)]),
        ({}, {"a": 90, "b": 90}, 0, [("a", 90)]),
    ],
)
def test_who_takes_most_is_closed(
    buffers: dict[str, int], work: dict[str, int], last: int, ended: list[tuple[str, int]]
) -> None:
    account = Account()
    for peer, size in buffers.items():
        account.memory.buffer(Held(peer, size), size)
    for peer, size in work.items():
        account.memory.hold(peer, size)
    assert account.memory.buffer(Held("c", last), last) == ("c" not in [peer for peer, _ in ended])
    assert account.ended == ended
    assert account.memory.total <= 100


def test_what_was_read_in_the_meantime_counts_no_more() -> None:
    account = Account()
    fast = Held("a", 90)
    account.memory.buffer(fast, 90)
    fast.size = 0
    assert account.memory.buffer(Held("b", 90), 90)
    assert (account.ended, account.memory.total) == ([], 90)


def test_a_peer_whose_connections_are_closing_is_not_closed_again_and_counts_anew_afterwards() -> None:
    account = Account()
    account.memory.hold("a", 120)
    assert account.ended == [("a", 120)]
    account.memory.hold("a", 120)
    assert (account.ended, account.memory.total) == ([("a", 120)], 0)
    account.memory.release("a", 240)
    account.memory.hold("a", 50)
    assert (account.memory.total, account.memory.of("a")) == (50, 50)


def test_above_its_own_limit_a_peer_is_full_until_work_ends() -> None:
    memory = Account().memory
    memory.hold("a", 39)
    assert not memory.full("a")
    memory.hold("a", 1)
    assert (memory.full("a"), memory.full("b")) == (True, False)
    memory.release("a", 1)
    assert not memory.full("a")


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["hold", "release", "buffer"]), st.integers(0, 60))
    )
)
def test_the_sum_is_right_whatever_happens(steps: list[tuple[str, str, int]]) -> None:
    account = Account()
    held: dict[str, list[int]] = {peer: [] for peer in "abc"}
    buffers = {peer: Held(peer) for peer in "abc"}
    for peer, what, size in steps:
        if what == "hold":
            account.memory.hold(peer, size)
            held[peer].append(size)
        elif what == "release" and held[peer]:
            account.memory.release(peer, held[peer].pop())
        elif what == "buffer":
            buffers[peer].size = size
            account.memory.buffer(buffers[peer], size)
        assert 0 <= account.memory.total <= 100
    for peer in "abc":
        while held[peer]:
            account.memory.release(peer, held[peer].pop())
        account.memory.buffer(buffers[peer], 0)
    assert account.memory.total == 0


async def test_a_peer_above_its_limit_is_not_read_and_others_are(
    autojump_clock: trio.testing.MockClock,
) -> None:
    answering = 0
    done = trio.Event()

    async def answer(link: Link, message: Message) -> Message:
        nonlocal answering
        if link.peer == greedy.peer_id:
            answering += 1
            await done.wait()
        return Pong(role="gate", incarnation=1)

    async with MemorySwarm(random.Random(1), latency_s=0.001) as swarm, trio.open_nursery() as nursery:
        server, greedy, modest = (swarm.node(Identity.from_seed(number)) for number in range(3))
        memory = server.governor.memory
        memory.limits = MemoryLimits(most_of_peer=10 * CALL_BYTES)
        serve_links(server, ProtocolId.HEALTH, TALK, answer)
        for _ in range(2):
            stream = await greedy.open(server.peer_id, ProtocolId.HEALTH, server.addresses)
            await stream.send_all(TALK.encode(Frame(FrameKind.CALL, 1, Ping())) * MAX_ANSWERING)
        await trio.sleep(5)
        assert 10 <= answering <= 12  # each link checks before it reads
        assert memory.of(greedy.peer_id) >= 10 * CALL_BYTES
        links = Links(modest, ProtocolId.HEALTH, TALK, nursery)
        assert isinstance(await links.call(server.peer_id, server.addresses, Ping()), Pong)
        done.set()
        await trio.sleep(5)
        assert answering == 2 * MAX_ANSWERING
        assert memory.of(greedy.peer_id) == 0
        nursery.cancel_scope.cancel()


async def test_when_all_is_taken_who_takes_most_is_cut_off(autojump_clock: trio.testing.MockClock) -> None:
    async def answer(link: Link, message: Message) -> Message:
        await trio.sleep_forever()

    async with MemorySwarm(random.Random(1), latency_s=0.001) as swarm:
        server, greedy, modest = (swarm.node(Identity.from_seed(number)) for number in range(3))
        memory = server.governor.memory
        memory.limits = MemoryLimits(most=20 * CALL_BYTES)
        serve_links(server, ProtocolId.HEALTH, TALK, answer)
        for node, calls in ((modest, 2), (greedy, MAX_ANSWERING)):
            stream = await node.open(server.peer_id, ProtocolId.HEALTH, server.addresses)
            await stream.send_all(TALK.encode(Frame(FrameKind.CALL, 1, Ping())) * calls)
            await trio.sleep(1)
        assert server.connected() == (modest.peer_id,)
        assert memory.of(greedy.peer_id) == 0
        assert memory.total == memory.of(modest.peer_id) > 0
