"""The section on scores and drift, and the drift itself."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.formats.examples import UNNAMED, Value, pack_examples, text_value
from protocol.values.answers import AnswerSet, answer_set
from protocol.values.attempt import TaskState
from protocol.values.record import SignedRecord, record_body, record_message
from protocol.values.task import Model, Task, task_body
from results.analysis.drift import drifts
from results.export.raw import RawResult, raw_result
from results.report.facts import Report
from results.report.measurements import number
from results.report.page import Table, quote
from results.report.quality import quality
from results.row.make import make_row
from results.scoring.account import EvaluationAccount
from results.scoring.scorer import score
from tests.results.analysis.test_verify import TASK, WORKER, record

ACCOUNT = EvaluationAccount(title="classification of digits.npz", metrics=("accuracy",), references=(1, 0))


def answers(*rows: list[float], name: str = "y") -> AnswerSet:
    return answer_set(
        pack_examples(
            {name: Value("float32", (1, len(row)), np.array(row, "float32").tobytes())} for row in rows
        )
    )


def result(number: int, answered: AnswerSet, unit: str = "CPU (ONNX)") -> RawResult:
    examples = Model(name="digits.examples", sha256="e" * 64, size=9)
    task = Task.model_validate(
        TASK.model_dump() | {"task": f"c-1/{number}", "unit": unit, "examples": examples}
    )
    made = record(task, answers=answered)
    body = record_body(made)
    signed = SignedRecord(body=body, signature=WORKER.sign(record_message(body)))
    row = make_row(task, TaskState.SUCCEEDED, made, scores=score(made, ACCOUNT))
    return raw_result(row, task_body(task), signed, evaluation=ACCOUNT)


FIRST = result(1, answers([0, 2], [4, 0]))
SAME = result(2, answers([0, 2], [4, 0]))
NEAR = result(3, answers([0, 2.02], [4.2, 0], name="out"), "CPU (LiteRT)")
OTHER = result(4, answers([0, 2, 1], [1, 2, 3]), "CPU (Torch)")
NONE = result(5, AnswerSet(why="example 1 of 2: too wide"))


def test_drift_is_from_the_first_run_of_the_same_model_and_examples() -> None:
    same, near, other = drifts([FIRST, SAME, NEAR, OTHER, NONE])
    assert {each.reference.job_id for each in (same, near, other)} == {"c-1/1"}
    assert (same.alike, same.drift) == (True, 0.0)
    assert (near.alike, near.drift, near.drift_max) == (
        False,
        pytest.approx(0.03, rel=1e-4),
        pytest.approx(0.05, rel=1e-4),
    )
    assert other.drift is None
    assert "[1, 3]" in other.why


def test_a_report_says_what_each_unit_scores_and_how_far_it_drifts() -> None:
    section = quality(Report([FIRST, SAME, NEAR, NONE], "c-1", "t", 0.0, "1"))
    assert section is not None
    (table, note) = section.blocks
    assert isinstance(table, Table)
    assert "classification of digits.npz, 2 examples" in table.caption
    assert table.heads == [
        "device and unit",
        "task#",
        "accuracy#",
        "drift from task 1#",
        "largest#",
        "",
    ]
    assert [line[2:] for line in table.rows] == [
        [number(1.0), "", "", ""],
        [number(1.0), "0", "0", quote("identical bit for bit")],
        [number(1.0), "0.03", "0.05", ""],
        ["", "", "", quote("example 1 of 2: too wide")],
    ]
    assert str(note).startswith("Drift: ")


def test_texts_have_no_column_for_drift_and_say_which_are_the_same() -> None:
    def texts(number: int, *words: str) -> RawResult:
        return result(number, answer_set(pack_examples({UNNAMED: text_value(word)} for word in words)))

    section = quality(
        Report([texts(1, "a", "b"), texts(2, "a", "c"), texts(3, "a", "b")], "c-1", "t", 0.0, "1")
    )
    assert section is not None
    (table,) = section.blocks
    assert isinstance(table, Table)
    assert table.heads == ["device and unit", "task#", ""]
    why = quote("metric 'accuracy': the answer to example 1 is text, but accuracy needs a value per class")
    assert [line[2] for line in table.rows] == [why, why, why]
    (other, same) = drifts([texts(1, "a"), texts(2, "b"), texts(3, "a")])
    assert (other.alike, other.drift, same.alike, same.drift) == (False, None, True, None)


def test_answers_that_cannot_be_read_cost_their_drift_and_not_the_report() -> None:
    broken = result(1, AnswerSet(answers=b"junk", sha256="0" * 64))
    (drift,) = drifts([broken, SAME])
    assert (drift.drift, drift.why) == (None, "2 answers, but 0 references")


def test_a_report_without_evaluated_models_has_no_such_section() -> None:
    assert quality(Report([], "c-1", "t", 0.0, "1")) is None
