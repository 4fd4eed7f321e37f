"""What is done to the nodes, and what is counted: from a swarm at rest to one that is attacked, dying or overrun."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.network.scale import heap
from benchmarks.network.scale.light import Lights, Sky
from benchmarks.network.scale.population import CPU, TEAM, Population, Shards
from benchmarks.network.scale.world import Node, World
from protocol.values.match import match
from protocol.values.requirement import Requirement, parse_clause
from swarm.index.lookup import HOLDERS
from swarm.index.region import STORED

ALL_FULL: Final = 300
"""Up to so many nodes all are full."""
PUBLISHERS: Final = TEAM
READERS: Final = 8
GATES: Final = 3
"""Nodes that everybody knows at first."""
JOIN_S: Final = 60.0
SETTLE_S: Final = 180.0
"""From the first publication until its regions are learned."""
REST_S: Final = 900.0
"""Two refreshes."""
SHARE: Final = 0.2
"""Of nodes that die or lie."""
SOFT: Final = 1_000
WANT: Final = {"common": 16, "some": 16, "hot": 16, "rare": 2 * TEAM, "fresh": 2 * TEAM, "none": 16}
SCENARIOS: Final = ("rest", "dead")


@dataclass
class Query:
    """What the queries of one kind gave."""

    found: float
    calls: float
    p50_ms: float
    p95_ms: float


@dataclass
class Outcome:
    """One run."""

    nodes: int
    scenario: str
    seed: int
    full: int
    """How many ran the product's whole index; the others are light."""
    publish_calls: float = 0.0
    """Of one node, from its first publication until it is known everywhere: its answer to the caller."""
    settled_calls: float = 0.0
    """And until `SETTLE_S` later: regions learned, and stored there."""
    stores: float = 0.0
    """Of the settled calls, those that store."""
    publish_s: float = 0.0
    join_calls: float = 0.0
    """Of a node from its start until it publishes."""
    calls_per_s: float = 0.0
    """Of a node at rest."""
    refresh_calls: float = 0.0
    """Of a node for each refresh."""
    bytes_per_s: float = 0.0
    """Of a node at rest, its calls and their replies."""
    busiest: float = 0.0
    """The most calls that one node got in all queries for what everybody has, as a share of these queries."""
    queries: dict[str, Query] = field(default_factory=dict)
    cpu_s: float = 0.0
    steps: int = 0


@dataclass
class Field:
    """The nodes of one run."""

    count: int
    seed: int
    newcomers: int = 0
    """Of the nodes those that come later; their numbers are the last ones."""

    def __post_init__(self) -> None:
        self.population = Population(self.count, self.seed)
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
        self.sky: Sky | None = None
        self.lights: Lights | None = None
        if not self.everybody_full:
            self.sky = Sky(self.population, self.world.dead)
            self.sky.clients = frozenset((*self.publishers, *self.readers, *self.fresh))
            self.lights = Lights(self.world, self.sky, self.shards, stored_by_today)

    async def start(self, nursery: Any, numbers: Iterable[int]) -> list[Node]:
        """Full nodes that know the first ones."""
        nodes = []
        for number in numbers:
            knows = [other for other in range(self.first) if other != number] if number else []
            node = self.world.node(number, knows)
            nodes.append(node)
            await nursery.start(node.run)
        return nodes


def stored_by_today(rank: int, expected: float) -> bool:
    """Where the publisher puts an advert: with the nearest eight, and in the region."""
    return rank < HOLDERS or expected < STORED


# -- one run --------------------------------------------------------------------------------------------------------------


def measure(count: int, scenario: str, seed: int) -> Outcome:
    """One scenario with so many nodes. The same arguments, the same outcome but for the processor time."""
    gc.disable()  # what a run makes lives until its end
    try:
        return heap.run(_measure, count, scenario, seed)
    finally:
        gc.enable()
        gc.collect()


async def _measure(count: int, scenario: str, seed: int) -> Outcome:
    began = time.process_time()
    field = Field(count, seed)
    world = field.world
    async with heap.open_nursery() as nursery:
        full = range(count) if field.everybody_full else [*field.publishers, *field.readers]
        nodes = await field.start(nursery, full)
        outcome = Outcome(count, scenario, seed, len(nodes))
        await heap.sleep(JOIN_S)
        publishers = nodes if field.everybody_full else nodes[: len(field.publishers)]
        outcome.join_calls = statistics.fmean(node.calls for node in nodes)
        await _publish(world, nursery, publishers, outcome)
        if scenario == "rest":
            await _rest(world, publishers, outcome)
        else:
            await happen(scenario, field, nursery)
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
    """What the queries of a kind ask for."""
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
    """Each reader asks once; for a team each asks for that of the full publishers and for another."""
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
            there = _there(field, wanted, team if kind in ("rare", "fresh") else "", want)
            exist += min(there, want)
            found += min(len(result.devices), there, want)
    took.sort()
    return Query(
        found / exist if exist else 1.0,
        statistics.fmean(calls),
        statistics.median(took),
        took[min(len(took) - 1, round(0.95 * (len(took) - 1)))],
    )


def _there(field: Field, wanted: Requirement, team: str, want: int) -> int:
    """How many alive devices fit, counted up to `want`."""
    if team:
        numbers: Iterable[int] = field.shards.having(f"label:team={team}").tolist()
    else:
        numbers = field.rng.sample(range(field.count), min(field.count, 400))
    dead, there = field.world.dead, 0
    for number in numbers:
        if number not in dead and match(wanted, field.population.advert(number)).fits:
            there += 1
            if there >= want:
                break
    return there


# -- what happens ---------------------------------------------------------------------------------------------------------


async def happen(scenario: str, field: Field, nursery: Any) -> None:
    """Until the queries begin."""
    match scenario:
        case "dead":
            _kill(field, SHARE)
            await heap.sleep(1.0)


def _kill(field: Field, share: float) -> None:
    """So many of all at once, but for the readers."""
    spared = set(field.readers) | set(range(field.first))
    mortal = [number for number in range(field.count) if number not in spared]
    for number in field.rng.sample(mortal, round(field.count * share)):
        field.world.kill(number)
