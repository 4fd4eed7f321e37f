"""What a worker is to the outside: active, busy, cleanup, faulty or draining, by one table."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from protocol.wire.table import Table
from protocol.words import WorkerState

FAULTY_AFTER: Final = 3
"""Different models that crashed with no success in between, before a worker runs what is known to work; faulty if that fails."""


class WorkerEvent(StrEnum):
    """What moves a worker from state to state."""

    BEGIN = "begin"
    """A task was taken and is being prepared or run."""
    END = "end"
    """The child is gone; its files are being removed."""
    CLEAN = "clean"
    """Nothing of the task is left."""
    BREAK = "break"
    """Too many failures in a row, or the device does not work any more."""
    RESET = "reset"
    DRAIN = "drain"
    RESUME = "resume"


WORKER: Final[Table[WorkerState, WorkerEvent]] = {
    WorkerState.ACTIVE: {
        WorkerEvent.BEGIN: WorkerState.BUSY,
        WorkerEvent.BREAK: WorkerState.FAULTY,
        WorkerEvent.DRAIN: WorkerState.DRAINING,
    },
    WorkerState.BUSY: {
        WorkerEvent.END: WorkerState.CLEANUP,
        WorkerEvent.BREAK: WorkerState.FAULTY,
        WorkerEvent.DRAIN: WorkerState.DRAINING,
    },
    WorkerState.CLEANUP: {
        WorkerEvent.CLEAN: WorkerState.ACTIVE,
        WorkerEvent.BREAK: WorkerState.FAULTY,
        WorkerEvent.DRAIN: WorkerState.DRAINING,
    },
    WorkerState.FAULTY: {
        WorkerEvent.RESET: WorkerState.ACTIVE,
    },
    WorkerState.DRAINING: {
        WorkerEvent.END: WorkerState.DRAINING,
        WorkerEvent.CLEAN: WorkerState.DRAINING,
        WorkerEvent.BREAK: WorkerState.FAULTY,
        WorkerEvent.RESUME: WorkerState.ACTIVE,
    },
}
