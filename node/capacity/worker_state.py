"""The condition of the worker: a state of the table in `protocol.values.lease`, which the worker's runs advance. Pure.

A worker that crashes repeatedly must not use up a campaign's tasks. But models that kill every process that loads them must not take a
worker out of service either. So crashes are counted over different models, and only make the worker suspect. The worker then runs a
model that is known to work, to find out whether the device or the models are at fault (`record_examination`).

The owner may hold the worker back for a while (`hold`: paused, quiet hours, on battery) or for good (`drain`). Both are reported as
draining; a held worker resumes by itself.
"""

from __future__ import annotations

from typing import Final

from protocol.values.lease import FAULTY_AFTER, WORKER, WorkerEvent
from protocol.wire.table import step
from protocol.words import Reason, RunOutcome, WorkerState

BLAMED_ON_WORKER: Final = frozenset({Reason.CRASHED})
"""Reasons for the end of a run that may be the fault of the device, its driver or its installation."""
SERVING: Final = frozenset({WorkerState.ACTIVE, WorkerState.BUSY, WorkerState.CLEANUP})


class WorkerCondition:
    """State and reason of one worker with one or more slots."""

    def __init__(self) -> None:
        self.state = WorkerState.ACTIVE
        self.why = ""
        self._crashed: set[str] = set()
        self._busy = 0
        self._cleaning = 0
        self._hold_reason = ""
        self._drain_reason = ""
        self._finish_queue = False

    @property
    def serving(self) -> bool:
        return self.state in SERVING

    @property
    def at_work(self) -> bool:
        """Whether a run is in progress, or its files and result are still being put away."""
        return bool(self._busy or self._cleaning)

    @property
    def serves_queue(self) -> bool:
        """Whether queued leases are still offered slots."""
        return self.serving or (self.state is WorkerState.DRAINING and self._finish_queue)

    @property
    def suspect(self) -> bool:
        """Whether so many different models crashed in a row that the device must be examined before it takes more work."""
        return self.serving and len(self._crashed) >= FAULTY_AFTER

    @property
    def refusal(self) -> str:
        """The answer to a scheduler that offers work while the worker takes none."""
        if self.state is WorkerState.DRAINING and self.why:
            return f"this worker takes no new work: {self.why}"
        return f"this worker is {self.state}" + (f": {self.why}" if self.why else "")

    def begin(self) -> None:
        self._busy += 1
        if self.state is WorkerState.CLEANUP:  # another slot or the last run's files are being cleaned up
            self._move(WorkerEvent.CLEAN)
        if self.state is WorkerState.ACTIVE:
            self._move(WorkerEvent.BEGIN)

    def end(self, outcome: RunOutcome, reason: Reason | None, permanent: bool, model_sha256: str) -> None:
        """A run's processes are gone. Its files and its result are still being put away."""
        self._busy -= 1
        self._cleaning += 1
        if not self._busy and self.state is WorkerState.BUSY:
            self._move(WorkerEvent.END)
        if outcome is RunOutcome.COMPLETE:
            self._crashed.clear()
        elif outcome is RunOutcome.FAILED and not permanent and reason in BLAMED_ON_WORKER:
            self._crashed.add(model_sha256)

    def clean(self) -> None:
        self._cleaning -= 1
        if not self.at_work and self.state is WorkerState.CLEANUP:
            self._move(WorkerEvent.CLEAN)

    def record_examination(self, trouble: str) -> None:
        """Record what a run of a model that is known to work showed. Empty: the device works, and the crashed models were to blame."""
        crashed = len(self._crashed)
        self._crashed.clear()
        if not trouble:
            self.reset()
        elif self.serving:
            self.break_down(f"runs of {crashed} models crashed one after the other, and {trouble}"[:500])

    def break_down(self, why: str) -> None:
        if self.state is not WorkerState.FAULTY:
            self._move(WorkerEvent.BREAK)
        self.why = why

    def reset(self) -> None:
        if self.state is WorkerState.FAULTY:
            self._move(WorkerEvent.RESET)
            self.why = ""
            self._update()

    def hold(self, why: str) -> None:
        """Take no new work for the reason `why`. Empty: take work again, unless the worker is leaving."""
        self._hold_reason = why
        self._update()

    def drain(self, why: str = "leaving", *, finish: bool = False) -> None:
        """Take no more new work. `finish`: still run the queued leases."""
        self._drain_reason = why
        self._finish_queue = finish
        self._update()

    def cancel_drain(self) -> None:
        self.drain("")

    def _update(self) -> None:
        """Be draining exactly while there is a reason. A faulty worker stays faulty until it is reset."""
        why = self._drain_reason or self._hold_reason
        if self.state is WorkerState.FAULTY:
            return
        if why:
            if self.serving:
                self._move(WorkerEvent.DRAIN)
            self.why = why
            return
        if self.state is WorkerState.DRAINING:
            self._move(WorkerEvent.RESUME)
            self.why = ""
        if self.state is WorkerState.ACTIVE and self.at_work:
            self._move(WorkerEvent.BEGIN)
            if not self._busy:
                self._move(WorkerEvent.END)

    def _move(self, event: WorkerEvent) -> None:
        self.state = step(WORKER, self.state, event, story=self.why)
