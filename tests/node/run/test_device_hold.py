"""The device during a run with gaps between launches: others measure in the gaps, and no launch begins while one of them does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from drivers.contract.base import BetweenLaunches, Event
from node.device.lock import DeviceLock
from node.run.device_hold import SHORTEST_GAP_S, DeviceHold
from node.run.runner import StopRun, run
from protocol.errors import ResourceError
from protocol.formats.phase import Phase
from protocol.values.record import Record
from protocol.words import Reason, RunOutcome
from tests.node.run.runner_parts import CHECKED, LOADED, MEASURED, ScriptedLaunch, bench, described, job, task

GAP = 2 * SHORTEST_GAP_S


async def is_free(folder: Path) -> bool:
    """Whether another process could measure now."""
    with trio.move_on_after(0.05) as waited:
        async with DeviceLock("d-1", folder).hold():
            pass
    return not waited.cancelled_caught


class Spread(ScriptedLaunch):
    """Two launches with a gap between them. Notes after each event whether the device was free."""

    def __init__(
        self, folder: Path, *gaps: float, in_gap: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint
    ) -> None:
        super().__init__()
        self._folder, self._gaps, self._in_gap = folder, gaps, in_gap
        self.free: list[tuple[str, bool]] = []

    def events(self) -> Iterator[Event]:
        first: tuple[Event, ...] = (LOADED, described(), MEASURED, CHECKED)
        for event in (*first, *map(BetweenLaunches, self._gaps), LOADED, MEASURED):
            yield event
            what = f"gap {event.gap_s:g}" if isinstance(event, BetweenLaunches) else type(event).__name__
            self.free.append((what, trio.from_thread.run(is_free, self._folder)))
            if isinstance(event, BetweenLaunches) and event.gap_s:
                trio.from_thread.run(self._in_gap)


async def measured(
    folder: Path,
    launch: Spread,
    stop: StopRun | None = None,
    waits: trio.Event | None = None,
    *,
    holding: Callable[[bool], None] = lambda held: None,
    clock: Callable[[], float] = time.monotonic,
) -> Record:
    """The record of one run. Sets `waits` when the run reports that it waits for the device."""
    made = replace(bench(folder, lambda order, limits: launch), clock=clock)

    def report(phase: Phase, *figures: object) -> None:
        if waits is not None and phase is Phase.QUEUED:
            waits.set()

    return await run(job(task()), made, stop or StopRun(), report, holding=holding)


async def test_others_may_measure_in_a_gap_and_in_no_launch(tmp_path: Path) -> None:
    launch = Spread(tmp_path, GAP, GAP / 4, 0.0)
    held: list[bool] = []
    record = await measured(tmp_path, launch, holding=held.append)
    assert record.outcome is RunOutcome.COMPLETE
    assert held == [True, False, True, False]
    assert [what for what, free in launch.free if free] == ["gap 2", "gap 0.5"]
    assert await is_free(tmp_path)
    assert "gap" in {stage.stage for stage in record.stages}


async def test_the_device_is_kept_where_there_is_hardly_a_gap(tmp_path: Path) -> None:
    launch = Spread(tmp_path, SHORTEST_GAP_S / 2, 0.0)
    await measured(tmp_path, launch)
    assert not any(free for _, free in launch.free)


async def test_the_next_launch_waits_for_who_measures_in_the_gap(tmp_path: Path) -> None:
    waits, taken = trio.Event(), trio.Event()
    events_until_then: list[tuple[str, bool]] = []
    later = [0.0]

    async def measure_meanwhile() -> None:
        async with DeviceLock("d-1", tmp_path).hold():
            taken.set()
            await waits.wait()
            later.append(1000.0)
            events_until_then.extend(launch.free)

    async def begin() -> None:
        nursery.start_soon(measure_meanwhile)
        await taken.wait()

    launch = Spread(tmp_path, GAP, 0.0, in_gap=begin)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            record = await measured(tmp_path, launch, waits=waits, clock=lambda: time.monotonic() + later[-1])
    assert record.outcome is RunOutcome.COMPLETE
    assert [stage.stage for stage in record.stages if stage.seconds > 500] == ["queue"], "not gap"
    assert events_until_then[-1][0] == "gap 2", "the next launch has not begun"


async def test_a_run_can_be_stopped_while_it_waits_for_the_device_again(tmp_path: Path) -> None:
    stop, waits = StopRun(), trio.Event()

    async def stop_then() -> None:
        await waits.wait()
        stop.now(Reason.CANCELLED)

    async with contextlib.AsyncExitStack() as other, trio.open_nursery() as nursery:

        async def take() -> None:
            await other.enter_async_context(DeviceLock("d-1", tmp_path).hold())
            nursery.start_soon(stop_then)

        with trio.fail_after(5):
            record = await measured(tmp_path, Spread(tmp_path, GAP, 0.0, in_gap=take), stop, waits)
    assert (record.outcome, record.reason) == (RunOutcome.CANCELLED, Reason.CANCELLED)
    assert len(record.timings) == 1, "what was seen before stays in"
    assert await is_free(tmp_path)


async def test_a_lock_that_cannot_be_used_again_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    lock = DeviceLock("d-1", tmp_path)

    async def spoil() -> None:
        lock.path.unlink()
        lock.path.mkdir()

    record = await measured(tmp_path, Spread(tmp_path, GAP, 0.0, in_gap=spoil))
    assert (record.outcome, record.reason) == (RunOutcome.FAILED, Reason.CRASHED)
    assert str(lock.path) in record.detail


async def test_what_is_taken_in_part_is_given_back(tmp_path: Path) -> None:
    exclusive, lock = trio.Lock(), DeviceLock("d-1", tmp_path)
    lock.path.mkdir()

    async def idle() -> None:
        pass

    device = DeviceHold(exclusive, lock, idle, lambda: None)
    with pytest.raises(ResourceError):
        await device.take()
    await device.give()
    assert not exclusive.locked()
    assert not device.held
