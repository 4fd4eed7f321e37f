"""Metrics for texts: ROUGE for summaries, and word error rate for transcripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final

from results.scoring.plugins import Answer

ROUGE: Final = {"rouge1": "rouge1", "rouge2": "rouge2", "rougeL": "rougel"}
"""Maps a kind in the package rouge-score to the score's name."""
NEEDED: Final = "rouge needs the package rouge-score: pip install 'sark-node[text]'"
MAX_TEXT: Final = 20_000
"""Maximum characters of an answer that are compared, or twice the length of its reference if that is more: the time grows with the product
of both lengths."""


class Rouge:
    """Mean F1 over all answers for shared words (1), word pairs (2) and the longest common subsequence (L), with stemming; and the number
    of words in the summaries per word of the references.
    """

    name = "rouge"

    def score(self, answers: Sequence[Answer]) -> dict[str, float]:
        try:
            package: Any = import_module("rouge_score.rouge_scorer")
        except ImportError:
            raise ValueError(NEEDED) from None
        scorer = package.RougeScorer(list(ROUGE), use_stemmer=True)
        sums = dict.fromkeys(ROUGE.values(), 0.0)
        words = reference_words = 0
        for text, reference in _pairs(answers):
            shared = scorer.score(reference, text)
            for kind, name in ROUGE.items():
                sums[name] += float(shared[kind].fmeasure)
            words += len(text.split())
            reference_words += len(reference.split())
        means = {name: total / len(answers) for name, total in sums.items()}
        return means | {"summary_length_ratio": words / reference_words}


class WordErrorRate:
    """Words that were changed, left out or added, per word of the references, over all answers together; above 1 if there are more errors
    than words. Words are separated by spaces; case and punctuation count.
    """

    name = "wer"

    def score(self, answers: Sequence[Answer]) -> dict[str, float]:
        pairs = [(text.split(), reference.split()) for text, reference in _pairs(answers)]
        errors = sum(edits(words, reference) for words, reference in pairs)
        return {self.name: errors / sum(len(reference) for _, reference in pairs)}


def edits(words: Sequence[str], reference: Sequence[str]) -> int:
    """The minimum number of words to change, leave out or add to turn one text into the other (Levenshtein)."""
    import numpy as np

    numbers = {word: number for number, word in enumerate({*words, *reference})}
    given = np.array([numbers[word] for word in words], np.int64)
    steps = np.arange(len(words) + 1)
    costs = steps.copy()
    for row, word in enumerate(reference, 1):
        changed = np.minimum(costs[:-1] + (given != numbers[word]), costs[1:] + 1)
        best = np.concatenate(([row], changed))
        costs = np.minimum.accumulate(best - steps) + steps  # each added word costs one
    return int(costs[-1])


def _pairs(answers: Sequence[Answer]) -> Iterator[tuple[str, str]]:
    """The compared part of each answer, and its reference."""
    if not answers:
        raise ValueError("there are no answers")
    for number, answer in enumerate(answers, 1):
        if not isinstance(answer.outputs, str):
            raise ValueError(f"the answer to example {number} is not a text")  # noqa: TRY004
        if not isinstance(answer.reference, str) or not answer.reference.strip():
            raise ValueError(f"example {number} has no text as its reference")
        yield answer.outputs[: max(MAX_TEXT, 2 * len(answer.reference))], answer.reference
