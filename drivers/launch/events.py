"""The events of one launch at both ends: the child picks them from the driver's, the parent checks them against the contract."""

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
from drivers.measure.stopping import LaunchSpec, MeasureJob
from protocol.formats.phase import Phase

REQUIRED: Final[Mapping[MeasureJob, frozenset[type]]] = {
    MeasureJob.UNITS: frozenset(),
    MeasureJob.RUN: frozenset({LoadReport, ModelDescription, MeasureReport, CheckReport}),
    MeasureJob.REPEAT: frozenset({LoadReport, MeasureReport}),
    MeasureJob.LOAD: frozenset({LoadReport}),
}
"""One of each."""
MAX_FINDINGS: Final = 64
"""`RunFindings` of one launch: the node keeps them."""
MAX_CHANGES: Final = 256
"""Changes of phase: each is reported to others."""


def events_of(driver: Driver, order: WorkOrder, job: str) -> Iterator[Event] | Iterable[UnitInfo]:
    """In the child: a driver's events for a job."""
    match MeasureJob(job):
        case MeasureJob.UNITS:
            return driver.units()
        case MeasureJob.LOAD:
            return driver.load_only(order)
        case MeasureJob.REPEAT:
            return _timed_only(driver.run(order))
        case MeasureJob.RUN:
            return _all_events(driver, order)


def _timed_only(events: Iterator[Event]) -> Iterator[Event]:
    """Without description and check, which another launch has made; ends with the times."""
    for event in events:
        if isinstance(event, (ProgressReport, LoadReport, MeasureReport)):
            yield event
        if isinstance(event, MeasureReport):
            return


def _all_events(driver: Driver, order: WorkOrder) -> Iterator[Event]:
    """Everything, and then a warm load in the same process."""
    yield from driver.run(order)
    if not makes_loads(driver):
        return
    gc.collect()  # the first session's memory: two need not fit at once
    # a model that cannot be loaded twice has no such figure, which is no failure
    with contextlib.suppress(DriverError, MemoryError, OSError):
        for event in driver.load_only(order):
            if isinstance(event, LoadReport):
                yield replace(event, kind=LoadKind.WARM)


class LaunchEvents:
    """In the parent: checks the events of one launch."""

    def __init__(self, launch: LaunchSpec, *, served: bool, cold: bool) -> None:
        """`served`: the children load no model. `cold`: the model's pages were dropped just before."""
        self._launch = launch
        self._served = served
        self._first_load = LoadKind.COLD if cold else LoadKind.FRESH
        self._received: set[type] = set()
        self._warm = False
        self._findings = self._changes = 0
        self._phase: Phase | None = None

    def take(self, event: Event) -> Event:
        """Check one event, and set the kind of a load. Raises `Garbled`."""
        if isinstance(event, ProgressReport):
            self._changes += event.phase is not self._phase
            self._phase = event.phase
            if self._changes > MAX_CHANGES:
                raise Garbled(f"it changed its phase more than {MAX_CHANGES} times")
            return event
        runs = self._launch.job is MeasureJob.RUN
        if isinstance(event, RunFindings) and runs and self._findings < MAX_FINDINGS:
            self._findings += 1
            return event
        if isinstance(event, LoadReport) and CheckReport in self._received and not self._warm:
            self._warm = True
            return replace(event, kind=LoadKind.WARM)
        kind = type(event)
        if kind not in REQUIRED[self._launch.job] or kind in self._received:
            raise Garbled(f"one {kind.__name__} too many")
        self._received.add(kind)
        if isinstance(event, MeasureReport):
            self._check_samples(event)
        return replace(event, kind=self._first_load) if isinstance(event, LoadReport) else event

    def _check_samples(self, event: MeasureReport) -> None:
        samples = len(event.samples_ns)
        if self._launch.window_s is None and samples != self._launch.runs:
            raise Garbled(f"{samples} samples for {self._launch.runs} runs")
        if self._launch.window_s is None and event.per_sample != 1:
            raise Garbled(f"{event.per_sample} inferences in a sample where runs were counted")
        if not samples:
            raise Garbled("no samples")
        if event.blocks and sum(block.samples for block in event.blocks) != samples:
            raise Garbled(f"blocks that do not add up to its {samples} samples")

    def missing(self) -> str:
        """The required events that have not come, in words; empty: none."""
        missing = REQUIRED[self._launch.job] - self._received - ({LoadReport} if self._served else set())
        return ", ".join(sorted(kind.__name__ for kind in missing))
