"""Runs tasks and metrics, and checks what they return: a plug-in's mistake becomes one line that names the plug-in."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

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

MAX_REFERENCES: Final = 64 * MIB
"""Maximum characters of all references as JSON, which are stored with the results."""
MAX_SCORES: Final = 64
"""Maximum scores from one metric."""
SCORES_FORM: Final = '{"accuracy": 0.97}'


def read_examples(task: EvaluationTask, data: Path | None, options: Mapping[str, Any]) -> tuple[Example, ...]:
    """All examples of a task. Raises `ValueError` with one line, from the task or about it."""
    examples: list[Example] = []
    size = references = 0
    with plugin_errors(f"task {task.name!r}"):
        for number, example in enumerate(task.examples(data, options), 1):
            if number > MAX_EXAMPLES:
                raise ValueError(f"there are more than {MAX_EXAMPLES} examples")
            references += _reference_letters(example, number)
            if references > MAX_REFERENCES:
                raise ValueError(
                    f"the references of {count(number, 'example')} exceed {MAX_REFERENCES // MIB} MiB: use fewer examples"
                )
            size += _input_bytes(example, number)
            if size > MAX_EXAMPLE_BYTES:
                raise ValueError(
                    f"the inputs of {count(number, 'example')} exceed {MAX_EXAMPLE_BYTES // MIB} MiB: use fewer examples"
                )
            examples.append(example)
    if not examples:
        raise ValueError(f"task {task.name!r}: there are no examples")
    return tuple(examples)


def _reference_letters(example: Example, number: int) -> int:
    """Raises `ValueError` if `example` is not an `Example`, or its reference is not JSON."""
    if not isinstance(example, Example):
        raise ValueError(f"example {number} is {type(example).__name__}, not an Example(inputs, reference)")  # noqa: TRY004
    try:
        return len(json.dumps(example.reference, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as why:
        raise ValueError(
            f"the reference of example {number} is not a JSON value, such as int(label) or a text: {why}"
        ) from None


def _input_bytes(example: Example, number: int) -> int:
    """Raises `ValueError` for inputs that no model can take."""
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
            raise ValueError(f"{which} is {type(array).__name__}, but must be a NumPy array under a name")  # noqa: TRY004
        if array.dtype.kind not in KINDS or array.dtype.itemsize > 8:
            raise ValueError(
                f"{which} is {array.dtype}, but must be whole numbers, real numbers up to 64 bits, or booleans"
            )
    return sum(array.nbytes for array in named.values())


def score_answers(metrics: Sequence[Metric], answers: Sequence[Answer]) -> dict[str, float]:
    """The scores of all metrics by name. Raises `ValueError` with one line, from a metric or about one."""
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
        given: Any = metric.score(answers)
        if not isinstance(given, Mapping):
            what = type(given).__name__
            raise ValueError(f"it gives {what}, not names with numbers: {SCORES_FORM}")  # noqa: TRY004
        if len(given) > MAX_SCORES:
            raise ValueError(f"it gives {len(given)} scores, but {MAX_SCORES} are allowed")
        figures: dict[str, float] = {}
        for name, figure in given.items():
            shown = safe_text(str(name), 60)
            if not isinstance(name, str) or NAME.fullmatch(name) is None:
                raise ValueError(f"it gives a score {shown!r}: names are {NAME_FORM}")
            try:
                figures[name] = float(figure)
            except (TypeError, ValueError):
                raise ValueError(
                    f"it gives {safe_text(repr(figure), 60)} for {shown!r}, which is not a number"
                ) from None
            if not math.isfinite(figures[name]):
                raise ValueError(f"it gives {figures[name]} for {shown!r}, which is not finite")
    return figures
