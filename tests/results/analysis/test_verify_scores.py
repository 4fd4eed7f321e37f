"""Scores in a results file: the metrics run again on the answers that the worker signed."""

from __future__ import annotations

import numpy as np

from protocol.formats.examples import Value, pack_examples
from protocol.values.answers import answer_set
from protocol.values.attempt import TaskState
from protocol.values.record import SignedRecord, record_body, record_message
from protocol.values.task import Model, Task, task_body
from results.export.raw import RawResult, raw_result, read_raw
from results.row.make import make_row
from results.row.scores import Scores
from results.scoring.account import EvaluationAccount
from results.scoring.scorer import score
from tests.results.analysis.test_verify import TASK, WORKER, record, text, wrongs

EXAMPLES = Model(name="digits.examples", sha256="e" * 64, size=9)
EVALUATED = Task.model_validate(TASK.model_dump() | {"examples": EXAMPLES})
ACCOUNT = EvaluationAccount(title="digits", metrics=("accuracy",), references=(1, 0))
ANSWERS = answer_set(
    pack_examples({"y": Value("float32", (1, 2), np.array([[0, 1]], "float32").tobytes())} for _ in range(2))
)


def evaluated(account: EvaluationAccount | None = ACCOUNT, scores: Scores | None = None) -> RawResult:
    made = record(EVALUATED, answers=ANSWERS)
    body = record_body(made)
    signed = SignedRecord(body=body, signature=WORKER.sign(record_message(body)))
    if scores is None and account is not None:
        scores = score(made, account)
    row = make_row(EVALUATED, TaskState.SUCCEEDED, made, scores=scores)
    return raw_result(row, task_body(EVALUATED), signed, evaluation=account)


def test_scores_follow_from_the_signed_answers_and_the_references() -> None:
    made = evaluated()
    assert (made.row.scores, made.row.answers_sha256) == ("accuracy=0.5", ANSWERS.sha256)
    assert wrongs(made, text=text(made)) == []
    (read,) = read_raw(text(made).encode())
    assert read == made


def test_a_score_that_was_touched_up_is_found() -> None:
    made = evaluated(scores=Scores(scores={"accuracy": 1.0}))
    assert wrongs(made) == ["its score accuracy is 1, but scoring its answers again gives 0.5"]


def test_references_that_were_exchanged_are_found() -> None:
    other = ACCOUNT.model_copy(update={"references": (1, 1)})
    made = evaluated().model_copy(update={"evaluation": other})
    assert wrongs(made) == ["its score accuracy is 0.5, but scoring its answers again gives 1"]


def test_scores_without_references_do_not_hold_and_none_do() -> None:
    assert wrongs(evaluated().model_copy(update={"evaluation": None})) != []
    assert wrongs(evaluated(None, Scores(why="the references are elsewhere"))) == []


def test_a_metric_that_is_not_installed_here_is_no_forgery() -> None:
    account = ACCOUNT.model_copy(update={"metrics": ("accuracy", "mrr")})
    made = evaluated(account, Scores(scores={"accuracy": 0.5, "mrr": 0.75}))
    (why,) = wrongs(made)
    assert why.startswith("its scores cannot be checked here: there is no metric 'mrr'")
