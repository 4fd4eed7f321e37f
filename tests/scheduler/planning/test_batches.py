"""Batches and variants of models: from the campaign file to tasks, rows, ratios and alarms."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from protocol.errors import CampaignError
from protocol.formats.model_files import FormatError
from protocol.formats.onnx import OnnxGraph, read_graph
from protocol.formats.shapes import InputPort
from protocol.values.attempt import TaskState
from protocol.values.record import Record, RunFacts
from protocol.values.task import Measure, Model, Task, read_task, task_body
from protocol.words import Reason
from results.analysis.matrix import make_matrix
from results.analysis.pairs import pair_up
from results.analysis.regression import key_of
from results.export.raw import ResultEntry
from results.row.acceptance import find_task_mismatch
from results.row.make import make_row
from results.row.row import Row, RowStatus
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.campaign.text import campaign_text, read_spec
from scheduler.experiments.service import digest_of
from scheduler.models.describe import describe_models
from scheduler.models.files import CampaignFile
from scheduler.output.results_table import plain_lines
from scheduler.planning.tasks import cells, derive_cells, tasks_of
from tests.scheduler.run.test_receive import GOOD, TASK

SCHEDULER = "12D3KooW" + "S" * 44
HEAD = "campaign: t\nunits: [CPU (ONNX)]\n"


def campaign(text: str) -> Campaign:
    return parse_campaign((HEAD + text).encode(), "c.yaml")


def refused(text: str) -> CampaignError:
    with pytest.raises(CampaignError) as caught:
        campaign(text)
    return caught.value


def tasks(plan: Campaign) -> tuple[Task, ...]:
    models = {
        entry.label: CampaignFile(
            Path(entry.label),
            Model(name=entry.label, sha256="0" * 64, size=1, variant=entry.variant),
        )
        for entry in plan.models
    }
    return tasks_of(derive_cells(plan, models, campaign_id="c-1", scheduler=SCHEDULER))


def onnx(path: Path, first: int | str | None, name: str = "x") -> Path:
    """A model that returns its input, of shape [first, 4]."""
    x = helper.make_tensor_value_info(name, TensorProto.FLOAT, [first, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [first, 4])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4], [1.0] * 4)
    old = helper.make_tensor_value_info(
        "w", TensorProto.FLOAT, [4]
    )  # weights among the inputs, as old files have them
    graph = helper.make_graph([helper.make_node("Mul", [name, "w"], ["y"])], "g", [x, old], [y], [weight])
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


# -- the file --------------------------------------------------------------------------------------------------------------------------


def test_each_batch_is_a_task_of_its_own_and_a_model_may_say_its_own() -> None:
    plan = campaign(
        "models: [a.onnx, {path: b.onnx, batch: [4], batch_dim: rows}]\nmeasure: {batch: [1, 8], threads: [1, 2]}\n"
    )
    assert [(cell.model.label, cell.threads, cell.batch) for cell in cells(plan)] == [
        ("a.onnx", 1, 1),
        ("a.onnx", 1, 8),
        ("a.onnx", 2, 1),
        ("a.onnx", 2, 8),
        ("b.onnx", 1, 4),
        ("b.onnx", 2, 4),
    ]
    requests = [read_task(task_body(task)).measure for task in tasks(plan)]
    assert [(measure.batch, measure.batch_dim) for measure in requests][-2:] == [(4, "rows"), (4, "rows")]


def test_without_a_batch_nothing_of_it_is_sent_or_stored() -> None:
    plan = campaign("models: [a.onnx]\n")
    (task,) = tasks(plan)
    assert "batch" not in task.measure.to_wire()
    assert "batch" not in plan.spec()
    assert "variant" not in plan.spec()


def test_variants_are_models_of_their_own_that_share_all_else() -> None:
    plan = campaign(
        "models:\n - name: yolo\n   dims: {H: 8}\n   batch: [2]\n"
        f"   variants: {{fp32: a.onnx, int8: {{url: 'https://example.org/b.onnx', sha256: {'a' * 64}}}}}\n"
    )
    assert [(entry.label, entry.variant, entry.dims, entry.batch) for entry in plan.models] == [
        ("yolo fp32", "fp32", {"H": 8}, (2,)),
        ("yolo int8", "int8", {"H": 8}, (2,)),
    ]
    assert [entry.path or entry.url for entry in plan.models] == ["a.onnx", "https://example.org/b.onnx"]
    assert [read_task(task_body(task)).model.variant for task in tasks(plan)] == ["fp32", "int8"]


def test_a_campaign_with_them_is_read_from_its_text_again() -> None:
    plan = campaign(
        "models: [{name: m, variants: {fp32: a.onnx, int8: b.onnx}, batch_dim: N}]\nmeasure: {batch: [1, 8]}\n"
    )
    again = parse_campaign(campaign_text(plan).encode(), "again.yaml")
    assert again.spec() == plan.spec() == read_spec(plan.spec(), "it").spec()
    assert digest_of(again.spec(), []) == digest_of(plan.spec(), [])


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("models: [a]\nmeasure: {batch: 8}\n", "measure.batch must be a list, not 8", "write [8]"),
        ("models: [a]\nmeasure: {batch: [0]}\n", "measure.batch 1 must be at least 1, not 0", ""),
        ("models: [a]\nmeasure: {batch: []}\n", "measure.batch must not be empty", ""),
        ("models: [a]\nmeasure: {batch: [8, 8]}\n", "batch 8 is listed twice", "remove one"),
        ("models: [{path: a, batch: [8, 8]}]\n", "batch 8 is listed twice", "remove one"),
        ("models: [{variants: {a: x}}]\n", "a model with variants needs a name", "add name:"),
        (
            "models: [{name: m, path: x, variants: {a: x}}]\n",
            "path cannot be combined with variants",
            "its own",
        ),
        ("models: [{name: m, variants: {a: {sha256: x}}}]\n", "models 1.variants.a.sha256 must be", ""),
        ("models: [{name: m, variants: {a: {pth: x}}}]\n", "unknown key 'pth'", "did you mean 'path'?"),
        ("models: [{name: m, variants: {a: {}}}]\n", "a model needs a path", "add path:"),
        ("models: [{name: m, variants: {'a b': x}}]\n", "models 1.variants.a b must be in another form", ""),
        (
            "models: [{name: m, variants: {a: x}}, {name: m a, path: y}]\n",
            "two models are called 'm a'",
            "name: of its own",
        ),
    ],
)
def test_an_error_is_one_line(text: str, what: str, hint: str) -> None:
    error = refused(text)
    assert what in error.detail
    assert hint in error.hint
    assert error.line == (4 if "measure" in text else 3)


def test_a_server_takes_no_batch() -> None:
    text = "campaign: t\nunits: [API (OpenAI)]\nmodels: [w.yaml]\nmeasure: {batch: [8]}\n"
    with pytest.raises(CampaignError, match="batch cannot be used with API"):
        parse_campaign(text.encode(), "c.yaml")


# -- the model's file ------------------------------------------------------------------------------------------------------------------


def test_the_inputs_are_read_from_the_file(tmp_path: Path) -> None:
    port = InputPort("x", ("N", 4))
    output = InputPort("y", ("N", 4))
    assert read_graph(onnx(tmp_path / "a", "N")) == OnnxGraph(
        (port,), 1, types={"x": "float32", "y": "float32"}, outputs=(output,)
    )
    assert read_graph(onnx(tmp_path / "b", None)).inputs == (InputPort("x", (None, 4)),)
    whole = onnx(tmp_path / "c", 2).read_bytes()
    for odd in (
        b"\x3a\xff\xff\xff\x7f",
        b"\xff" * 30,
        b"not a model at all",
        whole[:-1],
        whole[: len(whole) // 2],
    ):
        (tmp_path / "odd").write_bytes(odd)
        with pytest.raises(FormatError, match=r"corrupt or cut short|has no graph"):
            read_graph(tmp_path / "odd")
    with pytest.raises(FormatError, match="cannot be read"):
        read_graph(tmp_path)


@pytest.mark.parametrize("first", ["N", None, 8], ids=["symbol", "nameless", "fixed at it"])
def test_a_batch_that_a_local_model_can_have_is_taken(tmp_path: Path, first: int | str | None) -> None:
    onnx(tmp_path / "m.onnx", first)
    plan = campaign("models: [m.onnx]\nmeasure: {batch: [8]}\n")
    assert describe_models(plan, tmp_path)["m.onnx"].model.size


def test_a_batch_that_a_local_model_cannot_have_is_refused_at_its_line(tmp_path: Path) -> None:
    onnx(tmp_path / "m.onnx", 1)
    with pytest.raises(CampaignError) as caught:
        describe_models(campaign("models: [m.onnx]\nmeasure: {batch: [1, 8]}\n"), tmp_path)
    assert str(caught.value).startswith(
        "c.yaml:3: model 'm.onnx': the batch of the model is fixed and cannot be 8 (x begins with 1)"
    )
    assert caught.value.hint.endswith("or give this model batch: [1]")


def test_a_batch_dim_that_the_local_model_lacks_is_refused(tmp_path: Path) -> None:
    onnx(tmp_path / "m.onnx", "rows")
    for named in ("rows", "x[0]"):
        describe_models(campaign(f"models: [{{path: m.onnx, batch: [8], batch_dim: '{named}'}}]\n"), tmp_path)
    with pytest.raises(CampaignError) as caught:
        describe_models(campaign("models: [{path: m.onnx, batch: [8], batch_dim: N}]\n"), tmp_path)
    assert (caught.value.detail, caught.value.hint) == (
        "model 'm.onnx': batch_dim 'N' is not a dynamic dimension of the model's inputs",
        "there are: rows",
    )


# -- results ---------------------------------------------------------------------------------------------------------------------------


def asked(batch: int | None, variant: str | None = None) -> Task:
    model = Model(name=f"m {variant}" if variant else "m", sha256="a" * 64, size=1, variant=variant)
    return TASK.model_copy(update={"measure": Measure(runs=TASK.measure.runs, batch=batch), "model": model})


def ran(batch: int | None) -> Record:
    run_facts = RunFacts(unit=TASK.unit, driver="onnx", runtime="r", agrees=True, batch=batch)
    return Record.model_validate({**GOOD, "ran": run_facts})


def test_a_worker_that_heeded_no_batch_has_measured_something_else() -> None:
    assert find_task_mismatch(ran(8), asked(8)) is None
    assert find_task_mismatch(ran(None), asked(None)) is None
    for other in (None, 1):
        verdict = find_task_mismatch(ran(other), asked(8))
        assert verdict is not None
        assert verdict[0] is Reason.DOES_NOT_FIT
        assert "a batch of 8 was requested" in verdict[1]


def test_a_row_says_its_batch_its_variant_and_how_many_in_a_second() -> None:
    row = make_row(asked(8, "int8"), TaskState.SUCCEEDED, ran(8))
    assert (row.file_name, row.variant, row.batch) == ("m int8", "int8", 8)
    assert row.inference_ms_median
    assert row.throughput_per_s == pytest.approx(8000 / row.inference_ms_median)
    plain = make_row(asked(None), TaskState.SUCCEEDED, ran(None))
    assert (plain.variant, plain.batch) == ("", None)
    assert plain.throughput_per_s == pytest.approx(1000 / (plain.inference_ms_median or 0))
    failed = make_row(asked(8), TaskState.FAILED, ran(8))
    assert (failed.batch, failed.throughput_per_s) == (8, None)


def row(
    model: str, median: float, batch: int | None = None, variant: str = "", dtypes: str = "x float"
) -> Row:
    name = f"{model} {variant}" if variant else model
    return Row(
        status=RowStatus.COMPLETE,
        job_id=f"c-1/{hashlib.sha256(f'{name}{batch}'.encode()).hexdigest()[:4]}",
        file_name=name,
        file_size=1,
        compute_units="CPU (ONNX)",
        device_id="d",
        device_name="here",
        shapes=f"x {batch or 1}x4",
        dtypes=dtypes,
        inference_ms_median=median,
        inference_ms_median_low=median * 0.99,
        inference_ms_median_high=median * 1.01,
        batch=batch,
        variant=variant,
        throughput_per_s=1000 * (batch or 1) / median,
        verdict="valid",
    )


def test_rows_are_put_beside_those_of_their_own_batch() -> None:
    before = [ResultEntry(row("m", 1.0, 1)), ResultEntry(row("m", 6.0, 8))]
    after = [ResultEntry(row("m", 12.0, 8)), ResultEntry(row("m", 1.0, 1))]
    pairs = pair_up(before, after)
    assert [(pair.a and pair.a.batch, pair.b and pair.b.batch) for pair in pairs] == [(1, 1), (8, 8)]
    assert pairs[1].comparison.ratio == pytest.approx(2.0)


def test_the_ratio_to_a_variant_is_of_the_same_model_and_batch_whatever_its_element_types() -> None:
    rows = [
        row("m", 4.0, 1, "fp32"),
        row("m", 20.0, 8, "fp32"),
        row("m", 1.0, 1, "fp16", "x float16"),
        row("m", 10.0, 8, "fp16", "x float16"),
        row("n", 2.0, 1, "fp32"),
    ]
    by_key = {(cell.model, cell.batch): cell for cell in make_matrix(rows, base="fp32")}
    assert by_key["m fp16", 1].ratio == 0.25
    assert by_key["m fp16", 8].ratio == 0.5
    assert by_key["n fp32", 1].ratio == 1.0
    assert (by_key["m fp16", 8].variant, by_key["m fp16", 8].per_s) == ("fp16", 800.0)


def test_two_models_of_different_element_types_are_still_not_compared() -> None:
    rows = [row("m", 4.0), row("n", 1.0, dtypes="x float16")]
    (other,) = [cell for cell in make_matrix(rows, base="m") if cell.model == "n"]
    assert other.ratio is None
    assert "element types differ" in other.remark


def test_the_inputs_in_a_second_stand_beside_the_latency_only_where_a_batch_was_asked_for() -> None:
    head, line = plain_lines([row("m", 5.0, 8)])
    assert "Inference ms  Per s" in head
    assert "1600" in line
    assert "batch 8" in line
    assert "Per s" not in plain_lines([row("m", 5.0)])[0]


def test_a_history_tells_batches_apart_and_knows_those_of_before() -> None:
    one, other = row("m", 1.0, 1), row("m", 1.0, 8)
    assert key_of(one) != key_of(other.model_copy(update={"shapes": one.shapes}))
    lines = ("m", "CPU (ONNX)", None, "x 1x4", "x float", "d", "", None, "", None, "", None)
    before = hashlib.sha256("\n".join(map(str, lines)).encode()).hexdigest()[:24]
    assert key_of(row("m", 1.0)) == before
