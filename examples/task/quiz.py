"""A complete task, to copy and change: python -m pip install ./examples/task, then: evaluate: {task: quiz, data: capitals.csv}.

Its examples are questions of a CSV file with the columns question and answer, for a language model. Contract: docs/evaluation.md.
"""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from results.scoring.plugins import Example

FORM = "a CSV file in UTF-8 whose first line is: question,answer"
INSTRUCTION = "Answer with one word."


class Quiz:
    """Named by the entry point."""

    name = "quiz"  # the same as the entry point's name
    metrics = ("wer",)  # of a campaign that names none

    def examples(self, data: Path | None, options: Mapping[str, Any]) -> Iterator[Example]:
        """One for each line, the same each time."""
        if data is None:
            raise ValueError(f"quiz needs data: {FORM}")
        if options.keys() - {"instruction"}:
            raise ValueError("quiz takes one option: instruction, the text before each question")
        instruction = options.get("instruction", INSTRUCTION)
        with data.open(encoding="utf-8", newline="") as file:
            for number, line in enumerate(csv.DictReader(file), 1):
                question, answer = line.get("question"), line.get("answer")
                if not question or not answer:
                    raise ValueError(f"question {number} of {data.name} is not complete: it has to be {FORM}")
                yield Example(f"{instruction}\n\n{question}", answer)
