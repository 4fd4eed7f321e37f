"""Checks, before any device is asked, that a model's ONNX graph takes its examples, and has the classes that their labels name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Final

from protocol.errors import CampaignError
from protocol.formats.examples import UNNAMED, Value, Values, unpack_examples
from protocol.formats.onnx import OnnxGraph
from protocol.formats.shapes import InputPort, show_shape
from results.scoring.built_in import METRICS
from results.scoring.texts import Rouge, WordErrorRate
from scheduler.campaign.model import ModelEntry
from scheduler.models.evaluate import Evaluation
from swarm.base.text import safe_text

CLASSES: Final = {"accuracy": 2, "top5": 6}
"""Metrics that need a value per class, and the least number of classes for each."""
TEXTS: Final = frozenset({Rouge.name, WordErrorRate.name})
"""Metrics for texts."""
UNKNOWN: Final = -1


def check_examples(entry: ModelEntry, graph: OnnxGraph, evaluation: Evaluation) -> None:
    """Raise `CampaignError`, with one line and the right form, if an example or a label does not fit. Whatever the graph leaves open
    fits.
    """
    seen: set[tuple[tuple[str, str, tuple[int, ...]], ...]] = set()
    for number, example in enumerate(unpack_examples(evaluation.content), 1):
        form = tuple((name, value.dtype, value.shape) for name, value in example.items())
        if form not in seen:
            seen.add(form)
            _check_inputs(entry, graph, example, number)
    if texts := [name for name in evaluation.account.metrics if name in TEXTS]:
        raise _error(
            entry,
            f"metric {texts[0]!r} scores texts, but an ONNX model answers with tensors",
            f"remove {texts[0]}; metrics for tensors: {', '.join(sorted(METRICS.keys() - TEXTS))}",
        )
    if needed := [name for name in evaluation.account.metrics if name in CLASSES]:
        _check_labels(entry, graph, evaluation.account.references, needed)


def _check_inputs(entry: ModelEntry, graph: OnnxGraph, example: Values, number: int) -> None:
    if UNNAMED in example and example[UNNAMED].text is not None:
        raise _error(
            entry,
            "its examples are texts",
            "an ONNX model takes tensors: see docs/evaluation.md for units that take texts",
        )
    if UNNAMED in example and len(graph.inputs) == 1:
        example = {graph.inputs[0].name: example[UNNAMED]}
    names = [port.name for port in graph.inputs]
    if example.keys() != set(names):
        given = ", ".join(name or "one without a name" for name in example)
        raise _error(
            entry,
            f"example {number} gives {given}, but the model's inputs are {', '.join(names)}",
            f"numpy.savez(FILE, {', '.join(f'{name}=…' for name in names)}, …), with an array for each input",
        )
    for port in graph.inputs:
        _check_input(entry, port, graph.types.get(port.name), example[port.name], number)


def _check_input(entry: ModelEntry, port: InputPort, element: str | None, value: Value, number: int) -> None:
    import numpy as np

    wanted, given = _shown(port.shape), show_shape(value.shape) or "a scalar"
    if port.shape and not _fits(port.shape, value.shape):
        rest = "".join(f"×{size or 'any'}" for size in port.shape[1:])
        hint = f"give an array of N{rest}; for a folder of images, see its options size, layout and colours"
        if order := _turned(port.shape, value.shape):
            hint = f"its axes are in another order: numpy.transpose(x, {order}); for a folder of images, the option layout"
        elif _fits(port.shape[1:], value.shape[1:]):
            hint = "each example is one sample: export the model with a batch of 1, or with a dynamic one"
        raise _error(entry, f"example {number} is {given}, but input {port.name!r} takes {wanted}", hint)
    if element is None:
        return
    if element in ("string", "bfloat16"):
        raise _error(
            entry,
            f"input {port.name!r} is {element}, which examples cannot give",
            "export the model with a float32 input",
        )
    if not np.can_cast(np.dtype(value.dtype), np.dtype(element), "same_kind"):
        what = f"example {number} is {value.dtype}, but input {port.name!r} takes {element}"
        raise _error(entry, what, f"save it as x.astype(numpy.{element}); for a folder of images, set dtype:")


def _check_labels(
    entry: ModelEntry, graph: OnnxGraph, references: Iterable[object], metrics: Sequence[str]
) -> None:
    classes = class_count(graph)
    if classes == UNKNOWN:
        return
    if classes is None:
        outputs = ", ".join(f"{port.name} {_shown(port.shape)}" for port in graph.outputs or ())
        raise _error(
            entry,
            f"{metrics[0]} needs an output with a value per class, 1×CLASSES, but the model's outputs are {outputs}",
            "choose other metrics",
        )
    for metric in metrics:
        if classes < CLASSES[metric]:
            raise _error(
                entry,
                f"{metric} needs {CLASSES[metric]} classes or more, but the model's output has {classes}",
                "remove it",
            )
    for number, label in enumerate(references, 1):
        if type(label) is int and label >= classes:
            raise _error(
                entry,
                f"the label of example {number} is {label}, but the model's output has {classes} classes",
                f"labels are indices of classes, 0 to {classes - 1}: the first class is 0",
            )


def class_count(graph: OnnxGraph) -> int | None:
    """Values per class in the output that `accuracy` uses; `UNKNOWN`: the graph leaves it open; None: there is no such output."""
    if graph.outputs is None:
        return UNKNOWN
    for port in sorted(graph.outputs, key=lambda port: port.name):
        if graph.types.get(port.name, "") in ("bool", "string"):
            continue
        sizes = [size if isinstance(size, int) else UNKNOWN for size in port.shape]
        if sizes and sizes[0] == UNKNOWN:
            sizes[0] = 1  # the batch axis, for one example
        if UNKNOWN in sizes:
            return UNKNOWN
        if math.prod(sizes) > 1 and math.prod(sizes) == max(sizes):
            return max(sizes)
    return None


def _fits(wanted: Sequence[int | str | None], given: Sequence[int]) -> bool:
    return len(wanted) == len(given) and all(
        not isinstance(want, int) or want == size for want, size in zip(wanted, given, strict=True)
    )


def _turned(wanted: Sequence[int | str | None], given: Sequence[int]) -> tuple[int, ...] | None:
    """The order of axes in which it would fit, if the first one stays in place."""
    if len(wanted) != len(given) or not 3 <= len(given) <= 5:
        return None
    orders = ((0, *rest) for rest in permutations(range(1, len(given))))
    return next((order for order in orders if _fits(wanted, [given[axis] for axis in order])), None)


def _shown(shape: Sequence[int | str | None]) -> str:
    return "×".join(safe_text(str(size), 40) if size else "any" for size in shape) or "a scalar"


def _error(entry: ModelEntry, what: str, hint: str) -> CampaignError:
    return entry.error(f"{entry.title} cannot be evaluated: {safe_text(what, 400)}", safe_text(hint, 400))
