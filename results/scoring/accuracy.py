"""Accuracy of classification: the share of answers that name the class of their label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from results.scoring.plugins import Answer

if TYPE_CHECKING:
    import numpy as np

TOP: Final = 5


class Accuracy:
    """Share of answers whose highest value is at the label."""

    name = "accuracy"

    def score(self, answers: Sequence[Answer]) -> dict[str, float]:
        return {self.name: _share(answers, 1)}


class TopFive:
    """Share of answers whose label is among the five highest values."""

    name = "top5"

    def score(self, answers: Sequence[Answer]) -> dict[str, float]:
        return {self.name: _share(answers, TOP)}


def _share(answers: Sequence[Answer], top: int) -> float:
    """Of equal values, the one with the lower index ranks higher; an answer with NaN is wrong, because it names no class."""
    import numpy as np

    right = 0
    for scores, label in _labelled(answers):
        if scores.size <= top:
            raise ValueError(f"top{top} needs more than {top} classes, but the output has {scores.size}")
        higher = np.count_nonzero(scores > scores[label]) + np.count_nonzero(scores[:label] == scores[label])
        right += int(higher < top and not np.isnan(scores).any())
    return right / len(answers)


def _labelled(answers: Sequence[Answer]) -> Iterator[tuple[np.ndarray[Any, Any], int]]:
    """The value of each class, and the label."""
    if not answers:
        raise ValueError("there are no answers")
    for number, answer in enumerate(answers, 1):
        label = answer.reference
        if type(label) is not int or label < 0:
            raise ValueError(f"example {number} has no label: its reference has to be the index of its class")
        if isinstance(answer.outputs, str):
            raise ValueError(f"the answer to example {number} is text, but accuracy needs a value per class")  # noqa: TRY004
        scores = class_scores(answer.outputs)
        if scores is None:
            raise ValueError(
                f"no output is a list of values per class, [1, classes]: {_forms(answer.outputs)}"
            )
        if label >= scores.size:
            raise ValueError(
                f"the label of example {number} is {label}, but the output has {scores.size} classes, 0 to {scores.size - 1}"
            )
        yield scores, label


def class_scores(outputs: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any] | None:
    """The first output by name with one axis longer than 1, such as [1, 1000] or [1, 1000, 1, 1], as a flat array; None if there is
    none.
    """
    for _, output in sorted(outputs.items()):
        if output.dtype.kind in "iuf" and output.size > 1 and output.size == max(output.shape):
            return output.reshape(-1)
    return None


def _forms(outputs: Mapping[str, np.ndarray[Any, Any]]) -> str:
    return ", ".join(f"{name} {list(output.shape)}" for name, output in sorted(outputs.items())) or "none"
