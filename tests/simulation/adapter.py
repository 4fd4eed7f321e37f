"""The few places where the model depends on names of the ledger and the core. When those change, this module follows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from protocol.messages.work import Commit
from protocol.values.attempt import TaskState
from protocol.values.task import Task, read_task
from scheduler.core.entries import TaskEntry
from scheduler.run.restore import restored
from tests.simulation.sim_store import Row, Try


@lru_cache(maxsize=4096)
def read(body: bytes) -> Task:
    """Like `read_task`, but cached."""
    return read_task(body)


def task_of(message: Commit) -> Task:
    """The task of a commit."""
    return read(message.task)


def restored_entry(row: Row, attempts: Sequence[Try]) -> TaskEntry:
    """The entry with which the core continues a task after a restart."""
    stored: Any = row
    tried: Any = attempts
    task = read(row.body)
    entry = restored(stored, task, task.task, tried, wall=0.0)
    if entry.replica_set and entry.state is TaskState.SUCCEEDED and row.worker is not None:
        entry.ran_on = device_of(row.worker)  # as its record says
    return entry


def device_of(worker: str) -> str:
    """The device id of a worker of the model."""
    return f"d-{worker[-2:]}"


class Silence:
    """A log that nobody reads."""

    def debug(self, event: str, **fields: object) -> None:
        """Nothing."""

    info = warning = debug
