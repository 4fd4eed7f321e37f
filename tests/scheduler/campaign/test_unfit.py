"""Jobs of the plain form whose unit cannot run the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocol.errors import CampaignError
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.campaign.text import unfit_jobs_of_spec
from scheduler.campaign.unfit import unfit_jobs
from scheduler.models.describe import describe_models, model_notes
from tests.tiny_onnx import tiny_onnx

FAR = {"model_url": "https://e.org/far.onnx?v=2", "model_sha256": "a" * 64, "model_size": 9}


def plain(*units: str, **model: object) -> Campaign:
    value = {"model_url": "net.onnx", **model, "jobs": [{"compute_unit": unit} for unit in units]}
    return parse_campaign(json.dumps(value).encode(), "c.json")


def test_jobs_that_cannot_run_beside_others_that_can_are_told_apart_by_the_models_ending() -> None:
    mixed = plain("CPU (ONNX)", "GPU (CoreML)", "API (OpenAI)", "GPU (CoreML)")
    why = unfit_jobs(mixed)
    assert set(why) == {"GPU (CoreML)"}
    assert why["GPU (CoreML)"].startswith(
        "GPU (CoreML) cannot run model 'net.onnx'; units that can: CPU (ONNX), GPU (ONNX), "
    )
    assert "CoreML (ONNX)" in why["GPU (CoreML)"]
    assert "(Torch)" not in why["GPU (CoreML)"]
    assert unfit_jobs_of_spec(mixed.spec()) == why
    assert model_notes(mixed) == (f"{why['GPU (CoreML)']}: its jobs will fail at once.",)
    assert set(unfit_jobs(plain("CPU (ONNX)", "CPU (Torch)", **FAR))) == {"CPU (Torch)"}
    for fine in (
        plain("CPU (ONNX)", "GPU (ONNX)"),
        plain("CPU (ONNX)", "CPU (Torch)", model_url="net"),
        plain("CPU (Torch)"),
        parse_campaign(b"campaign: t\nunits: [CPU (ONNX), CPU (Torch)]\nmodels: [a.onnx]", "c.yaml"),
    ):
        assert unfit_jobs(fine) == {}
    assert unfit_jobs_of_spec("{}") == {}


def test_a_model_that_no_job_can_run_is_refused_with_the_units_that_can(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(tiny_onnx())
    for campaign, what in (
        (plain("GPU (CoreML)"), "model 'net.onnx' is an ONNX model, which GPU (CoreML) cannot run"),
        (
            plain("GPU (CoreML)", "CPU (Torch)", **FAR),
            "model 'far.onnx' is an ONNX model, which CPU (Torch) and GPU (CoreML) cannot run",
        ),
    ):
        with pytest.raises(CampaignError) as caught:
            describe_models(campaign, tmp_path)
        assert caught.value.detail == what
        assert caught.value.hint.startswith('give "compute_unit": "CPU (ONNX)", or one of GPU (ONNX), ')
    describe_models(plain("Fake (Simulation)", **FAR), tmp_path)
