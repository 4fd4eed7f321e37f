"""Measures one order in fresh child processes, under limits enforced from outside.

    with Zygote("onnx").start() as zygote:
        for event in measure(order, limits, zygote):
            …

Everything here blocks; the node calls it from a worker thread and may call `Launch.kill` from any other.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Final, Self

from drivers.contract import frames, registry
from drivers.contract.base import (
    MAX_TEXT,
    AnswersReport,
    BetweenLaunches,
    Cancelled,
    Crashed,
    DriverError,
    Event,
    Limits,
    LoadReport,
    MeasureReport,
    ModelDescription,
    OutputReport,
    ProgressReport,
    RoundsReport,
    SustainedReport,
    TimedOut,
    UnitInfo,
    WorkOrder,
)
from drivers.contract.boot import folder
from drivers.contract.memory import drop_pages
from drivers.launch import child
from drivers.launch.deadlines import LaunchDeadlines
from drivers.launch.events import LaunchEvents, make_ready, received, replies
from drivers.launch.process import Child, ZygoteProcess
from drivers.launch.spawn import SpawnedChild
from drivers.launch.turns import TurnSide, take_turns
from drivers.measure import host
from drivers.measure.idle_wait import IdleWait, IdleWaitReport
from drivers.measure.metering import Metering
from drivers.measure.meters import Window
from drivers.measure.reader_process import interval_s
from drivers.measure.stopping import BRIEF_JOBS, IN_TURNS, NO_MODEL, LaunchPlanner, LaunchSpec, MeasureJob
from drivers.measure.telemetry import Sampler, stretches_of, windows_of
from drivers.native import library
from drivers.sandbox.enter import Tier
from protocol.formats.chain import NO_DIGEST, launch_digest, launch_seed
from protocol.formats.phase import Phase
from protocol.formats.sustain import recovery_s
from protocol.formats.turns import rounds_until_look

COMPILED: Final = frozenset({"onnx"})
"""Drivers that time with the native loop. The parent compiles the loop before any of their children starts."""
CAN_FORK: Final = sys.platform != "win32"
MAY_PRELOAD: Final = sys.platform == "linux"
"""Libraries of macOS may not be used on both sides of a fork: there the child does the imports."""
SAMPLED_UNITS: Final = (
    "GPU (ONNX)",
    "GPU (Torch)",
    "GPU (Transformers)",
    "GPU (llama.cpp)",
    "TensorRT (ONNX)",
    "GPU (TensorRT)",
)
"""Units on GPUs that NVML can read."""
SERVED_UNITS: Final = ("API",)
"""Units where a server has loaded the model: they need one launch only."""
MIN_WORK_S: Final = 1.0
"""Least time allowed for all launches together, however long the gaps between them are."""
ASKED_S: Final = 1.0
"""Longest time between two chances to stop a run in the gap between launches."""
PROBE_LIMITS: Final = Limits(load_s=30, run_s=30)

EnoughRounds = Callable[[Sequence[RoundsReport]], bool]
"""Whether the launches of models that took turns suffice to answer the comparison."""
AskReveal = Callable[[], tuple[bytes, bytes]]
"""Asks the party that ordered the measurement for the opening and the reveal of its chain; blocks."""


class Zygote:
    """Forks the launches of one driver. Start it early: it imports the driver's runtime in a process of its own.

    Keeps a preloaded process and, for GPU units, one without imports: a GPU context must not be made on one side of a fork and used on the
    other. A process that died is replaced at the next launch. Thread-safe.
    """

    def __init__(
        self,
        driver: str = "onnx",
        *,
        simulate: bool = False,
        can_fork: bool = CAN_FORK,
        tier: Tier | None = None,
        private: Mapping[str, str] | None = None,
        prefork: int = 0,
        device_lock: str = "",
        held: Callable[[], int] = lambda: -1,
    ) -> None:
        """`tier`: the sandbox of each launch, which fails without it; None: the best that works. `private`: environment variables of this
        driver alone. `prefork`: launches to prepare in advance while nobody holds the lock file `device_lock`; empty: while no launch of
        this zygote runs. `held`: descriptor of the lock file, open and locked, while this process has the device; else -1."""
        self._prefork, self._device_lock, self._held = prefork, device_lock, held
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
        return tuple(process.pid for process in self._processes.values())

    def launch(self, order: WorkOrder, limits: Limits, job: str, driver: str = "") -> Child:
        """Fork one launch. `job`: a `MeasureJob`. `driver`: another driver, for a job without a model."""
        packed = frames.pack_order(order, limits, driver or self.driver, self.simulate, job)
        if not self._can_fork:
            if self.driver in COMPILED:
                library.prepare(folder())
            return SpawnedChild(packed, limits.output_bytes, self._private)
        preload = MAY_PRELOAD and job not in NO_MODEL and not order.unit.startswith(child.UNLIMITED_UNITS)
        return self._process(preload).fork(packed, limits.output_bytes, in_turns=job in IN_TURNS)

    def prepare(self) -> None:
        """Prepare the next launch while the current one, which has nothing left to measure, ends. The zygote shares the device's lock until
        the next launch is prepared. Does nothing where launches are not prepared, or where this process does not have the device."""
        lock, process = self._held(), self._processes.get(True)
        if self._prefork and lock >= 0 and process is not None:
            process.prepare(lock)

    def _process(self, preload: bool) -> ZygoteProcess:
        with self._lock:
            running = self._processes.get(preload)
            if running is not None and running.alive:
                return running
            if running is not None:
                running.close()
            if self.driver in COMPILED:
                library.prepare(folder())
            prefork = self._prefork if preload else 0
            self._processes[preload] = started = ZygoteProcess(
                self.driver,
                self.simulate,
                preload,
                self._tier,
                self._private,
                prefork,
                self._device_lock,
            )
            return started

    def close(self) -> None:
        """End the processes. Does not wait for running launches, but they end with this process at the latest."""
        with self._lock:
            while self._processes:
                self._processes.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Launch:
    """All launches of one order: first the full one, then those that only time or only load (`drivers.measure.stopping`). Use once."""

    def __init__(
        self,
        order: WorkOrder,
        limits: Limits,
        zygote: Zygote,
        idle_wait: IdleWait | None = None,
        sampler: Sampler | None = None,
        reveal: AskReveal | None = None,
        enough: EnoughRounds | None = None,
        metering: Metering | None = None,
        beside: Sequence[Zygote] = (),
    ) -> None:
        """`idle_wait`: waits for an idle host before the first launch; None: start at once. `sampler`: reads the accelerator during the
        launches; None: NVML, for units on GPUs. `reveal`: the run is witnessed; called once, when nothing is left to wait for. `enough`:
        decides when to end the launches of an order with models in `beside`; None: after the first. `metering`: reads the host's other
        meters; None: they are not needed. `beside`: the zygote of each model in `WorkOrder.beside` that has a process of its own
        (`WorkOrder.beside_units`); empty: all models have the same driver."""
        make_ready()
        witnessed = order.witnessed or reveal is not None
        paths = tuple(str(Path(path).absolute()) for path in order.beside)
        self._order = replace(
            order,
            model=str(Path(order.model).absolute()),
            beside=paths,
            witnessed=witnessed,
            examples=order.examples and str(Path(order.examples).absolute()),
        )
        self._beside = tuple(beside)
        self._limits = limits
        self._enough = enough
        self._zygote = zygote
        self._idle_wait = idle_wait
        on_gpu, every_s = order.unit.startswith(SAMPLED_UNITS), interval_s(order.lasts_s)
        self._sampler = sampler or (Sampler(order.gpu, every_s=every_s) if on_gpu else None)
        self._metering = metering
        self._served = order.unit.startswith(SERVED_UNITS)
        self._lock = threading.Lock()
        self._children: list[Child] = []
        """Children of the current launch."""
        self._spans: list[Window] = []
        """Start and end of each launch that has ended."""
        self._cancelled = threading.Event()
        self._reveal = reveal
        self._left_s = self._work_s = max(MIN_WORK_S, limits.run_s - order.gaps_s)

    def events(self) -> Generator[Event]:
        """All events in order. First launch: `LoadReport`, `OutputReport`, `ModelDescription`, `MeasureReport`, `CheckReport`, warm
        `LoadReport`. Each further launch: `LoadReport` and, if it has runs, `MeasureReport`, after its `OutputReport` if the run is
        witnessed. `BetweenLaunches` comes before each further launch, and in each second of a gap. After all launches: the `AnswersReport`
        of an order with examples, `Telemetry` if an accelerator was read, and the `MeterReport`s of `metering`.

        Raises `Unfit`, `Crashed`, `TimedOut`, or `Cancelled` after `kill`. No process is left behind.
        """
        measured: list[MeasureReport] = []
        windows: tuple[Window, ...] = ()
        stretches: tuple[Window, ...] = ()
        if self._sampler is not None:
            self._sampler.start()
        if self._metering is not None:
            self._metering.start()
        try:
            for event in self._launches():
                if isinstance(event, MeasureReport):
                    measured.append(event)
                if isinstance(event, SustainedReport):
                    stretches = stretches_of(measured[-1], event)
                yield event
            windows = windows_of(measured)  # a failed run needs no sums
        finally:
            telemetry = None
            if self._sampler is not None:
                telemetry = self._sampler.stop(windows, stretches, self._spans)
            wait = self._cancelled.wait
            meters = [] if self._metering is None else self._metering.stop(windows, stretches, wait)
        if telemetry is not None:
            yield telemetry
        yield from meters

    def _launches(self) -> Iterator[Event]:
        rounds: list[RoundsReport] = []
        plan = LaunchPlanner(
            self._order,
            self._limits.run_s,
            self._served,
            enough=lambda: self._enough is None or self._enough(rounds),
        )
        idle = yield from self._wait_for_idle()
        cold = not self._served and drop_pages(Path(self._order.model))
        chain = None if self._reveal is None else LaunchChain(*self._reveal())
        began = time.monotonic()
        first_window: float | None = None
        counted = self._order.precision is None and not self._order.beside
        done, total = 0, self._order.runs if counted else None
        if self._order.sustain_s is not None:
            total = math.ceil(self._order.sustain_s + recovery_s(self._order.sustain_s))
        launch = plan.next(0.0)
        while launch is not None:
            if chain is not None and launch.job is not MeasureJob.LOAD:
                self._order = replace(self._order, seed=chain.next_seed())
            for event in self._run_one(launch, cold):
                if isinstance(event, OutputReport) and chain is not None:
                    chain.add(event)
                if isinstance(event, MeasureReport):
                    if not event.began_ns:  # its driver does not report it
                        event = replace(event, began_ns=time.perf_counter_ns() - round(event.wall_s * 1e9))
                    plan.measured(event.samples_ns)
                    first_window = first_window or time.monotonic() - event.wall_s
                    done += len(event.samples_ns)
                if isinstance(event, RoundsReport):
                    rounds.append(event)
                    total = rounds_until_look(len(rounds), sum(len(each.wall_ns[0]) for each in rounds))
                if isinstance(event, ProgressReport) and event.phase is Phase.RUN:
                    event = replace(event, done=done + event.done, total=total)
                yield _with_idle_note(event, idle)
            cold = False
            launch = plan.next(time.monotonic() - began)
            if launch is not None:
                yield from self._wait_until(
                    launch.at_s if first_window is None else first_window + launch.at_s
                )
                ready = time.monotonic()
                yield BetweenLaunches()
                began += time.monotonic() - ready  # others had the device: this time is not the run's
        if self._order.examples:
            yield from self._answer()

    def _answer(self) -> Iterator[Event]:
        """Run the launch for the examples. The measured results stay valid if it fails. The examples get the order's full time limits."""
        self._left_s = self._work_s
        try:
            for event in self._run_one(LaunchSpec(MeasureJob.ANSWER), cold=False):
                if isinstance(event, (ProgressReport, AnswersReport)):
                    yield event
        except Cancelled:
            raise
        except DriverError as why:
            yield AnswersReport(why=str(why)[:MAX_TEXT])

    def kill(self) -> None:
        """End the launch with every process below it; returns when they are gone. Any thread may call it, any number of times."""
        with self._lock:
            self._cancelled.set()
            running = tuple(self._children)
        for each in running:
            each.kill()

    def _wait_for_idle(self) -> Generator[Event, None, IdleWaitReport]:
        if self._idle_wait is None:
            return IdleWaitReport(0.0, None)
        steps = self._idle_wait.wait(self._cancelled.wait)
        while not self._cancelled.is_set():
            try:
                waited, most = next(steps)
            except StopIteration as end:
                report: IdleWaitReport = end.value
                return report
            yield ProgressReport(Phase.PREPARE, int(waited), math.ceil(most))
        raise Cancelled("the run was cancelled")

    def _wait_until(self, until: float) -> Generator[Event]:
        """Wait until `until`, in seconds of the monotonic clock. A run that may be stopped between launches may be stopped here too."""
        while (left_s := until - time.monotonic()) > 0:
            yield BetweenLaunches(left_s)
            if self._cancelled.wait(min(left_s, ASKED_S)):
                raise Cancelled("the run was cancelled")

    def _start(self, order: WorkOrder, limits: Limits, zygote: Zygote, launch: LaunchSpec) -> Child:
        """Start a child of this launch, for one model or for all models that share a process."""
        full = launch.job in (MeasureJob.RUN, MeasureJob.ROUNDS, MeasureJob.TURNS, MeasureJob.SUSTAIN)
        order = replace(
            order,
            runs=max(1, launch.runs),
            window_s=launch.window_s,
            brief=launch.job in BRIEF_JOBS,
            check=order.check and full,
        )
        with self._lock:
            if self._cancelled.is_set():
                raise Cancelled("the run was cancelled")
            self._children.append(zygote.launch(order, limits, launch.job))
            return self._children[-1]

    def _run_one(self, launch: LaunchSpec, cold: bool) -> Iterator[Event]:
        with self._lock:
            self._children.clear()
        clock = LaunchDeadlines(self._limits.load_s, self._left_s)
        own_cpu = _OwnCpu()
        failure: DriverError | None = None
        began_ns = time.perf_counter_ns()
        try:
            for event in (self._in_turns if launch.job in IN_TURNS else self._alone)(launch, cold, clock):
                yield own_cpu.subtract(event)
        except TimeoutError:
            failure = TimedOut(f"{clock.exceeded(self._limits)}; killed with everything below it")
        except frames.Garbled as why:
            failure = Crashed(f"driver {self._zygote.driver!r} broke its contract: {why}")
        except DriverError as why:
            failure = why
        self._spans.append((began_ns, time.perf_counter_ns()))
        self._left_s = clock.left_s()
        if self._cancelled.is_set():
            raise Cancelled("the run was cancelled")
        if failure is not None:
            raise failure

    def _alone(self, launch: LaunchSpec, cold: bool, clock: LaunchDeadlines) -> Iterator[Event]:
        """Run one child for all models."""
        running = self._start(self._order, self._limits, self._zygote, launch)
        checker = LaunchEvents(
            launch,
            served=self._served,
            cold=cold,
            witnessed=self._order.witnessed,
            beside=len(self._order.beside),
        )
        prepared = False
        with contextlib.closing(received(running, clock.deadline, self._limits)) as messages:
            for message in messages:
                event = checker.take(message)
                if isinstance(event, LoadReport) or self._served:
                    clock.loaded()
                if checker.over and not prepared:
                    prepared = True
                    self._zygote.prepare()
                yield event
        if missing := checker.missing():
            raise frames.Garbled(f"it ended without {missing}")

    def _in_turns(self, launch: LaunchSpec, cold: bool, clock: LaunchDeadlines) -> Iterator[Event]:
        """Run a child for each model. Together they may use the memory of one."""
        order = self._order
        beside = zip(order.beside, order.beside_units, self._beside or repeat(self._zygote), strict=False)
        models = [*beside, (order.model, order.unit, self._zygote)]
        limits = replace(self._limits, memory_bytes=self._limits.memory_bytes // len(models))
        sides = []
        for slot, (model, unit, zygote) in enumerate(models, start=1):
            own = slot == len(models)
            alone = replace(
                order, model=model, unit=unit, slot=0 if own else slot, beside=(), beside_units=()
            )
            start = partial(self._start, alone, limits, zygote, launch)
            sides.append(TurnSide(unit, start, LaunchEvents(launch, served=False, cold=cold and own)))
        yield from take_turns(sides, launch, limits, clock, random.Random())


@dataclass(slots=True)
class LaunchChain:
    """State of a witnessed run's chain."""

    opening: bytes
    reveal: bytes
    launches: int = 0
    digest: bytes = NO_DIGEST
    """Digest of the last launch."""

    def next_seed(self) -> int:
        """The seed of the next launch that times inferences."""
        self.launches += 1
        secret = self.opening if self.launches == 1 else self.reveal
        return launch_seed(secret, self.launches, self.digest)

    def add(self, report: OutputReport) -> None:
        """Add a launch's outputs to the chain."""
        self.digest = digest_of(report)


def digest_of(report: OutputReport) -> bytes:
    """The digest of one launch's outputs: see `protocol.formats.chain`."""
    sketches = ((one.dtype, one.count, one.norm, bytes.fromhex(one.sums)) for one in report.sketches)
    return launch_digest(report.output_sha256, sketches)


class _OwnCpu:
    """Subtracts the little processor time that this process uses while its child measures: it does not count as other processes' load."""

    def __init__(self) -> None:
        self._used_s = self._since_s = 0.0

    def subtract(self, event: Event) -> Event:
        """The event, with this process's own processor time removed from `others_share`."""
        if isinstance(event, ProgressReport) and event.phase is Phase.WARM_UP and not self._since_s:
            self._used_s, self._since_s = time.process_time(), time.monotonic()
        if not isinstance(event, MeasureReport) or event.host.others_share is None or not self._since_s:
            return event
        used, span = time.process_time() - self._used_s, time.monotonic() - self._since_s
        share = host.subtract_own_share(event.host.others_share, used, span, os.cpu_count() or 1)
        return replace(event, host=replace(event.host, others_share=share))


def _with_idle_note(event: Event, idle: IdleWaitReport) -> Event:
    """The event with a note on the host before the first launch. It is a note and not a figure, because it is not about the timed
    window."""
    if idle.busy_share is None or not isinstance(event, ModelDescription):
        return event
    return replace(event, notes=(*event.notes, idle.note()))


def measure(order: WorkOrder, limits: Limits, zygote: Zygote) -> Iterator[Event]:
    """`Launch.events` for callers that never cancel."""
    return Launch(order, limits, zygote).events()


@dataclass(frozen=True, slots=True)
class ProbedUnits:
    """The units that work on this device, and one line for each driver that does not work."""

    units: tuple[UnitInfo, ...]
    troubles: tuple[str, ...]
    sure: bool = True
    """Each driver has answered: none was killed or took too long."""


def probe_units(
    simulate: bool = False,
    can_fork: bool = CAN_FORK,
    private: Mapping[str, Mapping[str, str]] | None = None,
    only: Collection[str] | None = None,
) -> ProbedUnits:
    """Try every installed driver in a child of its own. Drivers without private variables are forked from one process. Takes about a second
    per runtime: cache the result.

    `private`: environment variables by driver; drivers that need some are not tried without them. `only`: try no other drivers.
    """
    units: list[UnitInfo] = []
    troubles: list[str] = []
    sure = True
    private = private or {}
    order = WorkOrder(model="", unit="")  # without a model there is no sandbox
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(
            Zygote(registry.NO_DRIVER, simulate=simulate, can_fork=can_fork, tier=Tier.NONE)
        )
        for name in registry.names(simulate):
            own = private.get(name)
            if (name in registry.OWNED and not own) or (only is not None and name not in only):
                continue
            zygote = shared
            if own:
                zygote = stack.enter_context(
                    Zygote(name, simulate=simulate, can_fork=can_fork, tier=Tier.NONE, private=own)
                )
            try:
                running = zygote.launch(order, PROBE_LIMITS, MeasureJob.UNITS, name)
                for reply in replies(running, PROBE_LIMITS):
                    if not isinstance(reply, UnitInfo):
                        raise Crashed("it broke its contract: an event where a unit was due")
                    units.append(reply)
            except DriverError as why:
                troubles.append(f"driver {name!r}: {why}")
                sure = sure and why.permanent
    return ProbedUnits(tuple(units), tuple(troubles), sure)
