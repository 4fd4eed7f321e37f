"""Formats of models and the units that run them: what is measured where, what is left out, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivers.contract.base import formats_of
from drivers.coreml.driver import CoreMLDriver
from drivers.executorch.driver import ExecuTorchDriver
from drivers.litert.driver import LiteRtDriver
from drivers.llamacpp.driver import LlamaCppDriver
from drivers.mlx.driver import MlxDriver
from drivers.onnx.driver import OnnxDriver
from drivers.openvino.driver import OpenVinoDriver
from drivers.tensorrt.driver import TensorRtDriver
from drivers.torch.driver import TorchDriver
from drivers.transformers.driver import TransformersDriver
from protocol.errors import CampaignError
from protocol.formats.frameworks import (
    FORMATS,
    FORMATS_BY_FRAMEWORK,
    cpu_unit,
    driver_of,
    format_of_name,
    framework_of,
    plain_unit,
    runs,
)
from protocol.formats.model_files import ModelFormat, read_format
from scheduler.campaign.fields import UNITS
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.models.describe import describe_models, model_notes
from scheduler.planning.tasks import derive_cells
from tests.tiny_onnx import tiny_onnx

TFLITE = b"\x1c\0\0\0TFL3" + bytes(64)
GGUF = b"GGUF\x03\0\0\0" + bytes(64)


def read(text: str) -> Campaign:
    return parse_campaign(f"campaign: t\n{text}".encode(), "c.yaml")


def measured(campaign: Campaign) -> list[tuple[str, str]]:
    """(file, unit) of each measurement."""
    return [
        (entry.path or entry.url or "", line.unit)
        for entry in campaign.models
        for line in campaign.lines_of(entry)
    ]


def refused(text: str) -> CampaignError:
    with pytest.raises(CampaignError) as caught:
        read(text)
    return caught.value


@pytest.mark.parametrize(
    ("place", "units", "left"),
    [
        ("path: a.onnx", "CPU (ONNX), CPU (Torch)", ["CPU (ONNX)"]),
        ("path: a.onnx", "GPU 1 (Torch), GPU 1 (ONNX), CPU (ONNX)", ["GPU 1 (ONNX)", "CPU (ONNX)"]),
        ("url: 'https://e.org/A.ONNX?v=1'", "GPU (Torch), GPU (ONNX)", ["GPU (ONNX)"]),
        ("url: 'hf://org/repo/a.onnx@main'", "GPU (Torch), GPU (ONNX)", ["GPU (ONNX)"]),
        (f"name: a.onnx, path: 'sha256:{'0' * 64}'", "CPU (Torch), CPU (ONNX)", ["CPU (ONNX)"]),
        ("path: net.mlpackage/", "GPU (CoreML), CoreML (ONNX)", ["GPU (CoreML)"]),
        ("path: model.pt", "CPU (ONNX), CPU (Torch)", ["CPU (ONNX)", "CPU (Torch)"]),
        ("path: model.pt, format: torchscript", "CPU (ONNX), CPU (Torch)", ["CPU (Torch)"]),
        ("path: a.onnx", "CPU (ONNX), Fake (Simulation)", ["CPU (ONNX)", "Fake (Simulation)"]),
        ("path: a.onnx", "CPU (OpenVINO), CPU (LiteRT)", ["CPU (OpenVINO)"]),
    ],
)
def test_a_model_is_measured_on_the_units_that_run_its_format(
    place: str, units: str, left: list[str]
) -> None:
    assert [unit for _, unit in measured(read(f"units: [{units}]\nmodels: [{{{place}}}]\n"))] == left


def test_a_model_none_of_whose_units_runs_it_is_refused_with_one_that_does() -> None:
    error = refused("units: [CPU (ONNX), GPU (Torch)]\nmodels:\n- a.onnx\n- net.tflite\n")
    assert (error.line, error.detail) == (
        5,
        "model 'net.tflite' is a LiteRT model, which CPU (ONNX) and GPU (Torch) cannot run",
    )
    assert error.hint == "measure it with units: [CPU (LiteRT)]"


def test_one_model_has_a_file_for_each_format_and_each_unit_measures_its_own(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(tiny_onnx())
    (tmp_path / "m.tflite").write_bytes(TFLITE)
    campaign = read(
        "units: [CPU (ONNX), CPU (LiteRT), CPU (Torch)]\ndevices: {spread: any}\n"
        "models: [{name: m, files: {onnx: m.onnx, tflite: {path: m.tflite}}}]\n"
    )
    assert measured(campaign) == [("m.onnx", "CPU (ONNX)"), ("m.tflite", "CPU (LiteRT)")]
    models = describe_models(campaign, tmp_path)
    assert {key: file.model.name for key, file in models.items()} == {"m (onnx)": "m", "m (tflite)": "m"}
    tasks = [
        task
        for _, made in derive_cells(campaign, models, campaign_id="c-1", scheduler="1" * 44)
        for task in made
    ]
    assert [(task.model.name, task.unit) for task in tasks] == [("m", "CPU (ONNX)"), ("m", "CPU (LiteRT)")]
    assert len({task.model.sha256 for task in tasks}) == 2
    assert Campaign.model_validate_json(campaign.spec()).spec() == campaign.spec()


def test_of_several_files_that_a_unit_runs_it_measures_its_frameworks_own(tmp_path: Path) -> None:
    campaign = read(
        "units: [CPU (OpenVINO), CPU (LiteRT), Fake (Simulation)]\ndevices: {spread: any}\n"
        "models: [{name: m, files: {onnx: m.onnx, tflite: m.tflite}}, {name: n, path: n.onnx}]\n"
    )
    assert measured(campaign) == [
        ("m.onnx", "CPU (OpenVINO)"),
        ("m.onnx", "Fake (Simulation)"),
        ("m.tflite", "CPU (LiteRT)"),
        ("m.tflite", "Fake (Simulation)"),
        ("n.onnx", "CPU (OpenVINO)"),
        ("n.onnx", "Fake (Simulation)"),
    ]
    only = read("units: [CPU (OpenVINO)]\nmodels: [{name: m, files: {tflite: m.tflite, onnx: m.onnx}}]\n")
    assert measured(only) == [("m.onnx", "CPU (OpenVINO)")]
    assert model_notes(only) == (
        "model 'm (tflite)' is not measured: each of its units measures another file.",
    )


def test_a_model_has_units_of_its_own() -> None:
    campaign = read("units: [CPU (ONNX)]\nmodels: [a.onnx, {path: b.onnx, units: [GPU (ONNX)]}]\n")
    assert measured(campaign) == [("a.onnx", "CPU (ONNX)"), ("b.onnx", "GPU (ONNX)")]
    assert [line.unit for line in campaign.lines()] == ["CPU (ONNX)", "GPU (ONNX)"]
    assert measured(read("models: [{path: b.onnx, units: [GPU (ONNX)]}]\n")) == [("b.onnx", "GPU (ONNX)")]


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("models: [a.onnx]\n", "the key 'units' is missing", "add units: …"),
        (
            "units: [CPU (ONNX)]\nmodels: [{path: a.onnx, units: [CPU (ONIX)]}]\n",
            "unknown compute unit 'CPU (ONIX)'",
            "did you mean",
        ),
        (
            "units: [CPU (ONNX)]\nmodels: [{path: a.onnx, units: [CPU (ONNX), CPU (ONNX)]}]\n",
            "listed twice",
            "remove one",
        ),
        (
            "units: [CPU (ONNX)]\nmodels: [{files: {onnx: a.onnx}}]\n",
            "a model with files needs a name",
            "add name:",
        ),
        (
            "units: [CPU (ONNX)]\nmodels: [{name: m, files: {onix: a.onnx}}]\n",
            "unknown format 'onix'",
            "did you mean",
        ),
        (
            "units: [CPU (ONNX)]\nmodels: [{name: m, path: a.onnx, files: {onnx: a.onnx}}]\n",
            "path cannot be combined with files",
            "its own",
        ),
        (
            "units: [CPU (ONNX)]\nmodels: [{name: m, variants: {a: a.onnx}, files: {onnx: a.onnx}}]\n",
            "files cannot be combined with variants",
            "each variant",
        ),
        (
            "units: [CPU (ONNX)]\nmodels: [{name: m, files: {onnx: a.onnx, gguf: a.gguf}}]\n",
            "model 'm (gguf)' is a GGUF model, which CPU (ONNX) cannot run",
            "CPU (llama.cpp)",
        ),
    ],
)
def test_what_contradicts_is_refused(text: str, what: str, hint: str) -> None:
    error = refused(text)
    assert what in error.detail
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (TFLITE, ModelFormat.TFLITE),
        (GGUF, ModelFormat.GGUF),
        (b"\x24\0\0\0ET12" + bytes(64), ModelFormat.EXECUTORCH),
    ],
)
def test_a_format_is_known_by_its_bytes_and_a_wrong_word_for_it_is_refused(
    tmp_path: Path, content: bytes, kind: ModelFormat
) -> None:
    (tmp_path / "m.bin").write_bytes(content)
    assert read_format(tmp_path / "m.bin") is kind
    campaign = read("units: [CPU (CoreML)]\nmodels: [{path: m.bin, format: coreml}]\n")
    with pytest.raises(CampaignError, match="not a CoreML model"):
        describe_models(campaign, tmp_path)


def test_folders_of_openvino_and_transformers_are_known_by_their_files(tmp_path: Path) -> None:
    folder, other = tmp_path / "ir", tmp_path / "hf"
    folder.mkdir()
    other.mkdir()
    (folder / "m.xml").write_text('<?xml version="1.0"?><net name="m" version="11"></net>')
    assert read_format(folder) is ModelFormat.FOLDER
    (folder / "m.bin").write_bytes(b"1234")
    assert read_format(folder) is ModelFormat.OPENVINO
    (other / "config.json").write_text("{}")
    (other / "model.safetensors").write_bytes(b"1234")
    assert read_format(other) is ModelFormat.TRANSFORMERS
    campaign = read(f"units: [CPU (OpenVINO)]\nmodels: ['{folder / 'm.xml'}']\n")
    with pytest.raises(CampaignError, match="without its weights") as caught:
        describe_models(campaign, tmp_path)
    assert "folder" in (caught.value.hint or "")


def test_the_table_is_whole() -> None:
    assert {form for taken in FORMATS_BY_FRAMEWORK.values() for form in taken} == set(FORMATS)
    assert all(
        format_of_name(f"m{ending}") == key for key, form in FORMATS.items() for ending in form.endings
    )
    assert {framework_of(unit) for unit in UNITS} - set(FORMATS_BY_FRAMEWORK) == {"OpenAI", "Simulation"}
    assert runs("CPU (Mine)", "onnx")
    drivers = (
        *(OnnxDriver(), TorchDriver(), CoreMLDriver(), LiteRtDriver(), OpenVinoDriver()),
        *(LlamaCppDriver(), ExecuTorchDriver(), TransformersDriver(), MlxDriver(), TensorRtDriver()),
    )
    assert {driver.name: formats_of(driver) for driver in drivers} == {
        driver_of(framework): taken for framework, taken in FORMATS_BY_FRAMEWORK.items()
    }
    assert {cpu_unit(framework) for framework in FORMATS_BY_FRAMEWORK} | {
        plain_unit(form) for form in FORMATS
    } <= set(UNITS)
