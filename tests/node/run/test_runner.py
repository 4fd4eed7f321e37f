"""A task becomes a launch, and the launch's events become a record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from drivers.contract.base import (
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
    ProgressReport,
    SampleBlock,
    TimedOut,
    Unfit,
    WorkOrder,
    WrongUnit,
)
from node.device.lock import DeviceLock
from node.run.record_builder import RecordJob, RunObservations, end_of
from node.run.runner import ProgressReporter, StopRun, limits, run, work_order
from node.store.cache import Source
from protocol.formats.phase import Phase
from protocol.values.record import (
    HostLoad,
    Record,
    read_record,
    record_body,
    unpack_samples,
)
from protocol.values.task import Measure, Timeouts
from protocol.words import Reason, RunOutcome
from swarm.base.threads import DISK
from tests.node.run.runner_parts import (
    CHECKED,
    CONTENT,
    CPU,
    LOADED,
    MEASURED,
    ScriptedLaunch,
    bench,
    described,
    job,
    record_of,
    task,
)


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
            await DISK.run(sink, bytearray(CONTENT if what.task.task == "c-1/1" else b"another"))

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
    # for each launch: its load, then its inferences and all that follows
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


@pytest.mark.parametrize("lasting", [False, True])
def test_a_sustained_run_may_be_stopped_while_it_infers_another_may_not(lasting: bool) -> None:
    observations = RunObservations(lasting=lasting)
    observations.add(ProgressReport(Phase.LOAD), 0.0)
    assert observations.timed, "a load is not disturbed"
    observations.add(LoadReport(1, None, None), 1.0)
    observations.add(ProgressReport(Phase.RUN, 3, 660), 2.0)
    assert observations.timed is not lasting


async def test_the_record_has_where_operators_ran_and_says_how_many_it_leaves_out(tmp_path: Path) -> None:
    """96 operators take a fifth of the elements that a record may have."""
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
