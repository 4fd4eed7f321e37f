"""A run leaves nothing behind, whichever process is killed, and whatever its processes start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from drivers.contract.base import Cancelled, Crashed, Event, Limits, LoadReport, TimedOut
from drivers.launch.launch import Launch, Zygote
from tests.drivers.launching import GONE_S, LONG_S, QUICK, Script, below, lives, order, play, wait_until

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_a_process_that_left_the_group_is_found_and_ended(bare: Zygote, script: Script) -> None:
    play(script(orphan=True), bare)
    wait_until(lambda: not below(bare), "the orphan lives on")


def test_an_orphan_does_not_survive_a_time_out_either(bare: Zygote, script: Script) -> None:
    with pytest.raises(TimedOut):
        play(script(orphan=True, hang="run"), bare, Limits(load_s=LONG_S, run_s=0.3))


def hanging(stage: Zygote, script: Script) -> tuple[Launch, Iterator[Event]]:
    """A launch that has loaded its model, left an orphan and hangs."""
    launch = Launch(order(script(hang="run", orphan=True)), QUICK, stage)
    events = launch.events()
    for event in events:
        if isinstance(event, LoadReport):
            break
    wait_until(lambda: len(below(stage)) >= 3, "reaper, worker and orphan are up")
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
    assert not any(lives(one) for one in doomed[1:]), "the reaper hangs up after all below it are dead"
    consumer.join(GONE_S)
    assert len(ended) == 1
    launch.kill()  # a second kill does nothing


def test_a_launch_that_nobody_listens_to_any_more_is_ended(bare: Zygote, script: Script) -> None:
    _, events = hanging(bare, script)
    events.close()  # type: ignore[attr-defined]
    wait_until(lambda: not below(bare), "an abandoned launch lives on")


def test_a_killed_reaper_takes_its_worker_along(stage: Zygote, script: Script) -> None:
    launch = Launch(order(script(hang="run")), QUICK, stage)
    events = launch.events()
    assert any(isinstance(event, LoadReport) for event in [next(events), next(events), next(events)])
    (reaper,) = psutil.Process(stage.pids[0]).children()
    reaper.kill()
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


NODE = """
import sys
from drivers.contract.base import Limits, LoadReport, WorkOrder
from drivers.sandbox.enter import Tier
from drivers.launch.launch import Launch, Zygote
can_fork = sys.argv[2] == "fork"
stage = Zygote("fake", simulate=True, can_fork=can_fork, tier=Tier.NONE).start()
for event in Launch(WorkOrder(sys.argv[1], "Fake (Simulation)", 1, 1), Limits(), stage).events():
    if isinstance(event, LoadReport):
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
            "zygote, reaper, worker and orphan are up",
        )
        doomed = family.children(recursive=True)
        node.kill()
        wait_until(lambda: not any(lives(one) for one in doomed), f"some of {doomed} live on")
    for folder in Path(tempfile.gettempdir()).glob("sark-run-*") if way == "plain" else ():
        shutil.rmtree(folder)  # without a reaper nobody else removes it
