"""The scheduler process around the service: what it waits for, and how it ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from protocol.errors import ResourceError, StoreUnreachable
from scheduler.run import process
from scheduler.run.process import STORE_RETRY_S, run_process
from scheduler.store.settings import SchedulerSettings
from swarm.base.home import Home

SILENT = StoreUnreachable("postgresql://db/sark: the server does not answer")


def scripted(monkeypatch: pytest.MonkeyPatch, *ends: BaseException | float) -> list[float]:
    """Each life of the service ends with an error, or normally after some seconds. Returns when each began."""
    began: list[float] = []
    left = list(ends)

    async def once(*words: Any) -> None:
        began.append(trio.current_time())
        end = left.pop(0)
        if isinstance(end, BaseException):
            await trio.sleep(1)
            raise BaseExceptionGroup("of the nursery", [end])
        await trio.sleep(end)
        words[-1].set()

    monkeypatch.setattr(process, "_run_once", once)
    return began


async def run_scheduler(folder: Path) -> None:
    await run_process(Home.at(folder), SchedulerSettings(), True, False)


async def test_a_database_server_that_falls_silent_is_waited_for(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = scripted(monkeypatch, *[SILENT] * 6, 3.0)
    with trio.fail_after(100):
        await run_scheduler(tmp_path)
    pauses = [after - before - 1 for before, after in itertools.pairwise(began)]
    assert pauses == pytest.approx([1, 2, 4, 8, 10, 10])


async def test_after_a_good_while_the_first_pause_is_short_again(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def once(*words: Any) -> None:
        lives.append(trio.current_time())
        if len(lives) == 5:
            words[-1].set()
            return
        await trio.sleep(1 if len(lives) < 4 else 3600)
        raise SILENT

    lives: list[float] = []
    monkeypatch.setattr(process, "_run_once", once)
    await run_scheduler(tmp_path)
    assert lives[4] - lives[3] == pytest.approx(3600 + STORE_RETRY_S[0])


def silent_store(home: Home) -> Any:
    raise SILENT


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda m: m.setattr(process, "open_store", silent_store), StoreUnreachable),
        (lambda m: scripted(m, ResourceError("the disk is full")), ResourceError),
    ],
    ids=["silent from the start", "another error"],
)
async def test_what_waiting_does_not_mend_ends_it(
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch], object],
    error: type[Exception],
) -> None:
    change(monkeypatch)
    with pytest.RaisesGroup(error, allow_unwrapped=True, flatten_subgroups=True):
        await run_scheduler(tmp_path)


async def test_who_waits_can_be_stopped(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stop(*, with_stdin: bool) -> str:
        return "SIGTERM"

    began = scripted(monkeypatch, SILENT)
    monkeypatch.setattr(process, "wait_for_stop", stop)
    await run_scheduler(tmp_path)
    assert len(began) == 1


async def test_who_was_stopped_stays_so_though_the_server_falls_silent_meanwhile(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = 0

    async def once(*words: Any) -> None:
        nonlocal lives
        lives += 1
        words[-1].set()
        raise SILENT

    monkeypatch.setattr(process, "_run_once", once)
    with trio.fail_after(1):
        await run_scheduler(tmp_path)
    assert lives == 1
