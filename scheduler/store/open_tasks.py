"""Open tasks with their attempts, in memory: each is read once, and changes are written with one statement for each table.

The next transaction of the store writes the changes before anything else. A row is kept until its task has ended or is pending again, and
that is on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import sqlalchemy as sa

from protocol.errors import LocalProtocolError
from protocol.values.attempt import TaskState
from scheduler.store import schema as t
from scheduler.store.database import Database, values_of
from scheduler.store.events import EventRepository, NewEvent
from scheduler.store.rows import FINAL_TASK_STATES, AttemptRow, TaskRow
from scheduler.store.statements import KeyQuery, RowStatement

_CLOSED: Final = frozenset((*FINAL_TASK_STATES, TaskState.PENDING))
_TASK_COLUMNS: Final = tuple(
    name
    for name in TaskRow.__dataclass_fields__
    if name not in ("id", "campaign", "n", "model", "sha256", "unit", "replica", "cancel")
)
"""Columns that change. `cancel` is written by the process that requests it."""
_ATTEMPT_COLUMNS: Final = ("state", "ended", "lease", "incarnation", "number", "reason", "detail")
_TASKS: Final = KeyQuery(TaskRow, t.tasks.c.id)
_ATTEMPTS: Final = KeyQuery(AttemptRow, t.attempts.c.task, [t.attempts.c.attempt])
_UPDATE_TASK: Final = RowStatement(
    t.tasks.update().where(t.tasks.c.id == sa.bindparam("of_task")), _TASK_COLUMNS
)
_UPDATE_ATTEMPT: Final = RowStatement(
    t.attempts.update().where(
        t.attempts.c.task == sa.bindparam("of_task"), t.attempts.c.attempt == sa.bindparam("of_attempt")
    ),
    _ATTEMPT_COLUMNS,
)
_INSERT_ATTEMPT: Final = RowStatement(t.attempts.insert(), tuple(AttemptRow.__dataclass_fields__))
_INSERT_RECORD: Final = RowStatement(t.records.insert(), t.records.c.keys())
_NO_RESULT: Final = {
    column.name: column.default.arg if isinstance(column.default, sa.ColumnDefault) else None
    for column in t.results.c
}
_INSERT_RESULT: Final = RowStatement(t.results.insert(), tuple(_NO_RESULT))


@dataclass(slots=True)
class _OpenTask:
    row: TaskRow
    attempts: dict[int, AttemptRow]


class OpenTasks:
    """A `PendingWrites` of the store's database."""

    def __init__(self, database: Database, events: EventRepository) -> None:
        self._database, self._events = database, events
        self._open: dict[str, _OpenTask] = {}
        self.clear()

    def clear(self) -> None:
        """Forget all rows and changes."""
        self._open.clear()
        self._changed: dict[str, None] = {}
        self._begun: dict[tuple[str, int], None] = {}
        self._moved: dict[tuple[str, int], None] = {}
        self._records: list[dict[str, Any]] = []
        self._results: list[dict[str, Any]] = []
        self._news: list[NewEvent] = []

    def __bool__(self) -> bool:
        return bool(
            self._changed or self._begun or self._moved or self._records or self._results or self._news
        )

    # -- reading --------------------------------------------------------------------------------------------------------------------

    def load(self, tasks: Iterable[str]) -> None:
        """Read the tasks that are not loaded yet. Tasks that are not stored are skipped."""
        missing = [task for task in dict.fromkeys(tasks) if task not in self._open]
        with self._database.backend.errors():
            c = self._database.connection
            rows = _TASKS.run(c, missing)
            self._open.update((row.id, _OpenTask(row, {})) for row in rows)
            for attempt in _ATTEMPTS.run(c, [row.id for row in rows if row.attempt]):
                self._open[attempt.task].attempts[attempt.attempt] = attempt

    def find(self, task: str) -> TaskRow | None:
        """The task; None: it is not stored."""
        if task not in self._open:
            self.load((task,))
        known = self._open.get(task)
        return None if known is None else known.row

    def task(self, task: str) -> TaskRow:
        """The row of a task that must be stored. Raises `LocalProtocolError` if it is not."""
        row = self.find(task)
        if row is None:
            raise LocalProtocolError(f"no task {task} in the store")
        return row

    def attempts(self, task: str) -> Mapping[int, AttemptRow]:
        """The attempts of a task, by number."""
        return {} if self.find(task) is None else self._open[task].attempts

    def device(self, task: str, attempt: int) -> str:
        """The name of the device of an attempt."""
        row = self.attempts(task).get(attempt)
        return "" if row is None else row.device

    # -- changing -------------------------------------------------------------------------------------------------------------------

    def update(self, task: str, **values: Any) -> None:
        """Change columns of a loaded task."""
        known = self._open[task]
        known.row = replace(known.row, **values)
        self._changed[task] = None

    def begin(self, attempt: AttemptRow) -> None:
        """Add a new attempt to a loaded task."""
        self._open[attempt.task].attempts[attempt.attempt] = attempt
        self._begun[attempt.task, attempt.attempt] = None

    def move(self, task: str, attempt: int, **values: Any) -> None:
        """Change an attempt, if there is one with this number."""
        attempts = self._open[task].attempts
        if attempt in attempts:
            attempts[attempt] = replace(attempts[attempt], **values)
            self._moved[task, attempt] = None

    def add_record(self, **values: Any) -> None:
        """Add a row to the records."""
        self._records.append(values)

    def add_result(self, **values: Any) -> None:
        """Add a row to the results."""
        self._results.append(_NO_RESULT | values)

    def add_event(self, campaign: str, name: str, task: str, **fields: Any) -> None:
        """Add an event that happened just now."""
        self._news.append(NewEvent(campaign, self._database.wall(), name, task, fields))

    # -- writing --------------------------------------------------------------------------------------------------------------------

    def write(self, c: sa.Connection) -> None:
        """Write all changes inside the open transaction `c`."""
        begun = [values_of(self._open[task].attempts[number]) for task, number in self._begun]
        rows = [self._open[task].row for task in self._changed]
        changed = [{"of_task": row.id} | {name: getattr(row, name) for name in _TASK_COLUMNS} for row in rows]
        moved = [
            {"of_task": task, "of_attempt": number}
            | {name: getattr(self._open[task].attempts[number], name) for name in _ATTEMPT_COLUMNS}
            for task, number in self._moved
            if (task, number) not in self._begun
        ]
        for statement, values in (
            (_INSERT_ATTEMPT, begun),
            (_UPDATE_TASK, changed),
            (_UPDATE_ATTEMPT, moved),
            (_INSERT_RECORD, self._records),
            (_INSERT_RESULT, self._results),
        ):
            if values:
                statement.run(c, values)
        self._events.append_all(c, self._news)

    def written(self) -> None:
        """The changes are on disk."""
        touched = dict.fromkeys((*self._changed, *(task for task, _ in (*self._begun, *self._moved))))
        self._begun, self._moved, self._changed = {}, {}, {}
        self._records, self._results, self._news = [], [], []
        for task in touched:
            if self._open[task].row.state in _CLOSED:
                del self._open[task]
