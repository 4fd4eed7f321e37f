"""A scripted device without a runtime, for tests that need a worker but no measurements: its profile and the events of its launches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from drivers.contract.base import (
    Cancelled,
    CheckReport,
    Event,
    LoadReport,
    MeasureReport,
    ModelDescription,
    ProgressReport,
    WorkOrder,
)
from node.device.lock import DeviceLock
from node.device.probe import Profile
from node.run.runner import RunLauncher
from node.serve.run_manager import DeviceParts
from protocol.formats.phase import Phase
from protocol.values.advert import UnitOffer


def launch_events(unit: str, runs: int, killed: Callable[[], bool]) -> Iterator[Event]:
    """The events of one launch of `runs` inferences. `killed` returns at the end of the launch, and says whether it was killed."""
    yield ProgressReport(Phase.LOAD)
    yield LoadReport(5_000_000, 100, 200)
    if killed():
        raise Cancelled("the run was cancelled")
    yield ModelDescription(
        unit, "scripted", "runtime 1", ("CPUExecutionProvider",), 2, {"x": (1, 2)}, {"x": "f"}, 0
    )
    yield ProgressReport(Phase.RUN, 1, runs)
    yield MeasureReport(tuple(range(1_000, 1_000 + runs)), (5_000,), 0.1, 0.2, 300, 40, 0)
    yield CheckReport(True, "0" * 64, 0.0, 1e-4, "")


@dataclass
class TimedLaunch:
    """One launch: lasts `seconds`, or until it is killed."""

    unit: str
    order: WorkOrder
    seconds: float
    _killed: threading.Event = field(default_factory=threading.Event)

    def events(self) -> Iterator[Event]:
        return launch_events(self.unit, self.order.runs, lambda: self._killed.wait(self.seconds))

    def kill(self) -> None:
        self._killed.set()


def scripted_device(name: str, unit: str, folder: Path, launch: Callable[..., RunLauncher]) -> DeviceParts:
    """A device with one unit. Its device lock is in `folder`."""
    return DeviceParts(
        profile=Profile(
            device=f"d-{name}",
            name=name,
            soc="Test",
            ram=8 * 1024**3,
            cores=2,
            threads=4,
            units=(UnitOffer(unit=unit, runtime="scripted 1"),),
            drivers={unit: "scripted"},
        ),
        lock=DeviceLock(f"d-{name}", folder),
        launch=launch,
        examine=lambda: "",
    )
