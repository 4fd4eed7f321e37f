"""The current tasks of a campaign: all of them, read again only where they may have changed, or as many as are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.values.attempt import TaskState
from scheduler.store.rows import FINAL_TASK_STATES, TaskRow
from scheduler.store.store import Store

WHOLE_CAMPAIGN: Final = ("campaign.planned", "campaign.taken-over")
"""Events after which the campaign has other tasks than before."""
NOTES_EVERY: Final = 8
"""Number of looks between two reads of why tasks wait, since no event reports such changes."""
_MOVING: Final = tuple(state for state in TaskState if state not in (*FINAL_TASK_STATES, TaskState.PENDING))
"""States in which a task changes without an event: its queue position, its progress."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How many tasks of a campaign are in each state."""

    counts: Mapping[TaskState, int] = field(default_factory=dict)
    scoring: int = 0
    """Number of succeeded tasks whose answers are being scored."""

    @property
    def total(self) -> int:
        """Number of all tasks."""
        return sum(self.counts.values())


def standing_of(tasks: Sequence[TaskRow]) -> Standing:
    """How many of these tasks, all of a campaign, are in each state."""
    scoring = sum(task.state is TaskState.SUCCEEDED and bool(task.note) for task in tasks)
    return Standing(Counter(task.state for task in tasks), scoring)


class FrontTasks:
    """Enough tasks of each state to fill a screen, and the number of tasks in each state."""

    def __init__(self, store: Store, campaign: str) -> None:
        self._store, self._campaign = store, campaign
        self._version = self._room = -1
        self._scored = bool(store.campaigns.evaluations(campaign))
        self._rows: dict[str, TaskRow] = {}
        self.standing = Standing()

    @property
    def all(self) -> Sequence[TaskRow]:
        """The tasks of the last look, by number."""
        return sorted(self._rows.values(), key=lambda row: row.n)

    def look(self, room: int) -> list[TaskRow]:
        """Read again what may have changed since the last look, up to `room` tasks of each state; returns those that did change."""
        version = self._store.changes_by_others()
        if (version, room) == (self._version, self._room):
            return []
        self._version, self._room = version, room
        tasks, before = self._store.tasks, self._rows
        self.standing = Standing(
            tasks.counts(self._campaign), tasks.scoring(self._campaign) if self._scored else 0
        )
        fresh = [row for state in self.standing.counts for row in tasks.standing(self._campaign, state, room)]
        self._rows = {row.id: row for row in fresh}
        return [row for row in fresh if before.get(row.id) != row]


class CampaignTasks:
    """All tasks of a campaign, for repeated looks."""

    def __init__(self, store: Store, campaign: str, most: int | None = None) -> None:
        """`most`: of a campaign with more tasks, only those are read that are under way or change from now on."""
        self._store, self._campaign, self._most = store, campaign, most
        self._whole = True
        self.standing = Standing()
        """The counts from when all tasks were read."""
        self._version, self._seq = -1, -1
        self._looks = self._notes_at = 0
        self._notes_read = True
        """Whether notes were read since the store last changed."""
        self._rows: dict[str, TaskRow] = {}
        self._sorted: list[TaskRow] = []

    @property
    def all(self) -> Sequence[TaskRow]:
        """All tasks by number, as of the last look."""
        return self._sorted

    def look(self, room: int = 0) -> list[TaskRow]:
        """Read what may have changed since the last look; returns the tasks that did change, by number."""
        self._looks += 1
        version = self._store.changes_by_others()
        if version != self._version:
            self._version, self._notes_read = version, False
        elif self._notes_read or not self._notes_due:
            return []
        fresh = self._read_all() if self._seq < 0 else self._read_changed()
        changed = [row for row in fresh if self._rows.get(row.id) != row]
        if changed:
            self._rows |= {row.id: row for row in changed}
            self._sorted = sorted(self._rows.values(), key=lambda row: row.n)
        return sorted(changed, key=lambda row: row.n)

    @property
    def _notes_due(self) -> bool:
        return self._whole and self._looks >= self._notes_at + NOTES_EVERY

    def _read_all(self) -> Sequence[TaskRow]:
        self._notes_at, self._notes_read = self._looks, True
        self._seq = self._store.events.count(self._campaign)[0]
        tasks = self._store.tasks
        self.standing = Standing(tasks.counts(self._campaign))
        self._whole = self._most is None or self.standing.total <= self._most
        if self._whole:
            return tasks.all(self._campaign)
        return [row for state in _MOVING for row in tasks.standing(self._campaign, state)]

    def _read_changed(self) -> Sequence[TaskRow]:
        tasks, named = self._store.tasks, set[str]()
        while events := self._store.events.since(self._campaign, self._seq):
            self._seq = events[-1].seq
            if any(event.name in WHOLE_CAMPAIGN for event in events):
                return self._read_all()
            named |= {event.task for event in events if event.task is not None}
        moving = {row.id for row in self._sorted if row.state in _MOVING}
        if self._notes_due:
            self._notes_at, self._notes_read = self._looks, True
            notes = tasks.notes(self._campaign)
            named |= {task for task, note in notes if task in self._rows and self._rows[task].note != note}
        return tasks.some(tuple(named | moving))
