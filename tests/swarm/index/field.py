"""Nodes of the index over a simulated network, for tests."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock

from protocol.values.advert import Advert, UnitOffer
from protocol.values.requirement import Requirement, parse_clause
from swarm.index.index import Index
from swarm.memory.network import Latency, MemoryNetwork, MemorySwarm
from swarm.net.addresses import Contact
from swarm.net.identity import Identity
from tests.swarm.index.wires import Wires

GIB = 2**30
CPU = "CPU (ONNX)"


Jumping = MockClock
"""The clock of the fixture `autojump_clock`, on which all these nodes run."""


class Member:
    """A node of the field."""

    def __init__(self, network: MemoryNetwork, index: Index, number: int) -> None:
        self.network = network
        self.index = index
        self.number = number
        self.peer = network.peer_id
        self.scope = trio.CancelScope()

    def advert(self, **fields: object) -> Advert:
        plain: dict[str, object] = {
            "peer": self.peer,
            "seq": 0,
            "device": f"device-{self.number}",
            "name": f"node-{self.number}",
            "ram": (8 << self.number % 4) * GIB,
            "units": (UnitOffer(unit=CPU, runtime="r"),),
        }
        return Advert.model_validate(plain | fields)

    async def publish(self, **fields: object) -> int:
        return await self.index.publish(self.advert(**fields))


class Field:
    """Nodes that all know the first one, as they would know a gate."""

    def __init__(self, swarm: MemorySwarm, nursery: trio.Nursery) -> None:
        self.swarm = swarm
        self.nursery = nursery
        self.members: list[Member] = []
        self.wires: Wires | None = None
        """Passes calls as values; None: through links with frames."""

    async def grow(
        self,
        count: int,
        *,
        holder: bool = True,
        split_threshold: int = 1000,
        refresh_s: float = 450.0,
        asleep: Callable[[], float] = lambda: 0.0,
    ) -> list[Member]:
        """Add nodes. `asleep`: the seconds that they have slept so far."""

        new = []
        for _ in range(count):
            number = len(self.members)
            network = self.swarm.node(Identity.from_seed(f"field {number}"), holder)
            wires = self.wires
            index = Index(
                network,
                **({} if wires is None else {"open_links": wires.links, "serve_links": wires.serve}),
                rng=random.Random(number),
                split_threshold=split_threshold,
                refresh_s=refresh_s,
                incarnation=1,
                wall=lambda: trio.current_time() + asleep(),
            )
            member = Member(network, index, number)
            self.members.append(member)
            new.append(member)
            if number:
                self.knows(member, self.members[0])
            await self.nursery.start(self._run, member)
        return new

    async def _run(self, member: Member, *, task_status: trio.TaskStatus[None]) -> None:
        with member.scope:
            await member.index.run(task_status=task_status)

    def knows(self, member: Member, other: Member) -> None:
        member.network.table.learn(Contact(other.peer, other.network.addresses))

    def kill(self, members: Iterable[Member]) -> None:
        for member in members:
            self.swarm.kill(member.peer)
            member.scope.cancel()


@asynccontextmanager
async def field(
    count: int,
    *,
    split_threshold: int = 1000,
    refresh_s: float = 450.0,
    latency_s: Latency = 0.01,
    frames: bool = True,
) -> AsyncIterator[Field]:
    """A swarm of `count` nodes. `frames`: whether calls go through real links, which encode every message."""
    async with MemorySwarm(random.Random(1), latency_s=latency_s) as swarm, trio.open_nursery() as nursery:
        grown = Field(swarm, nursery)
        grown.wires = None if frames else Wires()
        await grown.grow(count, split_threshold=split_threshold, refresh_s=refresh_s)
        yield grown
        nursery.cancel_scope.cancel()


async def publish_all(members: Iterable[Member], **labels: int) -> None:
    """Publish all adverts at once, as after a power cut; a few seconds later the nodes have found each other. `labels`: label → the members
    with a lower number have it.
    """
    async with trio.open_nursery() as nursery:
        for member in members:
            own_labels = {name: "yes" for name, below in labels.items() if member.number < below}
            nursery.start_soon(lambda member=member, own_labels=own_labels: member.publish(labels=own_labels))
    await trio.sleep(15)


def needs(*clauses: str) -> Requirement:
    return Requirement(clauses=tuple(parse_clause(text) for text in clauses))


def names(found: Iterable[object]) -> set[str]:
    return {sighting.advert.name for sighting in found}  # type: ignore[attr-defined]


EVERY_CPU = needs(f'units has "{CPU}"')
