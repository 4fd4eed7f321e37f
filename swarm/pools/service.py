"""A node's part in pools, in one object that each role runs: serve and follow manifests, be let in, renew what was given.

    pools = PoolNode(network, index, home, Role.WORKER, name="lab-3", wall=time.time, rng=rng, news=permits.manifest)
    pools.serve()
    nursery.start_soon(pools.run)

A node that joined by ticket belongs to the pool at once: the ticket is consent enough. It enrols so that the pool's owner sees it, and
is given a credential bound to its key; it asks again and again until a gate that has the pool's key answers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final

import structlog
import trio

from protocol.errors import NotPermitted, ResourceError, Unreachable
from protocol.messages.pool import ManifestMessage, PoolManifest
from protocol.words import Role
from swarm.base.home import Home
from swarm.net.link import Links
from swarm.net.network import Network
from swarm.pools.client import ManifestDirectory, enrol, newest, pool_links, push
from swarm.pools.membership import (
    Membership,
    joined_pools,
    keep_joined,
    keep_manifest,
    kept_manifest,
    leave_pool,
)
from swarm.pools.owner import OwnPool, own_pools
from swarm.pools.server import Admit, Enroller, ManifestShelf, PoolServer

POLL_S: Final = 60.0
JITTER: Final = 0.2
LOOK_S: Final = 5.0
"""How often it is looked whether a pool was joined, or made, by another process of the home; and whether somebody has to be asked."""
RESPREAD_S: Final = 600.0
"""How often a gate brings its own pools' manifests to their holders again: these keep them in memory only."""
DOUBT_S: Final = 10.0
"""A manifest that is doubted is asked for again after this long."""
ENROL_AGAIN_S: Final = (2.0, 300.0)

Aside = Callable[[Callable[[], object]], Awaitable[object]]

log = structlog.get_logger("sark.pools")


class PoolNode:
    """Serves and follows manifests, enrols and renews, for as long as `run` runs.

    `role`: as what this node is in the pools it joined; None: in none, as a gate. `news` is told each manifest of a pool it is in, once
    read from disk and then whenever a newer one is heard of. `enrol` lets others in, where keys of pools are here.
    """

    def __init__(
        self,
        network: Network,
        index: ManifestDirectory,
        home: Home,
        role: Role | None,
        *,
        name: str,
        wall: Callable[[], float],
        rng: random.Random,
        news: Callable[[PoolManifest], object] = lambda manifest: None,
        enrol: Enroller | None = None,
        gates: Callable[[], Sequence[str]] = lambda: (),
        aside: Aside = trio.to_thread.run_sync,
        admit: Admit = lambda peer: None,
        serves: Sequence[str] = (),
        must: Collection[str] = (),
    ) -> None:
        """`name`: what the pool's owner calls this member by. `gates`: ways in, besides those of the tickets. `aside`: has something
        done that waits for the disk, which would disturb what is being timed here. `admit`: who may leave manifests of other pools
        here. `serves`: ids of pools whose newest manifest is always known here, though this node is not in them. `must`: ids of pools
        that it comes to be let in to: `run` forgets one that says no, and raises `NotPermitted`, unless it has let this node in before."""
        self._network = network
        self._index = index
        self._home = home
        self._role = role
        self._name = name
        self._wall = wall
        self._rng = rng
        self._news = news
        self._gates = gates
        self._own: dict[str, OwnPool] = {}
        self._joined: dict[str, Membership] = {}
        self._polled: dict[str, float] = {}
        self._poll_at: dict[str, float] = {}
        self._tries: dict[str, tuple[float, float]] = {}
        """Pool → when to ask a gate again, and the pause after that."""
        self._said: set[str] = set()
        self._spread: dict[str, tuple[PoolManifest, float]] = {}
        """Pool made here → what was spread, and when."""
        self._aside = aside
        self._to_keep: dict[str, ManifestMessage] = {}
        """Pool → what is to be written."""
        self._keep_now = trio.Event()
        self.shelf: Final = ManifestShelf(self._own_manifest, self._newer, network.peer_id)
        self._desk = PoolServer(self.shelf, enrol, admit)
        self._serves = tuple(serves)
        self._must = frozenset(must)
        self._follow(self._serves)
        self._look()

    @property
    def refused(self) -> Counter[str]:
        """What others asked about pools and were not given, by reason."""
        return self._desk.refused

    def serve(self) -> None:
        """Answer others from now on."""
        self._desk.serve(self._network)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow, for ever."""
        async with trio.open_nursery() as nursery:
            links = pool_links(self._network, nursery)
            nursery.start_soon(self._keep)
            task_status.started()
            while True:
                self._look()
                now = trio.current_time()
                async with trio.open_nursery() as asking:
                    for joined in tuple(self._joined.values()):
                        if self._due(joined) and self._tries.get(joined.pool, (now, 0.0))[0] <= now:
                            asking.start_soon(self._enrol, links, joined)
                        if self._to_poll(joined.pool, now):
                            asking.start_soon(self._poll, links, joined.pool, joined.gates)
                    for served in self._serves:
                        if self._to_poll(served, now):
                            asking.start_soon(self._poll, links, served, ())
                    for pool in tuple(self._own.values()):
                        if self._to_spread(pool, now):
                            asking.start_soon(self._respread, links, pool)
                await trio.sleep(LOOK_S * self._rng.uniform(1 - JITTER, 1 + JITTER))

    def doubt(self, name: str) -> None:
        """Something was seen that the manifest at hand of a pool of that name does not say: ask for a newer one soon."""
        for joined in self._joined.values():
            if joined.name == name and joined.pool in self._polled:
                soon = self._polled[joined.pool] + DOUBT_S
                self._poll_at[joined.pool] = min(self._poll_at[joined.pool], soon)

    # -- what is on disk --------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """See what the home's other processes have made or joined. What is damaged is told once and left alone."""
        try:
            if self._role is None:
                self._own = {pool.id: pool for pool in own_pools(self._home, self._damaged)}
                return
            joined = joined_pools(self._home, self._role, self._damaged)
            self._joined = {each.pool: each for each in joined}
        except ResourceError as exc:
            self._say(exc.what)
            return
        except OSError as exc:  # no more open files, say: it is looked again soon
            self._say(f"cannot look through the pools of this home: {exc.strerror or exc}")
            return
        self._follow(self._joined)

    def _follow(self, pools: Iterable[str]) -> None:
        """Keep the newest manifest of these from now on, beginning with what is on disk."""
        for pool in pools:
            if pool not in self.shelf.followed:
                self.shelf.follow((pool,))
                kept = kept_manifest(self._home, pool)
                if kept is not None:
                    self.shelf.take(kept.body, kept.signature)

    def _own_manifest(self, pool: str) -> ManifestMessage | None:
        own = self._own.get(pool)
        try:
            return own.signed() if own is not None else None
        except ResourceError as exc:
            self._say(exc.what)
            return None

    def _newer(self, manifest: PoolManifest, signed: ManifestMessage) -> None:
        self._news(manifest)
        self._to_keep[manifest.pool] = signed
        self._keep_now.set()

    async def _keep(self) -> None:
        """Write what was heard, beside the event loop."""
        while True:
            await self._keep_now.wait()
            self._keep_now = trio.Event()
            fresh, self._to_keep = self._to_keep, {}
            for signed in fresh.values():
                await self._write(partial(keep_manifest, self._home, signed))

    async def _write(self, write: Callable[[], object]) -> None:
        try:
            await self._aside(write)
        except ResourceError as exc:
            self._say(exc.what)

    def _damaged(self, exc: ResourceError) -> None:
        self._say(exc.what)

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            log.warning(line)

    # -- asking -------------------------------------------------------------------------------------------------------------------

    def _due(self, joined: Membership) -> bool:
        """Whether a gate is to be asked for a credential: there is none, half of its life is over, or there is a new ticket."""
        now = self._wall()
        if joined.credential is None or joined.until <= now or (joined.ticket and not joined.spent):
            return joined.ticket is not None
        return now >= (joined.since + joined.until) / 2

    async def _enrol(self, links: Links, joined: Membership) -> None:
        gates = tuple(dict.fromkeys((*joined.gates, *self._gates())))
        try:
            fresh, signed = await enrol(
                links, gates, joined, self._network.peer_id, self._name, now=self._wall()
            )
        except (NotPermitted, Unreachable, ResourceError) as exc:
            first, most = ENROL_AGAIN_S
            pause = self._tries.get(joined.pool, (0.0, first))[1]
            self._tries[joined.pool] = (trio.current_time() + pause, min(2 * pause, most))
            if isinstance(exc, NotPermitted) and joined.pool in self._must and joined.credential is None:
                await self._write(partial(leave_pool, self._home, joined.pool, joined.role))
                raise NotPermitted(exc.what, hint=exc.hint) from None
            if not isinstance(exc, Unreachable):
                self._say(f"{exc.what}; {exc.hint}" if exc.hint else exc.what)
            return
        self._tries.pop(joined.pool, None)
        await self._write(partial(keep_joined, self._home, fresh))
        log.info("pool.enrolled", pool=joined.pool, name=joined.name, role=str(joined.role))
        self.shelf.take(signed.body, signed.signature)

    def _to_poll(self, pool: str, now: float) -> bool:
        """Whether to ask for a newer manifest; if so, the next time is set."""
        if self._poll_at.get(pool, now) > now:
            return False
        self._polled[pool] = now
        self._poll_at[pool] = now + POLL_S * self._rng.uniform(1 - JITTER, 1 + JITTER)
        return True

    async def _poll(self, links: Links, pool: str, of_pool: Sequence[str]) -> None:
        """`of_pool`: the gates that the pool's ticket named."""
        known = self.shelf.manifest(pool)
        gates = tuple(dict.fromkeys((*of_pool, *self._gates())))
        have = known.number if known is not None else 0
        signed = await newest(links, self._index, gates, pool, have, self._rng, me=self._network.peer_id)
        if signed is not None:
            self.shelf.take(signed.body, signed.signature)

    def _to_spread(self, pool: OwnPool, now: float) -> bool:
        try:
            manifest = pool.manifest()
        except ResourceError as exc:
            self._say(exc.what)
            return False
        done = self._spread.get(pool.id)
        return done is None or manifest.number != done[0].number or now - done[1] >= RESPREAD_S

    async def _respread(self, links: Links, pool: OwnPool) -> None:
        """To the holders; and to all workers when something was taken back: that a member came in can wait for their next poll."""
        before = self._spread.get(pool.id)
        try:
            manifest = pool.manifest()
            self._spread[pool.id] = (manifest, trio.current_time())
            urgent = before is not None and (
                (before[0].revoked, before[0].revoked_tokens) != (manifest.revoked, manifest.revoked_tokens)
            )
            gates = (*pool.gates, *self._gates())
            await push(links, self._index, gates, pool, workers=urgent, me=self._network.peer_id)
        except (NotPermitted, ResourceError) as exc:
            self._say(exc.what)
