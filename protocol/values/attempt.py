"""A task, as the scheduler's book sees it. Each of its attempts is one lease or ticket on one worker; one attempt at a time may run.

While it is queued a second worker may hold a ticket for it too. Its state is that of the current attempt.
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
