"""Attempts in the store: intents, grants, progress, records, ends. State changes follow the table `protocol.values.attempt.TASK`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from protocol.errors import LocalProtocolError
from protocol.values.attempt import TASK, TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.wire.table import final, step
from protocol.words import Reason
from results.export.pivots import without_figures
from results.row.scores import WAITING, Scores
from results.row.verdicts import RowVerdict
from scheduler.store import schema as t
from scheduler.store.database import Database, batched, read
from scheduler.store.events import EventRepository
from scheduler.store.open_tasks import OpenTasks
from scheduler.store.progress import unconfirmed_text
from scheduler.store.rows import (
    FAULTLESS_ATTEMPT_STATES,
    FINAL_TASK_STATES,
    AttemptRow,
    AttemptState,
    ResultReceipt,
    TaskRow,
    stale_reason,
)
from scheduler.store.scores import SCORING

if TYPE_CHECKING:
    from scheduler.core.commands import (
        CommitTo,
        EndAttempt,
        EndHedge,
        EndPending,
        EndStop,
        LiveAttempt,
        QueuePosition,
        RecordGrant,
        SwitchAttempt,
    )

_GRAVER: Final = ("", str(RowVerdict.SIMULATED), str(RowVerdict.UNREADABLE))
"""Verdicts that a doubt does not change."""
_EVENTS: Final[dict[TaskEvent, tuple[str, AttemptState]]] = {
    TaskEvent.COMMIT: ("task.committing", AttemptState.INTENDED),
    TaskEvent.REFUSE: ("task.refused", AttemptState.REFUSED),
    TaskEvent.ENQUEUE: ("task.queued", AttemptState.QUEUED),
    TaskEvent.GRANT: ("task.granted", AttemptState.GRANTED),
    TaskEvent.LOSE: ("task.lost", AttemptState.LOST),
    TaskEvent.RETRY: ("task.retried", AttemptState.FAILED),
    TaskEvent.FAIL: ("task.failed", AttemptState.FAILED),
    TaskEvent.SUCCEED: ("task.succeeded", AttemptState.SUCCEEDED),
    TaskEvent.CANCEL: ("task.cancelled", AttemptState.CANCELLED),
    TaskEvent.PREEMPT: ("task.preempted", AttemptState.PREEMPTED),
    TaskEvent.DISCOUNT: ("task.discounted", AttemptState.FAILED),
}
"""For each event of a task: the stored event's name, and the state of the attempt after it."""


class AttemptRepository:
    """Attempts, and the state of their tasks. The scheduler process is the only writer."""

    def __init__(self, database: Database, events: EventRepository) -> None:
        self._database, self._events = database, events
        self._shared: OpenTasks | None = None
        self._gathered: Callable[[], None] = lambda: None

    # -- reading --------------------------------------------------------------------------------------------------------------------

    def all(self, campaign: str, low: int = 0, high: int | None = None) -> tuple[AttemptRow, ...]:
        """All attempts of a campaign's tasks with numbers `low` to `high`, by task number and attempt."""
        of_campaign = [t.attempts.c.task == t.tasks.c.id, t.tasks.c.campaign == campaign, t.tasks.c.n >= low]
        if high is not None:
            of_campaign.append(t.tasks.c.n <= high)
        return self._database.rows(AttemptRow, *of_campaign, order=[t.tasks.c.n, t.attempts.c.attempt])

    def of_task(self, task: str) -> tuple[AttemptRow, ...]:
        """All attempts of a task, in order."""
        return self._database.rows(AttemptRow, t.attempts.c.task == task, order=[t.attempts.c.attempt])

    def unsuccessful_attempts(self, campaign: str) -> tuple[AttemptRow, ...]:
        """The attempts of a campaign's tasks that did not go well, in any order."""
        a = t.attempts.c
        of_campaign = (
            a.task > f"{campaign}/",
            a.task < f"{campaign}0",
            a.state.not_in(FAULTLESS_ATTEMPT_STATES),
        )
        return self._database.rows(AttemptRow, *of_campaign)

    def last(self, campaign: str, states: Collection[TaskState]) -> dict[str, float]:
        """The end of the last attempt of each of a campaign's tasks in these states or, if it has not ended, its begin: wall seconds by
        task.
        """
        a, c = t.attempts.c, t.tasks.c
        when = sa.func.max(sa.func.coalesce(a.ended, a.begun))
        query = sa.select(c.id, when).join_from(t.tasks, t.attempts, a.task == c.id)
        query = query.where(c.campaign == campaign, c.state.in_(states), c.attempt > 0).group_by(c.id)
        return dict(self._database.stream(query))

    def known_result(self, *, task: str, attempt: int, worker: str, sha256: str) -> ResultReceipt:
        """The receipt for a result that belongs to no current attempt: it was stored before, or is stale. Changes nothing."""
        if self._stored(task, attempt, worker) == sha256:
            return ResultReceipt(duplicate=True)
        row = self._database.row(TaskRow, t.tasks.c.id == task)
        return ResultReceipt(Reason.UNKNOWN if row is None else stale_reason(row.state, row.reason))

    def unconfirmed(self, target: str = "") -> tuple[AttemptRow, ...]:
        """Attempts with an unconfirmed stop: all, or those of a campaign or task."""
        a = t.attempts.c
        of_target = (a.task == target) | a.task.startswith(f"{target}/", autoescape=True)
        where = (a.state == AttemptState.UNCONFIRMED, *([of_target] if target else []))
        return self._database.rows(AttemptRow, *where, order=[a.task, a.attempt])

    # -- writing --------------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _change(self) -> Iterator[OpenTasks]:
        """Rows to change. They are on disk when the block ends or, if changes are gathered, when these are committed."""
        shared = self._shared
        if shared is None:
            with self._database.transaction() as c:
                rows = OpenTasks(self._database, self._events)
                yield rows
                rows.write(c)
            return
        before = bool(shared)
        try:
            yield shared
        except BaseException:
            shared.clear()  # drop an incomplete change
            raise
        if shared and not before:
            self._gathered()

    def gather(self, gathered: Callable[[], None]) -> None:
        """Keep changes in memory from now on, until `Database.commit`. `gathered` is called with the first change after each commit."""
        self._shared = self._database.pending = OpenTasks(self._database, self._events)
        self._gathered = gathered

    def write_through(self) -> None:
        """Write each change to disk at once from now on. Changes gathered and not committed are dropped."""
        self._shared = self._database.pending = None

    def begin(self, intents: Sequence[CommitTo]) -> None:
        """Store the intents before any worker is asked.

        Raises `LocalProtocolError` when a task is not pending or, for a hedge, neither queued nor leased.
        """
        with self._change() as rows:
            rows.load(intent.task for intent in intents)
            for intent in intents:
                task = intent.task
                row = rows.task(task) if intent.hedge else _step(rows, task, TaskEvent.COMMIT)
                if row.state not in (_HEDGEABLE if intent.hedge else (TaskState.PENDING,)):
                    raise LocalProtocolError(f"attempt {intent.attempt} of {task}, which is {row.state}")
                last = max(rows.attempts(task), default=0)
                if intent.attempt != last + 1:
                    raise LocalProtocolError(f"attempt {intent.attempt} of {task} after {last}")
                trust = intent.trust.text
                current: dict[str, Any] = {
                    "attempt": intent.attempt,
                    "worker": intent.peer,
                    "device": intent.device,
                }
                if not intent.hedge:
                    fresh = {"state": TaskState.COMMITTING, "note": "", **_NO_LEASE, **_NO_PROGRESS}
                    rows.update(task, **current, **fresh, trust=trust)
                rows.begin(
                    AttemptRow(
                        task=task,
                        key=intent.key,
                        epoch=intent.epoch,
                        state=AttemptState.INTENDED,
                        begun=self._database.wall(),
                        trust=trust,
                        **current,
                    )
                )
                hedge = {"hedge": True} if intent.hedge else {}
                _add_event(rows, row, TaskEvent.COMMIT, **current, trust=trust, **hedge)

    def record_grant(self, grant: RecordGrant) -> None:
        """Store that the worker granted a lease, or queued the task.

        Raises `LocalProtocolError` when the attempt is neither the current one nor a hedge, or when the hedge of a queued task is granted
        before `switch`.
        """
        task, attempt, fence = grant.task, grant.attempt, grant.fence
        event = TaskEvent.ENQUEUE if grant.queued else TaskEvent.GRANT
        with self._change() as rows:
            row = rows.task(task)
            values = {"lease": grant.lease, "incarnation": fence.incarnation, "number": fence.number}
            if row.attempt == attempt:
                state = step(TASK, row.state, event, story=task)
                position = {"position": grant.position, "start_s": grant.start_s}
                rows.update(task, state=state, **position, **values)
            elif not (grant.queued or grant.beside) or _hedge(rows, row, attempt) is None:
                raise LocalProtocolError(
                    f"a grant for attempt {attempt} of {task}, which is at {row.attempt}"
                )
            before = rows.attempts(task)[attempt]
            if row.attempt != attempt and (before.state, before.lease) == (AttemptState.GRANTED, grant.lease):
                return  # found running after a restart, as stored
            rows.move(task, attempt, state=_EVENTS[event][1], **values)
            device, key = rows.device(task, attempt), list(fence.key())
            _add_event(rows, row, event, attempt=attempt, device=device, lease=grant.lease, fence=key)

    def switch(self, change: SwitchAttempt) -> None:
        """Make the hedge the current attempt; the previous attempt ends without a record."""
        task = change.task
        with self._change() as rows:
            row = rows.task(task)
            hedge = _hedge(rows, row, change.attempt)
            if hedge is None or row.attempt != change.before:
                raise LocalProtocolError(
                    f"attempt {change.attempt} of {task} after {change.before}, which is at {row.attempt}"
                )
            rows.update(
                task,
                state=_AS_CURRENT[hedge.state],
                attempt=change.attempt,
                worker=hedge.worker,
                device=hedge.device,
                lease=hedge.lease,
                incarnation=hedge.incarnation,
                number=hedge.number,
                trust=hedge.trust,
                begun=hedge.begun if hedge.state is AttemptState.GRANTED else None,
                **_NO_POSITION,
                **_NO_PROGRESS,
            )
            self._end_one(rows, row, change.before, change.event, change.reason, change.detail)

    def end_hedge(self, end: EndHedge) -> None:
        """End a hedge without a record; the task keeps its current attempt."""
        with self._change() as rows:
            row = rows.task(end.task)
            if _hedge(rows, row, end.attempt) is None:
                raise LocalProtocolError(f"attempt {end.attempt} of {end.task} is not an open hedge")
            self._end_one(rows, row, end.attempt, end.event, end.reason, end.detail)

    def _end_one(
        self,
        rows: OpenTasks,
        row: TaskRow,
        attempt: int,
        event: TaskEvent,
        reason: Reason | None,
        detail: str,
    ) -> None:
        """End one of two attempts: the task goes on with the other."""
        why = {"reason": reason, "detail": detail}
        rows.move(row.id, attempt, state=_EVENTS[event][1], ended=self._database.wall(), **why)
        fields = {key: value for key, value in why.items() if value}
        device = rows.device(row.id, attempt)
        name = "task.ticket-ended" if event is TaskEvent.REFUSE else "task.attempt-ended"
        rows.add_event(row.campaign, name, row.id, attempt=attempt, device=device, **fields)

    def set_progress(self, lives: Sequence[LiveAttempt]) -> None:
        """Store progress of running attempts. Attempts that are no longer current are ignored. The caller limits how often."""
        inactive = (*FINAL_TASK_STATES, TaskState.PENDING, TaskState.COMMITTING)
        with self._change() as rows:
            rows.load(live.task for live in lives)
            for live in lives:
                row = rows.find(live.task)
                if row is None or row.attempt != live.attempt or row.state in inactive:
                    continue
                rows.update(
                    live.task,
                    state=TaskState.RUNNING if live.phase is not None else TaskState.LEASED,
                    phase=live.phase,
                    done=live.done,
                    total=live.total,
                    median_ms=live.median_ms,
                    note=live.note,
                    begun=self._database.wall() if row.begun is None else row.begun,
                    **_NO_POSITION,
                )

    def set_positions(self, positions: Sequence[QueuePosition]) -> None:
        """Store queue positions of queued attempts. Attempts that are no longer current are ignored."""
        with self._change() as rows:
            rows.load(queued.task for queued in positions)
            for queued in positions:
                row = rows.find(queued.task)
                if row is not None and row.attempt == queued.attempt and row.state is TaskState.QUEUED:
                    place = {"position": queued.position, "start_s": queued.start_s, "note": queued.note}
                    rows.update(queued.task, **place)

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
        account: str | None = None,
        device_key: str = "",
        scores: Scores | None = None,
    ) -> ResultReceipt:
        """Store a verified record of the current attempt under the current fence, and apply `event` to the task, in one transaction.
        `figures`: from `results.export.figures.figures_of`, for lists. `account`: what was witnessed of a stranger's run, as JSON.
        `device_key`: the key to which the device id belongs, if not the worker's. `scores`: the answers' scores; None: its model was not
        evaluated.

        The same record again gets the same receipt. A stale record changes nothing.
        """
        device_key = device_key or worker
        figures = {**figures, "device_key": device_key} if figures else None
        with self._change() as rows:
            row = rows.find(task)
            if row is None:
                return ResultReceipt(Reason.UNKNOWN)
            current = (row.attempt, row.worker, row.fence) == (attempt, worker, fence)
            if not current or row.state in _CLOSED:  # an open attempt has no record
                stored = self._stored(task, attempt, worker)
                if stored is not None:
                    return ResultReceipt(duplicate=True) if stored == sha256 else ResultReceipt(Reason.FENCED)
                if final(TASK, row.state):
                    return ResultReceipt(stale_reason(row.state, row.reason))
                return ResultReceipt(Reason.FENCED)
            tries = event is TaskEvent.RETRY
            self._end(rows, row, event, reason, detail, tries=tries, record=sha256, figures=figures)
            if scores == WAITING:
                rows.update(task, note=SCORING)
            rows.add_record(
                task=task,
                attempt=attempt,
                worker=worker,
                sha256=sha256,
                body=body,
                signature=signature,
                decides=event in (TaskEvent.SUCCEED, TaskEvent.FAIL, TaskEvent.CANCEL),
                accepted=self._database.wall(),
                account=account,
                device_key=device_key,
                scores=None if scores is None else scores.model_dump_json(),
            )
            return ResultReceipt()

    def _stored(self, task: str, attempt: int, worker: str) -> str | None:
        """The hash of the record of this attempt, if there is one."""
        r = t.records.c
        query = sa.select(r.sha256).where(r.task == task, r.attempt == attempt, r.worker == worker)
        return next((str(row.sha256) for row in self._database.all(query)), None)

    def doubt_results(self, worker: str) -> None:
        """Mark a refuted stranger's results for campaigns that have not ended."""
        r = t.records.c
        unfinished = sa.select(t.tasks.c.id).join(t.campaigns, t.campaigns.c.id == t.tasks.c.campaign)
        where = (
            r.worker == worker,
            r.account.is_not(None),
            r.task.in_(unfinished.where(t.campaigns.c.ended.is_(None))),
        )
        with self._database.transaction() as c:
            for row in c.execute(sa.select(r.task, r.attempt, r.account).where(*where)).all():
                refuted = json.dumps(json.loads(row.account) | {"refuted": True})
                key = (r.task == row.task, r.attempt == row.attempt)
                c.execute(t.records.update().where(*key).values(account=refuted))
                judged = (t.results.c.task == row.task, t.results.c.verdict.not_in(_GRAVER))
                c.execute(t.results.update().where(*judged).values(verdict=str(RowVerdict.UNWITNESSED)))

    def end(self, end: EndAttempt) -> None:
        """End the current attempt (0: none has begun) without a record: refused, returned, lost, failed or cancelled."""
        event = end.event
        with self._change() as rows:
            row = _step(rows, end.task, event)
            if row.attempt != end.attempt:
                raise LocalProtocolError(
                    f"{event} for attempt {end.attempt} of {end.task}, which is at {row.attempt}"
                )
            tries = event in (TaskEvent.LOSE, TaskEvent.RETRY)
            if end.stop is None:
                self._end(rows, row, event, end.reason, end.detail, tries=tries)
                return
            asked, until = self._database.wall() - end.stop.since_s, self._database.wall() + end.stop.left_s
            words = unconfirmed_text(row.device, asked, until)
            detail = "; ".join(filter(None, (end.detail, words)))
            self._end(rows, row, event, end.reason, detail, tries=tries)
            rows.move(end.task, end.attempt, state=AttemptState.UNCONFIRMED, ended=until, detail=words)
            fields = {"attempt": end.attempt, "device": row.device, "asked": asked, "until": until}
            rows.add_event(row.campaign, "stop.unconfirmed", row.id, **fields)

    def end_stop(self, end: EndStop) -> None:
        """Store that a run whose stop was not confirmed is over. Does nothing if the campaign was deleted meanwhile."""
        with self._change() as rows:
            task = rows.find(end.task)
            attempt = rows.attempts(end.task).get(end.attempt)
            if task is None or attempt is None or attempt.state is not AttemptState.UNCONFIRMED:
                return
            state = AttemptState.FAILED if task.state is TaskState.FAILED else AttemptState.CANCELLED
            now, over = self._database.wall(), _CONFIRMED if end.confirmed else _LAPSED
            rows.move(end.task, end.attempt, state=state, ended=now, detail=over)
            before = task.detail.removesuffix(attempt.detail).removesuffix("; ")
            detail = before if end.confirmed else "; ".join(filter(None, (before, over)))
            rows.update(end.task, detail=detail)
            name = "stop.confirmed" if end.confirmed else "stop.lapsed"
            fields = {"attempt": end.attempt, "device": attempt.device}
            rows.add_event(task.campaign, name, end.task, **fields)

    def end_pending(self, end: EndPending) -> None:
        """End many pending tasks for one reason: failed or cancelled."""
        with self._database.transaction() as c:
            for tasks in batched(end.tasks):
                self._end_pending(c, tasks, end)

    def _end_pending(self, c: sa.Connection, tasks: Sequence[str], end: EndPending) -> None:
        """Like `_end` for each task, in one statement for each table."""
        state = step(TASK, TaskState.PENDING, end.event, story="pending tasks")
        rows = {row.id: row for row in read(c, TaskRow, t.tasks.c.id.in_(tasks))}
        for task in tasks:
            if task not in rows or rows[task].state is not TaskState.PENDING:
                raise LocalProtocolError(
                    f"{task} is {rows[task].state if task in rows else 'gone'}, not pending"
                )
        now, why = self._database.wall(), {"reason": end.reason, "detail": end.detail}
        values = {"state": state, "ended": now, "note": "", **_NO_POSITION, **why}
        c.execute(t.tasks.update().where(t.tasks.c.id.in_(tasks)).values(**values))
        results = [_result_columns(rows[task], state, now, end.reason) for task in tasks]
        c.execute(t.results.insert(), results)
        given = {key: value for key, value in why.items() if value}
        events: dict[str, list[tuple[str | None, dict[str, Any]]]] = {}
        for task in tasks:
            row = rows[task]
            current = {"attempt": row.attempt, "worker": row.worker, "device": row.device}
            events.setdefault(row.campaign, []).append((task, {**current, **given}))
        for campaign, each in events.items():
            self._events.append_many(c, campaign, _EVENTS[end.event][0], each)

    def _end(
        self,
        rows: OpenTasks,
        row: TaskRow,
        event: TaskEvent,
        reason: Reason | None,
        detail: str,
        *,
        tries: bool,
        record: str | None = None,
        figures: Mapping[str, Any] | None = None,
    ) -> None:
        state = step(TASK, row.state, event, story=row.id)
        now = self._database.wall()
        why = {"reason": reason, "detail": detail}
        ended = final(TASK, state)
        rows.update(
            row.id,
            state=state,
            tries=row.tries + tries,
            preempted=row.preempted + (event is TaskEvent.PREEMPT),
            ended=now if ended else None,
            note="",
            **_NO_POSITION,
            **({} if ended else _NO_PROGRESS),
            **why,
        )
        if ended:
            rows.add_result(**_result_columns(row, state, now, reason, figures))
        if row.attempt and row.state is not TaskState.PENDING:
            rows.move(row.id, row.attempt, state=_EVENTS[event][1], ended=now, **why)
        current = {"attempt": row.attempt, "worker": row.worker, "device": row.device}
        fields = {key: value for key, value in {**why, "record": record}.items() if value}
        _add_event(rows, row, event, **current, **fields)


_CONFIRMED: Final = "its device confirmed that it was stopped"
_LAPSED: Final = "its device never confirmed that it was stopped, and its lease is over"
_CLOSED: Final = (*FINAL_TASK_STATES, TaskState.PENDING)
_HEDGEABLE: Final = (TaskState.QUEUED, TaskState.LEASED, TaskState.RUNNING)
"""Task states in which a task may have a hedge."""
_AS_CURRENT: Final = {
    AttemptState.INTENDED: TaskState.COMMITTING,
    AttemptState.QUEUED: TaskState.QUEUED,
    AttemptState.GRANTED: TaskState.LEASED,
}
"""The states of an open attempt, each with the state of its task when the attempt is the current one."""
_NO_LEASE: Final[dict[str, Any]] = {"lease": None, "incarnation": None, "number": None}
_NO_POSITION: Final[dict[str, Any]] = {"position": None, "start_s": None}
_NO_PROGRESS: Final[dict[str, Any]] = {"phase": None, "done": 0, "total": None, "median_ms": None}
_RESULT_COLUMNS: Final = ("campaign", "n", "model", "sha256", "unit", "device", "replica", "trust")


def _result_columns(
    row: TaskRow,
    state: TaskState,
    now: float,
    reason: Reason | None,
    figures: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    columns = {name: getattr(row, name) for name in _RESULT_COLUMNS}
    columns |= {"task": row.id, "ended": now, "state": state, "reason": reason or ""}
    columns |= figures or {} if state is TaskState.SUCCEEDED else without_figures(figures or {})
    return columns


def _add_event(rows: OpenTasks, row: TaskRow, event: TaskEvent, **fields: Any) -> None:
    rows.add_event(row.campaign, _EVENTS[event][0], row.id, **fields)


def _step(rows: OpenTasks, task: str, event: TaskEvent) -> TaskRow:
    """The task, if `event` is possible in its state."""
    row = rows.task(task)
    step(TASK, row.state, event, story=task)
    return row


def _hedge(rows: OpenTasks, row: TaskRow, attempt: int) -> AttemptRow | None:
    """The attempt with this number, if it is open and not the task's current one."""
    known = rows.attempts(row.id).get(attempt)
    return known if known is not None and known.state in _AS_CURRENT and attempt != row.attempt else None
