"""From a campaign and the live swarm to a plan or an explanation. Nothing is stored, committed or held."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import trio
from pydantic import ValidationError

from protocol.errors import CampaignError, RemoteProtocolError, SarkError, first_error
from protocol.values.advert import Advert
from protocol.values.attempt import TaskState
from protocol.values.requirement import Requirement
from protocol.values.task import Task, read_task
from scheduler.campaign.load import load_campaign
from scheduler.campaign.model import Campaign
from scheduler.campaign.text import trust_of_spec
from scheduler.models.describe import Fetch, Models, describe_models, no_fetch
from scheduler.planning.tasks import PlannedCell, derive_cells, requirements, tasks_of
from scheduler.preview.plan import LivePlan, make_plan
from scheduler.preview.survey import VISIT, find_disputed, visit
from scheduler.preview.why import LiveFacts, WhyReport, why_report
from scheduler.store.rows import CampaignRow
from scheduler.store.store import Store, has_store, open_store
from scheduler.submit.daemon import is_running
from scheduler.trust.home import read_book
from scheduler.trust.identities import DisputedDevice, named_devices
from scheduler.trust.serving import UntrustedDevice
from swarm.base.home import Home
from swarm.base.text import safe_text
from swarm.net.identity import load_or_create

MAX_NEEDS: Final = 16
"""Kinds of waiting tasks for which devices are looked up."""


def plan_file(home: Home, file: Path, gates: Sequence[str], fetch: Fetch = no_fetch) -> LivePlan:
    """The plan of the campaign in `file`. Raises `CampaignError` for a bad file or model, `Unreachable` when no gate answers. Blocking."""
    campaign = load_campaign(file)
    return plan_campaign(home, campaign, describe_models(campaign, file.absolute().parent, fetch), gates)


def check_devices(home: Home, campaign: Campaign, gates: Callable[[], Sequence[str]]) -> None:
    """Raises `CampaignError` if the campaign names a device that two keys claim, as far as the swarm tells now. `gates`: asked where it
    names one. Blocking."""
    now, needs = time.time(), requirements(campaign)
    if not named_devices(needs) or not (entries := gates()):
        return
    found: DisputedDevice | None = None
    try:
        found = trio.run(find_disputed, entries, needs, campaign.trust, read_book(home, now))
    except* SarkError:
        pass
    if found is not None:
        raise found.error()


def plan_campaign(home: Home, campaign: Campaign, models: Models, gates: Sequence[str]) -> LivePlan:
    """The plan of a campaign with its described models. Raises `Unreachable` when no gate answers, `CampaignError` for a device that it
    names and that two keys claim. Blocking.
    """
    check_devices(home, campaign, lambda: gates)
    scheduler = load_or_create(home.key("scheduler")).peer_id

    def cells_on(devices: Sequence[Advert]) -> Sequence[tuple[PlannedCell, Sequence[Task]]]:
        return derive_cells(campaign, models, campaign_id=VISIT, scheduler=scheduler, devices=devices)

    now = time.time()
    survey = partial(
        visit, priority=campaign.priority, now=now, trust=campaign.trust, book=read_book(home, now)
    )
    result = trio.run(
        survey, gates, home, requirements(campaign), lambda devices: tasks_of(cells_on(devices))
    )
    past = run_history(home, {model.sha256 for _, model in models.values()})
    return make_plan(campaign, models, cells_on(result.adverts), result, past)


def serving_devices(home: Home, campaign: Campaign, gates: Sequence[str]) -> tuple[UntrustedDevice, ...]:
    """Devices that fit the campaign and serve this submitter, and that it does not trust; none when no gate answers. Blocking."""
    now = time.time()
    look = partial(
        visit, priority=campaign.priority, now=now, trust=campaign.trust, book=read_book(home, now)
    )
    untrusted: tuple[UntrustedDevice, ...] = ()
    try:
        untrusted = trio.run(look, gates, home, requirements(campaign), lambda devices: ()).untrusted
    except* SarkError:
        pass
    return tuple(each for each in untrusted if each.serves)


def run_history(home: Home, models: set[str]) -> list[tuple[Task, float]]:
    """The tasks with one of these models that succeeded on this home, and how long they took."""
    if not has_store(home):
        return []
    with open_store(home) as store:
        runs = store.tasks.run_times(models)
    history = []
    for body, seconds in runs:
        with contextlib.suppress(RemoteProtocolError):  # of another version
            history.append((read_task(body), seconds))
    return history


def explain_campaign(
    home: Home, store: Store, campaign: str, number: str, gates: Callable[[], Sequence[str]]
) -> WhyReport:
    """Why the tasks of a campaign, or its task `number`, are in their states. `gates`: asked where devices are looked for. Raises
    `CampaignError` for no such task. Blocking."""
    row = store.campaigns.get(campaign)
    if row is None:
        raise CampaignError(f"no campaign {campaign!r} on this home", hint="list them: sark-node campaigns")
    tasks = [task for task in store.tasks.all(campaign) if number in ("", str(task.n))]
    if number and not tasks:
        raise CampaignError(
            f"{campaign} has no task {number!r}", hint=f"see its tasks: sark-node explain {campaign}"
        )
    ids = {task.id for task in tasks}
    waiting = {task.id for task in tasks if task.state in (TaskState.PENDING, TaskState.QUEUED)}
    bodies = {task: read_task(body) for task, body in store.tasks.bodies(campaign).items() if task in waiting}
    unplanned = () if row.planned else _requirements(row)
    found, unreachable = None, ""
    if row.ended is None and (waiting or not row.planned):
        needs = tuple(dict.fromkeys((*(body.requirement for body in bodies.values()), *unplanned)))[
            :MAX_NEEDS
        ]
        now = time.time()
        look = partial(
            visit, priority=row.priority, now=now, trust=trust_of_spec(row.spec), book=read_book(home, now)
        )
        try:
            found = trio.run(look, gates(), home, needs, lambda devices: tuple(bodies.values()))
        except* SarkError as group:
            unreachable = first_error(group).what
    attempts = [attempt for attempt in store.attempts.all(campaign) if attempt.task in ids]
    scheduling = row.ended is not None or is_running(home)
    live = LiveFacts(found, unreachable, _busy(store), scheduling)
    events = store.events.all(campaign)
    return why_report(row, tasks, bodies, attempts, events, live, time.time(), unplanned=unplanned)


def _busy(store: Store) -> Counter[str]:
    """How many tasks of this home each device has now, by its name."""
    return Counter({safe_text(device, 40): tasks for device, tasks in store.tasks.busy().items()})


def _requirements(row: CampaignRow) -> tuple[Requirement, ...]:
    try:
        return requirements(Campaign.model_validate_json(row.spec))
    except ValidationError:  # of another version: it will have no tasks, and says so when it ends
        return ()
