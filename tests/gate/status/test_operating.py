"""Operating a gate over real libp2p on loopback: its status, its metrics, its admission, and a restart while it is in use."""

from __future__ import annotations

import random
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio

from gate.service import full_addresses, run_gate
from gate.settings import Admit, GateSettings
from gate.status.client import asking
from protocol.errors import NotPermitted, Refused, Unreachable
from protocol.values.advert import Advert
from protocol.values.requirement import Requirement
from protocol.words import Role
from swarm.base.home import Home
from swarm.join.host import HostNetwork, open_host
from swarm.join.node import RunningNode, open_node
from swarm.net.identity import Identity, load_or_create
from swarm.net.network import Stream
from swarm.net.settings import RoleSettings
from swarm.pools.enrolment import invite
from swarm.pools.membership import join_pool
from swarm.pools.owner import MemberTerms, create_pool
from swarm.pools.service import PoolNode

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
OF_A_ROLE = RoleSettings(listen=LOOPBACK)


@asynccontextmanager
async def running(home: Home, **more: object) -> AsyncIterator[RunningNode]:
    settings = GateSettings.model_validate({"listen": LOOPBACK, **more})
    async with trio.open_nursery() as nursery:
        yield await nursery.start(run_gate, home, settings)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def passing(gates: tuple[str, ...]) -> AsyncIterator[HostNetwork]:
    async with open_host(Identity.fresh(), bootstrap=gates, rng=random.Random()) as network:
        yield network


async def until(what: Callable[[], Awaitable[bool]], within_s: float = 40.0) -> None:
    with trio.fail_after(within_s):
        while not await what():
            await trio.sleep(0.1)


async def test_its_own_home_reads_how_a_gate_stands_and_a_stranger_does_not(tmp_path: Path) -> None:
    home, elsewhere = Home.at(tmp_path / "gate"), Home.at(tmp_path / "elsewhere")
    async with running(home) as here, passing(full_addresses(here)) as guest:
        place = await guest.reserve(here.identity.peer_id, here.network.addresses)
        assert place.gate == here.identity.peer_id
        async with asking(home, full_addresses(here)) as client:
            snapshot = await client.status()
        assert snapshot.connected >= 2
        assert snapshot.reservations == 1
        assert snapshot.caps is not None
        assert any(observed.peer == guest.peer_id and observed.reserved for observed in snapshot.peers)
        async with asking(elsewhere, full_addresses(here)) as client:
            with pytest.raises(NotPermitted, match="operators"):
                await client.status()


async def test_an_operator_elsewhere_reads_it_once_it_is_named(tmp_path: Path) -> None:
    elsewhere = Home.at(tmp_path / "elsewhere")
    me = load_or_create(elsewhere.key("scheduler")).peer_id
    async with (
        running(Home.at(tmp_path / "gate"), operators=(me,)) as here,
        asking(elsewhere, full_addresses(here)) as client,
    ):
        assert (await client.status()).admit == "open"


async def test_an_absent_gate_is_reported_as_unreachable(tmp_path: Path) -> None:
    gate = f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.fresh().peer_id}"
    for gates, what in (((), "knows no gate"), ((gate,), "no gate answers")):
        with pytest.RaisesGroup(Unreachable, allow_unwrapped=True, flatten_subgroups=True) as caught:
            async with asking(Home.at(tmp_path), gates):
                pytest.fail("there is none")
        assert what in str(
            caught.value.exceptions if isinstance(caught.value, BaseExceptionGroup) else caught.value
        )


async def test_prometheus_reads_a_running_gate(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with (
        running(Home.at(tmp_path), metrics=f"127.0.0.1:{port}") as here,
        passing(full_addresses(here)) as guest,
    ):
        await guest.reserve(here.identity.peer_id, here.network.addresses)
        async with httpx.AsyncClient(trust_env=False) as http:
            page = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
        assert "sark_gate_relay_reservations 1.0" in page
        assert "sark_gate_connected_peers 1.0" in page
        assert f'peer="{here.identity.peer_id}"' in page


async def test_a_gate_for_tickets_serves_who_has_one_and_lends_strangers_nothing(tmp_path: Path) -> None:
    home, guest = Home.at(tmp_path / "gate"), Home.at(tmp_path / "guest")
    pool = create_pool(home, "lab")
    async with running(home, admit=Admit.TICKET) as here, passing(full_addresses(here)) as stranger:
        gates = full_addresses(here)
        with pytest.raises(Refused):
            await stranger.reserve(here.identity.peer_id, here.network.addresses)
        ticket, _ = invite(
            pool, gates, MemberTerms(role=Role.WORKER, ttl_s=3600), now=time.time(), for_s=600.0, uses=1
        )
        me = load_or_create(guest.key("worker")).peer_id
        join_pool(guest, ticket, Role.WORKER, me, now=time.time())
        settings = RoleSettings(listen=LOOPBACK, gates=gates)
        async with (
            open_node("worker", guest, settings, holder=True) as worker,
            trio.open_nursery() as nursery,
        ):
            pools = PoolNode(
                worker.network, worker.index, guest, Role.WORKER, name="n", wall=time.time, rng=worker.rng
            )
            pools.serve()
            await nursery.start(pools.run)
            await worker.index.publish(Advert(peer=me, seq=0, device="d-1", name="n"))

            async def indexed() -> bool:
                return here.index.holder.nodes == 1

            await until(indexed)
            assert (await worker.network.reserve(here.identity.peer_id, here.network.addresses)).ttl_s > 0
            nursery.cancel_scope.cancel()
        async with asking(home, gates) as client:
            refused = (await client.status()).refused
        assert refused["relay not-allowed"] >= 1


@pytest.mark.slow
async def test_a_gate_that_comes_back_with_its_key_and_port_has_its_nodes_back(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "gate")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    listen = (f"/ip4/127.0.0.1/tcp/{port}",)

    async def life(stop: trio.Event, over: trio.Event, *, task_status: trio.TaskStatus[RunningNode]) -> None:
        async with running(home, listen=listen) as here:
            task_status.started(here)
            await stop.wait()
        over.set()

    async with trio.open_nursery() as nursery:
        stop, over = trio.Event(), trio.Event()
        here: RunningNode = await nursery.start(life, stop, over)
        gates = full_addresses(here)
        settings = RoleSettings(listen=LOOPBACK, gates=gates)
        async with (
            open_node("worker", Home.at(tmp_path / "worker"), settings, holder=False) as worker,
            open_node("scheduler", Home.at(tmp_path / "seeker"), settings, holder=False) as seeker,
        ):
            await worker.index.publish(Advert(peer=worker.identity.peer_id, seq=0, device="d-1", name="n"))
            stop.set()
            await over.wait()
            back: RunningNode = await nursery.start(life, trio.Event(), trio.Event())
            assert full_addresses(back) == gates

            async def found() -> bool:
                devices = (await seeker.index.query(Requirement(), 4)).devices
                return [item.advert.peer for item in devices] == [worker.identity.peer_id]

            await until(found)
            place = await worker.network.reserve(back.identity.peer_id, back.network.addresses)
            assert place.gate == back.identity.peer_id
        nursery.cancel_scope.cancel()


async def test_a_stop_lets_running_circuits_end_and_a_second_stop_ends_them(tmp_path: Path) -> None:
    lines: list[str] = []
    over = trio.Event()
    settings = GateSettings(listen=LOOPBACK, drain_s=600)

    async def life(*, task_status: trio.TaskStatus[RunningNode]) -> None:
        await run_gate(Home.at(tmp_path), settings, say=lines.append, task_status=task_status)
        over.set()

    async def echo(stream: Stream) -> None:
        while data := await stream.receive_some():
            await stream.send_all(data)

    async with trio.open_nursery() as nursery:
        here: RunningNode = await nursery.start(life)
        gate, gates = here.network.addresses, full_addresses(here)
        async with passing(gates) as behind, passing(gates) as caller, passing(gates) as late:
            behind.handle("/sark/echo", echo)
            place = await behind.reserve(here.identity.peer_id, gate)
            stream = await caller.open(behind.peer_id, "/sark/echo", place.addresses)
            signal.raise_signal(signal.SIGTERM)

            async def drains() -> bool:
                return any(line.startswith("draining: 1 relayed connection may finish") for line in lines)

            await until(drains)
            with pytest.raises(Refused):
                await late.reserve(here.identity.peer_id, gate)
            await stream.send_all(b"still here")
            assert await stream.receive_some() == b"still here"
            assert not over.is_set()
            signal.raise_signal(signal.SIGINT)
            with trio.fail_after(20):
                await over.wait()
        assert lines[-1] == "stopping"
        assert not Home.at(tmp_path).gate_file.exists()
