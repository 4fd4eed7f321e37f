"""A task becomes a launch, and what the launch showed becomes a record."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from drivers.contract.base import (
    BesideReport,
    BetweenLaunches,
    Cancelled,
    CheckReport,
    Crashed,
    DriverError,
    Event,
    HostState,
    Limits,
    LoadKind,
    LoadReport,
    MeasureReport,
    ModelDescription,
    OperatorReport,
    OutOfMemory,
    OutputReport,
    ProgressReport,
    SampleBlock,
    TimedOut,
    Unfit,
    WorkOrder,
    WrongUnit,
)
from drivers.launch.launch import AskReveal, Launch, Zygote, digest_of
from node.device.lock import DeviceLock
from node.run.record_builder import RecordJob, RunObservations, end_of
from node.run.runner import ProgressReporter, RunBench, StopRun, limits, run, work_order
from node.store.cache import ModelCache, Source
from protocol.errors import RunError
from protocol.formats.phase import Phase
from protocol.values.lease import Fence
from protocol.values.record import (
    BLOCK_FIELDS,
    DeviceFacts,
    HostLoad,
    Record,
    read_record,
    record_body,
    unpack_samples,
)
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts
from protocol.words import Reason, RunOutcome

WORKER = "12D3KooWAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAn"
CPU = "CPU (ONNX)"
CONTENT = b"a model"


def task(content: bytes = CONTENT, **changes: Any) -> Task:
    fields: dict[str, Any] = {
        "campaign": "c-1",
        "task": "c-1/1",
        "scheduler": WORKER,
        "model": Model(name="m.onnx", sha256=hashlib.sha256(content).hexdigest(), size=len(content)),
        "unit": CPU,
        "requirement": Requirement(),
        "measure": Measure(runs=10, loads=1),
        "timeouts": Timeouts(),
    }
    return Task(**(fields | changes))


def job(what: Task) -> RecordJob:
    return RecordJob("w-1.1", Fence(incarnation=1, number=1), 1, what, "0" * 64, waited_s=2.0)


def source_of(content: bytes) -> Source:
    async def source(offset: int, sink: Any, progress: Any) -> None:
        sink(bytearray(content[offset:]))
        progress(len(content), len(content))

    return source


class ScriptedLaunch:
    """A launch that yields these events and then raises, or waits to be killed."""

    def __init__(self, *events: Event, then: DriverError | None = None, hangs: bool = False) -> None:
        self._events, self._then, self._hangs = events, then, hangs
        self.started = threading.Event()
        self._killed = threading.Event()
        self.dead = False

    def events(self) -> Iterator[Event]:
        self.started.set()
        yield from self._events
        if self._hangs:
            self._killed.wait(5)
            self.dead = True
            raise Cancelled("the run was cancelled")
        if self._then is not None:
            raise self._then

    def kill(self) -> None:
        self._killed.set()


def described(unit: str = CPU, *providers: str) -> ModelDescription:
    return ModelDescription(
        unit, "onnx", "onnxruntime 1", providers or ("CPUExecutionProvider",), 2, {"x": (1,)}, {"x": "f"}, 0
    )


MEASURED = MeasureReport((3, 1, 2), (9,), 0.1, 0.2, 300, 40, 1)
CHECKED = CheckReport(True, "0" * 64, 1e-6, 1e-4)
LOADED = LoadReport(5, 100, 200)


def bench(folder: Path, launch: Any, content: bytes = CONTENT, **changes: Any) -> RunBench:
    cache = ModelCache(folder / "cache", 10**9, free=lambda path: 10**12)
    source = changes.pop("source", lambda what: source_of(content))
    fields: dict[str, Any] = {
        "worker": WORKER,
        "facts": lambda: DeviceFacts(device="d-1", name="lab"),
        "model": lambda what, model, progress: cache.using(model, source(what), progress),
        "lock": DeviceLock("d-1", folder),
        "launch": launch,
        "memory_cap": 2 * 1024**3,
    }
    return RunBench(**(fields | changes))


async def record_of(folder: Path, launch: ScriptedLaunch, what: Task | None = None) -> Record:
    made = await run(
        job(what or task()), bench(folder, lambda order, limits: launch), StopRun(), lambda *progress: None
    )
    assert read_record(record_body(made)) == made, "what is recorded can be sent"
    return made


def test_a_task_becomes_a_work_order_word_for_word() -> None:
    measure = Measure(runs=7, loads=3, warmup=2, threads=4, dims={"batch": 8}, seed=5, check=False)
    assert work_order(task(measure=measure), "/m") == WorkOrder("/m", CPU, 7, 3, 2, 4, {"batch": 8}, 5, False)
    sizes = Measure(dims={"width": 9, "batch": 8}, own_dims=(1,))
    assert work_order(task(measure=sizes), "/m").own_dims == ("width",)


def test_limits_are_the_tasks_and_never_more_than_the_device_gives() -> None:
    what = task(memory=8 * 1024**3, timeouts=Timeouts(load_s=11, run_s=12))
    assert limits(what, 2 * 1024**3) == Limits(11, 12, 2 * 1024**3)
    assert limits(what, 10**12).memory_bytes == 8 * 1024**3


async def test_a_run_is_recorded_raw(tmp_path: Path) -> None:
    record = await record_of(
        tmp_path, ScriptedLaunch(ProgressReport(Phase.LOAD), LOADED, described(), MEASURED, CHECKED)
    )
    assert record.outcome is RunOutcome.COMPLETE
    assert record.timings
    assert unpack_samples(record.timings[0].samples) == (3, 1, 2)
    assert (record.timings[0].baseline, record.timings[0].peak, record.timings[0].switches) == (100, 300, 1)
    assert [load.ns for load in record.loads] == [5]
    assert record.ran is not None
    assert (record.ran.agrees, record.ran.providers) == (True, ("CPUExecutionProvider",))
    stages = {stage.stage: stage.seconds for stage in record.stages}
    assert list(stages) == ["queue", "fetch", "prepare", "load"]
    assert stages["queue"] >= 2.0


@pytest.mark.parametrize(
    ("error", "reason", "permanent"),
    [
        (Unfit("the model file is corrupt"), Reason.BROKEN_MODEL, True),
        (WrongUnit("asked for GPU (ONNX), session runs on CPUExecutionProvider"), Reason.WRONG_UNIT, False),
        (Crashed("killed by SIGSEGV"), Reason.CRASHED, False),
        (Unfit("asked for nothing: this model is broken"), Reason.BROKEN_MODEL, True),
        (Crashed("exit code 1: the node 'out of memory' is unhappy"), Reason.CRASHED, False),
        (OutOfMemory("exit code 1, out of memory (limit 512 MiB)"), Reason.OUT_OF_MEMORY, False),
        (TimedOut("still running after its limit of 1 s"), Reason.TIMED_OUT, False),
    ],
)
async def test_a_drivers_error_becomes_a_reason(
    tmp_path: Path, error: DriverError, reason: Reason, permanent: bool
) -> None:
    record = await record_of(tmp_path, ScriptedLaunch(LOADED, then=error))
    assert (record.outcome, record.reason, record.permanent) == (RunOutcome.FAILED, reason, permanent)
    assert record.detail == str(error)
    assert len(record.loads) == 1


def test_a_cancelled_launch_is_no_failure() -> None:
    assert end_of(Cancelled("x")).outcome is RunOutcome.CANCELLED


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        (described(CPU, "CUDAExecutionProvider"), Reason.WRONG_UNIT),
        (described("GPU (ONNX)", "CUDAExecutionProvider"), Reason.WRONG_UNIT),
    ],
)
async def test_a_unit_that_did_not_run_the_model_is_failed_whatever_the_driver_says(
    tmp_path: Path, description: ModelDescription, reason: Reason
) -> None:
    record = await record_of(tmp_path, ScriptedLaunch(LOADED, description, MEASURED, CHECKED))
    assert (record.outcome, record.reason, record.permanent) == (RunOutcome.FAILED, reason, False)
    assert "asked for CPU (ONNX)" in record.detail


async def test_outputs_that_differ_are_kept_with_their_times_and_marked(tmp_path: Path) -> None:
    checked = CheckReport(False, "", float("nan"), None, "NaN", "y: NaN")
    record = await record_of(tmp_path, ScriptedLaunch(LOADED, described(), MEASURED, checked))
    assert (record.outcome, record.reason) == (RunOutcome.COMPLETE, None)
    assert record.timings
    assert record.ran is not None
    assert (record.ran.agrees, record.ran.compared, record.ran.max_error) == (False, "y: NaN", None)


@pytest.mark.parametrize(
    "events",
    [
        (LoadReport(2**60, 1, 2), described(), MEASURED, CHECKED),
        (LOADED, replace(described(), threads=2**20), MEASURED, CHECKED),
        (LOADED, replace(described(), notes=("\ud800",)), MEASURED, CHECKED),
        (LOADED, described(), replace(MEASURED, cpu_s=1e9), CHECKED),
        (LOADED, described(), MEASURED, replace(CHECKED, output_sha256="abc")),
    ],
)
async def test_what_no_record_can_hold_fails_the_run_and_not_the_node(
    tmp_path: Path, events: tuple[Event, ...]
) -> None:
    record = await record_of(tmp_path, ScriptedLaunch(*events))
    assert (record.outcome, record.reason) == (RunOutcome.FAILED, Reason.CRASHED)
    assert "no record can hold" in record.detail
    assert {stage.stage for stage in record.stages} >= {"queue", "fetch"}


async def test_shapes_without_number_leave_the_record_readable(tmp_path: Path) -> None:
    many = replace(described(), shapes={f"x{n}": (1,) * 64 for n in range(4096)})
    record = await record_of(tmp_path, ScriptedLaunch(LOADED, many, MEASURED, CHECKED))
    assert record.outcome is RunOutcome.COMPLETE


async def test_a_launch_that_ends_without_a_measurement_is_failed(tmp_path: Path) -> None:
    assert (await record_of(tmp_path, ScriptedLaunch(LOADED))).reason is Reason.CRASHED


async def test_a_device_whose_disk_is_full_fails_the_run_and_not_the_node(tmp_path: Path) -> None:
    full: Any = OSError(28, "No space left on device")
    record = await record_of(tmp_path, ScriptedLaunch(LOADED, then=full))
    assert (record.outcome, record.reason, record.permanent) == (RunOutcome.FAILED, Reason.CRASHED, False)
    assert "No space left" in record.detail


async def test_a_stop_returns_when_the_launch_is_dead(tmp_path: Path) -> None:
    launch, stop = ScriptedLaunch(LOADED, hangs=True), StopRun()

    async def stop_it() -> None:
        await trio.to_thread.run_sync(launch.started.wait)
        stop.now(Reason.PREEMPTED)
        stop.now(Reason.CANCELLED)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_it)
        record = await run(
            job(task()), bench(tmp_path, lambda order, limits: launch), stop, lambda *progress: None
        )
    assert launch.dead
    assert (record.outcome, record.reason) == (RunOutcome.CANCELLED, Reason.PREEMPTED)


async def test_a_stop_while_another_node_has_the_device_waits_for_nothing(tmp_path: Path) -> None:
    launch, stop = ScriptedLaunch(), StopRun()
    made = bench(tmp_path, lambda order, limits: launch)
    with trio.fail_after(5):
        async with made.lock.hold(), trio.open_nursery() as nursery:

            async def stop_it() -> None:
                await trio.testing.wait_all_tasks_blocked(0.02)
                stop.now(Reason.CANCELLED)

            nursery.start_soon(stop_it)
            record = await run(job(task()), made, stop, lambda *progress: None)
    assert record.outcome is RunOutcome.CANCELLED
    assert not launch.started.is_set()


async def test_while_one_run_is_measured_no_other_of_the_worker_is_fetched_and_its_wait_is_reported(
    tmp_path: Path,
) -> None:
    first, second = ScriptedLaunch(LOADED, described(), MEASURED, CHECKED, hangs=True), ScriptedLaunch()
    launches, fetched = [first, second], []
    phases: list[Phase] = []

    def source(what: RecordJob) -> Source:
        async def get(offset: int, sink: Any, progress: Any) -> None:
            fetched.append(what.task.task)
            sink(bytearray(CONTENT if what.task.task == "c-1/1" else b"another"))

        return get

    made = bench(tmp_path, lambda order, limits: launches.pop(0), source=source)
    stop = StopRun()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, job(task()), made, stop, lambda *progress: None)
            await trio.to_thread.run_sync(first.started.wait)
            nursery.start_soon(
                run,
                job(task(b"another", task="c-1/2")),
                made,
                StopRun(),
                lambda phase, *_: phases.append(phase),
            )
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert fetched == ["c-1/1"]
            assert phases == [Phase.QUEUED]
            stop.now(Reason.CANCELLED)
    assert fetched == ["c-1/1", "c-1/2"]


async def test_a_measurement_is_a_timed_window_to_the_end_of_its_launch_and_between_launches_is_none(
    tmp_path: Path,
) -> None:
    windows: list[bool | str] = []
    observed: list[str] = []
    first = (
        ProgressReport(Phase.PREPARE),
        ProgressReport(Phase.LOAD),
        LOADED,
        ProgressReport(Phase.WARM_UP, 5),
        ProgressReport(Phase.RUN, 0, 3),
        described(),
        MEASURED,
        ProgressReport(Phase.CHECK),
        CHECKED,
    )
    again = (BetweenLaunches(), *first[:5], MEASURED)
    launch = ScriptedLaunch(*first, replace(LOADED, kind=LoadKind.WARM), *again, *again)
    record = await run(
        job(task()),
        bench(tmp_path, lambda order, limits: launch),
        StopRun(),
        lambda phase, *_: observed.append(str(phase)),
        windows.append,
        between=lambda: windows.append("between"),
    )
    assert record.outcome is RunOutcome.COMPLETE
    # of each launch: its load, then its inferences and whatever comes after them
    assert windows == [True, False, True, "between", True, False, True, "between", True, False, True]


async def test_each_launch_is_recorded_to_the_number(tmp_path: Path) -> None:
    one = MeasureReport(
        samples_ns=(10, 12, 11),
        warmup_ns=(99, 20),
        cpu_s=0.5,
        wall_s=0.25,
        peak_bytes=400,
        timer_overhead_ns=40,
        involuntary_switches=3,
        began_ns=5_000_000_000,
        blocks=(SampleBlock(2, 22, 44, 0, 1), SampleBlock(1, 11, 22, None, None)),
        host=HostState(0.25, 0.0, 2400.0, 0, 55.5, False),
    )
    other = replace(
        one,
        samples_ns=(20, 21),
        per_sample=8,
        began_ns=6_500_000_000,
        peak_bytes=None,
        blocks=(),
        host=HostState(),
        involuntary_switches=None,
    )
    record = await record_of(
        tmp_path,
        ScriptedLaunch(
            LoadReport(50, 100, 200, LoadKind.COLD),
            described(),
            one,
            CHECKED,
            LoadReport(5, 300, 350, LoadKind.WARM),
            LoadReport(40, 110, 210),
            other,
            LoadReport(41, None, None),
        ),
    )
    assert [(load.ns, load.kind, load.baseline, load.peak) for load in record.loads] == [
        (50, "cold", 100, 200),
        (5, "warm", 300, 350),
        (40, "fresh", 110, 210),
        (41, "fresh", None, None),
    ]
    first, second = record.timings
    assert (unpack_samples(first.samples), unpack_samples(first.warmup)) == ((10, 12, 11), (99, 20))
    assert (first.began_s, second.began_s) == (0.0, 1.5)
    assert (first.cpu_s, first.wall_s, first.timer_ns, first.switches) == (0.5, 0.25, 40, 3)
    assert (first.baseline, first.peak, second.baseline, second.peak) == (100, 400, 110, None)
    assert (first.per_sample, second.per_sample, second.switches) == (1, 8, None)
    assert first.blocks is not None
    assert unpack_samples(first.blocks) == (2, 22, 44, 1, 2, 1, 11, 22, 0, 0)
    assert first.host == HostLoad(
        others=0.25, steal=0.0, clock_mhz=2400.0, throttles=0, temperature_c=55.5, on_battery=False
    )
    assert (second.blocks, second.host) == (None, None)


async def test_launches_before_one_that_dies_stay_in_the_record(tmp_path: Path) -> None:
    record = await record_of(
        tmp_path,
        ScriptedLaunch(
            LOADED,
            described(),
            MEASURED,
            CHECKED,
            LOADED,
            MEASURED,
            LOADED,
            then=Crashed("killed by SIGSEGV"),
        ),
    )
    assert (record.outcome, record.reason) == (RunOutcome.FAILED, Reason.CRASHED)
    assert [unpack_samples(timing.samples) for timing in record.timings] == [(3, 1, 2)] * 2
    assert len(record.loads) == 3


async def test_post_run_steps_are_reported_as_clean_up_in_their_own_stage(tmp_path: Path) -> None:
    lines: list[Phase] = []
    launch = ScriptedLaunch(
        LOADED, described(), MEASURED, ProgressReport(Phase.CHECK), CHECKED, ProgressReport(Phase.CLEANUP)
    )
    record = await run(
        job(task()),
        bench(tmp_path, lambda order, limits: launch),
        StopRun(),
        lambda phase, *rest: lines.append(phase),
    )
    assert lines[-1] is Phase.CLEANUP
    assert [stage.stage for stage in record.stages][-2:] == ["check", "cleanup"]


async def test_a_launch_gets_the_warm_up_floor_of_its_unit(tmp_path: Path) -> None:
    orders: list[WorkOrder] = []

    def launch(order: WorkOrder, limits: Limits) -> ScriptedLaunch:
        orders.append(order)
        return ScriptedLaunch(then=Unfit("enough"))

    made = bench(tmp_path, launch, warmup_floor={CPU: 37}.__getitem__)
    await run(job(task()), made, StopRun(), lambda *progress: None)
    assert orders[0].warmup_floor == 37


async def test_a_launch_gets_the_first_look_that_its_unit_and_precision_need(tmp_path: Path) -> None:
    orders: list[WorkOrder] = []

    def launch(order: WorkOrder, limits: Limits) -> ScriptedLaunch:
        orders.append(order)
        return ScriptedLaunch(then=Unfit("enough"))

    made = bench(tmp_path, launch, first_look=lambda unit, share: {(CPU, 0.02): 12}.get((unit, share), 6))
    for measure in (Measure(precision=0.02), Measure(runs=50)):
        await run(job(task(measure=measure)), made, StopRun(), lambda *progress: None)
    assert [order.first_look for order in orders] == [12, 6]


async def test_a_run_that_gives_way_is_recorded_as_cancelled_because_it_was_preempted(tmp_path: Path) -> None:
    launch, stop = ScriptedLaunch(LOADED, hangs=True), StopRun()
    records: list[Record] = []

    async def go() -> None:
        made = bench(tmp_path, lambda order, limits: launch)
        records.append(await run(job(task()), made, stop, lambda *progress: None))

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(go)
            await trio.to_thread.run_sync(launch.started.wait)
            stop.now(Reason.PREEMPTED)
    assert launch.dead
    assert (records[0].outcome, records[0].reason) == (RunOutcome.CANCELLED, Reason.PREEMPTED)


async def test_a_run_that_is_stopped_between_two_launches_does_not_begin_the_next(tmp_path: Path) -> None:
    begun: list[str] = []

    class TwoLaunches(ScriptedLaunch):
        def events(self) -> Iterator[Event]:
            yield from (LOADED, described(), MEASURED, CHECKED, BetweenLaunches())
            begun.append("the second")
            yield LOADED

    stop = StopRun()
    made = bench(tmp_path, lambda order, limits: TwoLaunches())
    record = await run(
        job(task()),
        made,
        stop,
        lambda *progress: None,
        between=lambda: stop.now(Reason.PREEMPTED),
    )
    assert (record.outcome, record.reason) == (RunOutcome.CANCELLED, Reason.PREEMPTED)
    assert len(record.timings) == 1, "what was seen before stays in"
    assert begun == []


async def test_a_wait_for_another_nodes_run_is_reported_as_a_wait(tmp_path: Path) -> None:
    phases: list[Phase] = []
    made = bench(tmp_path, lambda order, limits: ScriptedLaunch(LOADED, described(), MEASURED, CHECKED))
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery, DeviceLock("d-1", tmp_path).hold():
            nursery.start_soon(run, job(task()), made, StopRun(), lambda phase, *_: phases.append(phase))
            while Phase.QUEUED not in phases:
                await trio.sleep(0.001)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert phases[-1] is Phase.QUEUED
    assert phases[-1:] == [Phase.PREPARE]


async def test_a_fetch_that_takes_too_long_is_failed(tmp_path: Path) -> None:
    async def never(offset: int, sink: Any, progress: Any) -> None:
        await trio.sleep_forever()

    made = bench(tmp_path, lambda order, limits: ScriptedLaunch(), source=lambda what: never)
    what = task(timeouts=Timeouts(fetch_s=0.01))
    record = await run(job(what), made, StopRun(), lambda *progress: None)
    assert (record.outcome, record.reason) == (RunOutcome.FAILED, Reason.FETCH_FAILED)
    assert "fetch limit of 0.01 s" in record.detail


async def test_nothing_is_measured_before_the_nodes_own_work_is_done(tmp_path: Path) -> None:
    launch, quiet = ScriptedLaunch(LOADED, described(), MEASURED, CHECKED), trio.Event()
    made = bench(tmp_path, lambda order, limits: launch, wait_idle=quiet.wait)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, job(task()), made, StopRun(), lambda *progress: None)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not launch.started.is_set()
        quiet.set()
    assert launch.started.is_set()


def test_progress_is_thinned_but_the_first_of_a_phase_always_passes() -> None:
    throttle = ProgressReporter(lambda *progress: None, lambda: 0.0)
    run_phase, check = Phase.RUN, Phase.CHECK
    lines = [(run_phase, 0.0), (run_phase, 0.05), (run_phase, 0.11), (check, 0.12), (check, 0.13)]
    assert [throttle.is_due(phase, now) for phase, now in lines] == [True, False, True, True, False]


def test_stages_that_come_again_add_up() -> None:
    run_observations = RunObservations()
    for stage, now in (("load", 0.0), ("run", 1.0), ("load", 3.0), ("", 7.0)):
        run_observations.enter(stage, now)
    assert run_observations.stages == {"load": 5.0, "run": 2.0}


# -- with the real driver and a real model -------------------------------------------------------------------------------


def magika() -> bytes:
    """A real model, from its package."""
    spec = importlib.util.find_spec("magika")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / "models/standard_v3_3/model.onnx").read_bytes()


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("onnx").start() as started:
        yield started


async def real(folder: Path, zygote: Zygote, content: bytes, **changes: Any) -> tuple[Record, list[Phase]]:
    phases: list[Phase] = []
    made = bench(folder, lambda order, limits: Launch(order, limits, zygote), content)
    what = task(content, measure=Measure(runs=20, loads=2, warmup=2), **changes)
    record = await run(job(what), made, StopRun(), lambda phase, done, total, median: phases.append(phase))
    return record, phases


async def test_a_real_model_is_measured_in_real_processes(tmp_path: Path, zygote: Zygote) -> None:
    record, phases = await real(tmp_path, zygote, magika())
    assert record.outcome is RunOutcome.COMPLETE, record.detail
    assert record.timings
    samples = [unpack_samples(timing.samples) for timing in record.timings]
    assert [len(of_launch) for of_launch in samples] == [10, 10]
    assert min(map(min, samples)) > 0
    assert [load.kind for load in record.loads if load.kind != "warm"][1:] == ["fresh"]
    assert record.timings[0].began_s == 0.0
    assert 0 < record.timings[1].began_s < 60
    for timing in record.timings:
        assert timing.blocks is not None
        blocks = unpack_samples(timing.blocks)
        assert sum(blocks[:: len(BLOCK_FIELDS)]) == 10
        assert timing.wall_s == pytest.approx(sum(blocks[1 :: len(BLOCK_FIELDS)]) / 1e9)
    assert record.ran is not None
    assert record.ran.providers == ("CPUExecutionProvider",)
    assert record.ran.shapes
    assert list(dict.fromkeys(phases))[:3] == [Phase.FETCH, Phase.PREPARE, Phase.LOAD]
    assert Phase.RUN in phases
    stages = {stage.stage for stage in record.stages}
    assert stages >= {"queue", "fetch", "prepare", "load", "warm-up", "run"}


async def test_a_real_model_that_is_cut_short_is_broken_for_good(tmp_path: Path, zygote: Zygote) -> None:
    record, _ = await real(tmp_path, zygote, magika()[:10_000])
    assert (record.outcome, record.reason, record.permanent) == (RunOutcome.FAILED, Reason.BROKEN_MODEL, True)


async def test_a_unit_that_is_not_here_is_the_wrong_unit(tmp_path: Path, zygote: Zygote) -> None:
    record, _ = await real(tmp_path, zygote, magika(), unit="DirectML (ONNX)")
    assert (record.outcome, record.reason, record.permanent) == (RunOutcome.FAILED, Reason.WRONG_UNIT, False)


# -- witnessed runs ----------------------------------------------------------------------------------------------------------


class Scheduler:
    """Reveals, or refuses to, and notes what it is told."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.told: list[tuple[int, str]] = []

    async def reveal(self) -> tuple[bytes, bytes]:
        await trio.lowlevel.checkpoint()
        if self.refuses:
            raise RunError("no", reason=Reason.UNKNOWN, permanent=False)
        return b"o" * 32, b"r" * 32

    def launch_ended(self, launch: int, digest: str) -> None:
        self.told.append((launch, digest))


class AskingLaunch(ScriptedLaunch):
    """Asks for its reveal before its first event."""

    def __init__(self, reveal: AskReveal, *events: Event) -> None:
        super().__init__(*events)
        self._reveal = reveal

    def events(self) -> Iterator[Event]:
        self._reveal()
        yield from super().events()


async def witnessed_record(folder: Path, scheduler: Scheduler, *events: Event) -> Record:
    return await run(
        job(task()),
        bench(folder, lambda order, limits, reveal: AskingLaunch(reveal, *events)),
        StopRun(),
        lambda *progress: None,
        witness=scheduler,
    )


OUTPUTS = (OutputReport("1" * 64), OutputReport("2" * 64))


async def test_a_witnessed_run_tells_each_launch_as_it_ends_and_records_what_was_revealed(
    tmp_path: Path,
) -> None:
    scheduler = Scheduler()
    story = (LOADED, OUTPUTS[0], described(), MEASURED, CHECKED, LOADED, OUTPUTS[1], MEASURED)
    record = await witnessed_record(tmp_path, scheduler, *story)
    assert record.outcome is RunOutcome.COMPLETE
    assert scheduler.told == [(at, digest_of(report).hex()) for at, report in enumerate(OUTPUTS, start=1)]
    assert (record.opening, record.reveal) == (b"o" * 32, b"r" * 32)
    noted = [timing.output for timing in record.timings]
    assert [output.digest().hex() for output in noted if output is not None] == [
        digest for _, digest in scheduler.told
    ]
    assert read_record(record_body(record)) == record


async def test_a_run_whose_inputs_are_not_revealed_fails_with_the_schedulers_reason(tmp_path: Path) -> None:
    record = await witnessed_record(tmp_path, Scheduler(refuses=True), LOADED)
    assert (record.outcome, record.reason, record.detail) == (RunOutcome.FAILED, Reason.UNKNOWN, "no")


async def test_a_run_that_waits_for_its_reveal_can_be_stopped(tmp_path: Path) -> None:
    class Silent(Scheduler):
        async def reveal(self) -> tuple[bytes, bytes]:
            stop.now(Reason.CANCELLED)
            await trio.sleep_forever()
            raise AssertionError

    stop = StopRun()
    record = await run(
        job(task()),
        bench(tmp_path, lambda order, limits, reveal: AskingLaunch(reveal, LOADED)),
        stop,
        lambda *progress: None,
        witness=Silent(),
    )
    assert (record.outcome, record.reason) == (RunOutcome.CANCELLED, Reason.CANCELLED)


async def test_the_outputs_of_an_ordinary_run_are_recorded_without_a_reveal(tmp_path: Path) -> None:
    record = await record_of(tmp_path, ScriptedLaunch(LOADED, OUTPUTS[0], described(), MEASURED, CHECKED))
    assert record.timings[0].output is not None
    assert record.timings[0].output.sha256 == "1" * 64
    assert record.reveal is None


OTHER = Model(name="other.onnx", sha256=hashlib.sha256(b"another").hexdigest(), size=7)


async def test_all_models_of_a_task_are_fetched_and_held_until_it_is_measured(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path / "both", 10**9, free=lambda path: 10**12)

    def model(what: RecordJob, which: Model, progress: Any) -> AbstractAsyncContextManager[Path]:
        return cache.using(which, source_of(b"another" if which == OTHER else CONTENT), progress)

    orders: list[tuple[bytes, ...]] = []

    def launch(order: WorkOrder, limits: Limits) -> ScriptedLaunch:
        orders.append(tuple(Path(path).read_bytes() for path in (order.model, *order.beside)))
        return ScriptedLaunch(LOADED, described(), MEASURED, CHECKED)

    both = job(task(beside=(OTHER,)))
    record = await run(both, bench(tmp_path, launch, model=model), StopRun(), lambda *progress: None)
    assert orders == [(CONTENT, b"another")]
    assert record.outcome is RunOutcome.COMPLETE


async def test_the_model_that_does_not_come_is_named(tmp_path: Path) -> None:
    @contextlib.asynccontextmanager
    async def model(what: RecordJob, which: Model, progress: Any) -> AsyncIterator[Path]:
        if which == OTHER:
            await trio.sleep_forever()
        yield tmp_path

    both = job(task(beside=(OTHER,), timeouts=Timeouts(fetch_s=0.01)))
    fields = bench(tmp_path, lambda *_: ScriptedLaunch(), model=model)
    record = await run(both, fields, StopRun(), lambda *progress: None)
    assert record.reason is Reason.FETCH_FAILED
    assert record.detail.startswith("other.onnx was not here after the fetch limit")


def test_each_model_of_a_task_may_take_its_memory_and_all_together_no_more_than_the_device_gives() -> None:
    other = Model(name="other.onnx", sha256="ab" * 32, size=1)
    of_two = task(memory=100, beside=(other,))
    assert (limits(of_two, 1000).memory_bytes, limits(of_two, 150).memory_bytes) == (200, 150)
    order = work_order(of_two, "/m/own", beside=(Path("/m/other"),))
    assert (order.model, order.beside, order.beside_units) == ("/m/own", ("/m/other",), ())
    apart = of_two.model_copy(update={"beside_units": ("CPU (Torch)",)})
    assert work_order(apart, "/m/own", beside=(Path("/m/other"),)).beside_units == ("CPU (Torch)",)


def test_a_model_beside_that_ran_elsewhere_is_no_comparison() -> None:
    other = Model(name="other.onnx", sha256="ab" * 32, size=1)
    asked = task(beside=(other,), beside_units=("CPU (Torch)",))
    observations = RunObservations()
    own = ModelDescription(asked.unit, "onnx", "r", ("CPUExecutionProvider",), 1, {}, {}, 0)
    observations.add(own, 0.0)
    observations.add(MeasureReport((1,), (1,), 0.0, 0.0, None, 0, None), 0.0)
    checked = CheckReport(None, "", None, None)
    observations.add(BesideReport(replace(own, unit="CPU (Torch)", providers=("cpu",)), checked), 0.0)
    assert observations.verdict(asked).outcome is RunOutcome.COMPLETE
    observations.beside[0] = BesideReport(own, checked)
    assert observations.verdict(asked).reason is Reason.WRONG_UNIT


@pytest.mark.parametrize("lasting", [False, True])
def test_a_sustained_run_may_be_stopped_while_it_infers_another_may_not(lasting: bool) -> None:
    observations = RunObservations(lasting=lasting)
    observations.add(ProgressReport(Phase.LOAD), 0.0)
    assert observations.timed, "a load is not disturbed"
    observations.add(LoadReport(1, None, None), 1.0)
    observations.add(ProgressReport(Phase.RUN, 3, 660), 2.0)
    assert observations.timed is not lasting


async def test_the_record_has_where_operators_ran_and_says_how_many_it_leaves_out(tmp_path: Path) -> None:
    """96 lines are a fifth of what a record may have elements for."""
    reports = tuple(
        OperatorReport(f"Op{at}", "CPUExecutionProvider", ran=1, ns=at, why="w" * 900) for at in range(100)
    )
    what = replace(described(), operators=reports)
    record = await record_of(tmp_path, ScriptedLaunch(LOADED, what, MEASURED, CHECKED))
    assert record.ran is not None
    assert record.ran.operators is not None
    assert len(record.ran.operators) == 96
    assert record.ran.operators[1].ns == 1
    assert record.ran.operators[1].nodes is None
    assert record.ran.notes == ("4 more types of operators are left out of the record",)
    assert read_record(record_body(record)) == record
    plain = await record_of(tmp_path, ScriptedLaunch(LOADED, described(), MEASURED, CHECKED))
    assert plain.ran is not None
    assert plain.ran.operators is None
