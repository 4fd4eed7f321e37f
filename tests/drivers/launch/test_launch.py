"""Which events a launch sends when a run goes well, and when, with the scripted driver."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from drivers.contract import memory
from drivers.contract.base import (
    BetweenLaunches,
    Cancelled,
    CheckReport,
    Crashed,
    Limits,
    LoadReport,
    MeasureReport,
    MeterReport,
    ModelDescription,
    ProgressReport,
    Telemetry,
    Unfit,
    WorkOrder,
)
from drivers.launch import launch as launch_module
from drivers.launch.child import NAME
from drivers.launch.launch import Launch, Zygote, measure, probe_units
from drivers.measure.idle_wait import IdleWait, IdleWaitReport
from drivers.measure.metering import Metering, Wait
from drivers.testing.conformance import Subject, check_all
from drivers.testing.fake import ANNOUNCED, UNIT
from protocol.formats.phase import Phase
from tests.drivers.launching import GONE_S, LONG_S, QUICK, STORY, Script, below, kinds_of, lives, order, play

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_scripted_times_arrive_to_the_nanosecond(stage: Zygote, script: Script) -> None:
    events = play(script(load_ms=2, latencies_ms=[1, 2.5]), stage, runs=5)
    measured = next(event for event in events if isinstance(event, MeasureReport))
    assert measured.samples_ns == (1_000_000, 2_500_000, 1_000_000, 2_500_000, 1_000_000)
    assert next(event for event in events if isinstance(event, LoadReport)).load_ns == 2_000_000


def test_every_row_of_the_scripted_driver_says_what_it_is(stage: Zygote, script: Script) -> None:
    described = next(event for event in play(script(), stage) if isinstance(event, ModelDescription))
    assert described.notes == (ANNOUNCED,)
    assert "Simulation" in described.unit


def test_the_scripted_driver_keeps_the_contract(script: Script) -> None:
    check_all(Subject("fake", UNIT, script(latencies_ms=[1, 2]), simulate=True))


def test_an_invented_unit_is_not_even_tried_where_simulation_is_off(script: Script) -> None:
    with Zygote("fake") as honest, pytest.raises(Unfit, match="invents its figures"):
        play(script(), honest)


def test_runs_are_shared_out_over_launches_and_only_the_first_is_described_and_checked(
    stage: Zygote, script: Script
) -> None:
    events = play(script(), stage, runs=14, loads=3)
    assert kinds_of(events)[1:] == [*STORY, "fresh", "MeasureReport", "fresh", "MeasureReport"]
    assert [len(one.samples_ns) for one in events if isinstance(one, MeasureReport)] == [5, 5, 4]


def name_of(process: psutil.Process) -> str:
    """The process's name, or an empty one if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name()
    return ""


def test_between_two_launches_no_process_of_either_is_there(stage: Zygote, script: Script) -> None:
    launch = Launch(order(script(), runs=14, loads=3), QUICK, stage)
    counts: list[int] = []
    timed = 0
    for event in launch.events():
        timed += isinstance(event, MeasureReport)
        if isinstance(event, BetweenLaunches):
            counts.append(timed)
            assert not [each for each in below(stage) if lives(each) and name_of(each) == NAME]
    assert (counts, timed) == ([1, 2], 3)


def test_launches_that_are_spread_begin_no_sooner_and_can_be_ended_in_a_gap(
    stage: Zygote, script: Script
) -> None:
    spread = replace(order(script(), runs=12, loads=3), over_s=3.0)
    events = Launch(spread, QUICK, stage).events()
    began = [event.began_ns for event in events if isinstance(event, MeasureReport)]
    assert began[1] - began[0] >= 1.49e9
    assert began[2] - began[0] >= 2.99e9
    launch = Launch(replace(spread, over_s=LONG_S / 2), QUICK, stage)
    gaps: list[float | None] = []

    def follow() -> None:
        for event in launch.events():
            gaps.append(event.gap_s if isinstance(event, BetweenLaunches) else None)
            if len(gaps) > 3 and None not in gaps[-3:]:
                launch.kill()

    with pytest.raises(Cancelled):
        follow()
    last = [gap for gap in gaps[-3:] if gap]
    assert len(last) == 3, "it is asked again while it waits, and ends there"
    assert last == sorted(last, reverse=True)


class LateClock:
    """The `time` module, some seconds ahead."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def test_a_launch_that_waits_for_others_after_its_gap_has_its_whole_time(
    stage: Zygote, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LateClock()
    monkeypatch.setattr(launch_module, "time", clock)
    spread = WorkOrder(script(latencies_ms=[2]), UNIT, precision=0.02, over_s=0.5)
    launches = 0
    for event in Launch(spread, replace(QUICK, run_s=3.0), stage).events():
        if isinstance(event, BetweenLaunches) and not event.gap_s and launches == 1:
            clock.ahead_s = 3.0
        launches += isinstance(event, MeasureReport)
    assert launches == 6


def test_few_runs_are_made_in_the_first_launch_and_the_others_only_load(
    stage: Zygote, script: Script
) -> None:
    events = play(script(), stage, runs=11, loads=3)
    assert kinds_of(events)[1:] == [*STORY, "fresh", "fresh"]
    assert [len(one.samples_ns) for one in events if isinstance(one, MeasureReport)] == [11]


def test_a_precision_is_reached_after_six_launches_of_one_and_the_same_time(
    stage: Zygote, script: Script
) -> None:
    work_order = WorkOrder(script(latencies_ms=[2]), UNIT, precision=0.02)
    events = list(measure(work_order, QUICK, stage))
    assert kinds_of(events)[1:] == [*STORY, *["fresh", "MeasureReport"] * 5]
    assert {one.samples_ns for one in events if isinstance(one, MeasureReport)} == {(2_000_000,) * 20}


def test_a_launch_whose_pages_were_dropped_is_cold_and_only_the_first_is(
    stage: Zygote, script: Script
) -> None:
    model = script()
    if not memory.drop_pages(Path(model)):
        assert "cold" not in kinds_of(play(model, stage))
        return
    assert kinds_of(play(model, stage, loads=3)) == ["cold", *STORY, "fresh", "fresh"]


class Meter:
    """A sampler that only records calls."""

    def __init__(self, reading: Telemetry | None) -> None:
        self.reading = reading
        self.calls: list[str] = []
        self.launches: Sequence[tuple[int, int]] = ()

    def start(self) -> bool:
        self.calls.append("start")
        return True

    def stop(
        self,
        windows: Sequence[tuple[int, int]],
        stretches: Sequence[tuple[int, int]] = (),
        launches: Sequence[tuple[int, int]] = (),
    ) -> Telemetry | None:
        self.calls.append("stop")
        self.launches = launches
        return self.reading


def test_the_accelerator_is_read_around_all_launches_and_reported_last(stage: Zygote, script: Script) -> None:
    meter = Meter(Telemetry("nvml", "a GPU", 7, power_w=300.0))
    events = list(Launch(order(script(), runs=8, loads=2), QUICK, stage, sampler=meter).events())
    assert events[-1] == meter.reading
    assert sum(isinstance(event, Telemetry) for event in events) == 1
    assert meter.calls == ["start", "stop"]


def test_what_is_read_of_the_accelerator_between_launches_is_no_part_of_the_run(
    stage: Zygote, script: Script
) -> None:
    meter, gaps = Meter(None), list[int]()
    spread = WorkOrder(script(latencies_ms=[2]), UNIT, precision=0.02, over_s=0.5)
    for event in Launch(spread, QUICK, stage, sampler=meter).events():
        if isinstance(event, BetweenLaunches):
            gaps.append(time.perf_counter_ns())
    assert len(meter.launches) == 6
    assert len(gaps) >= 5
    assert not any(begin < gap < end for gap in gaps for begin, end in meter.launches)


def test_the_accelerator_is_no_longer_read_when_a_launch_fails_and_nothing_is_reported_where_nothing_was_read(
    stage: Zygote, script: Script
) -> None:
    failing, silent = Meter(None), Meter(None)
    with pytest.raises(Crashed):
        list(
            Launch(
                order(script(fail={"phase": "run", "error": "crash"})), QUICK, stage, sampler=failing
            ).events()
        )
    events = list(Launch(order(script()), QUICK, stage, sampler=silent).events())
    assert failing.calls == silent.calls == ["start", "stop"]
    assert not any(isinstance(event, Telemetry) for event in events)


class WallMeter(Metering):
    """A meter that only records calls."""

    def __init__(self) -> None:
        super().__init__(gpu=False, root=Path("/nowhere"))
        self.stopped = 0

    def stop(
        self,
        windows: Sequence[tuple[int, int]],
        stretches: Sequence[tuple[int, int]] = (),
        wait: Wait = time.sleep,
    ) -> list[MeterReport]:
        self.stopped += 1
        return [MeterReport("csv", "wall", "plug.csv", 9, 80.0)]


def test_meters_are_reported_last_where_somebody_wants_to_know_and_stop_with_a_run_that_fails(
    stage: Zygote, script: Script
) -> None:
    meter, failing = WallMeter(), WallMeter()
    events = list(Launch(order(script(), runs=8, loads=2), QUICK, stage, metering=meter).events())
    assert events[-1] == MeterReport("csv", "wall", "plug.csv", 9, 80.0)
    model = script(fail={"phase": "check", "error": "crash"})
    with pytest.raises(Crashed):
        list(Launch(order(model), QUICK, stage, metering=failing).events())
    assert (meter.stopped, failing.stopped) == (1, 1)
    assert not any(isinstance(one, MeterReport) for one in Launch(order(script()), QUICK, stage).events())


def test_no_launch_is_begun_for_a_precision_that_would_end_behind_the_limit(
    stage: Zygote, script: Script
) -> None:
    work_order = WorkOrder(script(latencies_ms=[40], sleep=True), UNIT, precision=0.02)
    events = list(measure(work_order, Limits(load_s=LONG_S, run_s=4), stage))
    assert 1 <= sum(isinstance(event, MeasureReport) for event in events) < 6, "which would be enough"


def test_launches_run_side_by_side(stage: Zygote, script: Script) -> None:
    model = script(latencies_ms=[3])
    done: list[int] = []

    def one() -> None:
        done.append(sum(isinstance(event, CheckReport) for event in play(model, stage)))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GONE_S)
    assert done == [1] * 4


def test_units_are_tried_out_in_children() -> None:
    probed = probe_units(simulate=True)
    assert {info.unit for info in probed.units} >= {"CPU (ONNX)", UNIT}
    assert probed.troubles == ()
    assert "onnxruntime" not in sys.modules or "drivers.onnx.session" in sys.modules


def test_a_folder_full_of_namesakes_changes_nothing(tmp_path: Path, script: Script) -> None:
    trap = "raise SystemExit('the trap in the working directory was imported')\n"
    (tmp_path / "drivers" / "launch").mkdir(parents=True)
    for name in (
        "drivers/__init__.py",
        "drivers/launch/zygote.py",
        "json.py",
        "psutil.py",
        "sark.py",
        "numpy.py",
        "onnxruntime.py",
    ):
        (tmp_path / name).write_text(trap)
    ask = "from drivers.launch.launch import probe_units; print(*[info.unit for info in probe_units(simulate=True).units])"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done_found = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.remove({str(tmp_path)!r}); {ask}"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done_found.stdout.split("\n")[0] == f"{UNIT} CPU (ONNX)", done_found.stderr


def test_a_child_sees_no_secret_of_its_parents_environment(script: Script) -> None:
    os.environ["SARK_TEST_TOKEN"] = "secret"
    try:
        with Zygote("fake", simulate=True).start() as stage:
            play(script(), stage)
            assert "SARK_TEST_TOKEN" not in psutil.Process(stage.pids[0]).environ()
    finally:
        del os.environ["SARK_TEST_TOKEN"]


def test_progress_is_reported_in_the_order_of_the_phases(stage: Zygote, script: Script) -> None:
    phases = [event.phase for event in play(script(), stage, runs=10) if isinstance(event, ProgressReport)]
    assert list(dict.fromkeys(phases)) == [Phase.PREPARE, Phase.LOAD, Phase.WARM_UP, Phase.RUN, Phase.CHECK]


class NeverQuiet(IdleWait):
    """A host on which waiting does not help."""

    def wait(self, sleep: Callable[[float], object]) -> Generator[tuple[float, float], None, IdleWaitReport]:
        yield 0.0, 0.1
        return IdleWaitReport(0.1, 0.9)


def test_a_busy_host_before_the_first_launch_is_a_note_and_no_figure_of_the_timed_window(
    stage: Zygote, script: Script
) -> None:
    events = list(Launch(order(script(), runs=8, loads=2), QUICK, stage, NeverQuiet()).events())
    shares = [event.host.others_share for event in events if isinstance(event, MeasureReport)]
    described = next(event for event in events if isinstance(event, ModelDescription))
    assert shares == [None, None], "the windows are too short to tell"
    assert "other processes used 90% of the processors before the first launch" in described.notes[-1]
