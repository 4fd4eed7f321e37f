"""A witnessed run: the scheduler sends the reveal from which the inputs follow, and hears of each launch as it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import trio

from drivers.contract.base import (
    Event,
    OutputReport,
)
from drivers.launch.launch import AskReveal, digest_of
from node.run.runner import StopRun, run
from protocol.errors import RunError
from protocol.values.record import (
    Record,
    read_record,
    record_body,
)
from protocol.words import Reason, RunOutcome
from tests.node.run.runner_parts import (
    CHECKED,
    LOADED,
    MEASURED,
    ScriptedLaunch,
    bench,
    described,
    job,
    record_of,
    task,
)


class Scheduler:
    """Reveals, or refuses to, and records the ended launches."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.told: list[tuple[int, str]] = []

    async def reveal(self) -> tuple[bytes, bytes]:
        await trio.lowlevel.checkpoint()
        if self.refuses:
            raise RunError("no", reason=Reason.UNKNOWN, permanent=False)
        return b"o" * 32, b"r" * 32

    def launch_ended(self, launch: int, digest: str) -> None:
        self.told.append((launch, digest))


class AskingLaunch(ScriptedLaunch):
    """A launch that asks for its reveal before its first event."""

    def __init__(self, reveal: AskReveal, *events: Event) -> None:
        super().__init__(*events)
        self._reveal = reveal

    def events(self) -> Iterator[Event]:
        self._reveal()
        yield from super().events()


async def witnessed_record(folder: Path, scheduler: Scheduler, *events: Event) -> Record:
    return await run(
        job(task()),
        bench(folder, lambda order, limits, reveal: AskingLaunch(reveal, *events)),
        StopRun(),
        lambda *progress: None,
        witness=scheduler,
    )


OUTPUTS = (OutputReport("1" * 64), OutputReport("2" * 64))


async def test_a_witnessed_run_tells_each_launch_as_it_ends_and_records_what_was_revealed(
    tmp_path: Path,
) -> None:
    scheduler = Scheduler()
    story = (LOADED, OUTPUTS[0], described(), MEASURED, CHECKED, LOADED, OUTPUTS[1], MEASURED)
    record = await witnessed_record(tmp_path, scheduler, *story)
    assert record.outcome is RunOutcome.COMPLETE
    assert scheduler.told == [(at, digest_of(report).hex()) for at, report in enumerate(OUTPUTS, start=1)]
    assert (record.opening, record.reveal) == (b"o" * 32, b"r" * 32)
    noted = [timing.output for timing in record.timings]
    assert [output.digest().hex() for output in noted if output is not None] == [
        digest for _, digest in scheduler.told
    ]
    assert read_record(record_body(record)) == record


async def test_a_run_whose_inputs_are_not_revealed_fails_with_the_schedulers_reason(tmp_path: Path) -> None:
    record = await witnessed_record(tmp_path, Scheduler(refuses=True), LOADED)
    assert (record.outcome, record.reason, record.detail) == (RunOutcome.FAILED, Reason.UNKNOWN, "no")


async def test_a_run_that_waits_for_its_reveal_can_be_stopped(tmp_path: Path) -> None:
    class Silent(Scheduler):
        async def reveal(self) -> tuple[bytes, bytes]:
            stop.now(Reason.CANCELLED)
            await trio.sleep_forever()
            raise AssertionError

    stop = StopRun()
    record = await run(
        job(task()),
        bench(tmp_path, lambda order, limits, reveal: AskingLaunch(reveal, LOADED)),
        stop,
        lambda *progress: None,
        witness=Silent(),
    )
    assert (record.outcome, record.reason) == (RunOutcome.CANCELLED, Reason.CANCELLED)


async def test_the_outputs_of_an_ordinary_run_are_recorded_without_a_reveal(tmp_path: Path) -> None:
    record = await record_of(tmp_path, ScriptedLaunch(LOADED, OUTPUTS[0], described(), MEASURED, CHECKED))
    assert record.timings[0].output is not None
    assert record.timings[0].output.sha256 == "1" * 64
    assert record.reveal is None
