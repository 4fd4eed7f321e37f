"""Articles with reference summaries, in three lengths, for language models to summarise.

They are stored beside this file and are part of the package. Schedulers give the articles to devices, and score answers by the summaries.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
DIVIDER: Final = "\n\nSummary\n\n"
INSTRUCTION: Final = "Summarise the following article in two sentences. Answer with the summary alone."


class ArticleLength(StrEnum):
    """About 200, 500 and 1,400 words."""

    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"


@dataclass(frozen=True, slots=True)
class Article:
    name: str
    text: str
    summary: str

    @property
    def prompt(self) -> str:
        return prompt_of(self.text)


def prompt_of(text: str, instruction: str = INSTRUCTION) -> str:
    """The prompt for a model."""
    return f"{instruction}\n\n{text}"


@cache
def articles(length: ArticleLength = ArticleLength.SHORT) -> tuple[Article, ...]:
    """All articles of a length, sorted by name."""
    loaded = []
    for path in sorted((FOLDER / length).glob("*.txt")):
        text, _, summary = path.read_text("utf-8").partition(DIVIDER)
        loaded.append(Article(path.stem, " ".join(text.split()), " ".join(summary.split())))
    return tuple(loaded)
