"""An in-memory swarm with a gate that has a pool's key, workers that serve the pool's members, and newcomers."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from protocol.messages.index import RefusedMessage
from protocol.messages.pool import POOL, EnrolRequest, ManifestMessage, PoolManifest
from protocol.values.advert import Advert
from protocol.words import ProtocolId, Role
from swarm.base.home import Home
from swarm.index.index import Index
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.net.addresses import Contact
from swarm.net.identity import Identity
from swarm.net.links import Links
from swarm.net.network import Network
from swarm.pools.client import PoolClient
from swarm.pools.enrolment import PoolEnrolment, invite, invite_peer
from swarm.pools.membership import join_pool
from swarm.pools.owner import MemberTerms, OwnPool, create_pool
from swarm.pools.server import Enroller
from swarm.pools.service import Aside, PoolNode
from swarm.pools.tickets import Ticket

START = 1_800_000_000.0
DAY = 86_400.0


def wall() -> float:
    """The wall clock of a test, which follows trio's clock."""
    return START + trio.current_time()


async def inline(write: Callable[[], object]) -> None:
    """Write at once, because the clock of a test would not wait for a thread."""
    write()


@dataclass
class Node:
    """A node of the field."""

    identity: Identity
    network: MemoryNetwork
    index: Index
    home: Home
    pools: PoolNode
    manifests: list[PoolManifest] = field(default_factory=list)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    following: trio.CancelScope = field(default_factory=trio.CancelScope)
    """The scope of the loop that polls, enrols and pushes. Without the loop the node still answers."""

    @property
    def peer(self) -> str:
        return self.network.peer_id

    def client(self, nursery: trio.Nursery) -> PoolClient:
        """A client for its calls of the pool protocol."""
        return PoolClient(self.network, nursery, self.index, random.Random(1))


def pool_links(network: Network, nursery: trio.Nursery) -> Links:
    """Links for `/sark/pool/1`."""
    return Links(network, ProtocolId.POOL, POOL, nursery)


class Field:
    """The nodes, of which the first is the gate."""

    def __init__(self, swarm: MemorySwarm, nursery: trio.Nursery, folder: Path) -> None:
        self.swarm, self._nursery, self._folder = swarm, nursery, folder
        self.nodes: list[Node] = []
        self.gate_home = Home.at(folder / "gate")
        self.pool: OwnPool = create_pool(self.gate_home, "lab")
        self.enrolled: list[str] = []

    @property
    def gate(self) -> Node:
        return self.nodes[0]

    @property
    def gates(self) -> tuple[str, ...]:
        return tuple(f"{address}/p2p/{self.gate.peer}" for address in self.gate.network.addresses)

    async def start_gate(self) -> Node:
        enrolment = PoolEnrolment(self.gate_home, wall)

        async def enrol(peer: str, message: EnrolRequest) -> ManifestMessage | RefusedMessage:
            self.enrolled.append(peer)
            return enrolment(peer, message)

        return await self._start("gate", self.gate_home, None, enrol)

    def ticket(
        self,
        role: Role,
        *,
        to: str | None = None,
        ttl_s: float = 30 * DAY,
        uses: int = 25,
        priority: int = 100,
    ) -> Ticket:
        """A ticket as `pool invite` prints it."""
        now = wall()
        terms = MemberTerms(role=role, ttl_s=int(ttl_s), priority=priority)
        if to is not None:
            return invite_peer(self.pool, self.gates, terms, to, now=now)
        return invite(self.pool, self.gates, terms, now=now, for_s=DAY, uses=uses)[0]

    async def join(
        self,
        name: str,
        ticket: Ticket,
        role: Role = Role.WORKER,
        *,
        learn: Node | None = None,
        aside: Aside | None = None,
    ) -> Node:
        """Start a node that joins with a ticket and then follows the pool; a worker announces its membership in the index. `learn`: the
        first node it knows.
        """
        home = Home.at(self._folder / name)
        join_pool(home, ticket, role, Identity.from_seed(name).peer_id, now=wall())
        node = await self._start(name, home, role, None, learn, aside)
        if role is Role.WORKER:
            await node.index.publish(
                Advert(peer=node.peer, seq=0, device=name, name=name, pools=(ticket.name,))
            )
        return node

    async def scheduler(self, name: str, home: Home) -> Node:
        """Start the scheduler of a home that has its own pools."""
        return await self._start(name, home, Role.SUBMIT, None)

    async def passer_by(self, name: str, enrol: Enroller | None = None) -> Node:
        """Start a node that belongs to no pool."""
        return await self._start(name, Home.at(self._folder / name), Role.WORKER, enrol)

    async def _start(
        self,
        name: str,
        home: Home,
        role: Role | None,
        enrol: Enroller | None,
        learn: Node | None = None,
        aside: Aside | None = None,
    ) -> Node:
        identity, rng = Identity.from_seed(name), random.Random(len(self.nodes))
        network = self.swarm.node(identity, role is not Role.SUBMIT)
        index = Index(network, rng=rng, incarnation=1, serve=role is not Role.SUBMIT)
        received: list[PoolManifest] = []
        pools = PoolNode(
            network,
            index,
            home,
            role,
            name=name,
            wall=wall,
            rng=rng,
            news=received.append,
            enrol=enrol,
            aside=aside or inline,
        )
        node = Node(identity, network, index, home, pools, received)
        if self.nodes:
            way_in = learn or self.gate
            network.table.learn(Contact(way_in.peer, way_in.network.addresses))
        self.nodes.append(node)
        await self._nursery.start(self._run, node)
        return node

    async def _run(self, node: Node, *, task_status: trio.TaskStatus[None]) -> None:
        with node.scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(node.index.run)
                node.pools.serve()
                task_status.started()
                with node.following:
                    await node.pools.run()
                await trio.sleep_forever()


@asynccontextmanager
async def pool_field(folder: Path) -> AsyncIterator[Field]:
    """A field with its gate running."""
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm, trio.open_nursery() as nursery:
        field = Field(swarm, nursery, folder)
        await field.start_gate()
        yield field
        nursery.cancel_scope.cancel()
