"""The task `summarisation`: articles with reference summaries, from the user or built in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from protocol.formats.examples import MIB
from results.scoring.articles import INSTRUCTION, ArticleLength, articles, prompt_of
from results.scoring.options import only, text_option, word_option
from results.scoring.plugins import Example
from swarm.base.text import safe_text

MAX_LINE: Final = 4 * MIB
"""Maximum bytes of an article with its summary."""
FORM: Final = '{"text": "the article", "summary": "its reference summary"}'
ALL: Final = "all"


class Summarisation:
    """Each example is a prompt with an article; its reference is the summary."""

    name = "summarisation"
    metrics = ("rouge",)

    def examples(self, data: Path | None, options: Mapping[str, Any]) -> Iterable[Example]:
        only(options, ("instruction",) if data else ("instruction", "length"))
        instruction = text_option(options, "instruction", INSTRUCTION)
        if data is not None:
            return (Example(prompt_of(text, instruction), summary) for text, summary in read_articles(data))
        word = word_option(options, "length", (*ArticleLength, ALL), ArticleLength.SHORT)
        lengths = tuple(ArticleLength) if word == ALL else (ArticleLength(word),)
        ours = (article for length in lengths for article in articles(length))
        return [Example(prompt_of(article.text, instruction), article.summary) for article in ours]


def read_articles(path: Path) -> Iterator[tuple[str, str]]:
    """Text and summary from each line of a JSON Lines file. Raises `ValueError` with one line."""
    shown = safe_text(path.name, 80)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 1):
                if line.strip():
                    yield _article(line, f"line {number} of {shown}")
    except OSError as why:
        raise ValueError(f"{shown}: {why.strerror or 'it cannot be read'}") from None


def _article(line: bytes, where: str) -> tuple[str, str]:
    if len(line) > MAX_LINE:
        raise ValueError(f"{where} is longer than {MAX_LINE // MIB} MiB")
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"{where} is not JSON in UTF-8: each line is {FORM}") from None
    match entry:
        case {"text": str() as text, "summary": str() as summary} if text.strip() and summary.strip():
            return text, summary
    raise ValueError(f'{where} lacks a "text" or a "summary": each line is {FORM}')
