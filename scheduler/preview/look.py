"""From a campaign file to its plan over the live swarm: read, describe, visit, plan. Nothing is stored, committed or held."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import trio
from pydantic import ValidationError

from protocol.errors import CampaignError, RemoteProtocolError, SarkError
from protocol.values.advert import Advert
from protocol.values.attempt import TaskState
from protocol.values.requirement import Requirement
from protocol.values.task import Task, read_task
from scheduler.campaign.load import load_campaign
from scheduler.campaign.model import Campaign
from scheduler.models.describe import Fetch, Models, describe_models, no_fetch
from scheduler.planning.tasks import derive_cells, requirements
from scheduler.preview.plan import LivePlan, make_plan
from scheduler.preview.survey import VISIT, see_everybody, visit
from scheduler.preview.why import WhyDevice, WhyReport, why
from scheduler.store.opening import has_store, open_store
from scheduler.store.rows import CampaignRow
from scheduler.store.store import Store
from scheduler.submit.daemon import is_running
from swarm.base.home import Home
from swarm.base.text import safe_text
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
        found = store.tasks.run_times(models)
    told = []
    for body, seconds in found:
        try:
            told.append((read_task(body), seconds))
        except RemoteProtocolError:  # of another version: it tells us nothing
            continue
    return told


def ask_why(home: Home, store: Store, campaign: str, number: str, gates: Sequence[str]) -> WhyReport:
    """The story of a campaign, or of its task `number`. Raises `CampaignError` when there is no such task. Blocking."""
    row = store.campaigns.get(campaign)
    if row is None:
        raise CampaignError(f"no campaign {campaign!r} on this home", hint="list them: sark-node campaigns")
    tasks = [task for task in store.tasks.all(campaign) if number in ("", str(task.n))]
    if number and not tasks:
        raise CampaignError(
            f"{campaign} has no task {number!r}", hint=f"see its tasks: sark-node explain {campaign}"
        )
    waiting = {task.id for task in tasks if task.state is TaskState.PENDING}
    bodies = {task: read_task(body) for task, body in store.tasks.bodies(campaign).items() if task in waiting}
    looking = row.ended is None and (bool(waiting) or not row.planned)
    seen = _look(gates) if looking else WhyDevice(adverts=None)
    attempts = [
        attempt for attempt in store.attempts.all(campaign) if attempt.task in {task.id for task in tasks}
    ]
    return why(
        row,
        tasks,
        bodies,
        attempts,
        store.events.all(campaign),
        seen.model_copy(
            update={"scheduling": row.ended is not None or is_running(home), "busy": _busy(store)}
        ),
        time.time(),
        unplanned=() if row.planned else _looked_for(row),
    )


def _look(gates: Sequence[str]) -> WhyDevice:
    blind = ""
    adverts: tuple[Advert, ...] | None = None
    try:
        adverts = trio.run(see_everybody, gates)
    except* SarkError as group:
        blind = _first(group)
    return WhyDevice(adverts=adverts, blind=blind)


def _first(group: BaseExceptionGroup[SarkError]) -> str:
    """What the first of them says: trio hands over in groups what its tasks raised."""
    for item in group.exceptions:
        return _first(item) if isinstance(item, BaseExceptionGroup) else item.what
    raise AssertionError("an exception group is never empty")


def _busy(store: Store) -> Counter[str]:
    """How many tasks of this home each device has now, by its name."""
    live = (TaskState.COMMITTING, TaskState.QUEUED, TaskState.LEASED, TaskState.RUNNING)
    return Counter(
        safe_text(task.device, 40)
        for campaign in store.campaigns.unfinished()
        for task in store.tasks.all(campaign.id)
        if task.state in live
    )


def _looked_for(row: CampaignRow) -> tuple[Requirement, ...]:
    try:
        return requirements(Campaign.model_validate_json(row.spec))
    except (
        ValidationError
    ):  # of another version: its tasks will never be made, and the campaign says so when it ends
        return ()
