"""Every way in which the child process can end, and what is reported of it. The scripted driver misbehaves on request."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from drivers.contract.base import (
    MIB,
    Cancelled,
    Crashed,
    Event,
    Limits,
    LoadKind,
    LoadReport,
    MeasureReport,
    TimedOut,
    Unfit,
)
from drivers.launch.launch import Launch, Zygote, measure
from tests.drivers.launching import LONG_S, QUICK, STORY, Script, kinds_of, order, play

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_measurements_before_the_death_of_a_later_launch_are_reported(stage: Zygote, script: Script) -> None:
    model = script(fail={"phase": "run", "error": "crash", "repeats_only": True}, print="no more")
    observed: list[Event] = []
    with pytest.raises(Crashed, match="exit code 7: no more"):
        observed.extend(measure(order(model, 12, 3), QUICK, stage))
    assert kinds_of(observed)[1:] == [*STORY, "fresh"]


def test_a_run_that_is_cancelled_between_launches_makes_no_other(stage: Zygote, script: Script) -> None:
    launch = Launch(order(script(), 12, 3), QUICK, stage)
    events: list[Event] = []

    def follow() -> None:
        for event in launch.events():
            events.append(event)
            if isinstance(event, LoadReport) and event.kind is LoadKind.WARM:
                launch.kill()

    with pytest.raises(Cancelled):
        follow()
    assert kinds_of(events)[1:] == STORY


def test_all_launches_together_have_the_time_that_a_run_may_take(stage: Zygote, script: Script) -> None:
    model = script(latencies_ms=[100], sleep=True)
    with pytest.raises(TimedOut, match=r"still running after its limit of 1 s"):
        play(model, stage, Limits(load_s=LONG_S, run_s=1.0), runs=12, loads=3)


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
        play(script(hang="run"), stage, Limits(load_s=LONG_S, run_s=0.3))


def test_memory_beyond_the_limit_ends_the_child_and_is_reported(stage: Zygote, script: Script) -> None:
    with pytest.raises(Crashed, match=r"out of memory \(limit 64 MiB"):
        play(script(eat_mib=4096), stage, Limits(load_s=LONG_S, run_s=LONG_S, memory_bytes=64 * MIB))


def test_memory_within_the_limit_is_let_be(stage: Zygote, script: Script) -> None:
    assert play(script(eat_mib=50), stage, Limits(load_s=LONG_S, run_s=LONG_S, memory_bytes=256 * MIB))


def test_a_child_that_tells_too_much_is_stopped(stage: Zygote, script: Script) -> None:
    with pytest.raises(Crashed, match="broke its contract: it sent more than its output limit"):
        play(script(), stage, Limits(load_s=LONG_S, run_s=LONG_S, output_bytes=1500), runs=500)


def test_a_launch_killed_before_it_began_never_begins(stage: Zygote, script: Script) -> None:
    launch = Launch(order(script()), QUICK, stage)
    launch.kill()
    with pytest.raises(Cancelled):
        next(launch.events())


def test_orders_of_nothing_are_refused(stage: Zygote, script: Script) -> None:
    with pytest.raises(Unfit, match="at least 1"):
        play(script(), stage, runs=0)


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
            assert sum(isinstance(event, MeasureReport) for event in play(script(**keys), plain)) == 1
        else:
            with pytest.raises(error, match=words):
                play(script(**keys), plain, Limits(load_s=LONG_S, run_s=0.5 if error is TimedOut else LONG_S))
    assert not [one for one in psutil.Process().children() if "plain" in one.cmdline()]


def test_limits_of_a_year_are_no_longer_than_the_system_can_wait(stage: Zygote, script: Script) -> None:
    year = Limits(load_s=31_536_000, run_s=31_536_000)
    assert play(script(), stage, year)
    with Zygote("fake", simulate=True, can_fork=False) as plain:
        assert play(script(), plain, year)


FULL = """
import resource, sys, tempfile
from pathlib import Path
from drivers.contract.base import Crashed, Limits, WorkOrder
from drivers.launch.launch import Launch, Zygote
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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
@pytest.mark.parametrize(
    ("way", "lack"),
    [("fork", "folder"), ("fork", "files"), ("fork", "zygote"), ("plain", "folder"), ("plain", "files")],
)
def test_a_device_without_room_for_a_launch_fails_the_run_and_leaks_nothing(
    tmp_path: Path, script: Script, way: str, lack: str
) -> None:
    (tmp_path / "temporary").mkdir()
    done = subprocess.run(
        [sys.executable, "-P", "-c", FULL, script(), way, lack],
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        capture_output=True,
        text=True,
        check=False,
    )
    *lines, end = done.stdout.splitlines()
    assert lines
    assert all("this device cannot start a process for the run" in line for line in lines), lines
    assert end == "True []", done.stderr


REAPER = """
import os, socket, sys, tempfile
del os.waitid, os.P_PID, os.WNOWAIT
from drivers.launch import reaper
from drivers.contract import frames as wire
from drivers.contract.base import Limits, WorkOrder
from drivers.sandbox.enter import Tier
packed = wire.pack_order(WorkOrder(sys.argv[1], "Fake (Simulation)", 1, 1), Limits(), "fake", True, "run")
own, theirs = socket.socketpair()
teller, orders = socket.socketpair()
_, tell = os.pipe()
log = tempfile.TemporaryFile()
if os.fork() == 0:
    for end in (own, theirs, teller):
        end.close()
    reaper.serve_launch(orders, None, Tier.NONE)
wire.send_request(teller, os.fsencode(tempfile.mkdtemp()) + b"\\0" + packed, [theirs.fileno(), tell, log.fileno()])
theirs.close()
reply = b""
while more := own.recv(64):
    reply += more
print(reply.split()[1].decode())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork there")
def test_a_reaper_on_a_system_that_cannot_look_without_reaping_tells_the_exit_code_too(
    script: Script,
) -> None:
    model = script(fail={"phase": "run", "error": "crash"}, orphan=True)
    done = subprocess.run(
        [sys.executable, "-P", "-c", REAPER, model],
        env={**os.environ, "TMPDIR": tempfile.gettempdir()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "7\n", done.stderr
