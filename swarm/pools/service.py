"""A node's part in pools, in one object that each role runs: it serves and follows manifests, joins by ticket, and renews.

    pools = PoolNode(network, index, home, Role.WORKER, name="lab-3", wall=time.time, rng=rng, news=permits.manifest)
    pools.serve()
    nursery.start_soon(pools.run)

A worker that has a ticket works for the pool at once, since the ticket is its owner's consent. It enrols so that the pool lists it, and
keeps asking until a gate that has the pool's key answers.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final

import structlog
import trio

from protocol.errors import NotPermitted, ResourceError, SarkError, Unreachable
from protocol.messages.pool import POOL, ManifestMessage, PoolManifest
from protocol.words import ProtocolId, Role
from swarm.base.home import Home
from swarm.base.threads import DISK
from swarm.net.links import serve_links
from swarm.net.network import Network
from swarm.pools.client import ManifestDirectory, PoolClient, is_due
from swarm.pools.manifests import find_member
from swarm.pools.membership import (
    Membership,
    joined_pools,
    leave_pool,
    store_manifest,
    store_membership,
    stored_manifest,
)
from swarm.pools.owner import HOME_POOL, OwnPool, own_pools
from swarm.pools.server import Admit, Enroller, ManifestRegistry, PoolServer, cost_us
from swarm.pools.tokens import LEEWAY_S

POLL_S: Final = 60.0
JITTER: Final = 0.2
LOOK_S: Final = 5.0
"""How often the home's files, which other processes change, are reread and due calls are made."""
ALONE_LOOK_S: Final = 60.0
"""As `LOOK_S`, for a worker that joined no pool: only its next start, with a ticket, changes that."""
RESPREAD_S: Final = 600.0
"""How often the manifests of the home's own pools are sent again to their holders, which keep them only in memory."""
DOUBT_S: Final = 10.0
"""A newer manifest than a doubted one is requested this long after the last poll."""
ENROL_RETRY_S: Final = (2.0, 300.0)
"""The first pause and the longest."""

Aside = Callable[[Callable[[], object]], Awaitable[object]]
"""Runs a call that waits for the disk."""

log = structlog.get_logger("sark.pools")


@dataclass(eq=False)
class PoolNode:
    """Serves and follows manifests, enrols and renews, while `run` runs."""

    network: Network
    index: ManifestDirectory
    home: Home
    role: Role | None
    """The node's role in the pools it joined; None: it joins none, like a gate."""
    _: KW_ONLY
    name: str
    """This member's name in its pools."""
    device: str | None = None
    """The id of a worker's device."""
    wall: Callable[[], float]
    rng: random.Random
    news: Callable[[PoolManifest], object] = lambda manifest: None
    """Called with each manifest of a followed pool: the one on disk first, then each newer one."""
    enrol: Enroller | None = None
    """Admits others, if keys of pools are here."""
    gates: Callable[[], Sequence[str]] = lambda: ()
    """Gates to ask in addition to those of the tickets."""
    aside: Aside = DISK.run
    """Keeps waits for slow disks out of the event loop."""
    admit: Admit = lambda peer: None
    """Which peers may store manifests of other pools here."""
    serves: Sequence[str] = ()
    """Ids of pools to follow although this node is not in them."""
    must: Collection[str] = ()
    """Ids of pools that this node was started to join. If one refuses, `run` forgets it and raises `NotPermitted`, unless this node was a
    member before: a node that is revoked later continues to serve other pools."""

    tell: Callable[[str], object] = lambda line: None
    """Called with a line for the user about the pools in `must`."""

    def __post_init__(self) -> None:
        self._awaited = set(self.must)
        """The pools in `must` that have not listed this node as a member yet."""
        self._own: dict[str, OwnPool] = {}
        self._joined: dict[str, Membership] = {}
        self._polled: dict[str, float] = {}
        self._poll_at: dict[str, float] = {}
        self._retries: dict[str, tuple[float, float]] = {}
        """Pool → when to call a gate again, and the pause after that."""
        self._retried: set[str] = set()
        """Pools whose silence was reported."""
        self._warned: set[str] = set()
        self._spread: dict[str, tuple[PoolManifest, float]] = {}
        """Own pool → the manifest that was spread, and when."""
        self._nursery: trio.Nursery | None = None
        self._unwritten: dict[str, ManifestMessage] = {}
        """Pool → its newest manifest, until it is on disk."""
        self._writing = trio.Lock()
        self.registry = ManifestRegistry(self._own_manifest, self._newer, self.network.peer_id)
        self._server = PoolServer(self.registry, self.enrol, self.admit, self._on_disk)
        self.refused = self._server.refused
        """Refused calls from others, by reason."""
        self._follow(self.serves)
        self._look()

    def serve(self) -> None:
        """Start answering others."""
        serve_links(self.network, ProtocolId.POOL, POOL, self._server.answer, cost=cost_us)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the pools until cancelled."""
        async with trio.open_nursery() as nursery:
            client, self._nursery = PoolClient(self.network, nursery, self.index, self.rng), nursery
            task_status.started()
            while True:
                self._look()
                now = trio.current_time()
                async with trio.open_nursery() as calls:
                    for joined in tuple(self._joined.values()):
                        if self._must_enrol(joined) and self._retries.get(joined.pool, (now, 0.0))[0] <= now:
                            calls.start_soon(self._enrol, client, joined)
                    polled = {pool: joined.gates for pool, joined in self._joined.items()}
                    for pool, gates in (*polled.items(), *((served, ()) for served in self.serves)):
                        if self._must_poll(pool, now):
                            calls.start_soon(self._poll, client, pool, gates)
                    for own in tuple(self._own.values()):
                        calls.start_soon(self._respread, client, own)
                alone = self.role is Role.WORKER and not (self._joined or self.must or self.serves)
                pause = ALONE_LOOK_S if alone else LOOK_S
                await trio.sleep(pause * self.rng.uniform(1 - JITTER, 1 + JITTER))

    def doubt(self, name: str) -> None:
        """Handle a contradiction to the known manifest of a pool of that name: request a newer one soon."""
        for joined in self._joined.values():
            if joined.name == name and joined.pool in self._polled:
                soon = self._polled[joined.pool] + DOUBT_S
                self._poll_at[joined.pool] = min(self._poll_at[joined.pool], soon)

    # -- disk -------------------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read what the home's other processes made or joined. Each damaged file is logged once."""
        try:
            if self.role is not Role.WORKER:
                self._own = {pool.id: pool for pool in own_pools(self.home, self._warn)}
            if self.role is not None:
                joined = joined_pools(self.home, self.role, self._warn)
                self._joined = {each.pool: each for each in joined}
                self._follow(self._joined)
                self._awaited -= {pool for pool in self._awaited if self._is_member(pool, self.role)}
        except (ResourceError, OSError) as exc:  # too many open files, for example
            self._warn(exc)

    def _follow(self, pools: Iterable[str]) -> None:
        """Follow these pools from now on, starting with their manifests on disk."""
        for pool in set(pools) - self.registry.followed:
            self.registry.followed.add(pool)
            if (stored := stored_manifest(self.home, pool)) is not None:
                self.registry.store(stored)

    def _is_member(self, pool: str, role: Role) -> bool:
        manifest = self.registry.manifest(pool)
        return find_member(manifest, self.network.peer_id, role, self.wall()) is not None

    def _own_manifest(self, pool: str) -> ManifestMessage | None:
        own = self._own.get(pool)
        try:
            return own.signed() if own is not None else None
        except ResourceError as exc:
            self._warn(exc)
            return None

    def _newer(self, manifest: PoolManifest, signed: ManifestMessage) -> None:
        self.news(manifest)
        if self._nursery is not None:  # before `run`, the manifest comes from the disk
            self._unwritten[manifest.pool] = signed
            self._nursery.start_soon(self._on_disk, manifest.pool)

    async def _on_disk(self, pool: str) -> bool:
        async with self._writing:
            while (signed := self._unwritten.get(pool)) is not None:
                if not await self._write(store_manifest, signed):
                    return False
                if self._unwritten[pool] is signed:
                    del self._unwritten[pool]
            return True

    async def _write(self, write: Callable[..., object], *content: object) -> bool:
        try:
            await self.aside(partial(write, self.home, *content))
        except ResourceError as exc:
            self._warn(exc)
            return False
        return True

    def _warn(self, exc: Exception) -> None:
        """Log an error once."""
        line = exc.what if isinstance(exc, SarkError) else f"cannot read the pools of this home: {exc}"
        if isinstance(exc, NotPermitted) and exc.hint:
            line = f"{line}; {exc.hint}"
        if line not in self._warned:
            self._warned.add(line)
            log.warning(line)

    # -- calls ------------------------------------------------------------------------------------------------------------------

    def _must_enrol(self, joined: Membership) -> bool:
        """Whether to call a gate: to show a ticket, or to renew."""
        now = self.wall()
        member = find_member(self.registry.manifest(joined.pool), self.network.peer_id, joined.role, now)
        if joined.unused or member is None:
            return joined.ticket is not None and (joined.unused or now <= joined.until + LEEWAY_S)
        return is_due(member, now)

    async def _enrol(self, client: PoolClient, joined: Membership) -> None:
        now = self.wall()
        manifest = self.registry.manifest(joined.pool)
        try:
            fresh, signed = await client.enrol(
                self.gates(), joined, manifest, self.name, now=now, device=self.device
            )
        except (NotPermitted, Unreachable, ResourceError) as exc:
            first, most = ENROL_RETRY_S
            pause = self._retries.get(joined.pool, (0.0, first))[1]
            self._retries[joined.pool] = (trio.current_time() + pause, min(2 * pause, most))
            member = find_member(manifest, self.network.peer_id, joined.role, now)
            if isinstance(exc, NotPermitted) and joined.pool in self._awaited and member is None:
                await self._write(leave_pool, joined.pool, joined.role)
                raise NotPermitted(exc.what, hint=exc.hint) from None
            if not isinstance(exc, Unreachable):
                self._warn(exc)
            elif joined.pool in self._awaited and joined.pool not in self._retried and member is None:
                self._retried.add(joined.pool)
                self.tell(f"not in pool {joined.name} yet: {exc.what}; trying again")
                if exc.hint:
                    self.tell(f"  {exc.hint}")
            return
        self._retries.pop(joined.pool, None)
        if joined.pool in self.must and joined.unused:
            who = "the home that invited this device" if joined.name == HOME_POOL else f"pool {joined.name}"
            self.tell(f"{who} lists it as a member now")
        await self._write(store_membership, fresh)
        log.info("pool.enrolled", pool=joined.pool, name=joined.name, role=str(joined.role))
        self.registry.store(signed)

    def _must_poll(self, pool: str, now: float) -> bool:
        """Whether to ask for a newer manifest now; if so, schedules the next time."""
        if self._poll_at.get(pool, now) > now:
            return False
        self._polled[pool] = now
        self._poll_at[pool] = now + POLL_S * self.rng.uniform(1 - JITTER, 1 + JITTER)
        return True

    async def _poll(self, client: PoolClient, pool: str, of_ticket: Sequence[str]) -> None:
        stored = self.registry.latest(pool)
        signed = await client.newest(
            (*of_ticket, *self.gates()), pool, stored[0] if stored is not None else 0
        )
        if signed is not None:
            self.registry.store(signed)

    async def _respread(self, client: PoolClient, pool: OwnPool) -> None:
        """Spread a new manifest to the holders, and repeat it at intervals; after a revocation, also spread it to all workers. Workers
        learn of a new member from their next poll, or from the member itself."""
        before, now = self._spread.get(pool.id), trio.current_time()
        try:
            manifest = pool.manifest()
            if before is not None and manifest.number == before[0].number and now - before[1] < RESPREAD_S:
                return
            self._spread[pool.id] = (manifest, now)
            urgent = before is not None and before[0].revoked != manifest.revoked
            gates = (*pool.gates, *self.gates())
            await client.push(gates, pool, workers=urgent, now=self.wall())
        except (NotPermitted, ResourceError) as exc:
            self._warn(exc)
