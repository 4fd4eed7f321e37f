"""ROUGE and word error rate, computed by hand."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from results.scoring.articles import articles
from results.scoring.plugins import Answer
from results.scoring.texts import MAX_TEXT, Rouge, WordErrorRate, edits


def wer(*pairs: tuple[str, str]) -> float:
    return WordErrorRate().score([Answer(text, reference) for text, reference in pairs])["wer"]


@pytest.mark.parametrize(
    ("text", "reference", "errors"),
    [
        ("the cat sat", "the cat sat", 0),
        ("the cat", "the cat sat", 1),
        ("the big cat sat", "the cat sat", 1),
        ("the dog sat", "the cat sat", 1),
        ("", "the cat sat", 3),
        ("sat cat the", "the cat sat", 2),
        ("a b c d e f", "the cat sat", 6),
        ("b c d e", "a b c d", 2),
        ("The cat, sat", "the cat sat", 2),
        ("  the\ncat \t sat ", "the cat sat", 0),
    ],
)
def test_words_changed_left_out_and_added_are_errors(text: str, reference: str, errors: int) -> None:
    assert wer((text, reference)) == pytest.approx(errors / 3 if reference.count(" ") == 2 else errors / 4)


def test_long_references_weigh_more_than_short_ones() -> None:
    assert wer(("a", "b"), ("a b c d e f g h i", "a b c d e f g h i")) == pytest.approx(1 / 10)


@cache
def fewest(words: tuple[str, ...], reference: tuple[str, ...]) -> int:
    """The textbook definition of edit distance."""
    if not words or not reference:
        return len(words) + len(reference)
    return min(
        fewest(words[1:], reference) + 1,
        fewest(words, reference[1:]) + 1,
        fewest(words[1:], reference[1:]) + (words[0] != reference[0]),
    )


def test_edits_are_those_of_the_definition() -> None:
    rng = random.Random(7)
    for _ in range(200):
        one, other = (tuple(rng.choices("abc", k=rng.randrange(8))) for _ in range(2))
        assert edits(one, other) == edits(other, one) == fewest(one, other), (one, other)


def test_scores_are_those_of_shared_words() -> None:
    scores = Rouge().score([Answer("the cat lay on a mat today", "the cat sat on the mat")])
    assert scores["rouge1"] == pytest.approx(2 * (4 / 7) * (4 / 6) / (4 / 7 + 4 / 6))
    assert scores["rouge2"] == pytest.approx(2 * (1 / 6) * (1 / 5) / (1 / 6 + 1 / 5))
    assert scores["rougel"] == scores["rouge1"]
    assert scores["summary_length_ratio"] == pytest.approx(7 / 6)
    assert set(Rouge().score([Answer("", "the cat")]).values()) == {0.0}


def test_a_text_of_its_beginning_is_nearer_than_another_texts() -> None:
    texts = articles()
    lead = Rouge().score([Answer(" ".join(text.text.split()[:45]), text.summary) for text in texts])
    other = Rouge().score([Answer(texts[at - 1].summary, text.summary) for at, text in enumerate(texts)])
    assert lead["rouge1"] > other["rouge1"]


def test_a_flood_of_words_is_cut() -> None:
    reference = "the cat sat on the mat"
    scores = WordErrorRate().score([Answer("word " * 1_000_000, reference)])
    assert scores["wer"] == pytest.approx(MAX_TEXT / 5 / 6)


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([], "there are no answers"),
        ([Answer({}, "a text")], "the answer to example 1 is not a text"),
        ([Answer("a", "b"), Answer("a", None)], "example 2 has no text as its reference"),
        ([Answer("a", "  ")], "example 1 has no text as its reference"),
    ],
)
@pytest.mark.parametrize("metric", [Rouge(), WordErrorRate()], ids=["rouge", "wer"])
def test_what_cannot_be_scored_is_said(metric: Any, answers: list[Answer], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        metric.score(answers)
