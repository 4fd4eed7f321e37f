"""Prompts and references of the task `summarisation`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from results.scoring.articles import ArticleLength, articles
from results.scoring.evaluation import read_examples, score_answers
from results.scoring.plugins import Answer, find_metric, find_task
from results.scoring.summarisation import MAX_LINE

TASK = find_task("summarisation")


def test_our_articles_by_length() -> None:
    for options, number in (
        ({}, 10),
        ({"length": "medium"}, 3),
        ({"length": "long"}, 3),
        ({"length": "all"}, 16),
    ):
        assert len(read_examples(TASK, None, options)) == number
    first, article = read_examples(TASK, None, {"length": "long"})[0], articles(ArticleLength.LONG)[0]
    assert (first.inputs, first.reference) == (article.prompt, article.summary)


def test_articles_of_ones_own_with_an_instruction(tmp_path: Path) -> None:
    data = tmp_path / "mine.jsonl"
    lines = [{"text": "Ein Text.", "summary": "Ein T.", "id": 7}, {"text": "Noch\neiner", "summary": "N."}]
    data.write_text("\n\n".join(map(json.dumps, lines)) + "\n", "utf-8")
    examples = read_examples(TASK, data, {"instruction": "Fasse zusammen:"})
    assert [example.inputs for example in examples] == [
        "Fasse zusammen:\n\nEin Text.",
        "Fasse zusammen:\n\nNoch\neiner",
    ]
    assert [example.reference for example in examples] == ["Ein T.", "N."]
    assert str(read_examples(TASK, data, {})[0].inputs).startswith("Summarise the following article")


def test_references_score_best_against_themselves() -> None:
    examples = read_examples(TASK, None, {"length": "all"})
    metrics = [find_metric(name) for name in TASK.metrics]
    scores = score_answers(metrics, [Answer(example.reference, example.reference) for example in examples])
    assert scores == {"rouge1": 1.0, "rouge2": 1.0, "rougel": 1.0, "summary_length_ratio": 1.0}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"length": "huge"}, "'length' is 'huge': it has to be one of short, medium, long, all"),
        ({"length": ["short"]}, "it has to be one of short"),
        ({"lenght": "short"}, "no option 'lenght': did you mean 'length'"),
        ({"instruction": ""}, "'instruction' has to be a text"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_examples(TASK, None, options)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "there are no examples"),
        (
            b'{"text": "a", "summary": "b"}\n{"text": "a"}',
            r'line 2 of d.jsonl lacks a "text" or a "summary": each line',
        ),
        (b'{"text": "a", "summary": " "}', "line 1 of d.jsonl lacks"),
        (b'["a", "b"]', "line 1 of d.jsonl lacks"),
        (b'{"text": "a"', "line 1 of d.jsonl is not JSON"),
        (b"\xff\xfe{}", "line 1 of d.jsonl is not JSON"),
        (b"[" * 100_000, "line 1 of d.jsonl is not JSON"),
        (b'{"text": "' + b"a" * MAX_LINE, "line 1 of d.jsonl is longer than 4 MiB"),
    ],
)
def test_data_that_is_no_articles(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "d.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=why) as failed:
        read_examples(TASK, tmp_path / "d.jsonl", {})
    assert "\n" not in str(failed.value)


def test_lengths_are_of_our_articles_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no option 'length': there are: instruction"):
        read_examples(TASK, tmp_path / "d.jsonl", {"length": "short"})
    with pytest.raises(ValueError, match=r"d\.jsonl: No such file"):
        read_examples(TASK, tmp_path / "d.jsonl", {})
