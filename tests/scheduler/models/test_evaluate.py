"""Models that are evaluated: from a campaign's data to tasks, rows and the result of `verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.errors import CampaignError
from protocol.formats.examples import Value, pack_examples, unpack_examples
from protocol.values.answers import AnswerSet, answer_set
from protocol.values.task import read_task
from results.row.scores import Scores
from results.scoring.account import EvaluationAccount
from results.scoring.packing import answers_of, packed
from results.scoring.plugins import Example
from results.scoring.scorer import score
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.models.describe import describe_models
from scheduler.models.files import Models
from scheduler.planning.tasks import derive_cells, tasks_of
from scheduler.store.store import open_store
from scheduler.submit.submit import store_campaign
from swarm.base.home import Home
from tests.tiny_onnx import tiny_onnx

LABELS = (2, 0, 3)
SAMPLES = np.eye(4, dtype="float32")[list(LABELS)]
ANSWERS = tuple({"y": Value("float32", (1, 4), row.tobytes())} for row in SAMPLES)
ACCOUNT = EvaluationAccount(title="t", metrics=("accuracy",), references=LABELS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m.onnx").write_bytes(tiny_onnx())
    np.savez(tmp_path / "digits.npz", x=SAMPLES, labels=np.array(LABELS))
    return tmp_path


def campaign(evaluate: str = "{task: classification, data: digits.npz}", more: str = "") -> Campaign:
    text = f"campaign: t\nunits: [CPU (ONNX), CPU (OpenVINO)]\nmodels:\n - path: m.onnx\n   evaluate: {evaluate}\n{more}"
    return parse_campaign(text.encode(), "c.yaml")


def described(folder: Path, plan: Campaign) -> Models:
    return describe_models(plan, folder)


def test_devices_get_the_inputs_and_never_the_references(folder: Path) -> None:
    plan = campaign()
    files = described(folder, plan)
    examples = files["m.onnx: examples"]
    assert isinstance(examples.source, bytes)
    read = unpack_examples(examples.source)
    assert [np.frombuffer(one[""].data, "float32").tolist() for one in read] == SAMPLES.tolist()
    assert all(one[""].shape == (1, 4) for one in read)
    assert examples.account == EvaluationAccount(
        title="classification of digits.npz", metrics=("accuracy",), references=LABELS
    )
    tasks = tasks_of(derive_cells(plan, files, campaign_id="c-1", scheduler="1" * 44))
    assert [task.examples for task in tasks] == [examples.model] * 2
    assert examples.model.name == "m.onnx.examples"


def test_data_is_read_once_for_models_that_share_it(folder: Path) -> None:
    (folder / "n.onnx").write_bytes(tiny_onnx("n"))
    text = "campaign: t\nunits: [CPU (ONNX)]\nmodels:\n"
    for name in ("m.onnx", "n.onnx"):
        text += f" - path: {name}\n   evaluate: {{task: classification, data: digits.npz}}\n"
    files = described(folder, parse_campaign(text.encode(), "c.yaml"))
    assert files["m.onnx: examples"].source is files["n.onnx: examples"].source


@pytest.mark.parametrize(
    ("evaluate", "why"),
    [
        ("{task: clasification, data: digits.npz}", "there is no task 'clasification'"),
        ("{task: classification, data: other.npz}", "no such file: "),
        ("{task: classification}", "needs data"),
        ("{task: classification, data: digits.npz, metrics: [acuracy]}", "there is no metric 'acuracy'"),
        ("{task: classification, data: m.onnx}", "m.onnx"),
    ],
)
def test_what_cannot_be_evaluated_is_said_with_the_models_line(folder: Path, evaluate: str, why: str) -> None:
    with pytest.raises(CampaignError) as error:
        described(folder, campaign(evaluate))
    assert error.value.what.startswith("c.yaml:4: model 'm.onnx' cannot be evaluated: ")
    assert why in error.value.what


def test_models_that_take_turns_are_not_evaluated() -> None:
    with pytest.raises(CampaignError, match="evaluate cannot be combined with measure"):
        campaign(more=" - n.onnx\nmeasure: {against: n.onnx}\n")


def test_a_campaign_without_it_is_written_as_before() -> None:
    plan = parse_campaign(b"campaign: t\nunits: [CPU (ONNX)]\nmodels: [m.onnx]\n", "c.yaml")
    assert "evaluate" not in plan.spec()


# -- scores -----------------------------------------------------------------------------------------------------------------------


class Recorded:
    """The part of a record that `score` reads."""

    def __init__(self, answers: AnswerSet | None) -> None:
        self.answers = answers
        self.campaign = "c-1"


def scored(answers: AnswerSet | None, account: EvaluationAccount = ACCOUNT) -> Scores:
    record: Any = Recorded(answers)
    return score(record, account)


def test_answers_are_scored_against_the_references() -> None:
    assert scored(answer_set(pack_examples(ANSWERS))) == Scores(scores={"accuracy": 1.0})
    wrong = pack_examples((ANSWERS[1], *ANSWERS[1:]))
    assert scored(answer_set(wrong)).scores == {"accuracy": pytest.approx(2 / 3)}


@pytest.mark.parametrize(
    ("answers", "account", "why"),
    [
        (None, ACCOUNT, "the run ended before the examples were answered"),
        (AnswerSet(why="example 1 of 3: it is too wide"), ACCOUNT, "example 1 of 3: it is too wide"),
        (answer_set(pack_examples(ANSWERS[:2])), ACCOUNT, "there are 2 answers for 3 examples"),
        (answer_set(b"junk"), ACCOUNT, "bad answers"),
        (
            answer_set(pack_examples(ANSWERS)),
            ACCOUNT.model_copy(update={"metrics": ("gone",)}),
            "there is no metric 'gone'",
        ),
    ],
)
def test_answers_that_cannot_be_scored_say_why_and_lose_nothing(
    answers: AnswerSet | None, account: EvaluationAccount, why: str
) -> None:
    found = scored(answers, account)
    assert found.scores == {}
    assert why in found.why


def test_texts_and_several_inputs_come_back_as_they_were_given() -> None:
    examples = [Example("Say it", "said"), Example({"a": np.ones((1, 2), ">f8"), "b": np.zeros(3, "bool")})]
    first, second = unpack_examples(packed(examples))
    assert first[""].text == "Say it"
    assert np.frombuffer(second["a"].data, second["a"].dtype).tolist() == [1, 1]
    answered = answers_of(answer_set(packed(examples)), ("said", None))
    assert answered[0].outputs == "Say it"
    assert not isinstance(answered[1].outputs, str)
    assert answered[1].outputs["b"].dtype == bool


def test_the_account_survives_the_store(folder: Path) -> None:
    account = described(folder, campaign())["m.onnx: examples"].account
    assert account is not None
    assert EvaluationAccount.model_validate_json(account.model_dump_json()) == account
    assert json.loads(account.model_dump_json())["references"] == list(LABELS)


def test_the_same_inputs_may_be_scored_in_several_ways(folder: Path) -> None:
    (folder / "n.onnx").write_bytes(tiny_onnx("n"))
    np.savez(folder / "relabelled.npz", x=SAMPLES, labels=np.array([0, 0, 0]))
    text = "campaign: t\nunits: [CPU (ONNX)]\nmodels:\n"
    for name, data in (("m.onnx", "digits.npz"), ("n.onnx", "relabelled.npz")):
        text += f" - path: {name}\n   evaluate: {{task: classification, data: {data}}}\n"
    with open_store(Home.at(folder / "home")) as store:
        plan = parse_campaign((text + "devices: {spread: any}\n").encode(), "c.yaml")
        campaign = store_campaign(
            Home.at(folder / "home"), store, plan, described(folder, plan), folder=str(folder), wait_s=1.0
        )
        assert campaign is not None
        tasks = [read_task(body) for _, body in sorted(store.tasks.bodies(campaign).items())]
        known = store.campaigns.evaluations(campaign)
    first, second = (task.examples for task in tasks)
    assert first is not None
    assert second is not None
    assert first.sha256 == second.sha256, "devices fetch them once"
    labels = [EvaluationAccount.model_validate_json(known[one.name]).references for one in (first, second)]
    assert labels == [LABELS, (0, 0, 0)]
