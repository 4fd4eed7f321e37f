"""Devices as their pools know them: an advert's claim to work for a pool counts when the pool's manifest says so, too.

Anybody may advertise any pool's name. Of the pools that this home is in, or made, it has the newest manifest it heard of on disk; a device
that this does not name as a worker is seen without the pool, by planning and by negotiating alike. A pool of which this home knows
nothing has nothing to hold a claim against: there it is what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from protocol.messages.pool import PoolManifest
from protocol.values.advert import Advert
from protocol.values.requirement import Requirement
from protocol.words import Role
from scheduler.planning.candidates import DeviceFinder
from swarm.index.merge import Sighting
from swarm.index.query import QueryResult

MORE: Final = 256
"""Devices asked for at least when a pool is: those that only claim to be of it must not crowd out those that are."""

Known = Mapping[str, tuple[PoolManifest | None, ...]]
"""Name of a pool → the newest manifest of each pool of that name that this home is in; None: none heard of yet."""


class VerifiedIndex:
    """An index that shows each device with those of its pools that count. `doubted` is told of a pool that does not name, or no
    longer, a device which claims to be of it: the manifest at hand may be behind."""

    def __init__(
        self,
        index: DeviceFinder,
        known: Callable[[], Known],
        doubted: Callable[[str], object] = lambda name: None,
    ) -> None:
        self._index = index
        self._known = known
        self._doubted = doubted

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult:
        """As of the index. What does not fit without a pool's name is left to the caller to leave out."""
        pools = any(clause.attribute == "pools" for clause in requirement.clauses)
        return self._seen(await self._index.query(requirement, max(want, MORE) if pools else want))

    async def survey(self, requirement: Requirement, limit: int = 256) -> QueryResult:
        """As of the index."""
        return self._seen(await self._index.survey(requirement, limit))

    async def model(self, sha256: str, limit: int = 32) -> QueryResult:
        """As of the index."""
        return self._seen(await self._index.model(sha256, limit))

    def _seen(self, result: QueryResult) -> QueryResult:
        if not any(sighting.advert.pools for sighting in result.devices):
            return result
        known = self._known()
        return replace(result, devices=tuple(self._sighting(each, known) for each in result.devices))

    def _sighting(self, sighting: Sighting, known: Known) -> Sighting:
        advert = vouched(sighting.advert, known)
        for name in set(sighting.advert.pools).difference(advert.pools):
            self._doubted(name)
        return sighting if advert is sighting.advert else replace(sighting, advert=advert)


def vouched(advert: Advert, known: Known) -> Advert:
    """The advert with those of its pools that count."""
    pools = tuple(
        name
        for name in advert.pools
        if name not in known or any(_names(manifest, advert.peer) for manifest in known[name])
    )
    return advert if pools == advert.pools else advert.model_copy(update={"pools": pools})


def _names(manifest: PoolManifest | None, peer: str) -> bool:
    return manifest is not None and any(
        (member.peer, member.role) == (peer, Role.WORKER) for member in manifest.members
    )
