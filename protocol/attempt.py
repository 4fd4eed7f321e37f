"""A task, as the scheduler's book sees it. A task has attempts, one at a time; each attempt is one lease on one worker."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from protocol.table import Table


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


_ENDS: Final[dict[TaskEvent, TaskState]] = {
    TaskEvent.SUCCEED: TaskState.SUCCEEDED,
    TaskEvent.FAIL: TaskState.FAILED,
    TaskEvent.RETRY: TaskState.PENDING,
    TaskEvent.LOSE: TaskState.PENDING,
    TaskEvent.CANCEL: TaskState.CANCELLED,
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
        TaskEvent.REFUSE: TaskState.PENDING,
        TaskEvent.GRANT: TaskState.LEASED,
        **_ENDS,
    },
    TaskState.LEASED: {TaskEvent.PROGRESS: TaskState.RUNNING, **_ENDS},
    TaskState.RUNNING: {TaskEvent.PROGRESS: TaskState.RUNNING, **_ENDS},
    TaskState.SUCCEEDED: {},
    TaskState.FAILED: {},
    TaskState.CANCELLED: {},
}
