"""Canaries: few at a time, never delaying a campaign, and refuting nobody when the model is at fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio
import trio.testing

from protocol.errors import ResourceError
from protocol.values.record import LaunchOutput
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts
from results.row.canary import CanaryOutcome, CanaryVerdict, seed_of
from scheduler.run.canaries import WAIT_S, Canaries, no_answers
from tests.results.row.witness_parts import output, record, sketch

TASK = Task(
    campaign="c-1",
    task="c-1/1",
    scheduler="1" * 52,
    model=Model(name="m.onnx", sha256="0" * 64, size=5),
    unit="CPU (ONNX)",
    requirement=Requirement(),
    measure=Measure(),
    timeouts=Timeouts(),
)
OTHER = LaunchOutput(sha256="f" * 64, sketches=(sketch(0.0, 0.0, 1.0),))

Answer = Callable[[Path, Task, int], LaunchOutput]


def right(launch: int) -> Answer:
    """The output of this launch according to the record; another output for all other inputs."""
    return lambda model, task, seed: output(launch) if seed == seed_of(record(), launch) else OTHER


async def verdict(answer: Answer, launch: int = 2) -> CanaryVerdict:
    return await Canaries(answer, Path("/spool"), lambda below: launch - 1).check(TASK, record())


async def test_one_launch_is_drawn_and_repeated_with_its_own_inputs() -> None:
    asked: list[tuple[Path, int]] = []

    def answer(model: Path, task: Task, seed: int) -> LaunchOutput:
        asked.append((model, seed))
        return right(3)(model, task, seed)

    assert (await verdict(answer, 3)).text == "launch 3 confirmed"
    assert asked[0] == (Path("/spool") / ("0" * 64), seed_of(record(), 3))
    assert len(asked) == 2, "and once with others"


async def test_other_outputs_refute() -> None:
    def answer(model: Path, task: Task, seed: int) -> LaunchOutput:
        changed = sketch(0.0, 1.0) if seed == seed_of(record(), 2) else sketch(0.0, 0.0, 1.0)
        return LaunchOutput(sha256="e" * 64, sketches=(changed,))

    assert (await verdict(answer)).outcome is CanaryOutcome.REFUTED


async def test_a_model_that_answers_differently_each_time_refutes_nobody() -> None:
    count = iter(range(1, 9))

    def answer(model: Path, task: Task, seed: int) -> LaunchOutput:
        number = next(count)
        sums = [0.0] * 10
        sums[number] = 1.0
        return LaunchOutput(sha256=f"{number:064x}", sketches=(sketch(*sums),))

    assert "differently each time" in (await verdict(answer)).text


async def test_a_home_that_cannot_run_the_model_says_why() -> None:
    def answer(model: Path, task: Task, seed: int) -> LaunchOutput:
        raise ResourceError("no torch here")

    assert (await verdict(answer)).text == "unchecked: no torch here"
    assert "runs no models" in (await verdict(no_answers)).text


async def test_a_result_waits_for_its_turn_only_so_long(autojump_clock: trio.testing.MockClock) -> None:
    canaries = Canaries(right(2), Path("/spool"), lambda below: 1)
    await canaries._turns.acquire_on_behalf_of("another")
    began = trio.current_time()
    assert "too many other inferences" in (await canaries.check(TASK, record())).text
    assert trio.current_time() - began == WAIT_S


async def test_a_record_without_a_chain_is_not_checked() -> None:
    canaries = Canaries(right(2), Path("/spool"), lambda below: 1)
    assert (await canaries.check(TASK, record(reveal=None))).outcome is CanaryOutcome.UNCHECKED
