"""The child process: every way it can end, and that nothing is left of it. The scripted driver does the misbehaving."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from drivers import pages
from drivers.base import (
    MIB,
    Cancelled,
    Checked,
    Crashed,
    Described,
    Event,
    Limits,
    Loaded,
    LoadKind,
    Measured,
    Phase,
    Progressed,
    Telemetry,
    TimedOut,
    Unfit,
    WorkOrder,
)
from drivers.conformance import Subject, check_all
from drivers.fake import ANNOUNCED, UNIT
from drivers.launch import Launch, Zygote, measure, probe_units
from drivers.quiet import Quiet, Waited

Script = Callable[..., str]
QUICK = Limits(load_s=20, run_s=20)
GONE_S = 5.0


def order(model: str, runs: int = 4, loads: int = 1) -> WorkOrder:
    """An order for the scripted unit."""
    return WorkOrder(model, UNIT, runs, loads)


def play(model: str, stage: Zygote, limits: Limits = QUICK, runs: int = 4, loads: int = 1) -> list[Event]:
    """All events of one order."""
    return list(measure(order(model, runs, loads), limits, stage))


def below(stage: Zygote) -> list[psutil.Process]:
    """Every process that hangs below the zygotes: keepers, workers, and what was re-parented to keepers."""
    found: list[psutil.Process] = []
    for pid in stage.pids:
        found += psutil.Process(pid).children(recursive=True)
    return found


def lives(process: psutil.Process) -> bool:
    """Whether it still runs; a dead one that nobody has reaped does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], what: str, seconds: float = GONE_S) -> None:
    """Poll under a deadline."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def nothing_is_left(stage: Zygote) -> Iterator[None]:
    """After each test: no process below the zygotes, no private folder."""
    before = set(Path(tempfile.gettempdir()).glob("sark-run-*"))
    yield
    wait_until(lambda: not below(stage), f"left behind: {below(stage)}")
    assert set(Path(tempfile.gettempdir()).glob("sark-run-*")) <= before


def test_scripted_times_arrive_to_the_nanosecond(stage: Zygote, script: Script) -> None:
    events = play(script(load_ms=2, latencies_ms=[1, 2.5]), stage, runs=5)
    measured = next(event for event in events if isinstance(event, Measured))
    assert measured.samples_ns == (1_000_000, 2_500_000, 1_000_000, 2_500_000, 1_000_000)
    assert next(event for event in events if isinstance(event, Loaded)).load_ns == 2_000_000


def test_every_row_of_the_scripted_driver_says_what_it_is(stage: Zygote, script: Script) -> None:
    described = next(event for event in play(script(), stage) if isinstance(event, Described))
    assert described.notes == (ANNOUNCED,)
    assert "Simulation" in described.unit


def test_the_scripted_driver_keeps_the_contract(script: Script) -> None:
    check_all(Subject("fake", UNIT, script(latencies_ms=[1, 2]), simulate=True))


def test_an_invented_unit_is_not_even_tried_where_simulation_is_off(script: Script) -> None:
    with Zygote("fake") as honest, pytest.raises(Unfit, match="invents its figures"):
        play(script(), honest)


def told(events: list[Event]) -> list[str]:
    """What came, without progress; loads by their kind."""
    return [
        str(event.kind) if isinstance(event, Loaded) else type(event).__name__
        for event in events
        if not isinstance(event, Progressed)
    ]


STORY = ["Described", "Measured", "Checked", "warm"]


def test_runs_are_shared_out_over_launches_and_only_the_first_is_described_and_checked(
    stage: Zygote, script: Script
) -> None:
    events = play(script(), stage, runs=14, loads=3)
    assert told(events)[1:] == [*STORY, "fresh", "Measured", "fresh", "Measured"]
    assert [len(one.samples_ns) for one in events if isinstance(one, Measured)] == [5, 5, 4]


def test_few_runs_are_made_in_the_first_launch_and_the_others_only_load(
    stage: Zygote, script: Script
) -> None:
    events = play(script(), stage, runs=11, loads=3)
    assert told(events)[1:] == [*STORY, "fresh", "fresh"]
    assert [len(one.samples_ns) for one in events if isinstance(one, Measured)] == [11]


def test_a_precision_is_reached_after_six_launches_of_one_and_the_same_time(
    stage: Zygote, script: Script
) -> None:
    asked = WorkOrder(script(latencies_ms=[2]), UNIT, precision=0.02)
    events = list(measure(asked, QUICK, stage))
    assert told(events)[1:] == [*STORY, *["fresh", "Measured"] * 5]
    assert {one.samples_ns for one in events if isinstance(one, Measured)} == {(2_000_000,) * 20}


def test_a_launch_whose_pages_were_dropped_is_cold_and_only_the_first_is(
    stage: Zygote, script: Script
) -> None:
    model = script()
    if not pages.drop(Path(model)):
        assert "cold" not in told(play(model, stage))
        return
    assert told(play(model, stage, loads=3)) == ["cold", *STORY, "fresh", "fresh"]


def test_what_was_measured_before_a_later_launch_died_has_been_told(stage: Zygote, script: Script) -> None:
    model = script(fail={"phase": "run", "error": "crash", "again": True}, print="no more")
    seen: list[Event] = []
    with pytest.raises(Crashed, match="exit code 7: no more"):
        seen.extend(measure(order(model, 12, 3), QUICK, stage))
    assert told(seen)[1:] == [*STORY, "fresh"]


class Meter:
    """A sampler that only notes what is asked of it."""

    def __init__(self, told: Telemetry | None) -> None:
        self.told = told
        self.calls: list[str] = []

    def start(self) -> bool:
        self.calls.append("start")
        return True

    def stop(self, windows: Sequence[tuple[int, int]]) -> Telemetry | None:
        self.calls.append("stop")
        return self.told


def test_the_accelerator_is_read_around_all_launches_and_told_last(stage: Zygote, script: Script) -> None:
    meter = Meter(Telemetry("nvml", "a GPU", 7, power_w=300.0))
    events = list(Launch(order(script(), runs=8, loads=2), QUICK, stage, sampler=meter).events())
    assert events[-1] == meter.told
    assert sum(isinstance(event, Telemetry) for event in events) == 1
    assert meter.calls == ["start", "stop"]


def test_the_accelerator_is_no_longer_read_when_a_launch_fails_and_nothing_is_told_where_nothing_was_read(
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


def test_a_run_that_is_cancelled_between_launches_makes_no_other(stage: Zygote, script: Script) -> None:
    launch = Launch(order(script(), 12, 3), QUICK, stage)
    seen: list[Event] = []

    def follow() -> None:
        for event in launch.events():
            seen.append(event)
            if isinstance(event, Loaded) and event.kind is LoadKind.WARM:
                launch.kill()

    with pytest.raises(Cancelled):
        follow()
    assert told(seen)[1:] == STORY


def test_all_launches_together_have_the_time_that_a_run_may_take(stage: Zygote, script: Script) -> None:
    model = script(latencies_ms=[100], sleep=True)
    with pytest.raises(TimedOut, match=r"still running after its limit of 1 s"):
        play(model, stage, Limits(load_s=20, run_s=1.0), runs=12, loads=3)


def test_no_launch_is_begun_for_a_precision_that_would_end_behind_the_limit(
    stage: Zygote, script: Script
) -> None:
    asked = WorkOrder(script(latencies_ms=[20], sleep=True), UNIT, precision=0.02)
    events = list(measure(asked, Limits(load_s=20, run_s=1.2), stage))
    assert 1 <= sum(isinstance(event, Measured) for event in events) <= 2


@pytest.mark.parametrize("phase", ["load", "warm-up", "run", "check"])
def test_a_driver_that_refuses_is_unfit_with_its_own_words(stage: Zygote, script: Script, phase: str) -> None:
    with pytest.raises(Unfit, match="no such operator") as failed:
        play(script(fail={"phase": phase, "error": "unfit", "why": "no such operator"}), stage)
    assert failed.value.permanent


def test_a_child_that_exits_has_crashed_with_its_last_words(stage: Zygote, script: Script) -> None:
    with pytest.raises(Crashed, match="exit code 7: the disk is on fire"):
        play(script(print="first\nthe disk is on fire\n", fail={"phase": "run", "error": "crash"}), stage)


def test_a_child_that_a_signal_ends_has_crashed_by_its_name(stage: Zygote, script: Script) -> None:
    with pytest.raises(Crashed, match="killed by SIGSEGV"):
        play(script(fail={"phase": "run", "error": "signal"}), stage)


def test_an_error_outside_the_contract_is_a_crash_with_its_last_line(stage: Zygote, script: Script) -> None:
    with pytest.raises(Crashed, match=r"exit code 1: .*_Nonsense: odd"):
        play(script(fail={"phase": "run", "error": "nonsense", "why": "odd"}), stage)


def test_last_words_cannot_paint_the_terminal(stage: Zygote, script: Script) -> None:
    with pytest.raises(Crashed) as failed:
        play(script(print="\x1b[31mred\x07", fail={"phase": "run", "error": "crash"}), stage)
    assert str(failed.value).isprintable()


def test_a_load_without_end_is_timed_out(stage: Zygote, script: Script) -> None:
    with pytest.raises(TimedOut, match=r"still loading after its limit of 0\.3 s"):
        play(script(hang="load"), stage, Limits(load_s=0.3, run_s=20))


def test_a_run_without_end_is_timed_out_by_its_own_limit(stage: Zygote, script: Script) -> None:
    with pytest.raises(TimedOut, match=r"still running after its limit of 0\.3 s"):
        play(script(hang="run"), stage, Limits(load_s=20, run_s=0.3))


def test_memory_beyond_the_limit_ends_the_child_and_is_said(stage: Zygote, script: Script) -> None:
    with pytest.raises(Crashed, match=r"out of memory \(limit 64 MiB"):
        play(script(eat_mib=4096), stage, Limits(load_s=20, run_s=20, memory_bytes=64 * MIB))


def test_memory_within_the_limit_is_let_be(stage: Zygote, script: Script) -> None:
    assert play(script(eat_mib=50), stage, Limits(load_s=20, run_s=20, memory_bytes=256 * MIB))


def test_a_child_that_tells_too_much_is_stopped(stage: Zygote, script: Script) -> None:
    with pytest.raises(Crashed, match="broke its contract: it sent more than its output limit"):
        play(script(), stage, Limits(load_s=20, run_s=20, output_bytes=1500), runs=500)


def test_a_process_that_left_the_group_is_found_and_ended(bare: Zygote, script: Script) -> None:
    play(script(orphan=True), bare)
    wait_until(lambda: not below(bare), "the orphan lives on")


def test_an_orphan_does_not_survive_a_time_out_either(bare: Zygote, script: Script) -> None:
    with pytest.raises(TimedOut):
        play(script(orphan=True, hang="run"), bare, Limits(load_s=20, run_s=0.3))


def hanging(stage: Zygote, script: Script) -> tuple[Launch, Iterator[Event]]:
    """A launch that has loaded, left an orphan and hangs."""
    launch = Launch(order(script(hang="run", orphan=True)), QUICK, stage)
    events = launch.events()
    for event in events:
        if isinstance(event, Loaded):
            break
    wait_until(lambda: len(below(stage)) >= 3, "keeper, worker and orphan are up")
    return launch, events


def test_a_kill_from_another_thread_ends_everything_before_it_returns(bare: Zygote, script: Script) -> None:
    launch, events = hanging(bare, script)
    doomed = below(bare)
    ended: list[BaseException] = []

    def consume() -> None:
        try:
            list(events)
        except Cancelled as why:
            ended.append(why)

    consumer = threading.Thread(target=consume)
    consumer.start()
    launch.kill()
    assert not any(lives(one) for one in doomed[1:]), "the keeper hangs up after all below it are dead"
    consumer.join(GONE_S)
    assert len(ended) == 1
    launch.kill()  # once more does nothing


def test_a_launch_killed_before_it_began_never_begins(stage: Zygote, script: Script) -> None:
    launch = Launch(order(script()), QUICK, stage)
    launch.kill()
    with pytest.raises(Cancelled):
        next(launch.events())


def test_a_launch_that_nobody_listens_to_any_more_is_ended(bare: Zygote, script: Script) -> None:
    _, events = hanging(bare, script)
    events.close()  # type: ignore[attr-defined]
    wait_until(lambda: not below(bare), "an abandoned launch lives on")


def test_a_killed_keeper_takes_its_worker_along(stage: Zygote, script: Script) -> None:
    launch = Launch(order(script(hang="run")), QUICK, stage)
    events = launch.events()
    assert any(isinstance(event, Loaded) for event in [next(events), next(events), next(events)])
    (keeper,) = psutil.Process(stage.pids[0]).children()
    keeper.kill()
    with pytest.raises(Crashed, match="vanished"):
        list(events)


def test_a_killed_zygote_is_replaced(script: Script) -> None:
    with Zygote("fake", simulate=True).start() as stage:
        play(script(), stage)
        (first,) = stage.pids
        psutil.Process(first).kill()
        wait_until(
            lambda: not psutil.pid_exists(first) or psutil.Process(first).status() == psutil.STATUS_ZOMBIE,
            "dead",
        )
        play(script(), stage)
        assert stage.pids != (first,)


def test_launches_run_side_by_side(stage: Zygote, script: Script) -> None:
    model = script(latencies_ms=[3])
    done: list[int] = []

    def one() -> None:
        done.append(sum(isinstance(event, Checked) for event in play(model, stage)))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GONE_S)
    assert done == [1] * 4


def test_orders_of_nothing_are_refused(stage: Zygote, script: Script) -> None:
    with pytest.raises(Unfit, match="at least 1"):
        play(script(), stage, runs=0)


def test_units_are_tried_out_in_children() -> None:
    probed = probe_units(simulate=True)
    assert {info.unit for info in probed.units} >= {"CPU (ONNX)", UNIT}
    assert probed.troubles == ()
    assert "onnxruntime" not in sys.modules or "drivers.onnx_session" in sys.modules


PLAIN_CASES = [
    ({}, None, ""),
    ({"fail": {"phase": "run", "error": "unfit", "why": "no"}}, Unfit, "no"),
    ({"print": "words\n", "fail": {"phase": "run", "error": "crash"}}, Crashed, "exit code 7: words"),
    ({"hang": "run"}, TimedOut, "still running"),
]


@pytest.mark.parametrize(("keys", "error", "words"), PLAIN_CASES, ids=["well", "unfit", "crash", "hang"])
def test_where_there_is_no_fork_the_same_holds(
    script: Script, keys: dict[str, object], error: type[Exception] | None, words: str
) -> None:
    with Zygote("fake", simulate=True, can_fork=False) as plain:
        if error is None:
            assert sum(isinstance(event, Measured) for event in play(script(**keys), plain)) == 1
        else:
            with pytest.raises(error, match=words):
                play(script(**keys), plain, Limits(load_s=20, run_s=0.5))
    assert not [one for one in psutil.Process().children() if "plain" in one.cmdline()]


NODE = """
import sys
from drivers.base import Limits, Loaded, WorkOrder
from drivers.confine import Tier
from drivers.launch import Launch, Zygote
can_fork = sys.argv[2] == "fork"
stage = Zygote("fake", simulate=True, can_fork=can_fork, tier=Tier.NONE).start()
for event in Launch(WorkOrder(sys.argv[1], "Fake (Simulation)", 1, 1), Limits(), stage).events():
    if isinstance(event, Loaded):
        print("loaded", flush=True)
"""


@pytest.mark.parametrize(("way", "processes"), [("fork", 4), ("plain", 1)])
def test_nothing_outlives_a_node_that_is_killed(script: Script, way: str, processes: int) -> None:
    model = script(hang="run", orphan=way == "fork")
    with subprocess.Popen(
        [sys.executable, "-P", "-c", NODE, model, way],
        env={**os.environ, "TMPDIR": tempfile.gettempdir()},
        stdout=subprocess.PIPE,
        text=True,
    ) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == "loaded\n"
        family = psutil.Process(node.pid)
        wait_until(
            lambda: len(family.children(recursive=True)) >= processes,
            "zygote, keeper, worker and orphan are up",
        )
        doomed = family.children(recursive=True)
        node.kill()
        wait_until(lambda: not any(lives(one) for one in doomed), f"some of {doomed} live on", seconds=1.0)
    for folder in Path(tempfile.gettempdir()).glob("sark-run-*") if way == "plain" else ():
        shutil.rmtree(folder)  # without a keeper nobody is left to do it


def test_a_folder_full_of_namesakes_changes_nothing(tmp_path: Path, script: Script) -> None:
    trap = "raise SystemExit('the trap in the working directory was imported')\n"
    (tmp_path / "drivers").mkdir()
    for name in (
        "drivers/__init__.py",
        "drivers/zygote.py",
        "json.py",
        "psutil.py",
        "sark.py",
        "numpy.py",
        "onnxruntime.py",
    ):
        (tmp_path / name).write_text(trap)
    ask = "from drivers.launch import probe_units; print(*[info.unit for info in probe_units(simulate=True).units])"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    told = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.remove({str(tmp_path)!r}); {ask}"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.stdout.split("\n")[0] == f"{UNIT} CPU (ONNX)", told.stderr


def test_a_child_sees_no_secret_of_its_parents_environment(script: Script) -> None:
    os.environ["SARK_TEST_TOKEN"] = "secret"
    try:
        with Zygote("fake", simulate=True).start() as stage:
            play(script(), stage)
            assert "SARK_TEST_TOKEN" not in psutil.Process(stage.pids[0]).environ()
    finally:
        del os.environ["SARK_TEST_TOKEN"]


def test_progress_is_told_in_the_order_of_the_phases(stage: Zygote, script: Script) -> None:
    phases = [event.phase for event in play(script(), stage, runs=10) if isinstance(event, Progressed)]
    assert list(dict.fromkeys(phases)) == [Phase.PREPARE, Phase.LOAD, Phase.WARM_UP, Phase.RUN, Phase.CHECK]


def test_limits_of_a_year_are_no_longer_than_the_system_can_wait(stage: Zygote, script: Script) -> None:
    year = Limits(load_s=31_536_000, run_s=31_536_000)
    assert play(script(), stage, year)
    with Zygote("fake", simulate=True, can_fork=False) as plain:
        assert play(script(), plain, year)


FULL = """
import resource, sys, tempfile
from pathlib import Path
from drivers.base import Crashed, Limits, WorkOrder
from drivers.launch import Launch, Zygote
_, model, way, lack = sys.argv
def opened():
    return len(list(Path("/proc/self/fd").iterdir())) - 1
def allow(files):
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
order = WorkOrder(model, "Fake (Simulation)", 1, 1)
stage = Zygote("fake", simulate=True, can_fork=way == "fork").start()
list(Launch(order, Limits(), stage).events())
temporary, before = tempfile.gettempdir(), opened()
if lack == "zygote":
    stage.close()
    before = opened()
for spare in range(10):
    if lack == "folder":
        tempfile.tempdir = "/nowhere/at/all"
    else:
        allow(before + spare)
    try:
        list(Launch(order, Limits(), stage).events())
    except Crashed as why:
        print(why)
allow(100)
stage.close()
print(opened() <= before, list(Path(temporary).iterdir()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
@pytest.mark.parametrize(
    ("way", "lack"),
    [("fork", "folder"), ("fork", "files"), ("fork", "zygote"), ("plain", "folder"), ("plain", "files")],
)
def test_a_device_without_room_for_a_launch_fails_the_run_and_leaks_nothing(
    tmp_path: Path, script: Script, way: str, lack: str
) -> None:
    (tmp_path / "temporary").mkdir()
    told = subprocess.run(
        [sys.executable, "-P", "-c", FULL, script(), way, lack],
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        capture_output=True,
        text=True,
        check=False,
    )
    *lines, end = told.stdout.splitlines()
    assert lines
    assert all("this device cannot start a process for the run" in line for line in lines), lines
    assert end == "True []", told.stderr


KEEPER = """
import os, socket, sys, tempfile
del os.waitid, os.P_PID, os.WNOWAIT
from drivers import keeper, wire
from drivers.base import Limits, WorkOrder
from drivers.confine import Tier
told = wire.pack_order(WorkOrder(sys.argv[1], "Fake (Simulation)", 1, 1), Limits(), "fake", True, "run")
ours, theirs = socket.socketpair()
teller, orders = socket.socketpair()
_, tell = os.pipe()
log = tempfile.TemporaryFile()
if os.fork() == 0:
    for end in (ours, theirs, teller):
        end.close()
    keeper.keep(orders, None, Tier.NONE)
keeper.pass_on(teller, os.fsencode(tempfile.mkdtemp()) + b"\\0" + told, [theirs.fileno(), tell, log.fileno()])
theirs.close()
said = b""
while more := ours.recv(64):
    said += more
print(said.split()[1].decode())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork there")
def test_a_keeper_on_a_system_that_cannot_look_without_reaping_tells_the_exit_code_too(
    script: Script,
) -> None:
    model = script(fail={"phase": "run", "error": "crash"}, orphan=True)
    told = subprocess.run(
        [sys.executable, "-P", "-c", KEEPER, model],
        env={**os.environ, "TMPDIR": tempfile.gettempdir()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.stdout == "7\n", told.stderr


class NeverQuiet(Quiet):
    """A host on which waiting did not help."""

    def wait(self, sleep: Callable[[float], object]) -> Generator[tuple[float, float], None, Waited]:
        yield 0.0, 0.1
        return Waited(0.1, 0.9)


def test_a_busy_host_before_the_first_launch_is_a_note_and_no_figure_of_the_timed_window(
    stage: Zygote, script: Script
) -> None:
    events = list(Launch(order(script(), runs=8, loads=2), QUICK, stage, NeverQuiet()).events())
    shares = [event.host.others_share for event in events if isinstance(event, Measured)]
    described = next(event for event in events if isinstance(event, Described))
    assert shares == [None, None], "the windows are too short to tell"
    assert "others took 90% of the processors before the first launch" in described.notes[-1]
