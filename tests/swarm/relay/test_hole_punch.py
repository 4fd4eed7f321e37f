"""From a circuit to a direct connection: what is sent, what is dialled, and the whole of it on loopback."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial

import pytest
import trio
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from multiaddr import Multiaddr

from protocol.messages.health import HEALTH, Ping, Pong
from protocol.wire.base import Message
from protocol.words import ProtocolId
from swarm.join.host import HostNetwork, open_host
from swarm.net.identity import Identity, peer_id_bytes
from swarm.net.link import Link
from swarm.net.links import Links, serve_links
from swarm.net.network import Stream
from swarm.net.reservations import RelayReservations
from swarm.relay.hole_punch import ANSWER_WITHIN_S, MAX_AT_ONCE, MAX_TARGETS, candidates, targets
from swarm.relay.wire import DCUTR, write_message

ECHO = "/sark/echo/1"
SEEN = "/ip4/203.0.113.7/tcp/51034"
LAN = "/ip4/192.168.1.5/tcp/4001"

# libp2p's dial from a bound port leaves its socket to the garbage collector when the dial is cancelled
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Exception ignored in. <socket\.socket:pytest.PytestUnraisableExceptionWarning"
)


def test_a_node_tells_the_address_that_gates_see_with_the_port_it_listens_on() -> None:
    assert candidates([SEEN], [LAN]) == ("/ip4/203.0.113.7/tcp/4001", LAN)
    assert candidates(["/ip6/2001:db8::7/tcp/5", SEEN], [LAN]) == ("/ip4/203.0.113.7/tcp/4001", LAN)
    assert candidates([SEEN], []) == ()
    assert candidates([], [LAN]) == (LAN,)


PUBLIC = "/ip4/8.8.4.4/tcp/4001"
OURS = "/ip4/8.8.8.8/tcp/51034"


@pytest.mark.parametrize(
    ("announced", "observed", "dialled"),
    [
        ((PUBLIC, LAN), (OURS,), (PUBLIC,)),
        (("/ip4/8.8.8.8/tcp/4001", LAN), (OURS,), ("/ip4/8.8.8.8/tcp/4001", LAN)),
        ((LAN, "/ip4/127.0.0.1/tcp/22"), ("/ip4/10.9.0.2/tcp/4",), (LAN,)),
        ((LAN, "/ip4/127.0.0.1/tcp/22"), ("/ip4/127.0.0.1/tcp/4",), (LAN, "/ip4/127.0.0.1/tcp/22")),
        (("/ip4/224.0.0.1/tcp/4001", "/dns4/inside.example/tcp/80", "nonsense"), (OURS,), ()),
        (tuple(f"/ip4/8.8.4.{n}/tcp/4001" for n in range(1, 20)), (OURS,), None),
    ],
    ids=["a stranger's private one", "a neighbour's", "a private internet", "one machine", "others", "many"],
)
def test_nobody_has_us_knock_at_doors_of_our_own_network(
    announced: tuple[str, ...], observed: tuple[str, ...], dialled: tuple[str, ...] | None
) -> None:
    assert targets(announced, observed) == (announced[:MAX_TARGETS] if dialled is None else dialled)


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(0.01)


Start = tuple[HostNetwork, HostNetwork, HostNetwork]


@pytest.fixture
async def three() -> AsyncIterator[Start]:
    """A gate, a node with a place there, and a caller."""
    async with AsyncExitStack() as stack:
        stack.enter_context(trio.fail_after(60))
        gate, node, caller = [
            await stack.enter_async_context(
                open_host(
                    Identity.from_seed(name),
                    listen=["/ip4/127.0.0.1/tcp/0"],
                    rng=random.Random(1),
                )
            )
            for name in ("gate", "node", "caller")
        ]
        gate.serve_relay(RelayReservations())
        for one in (node, caller):
            one.handle(ECHO, echo)
        yield gate, node, caller


async def test_a_direct_connection_replaces_a_circuit_and_streams_stay_where_they_are(
    three: Start,
) -> None:
    gate, node, caller = three
    place = await node.reserve(gate.peer_id, gate.addresses)
    old = await caller.open(node.peer_id, ECHO, [place.address])
    await until(lambda: bool((path := caller.path(node.peer_id)) and path.direct))
    await until(lambda: bool((path := node.path(caller.peer_id)) and path.direct))
    new = await caller.open(node.peer_id, ECHO)
    back = await node.open(caller.peer_id, ECHO)
    for stream in (old, new, back):
        await stream.send_all(b"still here")
        assert await stream.receive_some() == b"still here"
    assert caller.remote_address(node.peer_id) == node.addresses[0]
    (circuit,) = node.swarm.relayed(ID(peer_id_bytes(caller.peer_id)))
    await circuit.close()  # the direct connection stays
    with pytest.raises(trio.BrokenResourceError):
        await old.receive_some()
    await new.send_all(b"and on")
    assert await new.receive_some() == b"and on"


async def test_a_kept_link_moves_to_the_direct_connection_and_gives_the_circuit_free(three: Start) -> None:
    gate, node, caller = three
    place = await node.reserve(gate.peer_id, gate.addresses)
    came: list[Link] = []

    async def answer(link: Link, message: Message) -> Message:
        came.append(link)
        return Pong(role="worker", incarnation=1)

    serve_links(node, ProtocolId.HEALTH, HEALTH, answer)
    async with trio.open_nursery() as nursery:
        links = Links(caller, ProtocolId.HEALTH, HEALTH, nursery)
        first = await links.get(node.peer_id, [place.address])
        assert first.relayed
        await until(lambda: links.detours(first))
        await links.call(node.peer_id, (), Ping())
        await first.closed.wait()
        await until(lambda: came[-1].peer == caller.peer_id and not came[-1].relayed)
        await node.disconnect(gate.peer_id)
        assert isinstance(await links.call(node.peer_id, (), Ping()), Pong)
        assert came[-1] is came[-2], "the same link, which no gate's end can break"
        nursery.cancel_scope.cancel()


@pytest.mark.patient
async def test_somebody_else_at_an_address_that_a_peer_sent_is_dialled_once_a_try(three: Start) -> None:
    """A peer may tell where anybody is, to have us call there again and again."""
    _, node, caller = three
    calls = 0

    async def other(stream: trio.SocketStream) -> None:
        nonlocal calls
        calls += 1
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, other, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        puncher, peer = node._relays._puncher, ID(peer_id_bytes(caller.peer_id))
        assert not await puncher._within(1.0, peer, [f"/ip4/127.0.0.1/tcp/{port}"])
        nursery.cancel_scope.cancel()
    assert calls == 1


@pytest.mark.slow
@pytest.mark.patient
async def test_few_tries_are_answered_at_a_time_whoever_asks(three: Start) -> None:
    gate, node, _ = three
    place = await node.reserve(gate.peer_id, gate.addresses)
    async with AsyncExitStack() as stack:
        streams: list[Stream] = []
        for number in range(MAX_AT_ONCE + 1):
            asker = await stack.enter_async_context(open_host(Identity.from_seed(f"asker {number}")))
            node._relays._puncher._busy.add(ID(peer_id_bytes(asker.peer_id)))  # it does not begin by itself
            streams.append(await asker.open(node.peer_id, DCUTR, [place.address]))
            await until(lambda: node._relays._puncher._answering == min(len(streams), MAX_AT_ONCE))
        with trio.fail_after(ANSWER_WITHIN_S / 2), pytest.raises(trio.BrokenResourceError):
            await streams[-1].receive_some()


@pytest.mark.slow
@pytest.mark.patient
async def test_a_called_node_begins_with_few_peers_at_a_time_and_the_others_have_their_turn(
    three: Start,
) -> None:
    """Whoever has a key may call it, and have it dial addresses again and again."""
    gate, node, _ = three
    asked, go_on = list[str](), trio.Event()

    async def slowly(stream: Stream) -> None:
        asked.append(stream.peer)
        await go_on.wait()

    place = await node.reserve(gate.peer_id, gate.addresses)
    async with AsyncExitStack() as stack:
        callers = [
            await stack.enter_async_context(open_host(Identity.from_seed(f"caller {number}")))
            for number in range(MAX_AT_ONCE + 1)
        ]
        for caller in callers:
            caller.host.multiselect.remove_handler(TProtocol(DCUTR))
            caller.handle(DCUTR, slowly)
            await caller.open(node.peer_id, ECHO, [place.address])
        await until(lambda: len(asked) == MAX_AT_ONCE)
        assert node._relays._puncher._beginning.value == 0
        go_on.set()
        await until(lambda: len(asked) > MAX_AT_ONCE)


async def test_hole_punching_is_not_spoken_on_a_direct_connection(three: Start) -> None:
    _, node, caller = three
    stream = await caller.open(node.peer_id, DCUTR, node.addresses)
    victim = Multiaddr("/ip4/127.0.0.1/tcp/1").to_bytes()

    async def say_and_listen() -> None:
        await write_message(stream, HolePunch(type=HolePunch.CONNECT, ObsAddrs=[victim]))
        await stream.receive_some()

    with pytest.raises(trio.BrokenResourceError):  # at the send, where the node resets the stream first
        await say_and_listen()
