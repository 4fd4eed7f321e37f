"""Examples on their way to a driver, and its answers on their way into the record."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.base import AnswersReport, Unfit, WorkOrder
from drivers.contract.frames import Garbled
from drivers.launch.events import unpack
from node.run.record_builder import RunObservations
from node.run.runner import StopRun, limits, run
from protocol.errors import RemoteProtocolError
from protocol.formats.examples import MAX_ANSWER_BYTES, Value, pack_examples
from protocol.values.answers import AnswerSet, answer_set, read_answers
from protocol.values.record import Record, read_record, record_body
from protocol.values.task import Model, Task
from protocol.words import Reason, RunOutcome
from tests.node.run.runner_parts import (
    CHECKED,
    CONTENT,
    LOADED,
    MEASURED,
    ScriptedLaunch,
    bench,
    described,
    job,
    source_of,
    task,
)

ANSWERS = ({"y": Value("float32", (1,), bytes(4))},)
EXAMPLES = pack_examples(({"x": Value("float32", (1,), bytes(4))},))
FILE = Model(name="digits", sha256=hashlib.sha256(EXAMPLES).hexdigest(), size=len(EXAMPLES))
WHOLE = (LOADED, described(), MEASURED, CHECKED)
ANSWERED = AnswersReport(b64encode(pack_examples(ANSWERS)).decode())


async def record_of(folder: Path, launch: ScriptedLaunch, what: Task, seen: list[bytes]) -> Record:
    """The record of one run. Adds to `seen` what the driver reads at the path of the examples."""

    def start(order: WorkOrder, limits: object) -> ScriptedLaunch:
        seen.append(Path(order.examples).read_bytes() if order.examples else b"")
        return launch

    def file(what: Any, model: Model, progress: Any) -> Any:
        content = EXAMPLES if model == FILE else CONTENT
        return bench(folder, None, source=lambda job: source_of(content)).model(what, model, progress)

    made = await run(
        job(what), bench(folder, start, model=file), StopRun(), lambda phase, done, total, median: None
    )
    assert read_record(record_body(made)) == made, "what is recorded can be sent"
    return made


async def test_the_driver_reads_the_examples_and_the_record_has_its_answers(tmp_path: Path) -> None:
    seen: list[bytes] = []
    record = await record_of(tmp_path, ScriptedLaunch(*WHOLE, ANSWERED), task(examples=FILE), seen)
    assert seen == [EXAMPLES]
    assert record.answers is not None
    assert read_answers(record.answers) == ANSWERS


async def test_a_run_without_answers_is_complete_and_says_why(tmp_path: Path) -> None:
    launch = ScriptedLaunch(*WHOLE, AnswersReport(why="example 1 of 1: too wide"))
    record = await record_of(tmp_path, launch, task(examples=FILE), [])
    assert record.outcome is RunOutcome.COMPLETE
    assert record.answers == AnswerSet(why="example 1 of 1: too wide")


@pytest.mark.parametrize("text", ["A", "é", "AAAAA", "AA==AA=="])
def test_answers_that_are_no_base64_break_the_contract(text: str) -> None:
    with pytest.raises(Garbled):
        unpack(b"AnswersReport " + json.dumps({"answers": text}).encode())


async def test_a_bug_of_ours_costs_one_run(tmp_path: Path) -> None:
    """An invalid report that should have been refused earlier got through. The node's other runs go on."""
    damaged = replace(ANSWERED)
    object.__setattr__(damaged, "answers", "A")
    record = await record_of(tmp_path, ScriptedLaunch(*WHOLE, damaged), task(examples=FILE), [])
    assert (record.outcome, record.reason) == (RunOutcome.FAILED, Reason.CRASHED)
    assert "sark-node failed, not the model" in record.detail


async def test_a_bug_of_ours_ends_the_processes_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []

    class Launch(ScriptedLaunch):
        def events(self) -> Generator[Any]:
            try:
                yield from super().events()
            finally:
                ended.append(True)

    def broken(observations: RunObservations, event: object, now: float) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(RunObservations, "add", broken)
    record = await record_of(tmp_path, Launch(*WHOLE), task(), [])
    assert record.reason is Reason.CRASHED
    assert "KeyError('a bug')" in record.detail
    assert ended == [True]


@pytest.mark.parametrize(
    ("launch", "what"),
    [
        (ScriptedLaunch(*WHOLE), task()),
        (ScriptedLaunch(LOADED, then=Unfit("it is broken")), task(examples=FILE)),
    ],
    ids=["no examples", "ended before"],
)
async def test_a_record_is_silent_where_nothing_was_to_be_answered(
    tmp_path: Path, launch: ScriptedLaunch, what: Task
) -> None:
    assert (await record_of(tmp_path, launch, what, [])).answers is None


def test_the_examples_have_room_in_memory() -> None:
    with_examples = limits(task(examples=FILE), 10**12).memory_bytes
    assert with_examples == limits(task(), 10**12).memory_bytes + 2 * FILE.size


@pytest.mark.parametrize(
    ("answered", "why"),
    [
        (AnswerSet(), "bad answers"),
        (AnswerSet(answers=b"not deflated"), "bad answers"),
        (answer_set(b"no examples"), "bad answers: its head"),
        (answer_set(bytes(MAX_ANSWER_BYTES + 1)), "bad answers"),
        (answer_set(pack_examples(ANSWERS)).model_copy(update={"sha256": "0" * 64}), "another sha256"),
    ],
)
def test_answers_of_another_form_are_refused(answered: AnswerSet, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        read_answers(answered)


def test_models_in_turns_have_no_examples() -> None:
    other = Model(name="n.onnx", sha256="1" * 64, size=1)
    with pytest.raises(ValueError, match="takes turns with others cannot answer examples"):
        task(examples=FILE, beside=(other,))
    assert task(examples=FILE).files() == (task().model, FILE)
    assert task(examples=FILE).needs(FILE.sha256)
