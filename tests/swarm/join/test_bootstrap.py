"""Gates are found when they come up, and a gate that does not answer is reported once."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import structlog
import trio
import trio.testing

from protocol.errors import ResourceError, Unreachable
from swarm.join.bootstrap import BootstrapKeeper, Gates
from swarm.net.addresses import Address, PeerId
from swarm.net.identity import Identity
from swarm.net.network import Path
from swarm.net.routing_table import RoutingTable
from swarm.p2p.dialler import WrongPeerAnswered

GATE = Identity.from_seed("gate").peer_id
OTHER = Identity.from_seed("other").peer_id
HERE = f"/ip4/192.0.2.7/tcp/4101/p2p/{GATE}"
THERE = f"/ip4/192.0.2.7/tcp/4999/p2p/{GATE}"


class Swarm:
    """A network in which `up` maps the answering addresses to their peers."""

    def __init__(self) -> None:
        self.up: dict[Address, PeerId] = {}
        self.live: set[PeerId] = set()
        self.table = RoutingTable(Identity.from_seed("node").peer_id)

    def connected(self) -> tuple[PeerId, ...]:
        return tuple(self.live)

    def path(self, peer: PeerId) -> Path | None:
        return Path(True, None, None) if peer in self.connected() else None

    async def connect(self, peer: PeerId, addresses: Sequence[Address]) -> None:
        await trio.lowlevel.checkpoint()
        there = {self.up[address] for address in addresses if address in self.up}
        if peer in there:
            self.live.add(peer)
        elif there:
            raise Unreachable("no way") from WrongPeerAnswered("no way", there.pop())
        else:
            raise Unreachable("no way")


def keeper(swarm: Swarm, gates: Gates) -> BootstrapKeeper:
    return BootstrapKeeper(swarm, gates, random.Random(1))


async def test_a_gate_that_is_started_later_is_found_within_three_seconds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    swarm, file = Swarm(), list[str]()
    stored = keeper(swarm, lambda: file)
    await stored.join_first()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stored.run)
        await trio.sleep(1000)
        file.append(HERE)
        swarm.up["/ip4/192.0.2.7/tcp/4101"] = GATE
        await trio.sleep(3)
        assert swarm.live == {GATE}
        assert swarm.table.get(GATE)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("again", [HERE, THERE])
async def test_a_gate_that_comes_back_is_found_within_three_seconds_on_any_port(
    autojump_clock: trio.testing.MockClock, again: str
) -> None:
    swarm, file = Swarm(), [HERE]
    swarm.up["/ip4/192.0.2.7/tcp/4101"] = GATE
    stored = keeper(swarm, lambda: file)
    await stored.join_first()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stored.run)
        await trio.sleep(10)
        assert swarm.live == {GATE}
        swarm.up.clear()
        swarm.live.clear()
        file.clear()
        stored.disconnected()
        await trio.sleep(100)
        file.append(again)
        swarm.up[again.partition("/p2p/")[0]] = GATE
        await trio.sleep(3)
        assert swarm.live == {GATE}
        nursery.cancel_scope.cancel()


async def test_a_gate_that_stops_or_resumes_answering_is_reported_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    swarm = Swarm()
    with structlog.testing.capture_logs() as lines:
        stored = keeper(swarm, [THERE])
        await stored.join_first()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stored.run)
            await trio.sleep(600)
            swarm.up["/ip4/192.0.2.7/tcp/4999"] = OTHER
            await trio.sleep(600)
            swarm.up["/ip4/192.0.2.7/tcp/4999"] = GATE
            await trio.sleep(31)
            nursery.cancel_scope.cancel()
    assert [(line["log_level"], line["event"]) for line in lines if line["log_level"] != "debug"] == [
        ("warning", "192.0.2.7:4999 does not answer; trying again"),
        (
            "warning",
            f"gate 192.0.2.7:4999 is another gate: expected …{GATE[-8:]}, found …{OTHER[-8:]}; ask its operator for its address",
        ),
        ("warning", "192.0.2.7:4999 answers now"),
    ]


async def test_a_damaged_gate_file_is_no_gate_and_a_damaged_setting_is_an_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    swarm = Swarm()
    await keeper(swarm, lambda: ["no address"]).join_first()
    assert swarm.live == set()
    with pytest.raises(ResourceError, match="invalid gate address"):
        keeper(swarm, ["no address"])


LATELY = f"/ip4/192.0.2.8/tcp/4002/p2p/{OTHER}"


@pytest.mark.parametrize("gates", [[], [HERE]])
async def test_without_a_gate_that_answers_peers_that_were_there_lately_are_the_way_in(
    autojump_clock: trio.testing.MockClock, gates: list[str]
) -> None:
    swarm = Swarm()
    swarm.up["/ip4/192.0.2.8/tcp/4002"] = OTHER
    stored = BootstrapKeeper(swarm, gates, random.Random(1), lambda: [LATELY])
    await stored.join_first()
    assert swarm.live == {OTHER}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stored.run)
        await trio.sleep(100)
        swarm.up["/ip4/192.0.2.7/tcp/4101"] = GATE
        await trio.sleep(31)
        assert swarm.live == ({GATE, OTHER} if gates else {OTHER})
        nursery.cancel_scope.cancel()


async def test_a_gate_that_answers_is_enough(autojump_clock: trio.testing.MockClock) -> None:
    swarm = Swarm()
    swarm.up = {"/ip4/192.0.2.8/tcp/4002": OTHER, "/ip4/192.0.2.7/tcp/4101": GATE}
    stored = BootstrapKeeper(swarm, [HERE], random.Random(1), lambda: [LATELY])
    await stored.join_first()
    assert swarm.live == {GATE}


async def test_when_the_last_gate_is_gone_peers_that_were_there_lately_take_its_place_within_seconds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    swarm = Swarm()
    swarm.up = {"/ip4/192.0.2.8/tcp/4002": OTHER, "/ip4/192.0.2.7/tcp/4101": GATE}
    stored = BootstrapKeeper(swarm, [HERE], random.Random(1), lambda: [LATELY, "nonsense"][:1])
    await stored.join_first()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stored.run)
        await trio.sleep(10)
        del swarm.up["/ip4/192.0.2.7/tcp/4101"]
        swarm.live.clear()
        stored.disconnected()
        await trio.sleep(3)
        assert swarm.live == {OTHER}
        assert swarm.table.get(OTHER)
        nursery.cancel_scope.cancel()


async def test_a_gate_that_did_not_answer_at_first_is_reached_later_although_another_one_is_connected(
    autojump_clock: trio.testing.MockClock,
) -> None:
    swarm = Swarm()
    swarm.up["/ip4/192.0.2.7/tcp/4101"] = GATE
    stored = BootstrapKeeper(swarm, [HERE, LATELY], random.Random(1))
    await stored.join_first()
    assert swarm.live == {GATE}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stored.run)
        await trio.sleep(5)
        swarm.up["/ip4/192.0.2.8/tcp/4002"] = OTHER
        await trio.sleep(9)
        assert swarm.live == {GATE, OTHER}
        assert swarm.table.get(OTHER)
        swarm.live.remove(OTHER)  # reported again after it was gone for a while
        stored.disconnected()
        await trio.sleep(31)
        assert swarm.live == {GATE, OTHER}
        nursery.cancel_scope.cancel()
