"""What the pool commands do over the network: push a manifest, and enrol."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Final

import trio

from protocol.errors import Unreachable
from protocol.messages.pool import read_manifest
from swarm.base.home import Home
from swarm.join.ephemeral import open_ephemeral_node
from swarm.net.identity import load_or_create
from swarm.pools.client import PoolClient, SpreadResult
from swarm.pools.membership import Membership, store_manifest, store_membership, stored_manifest
from swarm.pools.owner import OwnPool

PUSH_S: Final = 20.0


async def push_manifest(gates: Sequence[str], pool: OwnPool) -> SpreadResult:
    """Bring the pool's manifest to the gates, holders and workers that can be found. It is no error to find none."""
    result = SpreadResult(0, 0)
    try:
        async with open_ephemeral_node(gates) as (network, index, nursery):
            client = PoolClient(network, nursery, index, random.Random())
            with trio.move_on_after(PUSH_S):
                result = await client.push(gates, pool, workers=True, now=time.time())
    except Unreachable:
        pass
    return result


async def enrol_scheduler(home: Home, joined: Membership, gates: Sequence[str], name: str) -> Membership:
    """Show a ticket as this home's scheduler; no other process may use its key now. Raises `Unreachable`, `NotPermitted`."""
    stored = stored_manifest(home, joined.pool)
    manifest = read_manifest(stored.body) if stored is not None else None
    async with open_ephemeral_node(gates, load_or_create(home.key("scheduler"))) as (network, index, nursery):
        client = PoolClient(network, nursery, index, random.Random())
        fresh, signed = await client.enrol(gates, joined, manifest, name, now=time.time())
    store_membership(home, fresh)
    store_manifest(home, signed)
    return fresh
