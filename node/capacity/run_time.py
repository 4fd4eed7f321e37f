"""How long runs take on this device, learnt from those that ended, so that who waits is told an honest time. Pure.

The same model measured the same way takes what it took lately; with another number of inferences, as much more or less; of what never
ran here only what runs take on average is known.
"""

from __future__ import annotations

from typing import Final

from node.capacity.allocations import EndedLease
from protocol.values.task import Task

MAX_KINDS: Final = 1_024
WEIGHT: Final = 0.3
"""Of the latest run against all before it."""

_Kind = tuple[str, str]
_Shape = tuple[str, str, int, int, int | None]


class RunTimeEstimate:
    """Seconds of runs, by what was run."""

    def __init__(self) -> None:
        self.mean_s: float | None = None
        """What a run took lately, whatever it was; None: none ended yet."""
        self._same: EndedLease[_Shape, float] = EndedLease(MAX_KINDS)
        self._each: EndedLease[_Kind, float] = EndedLease(MAX_KINDS)
        """Seconds for each inference of a model on a unit."""

    def took(self, task: Task, seconds: float) -> None:
        """A run of it ended by itself."""
        self.mean_s = _mixed(self.mean_s, seconds)
        self._same.put(_shape(task), _mixed(self._same.get(_shape(task)), seconds))
        self._each.put(_kind(task), _mixed(self._each.get(_kind(task)), seconds / task.measure.runs))

    def expect(self, task: Task) -> float | None:
        """What a run of it will take; None: not known."""
        same = self._same.get(_shape(task))
        if same is not None:
            return same
        each = self._each.get(_kind(task))
        return self.mean_s if each is None else each * task.measure.runs


def _kind(task: Task) -> _Kind:
    return task.model.sha256, task.unit


def _shape(task: Task) -> _Shape:
    return *_kind(task), task.measure.runs, task.measure.loads, task.measure.threads


def _mixed(before: float | None, seconds: float) -> float:
    return seconds if before is None else (1 - WEIGHT) * before + WEIGHT * seconds
