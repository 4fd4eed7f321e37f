"""Why a campaign's tasks are in their states: from the store, and for waiting tasks from the swarm. Only then is the network imported."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from protocol.errors import CampaignError, SarkError, first_error
from protocol.values.requirement import Requirement
from protocol.values.task import Task
from scheduler.preview.alike import alike_tasks
from scheduler.preview.why import SET_ASIDE, LiveFacts, WhyReport, why_report
from scheduler.store.rows import CampaignRow, TaskRow
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.base.text import safe_text

if TYPE_CHECKING:
    from scheduler.preview.survey import SwarmVisit

MAX_NEEDS: Final = 16
"""Most kinds of waiting tasks for which devices are looked up."""


def explain_campaign(
    home: Home, store: Store, campaign: str, number: str, gates: Callable[[], Sequence[str]]
) -> WhyReport:
    """Why the tasks of a campaign, or its task `number`, are in their states. `gates`: used when devices must be looked up. Raises
    `CampaignError` if there is no such task. Blocking.
    """
    row = store.campaigns.get(campaign)
    if row is None:
        raise CampaignError(f"no campaign {campaign!r} on this home", hint="list them: sark-node campaigns")
    one = _numbered(store, campaign, number) if number else None
    if number and one is None:
        raise CampaignError(
            f"{campaign} has no task {number!r}", hint=f"see its tasks: sark-node explain {campaign}"
        )
    tasks = alike_tasks(store, row, one)
    bodies = [each.body for each in tasks if each.body is not None]
    unplanned = () if row.planned else _requirements(row)
    found, unreachable = None, ""
    if row.ended is None and (bodies or not row.planned):
        needs = tuple(dict.fromkeys((*(body.requirement for body in bodies), *unplanned)))[:MAX_NEEDS]
        found, unreachable = _look(home, row, needs, bodies, gates())
    scheduling = row.ended is not None or _is_scheduled(home)
    live = LiveFacts(found, unreachable, _busy(store), scheduling)
    events = store.events.named(campaign, SET_ASIDE)
    return why_report(row, tasks, events, live, time.time(), unplanned=unplanned)


def _is_scheduled(home: Home) -> bool:
    from scheduler.submit.daemon import is_running

    return is_running(home)


def _numbered(store: Store, campaign: str, number: str) -> TaskRow | None:
    """The task with this number, if there is one."""
    after = int(number) - 1 if number.isascii() and number.isdecimal() and len(number) < 10 else -1
    tasks = store.tasks.page(campaign, limit=1, after=after)
    return next((task for task in tasks if str(task.n) == number), None)


def _look(
    home: Home, row: CampaignRow, needs: Sequence[Requirement], tasks: Sequence[Task], gates: Sequence[str]
) -> tuple[SwarmVisit | None, str]:
    """What the swarm has for a campaign, or why it cannot be reached."""
    import trio

    from scheduler.campaign.trust import trust_of_spec
    from scheduler.preview.survey import visit
    from scheduler.trust.home import read_book

    now = time.time()
    look = partial(
        visit, priority=row.priority, now=now, trust=trust_of_spec(row.spec), book=read_book(home, now)
    )
    try:
        return trio.run(look, gates, home, needs, lambda devices: tasks), ""
    except* SarkError as group:
        unreachable = first_error(group).what
    return None, unreachable


def _busy(store: Store) -> Counter[str]:
    """The number of this home's tasks that each device has now, by device name."""
    return Counter({safe_text(device, 40): tasks for device, tasks in store.tasks.busy().items()})


def _requirements(row: CampaignRow) -> tuple[Requirement, ...]:
    from scheduler.campaign.model import Campaign
    from scheduler.planning.tasks import requirements

    try:
        return requirements(Campaign.model_validate_json(row.spec))
    except ValidationError:  # from another version: it gets no tasks, and says so when it ends
        return ()
