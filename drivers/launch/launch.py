"""Measure one order in fresh child processes, under limits enforced from outside, and never be hurt by what runs there.

    with start_zygote("onnx") as zygote:
        for event in measure(order, limits, zygote):
            …

Everything here blocks; the node calls it from a worker thread and may call `Launch.kill` from any other.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from drivers.contract import frames, pages, registry
from drivers.contract.base import (
    MIB,
    Cancelled,
    Crashed,
    DriverError,
    Event,
    Limits,
    LoadReport,
    MeasureReport,
    ModelDescription,
    OutOfMemory,
    ProgressReport,
    TimedOut,
    UnitInfo,
    WorkOrder,
)
from drivers.contract.boot import folder
from drivers.launch import child
from drivers.launch.events import LaunchEvents
from drivers.launch.process import Child, ZygoteProcess
from drivers.launch.spawn import PlainChild
from drivers.measure import host
from drivers.measure.idle_wait import IdleWait, IdleWaitReport
from drivers.measure.readings import windows_of
from drivers.measure.stopping import LaunchPlanner, MeasureJob, MeasurePlan
from drivers.measure.telemetry import Sampler, Sampling
from drivers.native import library
from drivers.sandbox.rlimits import Tier
from protocol.formats.phase import Phase

FAILURES: Final[dict[str, type[DriverError]]] = {error.__name__: error for error in child.TELLABLE}
COMPILED: Final = frozenset({"onnx"})
"""Drivers that time with the native loop: made on this side, before any of their children."""
CAN_FORK: Final = sys.platform != "win32"
MAY_PRELOAD: Final = sys.platform == "linux"
"""On macOS the system's libraries may not be used on both sides of a fork, so imports happen in the child there."""
SAMPLED_UNITS: Final = ("GPU (ONNX)", "GPU (Torch)", "TensorRT (ONNX)")
"""Units on GPUs that NVML may know of."""
SERVED_UNITS: Final = ("API",)
"""Units behind which a server has the model loaded: no launch loads it, so one is all."""
PROBE_LIMITS: Final = Limits(load_s=30, run_s=30)


class Zygote:
    """Where launches of one driver come from. Start it early; it costs nothing until its imports are done, in a process of its own.

    Keeps a preloaded process and, for GPU units, a bare one: a GPU context must not be made on one side of a fork and used on
    the other. A process that died is replaced at the next launch. Thread-safe.
    """

    def __init__(
        self,
        driver: str = "onnx",
        *,
        simulate: bool = False,
        can_fork: bool = CAN_FORK,
        tier: Tier | None = None,
        private: Mapping[str, str] | None = None,
        ahead: int = 0,
    ) -> None:
        """`tier`: how far each launch is shut in, or it fails; None: as far as it can be here. `private`: variables that the device's
        owner gives this driver and no other. `ahead`: launches that are prepared for while nothing runs."""
        self._ahead = ahead
        self.driver = driver
        self.simulate = simulate
        self._tier = "best" if tier is None else str(tier)
        self._private = dict(private or {})
        self._can_fork = can_fork
        self._lock = threading.Lock()
        self._processes: dict[bool, ZygoteProcess] = {}

    def start(self) -> Self:
        """Start the preloaded process now rather than at the first launch."""
        if self._can_fork:
            self._process(preload=MAY_PRELOAD)
        return self

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of what is running for it."""
        return tuple(process.pid for process in self._processes.values())

    def launch(self, order: WorkOrder, limits: Limits, job: str) -> Child:
        """Fork one launch. `job`: a `stopping.Job`."""
        told = frames.pack_order(order, limits, self.driver, self.simulate, job)
        if not self._can_fork:
            if self.driver in COMPILED:
                library.prepare(folder())
            return PlainChild(told, limits.output_bytes, self._private)
        preload = MAY_PRELOAD and job != MeasureJob.UNITS and not order.unit.startswith(child.UNLIMITED_UNITS)
        return self._process(preload).fork(told, limits.output_bytes)

    def _process(self, preload: bool) -> ZygoteProcess:
        with self._lock:
            running = self._processes.get(preload)
            if running is not None and running.alive:
                return running
            if running is not None:
                running.close()
            if self.driver in COMPILED:
                library.prepare(folder())
            self._processes[preload] = started = ZygoteProcess(
                self.driver,
                self.simulate,
                preload,
                self._tier,
                self._private,
                self._ahead if preload else 0,
            )
            return started

    def close(self) -> None:
        """End the processes. Launches still running are not waited for, but they end with this process at the latest."""
        with self._lock:
            while self._processes:
                self._processes.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start_zygote(driver: str = "onnx", *, simulate: bool = False) -> Zygote:
    """Begin importing the driver's runtime in a process of its own; close it (or leave the `with`) to end it."""
    return Zygote(driver, simulate=simulate).start()


class Launch:
    """All launches of one order: the full one first, then those that only time, or only load (`drivers.measure.stopping`). Use once."""

    def __init__(
        self,
        order: WorkOrder,
        limits: Limits,
        zygote: Zygote,
        quiet: IdleWait | None = None,
        sampler: Sampling | None = None,
    ) -> None:
        """`quiet`: waits for a busy host before the first launch; None: begins at once. `sampler`: reads the accelerator meanwhile;
        None: one that asks NVML, for units on GPUs.
        """
        self._order = replace(order, model=str(Path(order.model).absolute()))
        self._limits = limits
        self._zygote = zygote
        self._quiet = quiet
        self._sampler = sampler or (Sampler(order.gpu) if order.unit.startswith(SAMPLED_UNITS) else None)
        self._served = order.unit.startswith(SERVED_UNITS)
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._cancelled = threading.Event()
        self._left_s = limits.run_s

    def events(self) -> Iterator[Event]:
        """All events in order. First launch: `LoadReport`, `ModelDescription`, `MeasureReport`, `CheckReport`, warm `LoadReport`;
        for each other `LoadReport` and, where it has runs, `MeasureReport`; at last `Telemetry`, where an accelerator was read.

        Raises `Unfit`, `Crashed`, `TimedOut`, or `Cancelled` after `kill`. No process is left behind, however it ends.
        """
        measured: list[MeasureReport] = []
        if self._sampler is not None:
            self._sampler.start()
        try:
            for event in self._launches():
                if isinstance(event, MeasureReport):
                    measured.append(event)
                yield event
        finally:
            seen = self._sampler.stop(windows_of(measured)) if self._sampler is not None else None
        if seen is not None:
            yield seen

    def _launches(self) -> Iterator[Event]:
        plan = MeasurePlan(self._order, self._limits.run_s, self._served)
        waited = yield from self._until_quiet()
        cold = not self._served and pages.drop(Path(self._order.model))
        began = time.monotonic()
        done, total = 0, None if self._order.precision is not None else self._order.runs
        launch = plan.next(0.0)
        while launch is not None:
            for event in self._one(launch, cold):
                if isinstance(event, MeasureReport):
                    plan.measured(event.samples_ns)
                    done += len(event.samples_ns)
                if isinstance(event, ProgressReport) and event.phase is Phase.RUN:
                    event = replace(event, done=done + event.done, total=total)
                yield _beside(event, waited)
            cold = False
            launch = plan.next(time.monotonic() - began)

    def kill(self) -> None:
        """End the launch with every process below it; returns when they are gone. From any thread, any number of times."""
        with self._lock:
            self._cancelled.set()
            running = self._child
        if running is not None:
            running.kill()

    def _until_quiet(self) -> Generator[Event, None, IdleWaitReport]:
        if self._quiet is None:
            return IdleWaitReport(0.0, None)
        waiting = self._quiet.wait(self._cancelled.wait)
        while not self._cancelled.is_set():
            try:
                waited, most = next(waiting)
            except StopIteration as over:
                ended: IdleWaitReport = over.value
                return ended
            yield ProgressReport(Phase.PREPARE, int(waited), math.ceil(most))
        raise Cancelled("the run was cancelled")

    def _child_for(self, launch: LaunchPlanner) -> Child:
        order = replace(
            self._order,
            runs=max(1, launch.runs),
            window_s=launch.window_s,
            brief=launch.job is MeasureJob.AGAIN,
            check=self._order.check and launch.job is MeasureJob.RUN,
        )
        with self._lock:
            if self._cancelled.is_set():
                raise Cancelled("the run was cancelled")
            self._child = self._zygote.launch(order, self._limits, launch.job)
            return self._child

    def _one(self, launch: LaunchPlanner, cold: bool) -> Iterator[Event]:
        running = self._child_for(launch)
        clock = _Deadlines(self._limits.load_s, self._left_s, time.monotonic)
        answers = LaunchEvents(launch, served=self._served, cold=cold)
        ours = _Ours()
        told: tuple[str, str] | None = None
        why: DriverError | None = None
        words = ""
        try:
            for payload in running.frames(clock.deadline):
                said = frames.unpack(payload)
                if isinstance(said, tuple):
                    told = said
                elif isinstance(said, UnitInfo):
                    raise frames.Garbled("it offered a unit where an event was due")
                else:
                    event = answers.take(said)
                    if isinstance(event, LoadReport) or self._served:
                        clock.loaded()
                    yield ours.taken_off(event)
        except TimeoutError:
            why = TimedOut(f"{clock.exceeded(self._limits)}; killed with everything below it")
        except frames.Garbled as nonsense:
            why = Crashed(f"driver {self._zygote.driver!r} broke its contract: {nonsense}")
        finally:
            words = running.close()
        self._left_s = clock.left_s()
        if self._cancelled.is_set():
            raise Cancelled("the run was cancelled")
        if why is None and told is not None:
            why = FAILURES.get(told[0], Crashed)(told[1])
        if why is None and running.code != 0:
            why = death(running.code, words, self._limits)
        if why is None and (missing := answers.missing()):
            why = Crashed(f"driver {self._zygote.driver!r} broke its contract: it ended without {missing}")
        if why is not None:
            raise why


class _Ours:
    """This process works a little while its child measures: that is no other work."""

    def __init__(self) -> None:
        self._used_s = self._since_s = 0.0

    def taken_off(self, event: Event) -> Event:
        """The event, with our own processor time taken off what others are said to have used."""
        if isinstance(event, ProgressReport) and event.phase is Phase.WARM_UP and not self._since_s:
            self._used_s, self._since_s = time.process_time(), time.monotonic()
        if not isinstance(event, MeasureReport) or event.host.others_share is None or not self._since_s:
            return event
        used, span = time.process_time() - self._used_s, time.monotonic() - self._since_s
        share = host.without(event.host.others_share, used, span, os.cpu_count() or 1)
        return replace(event, host=replace(event.host, others_share=share))


def _beside(event: Event, waited: IdleWaitReport) -> Event:
    """The event with a note on what was seen of the host before the first launch. No more than a note: it is not of the timed window."""
    if waited.busy_share is None or not isinstance(event, ModelDescription):
        return event
    return replace(event, notes=(*event.notes, waited.note()))


class _Deadlines:
    """`load_s` until the load is over, then what is left of `run_s`, which all launches share."""

    def __init__(self, load_s: float, left_s: float, clock: Callable[[], float]) -> None:
        self._left_s = left_s
        self._clock = clock
        self._loaded: float | None = None
        self._until = clock() + load_s

    def deadline(self) -> float:
        return self._until

    def loaded(self) -> None:
        if self._loaded is None:
            self._loaded = self._clock()
            self._until = self._loaded + self._left_s

    def left_s(self) -> float:
        """For the launches to come."""
        return self._left_s if self._loaded is None else max(0.0, self._until - self._clock())

    def exceeded(self, limits: Limits) -> str:
        if self._loaded is None:
            return f"still loading after its limit of {limits.load_s:g} s"
        return f"still running after its limit of {limits.run_s:g} s"


def death(code: int | None, words: str, limits: Limits) -> Crashed:
    """How a process died, in one line: its exit code (negative for a signal), the last line it printed, a likely reason."""
    if code is None:
        end = "the process vanished"
    elif code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        end = f"killed by {name}"
    else:
        end = f"exit code {code}"
    starved = any(hint in words for hint in ("bad_alloc", "Cannot allocate memory", "MemoryError"))
    if starved:
        end += f", out of memory (limit {limits.memory_bytes // MIB} MiB)"
    last = words.splitlines()[-1].strip() if words else ""
    return (OutOfMemory if starved else Crashed)(f"{end}: {last}" if last else end)


def measure(order: WorkOrder, limits: Limits, zygote: Zygote) -> Iterator[Event]:
    """`Launch.events` for a caller that never cancels."""
    return Launch(order, limits, zygote).events()


@dataclass(frozen=True, slots=True)
class ProbedUnits:
    """The units that work here, and one line for each driver that does not."""

    units: tuple[UnitInfo, ...]
    troubles: tuple[str, ...]


def probe_units(
    simulate: bool = False,
    can_fork: bool = CAN_FORK,
    private: Mapping[str, Mapping[str, str]] | None = None,
    only: Collection[str] | None = None,
) -> ProbedUnits:
    """Try every installed driver in a child of its own. Takes about a second for each runtime: callers keep the answer.

    `private`: what the device's owner gives a driver, by its name; drivers that need that are not tried without. `only`: no others.
    """
    units: list[UnitInfo] = []
    troubles: list[str] = []
    given = private or {}
    for name in registry.names(simulate):
        if (name in registry.OWNED and not given.get(name)) or (only is not None and name not in only):
            continue
        try:
            with Zygote(name, simulate=simulate, can_fork=can_fork, private=given.get(name)) as zygote:
                units.extend(_units_of(zygote))
        except DriverError as why:
            troubles.append(f"driver {name!r}: {why}")
    return ProbedUnits(tuple(units), tuple(troubles))


def _units_of(zygote: Zygote) -> list[UnitInfo]:
    running = zygote.launch(WorkOrder(model="", unit=""), PROBE_LIMITS, MeasureJob.UNITS)
    until = time.monotonic() + PROBE_LIMITS.load_s
    found: list[UnitInfo] = []
    words = ""
    try:
        for payload in running.frames(lambda: until):
            said = frames.unpack(payload)
            if isinstance(said, tuple):
                raise FAILURES.get(said[0], Crashed)(said[1])
            if not isinstance(said, UnitInfo):
                raise frames.Garbled("an event where a unit was due")
            found.append(said)
    except TimeoutError:
        raise TimedOut(f"no answer within {PROBE_LIMITS.load_s:g} s") from None
    except frames.Garbled as nonsense:
        raise Crashed(f"it broke its contract: {nonsense}") from nonsense
    finally:
        words = running.close()
    if running.code != 0:
        raise death(running.code, words, PROBE_LIMITS)
    return found
