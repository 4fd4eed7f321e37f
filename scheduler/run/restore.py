"""Restores a task from the store, in the form that the core needs after a restart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.messages.work import HeldLease
from protocol.values.attempt import TASK, AttemptStatus, TaskEvent, TaskState
from protocol.values.record import read_record
from protocol.values.task import Task, TaskReader
from protocol.values.trust import TrustKind
from protocol.wire.table import final
from protocol.words import Reason
from scheduler.core.commands import EndAttempt, EndPending
from scheduler.core.entries import LIMIT_REASONS, NOBODY, Attempt, TaskEntry
from scheduler.core.stops import OWED_S, OwedStop
from scheduler.store.rows import UNOBSERVED_EPOCH, AttemptRow, AttemptState, CampaignRow, TaskRow
from scheduler.store.store import Store

_FAILED = (AttemptState.LOST, AttemptState.FAILED)
_OPEN = (AttemptState.INTENDED, AttemptState.QUEUED, AttemptState.GRANTED)
_HEDGEABLE = (TaskState.QUEUED, TaskState.LEASED, TaskState.RUNNING)


def restored(row: TaskRow, form: Task, id: str, attempts: Sequence[AttemptRow], wall: float) -> TaskEntry:
    """A stored task with its attempts. Its worker has to confirm live attempts. `form`, `id`: as `TaskReader` returns them; `wall`: seconds
    since 1970, now.
    """
    hedge = None
    for attempt in attempts:
        if attempt.state in _OPEN and attempt.attempt != row.attempt and row.state in _HEDGEABLE:
            hedge = Attempt(
                attempt.attempt,
                attempt.worker,
                attempt.lease,
                attempt.fence,
                AttemptStatus.RESTORED,
                beside=row.state is not TaskState.QUEUED,
            )
    current = None
    if row.state is not TaskState.PENDING and row.worker is not None:
        inherited = any(a.attempt == row.attempt and a.epoch == UNOBSERVED_EPOCH for a in attempts)
        current = Attempt(
            row.attempt,
            row.worker,
            row.lease,
            row.fence,
            AttemptStatus.RESTORED,
            inherited=inherited,
            stranger=inherited and row.trust == TrustKind.STRANGER,
        )
    return TaskEntry(
        form,
        id=id,
        state=row.state,
        current=current,
        hedge=hedge,
        tries=row.tries,
        tried=frozenset(a.worker for a in attempts if a.state in _FAILED) or NOBODY,
        limits=frozenset(a.worker for a in attempts if a.state in _FAILED and a.reason in LIMIT_REASONS)
        or NOBODY,
        preempted=row.preempted,
        last=max((a.attempt for a in attempts), default=0),
        over_s=0.0 if row.ended is None else max(0.0, wall - row.ended),
    )


PORTION: Final = 100
"""Tasks that are read at a time."""


@dataclass(frozen=True, slots=True)
class RestoredTasks:
    """Some tasks of a campaign, in the campaign's order."""

    bodies: dict[str, bytes]
    entries: list[TaskEntry]


def restore_some(store: Store, campaign: str, after: int, reader: TaskReader) -> RestoredTasks | None:
    """The tasks that follow the first `after`; None: there are none. What they share with others of `reader` is in memory once. Raises
    `RemoteProtocolError` for a task that cannot be read.
    """
    rows = store.tasks.page(campaign, limit=PORTION, after=after)
    if not rows:
        return None
    low, high = rows[0].n, rows[-1].n
    bodies = store.tasks.bodies(campaign, low, high)
    in_order = {row.id: bodies[row.id] for row in rows}
    return RestoredTasks(in_order, _entries(store, campaign, rows, bodies, reader))


def entries_of(store: Store, campaign: str, bodies: Mapping[str, bytes]) -> list[TaskEntry]:
    """All tasks of a campaign, in the campaign's order."""
    return _entries(store, campaign, store.tasks.all(campaign), bodies, TaskReader())


def _entries(
    store: Store, campaign: str, rows: Sequence[TaskRow], bodies: Mapping[str, bytes], reader: TaskReader
) -> list[TaskEntry]:
    low, high = (rows[0].n, rows[-1].n) if rows else (0, 0)
    attempts: dict[str, list[AttemptRow]] = {}
    for attempt in store.attempts.all(campaign, low, high):
        attempts.setdefault(attempt.task, []).append(attempt)
    wall = store.database.wall()
    entries = [
        restored(row, *reader.form(row.id, bodies[row.id]), attempts.get(row.id, ()), wall) for row in rows
    ]
    replicas = {
        entry.id: entry for entry in entries if entry.replica_set and entry.state is TaskState.SUCCEEDED
    }
    for row in store.results.rows(campaign, low, high) if replicas else ():
        entry = replicas.get(row.task.id)
        if entry is not None and row.record is not None:
            entry.ran_on = read_record(row.record).device.device
    return entries


def owed_stops(
    store: Store, now: float, wall: float, leads: Callable[[str], bool] = lambda campaign: True
) -> list[OwedStop]:
    """Unconfirmed stops, in the core's form, under the last epoch of their campaigns. `now`, `wall`: the same instant, monotonic and since
    1970. `leads`: whether this process is responsible for a campaign.
    """
    rows = [row for row in store.attempts.unconfirmed() if leads(_campaign(row))]
    campaigns = {name: store.campaigns.get(name) for name in dict.fromkeys(map(_campaign, rows))}
    return [
        OwedStop(
            row.task,
            row.attempt,
            row.worker,
            _held(row, campaigns[_campaign(row)]),
            now + min(max((row.ended or wall) - wall, 0.0), OWED_S),  # the clock may have been set meanwhile
        )
        for row in rows
    ]


def _campaign(row: AttemptRow) -> str:
    return row.task.rpartition("/")[0]


def _held(row: AttemptRow, campaign: CampaignRow | None) -> HeldLease | None:
    if row.lease is None or row.fence is None:
        return None
    epoch = None if campaign is None else campaign.epoch
    return HeldLease(lease=row.lease, fence=row.fence, epoch=epoch)


def end_unreadable(store: Store, campaign: str, why: str) -> None:
    """End a campaign whose tasks cannot be read: its open tasks fail."""
    pending: list[str] = []
    for row in store.tasks.all(campaign):
        if row.state is TaskState.PENDING:
            pending.append(row.id)
        elif not final(TASK, row.state):
            store.attempts.end(
                EndAttempt(row.id, row.attempt, TaskEvent.FAIL, reason=Reason.BAD_REQUEST, detail=why)
            )
    store.attempts.end_pending(EndPending(pending, TaskEvent.FAIL, reason=Reason.BAD_REQUEST, detail=why))
    store.campaigns.end(campaign, detail=why)
