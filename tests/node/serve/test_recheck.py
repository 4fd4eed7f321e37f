"""When a worker recalibrates, and that it releases the device at once when anybody wants it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio
import trio.testing

from node.device.calibration import Calibration
from node.device.calibration_rounds import Calibrator, RoundEnd
from node.device.lock import DeviceLock
from node.serve.recheck import LONGEST_PAUSE_S, LOOK_S, OLD_S, UNSURE_S, Recheck, is_due, pause_after
from protocol.errors import ResourceError
from protocol.messages.work import Action, Control, Granted, WorkerStatus
from protocol.words import RunOutcome
from tests.node.device.test_calibration import device, tools

NOW = 1_000_000.0


def known(age_s: float, rounds: int = 3, quiet: bool | None = True) -> Calibration:
    return Calibration(fingerprint="0" * 64, at=NOW - age_s, timer_ns=40, rounds=rounds, quiet=quiet)


@pytest.mark.parametrize(
    ("calibration", "due"),
    [
        (None, True),
        (known(0, quiet=False), True),
        (known(0, rounds=1, quiet=None), False),
        (known(UNSURE_S - 1, rounds=2), False),
        (known(UNSURE_S, rounds=2), True),
        (known(UNSURE_S), False),
        (known(OLD_S - 1), False),
        (known(OLD_S), True),
        (known(-60), True),
    ],
)
def test_a_round_is_due_where_what_is_known_is_unsure_busy_or_old(
    calibration: Calibration | None, due: bool
) -> None:
    assert is_due(calibration, NOW) is due


@pytest.mark.parametrize(
    ("end", "spoilt", "seconds"),
    [
        (None, 0, LOOK_S),
        (RoundEnd.BUSY, 0, LOOK_S),
        (RoundEnd.JOINED, 0, LOOK_S),
        (RoundEnd.DISTURBED, 1, 2 * LOOK_S),
        (RoundEnd.DISTURBED, 4, 16 * LOOK_S),
        (RoundEnd.DISTURBED, 40, LONGEST_PAUSE_S),
    ],
)
def test_the_pause_grows_only_after_rounds_that_were_spoilt(
    end: RoundEnd | None, spoilt: int, seconds: float
) -> None:
    assert pause_after(end, spoilt) == seconds


@dataclass
class Rounds(Calibrator):
    """Rounds that end as scripted, or run until they are stopped."""

    ends: list[RoundEnd | Exception | None] = field(default_factory=list)
    begun: int = 0

    async def at_quiet(self) -> RoundEnd:
        self.begun += 1
        async with self.lock.hold():
            end = self.ends.pop(0)
            if end is None:
                await trio.sleep_forever()
            if isinstance(end, Exception):
                raise end
            if end is RoundEnd.JOINED:
                self.current = known(0)
        assert end is not None
        return end


def rounds(folder: Path, *ends: RoundEnd | Exception | None) -> Rounds:
    return Rounds(folder / "d.json", device(), tools(folder), DeviceLock("d", folder), ends=list(ends))


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.001)


class Worker:
    """A worker whose time passes only while it sleeps."""

    def __init__(self, calibrator: Calibrator, **options: Any) -> None:
        self.idle, self.pauses, self.lines = True, list[float](), list[str]()
        self.recheck = Recheck(
            calibrator, lambda: self.idle, self.lines.append, wall=lambda: NOW, sleep=self._sleep, **options
        )

    async def _sleep(self, seconds: float) -> None:
        if seconds >= LOOK_S:
            self.pauses.append(seconds)
        await trio.sleep(seconds)


async def passes(calibrator: Rounds, hours: float) -> Worker:
    worker = Worker(calibrator)
    with trio.move_on_after(hours * 3600):
        await worker.recheck.keep()
    return worker


async def test_it_comes_back_until_a_round_was_quiet_and_then_rests(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    here = rounds(
        tmp_path,
        RoundEnd.BUSY,
        RoundEnd.DISTURBED,
        RoundEnd.DISTURBED,
        ResourceError("cannot use /x"),
        ExceptionGroup("of a nursery", [OSError(errno.ENOSPC, "No space left on device")]),
        RoundEnd.JOINED,
    )
    here.current = known(0, quiet=False)
    with structlog.testing.capture_logs() as lines:
        worker = await passes(here, 1)
    assert here.begun == 6
    assert [line["why"] for line in lines if line["event"] == "calibration.lost"] == [
        "cannot use /x",
        "[Errno 28] No space left on device",
    ]
    assert worker.pauses[:7] == [LOOK_S, LOOK_S, 2 * LOOK_S, 4 * LOOK_S, LOOK_S, LOOK_S, LOOK_S]
    assert len(worker.lines) == 1
    assert worker.lines[0].startswith("calibrated at a quiet moment: ")


async def test_nothing_is_measured_while_it_works_or_serves_nobody(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    here = rounds(tmp_path)
    worker = Worker(here)
    worker.idle = False
    with trio.move_on_after(3600):
        await worker.recheck.keep()
    assert here.begun == 0


async def test_a_task_ends_a_round_at_once_and_another_comes_later(tmp_path: Path) -> None:
    here = rounds(tmp_path, None, RoundEnd.JOINED)
    worker = Worker(here)
    ends: list[RoundEnd | None] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def once() -> None:
                ends.append(await worker.recheck.once())

            nursery.start_soon(once)
            while not here.begun:
                await trio.lowlevel.checkpoint()
            worker.recheck.give_way()
        async with here.lock.hold(lambda: pytest.fail("the device is free")):
            pass
        ends.append(await worker.recheck.once())
    assert ends == [None, RoundEnd.JOINED]


async def test_whoever_waits_for_the_device_gets_it(tmp_path: Path) -> None:
    here = rounds(tmp_path, None)
    worker = Worker(here)
    got = trio.Event()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.recheck.once)
            while not here.begun:
                await trio.lowlevel.checkpoint()

            async def other() -> None:
                async with DeviceLock("d", tmp_path).hold():
                    got.set()

            nursery.start_soon(other)
            await got.wait()


async def test_a_worker_that_is_given_a_task_lets_the_device_go_and_runs_it(
    world: Any, tmp_path: Path
) -> None:
    here = world.calibrator = rounds(tmp_path, None)
    here.current = known(0)
    world.device.go.set()
    worker = await world.start()
    assert worker.recheck.idle()
    ends: list[RoundEnd | None] = []

    async def once() -> None:
        ends.append(await worker.recheck.once())

    world.nursery.start_soon(once)
    await until(lambda: here.begun)
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task()), Granted)
    assert not worker.recheck.idle()
    assert (await world.ann.record()).outcome is RunOutcome.COMPLETE
    assert ends == [None]
    await until(worker.recheck.idle)
    await link.ask(Control(action=Action.PAUSE), WorkerStatus)
    assert not worker.recheck.idle(), "its owner wants the device"
