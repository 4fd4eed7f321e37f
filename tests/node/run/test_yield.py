"""A run of real processes gives way to a higher priority between two launches, and never inside one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from drivers.contract.base import Limits, WorkOrder
from drivers.launch.launch import Launch, Zygote
from drivers.launch.process import Child
from drivers.testing.fake import UNIT
from node.capacity.allocations import KillCommand
from node.run.runner import StopRun, run
from protocol.messages.work import Granted, Queued
from protocol.values.lease import MAX_PREEMPTIONS
from protocol.values.record import unpack_samples
from protocol.values.task import Measure
from protocol.words import Reason, RunOutcome
from tests.node.ledger_parts import ANN, BOB, linked, want
from tests.node.run.runner_parts import bench, job, task

SCRIPT = b'{"latencies_ms": [2]}'


class CountingZygote(Zygote):
    launches = 0

    def launch(self, order: WorkOrder, limits: Limits, job: str) -> Child:
        self.launches += 1
        return super().launch(order, limits, job)


@pytest.fixture
def zygote() -> Iterator[CountingZygote]:
    with CountingZygote("fake", simulate=True) as started:
        yield started


@pytest.mark.parametrize(("preempted", "launches"), [(0, 1), (MAX_PREEMPTIONS, 3)])
async def test_a_run_yields_after_the_launch_that_is_being_timed_and_at_most_twice(
    tmp_path: Path, zygote: CountingZygote, preempted: int, launches: int
) -> None:
    ledger, stop, now = linked(), StopRun(), 0.0
    low = ledger.commit(want(1, ANN, preempted=preempted), now)
    assert isinstance(low, Granted)
    ledger.take_commands()
    windows: list[bool] = []

    def obey() -> None:
        for command in ledger.take_commands():
            if isinstance(command, KillCommand):
                stop.now(command.reason)

    def timing(on: bool) -> None:
        windows.append(on)
        ledger.timing(low.lease, on, now)
        if windows == [True, False, True]:  # the load is over, and the first launch runs its inferences
            assert isinstance(ledger.commit(want(1, BOB, queue=True, priority=90), now), Queued)
        obey()
        assert stop.reason is None, "inside a launch nobody is disturbed"

    def between() -> None:
        ledger.between_launches(low.lease, now)
        obey()

    made = bench(tmp_path, lambda order, limits: Launch(order, limits, zygote), SCRIPT)
    what = task(SCRIPT, unit=UNIT, measure=Measure(runs=12, loads=3))
    record = await run(job(what), made, stop, lambda *progress: None, timing, between=between)
    assert zygote.launches == launches
    assert [unpack_samples(each.samples) for each in record.timings] == [(2_000_000,) * 4] * launches
    if launches == 3:
        assert record.outcome is RunOutcome.COMPLETE
    else:
        assert (record.outcome, record.reason) == (RunOutcome.CANCELLED, Reason.PREEMPTED)
    ledger.finish(low.lease, now)
    ticket = ledger.allocations()[-1]
    assert ticket.state == "offered", "its slot went to the higher one"


@pytest.mark.patient
async def test_a_run_yields_in_the_gap_before_its_next_launch(tmp_path: Path, zygote: CountingZygote) -> None:
    ledger, stop, now = linked(), StopRun(), 0.0
    low = ledger.commit(want(1, ANN), now)
    assert isinstance(low, Granted)
    ledger.take_commands()
    asked = 0

    def between() -> None:
        nonlocal asked
        asked += 1
        if asked == 3:  # called once between two launches, and repeatedly in a gap
            assert isinstance(ledger.commit(want(1, BOB, queue=True, priority=90), now), Queued)
        ledger.between_launches(low.lease, now)
        for command in ledger.take_commands():
            if isinstance(command, KillCommand):
                stop.now(command.reason)

    made = bench(tmp_path, lambda order, limits: Launch(order, limits, zygote), SCRIPT)
    what = task(SCRIPT, unit=UNIT, measure=Measure(runs=12, loads=3, over_s=3600.0))
    with trio.fail_after(60):
        record = await run(job(what), made, stop, lambda *progress: None, lambda on: None, between=between)
    assert zygote.launches == 1
    assert (record.outcome, record.reason) == (RunOutcome.CANCELLED, Reason.PREEMPTED)
