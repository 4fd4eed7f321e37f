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


_S, _E = WorkerState, WorkerEvent

WORKER: Final[Table[WorkerState, WorkerEvent]] = {
    _S.ACTIVE: {_E.BEGIN: _S.BUSY, _E.BREAK: _S.FAULTY, _E.DRAIN: _S.DRAINING},
    _S.BUSY: {_E.END: _S.CLEANUP, _E.BREAK: _S.FAULTY, _E.DRAIN: _S.DRAINING},
    _S.CLEANUP: {_E.CLEAN: _S.ACTIVE, _E.BREAK: _S.FAULTY, _E.DRAIN: _S.DRAINING},
    _S.FAULTY: {_E.RESET: _S.ACTIVE},
    _S.DRAINING: {_E.END: _S.DRAINING, _E.CLEAN: _S.DRAINING, _E.BREAK: _S.FAULTY, _E.RESUME: _S.ACTIVE},
}
