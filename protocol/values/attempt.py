"""A task and its attempts, as their scheduler sees them. An attempt is one lease or ticket at one worker.

A task is where its current attempt is. A second attempt, its hedge, may stand beside that one at another worker: while the task is queued,
and then one of the two may run; or beside a run that is past its deadline, and then both may run until a result of either is accepted.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from protocol.wire.table import Table


class TaskState(StrEnum):
    """The state of a task."""

    PENDING = "pending"
    """Waits for a device: none asked yet, or the last attempt ended and another may follow."""
    COMMITTING = "committing"
    """The intent is on disk and a worker has been asked."""
    QUEUED = "queued"
    """A worker holds a ticket for it."""
    LEASED = "leased"
    """A worker granted a lease; no run has been reported yet."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TaskEvent(StrEnum):
    """What happens to a task."""

    COMMIT = "commit"
    REFUSE = "refuse"
    ENQUEUE = "enqueue"
    GRANT = "grant"
    PROGRESS = "progress"
    LOSE = "lose"
    """The lease is gone without a result: the worker died, was cut off or dropped it."""
    SUCCEED = "succeed"
    FAIL = "fail"
    """For good: no attempt is left, or another would not help."""
    RETRY = "retry"
    """The attempt failed; another may do better."""
    CANCEL = "cancel"
    PREEMPT = "preempt"
    """It gave way to a higher priority: not a try, and nobody's fault."""
    DISCOUNT = "discount"
    """A stranger failed at it, and a trusted worker has not tried yet: not a try."""


_S, _E = TaskState, TaskEvent

_ENDS: Final[dict[TaskEvent, TaskState]] = {
    _E.SUCCEED: _S.SUCCEEDED,
    _E.FAIL: _S.FAILED,
    _E.RETRY: _S.PENDING,
    _E.LOSE: _S.PENDING,
    _E.CANCEL: _S.CANCELLED,
    _E.PREEMPT: _S.PENDING,
    _E.DISCOUNT: _S.PENDING,
}

_HEDGED: Final[dict[TaskEvent, TaskState]] = {
    _E.COMMIT: _S.COMMITTING,
    _E.ENQUEUE: _S.QUEUED,
    _E.GRANT: _S.LEASED,
}
"""The current attempt is over and the hedge takes its place: it was asked, has a ticket, or has a lease. GRANT also: a ticket is up."""

TASK: Final[Table[TaskState, TaskEvent]] = {
    _S.PENDING: {_E.COMMIT: _S.COMMITTING, _E.FAIL: _S.FAILED, _E.CANCEL: _S.CANCELLED},
    _S.COMMITTING: {_E.REFUSE: _S.PENDING, _E.ENQUEUE: _S.QUEUED, _E.GRANT: _S.LEASED, **_ENDS},
    _S.QUEUED: {_E.REFUSE: _S.PENDING, **_HEDGED, **_ENDS},
    # REFUSE: its worker only said that it has it, and nothing came of that
    _S.LEASED: {_E.PROGRESS: _S.RUNNING, _E.REFUSE: _S.PENDING, **_HEDGED, **_ENDS},
    _S.RUNNING: {_E.PROGRESS: _S.RUNNING, _E.REFUSE: _S.PENDING, **_HEDGED, **_ENDS},
    _S.SUCCEEDED: {},
    _S.FAILED: {},
    _S.CANCELLED: {},
}


class AttemptStatus(StrEnum):
    """What the scheduler knows of one attempt at its worker."""

    ASKED = "asked"
    """The worker has not answered the commit."""
    RESTORED = "restored"
    """It was in the store when the scheduler started; its worker has not confirmed it."""
    QUEUED = "queued"
    GRANTED = "granted"
    """It has a lease, and nothing has been heard of its run."""
    CONFIRMED = "confirmed"
    """Its worker said on reconciliation that it holds the lease."""
    WAITING = "waiting"
    """It has a lease and waits until the device is free."""
    RUNNING = "running"
    REPORTING = "reporting"
    """Its run is over and its worker sends the result."""
    STOPPING = "stopping"
    """It exceeded its limits, or never began, and is being stopped."""


class AttemptEvent(StrEnum):
    """What a worker says of an attempt, or the scheduler decides."""

    ENQUEUE = "enqueue"
    GRANT = "grant"
    CONFIRM = "confirm"
    WAIT = "wait"
    PROGRESS = "progress"
    REPORT = "report"
    STOP = "stop"


_A, _V = AttemptStatus, AttemptEvent

_LEASED: Final[dict[AttemptEvent, AttemptStatus]] = {
    _V.CONFIRM: _A.CONFIRMED,
    _V.WAIT: _A.WAITING,
    _V.PROGRESS: _A.RUNNING,
    _V.REPORT: _A.REPORTING,
    _V.STOP: _A.STOPPING,
}

ATTEMPT: Final[Table[AttemptStatus, AttemptEvent]] = {
    _A.ASKED: {_V.ENQUEUE: _A.QUEUED, _V.GRANT: _A.GRANTED},
    _A.RESTORED: {_V.ENQUEUE: _A.QUEUED, _V.GRANT: _A.GRANTED, **_LEASED},
    _A.QUEUED: {_V.ENQUEUE: _A.QUEUED, _V.GRANT: _A.GRANTED, _V.REPORT: _A.REPORTING},
    _A.GRANTED: {_V.GRANT: _A.GRANTED, **_LEASED},
    _A.CONFIRMED: {_V.GRANT: _A.CONFIRMED, **_LEASED},
    _A.WAITING: {_V.GRANT: _A.WAITING, **_LEASED, _V.CONFIRM: _A.WAITING},
    # WAIT: after a gap between its launches a spread run waits for the device again, and still counts as running
    _A.RUNNING: {_V.GRANT: _A.RUNNING, **_LEASED, _V.CONFIRM: _A.RUNNING, _V.WAIT: _A.RUNNING},
    _A.REPORTING: {_V.GRANT: _A.CONFIRMED, **_LEASED, _V.WAIT: _A.REPORTING, _V.PROGRESS: _A.REPORTING},
    _A.STOPPING: dict.fromkeys(AttemptEvent, _A.STOPPING),
}
