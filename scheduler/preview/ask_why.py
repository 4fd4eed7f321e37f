"""From the store and, for tasks that find no device, from the live swarm to the story that `explain` tells. Changes nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import trio
from pydantic import ValidationError

from protocol.errors import CampaignError, SarkError
from protocol.values.advert import Advert
from protocol.values.attempt import TaskState
from protocol.values.requirement import Requirement
from protocol.values.task import read_task
from scheduler.campaign.model import Campaign
from scheduler.planning.tasks import requirements
from scheduler.preview.survey import see_everybody
from scheduler.preview.why import WhyDevice, WhyReport, why
from scheduler.store.rows import CampaignRow
from scheduler.store.store import Store
from scheduler.submit.daemon import is_running
from swarm.base.home import Home
from swarm.base.text import safe_text


def ask_why(home: Home, store: Store, campaign: str, number: str, gates: Sequence[str]) -> WhyReport:
    """The story of a campaign, or of its task `number`. Raises `CampaignError` when there is no such task. Blocking."""
    row = store.campaign(campaign)
    if row is None:
        raise CampaignError(f"no campaign {campaign!r} on this home", hint="list them: sark-node campaigns")
    tasks = [task for task in store.tasks(campaign) if number in ("", str(task.n))]
    if number and not tasks:
        raise CampaignError(
            f"{campaign} has no task {number!r}", hint=f"see its tasks: sark-node explain {campaign}"
        )
    waiting = {task.id for task in tasks if task.state is TaskState.PENDING}
    bodies = {task: read_task(body) for task, body in store.bodies(campaign).items() if task in waiting}
    looking = row.ended is None and (bool(waiting) or not row.planned)
    seen = _look(gates) if looking else WhyDevice(adverts=None)
    attempts = [
        attempt for attempt in store.attempts(campaign) if attempt.task in {task.id for task in tasks}
    ]
    return why(
        row,
        tasks,
        bodies,
        attempts,
        store.all_events(campaign),
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
        for campaign in store.unfinished_campaigns()
        for task in store.tasks(campaign.id)
        if task.state in live
    )


def _looked_for(row: CampaignRow) -> tuple[Requirement, ...]:
    try:
        return requirements(Campaign.model_validate_json(row.spec))
    except (
        ValidationError
    ):  # of another version: its tasks will never be made, and the campaign says so when it ends
        return ()
