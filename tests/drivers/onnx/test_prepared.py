"""Launches prepared while nothing runs: they equal other launches, end with the zygote, and disturb nobody while they wait."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from drivers.contract.base import Event, Limits, LoadKind, LoadReport, MeasureReport, WorkOrder
from drivers.launch import probe_tier as sandbox
from drivers.launch.device_lock import FreeDevice
from drivers.launch.launch import Zygote, measure
from drivers.launch.reaper import poll
from drivers.launch.zygote import IDLE_MS, MIN_READY, RECENT_S, fits, pause_ms, prefork_of, ready_for
from drivers.measure.process_tree import children
from drivers.openai.driver import ApiDriver
from drivers.sandbox.enter import Tier
from drivers.sandbox.mounts import MountPlan, plan
from drivers.testing.fake import UNIT, FakeDriver


@pytest.fixture(scope="module")
def reached() -> sandbox.TierProbe:
    """The sandbox tier that this machine reaches."""
    return sandbox.probe()


def waiting_below(zygote: Zygote, reached: sandbox.TierProbe, reapers: int = 1) -> list[psutil.Process]:
    """The waiting reapers, each with its init and worker, once all have been forked. None where launches are not prepared."""
    until = time.monotonic() + 20
    wanted = 3 * reapers if reached.tier is Tier.FULL else 0
    before, found = list[psutil.Process](), below(zygote)
    while time.monotonic() < until and not (len(found) == wanted and found == before):
        threading.Event().wait(0.2)  # by then nothing is left of a launch that has just ended
        before, found = found, below(zygote)
    return found


def below(zygote: Zygote) -> list[psutil.Process]:
    """All processes below the zygote's process."""
    return psutil.Process(zygote.pids[0]).children(recursive=True)


def test_launches_that_were_prepared_for_are_as_good_as_others_and_end_with_the_zygote(
    tmp_path: Path, reached: sandbox.TierProbe
) -> None:
    model = tmp_path / "script.json"
    model.write_text('{"latencies_ms": [1, 2]}')
    order = WorkOrder(str(model), UNIT, 8, 2)
    with Zygote("fake", simulate=True, tier=reached.tier, prefork=1).start() as zygote:
        waiting = waiting_below(zygote, reached)
        assert len(waiting) == (3 if reached.tier is Tier.FULL else 0)
        events = list(measure(order, Limits(load_s=20, run_s=20), zygote))
        assert [event.samples_ns for event in events if isinstance(event, MeasureReport)] == [
            (1_000_000, 2_000_000, 1_000_000, 2_000_000)
        ] * 2
        assert psutil.wait_procs(waiting, timeout=5)[1] == []
        doomed = below(zygote)
    assert psutil.wait_procs(doomed, timeout=5)[1] == []


@pytest.mark.parametrize("ended", [0, 1, 2], ids=["reaper", "init", "worker"])
def test_a_launch_gets_another_reaper_if_any_process_of_the_prepared_one_was_ended(
    tmp_path: Path, reached: sandbox.TierProbe, ended: int
) -> None:
    model = tmp_path / "script.json"
    model.write_text('{"latencies_ms": [1, 2]}')
    order = WorkOrder(str(model), UNIT, 2, 1)
    with Zygote("fake", simulate=True, tier=reached.tier, prefork=1).start() as zygote:
        waiting = waiting_below(zygote, reached)
        for one in waiting[ended : ended + 1]:
            one.kill()
        assert psutil.wait_procs(waiting, timeout=5)[1] == []
        events = list(measure(order, Limits(load_s=20, run_s=20), zygote))
    assert [event.samples_ns for event in events if isinstance(event, MeasureReport)] == [
        (1_000_000, 2_000_000)
    ]


def test_a_driver_that_was_used_has_more_prepared_than_one_that_only_waits(
    tmp_path: Path, reached: sandbox.TierProbe
) -> None:
    model = tmp_path / "script.json"
    model.write_text('{"latencies_ms": [1, 2]}')
    order = WorkOrder(str(model), UNIT, 2, 1)
    with Zygote("fake", simulate=True, tier=reached.tier, prefork=3).start() as zygote:
        before = waiting_below(zygote, reached)
        list(measure(order, Limits(load_s=20, run_s=20), zygote))
        psutil.wait_procs(before, timeout=5)
        after = waiting_below(zygote, reached, reapers=3)
    assert (len(before), len(after)) == ((3, 9) if reached.tier is Tier.FULL else (0, 0))


def test_while_somebody_has_the_device_nothing_is_made_nor_half_made(
    tmp_path: Path, reached: sandbox.TierProbe
) -> None:
    if reached.tier is not Tier.FULL:
        assert reached.reasons
        return
    path = tmp_path / "device.lock"
    path.touch()
    device = FreeDevice(str(path))
    model = tmp_path / "script.json"
    model.write_text('{"latencies_ms": [1, 2]}')
    order = WorkOrder(str(model), UNIT, 2, 1)
    assert device.take()
    with Zygote("fake", simulate=True, tier=reached.tier, prefork=4, device_lock=str(path)).start() as zygote:
        list(measure(order, Limits(load_s=20, run_s=20), zygote))
        threading.Event().wait(2 * IDLE_MS / 1000)
        assert below(zygote) == []
        device.give()
        seen: list[int] = []
        making = False
        until = time.monotonic() + 20
        while time.monotonic() < until and (making or len(children(zygote.pids[0])) < 4):
            if not device.take():
                making = True
                continue
            if making:
                seen.append(len(below(zygote)))
            device.give()
            making = False
            threading.Event().wait(0.001)
        while not device.take():
            threading.Event().wait(0.001)
        seen.append(len(below(zygote)))
        device.give()
        assert set(seen) <= {3, 6, 9, 12}
        assert seen[-1] == 12
        # nor can a launch keep the device from others
        assert not any(file.path == str(path) for one in below(zygote) for file in one.open_files())


class AskedZygote(Zygote):
    """Records at each request to prepare how many events had come."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.events: list[Event] = []
        self.asked: list[int] = []

    def prepare(self) -> None:
        self.asked.append(len(self.events))
        super().prepare()


def test_who_has_the_device_has_the_next_launch_prepared_for_while_one_ends(
    tmp_path: Path, reached: sandbox.TierProbe
) -> None:
    path = tmp_path / "device.lock"
    path.touch()
    device, other = FreeDevice(str(path)), FreeDevice(str(path))
    model = tmp_path / "script.json"
    model.write_text('{"latencies_ms": [1, 2]}')
    order = WorkOrder(str(model), UNIT, 8, 2)
    assert device.take()
    handle = device._handle
    options: dict[str, Any] = {"prefork": 4, "device_lock": str(path), "held": lambda: handle}
    with AskedZygote("fake", simulate=True, tier=reached.tier, **options).start() as zygote:
        for event in measure(order, Limits(load_s=20, run_s=20), zygote):
            zygote.events.append(event)
        first, second = (zygote.events[at:] for at in zygote.asked)
        assert isinstance(first[0], LoadReport)
        assert first[0].kind is LoadKind.WARM, "the last of a full launch"
        assert [type(event) for event in second] == [MeasureReport], "the last of one that times alone"
        if reached.tier is not Tier.FULL:
            assert reached.reasons
            return
        prepared = waiting_below(zygote, reached)
        assert len(prepared) == 3, "one, although the device is in use"
        assert not other.take(), "and it still is"
        assert not any(file.path == str(path) for one in prepared for file in one.open_files())
        prepared[0].kill()
        assert psutil.wait_procs(prepared, timeout=5)[1] == []
        zygote.prepare()
        assert len(waiting_below(zygote, reached)) == 3, "another, for one that was ended"
        zygote.prepare()
        handle = -1
        device.forget()  # as a node does: closes the file without unlocking it
        until = time.monotonic() + 20
        while not other.take() and time.monotonic() < until:
            threading.Event().wait(0.001)
        assert other._handle >= 0
        assert len(below(zygote)) == 3, "one was enough"


def test_a_zygote_that_is_stopped_cannot_keep_the_device(tmp_path: Path, reached: sandbox.TierProbe) -> None:
    if reached.tier is not Tier.FULL:
        assert reached.reasons
        return
    path = tmp_path / "device.lock"
    path.touch()
    device, other = FreeDevice(str(path)), FreeDevice(str(path))
    options: dict[str, Any] = {"prefork": 4, "device_lock": str(path), "held": lambda: device._handle}
    with Zygote("fake", simulate=True, tier=reached.tier, **options).start() as zygote:
        (stopped,) = map(psutil.Process, zygote.pids)
        prepared = waiting_below(zygote, reached)
        while not device.take():
            threading.Event().wait(0.001)
        prepared[0].kill()
        psutil.wait_procs(prepared, timeout=5)
        for _ in range(2):
            stopped.suspend()
            zygote.prepare()
            device.forget()
            assert other.take()
            other.forget()
            assert device.take()
            stopped.resume()
            assert poll(zygote._processes[True]._socket.fileno(), timeout_ms=20_000), "an answer, too late"
        zygote.prepare()
        assert len(waiting_below(zygote, reached)) == 3
        device.give()


def test_without_the_device_nothing_is_prepared_for(tmp_path: Path, reached: sandbox.TierProbe) -> None:
    path = tmp_path / "device.lock"
    path.touch()
    device = FreeDevice(str(path))
    assert device.take()
    with Zygote("fake", simulate=True, tier=reached.tier, prefork=4, device_lock=str(path)).start() as zygote:
        zygote.prepare()
        threading.Event().wait(2 * IDLE_MS / 1000)
        assert below(zygote) == []
    device.give()


def test_where_the_lock_cannot_be_used_nobody_has_the_device(tmp_path: Path) -> None:
    assert not FreeDevice(str(tmp_path / "none")).take()
    assert FreeDevice("").take()


def test_only_what_an_order_brings_may_differ_from_what_was_prepared() -> None:
    def view(*code: str, network: bool = False, gpu: bool = False) -> MountPlan:
        return plan("/f", ("/m",), 7, code=code, in_dev=("nvidia0",), network=network, gpu=gpu)

    base = plan("", (), 0, code=("/code",), in_dev=("nvidia0",))
    assert fits(view("/code"), base)
    others = [None, view("/other"), view("/code", network=True), view("/code", gpu=True)]
    assert [fits(each, base) for each in others] == [False] * 4


def test_in_a_queue_the_next_launch_is_prepared_for_as_soon_as_one_has_ended() -> None:
    assert pause_ms(forking=True, ready=0, left_s=RECENT_S) == 0
    assert pause_ms(forking=True, ready=1, left_s=RECENT_S) == IDLE_MS  # others wait for a break
    assert pause_ms(forking=True, ready=0, left_s=0.0) == IDLE_MS
    assert pause_ms(forking=True, ready=0, left_s=RECENT_S, retry_ms=5) == 5  # the device was still in use
    assert pause_ms(forking=True, ready=1, left_s=RECENT_S, retry_ms=5) == IDLE_MS


def test_what_was_prepared_is_given_up_when_nothing_was_launched_for_long() -> None:
    assert [ready_for(6, unused) for unused in (0.0, RECENT_S - 1, RECENT_S, math.inf)] == [
        6,
        6,
        MIN_READY,
        MIN_READY,
    ]
    assert ready_for(0, 0.0) == ready_for(0, math.inf) == 0
    assert pause_ms(forking=True, ready=0, left_s=-math.inf) == IDLE_MS
    assert pause_ms(forking=False, ready=6, left_s=2.5) == 2500
    assert pause_ms(forking=False, ready=MIN_READY, left_s=-math.inf) is None


@pytest.mark.parametrize(("tier", "number"), [(Tier.FULL, 6), (Tier.PARTIAL, 0), (Tier.NONE, 0)])
def test_only_launches_in_the_full_sandbox_are_prepared_for(tier: Tier, number: int) -> None:
    assert prefork_of(FakeDriver(), tier, 6) == number
    assert prefork_of(ApiDriver(), tier, 6) == 0  # it runs in the partial sandbox, for its connections


TAKEN_OUT: Final = """
import contextlib, os, sys, threading, time
from pathlib import Path
import psutil
from drivers.sandbox import linux
from drivers.sandbox.enter import Tier
from drivers.launch.launch import Zygote

lib, uid, gid = linux.libc(), os.getuid(), os.getgid()
place = sys.argv[1].encode()
assert lib.unshare(linux.CLONE_NEWNS | (linux.CLONE_NEWUSER if uid else 0)) == 0
if uid:
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
for kind, flags in ((None, linux.MS_REC | linux.MS_PRIVATE), (None, linux.MS_REC | 1 << 20)):
    assert lib.mount(None, b"/", kind, flags, None) == 0
assert lib.mount(b"the-disk", place, b"tmpfs", 0, b"size=1m") == 0

def mounts():
    views = []
    for one in psutil.Process(zygote.pids[0]).children(recursive=True):
        with contextlib.suppress(OSError):  # it has ended
            views.append(Path(f"/proc/{one.pid}/mountinfo").read_text())
    return views

with Zygote("fake", simulate=True, tier=Tier.FULL, prefork=1).start() as zygote:
    until = time.monotonic() + 20
    while not any(" - tmpfs sark " in view and " - proc proc " in view.split(" - tmpfs sark ")[1] for view in mounts()):
        assert time.monotonic() < until
        threading.Event().wait(0.02)
    before = sum(" the-disk " in view for view in mounts())
    assert lib.umount2(place, 0) == 0
    print(before, sum(" the-disk " in view for view in mounts()))
"""
"""A system whose disk is unmounted while launches are being prepared."""


def test_a_view_that_waits_for_its_launch_holds_no_disk_that_is_taken_out(
    tmp_path: Path, reached: sandbox.TierProbe
) -> None:
    if reached.tier is not Tier.FULL:
        assert reached.reasons
        return
    done = subprocess.run(
        [sys.executable, "-P", "-c", TAKEN_OUT, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split()[1:] == ["0"], done.stderr


def test_the_processor_time_of_launches_that_have_ended_is_still_ours(
    tmp_path: Path, reached: sandbox.TierProbe
) -> None:
    model = tmp_path / "script.json"
    model.write_text('{"eat_mib": 64, "latencies_ms": [1]}')  # filling memory takes time
    order = WorkOrder(str(model), UNIT, 4, 3)
    with Zygote("fake", simulate=True, tier=reached.tier).start() as zygote:
        process = psutil.Process(zygote.pids[0])

        def ended_s() -> float:
            result = process.cpu_times()
            return float(result.children_user + result.children_system)

        def zombies() -> list[psutil.Process]:
            found = []
            for child in below(zygote):
                with contextlib.suppress(psutil.NoSuchProcess):  # its parent has reaped it meanwhile
                    found += [child] if child.status() == psutil.STATUS_ZOMBIE else []
            return found

        list(measure(order, Limits(load_s=20, run_s=20), zygote))
        until = time.monotonic() + 10
        while not (settled := ended_s() > 0 and not zombies()) and time.monotonic() < until:
            threading.Event().wait(0.01)
        assert settled  # both seen at once: a later look may find another reaper that has just ended
