"""The workers in the newest manifests of this home's pools on disk. Only reads; nothing is made or changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.errors import ResourceError
from protocol.messages.pool import PoolManifest, read_manifest
from protocol.words import Role
from swarm.base.home import Home
from swarm.base.home import Role as HomeRole
from swarm.net.identity import load_or_create
from swarm.pools.manifests import find_member, is_live
from swarm.pools.membership import joined_pools, stored_manifest, warn_unusable
from swarm.pools.owner import HOME_POOL, own_pools


@dataclass(frozen=True, slots=True)
class PoolWorkers:
    """The workers in one pool's newest manifest."""

    name: str
    id: str
    """Empty: this home has not needed its home pool yet."""
    own: bool
    """Whether this is the home pool."""
    devices: Mapping[str, str | None]
    """Peer id of each worker → the device id in its line, if any."""

    @property
    def peers(self) -> frozenset[str]:
        """The workers' peer ids."""
        return frozenset(self.devices)


def trusted_workers(home: Home, now: float) -> tuple[PoolWorkers, ...]:
    """This home's trusted workers: first its own worker and the members of its home pool; then the workers of each other pool made here,
    and of each pool whose newest manifest lists this home's scheduler as a submitter.

    `now`: wall seconds; only memberships that have not ended count. A damaged file is logged, and its pool is left out.
    """
    worker, scheduler = peer_of(home, "worker"), peer_of(home, "scheduler")
    mine: dict[str, str | None] = {} if worker is None else {worker: None}
    first = PoolWorkers(HOME_POOL, "", True, mine)
    others: list[PoolWorkers] = []
    for pool in own_pools(home, warn_unusable):
        try:
            devices = _devices(pool.manifest(), now)
        except ResourceError as exc:
            warn_unusable(exc)
            continue
        if pool.folder.name == HOME_POOL:
            first = PoolWorkers(pool.name, pool.id, True, {**mine, **devices})
        else:
            others.append(PoolWorkers(pool.name, pool.id, False, devices))
    for joined in joined_pools(home, Role.SUBMIT, warn_unusable):
        signed = stored_manifest(home, joined.pool)
        manifest = read_manifest(signed.body) if signed is not None else None
        if manifest is None or scheduler is None or joined.pool in {pool.id for pool in (first, *others)}:
            continue
        if find_member(manifest, scheduler, Role.SUBMIT, now) is not None:
            others.append(PoolWorkers(joined.name, joined.pool, False, _devices(manifest, now)))
    return (first, *others)


def _devices(manifest: PoolManifest, now: float) -> dict[str, str | None]:
    members = manifest.members
    return {m.peer: m.device for m in members if m.role is Role.WORKER and is_live(m, now)}


def peer_of(home: Home, role: HomeRole) -> str | None:
    """The peer id of a role of this home, if it has a key."""
    path = home.key(role)
    try:
        return load_or_create(path).peer_id if path.exists() else None
    except ResourceError as exc:
        warn_unusable(exc)
        return None
