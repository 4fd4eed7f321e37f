"""What the pool commands do over the network: push a manifest, and enrol."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import trio

from protocol.errors import Unreachable
from swarm.base.home import Home
from swarm.index.index import Index
from swarm.join.host import open_host
from swarm.net.identity import Identity, load_or_create
from swarm.pools.client import SpreadResult, enrol, pool_links, push
from swarm.pools.manifests import verified
from swarm.pools.membership import Membership, store_manifest, store_membership, stored_manifest
from swarm.pools.owner import OwnPool

PUSH_S: Final = 20.0


async def push_manifest(gates: Sequence[str], pool: OwnPool) -> SpreadResult:
    """Bring the pool's manifest to the gates, holders and workers that can be found. It is no error to find none."""
    result = SpreadResult(0, 0)
    if not gates:
        return result
    rng = random.Random()
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(
            open_host(Identity.fresh(), bootstrap=gates, server=False, rng=rng)
        )
        nursery = await stack.enter_async_context(trio.open_nursery())
        if network.connected():
            index = Index(network, rng=rng, serve=False)
            await nursery.start(index.run)
            with trio.move_on_after(PUSH_S):
                links = pool_links(network, nursery)
                me, now = network.peer_id, time.time()
                result = await push(links, index, gates, pool, workers=True, me=me, now=now)
        nursery.cancel_scope.cancel()
    return result


async def enrol_scheduler(home: Home, joined: Membership, gates: Sequence[str], name: str) -> Membership:
    """Show a ticket as this home's scheduler; no other process may use its key now. Raises `Unreachable`, `NotPermitted`."""
    identity = load_or_create(home.key("scheduler"))
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(
            open_host(identity, bootstrap=gates, server=False, rng=random.Random())
        )
        nursery = await stack.enter_async_context(trio.open_nursery())
        try:
            if not network.connected():
                raise Unreachable("no gate of the pool answers")
            links = pool_links(network, nursery)
            stored = stored_manifest(home, joined.pool)
            manifest = verified(stored) if stored is not None else None
            me, now = identity.peer_id, time.time()
            fresh, signed = await enrol(links, gates, joined, manifest, me, name, now=now)
        finally:
            nursery.cancel_scope.cancel()
    store_membership(home, fresh)
    store_manifest(home, signed)
    return fresh
