"""How tasks and their attempts move in the store: intents, grants, progress, records, ends. Each step by `protocol.attempt.TASK`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from protocol.errors import LocalProtocolError
from protocol.values.attempt import TASK, TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.wire.table import final, step
from protocol.words import Reason
from results.export.columns import without_figures
from scheduler.core.commands import Intent, LiveAttempt, QueuePosition
from scheduler.store import schema as t
from scheduler.store.queries import ENDED, TASK_COLUMNS
from scheduler.store.rows import AttemptState, StoredAttempts, why_not
from scheduler.store.transactions import Transactions

_ENDED_AS: Final[dict[TaskEvent, AttemptState]] = {
    TaskEvent.REFUSE: AttemptState.REFUSED,
    TaskEvent.LOSE: AttemptState.LOST,
    TaskEvent.RETRY: AttemptState.FAILED,
    TaskEvent.FAIL: AttemptState.FAILED,
    TaskEvent.SUCCEED: AttemptState.SUCCEEDED,
    TaskEvent.CANCEL: AttemptState.CANCELLED,
    TaskEvent.PREEMPT: AttemptState.PREEMPTED,
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
    TaskEvent.PREEMPT: "task.preempted",
}


class AttemptRepository(Transactions):
    """The part of `scheduler.store.Store` that the running scheduler writes."""

    # -- tasks ------------------------------------------------------------------------------------------------------------------------

    def begin_attempts(self, intents: Sequence[Intent]) -> None:
        """The intents, on disk before any worker is asked.

        LocalProtocolError when a task is not pending, or for a second ticket not queued.
        """
        with self._writing() as c:
            for intent in intents:
                row = (
                    self._row_of(c, intent.task)
                    if intent.hedge
                    else self._step(c, intent.task, TaskEvent.COMMIT)
                )
                allowed = TaskState.QUEUED if intent.hedge else TaskState.PENDING
                if row.state != allowed:
                    raise LocalProtocolError(
                        f"attempt {intent.attempt} of {intent.task}, which is {row.state}"
                    )
                last = c.execute(
                    sa.select(sa.func.max(t.attempts.c.attempt)).where(t.attempts.c.task == intent.task)
                ).scalar()
                if intent.attempt != (last or 0) + 1:
                    raise LocalProtocolError(f"attempt {intent.attempt} of {intent.task} after {last}")
                if not intent.hedge:
                    self._make_current(c, intent)
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
                    **({"second": True} if intent.hedge else {}),
                )

    @staticmethod
    def _make_current(c: sa.Connection, intent: Intent) -> None:
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
                position=None,
                start_s=None,
                phase=None,
                done=0,
                total=None,
                median_ms=None,
                note="",
            )
        )

    def record_grant(
        self,
        task: str,
        attempt: int,
        *,
        lease: str,
        fence: Fence,
        queued: bool,
        position: int | None = None,
        start_s: float | None = None,
    ) -> None:
        """The worker gave a lease, or a ticket with its place in the queue.

        LocalProtocolError when it is of neither the current attempt nor a second one, or a lease of a second one: it is made current first.
        """
        event = TaskEvent.ENQUEUE if queued else TaskEvent.GRANT
        with self._writing() as c:
            row = self._row_of(c, task)
            values = {"lease": lease, "incarnation": fence.incarnation, "number": fence.number}
            if row.attempt == attempt:
                state = step(TASK, TaskState(row.state), event, story=task)
                c.execute(
                    t.tasks.update()
                    .where(t.tasks.c.id == task)
                    .values(state=str(state), position=position, start_s=start_s, **values)
                )
            elif not queued or not self._is_second(c, row, attempt):
                raise LocalProtocolError(
                    f"a grant for attempt {attempt} of {task}, which is at {row.attempt}"
                )
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
                device=self._device(c, task, attempt),
                lease=lease,
                fence=list(fence.key()),
            )

    def switch(self, task: str, attempt: int, before: int, *, reason: Reason | None, detail: str) -> None:
        """The second attempt is the task's current one from now on; the one before is over, and nothing ran in it."""
        with self._writing() as c:
            row = self._row_of(c, task)
            second = self._is_second(c, row, attempt)
            if second is None or row.attempt != before:
                raise LocalProtocolError(
                    f"attempt {attempt} of {task} after {before}, which is at {row.attempt}"
                )
            state = TaskState.QUEUED if second.lease is not None else TaskState.COMMITTING
            c.execute(
                t.tasks.update()
                .where(t.tasks.c.id == task)
                .values(
                    state=str(state),
                    attempt=attempt,
                    worker=second.worker,
                    device=second.device,
                    lease=second.lease,
                    incarnation=second.incarnation,
                    number=second.number,
                    position=None,
                    start_s=None,
                )
            )
            self._end_ticket(c, row.campaign, task, before, reason, detail)

    def end_second(self, task: str, attempt: int, *, reason: Reason | None, detail: str) -> None:
        """A second attempt is over; nothing ran in it, and the task stays where it is."""
        with self._writing() as c:
            row = self._row_of(c, task)
            if self._is_second(c, row, attempt) is None:
                raise LocalProtocolError(f"attempt {attempt} of {task} is no second one, or is over")
            self._end_ticket(c, row.campaign, task, attempt, reason, detail)

    def _end_ticket(
        self, c: sa.Connection, campaign: str, task: str, attempt: int, reason: Reason | None, detail: str
    ) -> None:
        told = {"reason": str(reason) if reason is not None else None, "detail": detail}
        self._end_attempt(c, task, attempt, AttemptState.REFUSED, ended=self._wall(), **told)
        fields = {key: value for key, value in told.items() if value}
        device = self._device(c, task, attempt)
        self._event(c, campaign, "task.ticket-ended", task, attempt=attempt, device=device, **fields)

    @staticmethod
    def _device(c: sa.Connection, task: str, attempt: int) -> str:
        """Where that attempt is, for people."""
        where = (t.attempts.c.task == task, t.attempts.c.attempt == attempt)
        return str(c.execute(sa.select(t.attempts.c.device).where(*where)).scalar() or "")

    def set_progress(self, lives: Sequence[LiveAttempt]) -> None:
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
                        position=None,
                        start_s=None,
                        done=live.done,
                        total=live.total,
                        median_ms=live.median_ms,
                        note=live.note,
                        begun=sa.func.coalesce(t.tasks.c.begun, self._wall()),
                    )
                )

    def set_places(self, places: Sequence[QueuePosition]) -> None:
        """Where tickets stand in their queues; those that are not current any more are passed over."""
        with self._writing() as c:
            for place in places:
                c.execute(
                    t.tasks.update()
                    .where(
                        t.tasks.c.id == place.task,
                        t.tasks.c.attempt == place.attempt,
                        t.tasks.c.state == str(TaskState.QUEUED),
                    )
                    .values(position=place.position, start_s=place.start_s, note=place.note)
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
        figures: Mapping[str, Any] | None = None,
    ) -> StoredAttempts:
        """Keep a verified record if it comes from the current attempt under the current fence, and move the task by `event` with it.
        `figures`: what `scheduler.figures.figures_of` says of it, for lists.

        Compare, record and move are one transaction. The same record again is answered as the first time. A stale one changes nothing.
        """
        with self._writing() as c:
            row = self._row(c, task)
            if row is None:
                return StoredAttempts(Reason.UNKNOWN)
            known = c.execute(
                sa.select(t.records.c.sha256).where(
                    t.records.c.task == task, t.records.c.attempt == attempt, t.records.c.worker == worker
                )
            ).scalar()
            if known is not None:
                return StoredAttempts(again=True) if known == sha256 else StoredAttempts(Reason.FENCED)
            if row.state == TaskState.CANCELLED:
                return StoredAttempts(why_not(row.state, row.reason))
            current = (row.attempt, row.worker, row.incarnation, row.number)
            if (
                final(TASK, TaskState(row.state))
                or row.state == TaskState.PENDING
                or current != (attempt, worker, fence.incarnation, fence.number)
            ):
                return StoredAttempts(Reason.FENCED)
            self._end(
                c, row, event, reason, detail, tries=event is TaskEvent.RETRY, record=sha256, figures=figures
            )
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
            return StoredAttempts()

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

    # -- inside a transaction -----------------------------------------------------------------------------------------------------------

    @staticmethod
    def _row(c: sa.Connection, task: str) -> sa.Row[Any] | None:
        return c.execute(sa.select(*TASK_COLUMNS).where(t.tasks.c.id == task)).one_or_none()

    def _row_of(self, c: sa.Connection, task: str) -> sa.Row[Any]:
        row = self._row(c, task)
        if row is None:
            raise LocalProtocolError(f"no task {task} in the store")
        return row

    @staticmethod
    def _is_second(c: sa.Connection, row: sa.Row[Any], attempt: int) -> sa.Row[Any] | None:
        """The row of that attempt, if it is not the task's current one and waits for an answer or for its turn."""
        open_ = (str(AttemptState.INTENDED), str(AttemptState.QUEUED))
        where = (t.attempts.c.task == row.id, t.attempts.c.attempt == attempt, t.attempts.c.state.in_(open_))
        return (
            None if attempt == row.attempt else c.execute(sa.select(t.attempts).where(*where)).one_or_none()
        )

    def _step(self, c: sa.Connection, task: str, event: TaskEvent) -> sa.Row[Any]:
        """The task's row, if `event` is possible now."""
        row = self._row_of(c, task)
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
        record: str | None = None,
        figures: Mapping[str, Any] | None = None,
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
                preempted=t.tasks.c.preempted + int(event is TaskEvent.PREEMPT),
                ended=now if over else None,
                note="",
                position=None,
                start_s=None,
                **({} if over else {"phase": None, "done": 0, "total": None, "median_ms": None}),
                **told,
            )
        )
        if over:
            found = dict(figures or {}) if state is TaskState.SUCCEEDED else without_figures(figures or {})
            c.execute(t.results.insert().values(**result_columns(row, state, reason, now) | found))
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
            **{key: value for key, value in {**told, "record": record}.items() if value},
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


def result_columns(row: sa.Row[Any], state: TaskState, reason: Reason | None, ended: float) -> dict[str, Any]:
    """What the task itself says in its row among the results."""
    return {
        "task": row.id,
        "campaign": row.campaign,
        "n": row.n,
        "ended": ended,
        "state": str(state),
        "reason": str(reason or ""),
        "model": row.model,
        "sha256": row.sha256,
        "unit": row.unit,
        "device": row.device,
        "replica": row.replica,
    }
