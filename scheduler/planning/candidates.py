"""Finding devices through the index, and planning the campaigns whose tasks depend on the devices that are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import structlog
from pydantic import ValidationError

from protocol.errors import CampaignError, SarkError
from protocol.values.advert import Advert
from protocol.values.match import match
from protocol.values.requirement import Requirement
from protocol.values.task import Model, Task
from scheduler.campaign.model import Campaign
from scheduler.planning.tasks import derive_tasks, requirements
from scheduler.store.rows import CampaignRow, NewModel
from swarm.index.query import QueryResult

SURVEY: Final = 256
EVERY_DEVICE: Final = 10_000
"""Devices that a campaign for each device, or each class of them, is planned on."""

log = structlog.get_logger("sark.discover")


class DeviceFinder(Protocol):
    """What is used of `swarm.index.Index`."""

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult: ...

    async def survey(self, requirement: Requirement, limit: int = 256) -> QueryResult: ...

    async def model(self, sha256: str, limit: int = 32) -> QueryResult: ...


async def find(index: DeviceFinder, requirement: Requirement, want: int) -> tuple[Advert, ...]:
    """Adverts of devices that fit; none when the index cannot be reached now, which is logged and repeated by the core."""
    return (await _find(index, requirement, want))[0]


async def _find(index: DeviceFinder, requirement: Requirement, want: int) -> tuple[tuple[Advert, ...], bool]:
    """The adverts, and whether there are no others."""
    try:
        result = await index.query(requirement, want)
    except SarkError as exc:
        log.warning("index.unreachable", why=exc.what)
        return (), False
    return tuple(s.advert for s in result.devices if match(requirement, s.advert).fits), result.complete


async def survey(index: DeviceFinder, requirement: Requirement) -> tuple[Advert, ...]:
    """Adverts of devices of any kind, for saying why none fits."""
    try:
        result = await index.survey(requirement, SURVEY)
    except SarkError as exc:
        log.warning("index.unreachable", why=exc.what)
        return ()
    return tuple(seen.advert for seen in result.devices)


async def plan_on_devices(
    index: DeviceFinder, row: CampaignRow, models: Sequence[NewModel]
) -> tuple[tuple[Task, ...], frozenset[str]]:
    """The tasks of a campaign that is spread over the devices there are now, and these devices' peer ids.

    No ids when the index may know of others that it did not name now.
    Raises `CampaignError` when they are too many or the stored campaign cannot be read.
    """
    try:
        campaign = Campaign.model_validate_json(row.spec)
    except ValidationError as exc:
        raise CampaignError(
            f"campaign {row.id} was stored by another version of sark-node: {exc.error_count()} fields differ",
            hint="submit it again",
        ) from exc
    seen: dict[str, Advert] = {}
    whole = True
    for requirement in requirements(campaign):
        adverts, complete = await _find(index, requirement, EVERY_DEVICE)
        seen |= {advert.peer: advert for advert in adverts}
        whole = whole and complete
    described = {m.name: (None, Model(name=m.facts or m.name, sha256=m.sha256, size=m.size)) for m in models}
    tasks = derive_tasks(
        campaign, described, campaign_id=row.id, scheduler=row.scheduler, devices=tuple(seen.values())
    )
    return tasks, frozenset(seen) if whole else frozenset()
