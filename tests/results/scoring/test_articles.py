"""The articles that come with Sark, with their summaries."""

from __future__ import annotations

import pytest

from results.scoring.articles import FOLDER, ArticleLength, articles


@pytest.mark.parametrize(
    ("length", "number", "least", "most"),
    [
        (ArticleLength.SHORT, 10, 150, 250),
        (ArticleLength.MEDIUM, 3, 480, 600),
        (ArticleLength.LONG, 3, 1200, 1500),
    ],
)
def test_articles_come_in_three_lengths_with_summaries_of_two_sentences(
    length: ArticleLength, number: int, least: int, most: int
) -> None:
    texts = articles(length)
    assert len({article.text for article in texts}) == len(list((FOLDER / length).iterdir())) == number
    for article in texts:
        assert least <= len(article.text.split()) <= most, article.name
        assert article.summary.count(". ") == 1, article.name
        assert article.summary.endswith(".")
        assert article.summary not in article.text
        assert len(article.summary.split()) < len(article.text.split()) / 3


def test_the_prompt_of_an_article_is_the_instruction_and_its_text() -> None:
    article = articles()[0]
    assert article.prompt.startswith("Summarise the following article in two sentences.")
    assert article.prompt.endswith(article.text)
    assert article.summary not in article.prompt
