"""The scenarios and their measurements: from a swarm at rest to one that is attacked, dying or overrun."""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.network.scale import heap
from benchmarks.network.scale.light import LightNodes, NodeDirectory
from benchmarks.network.scale.population import CPU, TEAM, Population, Shards
from benchmarks.network.scale.world import Caller, Node, World
from protocol.messages import index as index_messages
from protocol.values.index_keys import shard_key
from protocol.values.match import match
from protocol.values.requirement import Requirement, parse_clause
from protocol.wire.base import Message
from swarm.index.region import HOLDERS
from swarm.net.identity import routing_key

ALL_FULL: Final = 300
"""Up to this many nodes, all are full."""
PUBLISHERS: Final = TEAM
READERS: Final = 8
GATES: Final = 3
"""Nodes that every node knows at first."""
JOIN_S: Final = 60.0
SETTLE_S: Final = 180.0
"""Time from the first publication until its regions are learned."""
REST_S: Final = 900.0
"""The time of two refreshes."""
SHARE: Final = 0.2
"""Share of nodes that die or lie."""
HALF_LIFE_S: Final = 3_600.0
CHURN_S: Final = 1_800.0
"""How long nodes come and go before the queries."""
NOTICED_S: Final = 1_800.0
"""The longest time for which others name a dead node: the index checks a holder in its routing table after that long without an answer."""
CROWD: Final = 10_000
"""Maximum nodes that join within `CROWD_S`; in a smaller swarm, as many as there are nodes."""
CROWD_S: Final = 60.0
CUT_S: Final = 600.0
HEALED_S: Final = 60.0
SETTLED_S: Final = 60.0
"""A newcomer counts as findable this many seconds after it came."""
SOFT: Final = 1_000
WANT: Final = {"common": 16, "some": 16, "hot": 16, "rare": 2 * TEAM, "fresh": 2 * TEAM, "none": 16}
SCENARIOS: Final = ("rest", "dead", "churn", "liars", "crowd", "cut")


@dataclass
class Query:
    """The results of the queries of one kind."""

    found: float
    calls: float
    p50_ms: float
    p95_ms: float


@dataclass
class Outcome:
    """The result of one run."""

    nodes: int
    scenario: str
    seed: int
    full: int
    """Number of nodes that ran the product's whole index; the others are light."""
    publish_calls: float = 0.0
    """Calls of one node during its first publication, until `publish` returns."""
    settled_calls: float = 0.0
    """The same until `SETTLE_S` after the start of the publication, when it has learned its regions and stored there."""
    stores: float = 0.0
    """Of the settled calls, those that store."""
    publish_s: float = 0.0
    join_calls: float = 0.0
    """Calls of a node from its start until it publishes."""
    calls_per_s: float = 0.0
    """Calls of a node at rest."""
    refresh_calls: float = 0.0
    """Calls of a node per refresh."""
    bytes_per_s: float = 0.0
    """Bytes of the calls of a node at rest, and of their replies."""
    crowd_calls: float = 0.0
    """Calls of a newcomer of the crowd, from its start until its advert is settled."""
    crowd_publish_s: float = 0.0
    """Median time of a newcomer's first publication."""
    gate_calls: float = 0.0
    """Calls per newcomer at the gate that receives most."""
    busiest: float = 0.0
    """The most calls that one node received in all queries for what all devices have, divided by the number of these queries."""
    queries: dict[str, Query] = field(default_factory=dict)
    cpu_s: float = 0.0
    steps: int = 0


@dataclass
class Field:
    """The nodes of one run."""

    count: int
    seed: int
    newcomers: int = 0
    """Number of nodes that come later; they have the last numbers."""
    lying: frozenset[int] = frozenset()
    born: dict[int, float] = field(default_factory=dict)
    """Numbers of newcomers, and when they come."""

    def __post_init__(self) -> None:
        self.population = Population(self.count + self.newcomers, self.seed)
        self.born |= dict.fromkeys(range(self.count, self.count + self.newcomers), math.inf)
        self.world = World(self.population, self.seed)
        self.rng = random.Random(f"field {self.seed}")
        self.shards = Shards(self.population, SOFT)
        self.everybody_full = self.count <= ALL_FULL
        self.first = min(GATES, self.count - 1)
        team = self.count // 2 // TEAM * TEAM
        self.publishers = list(range(team, team + PUBLISHERS))
        after = team + TEAM
        self.readers = list(range(after, min(after + READERS, self.count)))
        self.fresh = list(range(after + READERS, after + 2 * READERS))
        self.sky: NodeDirectory | None = None
        self.lights: LightNodes | None = None
        if not self.everybody_full:
            self.sky = NodeDirectory(self.population, self.world.dead, NOTICED_S, self.born)
            self.sky.clients = frozenset((*self.publishers, *self.readers, *self.fresh))
            self.lights = LightNodes(self.world, self.sky, self.shards, stored_by_today)

    @property
    def spared(self) -> set[int]:
        """Nodes that neither die nor lie."""
        return {*self.publishers, *self.readers, *self.fresh, *range(self.first)}

    def can_be_found(self, number: int) -> bool:
        """Whether a query should find the node: it is honest, alive, and came at least a minute ago."""
        came = self.born.get(number, -math.inf)
        gone = number in self.world.dead or number in self.lying
        return not gone and came + SETTLED_S <= heap.current_time()

    async def start(self, nursery: Any, numbers: Iterable[int]) -> list[Node]:
        """Start full nodes that know the first nodes."""
        nodes = []
        for number in numbers:
            knows = [other for other in range(self.first) if other != number] if number else []
            node = self.world.node(number, knows)
            nodes.append(node)
            await nursery.start(node.run)
        return nodes


def stored_by_today(rank: int, expected: float) -> bool:
    """Whether the publisher puts an advert there: with the nearest eight, and with those in reach."""
    return rank < HOLDERS or expected < HOLDERS


# -- one run --------------------------------------------------------------------------------------------------------------


def measure(count: int, scenario: str, seed: int) -> Outcome:
    """Run one scenario with `count` nodes. The same arguments give the same outcome, except for the processor time."""
    gc.disable()  # objects live until the end of the run
    try:
        return heap.run(_measure, count, scenario, seed)
    finally:
        gc.enable()
        gc.collect()


async def _measure(count: int, scenario: str, seed: int) -> Outcome:
    began = time.process_time()
    field = Field(count, seed, newcomers(count, scenario))
    world = field.world
    async with heap.open_nursery() as nursery:
        if scenario == "liars":
            lie(field)
        everybody = [number for number in range(count) if number not in field.lying]
        full = everybody if field.everybody_full else [*field.publishers, *field.readers]
        nodes = await field.start(nursery, full)
        outcome = Outcome(count, scenario, seed, len(nodes))
        await heap.sleep(JOIN_S / 2)
        if field.everybody_full:
            await introduce(field)
        await heap.sleep(JOIN_S / 2)
        publishers = nodes if field.everybody_full else nodes[: len(field.publishers)]
        outcome.join_calls = statistics.fmean(node.calls for node in nodes)
        await _publish(world, nursery, publishers, outcome)
        if scenario == "rest":
            await _rest(world, publishers, outcome)
        else:
            await happen(scenario, field, nursery, outcome)
        readers = [world.full[number] for number in field.readers if number in world.full]
        await _queries(field, nursery, readers, outcome)
        nursery.cancel_scope.cancel()
    outcome.cpu_s = time.process_time() - began
    outcome.steps = heap.steps()
    return outcome


async def _publish(world: World, nursery: Any, publishers: Sequence[Node], outcome: Outcome) -> None:
    before = {node.number: node.calls for node in publishers}
    world.reset()
    took: list[tuple[float, int]] = []

    async def one(node: Node) -> None:
        since = heap.current_time()
        await node.publish()
        took.append((heap.current_time() - since, node.calls - before[node.number]))

    for node in publishers:
        nursery.start_soon(one, node)
    await heap.sleep(SETTLE_S)
    outcome.publish_calls = statistics.fmean(calls for _, calls in took)
    outcome.publish_s = statistics.median(seconds for seconds, _ in took)
    outcome.settled_calls = statistics.fmean(node.calls - before[node.number] for node in publishers)
    outcome.stores = world.figures.calls["StoreAdverts"] / len(publishers)


async def _rest(world: World, publishers: Sequence[Node], outcome: Outcome) -> None:
    world.reset()
    before = sum(node.calls for node in publishers)
    await heap.sleep(REST_S)
    figures = world.figures
    outcome.calls_per_s = (sum(node.calls for node in publishers) - before) / len(publishers) / REST_S
    outcome.bytes_per_s = outcome.calls_per_s * figures.bytes_per_call
    outcome.refresh_calls = figures.calls["StoreAdverts"] / len(publishers) / (REST_S / 450.0)


# -- queries --------------------------------------------------------------------------------------------------------------


def requirement(kind: str, team: str) -> Requirement:
    """The requirement of the queries of a kind."""
    texts = {
        "common": (f'units has "{CPU}"', "ram >= 8 GiB"),
        "some": ('units has "GPU (CoreML)"', "ram >= 16 GiB"),
        "hot": (),
        "none": ('label.team == "nobody"',),
    }.get(kind, (f'label.team == "{team}"',))
    return Requirement(clauses=tuple(parse_clause(text) for text in texts))


async def _queries(field: Field, nursery: Any, readers: Sequence[Node], outcome: Outcome) -> None:
    for kind, want in WANT.items():
        if kind == "fresh":
            if field.everybody_full:
                continue
            asking = await field.start(nursery, field.fresh)
        else:
            asking = list(readers)
        field.world.reset()
        outcome.queries[kind] = await _ask(field, asking, kind, want)
        if kind == "hot":
            most = field.world.figures.received.most_common(1)
            outcome.busiest = most[0][1] / len(asking) if most else 0.0


async def _ask(field: Field, readers: Sequence[Node], kind: str, want: int) -> Query:
    """Each reader queries once. For teams, it queries for the team of the full publishers and for another team."""
    teams = [field.population.team(field.publishers[0])]
    if kind in ("rare", "fresh"):
        teams.append(field.population.team(field.rng.randrange(field.count // 2 // TEAM * TEAM)))
    found, exist, calls, took = 0, 0, [], []
    for node in readers:
        for team in teams:
            wanted = requirement(kind, team)
            before, since = node.calls, heap.current_time()
            result = await node.index.query(wanted, want)
            calls.append(node.calls - before)
            took.append(1000 * (heap.current_time() - since))
            one_team = kind in ("rare", "fresh")
            there = _there(field, wanted, team if one_team else "", want)
            devices = [field.population.number(each.advert.peer) for each in result.devices]
            # in a team only living members count; among many, recent deaths are not yet known
            good = sum(field.can_be_found(each) if one_team else each not in field.lying for each in devices)
            exist += min(there, want)
            found += min(good, there, want)
    took.sort()
    return Query(
        found / exist if exist else 1.0,
        statistics.fmean(calls),
        statistics.median(took),
        took[min(len(took) - 1, round(0.95 * (len(took) - 1)))],
    )


def _there(field: Field, wanted: Requirement, team: str, want: int) -> int:
    """How many living devices meet the requirement, counted up to `want`."""
    if team:
        numbers: Iterable[int] = field.shards.having(f"label:team={team}").tolist()
    else:
        numbers = field.rng.sample(range(field.count), min(field.count, 400))
    there = 0
    for number in numbers:
        if field.can_be_found(number) and match(wanted, field.population.advert(number)).fits:
            there += 1
            if there >= want:
                break
    return there


# -- what happens to the nodes --------------------------------------------------------------------------------------------


def newcomers(count: int, scenario: str) -> int:
    """How many nodes come later."""
    match scenario:
        case "churn":
            return round(count * (1 - 0.5 ** (CHURN_S / HALF_LIFE_S)))
        case "crowd":
            return min(count, CROWD)
    return 0


async def happen(scenario: str, field: Field, nursery: Any, outcome: Outcome) -> None:
    """Run the scenario until the queries begin."""
    match scenario:
        case "dead":
            mortal = [number for number in range(field.count) if number not in field.spared]
            for number in field.rng.sample(mortal, round(field.count * SHARE)):
                field.world.kill(number)
            await heap.sleep(1.0)
        case "churn":
            await _churn(field, nursery)
        case "crowd":
            await _crowd(field, nursery, outcome)
        case "cut":
            side = {number: field.rng.random() < 0.5 for number in range(field.count)}
            field.world.cut = lambda one, other: side[one] != side[other]
            await heap.sleep(CUT_S)
            field.world.cut = lambda one, other: False
            await heap.sleep(HEALED_S)


async def _churn(field: Field, nursery: Any) -> None:
    """Nodes leave silently at random, half of them per hour, and each is replaced by a newcomer."""
    mortal = [number for number in range(field.count) if number not in field.spared]
    leaving = field.rng.sample(mortal, min(len(mortal), field.newcomers))
    coming = range(field.count, field.count + field.newcomers)
    pairs = list(zip(leaving, coming, strict=False))
    at_once = max(1, len(pairs) // 1_000)
    for done, (old, new) in enumerate(pairs, 1):
        field.world.kill(old)
        field.born[new] = heap.current_time()
        if field.everybody_full:
            nursery.start_soon(_join_and_publish, field, nursery, new)
        if done % at_once == 0:
            await heap.sleep(CHURN_S * at_once / len(pairs))


async def _join_and_publish(field: Field, nursery: Any, number: int) -> tuple[Node, float]:
    """Start a newcomer; return the node and the time of its first publication."""
    (node,) = await field.start(nursery, [number])
    await heap.sleep(1.0)
    since = heap.current_time()
    await node.publish()
    return node, heap.current_time() - since


async def _crowd(field: Field, nursery: Any, outcome: Outcome) -> None:
    """All newcomers join within a minute. In a large crowd only every n-th is full, and costs to the gates are divided by the full ones."""
    coming = list(range(field.count, field.count + field.newcomers))
    for place, number in enumerate(coming):
        field.born[number] = heap.current_time() + CROWD_S * place / len(coming)
    full = coming if field.everybody_full else coming[:: max(1, len(coming) // 50)]
    if field.sky is not None:
        field.sky.clients = frozenset((*field.sky.clients, *full))
    field.world.reset()
    joined: list[tuple[Node, float]] = []

    async def join(number: int) -> None:
        await heap.sleep(field.born[number] - heap.current_time())
        joined.append(await _join_and_publish(field, nursery, number))

    for number in full:
        nursery.start_soon(join, number)
    await heap.sleep(CROWD_S + SETTLED_S)
    outcome.crowd_calls = statistics.fmean(node.calls for node, _ in joined)
    outcome.crowd_publish_s = statistics.median(took for _, took in joined)
    received = field.world.figures.received
    outcome.gate_calls = max(received[gate] for gate in range(field.first)) / len(full)


# -- liars ----------------------------------------------------------------------------------------------------------------


def lie(field: Field) -> None:
    """A fifth of all nodes collude: they name one another as the nearest to any key, drop all adverts, and return empty pages."""
    able = [number for number in range(field.count) if number not in field.spared]
    field.lying = frozenset(field.rng.sample(able, round(field.count * SHARE)))
    sky = field.sky or NodeDirectory(field.population, field.world.dead)

    def named(key: bytes, count: int) -> tuple[index_messages.ContactInfo, ...]:
        near = sky.nearest(int.from_bytes(key[:8], "big"), count, field.lying.__contains__)
        population = field.population
        return tuple(
            index_messages.ContactInfo(peer=population.peer(each), addresses=(population.address(each),))
            for each in near
        )

    async def answer(caller: Caller, message: Message) -> Message:
        match message:
            case index_messages.FindPeers(key=key, count=count):
                return index_messages.FoundPeers(contacts=named(key, count))
            case index_messages.StoreAdverts(items=items):
                stored = index_messages.StoredItem(verdict=index_messages.StoreVerdict.OK, count=1)
                key = shard_key("", items[0].attribute, 0, 0) if items else bytes(32)
                return index_messages.StoreReply(items=(stored,) * len(items), closer=named(key, 8))
            case index_messages.QueryShard(attribute=attribute):
                return index_messages.ShardPage(closer=named(shard_key("", attribute, 0, 0), 8))
            case _:
                return index_messages.MarkReply(split=False)

    if field.lights is None:
        field.world.light = lambda number: answer
    else:
        field.lights.liars, field.lights.lying = answer, field.lying.__contains__


async def introduce(field: Field) -> None:
    """Make each liar known to every honest node, if all of those are full."""
    population = field.population
    for liar in sorted(field.lying):
        me = index_messages.ContactInfo(peer=population.peer(liar), addresses=(population.address(liar),))
        for number, node in list(field.world.full.items()):
            node.network.connections[liar] = None
            question = index_messages.FindPeers(key=routing_key(population.peer(number)), sender=me)
            if node.answer is not None:
                await node.answer(Caller(me.peer), question)
        await heap.sleep(JOIN_S / 4 / len(field.lying))
