"""Finds devices through the index, with only those of a device's pools that their manifests confirm, and plans campaigns on them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, Protocol

import structlog
import trio

from protocol.errors import CampaignError, SarkError
from protocol.messages.pool import PoolManifest
from protocol.values.advert import Advert
from protocol.values.requirement import Requirement
from protocol.values.task import Model
from protocol.values.trust import TrustScope
from protocol.words import Role
from scheduler.campaign.model import Campaign
from scheduler.campaign.text import read_spec
from scheduler.models.files import CampaignFile
from scheduler.planning.tasks import derive, needs_devices, requirements
from scheduler.store.rows import CampaignRow
from scheduler.store.store import Store
from scheduler.trust.book import TrustBook
from scheduler.trust.identities import clashes
from scheduler.trust.search import find_admitted
from swarm.index.query import QueryResult, Sighting
from swarm.pools.manifests import find_member

SURVEY: Final = 256
EVERY_DEVICE: Final = 10_000
"""Most devices on which a campaign spread over devices or classes is planned."""
POOL_QUERY: Final = 256
"""Least number of devices to query when a pool is required: devices that falsely claim it must not crowd out its members."""
SEARCH_INTERVAL_S: Final = 2.0
CONFIRM_INTERVAL_S: Final = 1.0
"""Seconds between the two queries that must agree before a campaign spread over devices is planned."""

PORTION: Final = 200
"""Tasks of a plan stored at a time."""
DISCARDED: Final = 10 * PORTION
"""Tasks deleted at a time; deleting is quicker than storing."""

PoolManifests = Mapping[str, tuple[PoolManifest | None, ...]]
"""By pool name: the newest manifest of each pool of this name to which this home belongs; None: none received yet."""

log = structlog.get_logger("sark.discover")


class DeviceFinder(Protocol):
    """The part of `swarm.index.index.Index` that planning uses."""

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult: ...

    async def survey(self, requirement: Requirement, limit: int = 256) -> QueryResult: ...

    async def model(self, sha256: str, limit: int = 32) -> QueryResult: ...


async def find(
    index: DeviceFinder,
    requirement: Requirement,
    want: int,
    trust: TrustScope,
    book: TrustBook,
    rng: random.Random | None = None,
) -> tuple[Advert, ...]:
    """Adverts of devices that fit and that `trust` admits; none, with a log entry, when the index cannot be reached now."""
    return (await find_admitted(index, requirement, want, trust, book, rng))[0]


async def survey(index: DeviceFinder, requirement: Requirement) -> tuple[Advert, ...]:
    """Adverts of devices of any kind, to explain why none fits."""
    try:
        result = await index.survey(requirement, SURVEY)
    except SarkError as exc:
        log.warning("index.unreachable", why=exc.what)
        return ()
    return tuple(sighting.advert for sighting in result.devices)


# -- campaigns whose tasks depend on the devices ----------------------------------------------------------------------------------


async def fix_plan(
    index: DeviceFinder,
    store: Store,
    row: CampaignRow,
    left_s: float | None,
    book: Callable[[], TrustBook],
    found: Callable[[Sequence[Advert]], object] = lambda adverts: None,
) -> bool:
    """Store the tasks of a campaign, or end it. A campaign over devices is planned once two consecutive queries find the same devices, or
    its waiting time is over. Returns whether it waited for any device without success.

    `left_s`: seconds left of the campaign's time; None: no limit. `found` receives the devices on which the campaign is planned.
    """
    try:
        campaign = read_spec(row.spec, f"campaign {row.id}", hint="submit it again")
        await _discard(store, row.id)  # left by an earlier process
        if not needs_devices(campaign):
            await _store_tasks(store, row, campaign, ())
            return False
        until = trio.current_time() + (row.wait_s if left_s is None else min(row.wait_s, left_s))
        previous: frozenset[str] = frozenset()
        while True:
            adverts, complete = await _devices_of(index, campaign, book())
            if _withdrawn(store, row.id):
                store.campaigns.end(row.id)
                return False
            devices = frozenset(adverts)
            settled = complete and bool(devices) and devices == previous
            if settled or trio.current_time() >= until:
                found(tuple(adverts.values()))
                await _store_tasks(store, row, campaign, tuple(adverts.values()))
                return not devices
            previous = devices if complete else frozenset()
            await trio.sleep(CONFIRM_INTERVAL_S if previous else SEARCH_INTERVAL_S)
    except CampaignError as exc:
        await _end_unplanned(store, row.id, exc.what)
        return False


async def _store_tasks(store: Store, row: CampaignRow, campaign: Campaign, devices: Sequence[Advert]) -> None:
    """Store tasks in portions, since there may be very many and other campaigns go on meanwhile. Raises `CampaignError`."""
    described = {
        one.name: CampaignFile(None, Model(name=one.facts or one.name, sha256=one.sha256, size=one.size))
        for one in store.campaigns.models(row.id)
    }
    planned = derive(campaign, described, campaign_id=row.id, scheduler=row.scheduler, devices=devices)
    tasks, after = (task for _, task in planned), 0
    portion = list(islice(tasks, PORTION))
    while not _withdrawn(store, row.id):
        following = list(islice(tasks, PORTION))
        last = not following
        if not store.campaigns.plan(row.id, portion, after=after, last=last):
            # Another process plans the campaign, or has planned it; if that plan is abandoned, this process starts again.
            await trio.sleep(SEARCH_INTERVAL_S)
            return
        if last:
            return
        after, portion = after + len(portion), following
        await trio.lowlevel.checkpoint()
    await _end_unplanned(store, row.id)


def _withdrawn(store: Store, campaign: str) -> bool:
    """Whether the campaign was cancelled or deleted."""
    row = store.campaigns.get(campaign)
    return row is None or row.cancel


async def _end_unplanned(store: Store, campaign: str, why: str = "") -> None:
    await _discard(store, campaign)
    store.campaigns.end(campaign, detail=why)


async def _discard(store: Store, campaign: str) -> None:
    """Delete what an unfinished plan left."""
    while store.campaigns.discard_plan(campaign, DISCARDED):
        await trio.lowlevel.checkpoint()


async def _devices_of(
    index: DeviceFinder, campaign: Campaign, book: TrustBook
) -> tuple[dict[str, Advert], bool]:
    """The adverts of the devices available for the campaign now, by peer id, and whether the index knows no others."""
    adverts: dict[str, Advert] = {}
    complete = True
    for requirement in requirements(campaign):
        fitting, all_of_them = await find_admitted(
            index, requirement, EVERY_DEVICE, campaign.trust, book, every=True
        )
        adverts |= {advert.peer: advert for advert in fitting}
        complete = complete and all_of_them
    for peer, clash in clashes(book, adverts.values()).items():
        log.warning("device.clash", why=str(clash))
        del adverts[peer]
    return adverts, complete


# -- pools ------------------------------------------------------------------------------------------------------------------------


class VerifiedIndex:
    """An index whose adverts name only pools that confirm them, since anybody may advertise any pool's name. `manifests` gives the newest
    manifest of each pool to which this home belongs. Claims of other pools are not checked.

    `report_mismatch` gets the name of a pool that does not confirm a device, since the local manifest may be outdated.
    """

    def __init__(
        self,
        index: DeviceFinder,
        manifests: Callable[[], PoolManifests],
        report_mismatch: Callable[[str], object] = lambda name: None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._index = index
        self._manifests = manifests
        self._report_mismatch = report_mismatch
        self._wall = wall

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult:
        """As `DeviceFinder.query`; the caller leaves out devices that do not fit without the pool's name."""
        pools = any(clause.attribute == "pools" for clause in requirement.clauses)
        return self._verified(await self._index.query(requirement, max(want, POOL_QUERY) if pools else want))

    async def survey(self, requirement: Requirement, limit: int = 256) -> QueryResult:
        """As `DeviceFinder.survey`."""
        return self._verified(await self._index.survey(requirement, limit))

    async def model(self, sha256: str, limit: int = 32) -> QueryResult:
        """As `DeviceFinder.model`."""
        return self._verified(await self._index.model(sha256, limit))

    def _verified(self, result: QueryResult) -> QueryResult:
        if not any(sighting.advert.pools for sighting in result.devices):
            return result
        manifests = self._manifests()
        return replace(result, devices=tuple(self._sighting(each, manifests) for each in result.devices))

    def _sighting(self, sighting: Sighting, manifests: PoolManifests) -> Sighting:
        advert = verified_advert(sighting.advert, manifests, self._wall())
        for name in set(sighting.advert.pools).difference(advert.pools):
            self._report_mismatch(name)
        return sighting if advert is sighting.advert else replace(sighting, advert=advert)


def verified_advert(advert: Advert, manifests: PoolManifests, now: float) -> Advert:
    """The advert without pools whose manifests do not list its key as a current worker. `now`: wall seconds."""

    def confirms(manifest: PoolManifest | None) -> bool:
        return find_member(manifest, advert.peer, Role.WORKER, now) is not None

    pools = tuple(
        name for name in advert.pools if name not in manifests or any(map(confirms, manifests[name]))
    )
    return advert if pools == advert.pools else advert.model_copy(update={"pools": pools})
