"""Cancelling from any terminal: the request goes to disk, the scheduler process carries it out."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from protocol.errors import CampaignError, Unreachable
from protocol.values.attempt import TaskState
from scheduler.store.progress import ADOPTED
from scheduler.store.rows import ENDED, CampaignStatus, TaskRow
from scheduler.store.store import Store

WAIT_S = 20.0
POLL_S = 0.05
KEEP_ALIVE_EVERY = 20


def cancel_and_wait(
    store: Store,
    target: str,
    *,
    keep_alive: Callable[[], None],
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Cancel `target`, a campaign or a task; gives the outcome in a line. `keep_alive` starts a scheduler process when none runs.

    Raises `CampaignError` when there is no such task, `Unreachable` when the scheduler does not confirm in time: the request
    stays on disk, for the next scheduler process.
    """
    ended = {task.id for task in _tasks(store, target) if task.state in ENDED}
    if not request_cancel(store, target):
        return f"{target} had ended already."
    deadline = clock() + WAIT_S
    for polls in itertools.count():
        if _has_ended(store, target):
            break
        if polls % KEEP_ALIVE_EVERY == 0:
            keep_alive()
        if clock() > deadline:
            raise Unreachable(
                f"{target}: the cancellation is on disk, but was not confirmed within {WAIT_S:g} s",
                hint="a device that cannot be reached stops by itself when its lease ends",
            )
        pause(POLL_S)
    tasks = _tasks(store, target)
    stopped = sum(task.state is TaskState.CANCELLED and task.id not in ended for task in tasks)
    return f"{target} is cancelled: {stopped} stopped, {len(tasks) - stopped} had ended before."


def request_cancel(store: Store, target: str) -> int:
    """Store the request to cancel `target`, a campaign or a task; gives the number of open tasks, at least 1, or 0 when it had ended.
    Raises `CampaignError` when there is no such task, or another machine runs the campaign.
    """
    if "/" in target and not _tasks(store, target):
        raise CampaignError(f"no task {target!r}", hint="list a campaign's tasks: sark-node results CAMPAIGN")
    if _has_ended(store, target):
        row = store.campaigns.get(target.partition("/")[0])
        if row is not None and row.outcome is CampaignStatus.ADOPTED:
            raise CampaignError(f"{target} is {ADOPTED}", hint="cancel it on the machine that runs it")
        return 0
    return store.campaigns.request_cancel(target)


def _has_ended(store: Store, target: str) -> bool:
    campaign = store.campaigns.get(target.partition("/")[0])
    if campaign is not None and campaign.ended is not None:
        return True
    tasks = _tasks(store, target)
    return "/" in target and bool(tasks) and all(task.state in ENDED for task in tasks)


def _tasks(store: Store, target: str) -> tuple[TaskRow, ...]:
    if "/" not in target:
        return store.tasks.all(target)
    task = store.tasks.get(target)
    return () if task is None else (task,)
