"""Shared parts for tests of launches: orders for the scripted unit, their events, and the processes below a zygote."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

from drivers.contract.base import BetweenLaunches, Event, Limits, LoadReport, ProgressReport, WorkOrder
from drivers.launch.launch import Zygote, measure
from drivers.testing.fake import UNIT

Script = Callable[..., str]

LONG_S = 120.0
"""Limit for steps that take no time on an idle machine."""
QUICK = Limits(load_s=LONG_S, run_s=LONG_S)
GONE_S = LONG_S


def order(model: str, runs: int = 4, loads: int = 1) -> WorkOrder:
    """An order for the scripted unit."""
    return WorkOrder(model, UNIT, runs, loads)


def play(model: str, stage: Zygote, limits: Limits = QUICK, runs: int = 4, loads: int = 1) -> list[Event]:
    """All events of one order."""
    return list(measure(order(model, runs, loads), limits, stage))


def below(stage: Zygote) -> list[psutil.Process]:
    """All processes below the zygotes: reapers, workers, and orphans adopted by reapers."""
    results: list[psutil.Process] = []
    for pid in stage.pids:
        results += psutil.Process(pid).children(recursive=True)
    return results


def lives(process: psutil.Process) -> bool:
    """Whether the process still runs. A zombie does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], what: str, seconds: float = GONE_S) -> None:
    """Poll until the condition holds. Fails after `seconds`."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(0.005)


def kinds_of(events: list[Event]) -> list[str]:
    """The kinds of events, without progress and events between launches. A load counts by its own kind."""
    return [
        str(event.kind) if isinstance(event, LoadReport) else type(event).__name__
        for event in events
        if not isinstance(event, (ProgressReport, BetweenLaunches))
    ]


STORY = ["ModelDescription", "MeasureReport", "CheckReport", "warm"]
