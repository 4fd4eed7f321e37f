"""Drift: how far outputs lie from their reference outputs, as a share of the reference's size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from results.scoring.plugins import Answer
from results.scoring.tensors import tensors_from_json
from swarm.base.text import count, safe_text

if TYPE_CHECKING:
    import numpy as np


class Drift:
    """Drift of the answers from the outputs in their references. If no example has any, there is no score: rows can still be compared with
    each other (`drift_between`).
    """

    name = "drift"

    def score(self, answers: Sequence[Answer]) -> dict[str, float]:
        if not answers:
            raise ValueError("there are no answers")
        given = [answer for answer in answers if answer.reference is not None]
        if not given:
            return {}
        if len(given) < len(answers):
            raise ValueError(
                f"{count(len(answers) - len(given), 'example')} of {len(answers)} have no reference"
            )
        references = [tensors_from_json(answer.reference) for answer in answers]
        return drift_between([answer.outputs for answer in answers], references)


def drift_between(
    outputs: Sequence[Mapping[str, np.ndarray[Any, Any]] | str],
    reference: Sequence[Mapping[str, np.ndarray[Any, Any]] | str],
) -> dict[str, float]:
    """Median and largest distance over all examples. Raises `ValueError` with one line if the two cannot be compared."""
    if not outputs or len(outputs) != len(reference):
        raise ValueError(f"{len(outputs)} answers, but {len(reference)} references")
    apart = []
    for number, (one, other) in enumerate(zip(outputs, reference, strict=True), 1):
        if isinstance(one, str) or isinstance(other, str):
            raise ValueError("drift needs tensors, but these answers are texts")  # noqa: TRY004
        try:
            apart.append(max(_distance(*pair) for pair in _pairs(one, other)))
        except ValueError as why:
            raise ValueError(f"example {number}: {why}") from None
    return {"drift": median(apart), "drift_max": max(apart)}


def _pairs(
    outputs: Mapping[str, np.ndarray[Any, Any]], reference: Mapping[str, np.ndarray[Any, Any]]
) -> list[tuple[str, np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Pairs by name; single outputs pair regardless of name, because formats of one model name them differently. Outputs that the reference
    lacks do not count.
    """
    if len(outputs) == len(reference) == 1:
        ((name, only),) = reference.items()
        return [(name, next(iter(outputs.values())), only)]
    if missing := sorted(reference.keys() - outputs.keys()):
        there_are = safe_text(", ".join(sorted(outputs)) or "none")
        raise ValueError(f"there is no output {safe_text(missing[0], 60)!r}; the outputs are {there_are}")
    return [(name, outputs[name], reference[name]) for name in reference]


def _distance(name: str, output: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]) -> float:
    """For real numbers, the Euclidean distance divided by the norm of the reference (1 if only the reference's norm is 0); for whole
    numbers and booleans, the share that differs.
    """
    import numpy as np

    shown = f"output {safe_text(name, 60)!r}"
    if [size for size in output.shape if size != 1] != [size for size in reference.shape if size != 1]:
        raise ValueError(f"{shown} is {list(output.shape)}, the reference {list(reference.shape)}")
    a, b = output.reshape(-1), reference.reshape(-1)
    if not a.size:
        return 0.0
    if a.dtype.kind != "f" and b.dtype.kind != "f":
        return float(np.mean(a != b))
    a, b = a.astype(np.float64), b.astype(np.float64)
    differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    odd = int(np.count_nonzero(differs & ~(np.isfinite(a) & np.isfinite(b))))
    if odd:
        raise ValueError(
            f"{shown} and the reference have NaN or infinity at different places, {odd} of {a.size}"
        )
    finite = np.isfinite(b)
    a, b = a[finite], b[finite]
    largest = float(max(np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0))) or 1.0
    length, apart = float(np.linalg.norm(b / largest)), float(np.linalg.norm(a / largest - b / largest))
    return apart / length if length else float(apart > 0)
