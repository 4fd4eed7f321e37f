"""A gate's own protocol and what it refuses to strangers, in an in-memory network whose clock jumps."""

from __future__ import annotations

import errno
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import psutil
import pytest
import trio
import trio.testing

from gate.admission.policy import AdmissionPolicy
from gate.settings import Admit, GateSettings
from gate.status.census import Census
from gate.status.client import GateClient
from protocol.errors import NotPermitted, Unreachable
from protocol.errors import Refused as RefusedError
from protocol.messages.gate import GATE, GateSnapshot, GateStatus, LiveCircuit
from protocol.messages.index import (
    FAMILY,
    INDEX,
    FindPeers,
    FoundPeers,
    RefusedMessage,
    StoreAdverts,
    StoreItem,
)
from protocol.messages.pool import POOL, ManifestStored
from protocol.messages.work import CredentialsReply, ShowCredentials
from protocol.values.advert import Advert
from protocol.values.index_keys import attributes_of
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason
from swarm.base.home import Home
from swarm.index.index import Index
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.net.addresses import Contact
from swarm.net.identity import Identity
from swarm.net.links import Links, serve_links
from swarm.net.network import Stream
from swarm.net.reservations import RelayLimits, RelayReservations
from swarm.pools.owner import create_pool
from swarm.pools.server import ManifestRegistry, PoolServer

START = 1_800_000_000.0
OPERATOR, FRIEND = Identity.from_seed("operator"), Identity.from_seed("friend")


@dataclass
class Gate:
    """The gate of an in-memory swarm, put together as in `gate.service`."""

    swarm: MemorySwarm
    network: MemoryNetwork
    index: Index
    relay: RelayReservations
    policy: AdmissionPolicy
    census: Census
    nursery: trio.Nursery

    def visitor(self, seed: str | Identity, *, behind: str | None = None) -> MemoryNetwork:
        identity = seed if isinstance(seed, Identity) else Identity.from_seed(seed)
        return self.swarm.node(identity, behind=behind)

    def client(self, visitor: MemoryNetwork, signer: Identity) -> GateClient:
        links = Links(visitor, ProtocolId.GATE, GATE, self.nursery)
        contact = Contact(self.network.peer_id, self.network.addresses)
        return GateClient(visitor, links, contact, signer, self.wall)

    def wall(self) -> float:
        return START + trio.current_time()

    async def say(self, visitor: MemoryNetwork, family: str, message: Message) -> Message:
        vocabulary = {ProtocolId.GATE: GATE, ProtocolId.POOL: POOL, FAMILY: INDEX}[family]
        links = Links(visitor, family, vocabulary, self.nursery)
        return await links.call(self.network.peer_id, self.network.addresses, message)


@asynccontextmanager
async def gate(
    tmp_path: Path, admit: Admit = Admit.OPEN, limits: RelayLimits | None = None
) -> AsyncIterator[Gate]:
    settings = GateSettings(admit=admit, operators=(OPERATOR.peer_id,), allow=(FRIEND.peer_id,))
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm, trio.open_nursery() as nursery:
        network = swarm.node(Identity.from_seed("gate"))
        policy = AdmissionPolicy(Home.at(tmp_path), settings, wall=lambda: START + trio.current_time())
        index = Index(
            network, rng=random.Random(2), incarnation=1, admit=partial(policy.refusal, service="index")
        )
        await nursery.start(index.run)
        pools = PoolServer(ManifestRegistry(), admit=partial(policy.refusal, service="pool"))
        serve_links(network, ProtocolId.POOL, POOL, pools.answer)
        relay = RelayReservations(limits or RelayLimits(), policy.admits)
        network.serve_relay(relay)
        census = Census(network, index.holder, relay, policy, "1.2.3", 4, {"index": index.refused})
        yield Gate(swarm, network, index, relay, policy, census, nursery)
        nursery.cancel_scope.cancel()


def advert_of(node: MemoryNetwork) -> Advert:
    return Advert(peer=node.peer_id, seq=1, device="d", name="n", addresses=node.addresses)


async def test_an_operator_gets_the_status_of_the_gate(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with gate(tmp_path) as here:
        behind, caller = here.visitor("behind", behind="nat"), here.visitor("caller")
        behind.handle("/echo", lambda stream: stream.send_all(b"x" * 1000))
        place = await behind.reserve(here.network.peer_id, here.network.addresses)
        stream = await caller.open(behind.peer_id, "/echo", place.addresses)
        assert await stream.receive_some()
        await trio.sleep(2)
        snapshot = await here.client(here.visitor("visitor"), OPERATOR).status()
        assert (snapshot.version, snapshot.incarnation, snapshot.admit) == ("1.2.3", 4, "open")
        assert snapshot.uptime_s >= 2
        assert snapshot.addresses == here.network.addresses
        assert snapshot.memory_bytes > 1_000_000
        assert (snapshot.reservations, snapshot.reservations_made, snapshot.circuits_begun) == (1, 1, 1)
        (observed,) = snapshot.busiest
        assert isinstance(observed, LiveCircuit)
        assert (observed.source, observed.target) == (caller.peer_id, behind.peer_id)
        assert observed.bytes == snapshot.relayed_bytes
        assert snapshot.caps is not None
        assert snapshot.caps.circuits == RelayLimits().circuits
        assert snapshot.peers[0].peer == behind.peer_id  # peers with a reservation come first
        assert snapshot.peers[0].reserved


async def test_an_operator_goes_on_asking_after_its_permission_has_run_out(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with gate(tmp_path) as here:
        client = here.client(here.visitor("visitor"), OPERATOR)
        for _ in range(5):
            assert (await client.status()).version == "1.2.3"
            await trio.sleep(50)


async def test_nobody_else_gets_the_status_of_a_gate(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with gate(tmp_path, Admit.LIST) as here:
        visitor = here.visitor("visitor")
        for signer in (Identity.from_seed("stranger"), FRIEND):
            with pytest.raises(NotPermitted, match="only its operators") as caught:
                await here.client(visitor, signer).status()
            assert f"--operator {signer.peer_id}" in caught.value.hint
        answer = await here.say(here.visitor("bare"), ProtocolId.GATE, GateStatus())
        assert isinstance(answer, RefusedMessage)
        assert answer.reason is Reason.NOT_ALLOWED
        snapshot = await here.client(here.visitor("other"), OPERATOR).status()
        assert snapshot.refused["gate not-allowed"] >= 2


async def test_a_flood_of_questions_is_cut_short_and_counted(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with gate(tmp_path) as here:
        visitor = here.visitor("visitor")
        links = Links(visitor, ProtocolId.GATE, GATE, here.nursery)
        link = await links.get(here.network.peer_id, here.network.addresses)

        async def ask() -> None:
            answer = await link.call(GateStatus(), max_wait_s=60)
            assert isinstance(answer, RefusedMessage)
            assert answer.reason is Reason.NOT_ALLOWED

        async with trio.open_nursery() as nursery:
            for _ in range(80):
                nursery.start_soon(ask)
        assert here.census.take().refused["call busy"] >= 4


@pytest.mark.parametrize("junk", [b"\xff" * 8, b"\x00\x00\xff\xff", b"\x00\x00\x00\x02\xc1\xc1"])
async def test_junk_ends_its_own_link_and_nothing_else(
    tmp_path: Path, junk: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    async with gate(tmp_path) as here:
        stream: Stream = await here.visitor("rude").open(
            here.network.peer_id, ProtocolId.GATE, here.network.addresses
        )
        await stream.send_all(junk)
        with trio.move_on_after(30):
            try:
                while await stream.receive_some():
                    pass
            except trio.BrokenResourceError:
                pass
        assert (await here.client(here.visitor("visitor"), OPERATOR).status()).version == "1.2.3"


async def test_an_answer_where_a_call_belongs_breaks_the_link_and_nothing_else(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with gate(tmp_path) as here:
        answer = CredentialsReply(principal=OPERATOR.peer_id, rights=(), priority=0)
        for message in (answer, here.census.take(), RefusedMessage(reason=Reason.BUSY)):
            with pytest.raises(Unreachable):
                await here.say(here.visitor("rude"), ProtocolId.GATE, message)
        assert isinstance(await here.client(here.visitor("visitor"), OPERATOR).status(), GateSnapshot)


# -- a gate that does not admit everybody --------------------------------------------------------------------------------------


async def test_a_closed_gate_keeps_adverts_of_those_it_lets_in_alone(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with gate(tmp_path, Admit.LIST) as here:
        contact = Contact(here.network.peer_id, here.network.addresses)
        for node, stored in ((here.visitor("stranger"), 0), (here.visitor(FRIEND), 1)):
            node.table.learn(contact)
            index = Index(node, rng=random.Random(3), incarnation=1, serve=False)
            await here.nursery.start(index.run)
            await index.publish(advert_of(node))
            assert here.index.holder.nodes == stored
        assert here.index.refused["not-allowed"] >= 1
        assert here.policy.refused["index"] >= 1


async def test_a_stranger_may_look_around_at_a_closed_gate(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with gate(tmp_path, Admit.LIST) as here:
        answer = await here.say(here.visitor("stranger"), FAMILY, FindPeers(key=bytes(32)))
        assert isinstance(answer, FoundPeers)


async def test_a_closed_gate_takes_manifests_of_strangers_pools_from_those_it_lets_in(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with gate(tmp_path, Admit.LIST) as here:
        signed = create_pool(Home.at(tmp_path / "elsewhere"), "far").signed()
        answer = await here.say(here.visitor("stranger"), ProtocolId.POOL, signed)
        assert isinstance(answer, RefusedMessage)
        assert answer.reason is Reason.NOT_ALLOWED
        assert await here.say(here.visitor(FRIEND), ProtocolId.POOL, signed) == ManifestStored(number=1)


async def test_a_closed_gate_refuses_reservations_to_strangers(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with gate(tmp_path, Admit.LIST) as here:
        with pytest.raises(RefusedError):
            await here.visitor("stranger", behind="nat").reserve(here.network.peer_id, here.network.addresses)
        place = await here.visitor(FRIEND, behind="nat2").reserve(
            here.network.peer_id, here.network.addresses
        )
        assert place.gate == here.network.peer_id
        assert here.census.take().refused["relay not-allowed"] == 1


async def test_the_visitor_of_a_friend_may_call_through_a_closed_gate(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with gate(tmp_path, Admit.LIST) as here:
        behind, visitor = here.visitor(FRIEND, behind="nat"), here.visitor("visitor")
        behind.handle("/echo", lambda stream: stream.send_all(b"yes"))
        place = await behind.reserve(here.network.peer_id, here.network.addresses)
        with pytest.raises(Unreachable):
            await visitor.open(behind.peer_id, "/echo", place.addresses)
        client = here.client(visitor, FRIEND)
        with pytest.raises(NotPermitted):  # it is admitted, but may not operate the gate
            await client.status()
        stream = await visitor.open(behind.peer_id, "/echo", place.addresses)
        assert await stream.receive_some() == b"yes"


async def test_a_store_in_the_name_of_another_is_refused_and_counted(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with gate(tmp_path) as here:
        victim, liar = here.visitor("victim"), here.visitor("liar")
        signed = Index(victim, rng=random.Random(3), incarnation=1, serve=False)._sign(advert_of(victim))
        store = StoreAdverts(
            advert=signed, items=(StoreItem(attribute=attributes_of(advert_of(victim))[0], depth=0),)
        )
        await here.say(liar, FAMILY, store)
        assert here.census.take().refused == {"index store-refused": 1}
        assert here.index.holder.nodes == 0


def test_what_is_shown_to_a_gate_is_as_it_is_shown_to_a_worker() -> None:
    assert ShowCredentials in GATE.messages
    assert CredentialsReply in GATE.messages


class OutOfFiles:
    """A process for which the system reports nothing any more."""

    def cpu_times(self) -> None:
        raise OSError(errno.EMFILE, "Too many open files")


async def test_a_gate_without_open_files_still_tells_how_it_stands(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with gate(tmp_path) as here:
        before = here.census.take()
        here.census.process = cast("psutil.Process", OutOfFiles())
        now = here.census.take()
        assert (now.memory_bytes, now.cpu_s) == (before.memory_bytes, before.cpu_s)
        assert now.addresses == before.addresses
