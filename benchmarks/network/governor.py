"""What the governor costs honest calls: the same calls with and without a payer, in turn, in one process over loopback TCP.

    python benchmarks/network/governor.py [--pairs 30] [--calls 400]

Two links of one libp2p connection are served alike, but only one charges for its messages, to peers that know each other. A pair is one
stretch of calls on each link, in random order. Its ratio is the processor time of both ends with charging divided by that without. Output:
the median ratio with a 95 % interval (goal: at most 1.05), the same for two links without charging (which must be 1), and µs of processor
time per call.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from functools import partial
from typing import Final

import trio

from protocol.messages.health import HEALTH, Ping, Pong
from protocol.wire.base import Message
from swarm.join.host import open_host
from swarm.net.cost import PeerClass
from swarm.net.identity import Identity
from swarm.net.link import Link
from swarm.net.network import Network, Stream

PONG: Final = Pong(role="worker", incarnation=1)
SIDES: Final = {"/bench/with/1": True, "/bench/without/1": False, "/bench/again/1": False}


async def answer(link: Link, message: Message) -> Message:
    return PONG


def link_of(network: Network, stream: Stream, governed: bool) -> Link:
    payer = network.governor.payer(stream.peer) if governed else None
    return Link(stream, HEALTH, answer, payer=payer)


async def stretch(link: Link, calls: int) -> float:
    """µs of processor time per call, with calls made one after the other."""
    began = time.process_time()
    for _ in range(calls):
        await link.call(Ping())
    return 1e6 * (time.process_time() - began) / calls


async def measure(pairs: int, calls: int, seed: int) -> dict[str, object]:
    rng = random.Random(seed)
    async with (
        open_host(Identity.fresh(), listen=("/ip4/127.0.0.1/tcp/0",)) as server,
        open_host(Identity.fresh()) as client,
        trio.open_nursery() as nursery,
    ):
        for node in (server, client):
            node.governor.class_of = lambda peer: PeerClass.KNOWN

        async def serve(stream: Stream, governed: bool) -> None:
            await link_of(server, stream, governed).run()

        links = []
        for protocol, governed in SIDES.items():
            server.handle(protocol, partial(serve, governed=governed))
            stream = await client.open(server.peer_id, protocol, server.addresses)
            links.append(link_of(client, stream, governed))
            await nursery.start(links[-1].run)
            await stretch(links[-1], calls)  # warm
        took: list[list[float]] = [[] for _ in links]
        for _ in range(pairs):
            for place in rng.sample(range(len(links)), len(links)):
                took[place].append(await stretch(links[place], calls))
        nursery.cancel_scope.cancel()
    governed, plain, again = took
    return {
        "ratio": interval([one / other for one, other in zip(governed, plain, strict=True)]),
        "ratio of none to none": interval([one / other for one, other in zip(again, plain, strict=True)]),
        "us a call with": round(statistics.median(governed), 1),
        "us a call without": round(statistics.median(plain), 1),
    }


def interval(ratios: list[float]) -> list[float]:
    """The median, and its 95 % interval by order statistics (normal approximation of the ranks)."""
    ordered, count = sorted(ratios), len(ratios)
    half = 0.98 * count**0.5
    low, high = max(0, round(count / 2 - half) - 1), min(count - 1, round(count / 2 + half))
    return [round(value, 3) for value in (statistics.median(ordered), ordered[low], ordered[high])]


def main() -> None:
    parser = argparse.ArgumentParser(description="What the governor costs honest calls.")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(json.dumps(trio.run(measure, options.pairs, options.calls, options.seed), indent=1))


if __name__ == "__main__":
    main()
