"""The hedge beside a run that is past its deadline (`scheduler.core.run_times`).

    leased at A ──▶ A is past its deadline, B fits: ask B too ─▶ a result of A or B is accepted: stop the other
                                                              └▶ both are past their deadlines, C fits: stop A, ask C

Neither case costs the task a try. The overtaken worker is not asked for the task again, and is set aside if this repeats.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from protocol.values.attempt import AttemptStatus
from scheduler.core.allocator import Allocator
from scheduler.core.commands import Command, RecordEvent
from scheduler.core.entries import Attempt, TaskEntry
from scheduler.core.failures import Failures
from scheduler.core.hedging import LAST_HEDGE, Hedging
from scheduler.core.ranking import WorkerView
from scheduler.core.state import State

LOOKED_AT: Final = 256
"""Leased tasks checked in one decision; checked tasks move to the end."""
TOO_LATE: Final = "it was past its deadline"


class Deadlines:
    def __init__(self, state: State, allocator: Allocator, hedging: Hedging, failures: Failures) -> None:
        self._state = state
        self._allocator = allocator
        self._hedging = hedging
        self._failures = failures

    def decide(self, now: float) -> list[Command]:
        """Hedge tasks past their deadline: at idle workers always, at busy ones while no task waits for a worker. Call it periodically,
        after waiting tasks were handed out.
        """
        state = self._state
        if not state.leased:
            return []
        tail = not any(group.pending for group in state.ranked)
        free = [
            view
            for view in (state.workers.values() if tail else (state.workers[peer] for peer in state.idle))
            if view.serving(now) and view.space() > 0
        ]
        commands: list[Command] = []
        for task in tuple(islice(state.leased, LOOKED_AT)) if free else ():
            state.leased[task] = state.leased.pop(task)
            entry = state.tasks[task]
            if not self._is_late(entry, now):
                continue
            view = self._other(entry, free)
            if view is not None:
                commands += self._hedge(entry, view, now)
                if view.space() <= 0:
                    free.remove(view)
        return commands

    def _is_late(self, entry: TaskEntry, now: float) -> bool:
        """Whether every running attempt of the task is past its deadline, and no other worker is being asked."""
        if entry.stopping or entry.last >= LAST_HEDGE or self._state.is_sitting_too_soon(entry, now):
            return False
        return all(self._past(entry, attempt, now) for attempt in entry.attempts())

    def _past(self, entry: TaskEntry, attempt: Attempt, now: float) -> bool:
        if attempt.status is AttemptStatus.ASKED:
            return False
        return not entry.runs(attempt) or now >= self._state.deadline(entry, attempt)

    def _other(self, entry: TaskEntry, free: Iterable[WorkerView]) -> WorkerView | None:
        """The worker to ask in addition to those that have the task; preferably one that is trusted, idle and has the model. A hedge that
        is only queued is given up for an idle worker.
        """
        state, model = self._state, entry.form.model
        group, taken = state.groups[entry.group], self._state.keys_of_replicas(entry)
        waits = entry.hedge is not None and not entry.runs(entry.hedge)
        taken |= {state.device_of(state.worker(attempt.worker)) for attempt in entry.attempts()}
        fitting = [
            view
            for view in free
            if view.peer in group.fits
            and state.admits(group, view.peer)
            and view.peer not in entry.tried
            and taken.isdisjoint(state.exclusive_keys(group, view))
            and (view.peer in state.idle or not waits)
        ]
        return min(
            fitting,
            key=lambda view: (
                state.trust_in(group, view.peer).stranger,
                view.start_s(model.sha256, model.size),
                state.rng.random(),
            ),
            default=None,
        )

    def _hedge(self, entry: TaskEntry, view: WorkerView, now: float) -> list[Command]:
        commands: list[Command] = []
        if entry.hedge is not None and not entry.runs(entry.hedge):
            commands += self._hedging.release(entry, "an idle worker was found")
        elif entry.hedge is not None and entry.current is not None:
            commands += self._failures.give_up_one(entry, entry.current, TOO_LATE, now)
        assert entry.current is not None, "a task with a lease has an attempt"
        fields: dict[str, str | int | float] = {
            "attempt": entry.attempt,
            "device": self._state.device(entry.current.worker),
        }
        commands.append(RecordEvent((entry.form.campaign,), "task.late", fields, entry.id))
        entry.hedged += 1
        return [*commands, self._allocator.commit(entry, view, now, hedge=True)]
