"""A visitor introduces itself once at each gate on its way, and to no other peer. In memory, on a clock that jumps."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from protocol.messages.gate import GATE
from protocol.messages.index import RefusedMessage
from protocol.messages.work import CredentialsReply, ShowCredentials
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason
from swarm.join.ephemeral import TTL_S, GateVisitor
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.net.identity import Identity
from swarm.net.link import Link
from swarm.net.links import serve_links
from swarm.pools.tokens import prove

START = 1_800_000_000.0
OWNER = Identity.from_seed("owner")


class Gate:
    """A gate that records its visitors, and refuses on request."""

    def __init__(self, network: MemoryNetwork, *, refuses: bool = False) -> None:
        self.network = network
        self.refuses = refuses
        self.shown: list[tuple[str, ShowCredentials]] = []
        serve_links(network, ProtocolId.GATE, GATE, self.answer)

    async def answer(self, link: Link, message: Message) -> Message:
        assert isinstance(message, ShowCredentials)
        self.shown.append((link.peer, message))
        if self.refuses:
            return RefusedMessage(reason=Reason.NOT_ALLOWED)
        return CredentialsReply(principal=message.issuer, rights=(), priority=0)

    @property
    def circuit(self) -> str:
        return f"{self.network.addresses[0]}/p2p/{self.network.peer_id}/p2p-circuit"


@asynccontextmanager
async def world() -> AsyncIterator[tuple[MemorySwarm, MemoryNetwork, GateVisitor]]:
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm:
        guest = swarm.node(Identity.from_seed("guest"), holder=False)
        yield swarm, guest, GateVisitor(guest, OWNER, wall=lambda: START + trio.current_time())


async def test_each_gate_on_the_way_is_shown_a_permission_that_holds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with world() as (swarm, guest, visitor):
        one, other = (Gate(swarm.node(Identity.from_seed(name))) for name in ("one", "other"))
        await visitor.announce([one.circuit, "/ip4/10.9.9.9/tcp/1", one.circuit, other.circuit])
        for gate in (one, other):
            ((peer, shown),) = gate.shown
            assert peer == guest.peer_id
            proof = prove(shown.token, OWNER.peer_id, guest.peer_id, now=START)
            assert proof.principal == guest.peer_id


async def test_direct_addresses_alone_bother_no_gate(autojump_clock: trio.testing.MockClock) -> None:
    async with world() as (swarm, _, visitor):
        gate = Gate(swarm.node(Identity.from_seed("one")))
        await visitor.announce(gate.network.addresses)
        assert gate.shown == []


async def test_a_gate_is_shown_it_again_when_half_of_its_time_is_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with world() as (swarm, _, visitor):
        gate = Gate(swarm.node(Identity.from_seed("one")))
        for _ in range(4):
            await visitor.announce([gate.circuit])
            await trio.sleep(1)
        assert len(gate.shown) == 1
        await trio.sleep(TTL_S / 2)
        await visitor.announce([gate.circuit])
        assert len(gate.shown) == 2


async def test_gates_that_refuse_or_are_not_there_hold_nobody_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with world() as (swarm, _, visitor):
        rude, gone = (Gate(swarm.node(Identity.from_seed(name)), refuses=True) for name in ("rude", "gone"))
        swarm.kill(gone.network.peer_id)
        began = trio.current_time()
        await visitor.announce([gone.circuit, rude.circuit])
        assert len(rude.shown) == 1
        assert trio.current_time() - began < 4
