"""The one place where a protocol task becomes a driver's work order, and the driver's events become a record.

    run(job, bench, stop, report)     fetch ─▶ wait for the device ─▶ launch in a thread ─▶ Record, whatever happened

A stopped run returns once its processes are dead. The record is not signed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import structlog
import trio
from pydantic import ValidationError

from drivers.contract.base import (
    BetweenLaunches,
    Cancelled,
    DriverError,
    Event,
    Limits,
    OutputReport,
    ProgressReport,
    WorkOrder,
)
from drivers.launch.launch import digest_of
from drivers.measure.stopping import CHECKED_AFTER
from node.device.calibration import FLOOR_UNKNOWN
from node.device.lock import DeviceLock
from node.run.device_hold import DeviceHold, hold
from node.run.record_builder import RecordJob, RunEnd, RunObservations, end_of, failed
from node.store.cache import Progress as FetchProgress
from protocol.errors import ResourceError, RunError, first_error
from protocol.formats.phase import Phase
from protocol.values.record import DeviceFacts, Record
from protocol.values.task import Model, Task
from protocol.words import Reason, RunOutcome
from swarm.base.threads import COMPUTING, WAITING

log = structlog.get_logger("sark.runner")


class RunLauncher(Protocol):
    """The part of `drivers.launch.launch.Launch` that the runner needs. Both methods block."""

    def events(self) -> Generator[Event]: ...

    def kill(self) -> None: ...


PROGRESS_S: Final = 0.1

Report = Callable[[Phase, int, int | None, float | None], None]
"""Called in trio's loop with (phase, done, total, median in ms)."""
Timing = Callable[[bool], None]
"""Called in trio's loop when a timed measurement begins (True) or ends (False) inside a launch."""


BetweenRunLaunches = Callable[[], None]
"""Called in trio's loop when a launch is over. The next launch waits for it to return, and does not begin if the run was stopped."""


class RunWitness(Protocol):
    """The scheduler of a witnessed run, as the run sees it."""

    async def reveal(self) -> tuple[bytes, bytes]:
        """Opening and reveal of the chain. Raises `RunError` if they are refused."""
        ...

    def launch_ended(self, launch: int, digest: str) -> None:
        """A launch has finished its inferences. Never waits."""
        ...


async def _at_once() -> None:
    """For nodes without work of their own that could disturb."""


async def _no_manifest(job: RecordJob) -> None:
    """For runs without a manifest."""


@dataclass(frozen=True)
class RunBench:
    """Everything that a run uses."""

    worker: str
    """The peer id written to the record."""
    facts: Callable[[], DeviceFacts]
    model: Callable[[RecordJob, Model, FetchProgress], AbstractAsyncContextManager[Path]]
    """Provides the file of one of the task's models, fetched if necessary. The file stays until the block ends."""
    lock: DeviceLock
    launch: Callable[..., RunLauncher]
    """Makes a launch from an order and limits; for a witnessed run, also from the function that asks for the reveal (`Launch`)."""
    memory_cap: int
    """Bytes that a run may take here, whatever its task allows."""
    exclusive: trio.Lock = field(default_factory=trio.Lock)
    """Held while a model is fetched, and while a launch measures a model, because these disturb each other."""
    wait_idle: Callable[[], Awaitable[None]] = _at_once
    """Waits until this node's own work (results going to disk) cannot disturb a measurement."""
    fetch_manifest: Callable[[RecordJob], Awaitable[None]] = _no_manifest
    """Fetches the campaign's manifest. Never fails or takes long."""
    warmup_floor: Callable[[str], int] = lambda unit: FLOOR_UNKNOWN
    """Fewest inferences that a unit of this device needs before its times settle, according to the calibration."""
    clock: Callable[[], float] = time.monotonic
    first_look: Callable[[str, float], int] = lambda unit, precision: CHECKED_AFTER[0]
    """Launches of a unit before an interval may reach this precision, according to the device's calibration."""


class StopRun:
    """A handle to end a run from outside."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.reason: Reason | None = None

    def now(self, reason: Reason) -> None:
        """End the run. The first reason counts."""
        if self.reason is None:
            self.reason = reason
            self.scope.cancel()


def work_order(
    task: Task,
    model: str,
    stranger: bool = False,
    floor: int = FLOOR_UNKNOWN,
    beside: Sequence[Path] = (),
    look: int = CHECKED_AFTER[0],
    examples: Path | None = None,
) -> WorkOrder:
    """The task as a driver's work order. `floor`: the least warm-up, if the task does not set one. `beside`: the task's other models.
    `look`: launches before the precision is judged for the first time."""
    measure: dict[str, Any] = {**task.measure.to_wire(), "own_dims": task.measure.required_dims()}
    return WorkOrder(
        model=model,
        unit=task.unit,
        warmup_floor=floor,
        trusted=not stranger,
        beside=tuple(map(str, beside)),
        beside_units=task.beside_units or (),
        first_look=look,
        examples="" if examples is None else str(examples),
        **measure,
    )


def limits(task: Task, memory_cap: int) -> Limits:
    """The limits enforced from outside: the task's own limits, and its memory for each of its models, but never more than `memory_cap`."""
    memory = task.memory * (1 + len(task.beside or ())) + (2 * task.examples.size if task.examples else 0)
    return Limits(
        load_s=task.timeouts.load_s, run_s=task.timeouts.run_s, memory_bytes=min(memory, memory_cap)
    )


async def run(
    job: RecordJob,
    bench: RunBench,
    stop: StopRun,
    report: Report,
    timing: Timing = lambda on: None,
    witness: RunWitness | None = None,
    between: BetweenRunLaunches = lambda: None,
    holding: Timing = lambda on: None,
) -> Record:
    """Run one attempt to its end. Never raises for anything that a model, a driver or a scheduler does. `holding`: called in trio's loop
    when the run has the device (True), and when others may have it (False).
    """
    observations = RunObservations(lasting=job.task.measure.sustain_s is not None)
    observations.enter("queue", bench.clock() - job.waited_s)

    def may_go_on() -> bool:
        between()
        return stop.reason is None

    try:
        end = None
        with stop.scope:
            end = await _attempt(job, bench, observations, report, timing, witness, may_go_on, holding)
        observations.enter("", bench.clock())
        if stop.reason is not None and (end is None or end.outcome is RunOutcome.CANCELLED):
            end = RunEnd(RunOutcome.CANCELLED, stop.reason, detail=f"stopped: {stop.reason}")
        assert end is not None, "only a stop ends a run without an end"
        # packing a million samples takes a second, too long for trio's loop
        return await COMPUTING.run(_record, observations, job, end, bench)
    except Exception as exc:  # a bug costs this run, not the node with all other runs
        log.exception("run.broke", task=job.task.task)
        end = failed(Reason.CRASHED, f"sark-node failed, not the model: {_first(exc)!r}; its log says where")
        return _failure_record(observations, job, end, bench)


def _first(exc: Exception) -> Exception:
    return first_error(exc) if isinstance(exc, ExceptionGroup) else exc


def _record(observations: RunObservations, job: RecordJob, end: RunEnd, bench: RunBench) -> Record:
    """The record of the observations, or of a failure if no record can hold the driver's report."""
    try:
        return observations.record(job, end, bench.worker, bench.facts())
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        field_name = ".".join(str(part) for part in first["loc"])
        why = f"the driver reported a value that no record can hold: {field_name}: {first['msg']}"
        return _failure_record(observations, job, failed(Reason.CRASHED, why), bench)


def _failure_record(observations: RunObservations, job: RecordJob, end: RunEnd, bench: RunBench) -> Record:
    """The record of a failure, with the duration of each stage but without other observations."""
    return RunObservations(stages=observations.stages).record(job, end, bench.worker, bench.facts())


async def _attempt(
    job: RecordJob,
    bench: RunBench,
    observations: RunObservations,
    report: Report,
    timing: Timing,
    witness: RunWitness | None,
    may_go_on: Callable[[], bool],
    holding: Timing,
) -> RunEnd:
    task = job.task
    progress = ProgressReporter(report, bench.clock)
    try:
        async with AsyncExitStack() as held:
            paths: list[Path] = []
            async with hold(bench.exclusive, lambda: progress(Phase.QUEUED)):
                observations.enter("fetch", bench.clock())
                progress(Phase.FETCH)
                files = task.files()
                with trio.move_on_after(task.timeouts.fetch_s):
                    for model in files:
                        fetching = bench.model(job, model, partial(progress, Phase.FETCH))
                        path = await held.enter_async_context(fetching)
                        paths.append(path)
                if len(paths) < len(files):
                    return failed(
                        Reason.FETCH_FAILED,
                        f"{files[len(paths)].name} did not arrive within the fetch limit of {task.timeouts.fetch_s:g} s",
                    )
                await bench.fetch_manifest(job)
            observations.enter("queue", bench.clock())

            def on_wait() -> None:
                observations.enter("queue", bench.clock())
                progress(Phase.QUEUED)

            device = DeviceHold(bench.exclusive, bench.lock, bench.wait_idle, on_wait, holding)
            held.push_async_callback(device.give)
            await device.take()
            observations.enter("prepare", bench.clock())
            progress(Phase.PREPARE)
            examples = None if task.examples is None else paths.pop()
            own, *beside = paths
            order = work_order(
                task,
                str(own),
                job.stranger,
                max(map(bench.warmup_floor, task.units())),
                beside,
                bench.first_look(task.unit, task.measure.precision or 1.0),
                examples,
            )
            asked = () if witness is None else (_ask_from_thread(witness, observations),)
            launch = bench.launch(order, limits(task, bench.memory_cap), *asked)
            problem = await _measure(
                launch, device, observations, progress, timing, bench.clock, witness, may_go_on
            )
    except RunError as exc:
        hint = f"; {exc.hint}" if exc.hint else ""
        return failed(exc.reason, exc.what + hint, permanent=exc.permanent)
    except ResourceError as exc:
        return failed(Reason.CRASHED, exc.what)
    return problem or observations.verdict(task)


def _ask_from_thread(witness: RunWitness, observations: RunObservations) -> Callable[[], tuple[bytes, bytes]]:
    """A function that asks for the reveal from the thread that follows the launches, and stores it for the record."""

    def ask() -> tuple[bytes, bytes]:
        observations.opening, observations.reveal = trio.from_thread.run(witness.reveal)
        return observations.opening, observations.reveal

    return ask


async def _measure(
    launch: RunLauncher,
    device: DeviceHold,
    observations: RunObservations,
    progress: ProgressReporter,
    timing: Timing,
    clock: Callable[[], float],
    witness: RunWitness | None,
    may_go_on: Callable[[], bool],
) -> RunEnd | None:
    """Follow all launches in a thread, while `device` is held. Cancelling kills the launch, and returns once it is dead."""
    token = trio.lowlevel.current_trio_token()
    ended = False

    def follow() -> RunEnd | None:
        timed = False
        launches = 0
        try:
            # closing ends the processes, whatever is raised here
            with contextlib.closing(launch.events()) as events:
                for event in events:
                    now = clock()
                    if witness is not None and isinstance(event, OutputReport):
                        launches += 1
                        with contextlib.suppress(trio.RunFinishedError):
                            token.run_sync_soon(witness.launch_ended, launches, digest_of(event).hex())
                    observations.add(event, now)
                    if isinstance(event, BetweenLaunches):
                        timed = False
                        trio.from_thread.run(device.between_launches, event.gap_s)
                        if not trio.from_thread.run_sync(may_go_on):
                            raise Cancelled("the run was stopped between two launches")
                    elif observations.timed is not timed:
                        timed = observations.timed
                        with contextlib.suppress(trio.RunFinishedError):
                            token.run_sync_soon(timing, timed)
                    if isinstance(event, ProgressReport) and progress.is_due(event.phase, now):
                        what = (event.phase, event.done, event.total, event.median_ms)
                        with contextlib.suppress(trio.RunFinishedError):
                            token.run_sync_soon(progress.send, *what)
        except DriverError as exc:
            return end_of(exc)
        except RunError as exc:
            return failed(exc.reason, exc.what)
        except ResourceError as exc:
            return failed(Reason.CRASHED, exc.what)
        except OSError as exc:  # this device's disk, open files or processes
            return failed(Reason.CRASHED, f"this device could not continue the run: {exc.strerror or exc}")
        return None

    async def kill_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            if not ended:
                with trio.CancelScope(shield=True):
                    await WAITING.run(launch.kill)

    problem: RunEnd | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill_when_cancelled)
        problem = await WAITING.run(follow)
        ended = True
        nursery.cancel_scope.cancel()
    return problem


class ProgressReporter:
    """Passes on a run's progress: the first report of each phase, then at most one each `PROGRESS_S` seconds."""

    def __init__(self, report: Report, clock: Callable[[], float]) -> None:
        self._report = report
        self._clock = clock
        self._phase: Phase | None = None
        self._last = 0.0

    def __call__(self, phase: Phase, done: int = 0, total: int | None = None) -> None:
        if self.is_due(phase, self._clock()):
            self.send(phase, done, total, None)

    def is_due(self, phase: Phase, now: float) -> bool:
        if phase is self._phase and now - self._last < PROGRESS_S:
            return False
        self._phase, self._last = phase, now
        return True

    def send(self, phase: Phase, done: int, total: int | None, median_ms: float | None) -> None:
        try:
            self._report(phase, done, total, median_ms)
        except ValidationError as exc:
            log.warning("progress.unfit", why=str(exc).splitlines()[0])
