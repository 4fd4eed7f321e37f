"""How long runs take on this device, learnt from those that ended, so that a waiting scheduler gets an honest estimate. Pure.

The same model measured the same way takes what it took lately; with another number of inferences, as much more or less; of what never
ran here only what runs take on average is known.
"""

from __future__ import annotations

from typing import Final

from node.capacity.allocations import RecentDict
from protocol.values.task import Task

MAX_SHAPES: Final = 1_024
WEIGHT: Final = 0.3
"""Of the latest run against all before it."""


class RunTimeEstimate:
    """Seconds of runs, by what was run."""

    def __init__(self) -> None:
        self.mean_s: float | None = None
        """Moving average of all runs; None: none ended yet."""
        self._by_shape: RecentDict[tuple[object, ...], float] = RecentDict(MAX_SHAPES)
        self._per_inference: RecentDict[tuple[str, str], float] = RecentDict(MAX_SHAPES)
        """By model and unit."""

    def add(self, task: Task, seconds: float) -> None:
        kind, shape = _keys(task)
        self.mean_s = _mixed(self.mean_s, seconds)
        self._by_shape.put(shape, _mixed(self._by_shape.get(shape), seconds))
        self._per_inference.put(kind, _mixed(self._per_inference.get(kind), seconds / task.measure.runs))

    def expect(self, task: Task) -> float | None:
        """What a run of it will take; None: not known."""
        kind, shape = _keys(task)
        seconds, each = self._by_shape.get(shape), self._per_inference.get(kind)
        if seconds is not None:
            return seconds
        return self.mean_s if each is None else each * task.measure.runs


def _keys(task: Task) -> tuple[tuple[str, str], tuple[object, ...]]:
    kind, measure = (task.model.sha256, task.unit), task.measure
    return kind, (*kind, measure.runs, measure.loads, measure.threads)


def _mixed(before: float | None, seconds: float) -> float:
    return seconds if before is None else (1 - WEIGHT) * before + WEIGHT * seconds
