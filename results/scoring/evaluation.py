"""Runs tasks and metrics, and checks what they bring: a plug-in's mistake is one line that names it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from protocol.formats.examples import MAX_EXAMPLE_BYTES, MAX_EXAMPLES, MIB
from results.scoring.arrays import KINDS
from results.scoring.plugins import (
    NAME,
    NAME_FORM,
    Answer,
    EvaluationTask,
    Example,
    Metric,
    plugin_errors,
)
from swarm.base.text import count, safe_text

if TYPE_CHECKING:
    pass

MAX_REFERENCES: Final = 64 * MIB
"""Letters of all references as JSON, which stand beside the results."""
MAX_SCORES: Final = 64
"""Of one metric."""


def read_examples(task: EvaluationTask, data: Path | None, options: Mapping[str, Any]) -> tuple[Example, ...]:
    """All examples of a task. Raises `ValueError` with one line: of the task, or about it."""
    examples: list[Example] = []
    size = references = 0
    with plugin_errors(f"task {task.name!r}"):
        for number, example in enumerate(task.examples(data, options), 1):
            if number > MAX_EXAMPLES:
                raise ValueError(f"there are more than {MAX_EXAMPLES} examples")
            references += _reference_letters(example, number)
            if references > MAX_REFERENCES:
                raise ValueError(
                    f"the references of {count(number, 'example')} come to more than {MAX_REFERENCES // MIB} MiB: take fewer"
                )
            size += _input_bytes(example, number)
            if size > MAX_EXAMPLE_BYTES:
                raise ValueError(
                    f"the inputs of {count(number, 'example')} come to more than {MAX_EXAMPLE_BYTES // MIB} MiB: take fewer"
                )
            examples.append(example)
    if not examples:
        raise ValueError(f"task {task.name!r}: there are no examples")
    return tuple(examples)


def _reference_letters(example: Example, number: int) -> int:
    """Raises `ValueError` for what is no example, or has a reference that is no JSON."""
    if not isinstance(example, Example):
        raise ValueError(f"example {number} is {type(example).__name__}, not an Example(inputs, reference)")  # noqa: TRY004
    try:
        return len(json.dumps(example.reference, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as why:
        raise ValueError(
            f"the reference of example {number} is no JSON value, such as int(label) or a text: {why}"
        ) from None


def _input_bytes(example: Example, number: int) -> int:
    """Raises `ValueError` for inputs that no model could be given."""
    import numpy as np

    inputs = example.inputs
    if isinstance(inputs, str):
        if not inputs.strip():
            raise ValueError(f"example {number} is an empty text")
        return len(inputs.encode())
    named: Mapping[Any, Any] = inputs if isinstance(inputs, Mapping) else {"": inputs}
    if not named:
        raise ValueError(f"example {number} has no inputs")
    for name, array in named.items():
        which = (
            f"input {safe_text(str(name), 60)!r} of example {number}"
            if name
            else f"the input of example {number}"
        )
        if not isinstance(name, str) or not isinstance(array, np.ndarray):
            raise ValueError(f"{which} is {type(array).__name__}, where a NumPy array under a name is needed")  # noqa: TRY004
        if array.dtype.kind not in KINDS or array.dtype.itemsize > 8:
            raise ValueError(
                f"{which} is {array.dtype}: whole numbers, real numbers up to 64 bits, or booleans"
            )
    return sum(array.nbytes for array in named.values())


def score_answers(metrics: Sequence[Metric], answers: Sequence[Answer]) -> dict[str, float]:
    """The scores of all metrics by name. Raises `ValueError` with one line: of a metric, or about one."""
    scores: dict[str, float] = {}
    for metric in metrics:
        figures = _scored(metric, answers)
        if twice := sorted(figures.keys() & scores.keys()):
            raise ValueError(f"metric {metric.name!r} gives {twice[0]!r}, which another metric gives too")
        scores |= figures
    return scores


def _scored(metric: Metric, answers: Sequence[Answer]) -> dict[str, float]:
    where = f"metric {metric.name!r}"
    with plugin_errors(where):
        given: dict[Any, Any] = dict(metric.score(answers))
        figures = {name: float(figure) for name, figure in given.items()}
    if len(figures) > MAX_SCORES:
        raise ValueError(f"{where} gives {len(figures)} scores, where {MAX_SCORES} are allowed")
    for name, figure in figures.items():
        if not isinstance(name, str) or NAME.fullmatch(name) is None:
            raise ValueError(f"{where} gives a score {safe_text(str(name), 60)!r}: names are {NAME_FORM}")
        if not math.isfinite(figure):
            raise ValueError(f"{where} gives {figure} for {name!r}, which is no figure")
    return figures
