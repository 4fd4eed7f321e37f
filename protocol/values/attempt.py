"""A task and its attempts, as their scheduler sees them. An attempt is one lease or ticket at one worker; one attempt at a time may run.

While a task is queued, a second worker may hold a ticket for it too: its hedge.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from protocol.wire.table import Table


class TaskState(StrEnum):
    """Where a task stands."""

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


_ENDS: Final[dict[TaskEvent, TaskState]] = {
    TaskEvent.SUCCEED: TaskState.SUCCEEDED,
    TaskEvent.FAIL: TaskState.FAILED,
    TaskEvent.RETRY: TaskState.PENDING,
    TaskEvent.LOSE: TaskState.PENDING,
    TaskEvent.CANCEL: TaskState.CANCELLED,
    TaskEvent.PREEMPT: TaskState.PENDING,
}

TASK: Final[Table[TaskState, TaskEvent]] = {
    TaskState.PENDING: {
        TaskEvent.COMMIT: TaskState.COMMITTING,
        TaskEvent.FAIL: TaskState.FAILED,
        TaskEvent.CANCEL: TaskState.CANCELLED,
    },
    TaskState.COMMITTING: {
        TaskEvent.REFUSE: TaskState.PENDING,
        TaskEvent.ENQUEUE: TaskState.QUEUED,
        TaskEvent.GRANT: TaskState.LEASED,
        **_ENDS,
    },
    TaskState.QUEUED: {
        TaskEvent.COMMIT: TaskState.COMMITTING,  # its ticket is gone; a second worker has been asked already
        TaskEvent.REFUSE: TaskState.PENDING,
        TaskEvent.GRANT: TaskState.LEASED,
        **_ENDS,
    },
    TaskState.LEASED: {
        TaskEvent.PROGRESS: TaskState.RUNNING,
        TaskEvent.REFUSE: TaskState.PENDING,  # its worker only said that it has it, and nothing came of that
        **_ENDS,
    },
    TaskState.RUNNING: {
        TaskEvent.PROGRESS: TaskState.RUNNING,
        TaskEvent.REFUSE: TaskState.PENDING,
        **_ENDS,
    },
    TaskState.SUCCEEDED: {},
    TaskState.FAILED: {},
    TaskState.CANCELLED: {},
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


_LEASED: Final[dict[AttemptEvent, AttemptStatus]] = {
    AttemptEvent.CONFIRM: AttemptStatus.CONFIRMED,
    AttemptEvent.WAIT: AttemptStatus.WAITING,
    AttemptEvent.PROGRESS: AttemptStatus.RUNNING,
    AttemptEvent.REPORT: AttemptStatus.REPORTING,
    AttemptEvent.STOP: AttemptStatus.STOPPING,
}

ATTEMPT: Final[Table[AttemptStatus, AttemptEvent]] = {
    AttemptStatus.ASKED: {
        AttemptEvent.ENQUEUE: AttemptStatus.QUEUED,
        AttemptEvent.GRANT: AttemptStatus.GRANTED,
    },
    AttemptStatus.RESTORED: {
        AttemptEvent.ENQUEUE: AttemptStatus.QUEUED,
        AttemptEvent.GRANT: AttemptStatus.GRANTED,
        **_LEASED,
    },
    AttemptStatus.QUEUED: {
        AttemptEvent.ENQUEUE: AttemptStatus.QUEUED,
        AttemptEvent.GRANT: AttemptStatus.GRANTED,
        AttemptEvent.REPORT: AttemptStatus.REPORTING,
    },
    AttemptStatus.GRANTED: {AttemptEvent.GRANT: AttemptStatus.GRANTED, **_LEASED},
    AttemptStatus.CONFIRMED: {AttemptEvent.GRANT: AttemptStatus.CONFIRMED, **_LEASED},
    AttemptStatus.WAITING: {
        AttemptEvent.GRANT: AttemptStatus.WAITING,
        **_LEASED,
        AttemptEvent.CONFIRM: AttemptStatus.WAITING,
    },
    AttemptStatus.RUNNING: {
        AttemptEvent.GRANT: AttemptStatus.RUNNING,
        **_LEASED,
        AttemptEvent.CONFIRM: AttemptStatus.RUNNING,
        AttemptEvent.WAIT: AttemptStatus.RUNNING,  # a run that has begun does not wait again
    },
    AttemptStatus.REPORTING: {
        AttemptEvent.GRANT: AttemptStatus.CONFIRMED,
        **_LEASED,
        AttemptEvent.WAIT: AttemptStatus.REPORTING,
        AttemptEvent.PROGRESS: AttemptStatus.REPORTING,
    },
    AttemptStatus.STOPPING: dict.fromkeys(AttemptEvent, AttemptStatus.STOPPING),
}
