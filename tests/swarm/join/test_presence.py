"""A node that cannot be dialled, its gate's restart, and nodes without any gate: real libp2p on loopback."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from gate.service import run_gate
from gate.settings import GateSettings
from protocol.messages.health import HEALTH, Ping, Pong
from protocol.values.advert import Advert
from protocol.words import ProtocolId
from swarm.base.home import Home
from swarm.join.known_gates import write_addresses
from swarm.join.node import RunningNode, open_node
from swarm.join.presence import MAX_NEAR, FallbackPeers, listens_beyond_loopback
from swarm.net.addresses import Contact
from swarm.net.identity import Identity, load_or_create, routing_key
from swarm.net.links import Links
from swarm.net.settings import RoleSettings
from swarm.reach.mdns import Lan
from swarm.reach.reachability import Reach

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
SETTINGS = RoleSettings(listen=LOOPBACK, lan=False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; the test's own deadline limits the wait."""
    while not condition():
        await trio.sleep(0.02)


@asynccontextmanager
async def gate_at(home: Home, port: int) -> AsyncIterator[RunningNode]:
    async with trio.open_nursery() as nursery:
        settings = GateSettings(listen=(f"/ip4/127.0.0.1/tcp/{port}",), lan=False)
        yield await nursery.start(run_gate, home, settings)
        nursery.cancel_scope.cancel()


def knows(here: RunningNode, other: RunningNode) -> bool:
    """Whether the other node is in this node's routing table."""
    peer = other.identity.peer_id
    return peer in {contact.peer for contact in here.network.table.closest(routing_key(peer), 4)}


def circuits(here: RunningNode) -> list[str]:
    return [address for address in here.addresses if address.endswith("/p2p-circuit")]


async def test_a_node_that_cannot_be_dialled_is_reached_through_its_gate_also_after_the_gates_restart(
    tmp_path: Path,
) -> None:
    port, outcome = free_port(), list[str]()
    gate_home = Home.at(tmp_path / "gate")
    peer = load_or_create(gate_home.key("gate")).peer_id
    way = f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}"
    nowhere = (
        f"/ip4/127.0.0.1/tcp/{free_port()}"  # the address that other nodes have for it, where nobody listens
    )
    shut_in = RoleSettings(gates=(way,), listen=LOOPBACK, announce=(nowhere,), lan=False)
    worker_home, seeker_home = Home.at(tmp_path / "worker"), Home.at(tmp_path / "seeker")
    with trio.fail_after(50):
        async with (
            trio.open_nursery() as nursery,
            gate_at(gate_home, port),
            open_node("worker", worker_home, shut_in, holder=True, tell=outcome.append) as worker,
        ):
            assert worker.reach is not None
            assert worker.index.holding
            await until(lambda: circuits(worker))
            assert worker.reach.reach is Reach.BEHIND
            assert not worker.index.holding
            advert = Advert(peer=worker.identity.peer_id, seq=0, device="d-1", name="n")
            await worker.index.publish(advert)
            seeker_settings = RoleSettings(gates=(way,), listen=LOOPBACK, lan=False)
            async with open_node("scheduler", seeker_home, seeker_settings, holder=False) as seeker:
                (result,) = (await seeker.index.everybody()).devices
                assert result.advert.addresses == worker.addresses
                links = Links(seeker.network, ProtocolId.HEALTH, HEALTH, nursery)
                link = await links.get(result.advert.peer, result.advert.addresses)
                assert await link.ask(Ping(), Pong) == Pong(role="worker", incarnation=1)
                path = seeker.network.path(result.advert.peer)
                assert path is not None
                assert (path.direct, path.via) == (False, peer)
            assert len(outcome) == 2
            assert "cannot be dialled" in outcome[0]
            nursery.cancel_scope.cancel()
    with trio.fail_after(50):
        async with open_node("worker", worker_home, shut_in, holder=True) as worker:
            for _ in range(2):
                async with gate_at(gate_home, port):
                    await until(lambda: circuits(worker))
                await until(lambda: not circuits(worker))


async def test_a_node_that_can_be_dialled_knows_it_at_once_and_dials_others_back(tmp_path: Path) -> None:
    port = free_port()
    gate_home = Home.at(tmp_path / "gate")
    with trio.fail_after(30):
        async with gate_at(gate_home, port) as gate:
            way = f"/ip4/127.0.0.1/tcp/{port}/p2p/{gate.identity.peer_id}"
            settings = RoleSettings(gates=(way,), listen=LOOPBACK, lan=False)
            async with open_node("worker", Home.at(tmp_path / "one"), settings, holder=True) as one:
                assert one.reach is not None
                await until(lambda: one.reach is not None and one.reach.reach is Reach.DIRECT)
                assert (one.addresses, one.index.holding) == (one.network.addresses, True)
                pairs = f"{one.network.addresses[0]}/p2p/{one.identity.peer_id}"
                others = RoleSettings(gates=(pairs,), listen=LOOPBACK, lan=False)
                async with open_node("worker", Home.at(tmp_path / "two"), others, holder=True) as two:
                    await until(lambda: two.reach is not None and two.reach.reach is Reach.DIRECT)


async def test_two_gates_get_to_know_each_other_through_a_node_that_nobody_can_dial(tmp_path: Path) -> None:
    ports = (free_port(), free_port())
    nowhere = f"/ip4/127.0.0.1/tcp/{free_port()}"
    with trio.fail_after(30):
        async with (
            gate_at(Home.at(tmp_path / "one"), ports[0]) as one,
            gate_at(Home.at(tmp_path / "two"), ports[1]) as two,
        ):
            ways = tuple(
                f"/ip4/127.0.0.1/tcp/{port}/p2p/{gate.identity.peer_id}"
                for port, gate in zip(ports, (one, two), strict=True)
            )
            shut_in = RoleSettings(gates=ways, listen=LOOPBACK, announce=(nowhere,), lan=False)
            async with open_node("worker", Home.at(tmp_path / "worker"), shut_in, holder=True) as worker:
                await until(lambda: len(circuits(worker)) == 2)
                await until(lambda: knows(one, two) and knows(two, one))


async def test_a_node_whose_gates_are_gone_comes_in_by_a_peer_it_knew(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "two")
    with trio.fail_after(30):
        async with open_node("worker", Home.at(tmp_path / "one"), SETTINGS, holder=True) as one:
            advert = Advert(peer=one.identity.peer_id, seq=0, device="d-1", name="one")
            await one.index.publish(advert)
            home.folder("worker").mkdir(parents=True)
            write_addresses(
                home.peers_file("worker"), [f"{one.network.addresses[0]}/p2p/{one.identity.peer_id}"]
            )
            dead = f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/{Identity.from_seed('gone').peer_id}"
            settings = RoleSettings(gates=(dead,), listen=LOOPBACK, lan=False)
            async with open_node("worker", home, settings, holder=True) as two:
                assert two.network.connected() == (one.identity.peer_id,)
                while not (devices := (await two.index.everybody()).devices):
                    await trio.sleep(0.05)  # the holders of a shard are asked again
                assert [item.advert.name for item in devices] == ["one"]


@pytest.mark.parametrize(
    ("listen", "beyond"),
    [
        (LOOPBACK, False),
        (("/ip6/::1/tcp/0",), False),
        (("/ip4/0.0.0.0/tcp/0",), True),
        ((*LOOPBACK, "/ip4/192.168.1.7/tcp/4001"), True),
        ((), False),
    ],
)
def test_a_node_that_listens_on_loopback_alone_is_nothing_for_the_lan(
    listen: tuple[str, ...], beyond: bool
) -> None:
    assert listens_beyond_loopback(listen) is beyond


def test_neighbours_on_the_lan_and_peers_of_before_are_ways_in_and_a_scheduler_has_its_workers_too(
    tmp_path: Path,
) -> None:
    home = Home.at(tmp_path)
    peers = [Identity.from_seed(n).peer_id for n in range(3)]
    lines = [f"/ip4/192.168.1.{n}/tcp/4001/p2p/{peer}" for n, peer in enumerate(peers, 1)]
    for role in ("worker", "scheduler"):
        home.folder(role).mkdir(parents=True)  # type: ignore[arg-type]
    write_addresses(home.peers_file("worker"), lines[:1])
    write_addresses(home.peers_file("scheduler"), lines[1:2])

    async def nothing(contact: Contact) -> bool:
        return False

    ways = FallbackPeers(home, "scheduler")
    assert ways() == (lines[1], lines[0])
    ways.lan = Lan("me", tuple, nothing)
    ways.lan.neighbours[peers[2]] = Contact(peers[2], ("/ip4/192.168.1.3/tcp/4001",))
    assert ways() == (lines[2], lines[1], lines[0])
    assert FallbackPeers(home, "worker")() == (lines[0],)

    crowd = [Identity.from_seed(n).peer_id for n in range(100, 140)]
    for peer in crowd:
        ways.lan.neighbours[peer] = Contact(peer, ("/ip4/192.168.1.9/tcp/4001",))
    first = [way.rpartition("/")[2] for way in ways()]
    assert first[:MAX_NEAR] == crowd[::-1][:MAX_NEAR], "the newest"
    assert first[MAX_NEAR:] == [peers[1], peers[0]], "known peers are tried, however many the LAN has"
