"""Enrolling this device: find out, once, what measuring on it needs and what it can do at best. Blocks for some seconds.

    timer, idle host ─▶ warm-up of each ONNX unit on built-in models ─▶ micro-benchmarks of the processor and of a GPU ─▶ Enrolment

Whoever calls holds the device lock. Nothing here raises for a unit or a GPU that does not work: its part is left out, and a note says why.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import trio

from drivers.contract.base import DriverError, Event, Limits, MeasureReport, WorkOrder
from drivers.contract.hardware import usable_cores
from drivers.measure import host
from drivers.measure.gpu import torch_could
from drivers.measure.idle_wait import IdleWait, IdleWaitReport, family_cpu_s
from drivers.measure.telemetry import Sampler
from drivers.measure.timing import timer_overhead_ns
from drivers.micro import micro
from drivers.onnx.session import TINY_MODEL
from drivers.onnx.synthetic import chain_of_products
from node.device import calibration
from node.device.calibration import Calibration, HostFigures, MicroFigures, warm_after
from node.device.lock import DeviceLock
from node.device.probe import Profile

IDLE_S: Final = 0.35
"""The host is looked at for so long while this node does nothing."""
UNIT_LIMITS: Final = Limits(load_s=20, run_s=20)
RUNS: Final = 60
PATIENCE_S: Final = 3.0
"""A busy host is waited for so long before anything is measured; ten times that for a full enrolment."""


class CalibrationLaunch(Protocol):
    """What is needed of `drivers.launch.Launch`."""

    def events(self) -> Iterator[Event]: ...


Launcher = Callable[[WorkOrder, Limits], CalibrationLaunch]
RunMicro = Callable[[str, micro.MicroPlan, int], micro.Micro]


@dataclass(frozen=True)
class CalibrationTools:
    """What it is done with; tests put in doubles."""

    launch: Launcher
    run_micro: RunMicro = micro.run_micro
    sampler: Callable[[], Sampler] = Sampler
    reader: host.HostReader = field(default_factory=host.HostReader)
    quiet: Callable[[float], IdleWait] = IdleWait
    own_cpu_s: Callable[[], float] = family_cpu_s
    wait: Callable[[float], None] = time.sleep
    wall: Callable[[], float] = time.time
    threads: Callable[[], int] = usable_cores
    gpu_kind: Callable[[Profile], str] = lambda profile: gpu_kind(profile)
    quick: micro.MicroPlan = micro.QUICK
    full: micro.MicroPlan = micro.FULL


def gpu_kind(profile: Profile, system: str = sys.platform, could: Callable[[], bool] = torch_could) -> str:
    """The kind of GPU that torch can measure here; empty: none."""
    if profile.found.gpus and could():
        return "cuda"
    return "mps" if system == "darwin" and any("Torch" in offer.unit for offer in profile.units) else ""


def enrol(
    profile: Profile,
    means: CalibrationTools,
    *,
    full: bool = False,
    tell: Callable[[str], object] = lambda line: None,
) -> Calibration:
    """Find everything out. `tell` hears a word at each step."""
    notes: list[str] = []
    tell("the host, idle")
    waited = _until_quiet(means.quiet(PATIENCE_S * (10 if full else 1)), means.wait)
    found_host = _idle_host(means)
    if waited.busy_share is not None:
        notes.append(
            f"the host was busy (others took {waited.busy_share:.0%}): it can do more than this;"
            " once it is quiet: sark-node enroll --again"
        )
    floors = {}
    for offer in profile.units:
        if profile.driver_of(offer.unit) == "onnx":
            tell(f"warm-up of {offer.unit}")
            try:
                floors[offer.unit] = learn_floor(offer.unit, means.launch)
            except DriverError as why:
                notes.append(f"warm-up of {offer.unit} was not learned: {why}")
    found: list[MicroFigures] = []
    plan = means.full if full else means.quick
    for kind in ("cpu", means.gpu_kind(profile)):
        if kind:
            tell(f"micro-benchmarks: {kind}")
            try:
                found.append(_micro(kind, plan, profile, means))
            except DriverError as why:
                notes.append(str(why))
    return Calibration(
        fingerprint=profile.fingerprint,
        at=means.wall(),
        full=full,
        timer_ns=timer_overhead_ns(),
        host=found_host,
        floors=floors,
        micro=tuple(found),
        notes=tuple(notes),
    )


async def enrolled(
    folder: Path,
    profile: Profile,
    means: CalibrationTools,
    lock: DeviceLock,
    tell: Callable[[str], object],
    *,
    full: bool = False,
    again: bool = False,
) -> Calibration:
    """What is kept of this device, or a fresh enrolment where that does not count any more, or `again`. Holds the device lock meanwhile.

    `tell` hears one line before and one after. Raises `ResourceError` where it cannot be kept.
    """
    before = await trio.to_thread.run_sync(calibration.kept, folder, profile.fingerprint)
    if before.found is not None and not again and (before.found.full or not full):
        return before.found
    why = before.why or ("once more" if again else "in full")
    tell(f"enrolling this device, {'half a minute at most' if full else 'a few seconds'}: {why}")

    def work() -> Calibration:
        found = enrol(profile, means, full=full)
        calibration.keep(folder, found)
        return found

    def waiting() -> None:
        tell("waiting: something is being measured on this device")

    async with lock.hold(waiting):
        found = await trio.to_thread.run_sync(work)
    tell(f"enrolled: {calibration.headline(found)}")
    return found


def _until_quiet(quiet: IdleWait, wait: Callable[[float], None]) -> IdleWaitReport:
    waiting = quiet.wait(wait)
    while True:
        try:
            next(waiting)
        except StopIteration as over:
            ended: IdleWaitReport = over.value
            return ended


def _idle_host(means: CalibrationTools) -> HostFigures:
    before, own = means.reader.look(), means.own_cpu_s()
    means.wait(IDLE_S)
    after = means.reader.look()
    seen = host.state(before, after, means.own_cpu_s() - own, means.reader)
    return HostFigures(
        others_share=seen.others_share,
        steal_share=seen.steal_share,
        stall_share=host.stall_share(before, after),
        clock_mhz=seen.clock_mhz,
        temperature_c=seen.temperature_c,
        on_battery=seen.on_battery,
    )


def learn_floor(unit: str, launch: Launcher) -> int:
    """How many inferences a fresh session on a unit takes to be warm: the most of two built-in models. Raises `DriverError`."""
    found = []
    with tempfile.TemporaryDirectory(prefix="sark-enroll-") as folder:
        for name, content in (("tiny", TINY_MODEL), ("chain", chain_of_products())):
            path = Path(folder) / f"{name}.onnx"
            path.write_bytes(content)
            order = WorkOrder(model=str(path), unit=unit, runs=RUNS, loads=1, warmup=1, check=False)
            found += [
                warm_after((*event.warmup_ns, *event.samples_ns), event.per_sample)
                for event in launch(order, UNIT_LIMITS).events()
                if isinstance(event, MeasureReport)
            ]
    if not found:
        raise DriverError("nothing was measured")
    return max(found)


def _micro(kind: str, plan: micro.MicroPlan, profile: Profile, means: CalibrationTools) -> MicroFigures:
    if kind == "cpu":
        plan = micro.fitting(plan, micro.last_cache_bytes(), profile.ram or 1 << 32)
        found = means.run_micro(kind, plan, means.threads())
        return MicroFigures(
            device=profile.soc or "processor",
            backend=found.backend,
            threads=found.threads,
            figures=dict(found.figures),
            seconds=found.seconds,
            clock_mhz=means.reader.clock_mhz(),
            temperature_c=means.reader.temperature_c(),
            notes=found.notes,
        )
    sampler = means.sampler()
    sampler.start()
    windows: tuple[tuple[int, int], ...] = ()
    try:
        found = means.run_micro(kind, plan, 1)
        windows = found.windows
    finally:
        seen = sampler.stop(windows)
    return MicroFigures(
        device=found.device,
        backend=found.backend,
        threads=found.threads,
        figures=dict(found.figures),
        seconds=found.seconds,
        clock_mhz=seen.clock_mhz if seen is not None else None,
        temperature_c=seen.temperature_c if seen is not None else None,
        power_w=seen.power_w if seen is not None else None,
        throttled=seen.throttled if seen is not None else (),
        notes=found.notes,
    )
