"""Odd frames over real links to running nodes, from strangers and from a scheduler that the workers serve."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import trio

from protocol.errors import Unreachable
from protocol.words import ProtocolId
from swarm.join.host import open_host
from swarm.net.identity import Identity
from swarm.net.network import Network
from tests.fuzz.mutations import FAMILIES, plan
from tests.rig.attack import Node

PER_KEY: Final = 250
"""Frames under one key before the next key is used: a peer's budget must not end the fuzz."""
PER_STREAM: Final = 4
JOBS: Final = 12
WAIT_S: Final = 0.02
"""Wait for an answer, in seconds; later answers are not counted."""
BROKEN: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, Unreachable)


async def fuzz_nodes(
    rng: random.Random,
    nodes: Sequence[Node],
    count: int,
    served: Sequence[Identity] = (),
    protocols: Sequence[ProtocolId] = tuple(FAMILIES),
) -> Counter[str]:
    """Send `count` frames to the nodes in turn, and count the outcomes. `served`: keys that the workers serve, used every other time."""
    outcomes: Counter[str] = Counter()
    runs = _by_family(rng, count, protocols)
    keys = 0

    async def send() -> None:
        nonlocal keys
        while runs:
            keys += 1
            identity = served[keys % len(served)] if served and keys % 2 else Identity.fresh()
            async with open_host(identity) as network:
                for _ in range(PER_KEY // PER_STREAM):
                    if not runs:
                        return
                    protocol, frames = runs.pop()
                    left = await _send(
                        network, rng.choice(_speakers(nodes, protocol)), protocol, frames, outcomes
                    )
                    if left:
                        runs.append((protocol, left))
                    if len(left) == len(frames):
                        break  # refused, so continue with another key

    async with trio.open_nursery() as nursery:
        for _ in range(JOBS):
            nursery.start_soon(send)
    return outcomes


def _speakers(nodes: Sequence[Node], protocol: ProtocolId) -> list[Node]:
    gates = [node for node in nodes if node.name == "gate"]
    workers = [node for node in nodes if node not in gates]
    only = {
        ProtocolId.WORK: workers,
        ProtocolId.BLOB: workers,
        ProtocolId.GATE: gates,
        ProtocolId.POOL: gates,
    }
    return only.get(protocol, list(nodes))


def _by_family(
    rng: random.Random, count: int, protocols: Sequence[ProtocolId]
) -> list[tuple[ProtocolId, list[bytes]]]:
    """Frames in runs of one family each, one run per stream; the families are mixed."""
    runs = []
    for protocol in protocols:
        frames = [data for _, _, data in plan(rng, -(-count // len(protocols)), [protocol])]
        runs += [(protocol, frames[at : at + PER_STREAM]) for at in range(0, len(frames), PER_STREAM)]
    rng.shuffle(runs)
    return runs


async def _send(
    network: Network, node: Node, protocol: ProtocolId, frames: list[bytes], outcomes: Counter[str]
) -> list[bytes]:
    """Send frames on one stream. Returns those that were not sent because the stream ended."""
    left = list(frames)
    try:
        stream = await network.open(node.peer_id, protocol, node.addresses)
    except BROKEN:
        outcomes["no stream"] += 1
        return left
    try:
        while left:
            outcomes["sent"] += 1
            await stream.send_all(left.pop(0))  # of a frame above the cap only the beginning is sent
            with trio.move_on_after(WAIT_S) as waited:
                if not await stream.receive_some():
                    outcomes["ended"] += 1
                    break
                outcomes["answered"] += 1
            outcomes["no answer"] += waited.cancelled_caught
    except BROKEN:
        outcomes["reset"] += 1
    finally:
        with trio.move_on_after(1, shield=True), suppress(*BROKEN):
            await stream.reset()
    return left
