"""The scheduler's store: campaigns, tasks, attempts, signed records and events on SQLite, safe against kill -9 at every point.

    submit ── create_campaign ──▶ ┌───────┐ ──▶ unfinished_campaigns ── the service
    cancel ── request_cancel ───▶ │ store │ ◀── begin_attempts, record_grant, record_result, end_attempt
    watch  ◀── tasks, events_since└───────┘

Every function is one transaction, and returns after it is on the disk. Each can raise `ResourceError` (disk full, locked, damaged), and
then nothing has changed. One process schedules; others read, submit and cancel beside it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from protocol.attempt import TASK, TaskEvent, TaskState
from protocol.errors import LocalProtocolError
from protocol.lease import Fence
from protocol.table import final, step
from protocol.task import Task, task_body
from protocol.words import Reason
from scheduler import tables as t
from scheduler.questions import ENDED, TASK_COLUMNS, Questions
from scheduler.stored import (
    AttemptState,
    Intent,
    Kept,
    Live,
    NewCampaign,
    NewModel,
    Outcome,
)

_ENDED_AS: Final[dict[TaskEvent, AttemptState]] = {
    TaskEvent.REFUSE: AttemptState.REFUSED,
    TaskEvent.LOSE: AttemptState.LOST,
    TaskEvent.RETRY: AttemptState.FAILED,
    TaskEvent.FAIL: AttemptState.FAILED,
    TaskEvent.SUCCEED: AttemptState.SUCCEEDED,
    TaskEvent.CANCEL: AttemptState.CANCELLED,
}
_EVENT_NAMES: Final[dict[TaskEvent, str]] = {
    TaskEvent.COMMIT: "task.committing",
    TaskEvent.REFUSE: "task.refused",
    TaskEvent.ENQUEUE: "task.queued",
    TaskEvent.GRANT: "task.granted",
    TaskEvent.LOSE: "task.lost",
    TaskEvent.RETRY: "task.retried",
    TaskEvent.FAIL: "task.failed",
    TaskEvent.SUCCEED: "task.succeeded",
    TaskEvent.CANCEL: "task.cancelled",
}


class Store(Questions):
    """An open store. Not for two threads at once."""

    def __init__(self, path: Path, *, wall: Callable[[], float] = time.time) -> None:
        """Open or make it, and bring it to the newest form. ResourceError when that cannot be."""
        self.path = path
        self._wall = wall
        self._connection = t.connect(path)
        with self._writing() as c:
            t.migrate(c, path)

    def close(self) -> None:
        """Close it. What was stored is on the disk already."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """One transaction that nobody else can write beside; undone whole when anything in it raises."""
        with t.told(self.path):
            self._connection.exec_driver_sql("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.exec_driver_sql("COMMIT")
            except BaseException:
                if self._in_transaction():  # SQLite may have undone it by itself, as it does on a full disk
                    self._connection.exec_driver_sql("ROLLBACK")
                raise

    def _in_transaction(self) -> bool:
        driver: Any = self._connection.connection.driver_connection
        return bool(driver.in_transaction)

    # -- campaigns ------------------------------------------------------------------------------------------------------------------

    def create_campaign(
        self, new: NewCampaign, models: Sequence[NewModel], tasks: Sequence[Task] | None
    ) -> None:
        """Put a whole campaign on disk, or nothing of it. `tasks` None: they are planned once the devices are seen."""
        with self._writing() as c:
            c.execute(
                t.campaigns.insert().values(
                    id=new.id,
                    name=new.name,
                    scheduler=new.scheduler,
                    spec=new.spec,
                    attempts=new.attempts,
                    backoff_s=new.backoff_s,
                    wait_s=new.wait_s,
                    limit_s=new.limit_s,
                    priority=new.priority,
                    planned=tasks is not None,
                    created=self._wall(),
                )
            )
            rows = [
                {"campaign": new.id, "name": m.name, "sha256": m.sha256, "size": m.size, "facts": m.facts}
                for m in models
            ]
            if rows:
                c.execute(t.models.insert(), rows)
            self._event(c, new.id, "campaign.created", None, name=new.name, tasks=len(tasks or ()))
            self._add_tasks(c, new.id, tasks or ())

    def plan_campaign(self, campaign: str, tasks: Sequence[Task]) -> None:
        """The tasks of a campaign that waited for its devices to be seen. Nothing happens when it has been planned."""
        with self._writing() as c:
            done = c.execute(
                t.campaigns.update()
                .where(t.campaigns.c.id == campaign, sa.not_(t.campaigns.c.planned))
                .values(planned=True)
            )
            if done.rowcount:
                self._event(c, campaign, "campaign.planned", None, tasks=len(tasks))
                self._add_tasks(c, campaign, tasks)

    @staticmethod
    def _add_tasks(c: sa.Connection, campaign: str, tasks: Sequence[Task]) -> None:
        rows = [
            {
                "id": task.task,
                "campaign": campaign,
                "n": n,
                "body": task_body(task),
                "model": task.model.name,
                "sha256": task.model.sha256,
                "unit": task.unit,
                "state": str(TaskState.PENDING),
            }
            for n, task in enumerate(tasks, start=1)
        ]
        if rows:
            c.execute(t.tasks.insert(), rows)

    def next_epoch(self, campaign: str) -> int:
        """A higher epoch than any before: workers refuse older ones from now on."""
        with self._writing() as c:
            epoch = c.execute(
                t.campaigns.update()
                .where(t.campaigns.c.id == campaign)
                .values(epoch=t.campaigns.c.epoch + 1)
                .returning(t.campaigns.c.epoch)
            ).scalar_one()
            self._event(c, campaign, "campaign.adopted", None, epoch=epoch)
            return int(epoch)

    def end_campaign(self, campaign: str, *, detail: str = "") -> Outcome:
        """All of its tasks have ended: so has it. Says how. LocalProtocolError while one is open."""
        with self._writing() as c:
            rows = c.execute(
                sa.select(t.tasks.c.state, sa.func.count())
                .where(t.tasks.c.campaign == campaign)
                .group_by(t.tasks.c.state)
            ).all()
            states = {str(state) for state, _ in rows}
            if states - set(ENDED):
                raise LocalProtocolError(f"campaign {campaign} still has open tasks")
            cancelled = c.execute(
                sa.select(t.campaigns.c.cancel).where(t.campaigns.c.id == campaign)
            ).scalar_one()
            if TaskState.FAILED in states or (detail and not cancelled):
                outcome = Outcome.FAILED
            elif TaskState.CANCELLED in states or cancelled:
                outcome = Outcome.CANCELLED
            else:
                outcome = Outcome.SUCCEEDED
            c.execute(
                t.campaigns.update()
                .where(t.campaigns.c.id == campaign, t.campaigns.c.ended.is_(None))
                .values(ended=self._wall(), outcome=str(outcome), detail=detail)
            )
            counts = {state: count for state, count in rows}  # noqa: C416  (rows are Row objects, not pairs)
            self._event(c, campaign, "campaign.ended", None, outcome=str(outcome), detail=detail, **counts)
            return outcome

    # -- wishes of the command line --------------------------------------------------------------------------------------------------

    def request_cancel(self, target: str) -> int:
        """Ask that a campaign, or one task of it, be cancelled. How many open tasks that concerns; 0: nothing to do."""
        with self._writing() as c:
            open_ = t.tasks.c.state.not_in(ENDED)
            whole = c.execute(
                t.campaigns.update()
                .where(t.campaigns.c.id == target, t.campaigns.c.ended.is_(None))
                .values(cancel=True)
            ).rowcount
            where = t.tasks.c.campaign == target if whole else t.tasks.c.id == target
            touched = c.execute(
                t.tasks.update().where(where, open_).values(cancel=True).returning(t.tasks.c.campaign)
            ).all()
            campaign = target if whole else touched[0].campaign if touched else None
            if campaign is not None:
                self._event(c, campaign, "cancel.requested", None if whole else target, tasks=len(touched))
            return max(len(touched), whole)

    # -- tasks ------------------------------------------------------------------------------------------------------------------------

    def begin_attempts(self, intents: Sequence[Intent]) -> None:
        """The intents, on disk before any worker is asked. LocalProtocolError when a task is not pending."""
        with self._writing() as c:
            for intent in intents:
                row = self._step(c, intent.task, TaskEvent.COMMIT)
                if intent.attempt != row.attempt + 1:
                    raise LocalProtocolError(f"attempt {intent.attempt} of {intent.task} after {row.attempt}")
                c.execute(
                    t.tasks.update()
                    .where(t.tasks.c.id == intent.task)
                    .values(
                        state=str(TaskState.COMMITTING),
                        attempt=intent.attempt,
                        worker=intent.worker,
                        device=intent.device,
                        lease=None,
                        incarnation=None,
                        number=None,
                        phase=None,
                        done=0,
                        total=None,
                        median_ms=None,
                        note="",
                    )
                )
                c.execute(
                    t.attempts.insert().values(
                        task=intent.task,
                        attempt=intent.attempt,
                        key=intent.key,
                        worker=intent.worker,
                        device=intent.device,
                        epoch=intent.epoch,
                        state=str(AttemptState.INTENDED),
                        begun=self._wall(),
                    )
                )
                self._event(
                    c,
                    row.campaign,
                    _EVENT_NAMES[TaskEvent.COMMIT],
                    intent.task,
                    attempt=intent.attempt,
                    worker=intent.worker,
                    device=intent.device,
                )

    def record_grant(self, task: str, attempt: int, *, lease: str, fence: Fence, queued: bool) -> None:
        """The worker gave a lease, or a ticket. LocalProtocolError when it is not the current attempt's."""
        event = TaskEvent.ENQUEUE if queued else TaskEvent.GRANT
        with self._writing() as c:
            row = self._step(c, task, event)
            if row.attempt != attempt:
                raise LocalProtocolError(
                    f"a grant for attempt {attempt} of {task}, which is at {row.attempt}"
                )
            values = {"lease": lease, "incarnation": fence.incarnation, "number": fence.number}
            state = step(TASK, TaskState(row.state), event)
            c.execute(t.tasks.update().where(t.tasks.c.id == task).values(state=str(state), **values))
            self._end_attempt(
                c,
                task,
                attempt,
                AttemptState.QUEUED if queued else AttemptState.GRANTED,
                ended=None,
                **values,
            )
            self._event(
                c,
                row.campaign,
                _EVENT_NAMES[event],
                task,
                attempt=attempt,
                lease=lease,
                fence=list(fence.key()),
            )

    def set_progress(self, lives: Sequence[Live]) -> None:
        """How running attempts go; those that are not current any more are passed over. The caller sees to it that it is not too often."""
        with self._writing() as c:
            for live in lives:
                c.execute(
                    t.tasks.update()
                    .where(
                        t.tasks.c.id == live.task,
                        t.tasks.c.attempt == live.attempt,
                        t.tasks.c.state.not_in((*ENDED, str(TaskState.PENDING), str(TaskState.COMMITTING))),
                    )
                    .values(
                        state=str(TaskState.RUNNING if live.phase is not None else TaskState.LEASED),
                        phase=str(live.phase) if live.phase is not None else None,
                        done=live.done,
                        total=live.total,
                        median_ms=live.median_ms,
                        note=live.note,
                        begun=sa.func.coalesce(t.tasks.c.begun, self._wall()),
                    )
                )

    def set_notes(self, notes: Sequence[tuple[str, str]]) -> None:
        """Why a pending task waits, for people: (task, words)."""
        with self._writing() as c:
            for task, note in notes:
                c.execute(
                    t.tasks.update()
                    .where(t.tasks.c.id == task, t.tasks.c.state == str(TaskState.PENDING))
                    .values(note=note)
                )

    def record_result(
        self,
        *,
        task: str,
        attempt: int,
        fence: Fence,
        worker: str,
        sha256: str,
        body: bytes,
        signature: bytes,
        event: TaskEvent,
        reason: Reason | None = None,
        detail: str = "",
    ) -> Kept:
        """Keep a verified record if it comes from the current attempt under the current fence, and move the task by `event` with it.

        Compare, record and move are one transaction. The same record again is answered as the first time. A stale one changes nothing.
        """
        with self._writing() as c:
            row = self._row(c, task)
            if row is None:
                return Kept(Reason.UNKNOWN)
            known = c.execute(
                sa.select(t.records.c.sha256).where(
                    t.records.c.task == task, t.records.c.attempt == attempt, t.records.c.worker == worker
                )
            ).scalar()
            if known is not None:
                return Kept(again=True) if known == sha256 else Kept(Reason.FENCED)
            if row.state == TaskState.CANCELLED:
                return Kept(Reason.CANCELLED)
            current = (row.attempt, row.worker, row.incarnation, row.number)
            if (
                final(TASK, TaskState(row.state))
                or row.state == TaskState.PENDING
                or current != (attempt, worker, fence.incarnation, fence.number)
            ):
                return Kept(Reason.FENCED)
            self._end(c, row, event, reason, detail, tries=event is TaskEvent.RETRY)
            c.execute(
                t.records.insert().values(
                    task=task,
                    attempt=attempt,
                    worker=worker,
                    sha256=sha256,
                    body=body,
                    signature=signature,
                    decides=event in (TaskEvent.SUCCEED, TaskEvent.FAIL, TaskEvent.CANCEL),
                    accepted=self._wall(),
                )
            )
            return Kept()

    def end_attempt(
        self, task: str, attempt: int, event: TaskEvent, *, reason: Reason | None = None, detail: str = ""
    ) -> None:
        """Without a record: refused, given back, lost, failed or cancelled. `attempt` must be the current one (0: none begun yet)."""
        with self._writing() as c:
            row = self._step(c, task, event)
            if row.attempt != attempt:
                raise LocalProtocolError(
                    f"{event} for attempt {attempt} of {task}, which is at {row.attempt}"
                )
            self._end(c, row, event, reason, detail, tries=event in (TaskEvent.LOSE, TaskEvent.RETRY))

    def end_pending(
        self, tasks: Sequence[str], event: TaskEvent, *, reason: Reason | None = None, detail: str = ""
    ) -> None:
        """Many pending tasks fail or are cancelled for one reason."""
        with self._writing() as c:
            for task in tasks:
                row = self._step(c, task, event)
                if row.state != TaskState.PENDING:
                    raise LocalProtocolError(f"{task} is {row.state}, not pending")
                self._end(c, row, event, reason, detail, tries=False)

    # -- workers ----------------------------------------------------------------------------------------------------------------------

    def remember_worker(self, peer: str, device: str, addresses: Sequence[str]) -> None:
        """Where a worker can be reached: needed to find it again after a restart."""
        values = {"device": device, "addresses": json.dumps(list(addresses)), "seen": self._wall()}
        with self._writing() as c:
            changed = c.execute(t.workers.update().where(t.workers.c.peer == peer).values(**values))
            if not changed.rowcount:
                c.execute(t.workers.insert().values(peer=peer, **values))

    # -- inside a transaction -----------------------------------------------------------------------------------------------------------

    @staticmethod
    def _row(c: sa.Connection, task: str) -> sa.Row[Any] | None:
        return c.execute(sa.select(*TASK_COLUMNS).where(t.tasks.c.id == task)).one_or_none()

    def _step(self, c: sa.Connection, task: str, event: TaskEvent) -> sa.Row[Any]:
        """The task's row, if `event` is possible now."""
        row = self._row(c, task)
        if row is None:
            raise LocalProtocolError(f"no task {task} in the store")
        step(TASK, TaskState(row.state), event, story=task)
        return row

    def _end(
        self,
        c: sa.Connection,
        row: sa.Row[Any],
        event: TaskEvent,
        reason: Reason | None,
        detail: str,
        *,
        tries: bool,
    ) -> None:
        state = step(TASK, TaskState(row.state), event, story=row.id)
        now = self._wall()
        told = {"reason": str(reason) if reason is not None else None, "detail": detail}
        over = final(TASK, state)
        c.execute(
            t.tasks.update()
            .where(t.tasks.c.id == row.id, t.tasks.c.attempt == row.attempt, t.tasks.c.state == row.state)
            .values(
                state=str(state),
                tries=row.tries + tries,
                ended=now if over else None,
                note="",
                **({} if over else {"phase": None, "done": 0, "total": None, "median_ms": None}),
                **told,
            )
        )
        if row.attempt and row.state != TaskState.PENDING:
            self._end_attempt(c, row.id, row.attempt, _ENDED_AS[event], ended=now, **told)
        self._event(
            c,
            row.campaign,
            _EVENT_NAMES[event],
            row.id,
            attempt=row.attempt,
            worker=row.worker,
            device=row.device,
            **{key: value for key, value in told.items() if value},
        )

    @staticmethod
    def _end_attempt(
        c: sa.Connection, task: str, attempt: int, state: AttemptState, *, ended: float | None, **values: Any
    ) -> None:
        c.execute(
            t.attempts.update()
            .where(t.attempts.c.task == task, t.attempts.c.attempt == attempt)
            .values(state=str(state), ended=ended, **values)
        )

    def _event(self, c: sa.Connection, campaign: str, event: str, task: str | None, **fields: Any) -> None:
        seq = c.execute(
            t.campaigns.update()
            .where(t.campaigns.c.id == campaign)
            .values(next_seq=t.campaigns.c.next_seq + 1)
            .returning(t.campaigns.c.next_seq)
        ).scalar_one()
        c.execute(
            t.events.insert().values(
                campaign=campaign,
                seq=seq - 1,
                at=self._wall(),
                name=event,
                task=task,
                fields=json.dumps(fields),
            )
        )
