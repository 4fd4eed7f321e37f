"""Starting, stopping and staying connected, with real sockets on loopback."""

from __future__ import annotations

import math
import random
import socket
from collections.abc import Callable
from functools import partial

import pytest
import trio
import trio.testing
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from protocol.errors import ResourceError, Unreachable
from swarm.base.logs import LimitLines
from swarm.join.host import HostNetwork, open_host
from swarm.net.addresses import expand_wildcards, parse_tcp, split_peer, usable
from swarm.net.cost import PeerClass
from swarm.net.identity import Identity, peer_id_bytes
from swarm.net.network import Stream
from swarm.p2p.dialler import WrongPeerAnswered
from swarm.p2p.yamux import BoundedYamux

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
ECHO = "/test/echo/1"


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(0.005)


async def test_a_taken_port_is_one_clear_line() -> None:
    async with open_host(Identity.from_seed(1), listen=[LOOPBACK]) as node:
        address = parse_tcp(node.addresses[0])
        assert address is not None
        with pytest.raises(ResourceError, match=f"port {address.port} is taken") as caught:
            async with open_host(Identity.from_seed(2), listen=[str(address)]):
                pass
        assert "--listen" in caught.value.hint


async def test_its_addresses_are_made_again_only_once_those_of_the_machine_have_changed() -> None:
    async with open_host(Identity.from_seed(1), listen=[LOOPBACK]) as node:
        made, get = list[None](), node.host.get_addrs

        def counted() -> list[Multiaddr]:
            made.append(None)
            return get()

        node.host.get_addrs = counted  # type: ignore[method-assign]
        before = node.addresses
        node._listed_at = -math.inf
        assert node.addresses == before
        many = len(made)
        assert many <= 1  # 0: the addresses were read before
        node._interfaces, node._listed_at = (), -math.inf  # as if it had had none
        assert node.addresses == before
        assert len(made) == many + 1


@pytest.mark.parametrize(
    ("listen", "bootstrap", "expected"),
    [
        (["/ip4/127.0.0.1/udp/4001"], [], "cannot listen on '/ip4/127.0.0.1/udp/4001'"),
        (["/dns4/example.org/tcp/4001"], [], "cannot listen on"),
        (["here"], [], "cannot listen on 'here'"),
        (["/ip4/192.0.2.1/tcp/4001"], [], "is not an address of this machine"),
        ([LOOPBACK], ["/ip4/127.0.0.1/tcp/4001"], "invalid gate address"),
        ([LOOPBACK], ["/ip4/127.0.0.1/tcp/4001/p2p/me"], "invalid gate address"),
        (
            [LOOPBACK],
            [f"/dns4/exämple.org/tcp/4001/p2p/{Identity.from_seed(1).peer_id}"],
            "not in ASCII; write names as xn",
        ),
    ],
)
async def test_an_address_that_makes_no_sense_is_one_clear_line(
    listen: list[str], bootstrap: list[str], expected: str
) -> None:
    with pytest.raises(ResourceError, match=expected) as caught:
        async with open_host(Identity.from_seed(1), listen=listen, bootstrap=bootstrap):
            pass
    assert caught.value.hint


async def test_what_the_callers_block_raises_comes_out_as_it_was() -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_host(Identity.from_seed(1), listen=[LOOPBACK]):
            raise ZeroDivisionError


async def test_a_cancelled_node_closes_its_sockets() -> None:
    """Unclosed sockets cause warnings, and warnings are errors here."""
    async with open_host(Identity.from_seed(1), listen=[LOOPBACK]) as server:
        server.handle(ECHO, echo)
        with trio.CancelScope() as scope:
            async with open_host(Identity.from_seed(2)) as client:
                stream = await client.open(server.peer_id, ECHO, server.addresses)
                await stream.send_all(b"x")
                scope.cancel()
                await trio.sleep_forever()
        await until(lambda: server.connected() == ())


async def test_stopping_takes_less_than_a_second_with_many_connections() -> None:
    """A limit in libp2p would take 0.2 s for each connection; the deadline is far above the time needed."""
    async with (
        open_host(Identity.from_seed(0), listen=[LOOPBACK]) as server,
        trio.open_nursery() as nursery,
    ):
        ready: list[str] = []
        stop = trio.Event()

        async def visit(number: int) -> None:
            async with open_host(Identity.from_seed(number)) as client:
                await client.connect(server.peer_id, server.addresses)
                ready.append(client.peer_id)
                await stop.wait()

        for number in range(1, 9):
            nursery.start_soon(visit, number)
        await until(lambda: len(ready) == 8 and len(server.connected()) == 8)
        begun = trio.current_time()
        await server.swarm.close_all(0.6)
        assert trio.current_time() - begun < 1
        stop.set()


async def test_a_node_that_does_not_listen_has_no_address_and_can_still_be_called_back() -> None:
    async with (
        open_host(Identity.from_seed(1), listen=[LOOPBACK]) as server,
        open_host(Identity.from_seed(2)) as client,
    ):
        client.handle(ECHO, echo)
        assert client.addresses == ()
        await client.connect(server.peer_id, server.addresses)
        await until(lambda: server.connected() == (client.peer_id,))
        stream = await server.open(client.peer_id, ECHO)
        await stream.send_all(b"hello")
        assert await stream.receive_some() == b"hello"


async def test_a_restarted_gate_gets_its_nodes_back() -> None:
    gate = Identity.from_seed("gate")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        where = f"/ip4/127.0.0.1/tcp/{probe.getsockname()[1]}"
    with trio.fail_after(20):
        async with open_host(
            Identity.from_seed(1),
            listen=[LOOPBACK],
            bootstrap=[f"{where}/p2p/{gate.peer_id}"],
            rng=random.Random(1),
        ) as node:
            assert node.connected() == ()  # the gate is down, and the node has started anyway
            for _ in range(2):
                async with open_host(gate, listen=[where]):
                    await until(lambda: node.connected() == (gate.peer_id,))
                    await until(lambda: node.table.get(gate.peer_id) is not None)
                await until(lambda: node.connected() == ())


async def test_a_peer_that_accepts_and_says_nothing_times_out() -> None:
    silent = await trio.open_tcp_listeners(0, host="127.0.0.1")
    where = f"/ip4/127.0.0.1/tcp/{silent[0].socket.getsockname()[1]}"
    async with open_host(Identity.from_seed(1)) as node:
        with trio.fail_after(5), pytest.raises(Unreachable, match=r"within 0\.2 s"):
            await node.connect(Identity.from_seed(2).peer_id, [where], max_wait_s=0.2)
    await silent[0].aclose()


class Proxy:
    """A TCP proxy that can stop forwarding without closing anything, like a pulled cable or a phone in a tunnel."""

    def __init__(self, target: HostNetwork) -> None:
        address = parse_tcp(target.addresses[0])
        assert address is not None
        self._target = address
        self.cut = False

    async def run(self, *, task_status: trio.TaskStatus[str]) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(f"/ip4/127.0.0.1/tcp/{listeners[0].socket.getsockname()[1]}")
        await trio.serve_listeners(self._serve, listeners)

    async def _serve(self, near: trio.SocketStream) -> None:
        far = await trio.open_tcp_stream(self._target.host, self._target.port)
        async with near, far, trio.open_nursery() as nursery:
            nursery.start_soon(self._forward, near, far)
            nursery.start_soon(self._forward, far, near)

    async def _forward(self, source: trio.SocketStream, sink: trio.SocketStream) -> None:
        try:
            while data := await source.receive_some(65_536):
                if not self.cut:
                    await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


async def test_a_link_that_is_cut_silently_is_noticed_within_10_seconds() -> None:
    async with (
        open_host(Identity.from_seed(1), listen=[LOOPBACK]) as server,
        open_host(Identity.from_seed(2)) as client,
        trio.open_nursery() as nursery,
    ):
        server.handle(ECHO, echo)
        proxy = Proxy(server)
        where = await nursery.start(proxy.run)
        stream = await client.open(server.peer_id, ECHO, [where])
        await stream.send_all(b"x")
        assert await stream.receive_some() == b"x"
        proxy.cut = True
        with trio.fail_after(10):
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
            await until(lambda: (client.connected(), server.connected()) == ((), ()))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("cut", [True, False], ids=["silence", "no"])
async def test_a_connection_is_watched_once_somebody_has_waited_for_work_there_in_vain(cut: bool) -> None:
    """Otherwise the next caller of that peer would get the dead connection, too. A peer that refuses is alive."""
    async with (
        open_host(Identity.from_seed(1), listen=[LOOPBACK]) as server,
        open_host(Identity.from_seed(2)) as client,
        trio.open_nursery() as nursery,
    ):
        proxy = Proxy(server)
        await client.connect(server.peer_id, [await nursery.start(proxy.run)])
        conn = client.swarm.live(ID(peer_id_bytes(server.peer_id)))
        assert conn is not None
        muxed = conn.muxed_conn
        assert isinstance(muxed, BoundedYamux)
        assert not muxed.has_waiters
        proxy.cut = cut
        with pytest.raises(Unreachable):
            await client.open(server.peer_id, ECHO, max_wait_s=0.2 if cut else 20)
        assert muxed.has_waiters is cut
        nursery.cancel_scope.cancel()


# -- addresses ---------------------------------------------------------------------------------------------------------------


def test_a_wildcard_becomes_addresses_that_can_be_dialled() -> None:
    result = expand_wildcards(["/ip4/0.0.0.0/tcp/4001"])
    assert result
    assert all(address.endswith("/tcp/4001") and "/0.0.0.0/" not in address for address in result)
    loopback = [address for address in result if "/127." in address]
    assert not loopback or loopback == list(result)


def test_loopback_is_announced_when_asked_for() -> None:
    assert expand_wildcards(["/ip4/127.0.0.1/tcp/4001"]) == ("/ip4/127.0.0.1/tcp/4001",)


async def test_announced_addresses_replace_the_others() -> None:
    announced = "/ip4/192.0.2.7/tcp/4001"
    async with open_host(Identity.from_seed(1), listen=[LOOPBACK], announce=[announced]) as node:
        assert node.addresses == (announced,)


def test_only_what_can_be_dialled_is_kept_of_a_peers_addresses() -> None:
    offered = [
        "/ip4/192.0.2.7/tcp/4001/p2p/" + Identity.from_seed(1).peer_id,
        "/ip4/192.0.2.7/tcp/4001",
        "/ip4/0.0.0.0/tcp/4001",
        "/ip4/192.0.2.7/udp/4001/quic-v1",
        "/ip4/192.0.2.7/tcp/0",
        "/ip6/::1/tcp/4001",
        "/dns4/gate.example.org/tcp/4001",
        "nonsense",
        *(f"/ip4/192.0.2.{number}/tcp/1" for number in range(40)),
    ]
    stored = usable(offered)
    assert stored[:3] == ("/ip4/192.0.2.7/tcp/4001", "/ip6/::1/tcp/4001", "/dns4/gate.example.org/tcp/4001")
    assert len(stored) == 16


def test_a_peer_address_splits_in_two() -> None:
    peer = Identity.from_seed(1).peer_id
    assert split_peer(f"/ip4/192.0.2.7/tcp/4001/p2p/{peer}") == (peer, "/ip4/192.0.2.7/tcp/4001")
    with pytest.raises(ValueError, match="not of the form"):
        split_peer("/ip4/192.0.2.7/tcp/4001")


async def test_who_answers_instead_of_a_peer_is_named() -> None:
    required, result = Identity.from_seed(3), Identity.from_seed(1)
    async with (
        open_host(result, listen=[LOOPBACK]) as other,
        open_host(Identity.from_seed(2)) as node,
    ):
        with pytest.raises(Unreachable) as caught:
            await node.connect(required.peer_id, other.addresses)
    assert isinstance(caught.value.__cause__, WrongPeerAnswered)
    assert caught.value.__cause__.actual == result.peer_id


async def test_who_knows_where_a_peer_is_does_not_wait_for_somebody_who_asks_at_a_dead_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dead = f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}"
        async with (
            open_host(Identity.from_seed(1), listen=[LOOPBACK]) as peer,
            open_host(Identity.from_seed(2)) as node,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(partial(node.connect, peer.peer_id, [dead], max_wait_s=30.0))
            silent.settimeout(5)
            met, _ = await trio.to_thread.run_sync(silent.accept)
            with met:
                await node.connect(peer.peer_id, peer.addresses, max_wait_s=5.0)


async def test_a_caller_that_gives_up_on_a_dial_does_not_end_it_for_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dead = f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}"
        async with (
            open_host(Identity.from_seed(1), listen=[LOOPBACK]) as peer,
            open_host(Identity.from_seed(2)) as node,
            trio.open_nursery() as nursery,
        ):
            impatient = trio.CancelScope()

            async def ask_in_vain() -> None:
                with impatient:
                    await node.connect(peer.peer_id, [dead], max_wait_s=30.0)

            nursery.start_soon(ask_in_vain)
            silent.settimeout(5)
            met, _ = await trio.to_thread.run_sync(silent.accept)
            with met:
                nursery.start_soon(partial(node.connect, peer.peer_id, [dead], max_wait_s=30.0))
                await trio.testing.wait_all_tasks_blocked(0.05)
                impatient.cancel()
                await trio.testing.wait_all_tasks_blocked(0.05)
                await node.connect(peer.peer_id, peer.addresses, max_wait_s=5.0)


async def test_the_log_knows_a_nodes_strangers_while_it_runs() -> None:
    friend, stranger = (Identity.from_seed(n).peer_id for n in (901, 902))
    async with open_host(Identity.fresh()) as network:
        network.governor.class_of = lambda peer: PeerClass.KNOWN if peer == friend else PeerClass.STRANGER
        assert LimitLines.stranger_from(stranger) == ""
        assert LimitLines.stranger_from("no peer id") == ""
        assert LimitLines.stranger_from(friend) is None
        assert LimitLines.stranger_from(network.peer_id) is None
    assert LimitLines.stranger_from(stranger) is None
