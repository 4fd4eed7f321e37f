"""The packages that docs/evaluation.md tells authors to copy are found by their entry points, and do what the page says."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from results.scoring.evaluation import read_examples, score_answers
from results.scoring.plugins import Answer, find_metric, find_task

EXAMPLES = Path(__file__).parents[3] / "examples"
Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A function that installs an example with the entry points of its pyproject.toml, as `pip install -e` does."""

    def put(example: str) -> None:
        project = tomllib.loads((EXAMPLES / example / "pyproject.toml").read_text("utf-8"))["project"]
        info = tmp_path / f"{project['name']}-{project['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        groups = [
            "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in points.items())])
            for group, points in project["entry-points"].items()
        ]
        (info / "entry_points.txt").write_text("\n".join(groups) + "\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.syspath_prepend(str(EXAMPLES / example))
        monkeypatch.delitem(sys.modules, project["name"], raising=False)

    return put


def test_the_metric_scores_beside_ours(install: Install) -> None:
    install("metric")
    answers = [
        Answer({"y": np.array([scores])}, label) for scores, label in (([1.0, 4.0], 1), ([1.0, 2.0], 0))
    ]
    scores = score_answers([find_metric("accuracy"), find_metric("margin")], answers)
    assert scores == {"accuracy": 0.5, "margin": 1.0, "margin_min": -1.0}
    for wrong, why in (
        (Answer("text", 1), "not one output"),
        (Answer({"y": np.ones((1, 2))}, 2), "the label 2"),
    ):
        with pytest.raises(ValueError, match=f"metric 'margin': .*{why}"):
            score_answers([find_metric("margin")], [wrong])


def test_the_task_brings_its_questions(install: Install, tmp_path: Path) -> None:
    install("task")
    task = find_task("quiz")
    examples = read_examples(task, EXAMPLES / "task" / "capitals.csv", {})
    assert [example.reference for example in examples] == ["Lima", "Nairobi", "Ulaanbaatar"]
    assert examples[0].inputs == "Answer with one word.\n\nWhat is the capital of Peru?"
    answers = [
        Answer(text, example.reference)
        for text, example in zip(("Lima", "Kenya", "x"), examples, strict=True)
    ]
    assert score_answers([find_metric(name) for name in task.metrics], answers) == {
        "wer": pytest.approx(2 / 3)
    }
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    for data, options, why in (
        (None, {}, "quiz needs data: a CSV file"),
        (tmp_path / "other.csv", {}, "question 1 of other.csv is not complete"),
        (tmp_path / "other.csv", {"length": 1}, "quiz takes one option: instruction"),
    ):
        with pytest.raises(ValueError, match=f"task 'quiz': {why}"):
            read_examples(task, data, options)
