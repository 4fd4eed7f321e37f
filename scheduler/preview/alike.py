"""Groups the tasks of a campaign by what is shown of them: very many tasks that differ only in their numbers are read as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from protocol.values.attempt import TaskState
from protocol.values.task import Task, TaskReader
from scheduler.store.rows import FINAL_TASK_STATES, AttemptRow, CampaignRow, TaskRow
from scheduler.store.store import Store

_SHOWN: Final[Mapping[TaskState, tuple[str, ...]]] = {
    TaskState.PENDING: ("cancel", "note", "tries", "preempted"),
    TaskState.SUCCEEDED: ("note",),
    TaskState.FAILED: ("reason", "detail"),
    TaskState.CANCELLED: (),
}
"""Fields shown of tasks in states that very many tasks may share. The few tasks in other states are read whole."""
_WITH_BODIES: Final = (TaskState.PENDING, TaskState.QUEUED)


@dataclass(slots=True)
class AlikeTasks:
    """Tasks in one state for which the same is shown."""

    first: TaskRow
    """One of the tasks; for very many tasks, only with the fields that are shown."""
    since: float
    """Wall seconds since when the first of them has been in this state."""
    body: Task | None = None
    """The body of waiting tasks."""
    numbers: list[int] = field(default_factory=list)
    what: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Their models and units, with counts."""
    tried: list[AttemptRow] = field(default_factory=list)
    """Attempts so far; for several tasks only those that did not go well."""

    def add(self, n: int, model: str, unit: str, since: float) -> None:
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
    open_ = [state for state in TaskState if state not in FINAL_TASK_STATES]
    asked = store.attempts.last(campaign.id, open_)
    tried: dict[str, list[AttemptRow]] = {}
    for attempt in store.attempts.unsuccessful_attempts(campaign.id):
        tried.setdefault(attempt.task, []).append(attempt)
    found: list[AlikeTasks] = []
    for state in counts:
        if state is TaskState.PENDING:
            found += _pending(store, campaign, asked, tried)
        elif state in _SHOWN:
            found += _ended(store, campaign, state, tried)
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
    """One group for each of these tasks."""
    reader, found = TaskReader(), list[AlikeTasks]()
    for row in rows:
        since = asked.get(row.id, campaign.created) if row.ended is None else row.ended
        since = row.begun if row.state is TaskState.RUNNING and row.begun is not None else since
        body = reader.read(row.id, bodies[row.id]) if row.id in bodies else None
        alike = AlikeTasks(row, since, body, tried=list(tried.get(row.id, ())))
        alike.add(row.n, row.model, row.unit, since)
        found.append(alike)
    return found


def _ended(
    store: Store, campaign: CampaignRow, state: TaskState, tried: Mapping[str, Sequence[AttemptRow]]
) -> list[AlikeTasks]:
    """Groups of ended tasks, formed by the database."""
    shown = _SHOWN[state]
    by_number = {int(task.rpartition("/")[2]): attempts for task, attempts in tried.items()}
    groups: dict[Any, AlikeTasks] = {}
    for since, numbers, (model, unit, *values) in store.tasks.ended_alike(
        campaign.id, state, ("model", "unit", *shown)
    ):
        since = campaign.created if since is None else since
        alike = groups.get(key := tuple(values))
        if alike is None:
            n, fields = numbers[0], dict(zip(shown, values, strict=True))
            first = TaskRow(f"{campaign.id}/{n}", campaign.id, n, model, "", unit, state, **fields)
            alike = groups[key] = AlikeTasks(first, since)
        alike.since = min(alike.since, since)
        alike.what[model, unit] += len(numbers)
        alike.numbers += numbers
        for n in by_number.keys() & set(numbers) if by_number else ():
            alike.tried += by_number[n]
    return list(groups.values())


def _pending(
    store: Store,
    campaign: CampaignRow,
    asked: Mapping[str, float],
    tried: Mapping[str, Sequence[AttemptRow]],
) -> list[AlikeTasks]:
    """Groups of pending tasks whose bodies differ only in their ids."""
    shown, reader = _SHOWN[TaskState.PENDING], TaskReader()
    groups: dict[Any, AlikeTasks] = {}
    for id, n, model, unit, body, *values in store.tasks.fields(
        campaign.id, TaskState.PENDING, ("id", "n", "model", "unit", "body", *shown)
    ):
        body, since = bytes(body), asked.get(id)
        # The time of the next try follows from the time of the last one.
        key = (*values, body.replace(id.encode(), b"", 1), since)
        since = campaign.created if since is None else since
        alike = groups.get(key)
        if alike is None:
            fields = dict(zip(shown, values, strict=True))
            first = TaskRow(id, campaign.id, n, model, "", unit, TaskState.PENDING, **fields)
            alike = groups[key] = AlikeTasks(first, since, reader.read(id, body))
        alike.add(n, model, unit, since)
        alike.tried += tried.get(id, ())
    return list(groups.values())
