"""The tasks of a campaign by what can be said of them: very many that differ in their numbers alone are read as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from protocol.values.attempt import TaskState
from protocol.values.task import Task, TaskReader
from scheduler.store.rows import ENDED, AttemptRow, CampaignRow, TaskRow
from scheduler.store.store import Store

_SHOWN: Final[Mapping[TaskState, tuple[str, ...]]] = {
    TaskState.PENDING: ("cancel", "note", "tries", "preempted"),
    TaskState.SUCCEEDED: ("note",),
    TaskState.FAILED: ("reason", "detail"),
    TaskState.CANCELLED: (),
}
"""What is shown of tasks in the states that very many can be in. The few in others are read whole."""
_WITH_BODIES: Final = (TaskState.PENDING, TaskState.QUEUED)


@dataclass(slots=True)
class AlikeTasks:
    """Tasks in one state of which the same is shown."""

    first: TaskRow
    """One of them; of very many only the fields that are shown."""
    since: float
    """Since when the first of them has been in this state, in wall seconds."""
    body: Task | None = None
    """Of those that wait."""
    numbers: list[int] = field(default_factory=list)
    what: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Their models and units."""
    tried: list[AttemptRow] = field(default_factory=list)
    """Attempts so far; of several tasks only those that did not go well."""

    def add(self, task: str, n: int, model: str, unit: str, since: float) -> None:
        self.numbers.append(n)
        self.what[model, unit] += 1
        self.since = min(self.since, since)


def alike_tasks(store: Store, campaign: CampaignRow, one: TaskRow | None = None) -> list[AlikeTasks]:
    """All tasks of a campaign, or `one` alone."""
    counts = store.tasks.counts(campaign.id if one is None else one.id)
    if one is None and sum(counts.values()) == 1:
        (one,) = store.tasks.page(campaign.id, limit=1)
    if one is not None:
        attempts = store.attempts.of_task(one.id)
        asked = {one.id: max(each.ended or each.begun for each in attempts)} if attempts else {}
        bodies = store.tasks.bodies_of([one.id]) if one.state in _WITH_BODIES else {}
        return _whole(campaign, [one], bodies, asked, {one.id: attempts})
    open_ = [state for state in TaskState if state not in ENDED]
    asked = store.attempts.last(campaign.id, open_)
    tried: dict[str, list[AttemptRow]] = {}
    for attempt in store.attempts.in_vain(campaign.id):
        tried.setdefault(attempt.task, []).append(attempt)
    found: list[AlikeTasks] = []
    for state in counts:
        if state in _SHOWN:
            found += _light(store, campaign, state, asked, tried)
        else:
            rows = store.tasks.standing(campaign.id, state)
            bodies = store.tasks.bodies_of([row.id for row in rows]) if state in _WITH_BODIES else {}
            found += _whole(campaign, rows, bodies, asked, tried)
    return found


def _whole(
    campaign: CampaignRow,
    rows: Sequence[TaskRow],
    bodies: Mapping[str, bytes],
    asked: Mapping[str, float],
    tried: Mapping[str, Sequence[AttemptRow]],
) -> list[AlikeTasks]:
    """One for each of these tasks."""
    reader, found = TaskReader(), list[AlikeTasks]()
    for row in rows:
        since = asked.get(row.id, campaign.created) if row.ended is None else row.ended
        since = row.begun if row.state is TaskState.RUNNING and row.begun is not None else since
        body = reader.read(row.id, bodies[row.id]) if row.id in bodies else None
        alike = AlikeTasks(row, since, body, tried=list(tried.get(row.id, ())))
        alike.add(row.id, row.n, row.model, row.unit, since)
        found.append(alike)
    return found


def _light(
    store: Store,
    campaign: CampaignRow,
    state: TaskState,
    asked: Mapping[str, float],
    tried: Mapping[str, Sequence[AttemptRow]],
) -> list[AlikeTasks]:
    shown, reader = _SHOWN[state], TaskReader()
    waits = state in _WITH_BODIES
    names = ("id", "n", "model", "unit", "ended", *(("body",) if waits else ()), *shown)
    groups: dict[Any, AlikeTasks] = {}
    for id, n, model, unit, ended, *more in store.tasks.fields(campaign.id, state, names):
        body, values = (bytes(more[0]), more[1:]) if waits else (b"", more)
        since = asked.get(id, campaign.created) if ended is None else ended
        # when a task is tried again follows from when it was tried
        key = (*values, *body.split(id.encode(), 1), since if id in asked else None)
        alike = groups.get(key)
        if alike is None:
            first = TaskRow(
                id, campaign.id, n, model, "", unit, state, **dict(zip(shown, values, strict=True))
            )
            alike = groups[key] = AlikeTasks(first, since, reader.read(id, body) if waits else None)
        alike.add(id, n, model, unit, since)
        alike.tried += tried.get(id, ())
    return list(groups.values())
