"""The index between real processes on loopback: how long publishing and finding take, before and after many nodes die at once.

    python benchmarks/network/index.py                  # 20 processes, 20 % of them killed
    python benchmarks/network/index.py --nodes 40 --kill 0.5

Each process is one node: its own libp2p host and its own part of the index. The parent sends orders over pipes and prints medians and 95th
percentiles of the measurements. First round: right after the kill, before any node has noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

CPU = "CPU (ONNX)"
SETTLE_S = 20.0


# -- one node ------------------------------------------------------------------------------------------------------------


def node(number: int, bootstrap: Sequence[str]) -> None:
    """Run one node; it obeys one JSON line at a time."""
    import trio

    trio.run(_node, number, tuple(bootstrap))


async def _node(number: int, bootstrap: tuple[str, ...]) -> None:
    import structlog
    import trio

    from protocol.values.advert import Advert, UnitOffer
    from protocol.values.requirement import Requirement, parse_clause
    from swarm.index.index import Index
    from swarm.join.host import open_host
    from swarm.net.identity import Identity

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    identity = Identity.from_seed(f"benchmark {number}")
    requirement = Requirement(clauses=(parse_clause(f'units has "{CPU}"'), parse_clause("ram >= 8 GiB")))
    async with (
        open_host(identity, listen=["/ip4/127.0.0.1/tcp/0"], bootstrap=bootstrap) as network,
        trio.open_nursery() as nursery,
    ):
        index = Index(network, rng=random.Random(number), incarnation=1)
        await nursery.start(index.run)
        advert = Advert(
            peer=identity.peer_id,
            seq=0,
            device=f"device-{number}",
            name=f"node-{number}",
            ram=16 * 2**30,
            units=(UnitOffer(unit=CPU, runtime="onnxruntime"),),
            labels={"site": "lab", "rack": f"r{number % 4}"},
        )
        _say({"address": f"{network.addresses[0]}/p2p/{identity.peer_id}"})
        while True:
            order = json.loads(await trio.to_thread.run_sync(sys.stdin.readline) or '{"do": "stop"}')
            calls, cpu, began = index.calls, time.process_time(), time.perf_counter()
            result = 0
            match order["do"]:
                case "publish":
                    result = await index.publish(advert.model_copy(update={"version": str(order["turn"])}))
                case "query":
                    result = len((await index.query(requirement, order["want"])).devices)
                case _:
                    nursery.cancel_scope.cancel()
                    return
            took = time.perf_counter() - began
            _say({"s": took, "found": result, "calls": index.calls - calls, "cpu": time.process_time() - cpu})


def _say(words: dict[str, Any]) -> None:
    print(json.dumps(words), flush=True)


# -- the parent ----------------------------------------------------------------------------------------------------------


@dataclass
class Child:
    """A node's process."""

    process: subprocess.Popen[str]
    address: str = ""

    def order(self, **what: Any) -> None:
        """Send the next order."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for its answer."""
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


def start(number: int, bootstrap: Iterable[str]) -> Child:
    """Start one node's process and wait until it listens."""
    command = [sys.executable, __file__, "--node", str(number), *bootstrap]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child = Child(process)
    child.address = child.answer()["address"]
    return child


def one_by_one(children: Sequence[Child], **what: Any) -> list[dict[str, Any]]:
    """Send the same order to each child, one after the other."""
    answers = []
    for child in children:
        child.order(**what)
        answers.append(child.answer())
    return answers


def all_at_once(children: Sequence[Child], **what: Any) -> list[dict[str, Any]]:
    """Send the same order to all children at the same time."""
    for child in children:
        child.order(**what)
    return [child.answer() for child in children]


def row(what: str, answers: Sequence[dict[str, Any]]) -> None:
    """Print one line of the table."""
    times = sorted(answer["s"] * 1000 for answer in answers)
    p95 = times[min(len(times) - 1, round(0.95 * (len(times) - 1)))]
    calls = statistics.mean(answer["calls"] for answer in answers)
    cpu = statistics.median(answer["cpu"] * 1000 for answer in answers)
    results = [answer["found"] for answer in answers]
    print(
        f"{what:44} {len(times):5} {statistics.median(times):9.1f} {p95:9.1f} {calls:8.1f} {cpu:8.1f}"
        f"   {min(results)}-{max(results)}"
    )


def main() -> None:
    """Start the nodes, measure, kill some, measure again."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--kill", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--node", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.node:
        node(int(given.node[0]), given.node[1:])
        return
    children: list[Child] = []
    try:
        children.append(start(0, ()))
        children += [start(number, [children[0].address]) for number in range(1, given.nodes)]
        _measure(children, given.kill, given.rounds)
    finally:
        for child in children:
            child.process.kill()
        for child in children:
            child.process.wait()


def _measure(children: list[Child], share: float, rounds: int) -> None:
    print(f"{len(children)} processes, {os.cpu_count()} cores, Python {sys.version.split()[0]}")
    print(f"{'':44} {'n':>5} {'p50 ms':>9} {'p95 ms':>9} {'calls':>8} {'CPU ms':>8}   found, or holders")
    row("publish, first, all at once", all_at_once(children, do="publish", turn=0))
    time.sleep(SETTLE_S)
    one_by_one(children, do="publish", turn=1)
    answers = [
        answer for turn in range(rounds) for answer in one_by_one(children, do="publish", turn=turn + 2)
    ]
    row("publish, warm", answers)
    row("query for 8, first", one_by_one(children, do="query", want=8))
    answers = [answer for _ in range(rounds) for answer in one_by_one(children, do="query", want=8)]
    row("query for 8, warm", answers)
    answers = [answer for _ in range(rounds) for answer in one_by_one(children, do="query", want=1000)]
    row("query for all, warm", answers)
    dead = random.Random(1).sample(children[1:], round(len(children) * share))
    alive = [child for child in children if child not in dead]
    for child in dead:
        child.process.kill()
    row(f"query for 8, {len(dead)} killed, first round", one_by_one(alive, do="query", want=8))
    row(f"query for 8, {len(dead)} killed, second round", one_by_one(alive, do="query", want=8))
    row(f"query for all, {len(dead)} killed", one_by_one(alive, do="query", want=1000))
    time.sleep(SETTLE_S)
    one_by_one(alive, do="publish", turn=100)
    row("publish, later", one_by_one(alive, do="publish", turn=101))
    row("query for 8, later", one_by_one(alive, do="query", want=8))
    row("query for all, later", one_by_one(alive, do="query", want=1000))


if __name__ == "__main__":
    main()
