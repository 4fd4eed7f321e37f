"""The plain form of a campaign, `model_url` with `jobs`: read as the predecessor wrote it, its errors reported by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocol.errors import CampaignError
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.models.describe import find_model


def good(text: str, file: str = "c.yaml") -> Campaign:
    return parse_campaign(text.encode(), file)


def bad(text: str) -> CampaignError:
    with pytest.raises(CampaignError) as caught:
        parse_campaign(text.encode(), "c.yaml")
    return caught.value


def test_the_plain_form_is_read_from_yaml_and_from_json_alike() -> None:
    value = {
        "model_url": "models/tinyyolov2-7.onnx",
        "jobs": [
            {"compute_unit": "CPU (ONNX)", "num_inference_runs": 10, "device_udid": "laptop 1"},
            {"compute_unit": "GPU (CoreML)", "worker_id": "12D3KooW"},
        ],
    }
    text = (
        "model_url: models/tinyyolov2-7.onnx\njobs:\n"
        "  - {compute_unit: CPU (ONNX), num_inference_runs: 10, device_udid: laptop 1}\n"
        "  - compute_unit: GPU (CoreML)\n    worker_id: 12D3KooW\n"
    )
    campaign = good(json.dumps(value), "c.json")
    assert campaign == good(json.dumps(value), "c.json")
    assert campaign.model_dump() == good(text).model_dump()
    assert campaign.campaign == "tinyyolov2-7.onnx"
    assert campaign.models[0].path == "models/tinyyolov2-7.onnx"
    assert [(job.unit, job.runs, job.where) for job in campaign.jobs] == [
        ("CPU (ONNX)", 10, ("device == laptop 1",)),
        ("GPU (CoreML)", 100, ("peer == 12D3KooW",)),
    ]
    assert Campaign.model_validate_json(campaign.model_dump_json()).model_dump() == campaign.model_dump()


def test_a_file_url_is_a_path() -> None:
    text = '{"model_url": "file:///models/a%20b.onnx", "jobs": [{"compute_unit": "CPU (ONNX)"}]}'
    model = good(text).models[0]
    assert find_model(model, Path("elsewhere")).as_posix().endswith("/models/a b.onnx")
    assert (model.label, model.public_url) == ("a b.onnx", None)


def test_a_web_url_is_kept_for_fetching() -> None:
    text = '{"model_url": "https://x.org/m/a.onnx", "jobs": [{"compute_unit": "CPU (ONNX)"}]}'
    model = good(text).models[0]
    assert (model.url, model.path, model.label) == ("https://x.org/m/a.onnx", None, "a.onnx")


@pytest.mark.parametrize(
    ("text", "line", "what", "hint"),
    [
        (
            "model_url: s3://x/a.onnx\njobs: [{compute_unit: CPU (ONNX)}]\n",
            1,
            "is not a URL that can be",
            "path",
        ),
        (
            "model_url: https://me:pw@x.org/a.onnx\njobs: [{compute_unit: CPU (ONNX)}]\n",
            1,
            "a name or a password before @",
            "",
        ),
        (
            "model_url: file://host/a\njobs: [{compute_unit: CPU (ONNX)}]\n",
            1,
            "does not name a file on this machine",
            "file:///",
        ),
        (
            "model_url: a\njobs:\n - compute_unit: CPU (ONNX)\n   runs: 3\n",
            4,
            "unknown key 'runs'",
            "num_inference_runs",
        ),
        (
            "model_url: a\njobs:\n - num_inference_runs: 3\n",
            3,
            "the key 'compute_unit' is missing",
            "add compute_unit",
        ),
        (
            "model_url: a\njobs:\n - compute_units: x\n",
            3,
            "unknown key 'compute_units'",
            "did you mean 'compute_unit'?",
        ),
        (
            "model_url: a\njobs:\n - {compute_unit: CPU}\n",
            3,
            "unknown compute unit 'CPU'",
            "units: CPU (ONNX)",
        ),
        ("model_url: a\njobs: []\n", 2, "jobs must not be empty", ""),
        ("jobs: [{compute_unit: CPU (ONNX)}]\n", 1, "the key 'model_url' is missing", ""),
        (
            "model_url: a\njobs: [{compute_unit: CPU (ONNX), device_udid: 5}]\n",
            2,
            "device_udid must be text",
            "quotes",
        ),
    ],
)
def test_a_bad_plain_campaign_is_one_clear_line(text: str, line: int, what: str, hint: str) -> None:
    error = bad(text)
    assert error.line == line
    assert what in str(error)
    assert hint in error.hint


@pytest.mark.parametrize("url", ["https://user:s3cret@x.org/m", "ftp://u:s3cret@x.org/m?key=s3cret"])
def test_a_password_in_a_url_is_not_repeated(url: str) -> None:
    for text in (
        f'{{"model_url": "{url}", "jobs": [{{"compute_unit": "CPU (ONNX)"}}]}}',
        f"campaign: t\nunits: [CPU (ONNX)]\nmodels:\n  - {{url: '{url}'}}\n",
    ):
        error = bad(text)
        assert "s3cret" not in f"{error} {error.hint}"
