"""How a role joins the network and leaves it, over real libp2p on loopback."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
from pathlib import Path

import pytest
import trio
import trio.testing

from gate.service import run_gate
from gate.settings import GateSettings
from protocol.errors import ResourceError
from protocol.messages.health import HEALTH, Ping, Pong
from protocol.values.advert import Advert
from protocol.values.requirement import Requirement
from protocol.words import ProtocolId
from swarm.base.home import Home
from swarm.base.locks import lock_folder
from swarm.join.known_gates import local_gates, recent_gates, save_gates, worker_addresses, write_addresses
from swarm.join.node import LOCK_WAIT_S, RunningNode, open_node
from swarm.net.links import Links
from swarm.net.settings import RoleSettings

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
SETTINGS = RoleSettings(listen=LOOPBACK)


async def test_a_gate_is_found_by_its_home_and_leaves_no_address_behind(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    async with trio.open_nursery() as nursery:
        here: RunningNode = await nursery.start(run_gate, home, GateSettings(listen=LOOPBACK))
        assert local_gates(home) == tuple(
            f"{address}/p2p/{here.identity.peer_id}" for address in here.network.addresses
        )
        async with open_node("worker", home, SETTINGS, holder=True) as worker:
            assert worker.network.connected() == (here.identity.peer_id,)
            advert = Advert(peer=worker.identity.peer_id, seq=0, device="d-1", name="n")
            assert await worker.index.publish(advert) >= 1
            async with open_node("scheduler", home, SETTINGS, holder=False) as scheduler:
                result = await scheduler.index.query(Requirement(), 8)
                assert [item.advert.peer for item in result.devices] == [worker.identity.peer_id]
                links = Links(scheduler.network, ProtocolId.HEALTH, HEALTH, nursery)
                link = await links.get(here.identity.peer_id, here.network.addresses)
                assert await link.ask(Ping(), Pong) == Pong(role="gate", incarnation=1)
        async with open_node("scheduler", home, SETTINGS, holder=False) as scheduler:
            assert (
                await scheduler.index.query(Requirement(), 8)
            ).devices == ()  # the worker announced that it left
            assert scheduler.incarnation == 2
        nursery.cancel_scope.cancel()


async def test_what_a_node_imported_is_not_looked_at_again_by_the_garbage_collector(tmp_path: Path) -> None:
    assert gc.get_freeze_count() == 0
    async with open_node("scheduler", Home.at(tmp_path), SETTINGS, holder=False):
        assert gc.get_freeze_count() > len(sys.modules)
    assert gc.get_freeze_count() == 0


async def test_the_current_gates_are_not_read_from_their_files_at_every_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Home] = []
    monkeypatch.setattr("swarm.join.known_gates.local_gates", lambda home: reads.append(home) or ())
    async with open_node("worker", Home.at(tmp_path), SETTINGS, holder=True) as worker:
        assert worker.reach is not None
        reads.clear()
        for _ in range(1000):
            worker.reach.gates()
        assert len(reads) <= 1


async def test_a_second_node_on_the_same_folder_is_refused_at_once(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    async with open_node("worker", home, SETTINGS, holder=True):
        with pytest.raises(ResourceError, match="in use by process"):
            async with open_node("worker", home, SETTINGS, holder=True):
                pytest.fail("two nodes with one key")
        async with open_node(
            "gate", home, SETTINGS, holder=True
        ) as gate:  # another role of the same home has its own key
            assert gate.identity.peer_id


def test_a_command_that_only_checks_the_lock_keeps_no_node_from_starting(tmp_path: Path) -> None:
    locked = threading.Event()

    def check() -> None:
        with lock_folder(tmp_path):
            locked.set()
            time.sleep(0.01)

    command = threading.Thread(target=check)
    command.start()
    locked.wait()
    with lock_folder(tmp_path, wait_s=LOCK_WAIT_S):
        command.join()


async def test_no_gate_file_is_no_error_and_a_strange_one_neither(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    assert local_gates(home) == ()
    home.gate_file.parent.mkdir(parents=True)
    home.gate_file.write_bytes(random.Random(1).randbytes(100))
    assert local_gates(home) == ()
    home.gate_file.write_text("/ip4/192.0.2.1/tcp/1/p2p/x\n\n", encoding="ascii")
    assert local_gates(home) == ("/ip4/192.0.2.1/tcp/1/p2p/x",)


async def test_a_gate_that_cannot_write_its_address_says_so(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    home.gate_file.mkdir(parents=True)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            await nursery.start(run_gate, home, GateSettings(listen=LOOPBACK))
    assert caught.group_contains(ResourceError, match="cannot use")


async def test_a_scheduler_whose_gate_is_gone_comes_in_through_the_worker_of_its_home(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    async with open_node("worker", home, SETTINGS, holder=True) as worker:
        assert worker_addresses(home) == ()
        write_addresses(home.worker_file, worker.network.addresses)
        (way,) = worker_addresses(home)
        assert way.endswith(f"/p2p/{worker.identity.peer_id}")
        async with open_node("scheduler", home, SETTINGS, holder=False) as scheduler:
            assert scheduler.network.connected() == (worker.identity.peer_id,)


def test_the_gates_a_worker_joined_by_are_known_to_the_other_commands_of_its_home(tmp_path: Path) -> None:
    home, gate, other = Home.at(tmp_path), "/ip4/192.0.2.1/tcp/1/p2p/x", "/ip4/192.0.2.2/tcp/1/p2p/y"
    save_gates(home, (gate,), "worker")
    assert recent_gates(home) == (gate,)
    assert recent_gates(home, ("scheduler",)) == ()
    save_gates(home, (other, gate))
    assert recent_gates(home) == (other, gate)
