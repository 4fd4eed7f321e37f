"""Both ends of what one launch has to tell: the child picks it from the driver's story, the parent holds it against the contract."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from drivers.contract.base import (
    CheckReport,
    Driver,
    DriverError,
    Event,
    LoadKind,
    LoadReport,
    MeasureReport,
    ModelDescription,
    ProgressReport,
    RunFindings,
    UnitInfo,
    WorkOrder,
    makes_loads,
)
from drivers.contract.frames import Garbled
from drivers.measure.stopping import LaunchPlanner, MeasureJob
from protocol.formats.phase import Phase

DUE: Final[Mapping[MeasureJob, frozenset[type]]] = {
    MeasureJob.UNITS: frozenset(),
    MeasureJob.RUN: frozenset({LoadReport, ModelDescription, MeasureReport, CheckReport}),
    MeasureJob.AGAIN: frozenset({LoadReport, MeasureReport}),
    MeasureJob.LOAD: frozenset({LoadReport}),
}
"""One of each."""
MAX_FOUND: Final = 64
"""So often a launch may tell figures: they are put together here, in the node."""
MAX_CHANGES: Final = 256
"""So often it may enter another phase: each time others are told."""


def answer(driver: Driver, order: WorkOrder, job: str) -> Iterator[Event] | Iterable[UnitInfo]:
    """In the child: what a driver says to a job."""
    match MeasureJob(job):
        case MeasureJob.UNITS:
            return driver.units()
        case MeasureJob.LOAD:
            return driver.load_only(order)
        case MeasureJob.AGAIN:
            return _timed_only(driver.run(order))
        case MeasureJob.RUN:
            return _whole(driver, order)


def _timed_only(story: Iterator[Event]) -> Iterator[Event]:
    """What has been described and checked in another launch is not told again, and what comes after the times is not done."""
    for event in story:
        if isinstance(event, (ProgressReport, LoadReport, MeasureReport)):
            yield event
        if isinstance(event, MeasureReport):
            return


def _whole(driver: Driver, order: WorkOrder) -> Iterator[Event]:
    """Everything, and one more load where all that a first one leaves behind is there."""
    yield from driver.run(order)
    if not makes_loads(driver):
        return
    gc.collect()  # the first session's memory, so that two need not fit beside each other
    # what cannot be loaded twice has no such figure, and is no failure
    with contextlib.suppress(DriverError, MemoryError, OSError):
        for event in driver.load_only(order):
            if isinstance(event, LoadReport):
                yield replace(event, kind=LoadKind.WARM)


class LaunchEvents:
    """In the parent: what one launch has told so far."""

    def __init__(self, launch: LaunchPlanner, *, served: bool, cold: bool) -> None:
        """`served`: the children load no model. `cold`: the model's pages were dropped just before."""
        self._launch = launch
        self._served = served
        self._first = LoadKind.COLD if cold else LoadKind.FRESH
        self._told: set[type] = set()
        self._warm = False
        self._found = self._changes = 0
        self._phase: Phase | None = None

    def take(self, said: Event) -> Event:
        """Check one event. What kind of load it was is ours to say. Raises `Garbled`."""
        kind = type(said)
        if isinstance(said, RunFindings) and self._launch.job is MeasureJob.RUN and self._found < MAX_FOUND:
            self._found += 1
            return said
        if isinstance(said, ProgressReport):
            self._enter(said.phase)
            return said
        if isinstance(said, LoadReport) and CheckReport in self._told and not self._warm:
            self._warm = True
            return replace(said, kind=LoadKind.WARM)
        if kind not in DUE[self._launch.job] or kind in self._told:
            raise Garbled(f"one {kind.__name__} too many")
        self._told.add(kind)
        if isinstance(said, MeasureReport):
            self._count(said)
        return replace(said, kind=self._first) if isinstance(said, LoadReport) else said

    def _enter(self, phase: Phase) -> None:
        self._changes += phase is not self._phase
        self._phase = phase
        if self._changes > MAX_CHANGES:
            raise Garbled(f"it entered another phase more than {MAX_CHANGES} times")

    def _count(self, said: MeasureReport) -> None:
        samples = len(said.samples_ns)
        if self._launch.window_s is None and samples != self._launch.runs:
            raise Garbled(f"{samples} samples for {self._launch.runs} runs")
        if self._launch.window_s is None and said.per_sample != 1:
            raise Garbled(f"{said.per_sample} inferences in a sample where runs were counted")
        if not samples:
            raise Garbled("no samples")
        if said.blocks and sum(block.samples for block in said.blocks) != samples:
            raise Garbled(f"blocks that do not add up to its {samples} samples")

    def missing(self) -> str:
        """What is still due, in words; empty: nothing."""
        due = DUE[self._launch.job] - self._told - ({LoadReport} if self._served else set())
        return ", ".join(sorted(kind.__name__ for kind in due))
