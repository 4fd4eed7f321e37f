"""Models are checked before any device is asked: whole, of a format that the units run, and of one shape."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from onnx import TensorProto, helper
from rich.console import Console

from protocol.errors import CampaignError
from protocol.values.task import Measure, Model
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import ModelEntry
from scheduler.local.bench import look_at, read_measure
from scheduler.models.describe import describe_models
from scheduler.models.files import CampaignFile
from scheduler.models.inspect import UnshapedModel, resolved_shapes
from scheduler.planning.tasks import derive_cells
from scheduler.preview.plan import make_plan
from scheduler.preview.plan_table import plan_table
from scheduler.preview.survey import SwarmVisit
from scheduler.preview.validate import valid, valid_table
from tests.tiny_onnx import tiny_onnx

CUT = tiny_onnx(shape=("?", 3, "?", "?"))
"""Like a text detector: two dimensions with the same symbol that differ."""


def looked_at(folder: Path, model: str, *, units: str = "CPU (ONNX)", measure: str = "{}") -> None:
    text = f"campaign: t\nunits: [{units}]\nmeasure: {measure}\nmodels:\n - {model}\n"
    describe_models(parse_campaign(text.encode(), "c.yaml"), folder)


def refused(folder: Path, model: str, **more: str) -> CampaignError:
    with pytest.raises(CampaignError) as caught:
        looked_at(folder, model, **more)
    assert str(caught.value).count("c.yaml") == 1
    return caught.value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m.onnx").write_bytes(CUT)
    return tmp_path


def test_a_size_that_is_missing_is_asked_for_with_the_text_to_add(folder: Path) -> None:
    error = refused(folder, "m.onnx")
    assert isinstance(error, UnshapedModel)
    assert (error.line, error.detail) == (5, "model 'm.onnx': input x is ?×3×?×?: give the sizes")
    assert error.hint == "such as inputs: {x: [1, 3, 224, 224]}"
    looked_at(folder, "{path: m.onnx, inputs: {x: [1, 3, 224, 224]}}")
    looked_at(folder, "{path: m.onnx, dims: {'x[2]': 48, 'x[3]': 192}, batch: [1, 8]}")


@pytest.mark.parametrize(
    ("model", "what", "hint"),
    [
        ("{path: m.onnx, dims: {width: 8}}", "no dynamic dimension 'width'", "there are: x[0], x[2], x[3]"),
        ("{path: m.onnx, inputs: {y: [1]}}", "no input 'y'", "its inputs: x"),
        ("{path: m.onnx, inputs: {x: [1, 4, 8, 8]}}", "its axis 1 is 3, not 4", ""),
        ("{path: m.onnx, inputs: {x: 'float32[1, 3, 8, 8]'}}", "states the types", "give only the shape"),
        (
            "{path: m.onnx, inputs: {x: [1, 3, 8, 8]}, batch: [4]}",
            "the batch says 4",
            "leave one of them out",
        ),
    ],
)
def test_what_is_given_and_does_not_fit_is_refused(folder: Path, model: str, what: str, hint: str) -> None:
    error = refused(folder, model)
    assert what in error.detail
    assert hint in (error.hint or "")


def test_sizes_for_all_models_have_to_be_of_one_of_them(folder: Path) -> None:
    looked_at(folder, "{path: m.onnx, inputs: {x: [1, 3, 8, 8]}}", measure="{dims: {'x[3]': 8}}")
    error = refused(folder, "{path: m.onnx, inputs: {x: [1, 3, 8, 8]}}", measure="{dims: {W: 8}}")
    assert "model 'm.onnx': the model has no dynamic dimension 'W': x is ?×3×?×?" in error.detail
    (folder / "n.onnx").write_bytes(CUT)
    both = "{path: m.onnx, inputs: {x: [1, 3, 8, 8]}}\n - {path: n.onnx, inputs: {x: [1, 3, 8, 8]}}"
    error = refused(folder, both, measure="{dims: {'x[3]': 8, 'y[3]': 8}}")
    assert error.detail == "measure.dims: no model has a dynamic dimension 'y[3]'"
    assert error.hint == "did you mean 'x[3]'?"


def far(dims: str) -> str:
    return f"{{name: far, url: 'https://e.org/f.pt2', sha256: {'a' * 64}, size: 9, dims: {dims}}}"


def test_what_only_a_device_can_look_into_is_given_its_sizes_itself(folder: Path) -> None:
    units, seen = "CPU (ONNX), CPU (Torch)", "{path: m.onnx, dims: {'x[2]': 8}}\n - "
    looked_at(folder, seen + far("{s77: 9}"), units=units, measure="{dims: {'x[3]': 8}}")
    error = refused(folder, seen + far("{}"), units=units, measure="{dims: {'x[3]': 8, s77: 9}}")
    assert error.detail == "measure.dims: no model that can be inspected here has a dynamic dimension 's77'"
    assert error.hint == "write it under each model that has it: dims: {'s77': 9}"
    looked_at(folder, far("{}"), units="CPU (Torch)", measure="{dims: {s77: 9}}")


def test_a_task_names_the_sizes_that_its_model_must_have(folder: Path) -> None:
    def required(*models: str) -> list[tuple[str, ...]]:
        text = (
            f"campaign: t\nunits: [CPU (Torch)]\nmeasure: {{dims: {{n: 1}}}}\nmodels: [{', '.join(models)}]"
        )
        campaign = parse_campaign(text.encode(), "c.yaml")
        found = {
            each.label: CampaignFile(None, Model(name=each.label, sha256="0" * 64, size=9))
            for each in campaign.models
        }
        cells = derive_cells(campaign, found, campaign_id="c-1", scheduler="1" * 44)
        return [task.measure.required_dims() for _, tasks in cells for task in tasks]

    assert required("{path: a.pt2, dims: {s7: 2, b: 3}}") == [("b", "n", "s7")]
    assert required("{path: a.pt2, dims: {s7: 2, b: 3}}", "b.pt2") == [("b", "s7"), ()]
    assert read_measure({"dims": {"n": 3, "m": 4}}).required_dims() == ("m", "n")
    assert read_measure({}).own_dims is None


def test_a_broken_file_is_refused_and_a_healthy_one_of_another_format_is_called_that(tmp_path: Path) -> None:
    (tmp_path / "cut.onnx").write_bytes(tiny_onnx()[:-7])
    assert "is corrupt or cut short" in refused(tmp_path, "cut.onnx").detail
    (tmp_path / "good.onnx").write_bytes(tiny_onnx())
    for unit in ("GPU (CoreML)", "CPU (Torch)"):
        error = refused(tmp_path, "good.onnx", units=unit)
        assert (error.hint, "is an ONNX model, which" in error.detail) == (
            "measure it with units: [CPU (ONNX)]",
            True,
        )
    with zipfile.ZipFile(tmp_path / "net.pt2", "w") as archive:
        archive.writestr("net/archive_format", "pt2")
    error = refused(tmp_path, "net.pt2", units="GPU (CoreML)")
    assert "is a torch.export program, which GPU (CoreML) cannot run" in error.detail
    assert error.hint == "measure it with units: [CPU (Torch)]"


def test_weights_in_another_file_have_to_be_there(tmp_path: Path) -> None:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="w.bin")
    port = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [port("x", TensorProto.FLOAT, [4])],
        [port("y", TensorProto.FLOAT, [4])],
        [weight],
    )
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "net.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    assert "keeps weights in another file, w.bin" in refused(tmp_path, "net/net.onnx").detail
    assert "lacks w.bin" in refused(tmp_path, "net").detail
    (tmp_path / "net" / "w.bin").write_bytes(bytes(16))
    looked_at(tmp_path, "net")


def test_a_bench_says_what_to_add_on_the_command_line(folder: Path) -> None:
    with pytest.raises(UnshapedModel) as caught:
        look_at(folder / "m.onnx", "CPU (ONNX)", Measure(dims={"x[2]": 48}))
    assert caught.value.hint == "such as --shape 'x=1,3,48,224'"
    look_at(folder / "m.onnx", "CPU (ONNX)", Measure(shapes={"x": (1, 3, 48, 320)}))
    look_at(folder / "m.onnx", "Fake (Simulation)", Measure())
    with pytest.raises(CampaignError) as wrong:
        look_at(folder / "m.onnx", "CPU (Torch)", Measure())
    assert wrong.value.hint == "measure it with --unit 'CPU (ONNX)'"


def test_the_shape_of_each_model_and_batch_stands_in_the_tables_of_validate_and_plan(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(CUT)
    text = """
campaign: t
units: [CPU (ONNX)]
models:
 - {path: m.onnx, dims: {'x[2]': 48, 'x[3]': 320}, batch: [1, 8]}
 - {name: far, url: 'https://e.org/f.onnx', sha256: "%s", size: 9}
""" % ("a" * 64)
    campaign = parse_campaign(text.encode(), "c.yaml")
    models = describe_models(campaign, tmp_path)
    known = [(one.model, one.batch, one.text) for one in resolved_shapes(campaign, models)]
    assert known == [("m.onnx", 1, "1×3×48×320"), ("m.onnx", 8, "8×3×48×320")]
    assert [one.shapes for one in valid(campaign, models).inputs] == [
        {"x": (1, 3, 48, 320)},
        {"x": (8, 3, 48, 320)},
    ]
    out, inputs = io.StringIO(), valid(campaign, models).inputs
    (tmp_path / "m.onnx").unlink()  # it is not read any more
    Console(file=out, width=120).print(valid_table(campaign, models, inputs))
    assert [line.split()[-3] for line in out.getvalue().splitlines()[:3]] == [
        "shape",
        "1×3×48×320",
        "8×3×48×320",
    ]
    (tmp_path / "m.onnx").write_bytes(CUT)
    cells = derive_cells(campaign, models, campaign_id="c-plan", scheduler="1" * 44)
    plan = make_plan(
        campaign, models, cells, SwarmVisit((), {}, complete=True), (), resolved_shapes(campaign, models)
    )
    assert [cell.shape for cell in plan.cells] == ["1×3×48×320", "8×3×48×320", ""]
    out = io.StringIO()
    Console(file=out, width=80).print(plan_table(plan, 80))
    assert "8×3×48×320" in out.getvalue()


def test_each_model_is_measured_on_the_units_of_its_format_and_a_line_says_so(tmp_path: Path) -> None:
    (tmp_path / "good.onnx").write_bytes(tiny_onnx())
    with zipfile.ZipFile(tmp_path / "net.pt2", "w") as archive:
        archive.writestr("net/archive_format", "pt2")
    text = """
campaign: t
units: [CPU (Torch), CPU (ONNX), API (OpenAI)]
models: [good.onnx, net.pt2]
"""
    campaign = parse_campaign(text.encode(), "c.yaml")
    models = describe_models(campaign, tmp_path)
    cells = derive_cells(campaign, models, campaign_id="c-1", scheduler="1" * 44)
    assert [(cell.model.label, cell.unit) for cell, _ in cells] == [
        ("good.onnx", "CPU (ONNX)"),
        ("good.onnx", "API (OpenAI)"),
        ("net.pt2", "CPU (Torch)"),
        ("net.pt2", "API (OpenAI)"),
    ]
    assert valid(campaign, models).notes == (
        "model 'good.onnx' is not measured on CPU (Torch), which runs pt2, torchscript and safetensors, not onnx.",
        "model 'net.pt2' is not measured on CPU (ONNX), which runs onnx, not pt2.",
    )


def test_a_file_whose_ending_is_wrong_is_called_what_it_is(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "net.onnx", "w") as archive:
        archive.writestr("net/archive_format", "pt2")
    error = refused(tmp_path, "net.onnx", units="CPU (Torch), CPU (ONNX)")
    assert "is a torch.export program, not an ONNX model" in error.detail
    assert error.hint == "rename it, or add format: pt2"


def test_of_a_sustained_campaign_the_table_says_how_long_and_that_it_is_one_launch(tmp_path: Path) -> None:
    text = "campaign: t\nunits: [CPU (ONNX)]\nmodels: [m.onnx]\nmeasure: {sustain: 10m}\n"
    campaign = parse_campaign(text.encode(), "c.yaml")
    out = io.StringIO()
    models = {"m.onnx": CampaignFile(None, Model(name="m.onnx", sha256="a" * 64, size=9))}
    Console(file=out, width=120).print(valid_table(campaign, models, ()))
    head, line = out.getvalue().splitlines()[:2]
    assert head.split()[-2:] == ["runs", "loads"]
    assert line.split()[-3:] == ["10", "min", "1"]


def test_all_models_that_cannot_be_used_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "page.onnx").write_bytes(b"<!doctype html><html>not found</html>")
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "good.onnx").write_bytes(tiny_onnx())
    text = "campaign: t\nunits: [CPU (ONNX)]\nmodels:\n" + "".join(
        f"  - {name}.onnx\n" for name in ("page", "good", "empty", "missing")
    )
    with pytest.raises(CampaignError) as caught:
        describe_models(parse_campaign(text.encode(), "c.yaml"), tmp_path)
    error = caught.value
    assert error.line == 4
    assert "page.onnx" in error.what
    assert "(and 2 more errors in this file)" in error.hint
    assert [line for line, _, _ in error.others] == [6, 7]
    assert "line 7: " in error.hint
    fetched: list[ModelEntry] = []
    with_url = f"{text}  - https://models.example/m.onnx\n"
    with pytest.raises(CampaignError):
        describe_models(parse_campaign(with_url.encode(), "c.yaml"), tmp_path, fetched.append)  # type: ignore[arg-type]
    assert not fetched, "nothing comes of a download any more"
    with pytest.raises(CampaignError) as one:
        describe_models(
            parse_campaign(b"campaign: t\nunits: [CPU (ONNX)]\nmodels: [empty.onnx]\n", "c.yaml"), tmp_path
        )
    assert "more error" not in one.value.hint
