"""From a campaign file to its plan over the live swarm: read, describe, visit, plan. Nothing is stored, committed or held."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import trio

from protocol.errors import RemoteProtocolError
from protocol.values.advert import Advert
from protocol.values.task import Task, read_task
from scheduler.campaign.load import load_campaign
from scheduler.campaign.model import Campaign
from scheduler.models.describe import Fetch, Models, describe_models, no_fetch
from scheduler.planning.tasks import derive_cells, requirements
from scheduler.preview.plan import LivePlan, make_plan
from scheduler.preview.survey import VISIT, visit
from scheduler.store.opening import has_store, open_store
from swarm.base.home import Home
from swarm.net.identity import load_or_create


def look(home: Home, file: Path, gates: Sequence[str], fetch: Fetch = no_fetch) -> LivePlan:
    """The plan of the campaign in `file`. Raises `CampaignError` for a bad file or model, `Unreachable` when no gate answers. Blocking."""
    campaign = load_campaign(file)
    return look_at(home, campaign, describe_models(campaign, file.absolute().parent, fetch), gates)


def look_at(home: Home, campaign: Campaign, models: Models, gates: Sequence[str]) -> LivePlan:
    """The plan of a campaign whose models have been looked at. Raises `Unreachable` when no gate answers. Blocking."""
    scheduler = load_or_create(home.key("scheduler")).peer_id

    def cells_on(devices: Sequence[Advert]) -> tuple[Task, ...]:
        made = derive_cells(campaign, models, campaign_id=VISIT, scheduler=scheduler, devices=devices)
        return tuple(task for _, tasks in made for task in tasks)

    async def go() -> LivePlan:
        needs = requirements(campaign)
        seen = await visit(gates, home, needs, cells_on, priority=campaign.priority, now=time.time())
        cells = derive_cells(campaign, models, campaign_id=VISIT, scheduler=scheduler, devices=seen.adverts)
        return make_plan(campaign, models, cells, seen, history(home, {m.sha256 for _, m in models.values()}))

    return trio.run(go)


def history(home: Home, models: set[str]) -> list[tuple[Task, float]]:
    """The tasks with one of these models that succeeded on this home, and how long they took."""
    if not has_store(home):
        return []
    with open_store(home) as store:
        found = store.run_times(models)
    told = []
    for body, seconds in found:
        try:
            told.append((read_task(body), seconds))
        except RemoteProtocolError:  # of another version: it tells us nothing
            continue
    return told
