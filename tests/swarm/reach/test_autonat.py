"""A gate dials back to the address where it sees the asker, and nowhere else, however and however often it is asked."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import Refused, RemoteProtocolError, Unreachable
from protocol.messages.reach import REACH, DialBack, DialBackReply
from protocol.wire.codec import Frame, FrameKind
from protocol.words import ProtocolId, Reason
from swarm.join.host import open_host
from swarm.memory.network import MemorySwarm
from swarm.net.addresses import Address, Contact, PeerId
from swarm.net.identity import Identity
from swarm.net.limits import RateLimit
from swarm.net.link import Link
from swarm.net.network import Network
from swarm.reach.autonat import KNOCKS, PER_NETWORK, PER_PEER, AutoNatServer, ask

GATE, NODE, OTHER = (Identity.from_seed(name) for name in ("gate", "node", "other"))
WALL = 1_790_000_000.0


class Dialled:
    """Stands in for a network's dialling: records every address, and decides which of them answer."""

    def __init__(self, *answering: Address) -> None:
        self.answering = answering
        self.tried: list[tuple[PeerId, Address]] = []

    async def __call__(self, peer: PeerId, address: Address) -> bool:
        self.tried.append((peer, address))
        await trio.lowlevel.checkpoint()
        return address in self.answering


@asynccontextmanager
async def desk(
    knock: Dialled, seen_at: Address | None = "/ip4/8.8.4.4/tcp/51034", *, serving: bool = True
) -> AsyncIterator[tuple[MemorySwarm, Contact, list[Contact]]]:
    """A gate in a simulated network that sees every peer at `seen_at` and dials with `knock`; and the contacts it was asked to meet."""
    met: list[Contact] = []
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm:
        gate = swarm.node(GATE)
        AutoNatServer(
            lambda peer: seen_at, knock, serving=lambda: serving, wall=lambda: WALL, meet=met.append
        ).serve(gate)
        yield swarm, Contact(gate.peer_id, gate.addresses), met


def clock() -> float:
    """Twelve seconds behind the gate's clock."""
    return WALL - 12.0


async def test_a_gate_says_where_it_sees_us_which_ports_led_to_us_and_what_time_it_has(
    autojump_clock: trio.testing.MockClock,
) -> None:
    knock = Dialled("/ip4/8.8.4.4/tcp/4001")
    async with desk(knock) as (swarm, gate, _):
        reply = await ask(swarm.node(NODE), gate, [4001, 4002], wall=clock)
    assert (reply.observed, reply.reached) == ("/ip4/8.8.4.4/tcp/51034", (4001,))
    assert reply.ahead_s == pytest.approx(12.0)
    assert {address for _, address in knock.tried} == {"/ip4/8.8.4.4/tcp/4001", "/ip4/8.8.4.4/tcp/4002"}
    assert {peer for peer, _ in knock.tried} == {NODE.peer_id}


async def test_a_gate_that_cannot_be_dialled_itself_says_so(autojump_clock: trio.testing.MockClock) -> None:
    knock = Dialled()
    async with desk(knock, serving=False) as (swarm, gate, _):
        with pytest.raises(Refused) as refused:
            await ask(swarm.node(NODE), gate, [4001], wall=clock)
    assert (refused.value.reason, knock.tried) == (Reason.NOT_SERVING, [])


async def test_who_comes_through_a_relay_is_not_dialled_for_his_own_address_is_not_seen(
    autojump_clock: trio.testing.MockClock,
) -> None:
    knock = Dialled()
    async with desk(knock, seen_at=None) as (swarm, gate, _):
        with pytest.raises(Refused, match="through a relay"):
            await ask(swarm.node(NODE), gate, [4001], wall=clock)
    assert knock.tried == []


async def test_one_peer_is_answered_a_few_times_at_once_and_then_seldom(
    autojump_clock: trio.testing.MockClock,
) -> None:
    knock = Dialled()
    burst, every_s = PER_PEER
    async with desk(knock) as (swarm, gate, _):
        node = swarm.node(NODE)
        for _ in range(burst):
            await ask(node, gate, [4001], wall=clock)
        with pytest.raises(Refused) as refused:
            await ask(node, gate, [4001], wall=clock)
        assert refused.value.reason is Reason.OVERLOADED
        assert 0 < (refused.value.retry_after_s or 0) <= every_s
        await trio.sleep(refused.value.retry_after_s or 0)
        await ask(node, gate, [4001], wall=clock)
        assert len(knock.tried) == burst + 1


async def test_a_hundred_identities_behind_one_address_get_no_more_than_their_network_may_have(
    autojump_clock: trio.testing.MockClock,
) -> None:
    knock = Dialled()
    async with desk(knock) as (swarm, gate, _):

        async def one(number: int) -> None:
            try:
                await ask(swarm.node(Identity.from_seed(number)), gate, [1, 2, 3, 4], wall=clock)
            except Refused as refused:
                assert refused.reason is Reason.OVERLOADED  # noqa: PT017

        for number in range(100):
            await one(number)
    burst, every_s = PER_NETWORK
    assert len(knock.tried) <= 4 * (burst + 100 * 0.2 / every_s + 1)


async def test_only_so_many_ports_are_dialled_at_a_time_and_none_for_long(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Silent(Dialled):
        most = now = 0

        async def __call__(self, peer: PeerId, address: Address) -> bool:
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                await trio.sleep_forever()
            finally:
                self.now -= 1
            return True

    knock = Silent()
    async with desk(knock) as (swarm, gate, _), trio.open_nursery() as nursery:

        async def one(number: int) -> None:
            try:
                reply = await ask(swarm.node(Identity.from_seed(number)), gate, [1, 2, 3, 4], wall=clock)
                assert reply.reached == ()
                assert reply.rtt_s < 4
            except Refused as refused:
                assert refused.reason is Reason.OVERLOADED  # noqa: PT017

        for number in range(12):
            nursery.start_soon(one, number)
    assert (knock.most, knock.now) == (KNOCKS, 0)


async def test_gates_that_the_asker_names_are_met_and_at_most_two_of_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    other = Contact(OTHER.peer_id, ("/ip4/1.1.1.1/tcp/4101",))
    async with desk(Dialled()) as (swarm, gate, met):
        await ask(swarm.node(NODE), gate, [], [gate, other, Contact(NODE.peer_id, ())], wall=clock)
        assert met == [other]


async def test_a_stranger_from_afar_cannot_have_a_gate_dial_around_in_its_own_lan(
    autojump_clock: trio.testing.MockClock,
) -> None:
    inside = Contact(OTHER.peer_id, ("/ip4/192.168.1.1/tcp/80", "/ip4/127.0.0.1/tcp/22"))
    many = Contact(NODE.peer_id, tuple(f"/ip4/1.1.1.{n}/tcp/4101" for n in range(1, 9)))
    async with desk(Dialled()) as (swarm, gate, met):
        await ask(swarm.node(Identity.from_seed(9)), gate, [], [inside, many], wall=clock)
        assert met == [Contact(NODE.peer_id, many.addresses[:4])]
    async with desk(Dialled(), seen_at="/ip4/192.168.1.7/tcp/51034") as (swarm, gate, met):
        await ask(swarm.node(Identity.from_seed(9)), gate, [], [inside], wall=clock)
        assert met == [inside]


async def test_a_gate_that_is_named_by_dns_is_not_met(autojump_clock: trio.testing.MockClock) -> None:
    async with desk(Dialled()) as (swarm, gate, met):
        names = Contact(OTHER.peer_id, ("/dns4/slow.example/tcp/4101", "/ip4/8.8.8.8/tcp/4101"))
        await ask(swarm.node(NODE), gate, [4001], [names], wall=clock)
        only = Contact(OTHER.peer_id, ("/dns4/slow.example/tcp/4101", "/dns/slow.example/tcp/4102"))
        await ask(swarm.node(NODE), gate, [4001], [only], wall=clock)
    assert met == [Contact(OTHER.peer_id, ("/ip4/8.8.8.8/tcp/4101",))]


async def test_more_ports_or_gates_than_allowed_and_answers_instead_of_calls_break_the_link(
    autojump_clock: trio.testing.MockClock,
) -> None:
    knock = Dialled()
    wrong = [
        DialBackReply(observed="/ip4/8.8.4.4/tcp/1", wall_ms=0),
        DialBack.model_construct(type="dial-back", ports=(1, 2, 3, 4, 5), gates=()),
        DialBack.model_construct(type="dial-back", ports=(0,), gates=()),
        DialBack.model_construct(type="dial-back", ports=(70_000,), gates=()),
    ]
    async with desk(knock) as (swarm, gate, _):
        node = swarm.node(NODE)
        for message in wrong:
            stream = await node.open(gate.peer, ProtocolId.REACH, gate.addresses)
            await stream.send_all(REACH.encode(Frame(FrameKind.CALL, 1, message)))
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
        assert knock.tried == []
        await ask(node, gate, [4001], wall=clock)


async def test_a_gate_cannot_make_us_believe_in_ports_that_we_did_not_ask_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with MemorySwarm(random.Random(1)) as swarm:
        gate = swarm.node(GATE)

        async def lie(stream: object) -> None:
            link = Link(stream, REACH, answer)  # type: ignore[arg-type]
            await link.run()

        async def answer(link: Link, message: object) -> DialBackReply:
            return DialBackReply(observed="/ip4/8.8.4.4/tcp/1", reached=(22, 4001), wall_ms=0)

        gate.handle(ProtocolId.REACH, lie)
        reply = await ask(swarm.node(NODE), Contact(gate.peer_id, gate.addresses), [4001], wall=clock)
    assert reply.reached == (4001,)


async def test_a_gate_that_talks_nonsense_or_says_nothing_is_an_error_within_the_timeout(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with MemorySwarm(random.Random(1)) as swarm:
        silent, mad = swarm.node(GATE), swarm.node(OTHER)

        async def hang(stream: object) -> None:
            await trio.sleep_forever()

        async def shout(stream: object) -> None:
            await stream.send_all(b"\xff" * 100)  # type: ignore[attr-defined]
            await trio.sleep_forever()

        silent.handle(ProtocolId.REACH, hang)
        mad.handle(ProtocolId.REACH, shout)
        node = swarm.node(NODE)
        for gate in (silent, mad):
            with trio.fail_after(7), pytest.raises((Unreachable, RemoteProtocolError)):
                await ask(node, Contact(gate.peer_id, gate.addresses), [4001], wall=clock)


@given(gaps=st.lists(st.floats(0, 50), max_size=60), burst=st.integers(1, 5), every=st.floats(0.5, 30))
def test_in_any_stretch_of_time_nobody_gets_more_than_the_burst_and_the_rate(
    gaps: list[float], burst: int, every: float
) -> None:
    allowance, now, taken = RateLimit(burst, every), 100.0, list[float]()
    for gap in gaps:
        now += gap
        wait = allowance.wait(now, "a")
        if not wait:
            taken.append(now)
        else:
            assert wait <= every * 1.001
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + (taken[last] - taken[first]) / every + 1e-6


def test_the_memory_of_who_asked_is_bounded() -> None:
    allowance = RateLimit(1, 10.0, most=3)
    assert [allowance.wait(0.0, who) for who in "abcd"] == [0.0] * 4
    assert allowance.wait(0.0, "d") == 10.0
    assert allowance.wait(0.0, "a") == 0.0  # forgotten


# -- over real sockets ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def real_gate() -> AsyncIterator[Contact]:
    async with open_host(GATE, listen=["/ip4/127.0.0.1/tcp/0"]) as network:
        AutoNatServer(
            network.remote_address,
            lambda peer, address: network.knock(peer, address),
            serving=lambda: True,
            wall=lambda: WALL,
        ).serve(network)
        yield Contact(network.peer_id, network.addresses)


def port_of(network: Network) -> int:
    return int(network.addresses[0].rpartition("/")[2])


async def test_a_listening_node_is_reached_by_a_connection_that_leaves_nothing_behind() -> None:
    with trio.fail_after(15):
        async with (
            real_gate() as gate,
            open_host(NODE, listen=["/ip4/127.0.0.1/tcp/0"]) as node,
        ):
            reply = await ask(node, gate, [port_of(node)], wall=lambda: WALL)
            assert reply.reached == (port_of(node),)
            assert reply.observed.startswith("/ip4/127.0.0.1/tcp/")
            assert node.connected() == (gate.peer,)
            again = await ask(node, gate, [port_of(node)], wall=lambda: WALL)
            assert again.reached == (port_of(node),)


async def test_a_port_where_nobody_somebody_else_or_something_silent_listens_is_not_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, trio.fail_after(20):
        async with (
            real_gate() as gate,
            open_host(NODE) as node,
            open_host(OTHER, listen=["/ip4/127.0.0.1/tcp/0"]) as other,
        ):
            with socket.create_server(("127.0.0.1", 0)) as closed:
                free = int(closed.getsockname()[1])
            reply = await ask(
                node, gate, [free, port_of(other), int(silent.getsockname()[1])], wall=lambda: WALL
            )
            assert reply.reached == ()
            assert reply.rtt_s < 5
