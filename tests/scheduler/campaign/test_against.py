"""Campaigns that compare models: which models are compared, what is refused, and the resulting tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import CampaignError
from protocol.formats.reference_model import reference_sha256
from protocol.formats.turns import MIN_COMPARISON_LAUNCHES
from protocol.values.task import Model, Task
from scheduler.campaign.against import Bases
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.campaign.text import campaign_text, read_spec
from scheduler.core.entries import TaskEntry
from scheduler.core.run_times import default_run_s, longest_run_s, past_run_s
from scheduler.models.files import CampaignFile
from scheduler.planning.tasks import LARGE_MODEL, derive_cells, tasks_of

ME = "12D3KooW" + "S" * 44
YOLO = "{name: yolo, variants: {fp32: a.onnx, fp16: b.onnx, int8: c.onnx}}"
BERT = "{name: bert, variants: {fp16: d.onnx, fp32: e.onnx}}"


def campaign(models: str, measure: str, more: str = "units: [CPU (ONNX)]") -> Campaign:
    text = f"campaign: t\nmodels: [{models}]\n{more}\nmeasure: {measure}\n"
    return parse_campaign(text.encode(), "c.yaml")


def tasks(plan: Campaign, size: int = 10) -> tuple[Task, ...]:
    models = {
        entry.label: CampaignFile(Path(entry.label), Model(name=entry.label, sha256=f"{n:064x}", size=size))
        for n, entry in enumerate(plan.models)
    }
    return tasks_of(derive_cells(plan, models, campaign_id="c-1", scheduler=ME))


def pairs(plan: Campaign) -> list[tuple[str, str | None]]:
    return [(task.model.name, task.beside[0].name if task.beside else None) for task in tasks(plan)]


@pytest.mark.parametrize(
    ("models", "against", "made"),
    [
        (f"{YOLO}, {BERT}", "first", [
            ("yolo fp16", "yolo fp32"), ("yolo int8", "yolo fp32"), ("bert fp32", "bert fp16")
        ]),
        (f"{YOLO}, {BERT}", "fp32", [
            ("yolo fp16", "yolo fp32"), ("yolo int8", "yolo fp32"), ("bert fp16", "bert fp32")
        ]),
        (f"{YOLO}, x.onnx", "int8", [
            ("yolo fp32", "yolo int8"), ("yolo fp16", "yolo int8"), ("x.onnx", None)
        ]),
        ("old.onnx, new.onnx, newer.onnx", "old.onnx", [
            ("new.onnx", "old.onnx"), ("newer.onnx", "old.onnx")
        ]),
        (f"{YOLO}, x.onnx", "yolo fp16", [
            ("yolo fp32", "yolo fp16"), ("yolo int8", "yolo fp16"), ("x.onnx", "yolo fp16")
        ]),
    ],
)  # fmt: skip
def test_each_model_takes_turns_with_the_one_that_it_is_compared_with(
    models: str, against: str, made: list[tuple[str, str | None]]
) -> None:
    plan = campaign(models, f"{{against: {against}}}")
    assert pairs(plan) == made
    assert pairs(read_spec(plan.spec(), "t")) == made, "stored and read again"
    assert pairs(parse_campaign(campaign_text(plan).encode(), "c.yaml")) == made, "cloned"


@pytest.mark.parametrize(
    ("models", "measure", "more", "what", "hint"),
    [
        (
            "a.onnx, b.onnx",
            "{against: a.onx}",
            "",
            "no model, variant or unit 'a.onx'",
            "did you mean 'a.onnx'?",
        ),
        (
            YOLO,
            "{against: fp64}",
            "",
            "no model, variant or unit 'fp64'",
            "known here: first, fp32, fp16, int8, yolo fp32",
        ),
        ("a.onnx, b.onnx", "{against: first}", "", "no model has any", "name a model: a.onnx, b.onnx"),
        ("a.onnx", "{against: a.onnx}", "", "needs two models", "add a model or variants"),
        (
            "a.onnx, b.onnx",
            "{against: a.onnx, runs: 5}",
            "",
            "cannot be combined with measure.runs",
            "remove measure.runs",
        ),
        (
            "a.onnx, b.onnx",
            "{against: a.onnx, precision: 2%}",
            "",
            "cannot be combined with measure.precision",
            "or against",
        ),
        (
            "a.yaml, b.yaml",
            "{against: a.yaml}",
            "units: [API (OpenAI)]",
            "cannot be used with API (OpenAI)",
            "of its own",
        ),
        (
            "a.onnx, b.onnx",
            "{against: a.onnx}",
            "units: [CPU (ONNX)]\ndevices: {trust: anyone}",
            "strangers",
            "remove",
        ),
        (
            "a.onnx, {path: b.onnx, batch: [8]}",
            "{against: a.onnx}",
            "",
            "'b.onnx' is to be compared",
            "give both",
        ),
        (
            "a.onnx, b.pt2",
            "{against: a.onnx}",
            "units: [CPU (ONNX), CPU (Torch)]",
            "model 'b.pt2' runs on CPU (Torch), but 'a.onnx' does not",
            "compare models of one format",
        ),
        ("a.onnx", "{against: refrence}", "", "needs two models", "write against: reference"),
        (
            "a.onnx, {path: b.onnx, dims: {H: 8}}",
            "{against: a.onnx}",
            "",
            "other input sizes",
            "give both",
        ),
    ],
)
def test_a_comparison_that_cannot_be_made_is_refused_with_the_right_form(
    models: str, measure: str, more: str, what: str, hint: str
) -> None:
    with pytest.raises(CampaignError) as caught:
        campaign(models, measure, more or "units: [CPU (ONNX)]")
    assert what in caught.value.detail
    assert hint in caught.value.first_hint
    assert caught.value.line is not None


def test_each_model_is_measured_beside_the_reference_model_that_comes_with_the_program() -> None:
    plan = campaign(f"{YOLO}, x.onnx", "{against: reference}")
    made = tasks(plan)
    assert pairs(plan) == [(name, "reference") for name in ("yolo fp32", "yolo fp16", "yolo int8", "x.onnx")]
    assert {task.beside[0].sha256 for task in made if task.beside} == {reference_sha256()}
    assert Bases(plan).reference
    named = campaign("{name: reference, path: a.onnx}, b.onnx", "{against: reference}")
    assert not Bases(named).reference, "a model of that name goes before it"
    with pytest.raises(CampaignError, match="an ONNX model, which CPU"):
        campaign("a.onnx, a.pt2", "{against: reference}", "units: [CPU (ONNX), CPU (Torch)]")
    assert pairs(campaign("a.onnx", "{against: reference}", "units: [CPU (ONNX), CPU (Torch)]")) == [
        ("a.onnx", "reference")
    ]


def test_the_reference_model_never_changes() -> None:
    assert reference_sha256() == "b399a25366026696595d89c9003b1e2b61d1bc249cba6c1fb4348a4cbd0b48c0"


def test_both_models_count_for_memory_and_for_where_they_can_be_fetched() -> None:
    plan = campaign("{url: 'https://example.org/a.onnx', path: a.onnx}, b.onnx", "{against: a.onnx}")
    (task,) = tasks(plan, LARGE_MODEL - 1)
    assert f"ram >= {4 * (LARGE_MODEL - 1)}" in [
        f"{c.attribute} {c.op.value} {c.value}" for c in task.requirement.clauses
    ]
    assert task.beside is not None
    assert task.url_of(task.beside[0]) == "https://example.org/a.onnx"
    assert task.url_of(task.model) is None


def test_times_of_comparisons_say_nothing_of_models_measured_alone() -> None:
    (both,) = tasks(campaign("a.onnx, b.onnx", "{against: a.onnx}"))
    alone = both.model_copy(update={"beside": None})
    assert past_run_s(alone, [(both, 60.0), (alone, 3.0)]) == 3.0
    assert past_run_s(both, [(alone, 3.0)]) is None
    assert default_run_s(both) > 4 * default_run_s(alone)


def test_a_comparison_may_take_the_time_of_all_launches_that_are_not_hurried() -> None:
    (both,) = tasks(campaign("a.onnx, b.onnx", "{against: a.onnx}"))
    limits, every = both.timeouts, MIN_COMPARISON_LAUNCHES
    least = limits.fetch_s + every * limits.load_s + limits.run_s
    assert longest_run_s(both) > least
    assert TaskEntry(both).max_run_s(None) > least
