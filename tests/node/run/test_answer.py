"""What this home's own processor puts out, to hold a stranger's outputs against."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivers.testing.fake import UNIT as SIMULATED
from node.run.answer import LocalAnswers
from protocol.errors import ResourceError
from tests.node.run.test_runner import task


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
