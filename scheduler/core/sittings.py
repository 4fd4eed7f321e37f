"""Sittings: when a task that repeats another's measurement may begin, and where. They are checked before the allocator runs.

    sitting k-1 ended ─▶ its `apart` passes ─▶ sitting k is pending, for the worker of the first sitting alone, at the lowest priority
    none of those before succeeded ─▶ sitting k ends like the one before: there is nothing to repeat

While a task waits for its sitting, only the campaign's time limit runs. Ends are instants on the scheduler's monotonic clock. The end of a
task that ended before this process began is known by the wall clock only. If that clock was set back, the task counts as ended just now,
and the wait is longer.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from protocol.values.attempt import TaskEvent, TaskState
from protocol.words import Reason
from scheduler.core.commands import Command, RecordWaitReason
from scheduler.core.entries import PendingOutcome, TaskEntry
from scheduler.core.state import State
from swarm.base.text import ordinal


class Sittings:
    def __init__(self, state: State) -> None:
        self._state = state
        self._opens: list[tuple[float, str]] = []
        """Heap of tasks that wait for their sitting, by the instant at which each becomes pending."""

    def prepare(self, entries: Iterable[TaskEntry], now: float) -> None:
        """Prepare the entries of a new campaign: when ended tasks ended, and to which worker later sittings go."""
        known = {entry.id: entry for entry in entries}
        for entry in known.values():
            if entry.over:
                entry.ended_at = now - max(0.0, entry.over_s)
        for entry in known.values():
            self._state.pin(entry, _worker_of_first(entry, known))

    def decide(self, now: float) -> list[Command]:
        """Handle tasks that wait for their sitting and are new, or whose previous sitting has ended."""
        state, waits = self._state, dict[tuple[str, float | None], list[str]]()
        looked_at, state.sittings = state.sittings, {}
        for entry in [state.tasks[task] for task in looked_at if task in state.tasks]:
            sitting = entry.form.sitting
            if sitting is None or entry.over or entry.outcome is not None:
                continue
            if not entry.waits_for_sitting:  # found at a worker before the first sitting's result arrived
                worker = _worker_of_first(entry, state.tasks)
                if worker and not entry.pin:
                    state.pin_to(entry, now, worker)
                continue
            name = ordinal(sitting.number)
            before = state.tasks.get(sitting.task(entry.id, sitting.number - 1))
            if before is None or (before.over and before.ended_at is None):
                state.release_sitting(entry, now)
            elif not before.over:
                words = f"waits for its {name} sitting, after the {ordinal(sitting.number - 1)}"
                waits.setdefault((words, None), []).append(entry.id)
            elif not _worker_of_first(entry, state.tasks):
                state.withdraw(entry, _like(before, ordinal(sitting.number - 1)))
            else:
                opens_at = (before.ended_at or now) + sitting.apart_s
                heapq.heappush(self._opens, (opens_at, entry.id))
                waits.setdefault((f"waits for its {name} sitting", opens_at), []).append(entry.id)
        return [RecordWaitReason(tuple(tasks), words, until) for (words, until), tasks in waits.items()]

    def open(self, now: float) -> list[Command]:
        """Make tasks pending that have waited long enough. Call it a few times each second."""
        opened: list[str] = []
        while self._opens and self._opens[0][0] <= now:
            entry = self._state.tasks.get(heapq.heappop(self._opens)[1])
            if entry is not None and entry.waits_for_sitting and entry.outcome is None:
                self._state.release_sitting(entry, now, _worker_of_first(entry, self._state.tasks))
                opened.append(entry.id)
        return [RecordWaitReason(tuple(opened), "")] if opened else []


def _worker_of_first(entry: TaskEntry, known: dict[str, TaskEntry]) -> str:
    """The worker of the first earlier sitting that has a result; empty: none has."""
    sitting = entry.form.sitting
    if sitting is None:
        return ""
    names = (sitting.task(entry.id, number) for number in range(1, sitting.number))
    found = (known[name] for name in names if name in known)
    return next((each.worker or "" for each in found if each.state is TaskState.SUCCEEDED), "")


def _like(before: TaskEntry, name: str) -> PendingOutcome:
    """The outcome for a sitting when the one before it has no result: there is nothing to repeat."""
    if before.state is TaskState.CANCELLED:
        return PendingOutcome(TaskEvent.CANCEL, Reason.CANCELLED, f"its {name} sitting was cancelled")
    return PendingOutcome(TaskEvent.FAIL, Reason.GAVE_UP, f"its {name} sitting failed")
