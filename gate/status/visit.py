"""What the pool commands do over the network, as passing visitors: push a manifest, and be let in by a ticket."""

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
from swarm.pools.client import HeardManifest, enrol, pool_links, push
from swarm.pools.membership import Membership, keep_joined, keep_manifest
from swarm.pools.owner import OwnPool

PUSH_S: Final = 20.0


async def tell_swarm(gates: Sequence[str], pool: OwnPool) -> HeardManifest:
    """Bring the pool's manifest to the gates, the holders and the workers that can be found. Nobody is no error."""
    heard = HeardManifest(0, 0)
    if not gates:
        return heard
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
                heard = await push(links, index, gates, pool, workers=True, me=network.peer_id)
        nursery.cancel_scope.cancel()
    return heard


async def be_let_in(home: Home, joined: Membership, gates: Sequence[str], name: str) -> Membership:
    """Use a ticket as this home's scheduler, whose key no other process may be using now. Raises `Unreachable`, `NotPermitted`."""
    identity = load_or_create(home.key("scheduler"))
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(
            open_host(identity, bootstrap=gates, server=False, rng=random.Random())
        )
        nursery = await stack.enter_async_context(trio.open_nursery())
        try:
            if not network.connected():
                raise Unreachable("no gate of the pool answers now")
            links = pool_links(network, nursery)
            fresh, signed = await enrol(links, gates, joined, identity.peer_id, name, now=time.time())
        finally:
            nursery.cancel_scope.cancel()
    keep_joined(home, fresh)
    keep_manifest(home, signed)
    return fresh
