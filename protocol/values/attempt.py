"""A task and its attempts, as their scheduler sees them. An attempt is one lease on one worker, which may be queued first.

The state of a task is the state of its current attempt. A second attempt, the hedge, may exist beside it at another worker. While the task
is queued, only one of the two may run. Beside a run past its deadline, both may run until a result of either is accepted.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from protocol.wire.table import Table


class TaskState(StrEnum):
    """The state of a task."""

    PENDING = "pending"
    """Waits for a device: none was asked yet, or the last attempt ended and another may follow."""
    COMMITTING = "committing"
    """The intent is on disk, and a worker has been asked."""
    QUEUED = "queued"
    """A worker holds a queued lease for it."""
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
    """The lease is gone without a result: the worker died, was cut off or dropped the lease."""
    SUCCEED = "succeed"
    FAIL = "fail"
    """Finally: no attempt is left, or another would not help."""
    RETRY = "retry"
    """The attempt failed; another one may succeed."""
    CANCEL = "cancel"
    PREEMPT = "preempt"
    """It gave way to a higher priority, which is nobody's fault and does not count as a try."""
    DISCOUNT = "discount"
    """A stranger failed at it, and no trusted worker has tried yet; does not count as a try."""


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
"""The current attempt is over, and the hedge (asked, queued or leased) takes its place. GRANT also: a queued lease got its slot."""

TASK: Final[Table[TaskState, TaskEvent]] = {
    _S.PENDING: {_E.COMMIT: _S.COMMITTING, _E.FAIL: _S.FAILED, _E.CANCEL: _S.CANCELLED},
    _S.COMMITTING: {_E.REFUSE: _S.PENDING, _E.ENQUEUE: _S.QUEUED, _E.GRANT: _S.LEASED, **_ENDS},
    _S.QUEUED: {_E.REFUSE: _S.PENDING, **_HEDGED, **_ENDS},
    # REFUSE: its worker only claimed to have it, and nothing came of that
    _S.LEASED: {_E.PROGRESS: _S.RUNNING, _E.REFUSE: _S.PENDING, **_HEDGED, **_ENDS},
    _S.RUNNING: {_E.PROGRESS: _S.RUNNING, _E.REFUSE: _S.PENDING, **_HEDGED, **_ENDS},
    _S.SUCCEEDED: {},
    _S.FAILED: {},
    _S.CANCELLED: {},
}


class AttemptStatus(StrEnum):
    """What the scheduler knows of one attempt at its worker."""

    ASKED = "asked"
    """The worker has not answered the commit yet."""
    RESTORED = "restored"
    """It was in the store when the scheduler started; its worker has not confirmed it yet."""
    QUEUED = "queued"
    GRANTED = "granted"
    """It has a lease; nothing has been heard about its run yet."""
    CONFIRMED = "confirmed"
    """During reconciliation, its worker said that it holds the lease."""
    WAITING = "waiting"
    """It has a lease and waits until the device is free."""
    RUNNING = "running"
    REPORTING = "reporting"
    """Its run is over, and its worker sends the result."""
    STOPPING = "stopping"
    """It exceeded its limits or never began, and is being stopped."""


class AttemptEvent(StrEnum):
    """What a worker reports about an attempt, or the scheduler decides."""

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
    # WAIT: after a gap between launches, a spread run waits for the device again, but still counts as running
    _A.RUNNING: {_V.GRANT: _A.RUNNING, **_LEASED, _V.CONFIRM: _A.RUNNING, _V.WAIT: _A.RUNNING},
    _A.REPORTING: {_V.GRANT: _A.CONFIRMED, **_LEASED, _V.WAIT: _A.REPORTING, _V.PROGRESS: _A.REPORTING},
    _A.STOPPING: dict.fromkeys(AttemptEvent, _A.STOPPING),
}
