"""Calibrates this device: what measuring on it needs and what it can do at best. Takes seconds.

    timer, idle host ─▶ warm-up of each ONNX unit on built-in models ─▶ micro-benchmarks of processor and GPU ─▶ Calibration

A unit or GPU that does not work raises nothing: its part is left out and a note says why.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from drivers.contract.base import DriverError, Event, Limits, MeasureReport, WorkOrder
from drivers.contract.hardware import usable_cores
from drivers.measure import host
from drivers.measure.gpu import torch_could
from drivers.measure.idle_wait import IdleWait, IdleWaitReport, family_cpu_s
from drivers.measure.telemetry import Sampler
from drivers.measure.timing import timer_overhead_ns
from drivers.micro import micro
from drivers.micro.plan import FULL, QUICK, MicroPlan, MicroResult
from drivers.onnx.session import TINY_MODEL
from drivers.onnx.synthetic import chain_of_products
from node.device.calibration import (
    Calibration,
    HostFigures,
    MicroFigures,
    headline,
    read_calibration,
    warm_after,
    write_calibration,
)
from node.device.lock import DeviceLock
from node.device.probe import Profile
from swarm.base.threads import DISK, WAITING

IDLE_S: Final = 0.35
"""Time over which the idle host is telemetry."""
UNIT_LIMITS: Final = Limits(load_s=20, run_s=20)
RUNS: Final = 60
MAX_WAIT_S: Final = 3.0
"""Longest wait for an idle host; ten times that for a full calibration."""


class CalibrationLaunch(Protocol):
    """The part of `drivers.launch.launch.Launch` that is used here."""

    def events(self) -> Iterator[Event]: ...


Launcher = Callable[[WorkOrder, Limits], CalibrationLaunch]
RunMicro = Callable[[str, MicroPlan, int], MicroResult]


@dataclass(frozen=True)
class CalibrationTools:
    """The edges of a calibration; tests put in doubles."""

    launch: Launcher
    run_micro: RunMicro = micro.run_micro
    sampler: Callable[[], Sampler] = Sampler
    reader: host.HostReader = field(default_factory=host.HostReader)
    idle_wait: Callable[[float], IdleWait] = IdleWait
    own_cpu_s: Callable[[], float] = family_cpu_s
    wait: Callable[[float], None] = time.sleep
    wall: Callable[[], float] = time.time
    threads: Callable[[], int] = usable_cores
    gpu_kind: Callable[[Profile], str] = lambda profile: gpu_kind(profile)
    quick: MicroPlan = QUICK
    full: MicroPlan = FULL


def gpu_kind(profile: Profile, system: str = sys.platform, could: Callable[[], bool] = torch_could) -> str:
    """The kind of GPU that torch can measure here; empty: none."""
    if profile.gpu_report.gpus and could():
        return "cuda"
    return "mps" if system == "darwin" and any("Torch" in offer.unit for offer in profile.units) else ""


def calibrate(profile: Profile, tools: CalibrationTools, *, full: bool = False) -> Calibration:
    """Measure everything; the caller holds the device lock. Blocking."""
    notes: list[str] = []
    waited = _wait_until_idle(tools.idle_wait(MAX_WAIT_S * (10 if full else 1)), tools.wait)
    host_figures = _idle_host(tools)
    if waited.busy_share is not None:
        notes.append(
            f"the host was busy (other processes used {waited.busy_share:.0%}), so these figures are too low;"
            " once it is idle: sark-node calibrate --force"
        )
    floors = {}
    for offer in profile.units:
        if profile.driver_of(offer.unit) == "onnx":
            try:
                floors[offer.unit] = learn_floor(offer.unit, tools.launch)
            except DriverError as why:
                notes.append(f"warm-up of {offer.unit} was not learned: {why}")
    micro_figures: list[MicroFigures] = []
    plan = tools.full if full else tools.quick
    for kind in ("cpu", tools.gpu_kind(profile)):
        if kind:
            try:
                micro_figures.append(_micro(kind, plan, profile, tools))
            except DriverError as why:
                notes.append(str(why))
    return Calibration(
        fingerprint=profile.fingerprint,
        at=tools.wall(),
        full=full,
        timer_ns=timer_overhead_ns(),
        host=host_figures,
        floors=floors,
        micro=tuple(micro_figures),
        notes=tuple(notes),
    )


async def ensure_calibrated(
    folder: Path,
    profile: Profile,
    tools: CalibrationTools,
    lock: DeviceLock,
    report: Callable[[str], object],
    *,
    full: bool = False,
    force: bool = False,
) -> Calibration:
    """The stored calibration if it is valid and not `force`, else a new one, made under the device lock and stored.

    `report` gets a line before and after. Raises `ResourceError` if it cannot be stored.
    """
    stored = await DISK.run(read_calibration, folder, profile.fingerprint)
    if stored.calibration is not None and not force and (stored.calibration.full or not full):
        return stored.calibration
    why = stored.missing or ("forced" if force else "in full")
    report(f"calibrating this device, {'up to half a minute' if full else 'a few seconds'}: {why}")

    def work() -> Calibration:
        calibration = calibrate(profile, tools, full=full)
        write_calibration(folder, calibration)
        return calibration

    def waiting() -> None:
        report("waiting: another measurement is running on this device")

    async with lock.hold(waiting):
        calibration = await WAITING.run(work)
    report(f"calibrated: {headline(calibration)}")
    return calibration


def _wait_until_idle(idle_wait: IdleWait, wait: Callable[[float], None]) -> IdleWaitReport:
    waiting = idle_wait.wait(wait)
    while True:
        try:
            next(waiting)
        except StopIteration as end:
            report: IdleWaitReport = end.value
            return report


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


def learn_floor(unit: str, launch: Launcher) -> int:
    """Inferences until a fresh session on a unit is warm: the higher of two built-in models. Raises `DriverError`."""
    floors: list[int] = []
    with tempfile.TemporaryDirectory(prefix="sark-calibrate-") as folder:
        for name, content in (("tiny", TINY_MODEL), ("chain", chain_of_products())):
            path = Path(folder) / f"{name}.onnx"
            path.write_bytes(content)
            order = WorkOrder(model=str(path), unit=unit, runs=RUNS, loads=1, warmup=1, check=False)
            floors += [
                warm_after((*event.warmup_ns, *event.samples_ns), event.per_sample)
                for event in launch(order, UNIT_LIMITS).events()
                if isinstance(event, MeasureReport)
            ]
    if not floors:
        raise DriverError("nothing was measured")
    return max(floors)


def _micro(kind: str, plan: MicroPlan, profile: Profile, tools: CalibrationTools) -> MicroFigures:
    shown: dict[str, Any] = {}
    if kind == "cpu":
        plan = micro.fit_plan(plan, micro.last_cache_bytes(), profile.ram or 1 << 32)
        result = tools.run_micro(kind, plan, tools.threads())
        shown = {"clock_mhz": tools.reader.clock_mhz(), "temperature_c": tools.reader.temperature_c()}
    else:
        sampler = tools.sampler()
        sampler.start()
        windows: tuple[tuple[int, int], ...] = ()
        try:
            result = tools.run_micro(kind, plan, 1)
            windows = result.windows
        finally:
            telemetry = sampler.stop(windows)
        if telemetry is not None:
            names = ("clock_mhz", "temperature_c", "power_w", "throttled")
            shown = {name: getattr(telemetry, name) for name in names}
    return MicroFigures(
        device=(profile.soc or "processor") if kind == "cpu" else result.device,
        backend=result.backend,
        threads=result.threads,
        figures=dict(result.figures),
        seconds=result.seconds,
        notes=result.notes,
        **shown,
    )
