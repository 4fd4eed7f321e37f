"""The outputs of this home's own processor, to compare a stranger's outputs against."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivers.contract.base import Limits, WorkOrder
from drivers.launch.launch import Launch, Zygote
from drivers.testing.fake import UNIT as SIMULATED
from node.run.answer import LocalAnswers
from node.run.record_builder import COMPLETE, RunObservations
from protocol.errors import ResourceError
from protocol.values.record import DeviceFacts
from protocol.values.task import Measure
from results.row.canary import CanaryOutcome, judge_canary, seed_of
from tests.drivers.onnx_models import OnnxModels
from tests.node.run.runner_parts import job, task


@pytest.fixture
def answers() -> Iterator[LocalAnswers]:
    with LocalAnswers() as answers:
        yield answers


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script"
    path.write_text(json.dumps({"latencies_ms": [1]}))
    return path


def test_the_same_inputs_have_the_same_outputs_and_others_have_others(
    answers: LocalAnswers, script: Path
) -> None:
    first = answers(script, task(unit=SIMULATED), 2**52 + 1)
    assert answers(script, task(unit=SIMULATED), 2**52 + 1) == first
    assert answers(script, task(unit=SIMULATED), 2**52).sha256 != first.sha256
    assert first.sketches


def test_a_sustained_run_is_answered_by_one_inference(answers: LocalAnswers, script: Path) -> None:
    lasting = task(unit=SIMULATED, measure=Measure(sustain_s=600.0, loads=1))
    assert answers(script, lasting, 1) == answers(script, task(unit=SIMULATED), 1)


def test_a_model_that_only_its_owner_may_read_is_answered_too(answers: LocalAnswers, script: Path) -> None:
    script.chmod(0o600)
    assert answers(script, task(unit=SIMULATED), 1).sketches


def test_a_unit_of_other_hardware_is_answered_by_the_processor(answers: LocalAnswers, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.write_bytes(b"no model")
    with pytest.raises(ResourceError, match=r"this home cannot run it: .*model"):
        answers(model, task(unit="GPU (ONNX)"), 1)


@pytest.mark.parametrize("unit", ["API (OpenAI)", "nothing"])
def test_a_server_is_not_asked(answers: LocalAnswers, script: Path, unit: str) -> None:
    with pytest.raises(ResourceError, match="does not run models for"):
        answers(script, task(unit=unit), 1)


def test_a_model_that_is_gone_is_a_reason(answers: LocalAnswers, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="the model is not here"):
        answers(tmp_path / "none", task(unit=SIMULATED), 1)


def test_a_real_models_outputs_are_confirmed_launch_by_launch_and_invented_ones_refuted(
    answers: LocalAnswers, tmp_path: Path
) -> None:
    model = Path(OnnxModels(tmp_path).nano())
    order = WorkOrder(str(model), "CPU (ONNX)", runs=8, loads=2, warmup=1)
    observations = RunObservations(opening=b"o" * 32, reveal=b"r" * 32)
    with Zygote("onnx") as zygote:
        for event in Launch(order, Limits(), zygote, reveal=lambda: (b"o" * 32, b"r" * 32)).events():
            observations.add(event, 0.0)
    record = observations.record(job(task()), COMPLETE, "1" * 52, DeviceFacts(device="d", name="d"))
    for launch in (1, 2):
        seed, said = seed_of(record, launch), record.timings[launch - 1].output
        assert seed is not None
        assert said is not None
        own, decoy = answers(model, task(), seed), answers(model, task(), seed ^ 1)
        assert judge_canary(launch, said, own, decoy).outcome is CanaryOutcome.CONFIRMED
        assert judge_canary(launch, decoy, own, said).outcome is CanaryOutcome.REFUTED
