"""The summarisation task: articles and reference summaries of our own (`texts/`), and how near a written summary comes to its reference.

    write: Writer = …                                      # whatever makes text of a prompt
    figures = rouge(pairs(articles(), write))

Near is told by ROUGE F1 as the package `rouge-score` counts it, with stemming: shared words (1), shared pairs of words (2), and the
longest common subsequence (L). It compares words and not meaning, and is worth comparing between models only on the same texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from drivers.contract.base import Unfit

Writer = Callable[[str], str]
"""Makes a text of a prompt."""

FOLDER: Final = Path(__file__).parent / "texts"
DIVIDER: Final = "\n\nSummary\n\n"
INSTRUCTION: Final = "Summarise the following article in two sentences. Answer with the summary alone."
NEEDED: Final = "the summarisation task needs the package rouge-score here: pip install 'sark-node[text]'"
KINDS: Final = {"rouge1": "rouge1_f", "rouge2": "rouge2_f", "rougeL": "rougel_f"}
LONGEST: Final = 20_000
"""Characters of a summary that are compared: ROUGE-L takes time by the product of both lengths."""


@dataclass(frozen=True, slots=True)
class Article:
    """A text and the summary that somebody wrote of it."""

    name: str
    text: str
    summary: str

    @property
    def prompt(self) -> str:
        """What a writer is given."""
        return f"{INSTRUCTION}\n\n{self.text}"


@cache
def articles() -> tuple[Article, ...]:
    """All of them, by name."""
    found = []
    for path in sorted(FOLDER.glob("*.txt")):
        text, _, summary = path.read_text("utf-8").partition(DIVIDER)
        found.append(Article(path.stem, " ".join(text.split()), " ".join(summary.split())))
    return tuple(found)


def pairs(given: Sequence[Article], write: Writer) -> list[tuple[Article, str]]:
    """Each article with the summary that `write` makes of it."""
    return [(article, write(article.prompt)) for article in given]


def need_rouge() -> Any:
    """The package, imported. Raises `Unfit` with how to install it."""
    try:
        return import_module("rouge_score.rouge_scorer")
    except ImportError:
        raise Unfit(NEEDED) from None


def rouge(written: Iterable[tuple[Article, str]]) -> dict[str, float]:
    """Mean F1 over all pairs, and how long the summaries are for each word of the references; empty for no pairs.

    Raises `Unfit` where the package is not installed.
    """
    scorer = need_rouge().RougeScorer(list(KINDS), use_stemmer=True)
    scores: list[dict[str, float]] = []
    words = wanted = 0
    for article, text in written:
        found = scorer.score(article.summary, text[:LONGEST])
        scores.append({figure: float(found[kind].fmeasure) for kind, figure in KINDS.items()})
        words, wanted = words + len(text.split()), wanted + len(article.summary.split())
    if not scores:
        return {}
    figures = {figure: sum(score[figure] for score in scores) / len(scores) for figure in KINDS.values()}
    return figures | {"summary_length_ratio": words / wanted}
