"""Which launches measure an order, and when to stop. Pure: medians and seconds in, the next launch out.

    runs: N         the full launch first, then the others; N shared out over `loads` launches, or all in the first when few
    precision: P    windows of time, launch by launch, until the interval of the launches' medians is within ±P, or will not be

The first launch is the full one: a broken model or a wrong unit shows at once, and its load is the cold one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median
from typing import Final

from drivers.contract.base import Unfit, WorkOrder
from protocol.formats.spread import FEWEST_LAUNCHES, MIN_SHARE, gap_s
from protocol.formats.turns import EXTRA_LAUNCHES_S, MIN_COMPARISON_LAUNCHES

WINDOW_S: Final = 0.05
"""The window of one launch that is measured by time."""
CHECKED_AFTER: Final = (6, 8, 10, 12, 16, 20)
"""Numbers of launches after which to check whether to stop. Checking after every launch would find a narrow interval by chance."""
RANKS: Final = {6: 1, 8: 1, 10: 2, 12: 3, 16: 4, 20: 6}
"""n → k: the k-th smallest and k-th largest of n medians enclose the true median with a probability of at least 95 %: 96.9, 99.2, 97.9,
96.1, 97.9, 95.9."""
EXPECTED: Final = {6: 1.27, 8: 1.42, 10: 1.00, 12: 0.79, 16: 0.76, 20: 0.59}
"""n → expected half width of that interval, in standard deviations between launches (normal order statistics)."""
SHRINKING: Final = 0.9
"""An interval that stays above this share of its earlier best is no longer shrinking."""


class MeasureJob(StrEnum):
    UNITS = "units"
    """List the units that work on this device."""
    RUN = "run"
    """Load, describe, time, check, and load once more in the same process."""
    REPEAT = "repeat"
    """Load and time."""
    LOAD = "load"
    """Load."""
    ROUNDS = "rounds"
    """Load several models, describe, time them in turns, check."""
    ROUNDS_REPEAT = "rounds-repeat"
    """Load several models and time them in turns."""
    SUSTAIN = "sustain"
    """Load, describe, infer for a long time, rest, check."""
    SAMPLES = "samples"
    """Make the driver's sample models."""
    TURNS = "turns"
    """Load one model, describe, time it in turns with those of other processes, check."""
    TURNS_REPEAT = "turns-repeat"
    """Load one model and time it in turns with those of other processes."""
    ANSWER = "answer"
    """Load, and answer the order's examples: after all timing, so that a failure loses no measurement."""


NO_MODEL: Final = frozenset({MeasureJob.UNITS, MeasureJob.SAMPLES})
"""Jobs that run no model: they run outside the sandbox, with a driver that is not preloaded."""
IN_TURNS: Final = frozenset({MeasureJob.TURNS, MeasureJob.TURNS_REPEAT})
"""Jobs that wait for the token."""
BRIEF_JOBS: Final = frozenset({MeasureJob.REPEAT, MeasureJob.ROUNDS_REPEAT, MeasureJob.TURNS_REPEAT})
"""Jobs whose model another launch describes and checks."""


class StopRule(StrEnum):
    """Why there are no further launches."""

    DONE = "all launches made"
    PRECISE = "the interval is as narrow as requested"
    STABLE = "the interval does not become narrower"
    MAXIMUM = "as many launches as there may be"
    TIME = "the time limit is near"
    ANSWERED = "what was asked is answered"


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One launch: its job, and its number of runs or its window of time."""

    job: MeasureJob
    runs: int = 0
    window_s: float | None = None
    at_s: float = 0.0
    """The earliest start: seconds since the first timed window began."""


def shares(runs: int, loads: int) -> tuple[int, ...]:
    """The share of each of `loads` launches in `runs`: as even as possible, larger shares first; all in the first launch if there are few
    runs.

    The shares add up to exactly `runs`; 0 is a launch that only loads.
    """
    if runs < MIN_SHARE * loads:
        return (runs, *(0,) * (loads - 1))
    each, more = divmod(runs, loads)
    return tuple(each + (index < more) for index in range(loads))


def half_width(medians: Sequence[float]) -> float:
    """Half of the 95 % interval's width as a share of the median; half of the whole range where the table has no ranks."""
    ordered = sorted(medians)
    rank = RANKS.get(len(ordered), 1)
    middle = median(ordered)
    return (ordered[-rank] - ordered[rank - 1]) / 2 / middle if middle else 0.0


def launches_for(spread: float, precision: float) -> int | None:
    """How many launches should have an interval within ± `precision`; None: more than may be made. `spread`: standard deviation between
    launches. Both are shares."""
    return next((count for count in CHECKED_AFTER if EXPECTED[count] * spread <= precision), None)


def first_look(spread: float | None, precision: float) -> int:
    """Launches after which to check for the first time: each earlier check is another chance to find a narrow interval by luck.

    It is the smallest number if nothing is known, or if no number should suffice: the checks then show that the interval does not shrink.
    """
    return (launches_for(spread, precision) if spread is not None else None) or CHECKED_AFTER[0]


@dataclass(slots=True)
class LaunchPlanner:
    order: WorkOrder
    budget_s: float
    """Time limit for all launches of an order together."""
    served: bool = False
    """The children do not load the model: one launch suffices."""
    enough: Callable[[], bool] = lambda: True
    """Whether the models of an order with `beside` can be compared by now; called after each launch."""
    stopped: StopRule | None = None
    _made: int = 0
    _medians: list[float] = field(default_factory=list)
    _widths: list[float] = field(default_factory=list)
    _longest_s: float = 0.0
    _last_s: float = 0.0

    def __post_init__(self) -> None:
        if self.order.loads < 1 or self.order.runs < 1:
            raise Unfit(f"runs ({self.order.runs}) and loads ({self.order.loads}) must be at least 1")
        if self.order.precision is not None and not 0 < self.order.precision <= 1:
            raise Unfit(f"precision ({self.order.precision}) must be above 0 and at most 1: 0.02 is ±2 %")
        if self.order.sustain_s is not None and self.order.beside:
            raise Unfit("sustain cannot be combined with a comparison: measure each model separately")
        if self.order.over_s is not None and (
            self.served or self.order.beside or self.order.sustain_s is not None
        ):
            raise Unfit("launches can be spread over time only when one model is measured by launches")
        if len(self.order.beside_units) not in {0, len(self.order.beside)}:
            raise Unfit(
                f"beside_units has {len(self.order.beside_units)} units, but beside has {len(self.order.beside)} models"
            )

    def measured(self, samples_ns: Sequence[int]) -> None:
        """Take the samples of the latest launch."""
        self._medians.append(median(samples_ns))

    def next(self, spent_s: float) -> LaunchSpec | None:
        """The next launch, or None; `stopped` then says why. `spent_s`: seconds since the first launch began."""
        self._longest_s, self._last_s = max(self._longest_s, spent_s - self._last_s), spent_s
        made, self._made = self._made, self._made + 1
        job = MeasureJob.REPEAT if made else MeasureJob.RUN
        if self.order.sustain_s is not None:
            only = LaunchSpec(MeasureJob.SUSTAIN, window_s=self.order.sustain_s)
            return self._or(StopRule.DONE if made else None, only)
        if self.served:
            return self._or(StopRule.DONE if made else None, LaunchSpec(job, self.order.runs))
        if self.order.beside:
            budget_s = (
                self.budget_s if made < MIN_COMPARISON_LAUNCHES else min(self.budget_s, EXTRA_LAUNCHES_S)
            )
            late = StopRule.TIME if spent_s + self._longest_s > budget_s else None
            why = StopRule.ANSWERED if made and self.enough() else late if made else None
            full, brief = MeasureJob.ROUNDS, MeasureJob.ROUNDS_REPEAT
            if self.order.beside_units:
                full, brief = MeasureJob.TURNS, MeasureJob.TURNS_REPEAT
            return self._or(why, LaunchSpec(brief if made else full, window_s=WINDOW_S))
        if self.order.precision is not None:
            why = self._enough(self.order.precision, spent_s) if made else None
            return self._or(why, LaunchSpec(job, window_s=WINDOW_S))
        runs = (*shares(self.order.runs, self.order.loads), 0)[made]
        return self._or(
            StopRule.DONE if made == self.order.loads else None,
            LaunchSpec(job if runs else MeasureJob.LOAD, runs),
        )

    def _enough(self, precision: float, spent_s: float) -> StopRule | None:
        launches = len(self._medians)
        if launches in RANKS and launches >= self.order.first_look:
            self._widths.append(half_width(self._medians))
            if self._widths[-1] <= precision:
                return StopRule.PRECISE
            if launches == CHECKED_AFTER[-1]:
                return StopRule.MAXIMUM
            if len(self._widths) >= 4 and min(self._widths[-2:]) > SHRINKING * min(self._widths[:-2]):
                return StopRule.STABLE
        return StopRule.TIME if spent_s + self._longest_s > self.budget_s else None

    def _or(self, why: StopRule | None, launch: LaunchSpec) -> LaunchSpec | None:
        self.stopped = why
        return None if why else replace(launch, at_s=self._at_s(self._made - 1))

    def _at_s(self, before: int) -> float:
        """The earliest start, in seconds, of a launch after `before` others. Launches that only load follow at once."""
        over_s = self.order.over_s
        if self.order.precision is not None:
            return before * gap_s(over_s, FEWEST_LAUNCHES)
        timed = sum(map(bool, shares(self.order.runs, self.order.loads)))
        return min(before * gap_s(over_s, timed), over_s or 0.0)
