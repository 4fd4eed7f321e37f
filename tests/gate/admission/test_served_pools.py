"""A gate that serves pools whose keys are elsewhere: it follows their manifests, keeps them over a restart, and requests newer ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import trio
import trio.testing

from gate.admission.policy import AdmissionPolicy
from gate.settings import GateSettings
from protocol.errors import ResourceError
from protocol.messages.index import RefusedMessage
from protocol.messages.pool import POOL, ManifestStored, PoolManifest, PoolMember
from protocol.words import ProtocolId, Reason, Role
from swarm.base.home import Home
from swarm.index.index import Index
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.net.addresses import Contact
from swarm.net.identity import Identity
from swarm.net.links import Links
from swarm.pools.manifests import with_member
from swarm.pools.membership import stored_manifest
from swarm.pools.owner import OwnPool, create_pool
from swarm.pools.service import POLL_S, Aside, PoolNode
from tests.gate.field import inline, wall

BEN = Identity.from_seed("ben")


def pool_node(
    network: MemoryNetwork, home: Home, pools: tuple[str, ...], index: Index, aside: Aside = inline
) -> PoolNode:
    def no(peer: str) -> RefusedMessage:
        return RefusedMessage(reason=Reason.NOT_ALLOWED)

    rng = random.Random(1)
    return PoolNode(
        network, index, home, None, name="gate", wall=wall, rng=rng, aside=aside, admit=no, serves=pools
    )


def with_ben(pool: OwnPool) -> PoolManifest:
    return pool.change(
        lambda manifest: with_member(
            manifest, PoolMember(peer=BEN.peer_id, role=Role.WORKER, name="ben"), wall()
        )
    )


async def test_anybody_may_bring_a_served_pools_manifest_and_it_survives_a_restart(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    owner, home = Home.at(tmp_path / "owner"), Home.at(tmp_path / "gate")
    served, other = create_pool(owner, "lab"), create_pool(owner, "far")
    with_ben(served)
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm, trio.open_nursery() as nursery:
        gate, guest = swarm.node(Identity.from_seed("gate")), swarm.node(Identity.from_seed("guest"))
        index = Index(gate, rng=random.Random(2), incarnation=1)
        await nursery.start(index.run)
        pools = pool_node(gate, home, (served.id,), index)
        pools.serve()
        await nursery.start(pools.run)
        links = Links(guest, ProtocolId.POOL, POOL, nursery)
        for pool, stored in ((served, True), (other, False)):
            answer = await links.call(gate.peer_id, gate.addresses, pool.signed())
            assert isinstance(answer, ManifestStored) is stored
        assert pools.refused == {"not-allowed": 1}
        await trio.sleep(1)
        assert stored_manifest(home, served.id) == served.signed()

        settings = GateSettings.model_validate({"admit": "ticket", "pools": (served.id,)})
        again = pool_node(swarm.node(Identity.from_seed("again")), home, (served.id,), index)
        policy = AdmissionPolicy(home, settings, wall=wall, served=again.registry.manifest)
        await nursery.start(policy.run)
        assert policy.admits(BEN.peer_id)
        nursery.cancel_scope.cancel()


async def test_a_manifest_is_called_stored_when_it_is_on_disk(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    home, pool = Home.at(tmp_path / "gate"), create_pool(Home.at(tmp_path / "owner"), "lab")
    full = True

    async def slow_disk(write: Callable[[], object]) -> None:
        await trio.sleep(1)
        if full:
            raise ResourceError("the disk is full")
        write()

    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm, trio.open_nursery() as nursery:
        gate, guest = swarm.node(Identity.from_seed("gate")), swarm.node(Identity.from_seed("guest"))
        index = Index(gate, rng=random.Random(2), incarnation=1)
        await nursery.start(index.run)
        pools = pool_node(gate, home, (pool.id,), index, slow_disk)
        pools.serve()
        await nursery.start(pools.run)
        links = Links(guest, ProtocolId.POOL, POOL, nursery)
        refused = await links.call(gate.peer_id, gate.addresses, pool.signed())
        assert isinstance(refused, RefusedMessage)
        assert refused.reason is Reason.DISK_FULL
        full = False
        assert isinstance(await links.call(gate.peer_id, gate.addresses, pool.signed()), ManifestStored)
        assert stored_manifest(home, pool.id) == pool.signed()
        nursery.cancel_scope.cancel()


async def test_a_served_pools_newer_manifest_is_asked_for_where_it_is_kept(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    owner = Home.at(tmp_path / "owner")
    pool = create_pool(owner, "lab")
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm, trio.open_nursery() as nursery:
        nodes = [swarm.node(Identity.from_seed(name)) for name in ("gate", "owner")]
        homes = [Home.at(tmp_path / "gate"), owner]
        registries = []
        for node, home, serves in zip(nodes, homes, ((pool.id,), ()), strict=True):
            index = Index(node, rng=random.Random(2), incarnation=1)
            await nursery.start(index.run)
            pools = pool_node(node, home, serves, index)
            pools.serve()
            await nursery.start(pools.run)
            registries.append(pools.registry)
        await nodes[0].connect(nodes[1].peer_id, nodes[1].addresses)
        for one, other in (nodes, nodes[::-1]):
            one.table.learn(Contact(other.peer_id, other.addresses))
        with_ben(pool)
        with trio.fail_after(5 * POLL_S):
            while (manifest := registries[0].manifest(pool.id)) is None or not manifest.members:
                await trio.sleep(1)
        assert manifest.members[0].peer == BEN.peer_id
        nursery.cancel_scope.cancel()
