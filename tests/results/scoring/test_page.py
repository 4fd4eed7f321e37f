"""The code that docs/evaluation.md shows works as written."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.formats.examples import MAX_EXAMPLE_BYTES, MAX_EXAMPLES
from results.scoring.built_in import METRICS, TASKS
from results.scoring.evaluation import read_examples, score_answers
from results.scoring.images import OPTIONS
from results.scoring.plugins import Answer, find_task

PAGE = (Path(__file__).parents[3] / "docs" / "evaluation.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)
    return ["\n".join(line.removeprefix(indent) for line in block.splitlines()) for indent, block in found]


def saved(block: str, folder: Path) -> str:
    """Save the block to the file that its first line names."""
    name = block.split("\n", 1)[0].removeprefix("# ")
    (folder / name).write_text(block, "utf-8")
    return name


def installed(points: Mapping[str, Mapping[str, str]], folder: Path) -> None:
    info = folder / "page-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: page\nVersion: 1.0\n")
    groups = [
        f"[{group}]\n{name} = {value}\n" for group, ones in points.items() for name, value in ones.items()
    ]
    (info / "entry_points.txt").write_text("".join(groups))


def test_the_metric_of_the_page_scores_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = (block for block in blocks("python") if block.startswith("# exact.py"))
    (project,) = (block for block in blocks("toml") if block.startswith("# pyproject.toml"))
    (trial,) = (block for block in blocks("python") if "find_metric" in block)
    assert saved(source, tmp_path) == "exact.py"
    installed(tomllib.loads(project)["project"]["entry-points"], tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "exact", raising=False)
    exec(trial, {})  # noqa: S102 - code of our own page
    assert capsys.readouterr().out.strip() == trial.rpartition("# ")[2]


def test_the_metric_of_classes_on_the_page_scores_tensors() -> None:
    (source,) = (block for block in blocks("python") if block.startswith("# balanced.py"))
    names: dict[str, Any] = {}
    exec(source, names)  # noqa: S102 - code of our own page
    right, wrong = {"y": np.array([[0.0, 1.0]])}, {"y": np.array([[1.0, 0.0]])}
    answers = [Answer(right, 1), Answer(right, 1), Answer(wrong, 1), Answer(wrong, 0)]
    assert score_answers([names["Balanced"]()], answers) == {
        "balanced": pytest.approx((2 / 3 + 1) / 2),
        "worst_class": pytest.approx(2 / 3),
    }
    with pytest.raises(ValueError, match="example 1 is no list of values per class"):
        score_answers([names["Balanced"]()], [Answer("Lima", 0)])


def test_the_data_files_of_the_page_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks("python"):
        if "np.savez" in block:
            exec(block, {})  # noqa: S102 - code of our own page
    assert len(read_examples(find_task("classification"), tmp_path / "digits.npz", {})) == 100
    assert len(read_examples(find_task("outputs"), tmp_path / "expected.npz", {})) == 8


def test_the_page_names_all_tasks_metrics_and_options() -> None:
    for name in TASKS:
        assert f"\n### `{name}`\n" in PAGE
    for name in METRICS:
        assert f"\n| `{name}` |" in PAGE
    table = PAGE.partition("### `summarisation`")[0]
    for name in OPTIONS:
        assert re.search(rf"^\|[^|]*`{name}`[^|]*\|", table, re.MULTILINE), name
    assert f"At most {MAX_EXAMPLES:,} examples of {MAX_EXAMPLE_BYTES // 2**20} MiB" in PAGE
