"""The workload `summarise`: how summaries are held against their references."""

from __future__ import annotations

import pytest

from drivers.openai import figures
from protocol.texts.articles import Article, articles


def test_the_reference_itself_is_as_near_as_can_be() -> None:
    references = {article.prompt: article.summary for article in articles()}
    result = figures.rouge((article, references[article.prompt]) for article in articles())
    assert result == {"rouge1_f": 1.0, "rouge2_f": 1.0, "rougel_f": 1.0, "summary_length_ratio": 1.0}


def test_scores_are_those_of_shared_words() -> None:
    article = Article("x", "", "the cat sat on the mat")
    result = figures.rouge([(article, "the cat lay on a mat today")])
    assert result["rouge1_f"] == pytest.approx(2 * (4 / 7) * (4 / 6) / (4 / 7 + 4 / 6))
    assert result["rouge2_f"] == pytest.approx(2 * (1 / 6) * (1 / 5) / (1 / 6 + 1 / 5))
    assert result["summary_length_ratio"] == pytest.approx(7 / 6)
    assert figures.rouge([(article, "")])["rouge1_f"] == 0.0
    assert figures.rouge([]) == {}


def test_a_text_of_its_beginning_is_nearer_than_another_texts() -> None:
    texts = articles()
    lead = figures.rouge([(article, " ".join(article.text.split()[:45])) for article in texts])
    other = figures.rouge([(article, texts[at - 1].summary) for at, article in enumerate(texts)])
    assert lead["rouge1_f"] > other["rouge1_f"]
