"""Calibrates this device: finds what measurements on it need, and its best possible performance. A round takes seconds.

    quiet? ─▶ warm-up and spread of each unit on its driver's samples ─▶ micro-benchmarks of processor and GPU ─▶ still quiet? ─▶ a round

Rounds are joined in `node.device.calibration_rounds`.

A unit or GPU that does not work, or a full disk, raises no error: the affected part is left out, and a note says why.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, Protocol

from drivers.contract.base import Cancelled, DriverError, Event, Limits, MeasureReport, WorkOrder
from drivers.contract.hardware import usable_cores
from drivers.measure import host
from drivers.measure.gpu import torch_could
from drivers.measure.idle_wait import IdleWait, IdleWaitReport
from drivers.measure.process_tree import process_tree_cpu_s
from drivers.measure.telemetry import Sampler
from drivers.measure.timing import timer_overhead_ns
from drivers.micro import micro
from drivers.micro.plan import FULL, QUICK, MicroPlan, MicroResult
from node.device.calibration import (
    CalibratedFigure,
    Calibration,
    HostFigures,
    MicroFigures,
    figure_of_round,
    spread_of,
    warm_after,
)
from node.device.gpu_units import GpuChoice
from node.device.probe import Profile

IDLE_S: Final = 0.35
"""Seconds for which the idle host is observed."""
FLOOR_LIMITS: Final = Limits(load_s=20, run_s=20)
SPREAD_LIMITS: Final = Limits(load_s=20, run_s=10)
"""A launch that would end later is not begun."""
RUNS: Final = 60
SKIPPED_PART_ERRORS: Final = (DriverError, OSError)
"""Errors that leave out a part of a round; `OSError` means that this host has no space, files or processes left."""
ANY_PRECISION: Final = 1.0
"""Ends at the first look, with launches of the same windows as orders with a precision."""


class CalibrationLaunch(Protocol):
    """The part of `drivers.launch.launch.Launch` that a calibration needs."""

    def events(self) -> Iterator[Event]: ...

    def kill(self) -> None: ...


Launcher = Callable[[WorkOrder, Limits], CalibrationLaunch]


class RunMicro(Protocol):
    """`drivers.micro.micro.run_micro`."""

    def __call__(
        self, kind: str, plan: MicroPlan, threads: int, *, killing: micro.Killing
    ) -> MicroResult: ...


class RoundStop:
    """Ends a round from another thread: kills the running process, and makes the round raise `Cancelled`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kill: Callable[[], object] | None = None
        self.stopped = False

    def now(self) -> None:
        """End the round. It is over when this call or the running step returns."""
        with self._lock:
            self.stopped, kill = True, self._kill
        if kill is not None:
            kill()

    def check(self) -> None:
        """Raises `Cancelled` if the round was stopped."""
        if self.stopped:
            raise Cancelled("the calibration was stopped")

    @contextlib.contextmanager
    def killing(self, kill: Callable[[], object]) -> Iterator[None]:
        """A block that `now` ends by calling `kill`. Raises `Cancelled`."""
        with self._lock:
            self.check()
            self._kill = kill
        try:
            yield
        finally:
            with self._lock:
                self._kill = None


@dataclass(frozen=True)
class CalibrationTools:
    """The external functions of a calibration; tests use doubles."""

    launch: Launcher
    samples: Callable[[str], Mapping[str, bytes]]
    """Sample models of a driver, from small to large. Raises `DriverError`."""
    run_micro: RunMicro = micro.run_micro
    sampler: Callable[[], Sampler] = Sampler
    reader: host.HostReader = field(default_factory=host.HostReader)
    idle_wait: Callable[[float], IdleWait] = IdleWait
    own_cpu_s: Callable[[], float] = process_tree_cpu_s
    wait: Callable[[float], None] = time.sleep
    wall: Callable[[], float] = time.time
    threads: Callable[[], int] = usable_cores
    gpu_kind: Callable[[Profile], str] = lambda profile: gpu_kind(profile)
    quick: MicroPlan = QUICK
    full: MicroPlan = FULL


def calibration_tools(
    launch: Launcher, samples: Callable[[str], Mapping[str, bytes]], choice: GpuChoice
) -> CalibrationTools:
    """The real tools, for the first chosen GPU."""
    if not choice.chosen:
        return CalibrationTools(launch, samples)
    gpu = choice.chosen[0]
    run_micro = partial(micro.run_micro, gpu=gpu.shown)
    return CalibrationTools(launch, samples, run_micro=run_micro, sampler=partial(Sampler, gpu.nvml))


def gpu_kind(profile: Profile, system: str = sys.platform, could: Callable[[], bool] = torch_could) -> str:
    """The kind of GPU that torch can measure here; empty: none."""
    if profile.gpu_report.gpus and could():
        return "cuda"
    return "mps" if system == "darwin" and any("Torch" in offer.unit for offer in profile.units) else ""


def wait_until_quiet(tools: CalibrationTools, most_s: float, stop: RoundStop) -> float | None:
    """Wait at most `most_s` (blocking). Returns the share of the processors that other processes still use; None: the host is quiet, or
    does not say. Raises `Cancelled` if stopped."""
    waiting = tools.idle_wait(most_s).wait(tools.wait)
    while True:
        stop.check()
        try:
            next(waiting)
        except StopIteration as end:
            report: IdleWaitReport = end.value
            return report.busy_share


def make_round(
    profile: Profile,
    tools: CalibrationTools,
    busy_share: float | None,
    stop: RoundStop,
    *,
    full: bool = False,
) -> Calibration:
    """Measure everything once (blocking). The caller holds the device lock. `busy_share`: the result of `wait_until_quiet`.

    Raises `Cancelled` if stopped.
    """
    before = _idle_host(tools)
    at, notes = tools.wall(), list[str]()
    floors, spreads = _learn(profile, tools, notes, stop)
    micro_figures: list[tuple[MicroResult, dict[str, Any]]] = []
    for kind in ("cpu", tools.gpu_kind(profile)):
        if kind:
            try:
                micro_figures.append(_micro(kind, tools.full if full else tools.quick, profile, tools, stop))
            except SKIPPED_PART_ERRORS as why:
                stop.check()
                notes.append(str(why))
    stop.check()
    quiet = _quiet(busy_share, before, _idle_host(tools))
    return Calibration(
        fingerprint=profile.fingerprint,
        at=at,
        quiet=quiet,
        full=full,
        timer_ns=timer_overhead_ns(),
        host=before,
        floors={unit: figure_of_round(floor, quiet, at) for unit, floor in floors.items()},
        spreads={unit: figure_of_round(spread, quiet, at) for unit, spread in spreads.items()},
        micro=tuple(_figures(result, shown, quiet, at) for result, shown in micro_figures),
        notes=tuple(notes),
    )


def _idle_host(tools: CalibrationTools) -> HostFigures:
    before, own = tools.reader.look(), tools.own_cpu_s()
    tools.wait(IDLE_S)
    after = tools.reader.look()
    state = host.state(before, after, tools.own_cpu_s() - own, tools.reader)
    return HostFigures(
        others_share=state.others_share,
        steal_share=state.steal_share,
        stall_share=host.stall_share(before, after),
        clock_mhz=state.clock_mhz,
        temperature_c=state.temperature_c,
        on_battery=state.on_battery,
    )


def _quiet(busy_share: float | None, before: HostFigures, after: HostFigures) -> bool | None:
    """Whether a round was made on a quiet host; None: unknown."""
    states = [host.quiet for host in (before, after) if host.quiet is not None]
    if busy_share is not None:
        return False
    return all(states) if states else None


def _learn(
    profile: Profile, tools: CalibrationTools, notes: list[str], stop: RoundStop
) -> tuple[dict[str, int], dict[str, float]]:
    """Warm-up floors and spreads between launches, by unit. Adds to `notes` why a figure was not learned."""
    floors, spreads = dict[str, int](), dict[str, float]()
    for driver in dict.fromkeys(profile.driver_of(offer.unit) for offer in profile.units):
        units = [offer.unit for offer in profile.units if profile.driver_of(offer.unit) == driver]
        stop.check()
        try:
            samples = tools.samples(driver or "")
        except SKIPPED_PART_ERRORS as why:
            notes.append(f"warm-up of {', '.join(units)} was not learned: {why}")
            continue
        if not samples:
            notes.append(
                f"warm-up of {', '.join(units)} was not learned: the driver {driver} has no sample models"
            )
            continue
        for unit in units:
            try:
                floors[unit], spread = learn(unit, samples, tools.launch, stop)
            except SKIPPED_PART_ERRORS as why:
                stop.check()
                notes.append(f"warm-up of {unit} was not learned: {why}")
                continue
            if spread is not None:
                spreads[unit] = spread
    return floors, spreads


def learn(
    unit: str, samples: Mapping[str, bytes], launch: Launcher, stop: RoundStop
) -> tuple[int, float | None]:
    """(inferences until a fresh session on a unit is warm, the most that any sample needs; the spread between launches of the last sample,
    None: too few launches). Raises `DriverError`."""
    with tempfile.TemporaryDirectory(prefix="sark-calibrate-") as folder:
        paths = [Path(folder) / name for name in samples]
        for path, content in zip(paths, samples.values(), strict=True):
            path.write_bytes(content)

        def measured(path: Path, limits: Limits, **changes: Any) -> list[MeasureReport]:
            made = launch(WorkOrder(model=str(path), unit=unit, check=False, **changes), limits)
            with stop.killing(made.kill):
                return [event for event in made.events() if isinstance(event, MeasureReport)]

        floors = [
            warm_after((*event.warmup_ns, *event.samples_ns), event.per_sample)
            for path in paths
            for event in measured(path, FLOOR_LIMITS, runs=RUNS, loads=1, warmup=1)
        ]
        if not floors:
            raise DriverError("nothing was measured")
        launches = measured(paths[-1], SPREAD_LIMITS, precision=ANY_PRECISION, warmup_floor=max(floors))
    return max(floors), spread_of([median(event.samples_ns) for event in launches])


def _micro(
    kind: str, plan: MicroPlan, profile: Profile, tools: CalibrationTools, stop: RoundStop
) -> tuple[MicroResult, dict[str, Any]]:
    """The result of the micro-benchmarks, and the facts shown with it."""
    if kind == "cpu":
        plan = micro.fit_plan(plan, micro.last_cache_bytes(), profile.ram or 1 << 32)
        result = tools.run_micro(kind, plan, tools.threads(), killing=stop.killing)
        return result, {
            "device": profile.soc or "processor",
            "clock_mhz": tools.reader.clock_mhz(),
            "temperature_c": tools.reader.temperature_c(),
        }
    sampler = tools.sampler()
    sampler.start()
    windows: tuple[tuple[int, int], ...] = ()
    try:
        result = tools.run_micro(kind, plan, 1, killing=stop.killing)
        windows = result.windows
    finally:
        telemetry = sampler.stop(windows)
    names = ("clock_mhz", "temperature_c", "power_w", "throttled") if telemetry is not None else ()
    return result, {"device": result.device} | {name: getattr(telemetry, name) for name in names}


def _figures(result: MicroResult, shown: Mapping[str, Any], quiet: bool | None, at: float) -> MicroFigures:
    figures: dict[str, CalibratedFigure] = {
        name: figure_of_round(value, quiet, at) for name, value in result.figures.items()
    }
    return MicroFigures(
        backend=result.backend,
        threads=result.threads,
        figures=figures,
        seconds=result.seconds,
        notes=result.notes,
        **shown,
    )
