"""Reads tasks, and the workers on which they were last found."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa

from protocol.values.attempt import TaskState
from results.row.form import utc
from scheduler.store import schema as t
from scheduler.store.database import Database, batched
from scheduler.store.progress import UNTIL
from scheduler.store.rows import FINAL_TASK_STATES, TaskRow, WaitingTasks, WorkerRow
from swarm.base.units import local_time

_WAITING: Final = (TaskState.PENDING, TaskState.COMMITTING, TaskState.QUEUED)
_ACTIVE: Final = (TaskState.LEASED, TaskState.RUNNING)


class TaskRepository:
    """Tasks in their current state."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, task: str) -> TaskRow | None:
        """The task with this id."""
        return self._database.row(TaskRow, t.tasks.c.id == task)

    def all(self, campaign: str) -> tuple[TaskRow, ...]:
        """The tasks of a campaign, by number."""
        return self._database.rows(TaskRow, t.tasks.c.campaign == campaign, order=[t.tasks.c.n])

    def some(self, tasks: Sequence[str]) -> list[TaskRow]:
        """The tasks with these ids, in any order."""
        rows: list[TaskRow] = []
        for portion in batched(tasks):
            rows += self._database.rows(TaskRow, t.tasks.c.id.in_(portion))
        return rows

    def standing(self, campaign: str, state: TaskState, limit: int | None = None) -> tuple[TaskRow, ...]:
        """The first `limit` tasks of a campaign in this state: by number, or, for ended tasks, the latest first."""
        c = t.tasks.c
        order = [c.ended.desc(), c.n.desc()] if state in FINAL_TASK_STATES else [c.ended, c.n]
        return self._database.rows(
            TaskRow, c.campaign == campaign, c.state == state, order=order, limit=limit
        )

    def scoring(self, campaign: str) -> int:
        """How many tasks of a campaign have a result that is being scored."""
        c = t.tasks.c
        return self._database.count(
            t.tasks, c.campaign == campaign, c.state == TaskState.SUCCEEDED, c.note != ""
        )

    def fields(self, campaign: str, state: TaskState, names: Sequence[str]) -> Iterator[Sequence[Any]]:
        """These columns of a campaign's tasks in this state, as the database has them: words are plain text. For very many tasks."""
        c = t.tasks.c
        query = sa.select(*(c[name] for name in names)).where(c.campaign == campaign, c.state == state)
        return self._database.stream(query)

    def ended_alike(
        self, campaign: str, state: TaskState, names: Sequence[str]
    ) -> Iterator[tuple[float | None, list[int], Sequence[Any]]]:
        """The ended tasks of a campaign in this state, grouped by the values of these columns: when the first of each group ended, their
        numbers in any order, and the values as the database has them.
        """
        c = t.tasks.c
        columns = [c[name] for name in names]
        numbers = sa.func.aggregate_strings(sa.cast(c.n, sa.String), ",")
        query = sa.select(sa.func.min(c.ended), numbers, *columns).group_by(*columns)
        for since, text, *values in self._database.stream(
            query.where(c.campaign == campaign, c.state == state)
        ):
            yield since, list(map(int, text.split(","))), values

    def notes(self, campaign: str) -> Sequence[Sequence[str]]:
        """Why a campaign's pending tasks wait: (task, note)."""
        c = t.tasks.c
        waiting = (c.campaign == campaign, c.state == TaskState.PENDING)
        return self._database.tuples(sa.select(c.id, c.note).where(*waiting))

    def page(
        self, campaign: str, *, limit: int, after: int = 0, state: TaskState | None = None
    ) -> tuple[TaskRow, ...]:
        """The first `limit` tasks of a campaign with a number above `after`."""
        c = t.tasks.c
        where = [c.campaign == campaign, c.n > after, *([c.state == state] if state is not None else [])]
        return self._database.rows(TaskRow, *where, order=[c.n], limit=limit)

    def counts(self, target: str) -> dict[TaskState, int]:
        """The number of a campaign's tasks in each state; `target` may also be one task."""
        c = t.tasks.c
        query = sa.select(c.state, sa.func.count().label("tasks")).where(_of(target)).group_by(c.state)
        return {row.state: int(row.tasks) for row in self._database.all(query)}

    def busy(self) -> dict[str, int]:
        """How many tasks of unfinished campaigns each device has now, by device name."""
        c, there = t.tasks.c, (*_ACTIVE, TaskState.COMMITTING, TaskState.QUEUED)
        query = sa.select(c.device, sa.func.count().label("tasks")).join(t.campaigns)
        query = query.where(t.campaigns.c.ended.is_(None), c.state.in_(there)).group_by(c.device)
        return {row.device: int(row.tasks) for row in self._database.all(query)}

    def devices_of_open(self, target: str) -> tuple[str, ...]:
        """Names of the devices that have open tasks of a campaign, or have this task."""
        c = t.tasks.c
        where = (_of(target), c.state.not_in((*FINAL_TASK_STATES, TaskState.PENDING)))
        query = sa.select(sa.func.coalesce(sa.func.nullif(c.device, ""), c.worker).label("device")).where(
            *where
        )
        return tuple(row.device for row in self._database.all(query.distinct().order_by("device")))

    def active(self) -> tuple[TaskRow, ...]:
        """Leased and running tasks of unfinished campaigns."""
        c = t.tasks.c
        unfinished = (c.campaign == t.campaigns.c.id, t.campaigns.c.ended.is_(None))
        return self._database.rows(TaskRow, *unfinished, c.state.in_(_ACTIVE), order=[c.campaign, c.n])

    def waiting(self) -> tuple[WaitingTasks, ...]:
        """Counts of the tasks of unfinished campaigns that wait to start."""
        c = t.tasks.c
        query = (
            sa.select(c.unit, c.state, c.worker, c.device, sa.func.count().label("tasks"))
            .join(t.campaigns)
            .where(t.campaigns.c.ended.is_(None), c.state.in_(_WAITING))
            .group_by(c.unit, c.state, c.worker, c.device)
            .order_by(c.unit, c.worker)
        )
        return tuple(
            WaitingTasks(
                row.unit, row.worker if row.state == TaskState.QUEUED else None, row.device, row.tasks
            )
            for row in self._database.all(query)
        )

    def bodies(self, campaign: str, first: int = 1, last: int | None = None) -> dict[str, bytes]:
        """The canonical bytes of the tasks with numbers `first` to `last`, by id."""
        c = t.tasks.c
        query = sa.select(c.id, c.body).where(c.campaign == campaign, c.n >= first)
        if last is not None:
            query = query.where(c.n <= last)
        return {task: bytes(body) for task, body in self._database.tuples(query)}

    def bodies_of(self, tasks: Sequence[str]) -> dict[str, bytes]:
        """Like `bodies`, for the tasks with these ids."""
        c, found = t.tasks.c, dict[str, bytes]()
        for portion in batched(tasks):
            query = sa.select(c.id, c.body).where(c.id.in_(portion))
            found |= {task: bytes(body) for task, body in self._database.tuples(query)}
        return found

    def ended_numbers(self, campaign: str, *, limit: int, after: int = 0) -> tuple[int, ...]:
        """The numbers of the first `limit` ended tasks with a number above `after`."""
        c = t.tasks.c
        query = sa.select(c.n).where(c.campaign == campaign, c.n > after, c.ended.is_not(None))
        return tuple(row.n for row in self._database.all(query.order_by(c.n).limit(limit)))

    def run_times(self, models: Collection[str], limit: int = 500) -> tuple[tuple[bytes, float], ...]:
        """The latest succeeded tasks with one of these models: canonical bytes, and seconds from grant to result."""
        c = t.tasks.c
        query = (
            sa.select(c.body, c.begun, c.ended)
            .where(c.sha256.in_(models), c.state == TaskState.SUCCEEDED, c.begun.is_not(None))
            .order_by(c.ended.desc())
            .limit(limit)
        )
        return tuple((row.body, row.ended - row.begun) for row in self._database.all(query))

    def cancel_requests(self, campaign: str = "") -> tuple[str, ...]:
        """Ids of open tasks for which cancellation was requested individually, in one campaign or in all; see
        `CampaignRepository.cancel_requests`.
        """
        query = (
            sa.select(t.tasks.c.id)
            .join(t.campaigns)
            .where(
                *([t.tasks.c.campaign == campaign] if campaign else []),
                t.campaigns.c.ended.is_(None),
                sa.not_(t.campaigns.c.cancel),
                t.tasks.c.state.not_in(FINAL_TASK_STATES),
                t.tasks.c.cancel,
            )
        )
        return tuple(row.id for row in self._database.all(query))

    def set_notes(self, notes: Sequence[tuple[str, str]]) -> None:
        """Store why pending tasks wait, for people: (task, note)."""
        by_note: dict[str, list[str]] = {}
        for task, note in notes:
            by_note.setdefault(note, []).append(task)
        with self._database.transaction() as c:
            for note, tasks in by_note.items():
                for pending in _pending(tasks):
                    c.execute(t.tasks.update().where(*pending).values(note=note))

    def set_wait_until(self, waits: Sequence[tuple[str, str, float]]) -> None:
        """Store why pending tasks wait, and for how long (`scheduler.store.progress.waiting_text`): (task, words, seconds)."""
        wall = self._database.wall()
        self.set_notes([(task, f"{words}{UNTIL}{utc(wall + left_s)}") for task, words, left_s in waits])

    def set_wait_reason(self, tasks: Sequence[str], words: str) -> None:
        """Store why these pending tasks wait, and since when; empty words: they no longer wait. Repeating the same words keeps the original
        time.
        """
        note, since = t.tasks.c.note, local_time(self._database.wall())
        with self._database.transaction() as c:
            for pending in _pending(tasks):
                new = ~note.startswith(f"{words}, since ", autoescape=True) if words else note != ""
                c.execute(
                    t.tasks.update()
                    .where(*pending, new)
                    .values(note=f"{words}, since {since}" if words else "")
                )


def _pending(tasks: Sequence[str]) -> Iterator[tuple[sa.ColumnElement[bool], ...]]:
    """Conditions that select the pending tasks among these, in batches that fit into one statement."""
    for portion in batched(tasks):
        yield t.tasks.c.id.in_(portion), t.tasks.c.state == TaskState.PENDING


def _of(target: str) -> sa.ColumnElement[bool]:
    """Selects the tasks of a campaign, or one task, by its id."""
    return t.tasks.c.id == target if "/" in target else t.tasks.c.campaign == target


class WorkerRepository:
    """Where workers were last reached, to find them again after a restart."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> tuple[WorkerRow, ...]:
        """All workers that were reached."""
        return self._database.rows(WorkerRow)

    def save(self, peer: str, device: str, addresses: Sequence[str], advert: bytes = b"") -> None:
        """Store a worker's current addresses, and its advert's canonical bytes."""
        values = {
            "device": device,
            "addresses": tuple(addresses),
            "seen": self._database.wall(),
            "advert": advert,
        }
        with self._database.transaction() as c:
            if not c.execute(t.workers.update().where(t.workers.c.peer == peer).values(**values)).rowcount:
                c.execute(t.workers.insert().values(peer=peer, **values))

    def clear(self) -> bool:
        """Delete all workers. False: an unfinished campaign needs them."""
        with self._database.transaction() as c:
            if c.execute(sa.select(t.campaigns.c.id).where(t.campaigns.c.ended.is_(None))).first():
                return False
            c.execute(t.workers.delete())
            return True
