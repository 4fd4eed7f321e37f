"""A model of which some holders are reached only through a gate: nothing goes through the gate while another holder gives the model
directly.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from protocol.messages.blobs import PIECE_SIZE, HolderInfo, Holders
from swarm.blobs.swarm_download import DownloadRequest, pull
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.net.reservations import RelayReservations
from tests.swarm.blobs.test_swarm_download import CONTENT, SHA, Field, MemoryPieces, grant


class Relayed(Field):
    """The taker at home, a worker at the office that has the model, a gate between them, and a scheduler that both can dial."""

    async def set_up(self) -> None:
        self.gate = self.node("gate")
        self.gate.serve_relay(RelayReservations())
        self.office = self.shares("office")
        self.swarm.translate(self.office.peer_id, "office")
        self.swarm.translate(self.node("taker").peer_id, "home")
        self.circuit = (await self.office.reserve(self.gate.peer_id, self.gate.addresses)).address

    async def where(self, peer: str, sha256: str) -> Holders:
        results = (HolderInfo(peer=self.office.peer_id, addresses=(self.circuit,)),)
        return Holders(grant=grant(self.leader.peer_id, peer), others=results)

    async def brings(self, store: MemoryPieces, taker: MemoryNetwork) -> None:
        """Fetch the model as `node.run.model_source` does."""

        def relayed(peer: str) -> bool:
            path = taker.path(peer)
            return path is not None and not path.direct

        await taker.connect(self.leader.peer_id, self.leader.addresses)
        download_request = DownloadRequest(SHA, len(CONTENT), lambda: self.leader.peer_id, relayed)
        await pull(taker, store, download_request, rng=random.Random(1))


@pytest.fixture
async def relayed() -> AsyncIterator[Relayed]:
    async with MemorySwarm(random.Random(1), latency_s=0.005, bytes_per_s=10e6) as swarm:
        yield Relayed(swarm)


async def test_a_gate_carries_no_piece_while_the_scheduler_gives_directly(
    relayed: Relayed, autojump_clock: MockClock
) -> None:
    await relayed.set_up()
    store, taker = MemoryPieces(), relayed.node("taker")
    with trio.fail_after(60):
        await relayed.brings(store, taker)
    assert store.whole() == CONTENT
    assert 0 < relayed.sent[relayed.office.peer_id] < 10_000, "it was asked what it has, no more"


async def test_where_nobody_gives_directly_any_more_the_gate_carries_the_rest(
    relayed: Relayed, autojump_clock: MockClock
) -> None:
    await relayed.set_up()
    store = MemoryPieces()

    async def goes() -> None:
        while len(store.pieces) < 2:
            await trio.sleep(0.05)
        relayed.swarm.kill(relayed.leader.peer_id)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(goes)
        with trio.fail_after(120):
            await relayed.brings(store, relayed.node("taker"))
    assert store.whole() == CONTENT
    assert relayed.sent[relayed.office.peer_id] > 3 * PIECE_SIZE


async def test_a_link_that_becomes_direct_meanwhile_is_used(
    relayed: Relayed, autojump_clock: MockClock
) -> None:
    await relayed.set_up()
    store, taker = MemoryPieces(), relayed.node("taker")

    async def punches() -> None:
        while taker.path(relayed.office.peer_id) is None or not store.pieces:
            await trio.sleep(0.01)
        relayed.swarm.punch(taker.peer_id, relayed.office.peer_id)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(punches)
        with trio.fail_after(60):
            await relayed.brings(store, taker)
    assert store.whole() == CONTENT
    assert relayed.sent[relayed.office.peer_id] > PIECE_SIZE
