"""From a circuit to a direct connection: what is sent, what is dialled, and the whole procedure on loopback."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

import pytest
import trio
from libp2p.custom_types import TProtocol
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.stream.net_stream import NetStream
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
from swarm.p2p.dialler import is_relayed
from swarm.p2p.yamux import BoundedYamux
from swarm.relay import hole_punch
from swarm.relay.hole_punch import ANSWER_WITHIN_S, MAX_AT_ONCE, MAX_TARGETS, MAX_TRIED, candidates, targets
from swarm.relay.wire import DCUTR, read_message, write_message

ECHO = "/sark/echo/1"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
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
    ("announced", "observed", "called", "chosen"),
    [
        ((PUBLIC, LAN), (OURS,), (PUBLIC,), (PUBLIC,)),
        (("/ip4/8.8.8.8/tcp/4001", LAN), (OURS,), ("/ip4/8.8.8.8/tcp/4001",), ("/ip4/8.8.8.8/tcp/4001", LAN)),
        ((LAN, "/ip4/127.0.0.1/tcp/22"), ("/ip4/10.9.0.2/tcp/4",), (LAN,), (LAN,)),
        ((LAN, "/ip4/127.0.0.1/tcp/22"), ("/ip4/127.0.0.1/tcp/4",), None, None),
        (("/ip4/224.0.0.1/tcp/4001", "/dns4/inside.example/tcp/80", "nonsense"), (OURS,), (), ()),
        (tuple(f"/ip4/8.8.4.{n}/tcp/4001" for n in range(1, 20)), (OURS,), None, None),
    ],
    ids=["a stranger's private one", "a neighbour's", "a private internet", "one machine", "others", "many"],
)
def test_nobody_has_us_knock_at_doors_of_our_own_network(
    announced: tuple[str, ...],
    observed: tuple[str, ...],
    called: tuple[str, ...] | None,
    chosen: tuple[str, ...] | None,
) -> None:
    """`called`: the addresses dialled of a peer that called us; `chosen`: of one that we called. None: all, as far as there is room."""
    for dialled, ours in ((called, False), (chosen, True)):
        expected = announced[:MAX_TARGETS] if dialled is None else dialled
        assert targets(announced, observed, chosen=ours) == expected


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(0.01)


Start = tuple[HostNetwork, HostNetwork, HostNetwork]


@pytest.fixture
async def three() -> AsyncIterator[Start]:
    """A gate, a node with a reservation there, and a caller."""
    async with AsyncExitStack() as stack:
        stack.enter_context(trio.fail_after(60))
        gate, node, caller = [
            await stack.enter_async_context(
                open_host(
                    Identity.from_seed(name),
                    listen=[LOOPBACK],
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


async def test_a_stream_that_meets_the_end_of_its_connection_is_opened_on_another(
    three: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, node, caller = three
    place = await node.reserve(gate.peer_id, gate.addresses)
    kept = await caller.open(node.peer_id, ECHO, [place.address])
    await until(lambda: bool((path := caller.path(node.peer_id)) and path.direct))
    open_on, closed = caller.host.open_on, list[SwarmConn]()

    async def closing(conn: SwarmConn, protocols: Sequence[TProtocol]) -> NetStream:
        if not closed:
            closed.append(conn)
            await conn.close()
        return await open_on(conn, protocols)

    monkeypatch.setattr(caller.host, "open_on", closing)
    stream = await caller.open(node.peer_id, ECHO)
    assert not is_relayed(closed[0])
    for each in (kept, stream):
        await each.send_all(b"still here")
        assert await each.receive_some() == b"still here"


async def test_a_kept_link_moves_to_the_direct_connection_and_gives_the_circuit_free(
    three: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hole_punch, "PAUSE_S", 1.0)  # a busy machine may need more than three tries
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
        await until(lambda: links.is_needlessly_relayed(first))
        await links.call(node.peer_id, (), Ping())
        await first.closed.wait()
        await until(lambda: came[-1].peer == caller.peer_id and not came[-1].relayed)
        await node.disconnect(gate.peer_id)
        assert isinstance(await links.call(node.peer_id, (), Ping()), Pong)
        assert came[-1] is came[-2], "the same link, which no gate's end can break"
        nursery.cancel_scope.cancel()


@pytest.mark.patient
async def test_somebody_else_at_an_address_that_a_peer_sent_is_dialled_once_a_try(three: Start) -> None:
    """A peer may name the address of anybody, to make us dial it again and again."""
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
        assert not await puncher._dial_within(
            1.0, peer, [partial(puncher._dial, peer, f"/ip4/127.0.0.1/tcp/{port}", as_responder=False)]
        )
        nursery.cancel_scope.cancel()
    assert calls == 1


async def test_only_a_node_that_we_called_may_have_us_dial(three: Start) -> None:
    """Any stranger may call a node and tell it addresses."""
    gate, node, _ = three
    place = await node.reserve(gate.peer_id, gate.addresses)
    async with open_host(Identity.from_seed("stranger")) as stranger:
        stream = await stranger.open(node.peer_id, DCUTR, [place.address])
        await _asked_in_vain(stream)


async def test_the_called_node_begins_and_the_dialler_answers(three: Start) -> None:
    gate, node, caller = three
    asked = _answer_by(caller, _nothing)
    asked_of_called = _answer_by(node, _nothing)
    place = await node.reserve(gate.peer_id, gate.addresses)
    await caller.open(node.peer_id, ECHO, [place.address])
    await until(lambda: bool(asked))
    assert asked[0] == node.peer_id
    await until(
        lambda: bool((path := caller.path(node.peer_id)) and path.direct)
    )  # by a plain dial, because it announces where it listens
    assert not asked_of_called


async def test_tries_with_a_peer_are_counted_whoever_begins(three: Start) -> None:
    gate, node, caller = three
    puncher, peer = node._relays._puncher, ID(peer_id_bytes(caller.peer_id))
    asked = _answer_by(caller, _nothing)
    for _ in range(MAX_TRIED - 1):
        assert puncher._take_try(peer)
    place = await node.reserve(gate.peer_id, gate.addresses)
    await caller.open(node.peer_id, ECHO, [place.address])
    await until(lambda: bool(asked))
    await until(lambda: peer not in puncher._in_progress)
    assert len(asked) == 1
    assert puncher._tries_by_peer[peer] == MAX_TRIED + 1


async def test_a_called_node_dials_few_peers_at_a_time_and_the_others_have_their_turn(three: Start) -> None:
    """Anyone with a key may call a node, and make it dial addresses again and again."""
    gate, node, _ = three
    dialled = set[int]()

    async def swallow(stream: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            async for _ in stream:
                pass

    async def answer(number: int, where: str, stream: Stream) -> None:
        await _answer_with(stream, where)
        dialled.add(number)

    place = await node.reserve(gate.peer_id, gate.addresses)
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, swallow, 0, host="127.0.0.1"))
        where = f"/ip4/127.0.0.1/tcp/{listener.socket.getsockname()[1]}"
        async with AsyncExitStack() as stack:
            for number in range(MAX_AT_ONCE + 1):
                caller = await stack.enter_async_context(open_host(Identity.from_seed(f"caller {number}")))
                _answer_by(caller, partial(answer, number, where))
                _silence(caller)
                await caller.open(node.peer_id, ECHO, [place.address])
            await until(lambda: len(dialled) == MAX_AT_ONCE)
            assert node._relays._puncher._punching_slots.value == 0
            await until(lambda: len(dialled) > MAX_AT_ONCE)
        nursery.cancel_scope.cancel()


async def test_callers_that_do_not_answer_keep_nobody_waiting(three: Start) -> None:
    gate, node, caller = three
    asked = 0

    async def keep_still(stream: Stream) -> None:
        nonlocal asked
        asked += 1
        await trio.sleep_forever()

    place = await node.reserve(gate.peer_id, gate.addresses)
    async with AsyncExitStack() as stack:
        for number in range(MAX_AT_ONCE):
            stranger = await stack.enter_async_context(open_host(Identity.from_seed(f"stranger {number}")))
            _answer_by(stranger, keep_still)
            _silence(stranger)
            await stranger.open(node.peer_id, ECHO, [place.address])
        await until(lambda: asked == MAX_AT_ONCE)
        _silence(caller)
        await caller.open(node.peer_id, ECHO, [place.address])
        with trio.fail_after(ANSWER_WITHIN_S / 2):
            await until(lambda: bool((path := caller.path(node.peer_id)) and path.direct))


async def test_a_circuit_is_closed_once_it_is_replaced_and_no_stream_is_on_it(
    three: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hole_punch, "IDLE_LOOK_S", 0.05)
    gate, node, caller = three
    called = ID(peer_id_bytes(node.peer_id))
    place = await node.reserve(gate.peer_id, gate.addresses)
    stream = await caller.open(node.peer_id, ECHO, [place.address])
    await until(lambda: bool((path := caller.path(node.peer_id)) and path.direct))
    (circuit,) = caller.swarm.relayed(called)
    looks = _counted(monkeypatch, circuit, "get_streams")
    await until(lambda: len(looks) > 3 or circuit.is_closed)
    assert not circuit.is_closed, "a stream is on it"
    await stream.aclose()
    await until(lambda: not caller.swarm.relayed(called))
    assert caller.swarm.direct(called) is not None


async def test_a_circuit_that_nothing_replaces_stays(three: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IDLE_LOOK_S", "BETWEEN_S"):
        monkeypatch.setattr(hole_punch, name, 0.05)
    gate, node, _ = three
    place = await node.reserve(gate.peer_id, gate.addresses)
    async with open_host(Identity.from_seed("other")) as other:  # it listens nowhere, and sends nothing
        _silence(other)
        asked = _answer_by(other, _nothing)
        stream = await other.open(node.peer_id, ECHO, [place.address])
        await stream.aclose()
        await until(lambda: bool(asked) and not node._relays._puncher._in_progress)
        (circuit,) = node.swarm.relayed(ID(peer_id_bytes(other.peer_id)))
        await until(lambda: not circuit.get_streams())
        looks = _counted(monkeypatch, node.swarm, "direct")
        await until(lambda: len(looks) > 6 or not node.swarm.lives(circuit))
        assert node.swarm.lives(circuit)


@pytest.mark.parametrize("listens", ["caller", "node"])
async def test_one_side_that_can_be_reached_is_enough(listens: str) -> None:
    """A public scheduler calls a worker at home, or one at home calls a public worker of which it only knows the circuit."""
    async with AsyncExitStack() as stack:
        stack.enter_context(trio.fail_after(30))
        gate, node, caller = [
            await stack.enter_async_context(
                open_host(Identity.from_seed(name), listen=[LOOPBACK] if name in ("gate", listens) else [])
            )
            for name in ("gate", "node", "caller")
        ]
        gate.serve_relay(RelayReservations())
        node.handle(ECHO, echo)
        place = await node.reserve(gate.peer_id, gate.addresses)
        await caller.open(node.peer_id, ECHO, [place.address])
        with trio.fail_after(5.0):
            await until(lambda: bool((path := caller.path(node.peer_id)) and path.direct))
        (conn,) = node.swarm.all_direct(ID(peer_id_bytes(caller.peer_id)))
        muxed = conn.muxed_conn
        assert isinstance(muxed, BoundedYamux)
        with trio.fail_after(5.0):  # the caller wanted it, whichever side dialled in the end
            await until(lambda: muxed.arrived)
        held = node.swarm.gater._held.total()
        await caller.disconnect(node.peer_id)
        await until(lambda: node.swarm.gater._held.total() < held)


async def test_one_direct_connection_replaces_a_circuit(three: Start) -> None:
    gate, node, caller = three
    place = await node.reserve(gate.peer_id, gate.addresses)
    stream = await caller.open(node.peer_id, ECHO, [place.address])
    puncher, called = caller._relays._puncher, ID(peer_id_bytes(node.peer_id))
    await until(lambda: bool((path := caller.path(node.peer_id)) and path.direct))
    await until(lambda: called not in puncher._in_progress)
    assert len(caller.swarm.all_direct(called)) == 1
    await stream.aclose()


@pytest.mark.parametrize("dialled", ["by us", "by the peer"])
async def test_a_peer_without_hole_punching_is_dialled_where_it_says_that_it_listens(
    three: Start, dialled: str
) -> None:
    gate, node, caller = three
    foreign, ours = (node, caller) if dialled == "by us" else (caller, node)
    foreign.host.multiselect.remove_handler(TProtocol(DCUTR))
    _silence(foreign)
    place = await node.reserve(gate.peer_id, gate.addresses)
    await caller.open(node.peer_id, ECHO, [place.address])
    if dialled == "by the peer":  # the peer can be asked and does not answer, so the circuit stays
        await until(lambda: not ours._relays._puncher._in_progress)
        assert ours.swarm.relayed(ID(peer_id_bytes(foreign.peer_id)))
    else:
        await until(lambda: bool((path := ours.path(foreign.peer_id)) and path.direct))


NOISE = b"\x13/multistream/1.0.0\n" + b"\x07/noise\n"


@pytest.mark.parametrize(
    "answers",
    [
        (NOISE, b"\0\x20" + b"\1" * 32, b"\0\x90" + b"\2" * 0x90),
        (NOISE, b"\0\0", b"\0\0"),
        (NOISE, b"\0\x05abcde"),
        (NOISE, b"\0\x20" + bytes(32), b"\0\x90" + b"\3" * 0x90),
        (NOISE, b"\0\x20" + b"\xff" * 32, b"\xff\xff" + b"\4" * 0xFFFF),
        (b"\x13/multistream/1.0.0\n", b"\5" * 100),
        (b"\xff" * 12,),
    ],
    ids=["another's proof", "empty", "short", "zeros", "long", "no protocol", "no name"],
)
async def test_what_a_stranger_sends_to_a_dial_as_responder_ends_that_dial_alone(
    three: Start, answers: tuple[bytes, ...]
) -> None:
    gate, node, caller = three
    came = 0

    async def hostile(stream: trio.SocketStream) -> None:
        nonlocal came
        came += 1
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            for answer in answers:
                await stream.send_all(answer)
                with trio.move_on_after(0.05):
                    await stream.receive_some()
            await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, hostile, 0, host="127.0.0.1"))
        place_of_stranger = f"/ip4/127.0.0.1/tcp/{listener.socket.getsockname()[1]}"

        _answer_by(caller, partial(_answer_with, where=place_of_stranger))
        puncher, peer = node._relays._puncher, ID(peer_id_bytes(caller.peer_id))
        _silence(caller)
        place = await node.reserve(gate.peer_id, gate.addresses)
        await caller.open(node.peer_id, ECHO, [place.address])
        await until(lambda: came > 0)
        assert not await puncher._dial_within(
            1.0, peer, [partial(puncher._dial, peer, place_of_stranger, as_responder=True)]
        )
        nursery.cancel_scope.cancel()
    stream = await caller.open(node.peer_id, ECHO, node.addresses)
    await stream.send_all(b"still here")
    assert await stream.receive_some() == b"still here"


async def _nothing(stream: Stream) -> None:
    """Close the stream."""


async def _answer_with(stream: Stream, where: str) -> None:
    """Answer, up to SYNC."""
    await read_message(stream, HolePunch())
    named = [Multiaddr(where).to_bytes()]
    await write_message(stream, HolePunch(type=HolePunch.CONNECT, ObsAddrs=named))
    await read_message(stream, HolePunch())


def _answer_by(host: HostNetwork, handler: Callable[[Stream], Awaitable[None]]) -> list[str]:
    """Let `handler` answer peers that want to punch; returns their peer ids, appended as they come."""
    asked: list[str] = []

    async def note(stream: Stream) -> None:
        asked.append(stream.peer)
        await handler(stream)

    host.host.multiselect.remove_handler(TProtocol(DCUTR))
    host.handle(DCUTR, note)
    return asked


def _counted(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[object]:
    """Record what each call of a method returns."""
    gave: list[object] = []
    method = getattr(owner, name)

    def call(*arguments: object) -> object:
        gave.append(method(*arguments))
        return gave[-1]

    monkeypatch.setattr(owner, name, call)
    return gave


def _silence(host: HostNetwork) -> None:
    """Stop the host from trying direct connections by itself."""
    host._relays._puncher.connected = lambda conn: None  # type: ignore[method-assign]


async def _asked_in_vain(stream: Stream) -> None:
    """Check that the peer resets the stream when it is asked, possibly already during the send."""
    victim = Multiaddr("/ip4/127.0.0.1/tcp/1").to_bytes()

    async def ask() -> None:
        await write_message(stream, HolePunch(type=HolePunch.CONNECT, ObsAddrs=[victim]))
        await stream.receive_some()

    with pytest.raises(trio.BrokenResourceError):
        await ask()


async def test_hole_punching_is_not_spoken_on_a_direct_connection(three: Start) -> None:
    _, node, caller = three
    await _asked_in_vain(await caller.open(node.peer_id, DCUTR, node.addresses))
