"""An active Sybil attack on the index, in the in-memory network: how many devices honest nodes still find, and what that costs.

    python benchmarks/network/sybil.py                          # 200 honest nodes, 20 % attackers, 5 seeds
    python benchmarks/network/sybil.py --honest 300 --seeds 10 --layout packed

The attacker of arXiv 2505.01139: identities ground until they lie nearest to the keys under attack, which join before anybody publishes and
make themselves known to every honest node. They answer at once and in correct form: with other attackers as the nearest peers of a key
under attack, with `ok` for adverts that they drop, and with empty pages. `packed` places all of them at the key of everybody's shard, which
readers ask first. `spread` places a quarter there and a quarter at each of three labels' keys. `region` scatters a quarter over the
neighbourhood of each of the four. Ten devices publish each of up to four labels; five honest nodes query them, and three fresh nodes that
know one honest node. No node has an anchor: gates would only help. Found: pairs of query and device, in per cent. Deterministic: time is
virtual, trio's scheduler is seeded, and calls are passed on without frames and streams.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from unittest.mock import patch

import trio
import trio.testing
from trio._core import _run as scheduler  # the switch for a repeatable task order is not public

from protocol.messages import index as index_messages
from protocol.messages.index import StoreVerdict
from protocol.values.advert import Advert
from protocol.values.index_keys import EVERYBODY, shard_key
from protocol.values.requirement import Requirement, parse_clause
from protocol.wire.base import Message
from swarm.index.index import Index
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.net.addresses import Contact, PeerId
from swarm.net.identity import Identity, distance, routing_key
from tests.swarm.index.wires import Wires

LAYOUTS = ("spread", "packed", "region")
DEVICES = 10
READERS = 5
FRESH = 3
LATENCY_S = 0.02
GROUND = 40
"""Identities that an attacker generates for each one that it uses."""
SETTLE_S = 60.0


@dataclass(frozen=True)
class Outcome:
    """The result of one fleet."""

    found: float
    """Share of the pairs of query and device."""
    publish_calls: float
    """Calls of one node from its first publication until everything has settled."""
    query_calls: float
    fresh_found: float
    """Share found by nodes that know only one honest node."""
    fresh_calls: float


# -- the attack -----------------------------------------------------------------------------------------------------------


@dataclass
class Attackers:
    """All identities of one adversary, which knows every other identity."""

    identities: Sequence[Identity]
    keys: Sequence[bytes]
    honest: Sequence[Contact] = ()
    contacts: dict[PeerId, Contact] = field(default_factory=dict)

    def nearest(self, key: bytes, *, lie: bool) -> tuple[index_messages.ContactInfo, ...]:
        known = list(self.contacts.values()) if lie else [*self.contacts.values(), *self.honest]
        near = sorted(known, key=lambda each: distance(each.peer, key))[: index_messages.MAX_CONTACTS]
        return tuple(index_messages.ContactInfo(peer=each.peer, addresses=each.addresses) for each in near)

    async def answer(self, link: object, message: Message) -> Message:
        match message:
            case index_messages.FindPeers(key=key, count=count):
                return index_messages.FoundPeers(contacts=self.nearest(key, lie=self._hides(key))[:count])
            case index_messages.StoreAdverts(items=items):
                stored = tuple(index_messages.StoredItem(verdict=StoreVerdict.OK, count=1) for _ in items)
                return index_messages.StoreReply(items=stored, closer=self._others())
            case index_messages.QueryShard():
                return index_messages.ShardPage(closer=self._others())
            case _:
                return index_messages.MarkReply(split=False)

    def _hides(self, key: bytes) -> bool:
        """Whether the key lies in the neighbourhood of a key under attack."""
        return any(_apart(key, target) < _NEIGHBOURHOOD for target in self.keys)

    def _others(self) -> tuple[index_messages.ContactInfo, ...]:
        return self.nearest(self.keys[0], lie=True)


_NEIGHBOURHOOD = 2**256 // 8


def _apart(one: bytes, other: bytes) -> int:
    return int.from_bytes(one, "big") ^ int.from_bytes(other, "big")


def grind(keys: Sequence[bytes], count: int, layout: str, honest: int, seed: int) -> list[Identity]:
    """The identities nearest to the keys, out of many."""
    pool = [Identity.from_seed(f"sybil {seed} {number}") for number in range(GROUND * count)]
    chosen: dict[PeerId, Identity] = {}
    targets = keys[:1] if layout == "packed" else keys
    rng = random.Random(seed)
    for place in range(count):
        key = targets[place % len(targets)]
        if layout == "region":  # scattered over the region of the nearest two dozen honest nodes
            offset = rng.randrange(2**256 * 24 // honest)
            key = (int.from_bytes(key, "big") ^ offset).to_bytes(32, "big")
        free = (each for each in pool if each.peer_id not in chosen)
        best = min(free, key=lambda each: distance(each.peer_id, key))
        chosen[best.peer_id] = best
    return list(chosen.values())


async def fleet(wires: Wires, honest: int, share: float, layout: str, seed: int) -> Outcome:
    """Run one fleet under attack. `share`: attackers among all nodes; 0: none."""
    most = 1 if layout == "packed" else min(4, (honest - READERS) // DEVICES)
    labels = [f"{seed}-{number}" for number in range(most)]
    keys = [
        shard_key("", each, 0, 0) for each in (EVERYBODY, *(f"label:team={label}" for label in labels[1:]))
    ]
    count = round(honest * share / (1 - share))
    async with (
        MemorySwarm(random.Random(seed), latency_s=LATENCY_S) as swarm,
        trio.open_nursery() as nursery,
    ):
        networks: list[MemoryNetwork] = []
        indexes: list[Index] = []

        async def join(name: str, *, holder: bool = True) -> Index:
            network = swarm.node(Identity.from_seed(f"{name} {seed}"), holder)
            if networks:
                network.table.learn(Contact(networks[0].peer_id, networks[0].addresses))
            networks.append(network)
            rng = random.Random(f"{name} {seed}")
            index = Index(network, rng=rng, incarnation=1, open_links=wires.links, serve_links=wires.serve)
            await nursery.start(index.run)
            return index

        indexes = [await join(f"honest {number}") for number in range(honest)]
        await trio.sleep(SETTLE_S)
        await _join(swarm, wires, Attackers(grind(keys, count, layout, honest, seed), keys), networks)
        await trio.sleep(SETTLE_S)
        calls = sum(index.calls for index in indexes)
        async with trio.open_nursery() as publishing:
            for number, index in enumerate(indexes[: DEVICES * len(labels)]):
                publishing.start_soon(index.publish, _advert(index, number, labels[number // DEVICES]))
        await trio.sleep(SETTLE_S)
        publish_calls = (sum(index.calls for index in indexes) - calls) / (DEVICES * len(labels))
        found, query_calls = await _read(indexes[-READERS:], labels)
        fresh = [await join(f"fresh {number}", holder=False) for number in range(FRESH)]
        fresh_found, fresh_calls = await _read(fresh, labels)
        nursery.cancel_scope.cancel()
    return Outcome(found, publish_calls, query_calls, fresh_found, fresh_calls)


async def _read(readers: Sequence[Index], labels: Sequence[str]) -> tuple[float, float]:
    """The share of the devices that the readers find, and their calls per query."""
    found, calls = 0, 0
    for label in labels:
        wanted = Requirement(clauses=(parse_clause(f'label.team == "{label}"'),))
        for index in readers:
            before = index.calls
            result = await index.query(wanted, 2 * DEVICES)
            found += len(result.devices)
            calls += index.calls - before
    pairs = len(labels) * len(readers)
    return found / (pairs * DEVICES), calls / pairs


async def _join(
    swarm: MemorySwarm, wires: Wires, attackers: Attackers, honest: Sequence[MemoryNetwork]
) -> None:
    """Start the attackers' nodes, and make each known to every honest node."""
    attackers.honest = [Contact(each.peer_id, each.addresses) for each in honest]

    async def introduce(network: MemoryNetwork) -> None:
        links = wires.links(network)
        me = index_messages.ContactInfo(peer=network.peer_id, addresses=network.addresses)
        for each in honest:
            question = index_messages.FindPeers(key=routing_key(each.peer_id), sender=me)
            await links.call(each.peer_id, each.addresses, question)

    networks = [swarm.node(identity) for identity in attackers.identities]
    for network in networks:
        attackers.contacts[network.peer_id] = Contact(network.peer_id, network.addresses)
        wires.serve(network, index_messages.FAMILY, index_messages.INDEX, attackers.answer)
    async with trio.open_nursery() as joining:
        for network in networks:
            joining.start_soon(introduce, network)


def _advert(index: Index, number: int, team: str) -> Advert:
    return Advert(
        peer=index.network.peer_id,
        seq=0,
        device=f"device-{number}",
        name=f"node-{number}",
        labels={"team": team},
    )


def measure(honest: int, share: float, layout: str, seed: int) -> Outcome:
    """Run one fleet on virtual time. The same arguments give the same outcome."""
    wires = Wires()
    scheduler._r.seed(seed)
    with (
        patch.object(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
    ):
        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(fleet, wires, honest, share, layout, seed, clock=clock)


def show(name: str, outcomes: Iterable[Outcome]) -> None:
    """Print one line."""
    some = list(outcomes)

    def mean(what: str) -> float:
        return statistics.fmean(getattr(each, what) for each in some)

    print(
        f"{name:12} found {100 * mean('found'):6.2f} %, worst seed {100 * min(each.found for each in some):6.2f} %;"
        f" fresh {100 * mean('fresh_found'):6.2f} %, worst {100 * min(each.fresh_found for each in some):6.2f} %;"
        f" calls: {mean('publish_calls'):6.1f} a publisher, {mean('query_calls'):5.1f} a query,"
        f" {mean('fresh_calls'):5.1f} a fresh one's",
        flush=True,
    )


def main() -> None:
    """Measure without and with attackers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--honest", type=int, default=200)
    parser.add_argument("--share", type=float, default=0.2, help="of attackers among all nodes")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--layout", choices=LAYOUTS, action="append")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    show("no attack", (measure(arguments.honest, 0.0, "spread", seed) for seed in seeds))
    for layout in arguments.layout or LAYOUTS:
        outcomes = (measure(arguments.honest, arguments.share, layout, seed) for seed in seeds)
        show(f"{arguments.share:.0%} {layout}", outcomes)


if __name__ == "__main__":
    main()
